"""A soak's folder: soak.csv, a line a sample, and soak-meta.json, with what the samples depend on and which programs are
done. A program whose run was interrupted begins anew, for its servers' memory is gone with them; its lines are dropped."""

from __future__ import annotations

import dataclasses
import os

from spanalloc_bench import csv_lines, old_names, packed, store

CSV, META = "soak.csv", "soak-meta.json"


@dataclasses.dataclass(frozen=True)
class Sample:
    program: str
    allocator: str
    seconds: float  # since the load began
    cycle: int
    phase: str
    rss_kib: int
    page_tables_kib: int
    anonymous_kib: int
    cpu_s: float
    late_s: float  # by how much the load is behind its schedule

    @property
    def memory_kib(self) -> int:
        return self.rss_kib + self.page_tables_kib


def read(folder) -> list[Sample]:
    return csv_lines.read(Sample, folder, CSV, META)


def read_meta(folder) -> dict:
    return old_names.read_record(folder, META)


class Folder:
    """A soak's folder, open for adding samples. One process at a time."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path, exist_ok=True)
        self._hold = store.Hold(path)
        old_names.part(path, CSV, META)
        self.meta = read_meta(path)
        self._file = None

    def keep_only(self, programs):
        """Drops the samples of all other programs."""
        kept = [sample for sample in read(self.path) if sample.program in programs]
        packed.write_table(self.path, CSV, csv_lines.text(Sample, kept))

    def append(self, samples):
        if self._file is None:
            self._file = csv_lines.opened(Sample, self.path, CSV)
        csv_lines.add(self._file, Sample, samples)

    def write_meta(self):
        packed.write_record(self.path, META, self.meta)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._file is not None:
            self._file.close()
        self._hold.close()
