"""The folder of one run: samples.csv (every raw sample, one line each; samples.csv.xz where results are kept) and
meta.json (under what they were taken)."""

from __future__ import annotations

import fcntl
import os

from spanalloc_bench import csv_lines, old_names, packed
from spanalloc_bench.model import UNAVAILABLE, Sample
from spanalloc_bench.packed import Damaged  # noqa: F401

FIELDS = tuple(csv_lines.columns(Sample))
ADDED = ("started",)  # the last columns, which older files lack
SAMPLES, META, SET_ASIDE = "samples.csv", "meta.json", "samples-set-aside.csv"


class InUse(Exception):
    """Another run writes into the folder."""


def _key(sample):
    return sample.case, sample.allocator, sample.round


def samples(folder) -> list[Sample]:
    """Every sample of the folder in the order of writing. A later one of the same cell replaces an earlier one."""
    cells = {}
    for sample in csv_lines.read(Sample, folder, SAMPLES, META, ADDED):
        cells.pop(_key(sample), None)
        cells[_key(sample)] = sample
    return list(cells.values())


def read(folder):
    """The folder's samples as a pandas.DataFrame: one column a field of Sample, metrics and latency as dicts, numbers
    that are not there as NaN."""
    import pandas

    frame = pandas.DataFrame([vars(sample) for sample in samples(folder)], columns=FIELDS)
    numbers = [name for name, kind in csv_lines.columns(Sample).items() if kind in (int, float)]
    return frame.astype(dict.fromkeys(numbers, float))


def read_meta(folder) -> dict:
    """meta.json as a dict; empty when there is none."""
    return old_names.read_record(folder, META)


def write_meta(folder, meta):
    packed.write_record(folder, META, meta)


class Hold:
    """Holds a folder until it is closed: for one writer, or with LOCK_SH for any number of readers. InUse where somebody
    else has it."""

    def __init__(self, folder, how=fcntl.LOCK_EX):
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._folder, how | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InUse(f"another run is writing into {folder}; wait for its end or choose another folder") from None

    def close(self):
        os.close(self._folder)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Store:
    """A run's folder, open for adding samples. One process at a time: InUse for a second one."""

    def __init__(self, folder):
        self.folder = os.fspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self._hold = Hold(self.folder)
        try:
            old_names.part(self.folder, SAMPLES, META)
            self._cells = {_key(sample): sample for sample in samples(self.folder)}
            content = csv_lines.whole(packed.content(self.folder, SAMPLES))
            if content and not content.startswith(csv_lines.text(Sample, ())):  # without the newest columns
                packed.write_table(self.folder, SAMPLES, csv_lines.text(Sample, self.samples()))
            self._file = csv_lines.opened(Sample, self.folder, SAMPLES)
        except BaseException:
            self._hold.close()
            raise

    def append(self, sample: Sample):
        csv_lines.add(self._file, Sample, [sample])
        self._cells[_key(sample)] = sample

    def has(self, case: str, allocator: str, round_: int) -> bool:
        """Whether the cell is done. What could not be run for lack of something is not: it may have come since."""
        sample = self._cells.get((case, allocator, round_))
        return sample is not None and sample.status != UNAVAILABLE

    def get(self, case: str, allocator: str, round_: int) -> Sample | None:
        return self._cells.get((case, allocator, round_))

    def samples(self) -> list[Sample]:
        return list(self._cells.values())

    def set_aside(self, unwanted) -> int:
        """Moves every sample for which unwanted(sample) holds to another file of the folder; returns how many."""
        out = [s for s in self._cells.values() if unwanted(s)]
        if not out:
            return 0
        with csv_lines.opened(Sample, self.folder, SET_ASIDE) as file:
            csv_lines.add(file, Sample, out)
        self._file.close()
        self._cells = {key: s for key, s in self._cells.items() if not unwanted(s)}
        packed.write_table(self.folder, SAMPLES, csv_lines.text(Sample, self.samples()))
        self._file = csv_lines.opened(Sample, self.folder, SAMPLES)
        return len(out)

    def close(self):
        self._file.close()
        self._hold.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
