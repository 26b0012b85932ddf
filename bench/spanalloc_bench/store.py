"""The folder of one run: samples.csv (every raw sample, one line each; samples.csv.xz where results are kept) and
meta.json (under what they were taken).

A line is written by a single write and pushed to the disk's cache at once, so a run that is killed loses at most the
sample it was taking. What a kill in the middle of a write leaves behind has no newline at its end: reading passes over
it, and the next run cuts it off.
"""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import io
import json
import os
import types
import typing

from spanalloc_bench import old_names, packed
from spanalloc_bench.model import UNAVAILABLE, Sample
from spanalloc_bench.packed import Damaged

FIELDS = tuple(field.name for field in dataclasses.fields(Sample))
_TYPES = typing.get_type_hints(Sample)
ADDED = ("started",)  # the last columns, which older files lack
SAMPLES, META, SET_ASIDE = "samples.csv", "meta.json", "samples-set-aside.csv"


def _kind(name):
    """The plain type of a column: str, int, float or dict; of `int | None`, int."""
    hint = _TYPES[name]
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


KINDS = {name: _kind(name) for name in FIELDS}


def _encode(value, kind):
    if value is None:
        return ""
    if kind is dict:
        return json.dumps(value, separators=(",", ":"))
    if kind is str:
        return " ".join(str(value).split())  # one line, whatever a program's last words were
    return repr(value) if kind is float else str(value)


def _decode(text, kind):
    if kind is str:
        return text
    if kind is dict:
        return json.loads(text) if text else {}
    if text == "":
        return None
    return float(text) if kind is float else int(text)


def _line(values):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(values)
    return out.getvalue().encode()


def _sample_line(sample):
    return _line([_encode(getattr(sample, name), KINDS[name]) for name in FIELDS])


def _lines(found):
    """A whole file of these samples."""
    return _line(FIELDS) + b"".join(map(_sample_line, found))


def _whole_lines(folder):
    """The bytes of samples.csv up to its last newline; b"" when there is none."""
    content = packed.content(folder, SAMPLES)
    return content[: content.rfind(b"\n") + 1]


class InUse(Exception):
    """Another run writes into the folder."""


def samples(folder) -> list[Sample]:
    """Every sample of the folder in the order of writing. A later one of the same cell replaces an earlier one."""
    path = packed.path(folder, SAMPLES)
    rows = csv.reader(io.StringIO(_whole_lines(folder).decode(errors="replace"), newline=""))
    header = next(rows, None)
    if header is None:
        return []
    if tuple(header) not in (FIELDS, FIELDS[: -len(ADDED)]):
        raise Damaged(f"{path}: its columns are not those of this version; choose another --out")
    names = old_names.of_folder(folder, META)
    cells = {}
    for number, row in enumerate(rows, start=2):
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} columns")
            sample = Sample(**{name: _decode(text, KINDS[name]) for name, text in zip(header, row)})
            sample = dataclasses.replace(sample, allocator=names.name(sample.allocator))
        except ValueError as error:
            raise Damaged(f"{path}, line {number}: {error}") from None
        key = (sample.case, sample.allocator, sample.round)
        cells.pop(key, None)
        cells[key] = sample
    return list(cells.values())


def read(folder):
    """The folder's samples as a pandas.DataFrame: one column a field of Sample, metrics and latency as dicts, numbers
    that are not there as NaN."""
    import pandas

    found = samples(folder)
    frame = pandas.DataFrame({name: [getattr(sample, name) for sample in found] for name in FIELDS}, columns=FIELDS)
    for name, kind in KINDS.items():
        if kind in (int, float):
            frame[name] = pandas.to_numeric(frame[name])
    return frame


def read_meta(folder) -> dict:
    """meta.json as a dict; empty when there is none."""
    try:
        with open(os.path.join(folder, META), encoding="utf-8") as file:
            meta = json.load(file)
            return old_names.of_record(meta).record(meta)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Damaged(f"{os.path.join(folder, META)}: {error}") from None


def write_meta(folder, meta):
    os.makedirs(folder, exist_ok=True)
    packed.replace(os.path.join(folder, META), (json.dumps(meta, indent=1) + "\n").encode())


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
            self._cells = {(s.case, s.allocator, s.round): s for s in samples(self.folder)}
            self._open()
        except BaseException:
            self._hold.close()
            raise

    def _open(self):
        path = os.path.join(self.folder, SAMPLES)
        packed.unpack(self.folder, SAMPLES)
        content = _whole_lines(self.folder)
        if content and not content.startswith(_line(FIELDS)):  # a file without the newest columns
            content = _lines(self._cells.values())
            packed.replace(path, content)
        whole = len(content)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._file, whole)
        if whole == 0:
            os.write(self._file, _line(FIELDS))

    def append(self, sample: Sample):
        line = _sample_line(sample)
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"{self.folder}/{SAMPLES}: only {written} of {len(line)} bytes could be written; disk full?")
        self._cells[sample.case, sample.allocator, sample.round] = sample

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
        with open(os.path.join(self.folder, SET_ASIDE), "ab") as file:
            file.write(b"".join(map(_sample_line, out)) if file.tell() else _lines(out))
        os.close(self._file)
        packed.replace(os.path.join(self.folder, SAMPLES), _lines(s for s in self._cells.values() if not unwanted(s)))
        self._cells = {key: s for key, s in self._cells.items() if not unwanted(s)}
        self._open()
        return len(out)

    def close(self):
        os.close(self._file)
        self._hold.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
