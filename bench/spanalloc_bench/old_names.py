"""Recorded results are never rewritten: where a config has got another name since, they are read by today's.

    a folder's record, as it was written  ->  Names  ->  the same record, and the folder's lines, by today's names

The table is spanalloc_cli.libraries.RECORDED_NAMES. Two of today's names were others' in 0.1: `scalloc` and `supermalloc` were
the programs of the papers' authors. Whose a name is in a folder is what the folder's record says of it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import re

from spanalloc_bench import packed
from spanalloc_cli import libraries

_NAME = re.compile(rf"({'|'.join(libraries.RECORDED_NAMES)})(-[\w-]+)?")
_OURS_FILE = re.compile(r"libspanalloc[\w.-]*")
AUTHORS = ("scalloc", "supermalloc")
COLUMN = "allocator"  # of a table's lines: has a contender's name


def of_authors(name) -> str:
    """What the authors' program of that name is called today."""
    return f"{name}-original"


@dataclasses.dataclass(frozen=True)
class Names:
    """How the names in one folder are read; those of `theirs` are the authors' programs there."""

    theirs: frozenset = frozenset()

    def name(self, text) -> str:
        """A contender's name."""
        return of_authors(text) if text in self.theirs else today(text)

    def record(self, record):
        """A record as json.load gives it. An authors' program's name is changed where it can only be a contender's: as a
        key, and behind "name"."""
        if isinstance(record, list):
            return [self.record(item) for item in record]
        if isinstance(record, dict):
            return {self.name(key): self.name(item) if key == "name" and isinstance(item, str) else self.record(item)
                    for key, item in record.items()}
        return today(record)


def today(text):
    """A text that is a config's old name as its name of today. What only contains one, a path or a command line, and what
    is no text, is as it was."""
    if isinstance(text, str) and _NAME.fullmatch(text):
        return libraries.current_name(text, libraries.RECORDED_NAMES)
    return text


def _entries(record):
    """(name, what is known of it) of the record's contenders, in whichever of the suite's forms."""
    found = record.get("allocators") or record.get("settings", {}).get("allocators") or []
    return found.items() if isinstance(found, dict) else [(entry.get("name"), entry) for entry in found]


def _is_authors(entry) -> bool:
    kind, path = entry.get("kind"), entry.get("path")
    if kind:  # only the suite's own record has it
        return kind in ("peer", "given")
    return bool(path) and not _OURS_FILE.fullmatch(os.path.basename(path))


def of_record(record) -> Names:
    """How a folder with this record is read."""
    return Names(frozenset(name for name, entry in _entries(record) if name in AUTHORS and _is_authors(entry)))


def of_folder(folder, meta) -> Names:
    """How the folder is read whose record is the file `meta`. Where there is none, every name is one of ours."""
    try:
        return of_record(packed.read_record(folder, meta))
    except packed.Damaged:  # whoever reads the record itself says so
        return Names()


def read_record(folder, meta) -> dict:
    """The folder's record by today's names; empty where there is none."""
    record = packed.read_record(folder, meta)
    return of_record(record).record(record)


def part(folder, table, meta):
    """For whoever adds to the folder: one that has lines of an authors' program under a name of ours is given the program's
    name of today in them, and then in its record. A kill between the two leaves what is read alike."""
    names = of_folder(folder, meta)
    if not names.theirs:
        return
    packed.unpack(folder, table)
    content = packed.content(folder, table)
    rows = list(csv.reader(io.StringIO(content[:content.rfind(b"\n") + 1].decode(errors="replace"), newline="")))
    if rows and COLUMN in rows[0]:
        place = rows[0].index(COLUMN)
        for row in rows[1:]:
            if len(row) > place and row[place] in names.theirs:
                row[place] = of_authors(row[place])
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        packed.replace(os.path.join(folder, table), out.getvalue().encode())
    packed.write_record(folder, meta, names.record(packed.read_record(folder, meta)))
