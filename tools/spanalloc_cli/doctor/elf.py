"""A reader of ELF files, as far as the doctor asks: the processor, the loader, needed libraries, names of functions,
notes. What a process has of one in memory spanalloc_cli/top/objects.py reads, by the same segments and notes.

The format: System V Application Binary Interface, chapters 4 and 5; elf(5).
"""

import collections
import os
import platform
import struct

MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
LOAD, DYNAMIC, _INTERP, NOTE = 1, 2, 3, 4
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, DT_DEBUG = 1, 5, 14, 21
OUR_NOTE = b"spanalloc"  # src/api/inspection.hpp
OUR_MALLOC, OUR_CALLS = 1, 2  # its types
_MOST_TABLE = 1 << 30  # a table that claims to be larger is none

# The allocator that a function betrays, by its name; the first that fits counts. glibc's is the last, because others
# define its name too, to be complete.
SIGNS = (
    ("spanalloc", "sp_malloc"), ("mimalloc", "mi_malloc"), ("jemalloc", "mallctl"), ("jemalloc", "_rjem_mallctl"),
    ("jemalloc", "je_mallctl"), ("tcmalloc", "tc_malloc"), ("tcmalloc", "TCMallocInternalMalloc"),
    ("tbbmalloc", "scalable_malloc"), ("rpmalloc", "rpmalloc"), ("hoard", "xxmalloc"),
    ("Go's runtime", "runtime.mallocgc"), ("glibc", "__libc_malloc"),
)
_WANTED = frozenset({"malloc", "free", *(sign for _, sign in SIGNS)})


class NotElf(ValueError):
    """The file is none, or is damaged."""


Segment = collections.namedtuple("Segment", "kind flags offset address physical file_size memory_size alignment")


def native_machine():
    return platform.machine()


def segments(head, at):
    """[Segment] of an object of 64 bits. `head`: its first 64 bytes; `at(offset, size)`: its bytes there."""
    if head[:5] != b"\x7fELF\x02" or head[5] not in (1, 2):
        raise NotElf("no ELF file of 64 bits")
    order = "<" if head[5] == 1 else ">"
    (offset,) = struct.unpack(order + "Q", head[32:40])
    size, count = struct.unpack(order + "2H", head[54:58])
    if count and size != 56:
        raise NotElf("damaged ELF file")
    return [Segment(*row) for row in struct.iter_unpack(order + "IIQQQQQQ", at(offset, size * count) if count else b"")]


