"""The lines of a run's table: objects of a dataclass, whose fields are the columns. A value that is not there is empty,
a dict is JSON.

A line is written by a single write and pushed to the disk's cache at once, so a run that is killed loses at most the
line that it was taking. What a kill in the middle of a write leaves behind has no newline at its end: reading passes
over it, and whoever adds to the table cuts it off.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import os
import typing

from spanalloc_bench import old_names, packed
from spanalloc_bench.packed import Damaged


@functools.lru_cache(maxsize=None)
def columns(kind) -> dict[str, type]:
    """The plain type of each column: str, int, float or dict; of `int | None`, int."""
    hints = typing.get_type_hints(kind)
    return {field.name: (typing.get_args(hints[field.name]) or (hints[field.name],))[0]
            for field in dataclasses.fields(kind)}


def _encoded(value) -> str:
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, float):
        return repr(value)
    return "" if value is None else " ".join(str(value).split())  # one line, whatever a program's last words were


def _decoded(text, field, kind):
    if kind is dict:
        return json.loads(text) if text else {}
    required = field.default is dataclasses.MISSING
    return kind(text) if text or required or kind is str else None


def text(kind, rows, head=True) -> bytes:
    """The lines of the objects, below the one that names the columns."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    if head:
        lines.writerow(columns(kind))
    lines.writerows([_encoded(getattr(row, name)) for name in columns(kind)] for row in rows)
    return out.getvalue().encode()


def read(kind, folder, name, meta, added=()) -> list:
    """The objects of a folder's table, contenders by their names of today (`meta`: the file that says which they are).
    Damaged where a line is none of the table's. `added`: the last columns, which older tables lack."""
    path, types_of = packed.path(folder, name), columns(kind)
    rows = csv.reader(io.StringIO(whole(packed.content(folder, name)).decode(errors="replace"), newline=""))
    header = next(rows, None)
    if header is None:
        return []
    if header not in (list(types_of), list(types_of)[:len(types_of) - len(added)]):
        raise Damaged(f"{path}: its columns are not those of this version; choose another --out")
    names, found = old_names.of_folder(folder, meta), []
    for number, row in enumerate(rows, start=2):
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} columns")
            values = {field.name: _decoded(text, field, types_of[field.name])
                      for field, text in zip(dataclasses.fields(kind), row)}
            found.append(kind(**{**values, "allocator": names.name(values["allocator"])}))
        except ValueError as error:
            raise Damaged(f"{path}, line {number}: {error}") from None
    return found


def whole(content: bytes) -> bytes:
    """Without what a kill has left of a last line."""
    return content[:content.rfind(b"\n") + 1]


def opened(kind, folder, name):
    """The table as a file to which `add` adds."""
    packed.unpack(folder, name)
    file = open(os.path.join(folder, name), "ab+", buffering=0)
    file.seek(0)
    length = len(whole(file.read()))
    file.truncate(length)
    if not length:
        file.write(text(kind, ()))
    return file


def add(file, kind, rows):
    data = text(kind, rows, head=False)
    if file.write(data) != len(data):
        raise OSError(f"{file.name}: not all of a line could be written; disk full?")
