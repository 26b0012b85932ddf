"""Finds a symbol in a running process: in what the loader has mapped, by the tables by which the loader itself finds
it. So it matters neither whether the file has been replaced since, nor in which container it lies. A static program has
no such tables in memory: its file is asked."""

import collections
import struct

Mapping = collections.namedtuple("Mapping", "start end permissions offset path")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH = 4, 5, 6, 0x6FFFFEF5
_SHT_SYMTAB = 2
_ET_EXEC, _ET_DYN = 2, 3
_MOST_HEADERS, _MOST_DYNAMIC, _MOST_CHAIN = 64, 4096, 4096
_MOST_TABLE = 1 << 28
_PAGE = 4096


def mappings(text):
    """Of /proc/PID/maps."""
    found = []
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        start, dash, end = (words[0] if words else "").partition("-")
        if dash and len(words) >= 5:
            path = words[5] if len(words) > 5 else ""
            found.append(Mapping(int(start, 16), int(end, 16), words[1], int(words[2], 16), path))
    return found


def gnu_hash(name):
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def find_all(memory, maps, name):
    """[(address, path)] of each mapped object that exports the symbol. `name`: bytes."""
    found, seen = [], set()
    for mapping in maps:
        if mapping.offset != 0 or not mapping.path.startswith("/") or mapping.path in seen:
            continue
        seen.add(mapping.path)
        address = _in_object(memory, mapping.start, name)
        if address is not None:
            found.append((address, mapping.path))
    return found


def _in_object(memory, start, name):
    try:
        tables = _dynamic(memory, start)
        if tables is None or _DT_SYMTAB not in tables or _DT_STRTAB not in tables:
            return None
        for index in _candidates(memory, tables, name):
            entry = memory.read(tables[_DT_SYMTAB] + 24 * index, 24)
            if entry is None:
                return None
            string, _, _, section, value, _ = struct.unpack("<IBBHQQ", entry)
            if section != 0 and memory.read(tables[_DT_STRTAB] + string, len(name) + 1) == name + b"\0":
                return tables["bias"] + value
    except (struct.error, OverflowError):
        pass  # no ELF file, or a damaged one
    return None


def _dynamic(memory, start):
    """{tag: value} of an object's dynamic section, addresses as they are in memory; None: it has none."""
    head = memory.read(start, 64)
    if head is None or bytes(head[:7]) != b"\x7fELF\x02\x01\x01":
        return None
    offset, = struct.unpack("<Q", head[32:40])
    size, count = struct.unpack("<2H", head[54:58])
    if size != 56 or count > _MOST_HEADERS or offset > _PAGE:
        return None
    rows = memory.read(start + offset, size * count)
    if rows is None:
        return None
    bias = place = None
    for kind, _, _, address, _, _, bytes_, _ in struct.iter_unpack("<IIQQQQQQ", rows):
        if kind == _PT_LOAD and bias is None:
            bias = start - address // _PAGE * _PAGE
        if kind == _PT_DYNAMIC:
            place = (address, min(bytes_, 16 * _MOST_DYNAMIC))
    if bias is None or place is None:
        return None
    data = memory.read(bias + place[0], place[1] // 16 * 16)
    if data is None:
        return None
    tables = {"bias": bias}
    for tag, value in struct.iter_unpack("<QQ", data):
        # glibc has made addresses of these; other loaders leave them as they are in the file.
        if tag in (_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_GNU_HASH):
            tables[tag] = value if value >= start else value + bias
        if tag == 0:
            break
    return tables


def _candidates(memory, tables, name):
    """Numbers of symbols that may have the name."""
    if _DT_GNU_HASH in tables:
        place, wanted = tables[_DT_GNU_HASH], gnu_hash(name)
        head = memory.read(place, 16)
        if head is None:
            return
        buckets, first, bloom, _ = struct.unpack("<4I", head)
        if buckets == 0:
            return
        at = place + 16 + 8 * bloom
        index = memory.number(at + 4 * (wanted % buckets), 4)
        if not index or index < first:
            return
        chain = at + 4 * buckets
        for _ in range(_MOST_CHAIN):
            value = memory.number(chain + 4 * (index - first), 4)
            if value is None:
                return
            if value | 1 == wanted | 1:
                yield index
            if value & 1:
                return
            index += 1
    elif _DT_HASH in tables:
        count = memory.number(tables[_DT_HASH] + 4, 4)
        yield from range(1, min(count or 0, _MOST_CHAIN))


def in_static_file(file, name):
    """(value, whether it counts from where the file is mapped) of a symbol of a program's file that was linked without
    a loader. None where the file does not tell: its symbols may have been stripped."""
    try:
        head = file.read(64)
        if head[:7] != b"\x7fELF\x02\x01\x01":
            return None
        kind, = struct.unpack("<H", head[16:18])
        section_offset, = struct.unpack("<Q", head[40:48])
        section_size, count = struct.unpack("<2H", head[58:62])
        if kind not in (_ET_EXEC, _ET_DYN) or section_size != 64:
            return None
        file.seek(section_offset)
        sections = list(struct.iter_unpack("<IIQQQQIIQQ", file.read(section_size * count)))
        for _, of, _, _, offset, size, link, _, _, entry in sections:
            if of != _SHT_SYMTAB or entry != 24 or link >= len(sections) or max(size, sections[link][5]) > _MOST_TABLE:
                continue
            file.seek(sections[link][4])
            strings = file.read(sections[link][5])
            place = strings.find(b"\0" + name + b"\0") + 1
            if place == 0:
                return None
            file.seek(offset)
            for string, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", file.read(size // 24 * 24)):
                if string == place and section != 0:
                    return value, kind == _ET_DYN
    except (OSError, struct.error, ValueError):
        pass
    return None