def notes(data, alignment):
    """(owner, type, where in `data` it begins, its bytes) of each note of a segment. Little-endian, as all of ours."""
    step = 8 if alignment == 8 else 4
    at = 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<3I", data, at)
        name, at = at + 12, -(-(at + 12 + name_size) // step) * step
        if at + size > len(data):
            return
        yield data[name:name + name_size].rstrip(b"\0"), kind, at, data[at:at + size]
        at = -(-(at + size) // step) * step


class Elf:
    """One file. `bits`, `machine` (as uname says it), `interpreter` (None: it is linked statically, or is a library),
    `needed`, `soname`; `exported`: which of the functions that the doctor knows others may call; `defined`: which of
    them are in it at all. Either is None where the file does not tell, as `defined` where it is stripped; `our_note`:
    what a note says of our heap in it: OUR_MALLOC, OUR_CALLS (malloc is another's), or None."""

    def __init__(self, file):
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        head = self._at(0, 64, short=True)
        if len(head) < 52 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
            raise NotElf("no ELF file")
        self.bits = 32 * head[4]
        self._order = "<" if head[5] == 1 else ">"
        self.type, number = self._unpack("HH", head[16:20])
        self.machine = MACHINES.get(number, f"processor {number}")
        self.interpreter, self.soname, self.needed = None, None, ()
        self.is_dynamic = False
        self.exported = self.defined = None
        self.our_note = None
        if self.bits == 64 and len(head) == 64:
            self._read(head)
        del self._file

    @property
    def is_native(self):
        return self.bits == 64 and self.machine == native_machine()

    @property
    def is_static(self):
        """Whether it is a program that no loader sees."""
        return self.bits == 64 and self.interpreter is None and self.soname is None

    @property
    def allocator(self):
        """The name of the allocator in it; None where no sign of one is seen."""
        names = (self.exported or set()) | (self.defined or set())
        if self.our_note == OUR_MALLOC:
            return "spanalloc"
        return next((name for name, sign in SIGNS
                     if sign in names and (name, self.our_note) != ("spanalloc", OUR_CALLS)), None)

    def _unpack(self, form, data):
        return struct.unpack(self._order + form, data)

    def _at(self, offset, size, short=False):
        if size > _MOST_TABLE or offset > self._size:
            raise NotElf("damaged ELF file")
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size and not short:
            raise NotElf("damaged ELF file")
        return data

    def _rows(self, offset, entry_size, count, form):
        if struct.calcsize(self._order + form) != entry_size:
            raise NotElf("damaged ELF file")
        return list(struct.iter_unpack(self._order + form, self._at(offset, entry_size * count)))

    def _read(self, head):
        (section_offset,) = self._unpack("Q", head[40:48])
        section_size, section_count, _ = self._unpack("3H", head[58:64])
        loads = []
        dynamic = b""
        for segment in segments(head, self._at):
            if segment.kind == _INTERP:
                self.interpreter = self._at(segment.offset, segment.file_size).rstrip(b"\0").decode("utf-8", "replace")
            elif segment.kind == DYNAMIC:
                dynamic = self._at(segment.offset, segment.file_size)
            elif segment.kind == LOAD:
                loads.append((segment.address, segment.offset, segment.file_size))
            elif segment.kind == NOTE:
                for owner, kind, *_ in notes(self._at(segment.offset, segment.file_size), segment.alignment):
                    if owner == OUR_NOTE and kind in (OUR_MALLOC, OUR_CALLS):
                        self.our_note = min(kind, self.our_note or kind)
        if dynamic:
            self.is_dynamic = True
            self._read_dynamic(dynamic, loads)
        sections = self._rows(section_offset, section_size, section_count, "IIQQQQIIQQ") if section_count else []
        for _, kind, _, _, offset, size, link, _, _, entry in sections:
            if kind in (_SHT_SYMTAB, _SHT_DYNSYM):
                if link >= len(sections):
                    raise NotElf("damaged ELF file")
                names = self._functions(offset, size, entry, sections[link][4], sections[link][5])
                if kind == _SHT_SYMTAB:
                    self.defined = names
                else:
                    self.exported = names
        if not self.is_dynamic:
            self.exported = set()  # nobody is linked with it

    def _read_dynamic(self, dynamic, loads):
        entries = list(struct.iter_unpack(self._order + "QQ", dynamic[:len(dynamic) // 16 * 16]))
        place = next((value for tag, value in entries if tag == _DT_STRTAB), None)
        found = next(((address, offset, size) for address, offset, size in loads
                      if place is not None and address <= place < address + size), None)
        if found is None:
            return
        address, offset, size = found
        strings = self._at(offset + place - address, size - (place - address), short=True)

        def string(at):
            return strings[at:strings.find(b"\0", at)].decode("utf-8", "replace")

        self.needed = tuple(string(value) for tag, value in entries if tag == _DT_NEEDED)
        self.soname = next((string(value) for tag, value in entries if tag == _DT_SONAME), None)

    def _functions(self, offset, size, entry_size, strings_offset, strings_size):
        """Those of _WANTED that the table defines and that are not a file's own."""
        strings = self._at(strings_offset, strings_size)
        places = {}  # of a name's first byte; names may share their ends, so each place counts
        for name in _WANTED:
            text = name.encode() + b"\0"
            at = strings.find(text)
            while at >= 0:
                places[at] = name
                at = strings.find(text, at + 1)
        if not places or entry_size != 24:
            return set()
        local, undefined = 0, 0
        rows = struct.iter_unpack(self._order + "IBBHQQ", self._at(offset, size // 24 * 24))
        return {places[name] for name, info, _, section, _, _ in rows
                if name in places and info >> 4 != local and section != undefined}


def read(files, path):
    """The Elf at a path of `files`. NotElf where it is none, or cannot be read."""
    file = files.opened(path)
    if file is None:
        raise NotElf("cannot be read")
    with file:
        try:
            return Elf(file)
        except (OSError, struct.error) as error:
            raise NotElf("damaged ELF file") from error
