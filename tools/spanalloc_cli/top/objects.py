"""Programs and libraries as a process has them in memory: what their notes say, and in which order the loader looks. So
it matters neither whether a file has been replaced since, nor in which container it lies, nor whether it was
stripped."""

import struct

from spanalloc_cli import maps
from spanalloc_cli.doctor import elf

_PAGE = 4096
_MOST_NOTES = 1 << 16
_MOST_OBJECTS = 4096
_LINK = struct.Struct("<4Q")  # of struct link_map (link.h): bias, name, dynamic section, next


class Object:
    """One object, by the address of its first byte. elf.NotElf where none is there."""

    def __init__(self, memory, start):
        self._memory = memory
        self._start = start
        self.segments = elf.segments(self._read(start, 64), lambda offset, size: self._read(start + offset, size))
        first = next((segment for segment in self.segments if segment.kind == elf.LOAD), None)
        if first is None:
            raise elf.NotElf("nothing of it is loaded")
        self.bias = start - first.address // _PAGE * _PAGE

    def _read(self, address, size):
        data = self._memory.read(address, size)
        if data is None:
            raise elf.NotElf("it cannot be read")
        return bytes(data)

    def notes(self):
        """(owner, type, address of what the note says, its bytes) of each."""
        for segment in self.segments:
            if segment.kind == elf.NOTE and segment.file_size <= _MOST_NOTES:
                place = self.bias + segment.address
                for owner, kind, at, data in elf.notes(self._read(place, segment.file_size), segment.alignment):
                    yield owner, kind, place + at, data

    def dynamic(self):
        """{tag: value} of its dynamic section."""
        place = next((segment for segment in self.segments if segment.kind == elf.DYNAMIC), None)
        if place is None:
            return {}
        data = self._read(self.bias + place.address, min(place.file_size, _MOST_NOTES) // 16 * 16)
        return dict(struct.iter_unpack("<QQ", data))


def starts(mappings):
    """[(path, address)] where a file that is mapped begins, in the order of addresses. A file may be there twice:
    loaded, and as bytes that are read."""
    return [(mapping.path, mapping.start) for mapping in mappings
            if mapping.offset == 0 and mapping.path.startswith("/")]


def unread_words(memory, mappings):
    """Why a record may be there though heap_records() has found none; None: it cannot."""
    unread = sorted({path for path, start in starts(mappings) if memory.read(start, 64) is None})
    more = f" and {len(unread) - 1} more" if len(unread) > 1 else ""
    return f"{unread[0]}{more}, which may be the library, cannot be read" if unread else None


def heap_records(memory, mappings):
    """[(address, path)] of the records to which our notes lead."""
    found = []
    for path, start in starts(mappings):
        try:
            ours = [(at, data) for owner, kind, at, data in Object(memory, start).notes()
                    if owner == elf.OUR_NOTE and kind in (elf.OUR_MALLOC, elf.OUR_CALLS) and len(data) == 8]
        except (elf.NotElf, struct.error, OverflowError):
            continue  # another file, or a damaged one
        found += [(at + distance, path) for at, data in ours
                  for distance in struct.unpack("<q", data) if at + distance >= 0]
    return found


def link_order(memory, mappings, exe):
    """The paths of the files in which the loader of a process looks for a name, in its order: its own list (link_map of
    link.h). None where it has none, or none that can be read. `exe`: the program's path."""
    return next(filter(None, (_link_order_by(memory, mappings, start)
                              for path, start in starts(mappings) if path == exe)), None)


def _link_order_by(memory, mappings, start):
    try:
        debug = Object(memory, start).dynamic().get(elf.DT_DEBUG, 0)
        link = memory.number(debug + 8) if debug else None  # r_debug.r_map
        found = []
        while link and len(found) < _MOST_OBJECTS:
            data = memory.read(link, _LINK.size)
            if data is None:
                return None
            _, _, dynamic, link = _LINK.unpack(data)
            mapping = maps.at(mappings, dynamic)
            if mapping and mapping.path.startswith("/"):
                found.append(mapping.path)
        return found or None
    except (elf.NotElf, struct.error, OverflowError):
        return None
