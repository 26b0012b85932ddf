"""A table of a run's folder, as NAME while runs add to it, or as NAME.xz where results are kept. This is the one place
that knows of both. Where both are there NAME counts: it is what NAME.xz was unpacked to."""

from __future__ import annotations

import contextlib
import json
import lzma
import os

SUFFIX = ".xz"


class Damaged(Exception):
    """A file of a run's folder is not what was written; the text says where."""


def path(folder, name) -> str | None:
    """Where the table is; None where there is none."""
    plain = os.path.join(folder, name)
    return next((found for found in (plain, plain + SUFFIX) if os.path.isfile(found)), None)


def newest(results, name, started_of) -> str | None:
    """Of the folders below `results` that have the table the one that started last, by `started_of(folder)`; None where there
    is none."""
    folders = [os.path.join(results, each) for each in os.listdir(results)] if os.path.isdir(results) else []
    return max((folder for folder in folders if path(folder, name)), key=lambda folder: (started_of(folder), folder),
               default=None)


def content(folder, name) -> bytes:
    """What the table holds, not compressed; b"" where there is none."""
    found = path(folder, name)
    if found is None:
        return b""
    with open(found, "rb") as file:
        stored = file.read()
    if not found.endswith(SUFFIX):
        return stored
    try:
        return lzma.decompress(stored, lzma.FORMAT_XZ)
    except lzma.LZMAError as error:
        raise Damaged(f"{found}: {error}") from None


def pack(table: bytes) -> bytes:
    """The bytes of NAME.xz."""
    return lzma.compress(table, lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME)


def laid_out(record: dict) -> str:
    """The record as JSON, with a line for each entry of its parts and none for what is in these: a tenth of the lines that
    indenting it takes."""
    def part(value):
        if isinstance(value, dict) and value:
            lines = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in value.items()]
        elif isinstance(value, list) and value:
            lines = [json.dumps(item) for item in value]
        else:
            return json.dumps(value)
        ends = "{}" if isinstance(value, dict) else "[]"
        return ends[0] + "\n  " + ",\n  ".join(lines) + "\n " + ends[1]

    return "{\n " + ",\n ".join(f"{json.dumps(key)}: {part(value)}" for key, value in record.items()) + "\n}\n"


def unpack(folder, name):
    """For whoever adds to the table: makes NAME of NAME.xz. A kill leaves the one, the other or both."""
    plain = os.path.join(folder, name)
    if path(folder, name) == plain + SUFFIX:
        replace(plain, content(folder, name))
        os.remove(plain + SUFFIX)


def read_record(folder, name) -> dict:
    """A JSON file of the folder; empty where there is none."""
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from None
    if not isinstance(record, dict):
        raise Damaged(f"{path}: this is no record")
    return record


def write_record(folder, name, record):
    os.makedirs(folder, exist_ok=True)
    replace(os.path.join(folder, name), (json.dumps(record, indent=1) + "\n").encode())


def write_table(folder, name, table: bytes):
    """In the place of an earlier run's, which may be packed."""
    os.makedirs(folder, exist_ok=True)
    replace(os.path.join(folder, name), table)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, name + SUFFIX))


def replace(target, new: bytes):
    """Writes a file so that a kill leaves either the old one or the new one."""
    with open(target + ".new", "wb") as file:
        file.write(new)
        file.flush()
        os.fsync(file.fileno())
    os.replace(target + ".new", target)
