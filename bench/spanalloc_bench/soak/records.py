"""A soak's folder: soak.csv, a line a sample, and soak-meta.json, with what the samples depend on and which programs are
done. A program whose run was interrupted begins anew, for its servers' memory is gone with them; its lines are dropped."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import os

from spanalloc_bench import old_names, packed, store

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


_FIELDS = {field.name: {"int": int, "float": float, "str": str}[field.type] for field in dataclasses.fields(Sample)}


def sha256(path) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _text(rows) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def read(folder) -> list[Sample]:
    """The samples; a last line that was cut off by a kill does not count."""
    path, content = packed.path(folder, CSV), packed.content(folder, CSV).decode()
    names, found = old_names.of_folder(folder, META), []
    lines = csv.DictReader(io.StringIO(content[:content.rfind("\n") + 1]))
    for number, line in enumerate(lines, 2):
        try:
            sample = Sample(**{name: kind(line[name]) for name, kind in _FIELDS.items()})
            found.append(dataclasses.replace(sample, allocator=names.name(sample.allocator)))
        except (KeyError, TypeError, ValueError):
            raise store.Damaged(f"{path}, line {number}: this is no sample of a soak") from None
    return found


def read_meta(folder) -> dict:
    path = os.path.join(folder, META)
    try:
        with open(path, encoding="utf-8") as file:
            meta = json.load(file)
            return old_names.of_record(meta).record(meta)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise store.Damaged(f"{path}: {error}") from None


def _replace(path, text):
    """A kill leaves either the old file or the new one."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


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
        packed.unpack(self.path, CSV)
        kept = [sample for sample in read(self.path) if sample.program in programs]
        _replace(os.path.join(self.path, CSV), _text([list(_FIELDS), *map(dataclasses.astuple, kept)]))

    def append(self, samples):
        if self._file is None:
            packed.unpack(self.path, CSV)
            self._file = open(os.path.join(self.path, CSV), "a", encoding="utf-8")
        self._file.write(_text(map(dataclasses.astuple, samples)))
        self._file.flush()

    def write_meta(self):
        _replace(os.path.join(self.path, META), json.dumps(self.meta, indent=1) + "\n")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._file is not None:
            self._file.close()
        self._hold.close()
