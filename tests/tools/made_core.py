"""Core files made of a process that runs: by its mappings and its memory, as the kernel would (core(5)). Neither is the
process stopped for that, nor must a machine allow core files."""

import struct

from spanalloc_cli import maps
from spanalloc_cli.top import memory, process

_PAGE = 4096
_LOAD, _NOTE = 1, 4
_PRSTATUS, _PRPSINFO, _FILE = 1, 3, 0x46494C45


def _note(kind, data):
    return struct.pack("<3I", 5, len(data), kind) + b"CORE\0\0\0\0" + data + bytes(-len(data) % 4)


def _notes(pid, mappings):
    running = process.Process(pid)
    records = process.thread_records([task.tid for task in running.tasks()])
    for task in running.tasks():
        # struct elf_prstatus of x86-64: the thread's number, and in the place of the register fs_base another address in
        # the same record. (What the kernel and gdb write there, other tests see.)
        status = bytearray(336)
        struct.pack_into("<i", status, 32, task.tid)
        struct.pack_into("<Q", status, 112 + 8 * 21, records.get(task.tid, 0))
        yield _note(_PRSTATUS, bytes(status))
    words = " ".join(running.command()).encode()[:79]
    yield _note(_PRPSINFO, struct.pack("<24xi12x16s80s", pid, running.facts().name.encode()[:15], words))
    yield _files((m.start, m.end, m.offset // _PAGE, m.path) for m in mappings if m.path.startswith("/"))


def _files(rows):
    rows = list(rows)
    table = struct.pack("<2Q", len(rows), _PAGE) + b"".join(struct.pack("<3Q", *row[:3]) for row in rows)
    return _note(_FILE, table + b"".join(row[3].encode() + b"\0" for row in rows))


def of_rows(files, loads):
    """The bytes of a core file without memory: `files` are the rows of its table of files, `loads` (address, offset, bytes)
    of the segments that it says it has."""
    return b"".join(_heads(loads, _files(files)))


def _heads(loads, notes):
    """Of the file, of the segments, and the notes. Offsets are kept; None: behind what was before."""
    count = len(loads) + 1
    at = 64 + 56 * count
    yield struct.pack("<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, count, 0, 0, 0)
    yield struct.pack("<2I6Q", _NOTE, 0, at, 0, 0, len(notes), 0, 4)
    at += len(notes)
    for address, offset, size in loads:
        yield struct.pack("<2I6Q", _LOAD, 6, at if offset is None else offset, address, 0, size, size, 1)
        at += size if offset is None else 0
    yield notes


def write(pid, path, has_first_pages=True):
    """Mappings of files to which nobody wrote are left out, but for the first page of each file, unless
    `has_first_pages` is false."""
    found = maps.with_lines(process.Process(pid).text("smaps"))
    mappings = [mapping for mapping, _ in found]
    reader = memory.Memory(pid)
    pieces = []  # (address, bytes)
    for mapping, lines in found:
        size = mapping.end - mapping.start
        if mapping.path.startswith("/") and "Anonymous:             0 kB" in lines:
            size = _PAGE * (mapping.offset == 0 and has_first_pages)
        if "r" not in mapping.permissions or size == 0 or mapping.path in ("[vvar]", "[vsyscall]"):
            continue
        data = reader.read(mapping.start, size)
        if data is not None:
            pieces.append((mapping.start, bytes(data)))
    notes = b"".join(_notes(pid, mappings))
    with open(path, "wb") as file:
        file.writelines(_heads([(address, None, len(data)) for address, data in pieces], notes))
        for _, data in pieces:
            file.write(data)
