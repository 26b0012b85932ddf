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
        # struct elf_prstatus of x86-64: the thread's number, and the register fs_base.
        status = bytearray(336)
        struct.pack_into("<i", status, 32, task.tid)
        struct.pack_into("<Q", status, 112 + 8 * 21, records.get(task.tid, 0))
        yield _note(_PRSTATUS, bytes(status))
    words = " ".join(running.command()).encode()[:79]
    yield _note(_PRPSINFO, struct.pack("<24xi12x16s80s", pid, running.facts().name.encode()[:15], words))
    files = [mapping for mapping in mappings if mapping.path.startswith("/")]
    table = struct.pack("<2Q", len(files), _PAGE)
    table += b"".join(struct.pack("<3Q", m.start, m.end, m.offset // _PAGE) for m in files)
    yield _note(_FILE, table + b"".join(m.path.encode() + b"\0" for m in files))


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
    offset = 64 + 56 * (len(pieces) + 1)
    head = struct.pack("<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 4, 62, 1, 0, 64, 0, 0, 64, 56, len(pieces) + 1, 0, 0, 0)
    rows = [struct.pack("<2I6Q", _NOTE, 0, offset, 0, 0, len(notes), 0, 4)]
    at = offset + len(notes)
    for address, data in pieces:
        rows.append(struct.pack("<2I6Q", _LOAD, 6, at, address, 0, len(data), len(data), 1))
        at += len(data)
    with open(path, "wb") as file:
        file.write(head + b"".join(rows) + notes)
        for _, data in pieces:
            file.write(data)
