"""A core file: the memory of a process that is no more, what its notes say of it, and its threads. The kernel writes
them, and gdb's generate-core-file.

What a core file leaves out (pages of files that nobody wrote to: a library's constants) is read from the file that was
mapped, if that is still the same: its first page must be what the core file has of it, where it has that.

The format: elf(5); core(5); struct elf_prstatus and elf_prpsinfo of sys/procfs.h; NT_FILE is a table of words.
"""

import bisect
import collections
import errno
import os
import stat
import struct

from spanalloc_cli import maps
from spanalloc_cli.doctor import elf
from spanalloc_cli.top.memory import CannotRead, Reader
from spanalloc_cli.top.process import ProcessFacts, Task, printable
from spanalloc_cli.top.screen import amount

_ELF_CORE = 4
_NT_PRSTATUS, _NT_PRPSINFO, _NT_FILE, _NT_ARM_TLS = 1, 3, 0x46494C45, 0x401
_THREAD_AT, _REGISTERS_AT = 32, 112  # in struct elf_prstatus: pr_pid, pr_reg
_FS_BASE = 21  # among the registers of x86-64
_PID_AT, _NAME_AT, _ARGUMENTS_AT, _ARGUMENTS = 24, 40, 56, 80  # in struct elf_prpsinfo
_PAGE = 4096
_MOST_PAGE = 1 << 30
_MOST = (1 << 62) - 1  # addresses and offsets beyond that are damaged: no sum of two is too much for pread()
_MOST_NOTES = 1 << 30
_MOST_SEGMENTS = 1 << 20
_EXTENDED = 0xFFFF  # the count of segments stands in the first section header

_Piece = collections.namedtuple("_Piece", "start end file offset")  # `file`: an open one


class Core(Reader):
    """`mappings`: of files; `threads`: [(number, an address in its C library's record, or None)], the one first that
    died; `uncompared`: paths of files that were read though the core file lacks their first page; `pid`, `name`, `command`
    (its words), `machine`. CannotRead where the file is no core file of a program of 64 bits."""

    def __init__(self, path):
        self.path = path
        self.warnings, self.uncompared = [], set()
        self.mappings, self.threads, self.pid, self.name, self.command = [], [], None, "", []
        self._files = {}
        try:
            self._file = _opened_regular(path)
        except OSError as error:
            raise CannotRead(f"{path}: {error.strerror}") from error
        try:
            self._read_core()
        except OSError as error:
            self.close()
            raise CannotRead(f"{path}: {os.strerror(error.errno)}") from error
        except (elf.NotElf, struct.error, OverflowError, MemoryError):
            self.close()
            raise CannotRead(f"{path} is no core file of a program of 64 bits, or is damaged") from None

    def close(self):
        for file in (self._file, *self._files.values()):
            if file is not None:
                file.close()

    # ---- memory ----

    def read(self, address, size):
        """A memoryview, as of another process. (Pages that neither file has are None.)"""
        if size == 0:
            return memoryview(b"")
        if not 0 <= address < 1 << 63 or not 0 < size < 1 << 40:
            return None
        found = bytearray()
        while len(found) < size:
            data = self._some(address + len(found), size - len(found))
            if not data:
                return None
            found += data
        return memoryview(bytes(found))

    def _some(self, address, size):
        """As much as one piece has of that; nothing where no piece has the address."""
        for pieces, starts in ((self._pieces, self._starts), (self._mapped, self._mapped_starts)):
            at = bisect.bisect_right(starts, address) - 1
            if at >= 0 and address < pieces[at].end:
                piece = pieces[at]
                file = self._file if piece.file is None else self._opened(piece.file)
                if file is not None:
                    return _bytes_of(file, min(size, piece.end - address), piece.offset + address - piece.start)
        return b""

    def in_file(self, address, size):
        at = bisect.bisect_right(self._mapped_starts, address) - 1
        if at < 0 or address + size > self._mapped[at].end:
            return None
        piece = self._mapped[at]
        file = self._opened(piece.file)
        data = _bytes_of(file, size, piece.offset + address - piece.start) if file is not None else b""
        return data if len(data) == size else None

    def _opened(self, path):
        """The file that was mapped, if it is the same by what the core file has of its first page."""
        if path not in self._files:
            self._files[path] = None
            start = next((m.start for m in self.mappings if m.path == path and m.offset == 0), None)
            try:
                file = _opened_regular(path)
            except (OSError, ValueError):  # ValueError: it is no path
                return None
            if os.fstat(file.fileno()).st_size == 0:  # of /proc, where to read may take something away
                file.close()
                return None
            at = bisect.bisect_right(self._starts, start) - 1 if start is not None else -1
            here = b""
            if at >= 0 and start + 64 <= self._pieces[at].end:
                piece = self._pieces[at]
                here = _bytes_of(self._file, min(_PAGE, piece.end - start), piece.offset + start - piece.start)
            if here != _bytes_of(file, len(here), 0):
                file.close()
                return None
            if len(here) < 64:  # not there, or cut off
                self.uncompared.add(path)
            self._files[path] = file
        return self._files[path]

    # ---- the file ----

    def _at(self, offset, size):
        data = os.pread(self._file.fileno(), size, offset)
        if len(data) != size:
            raise elf.NotElf("it ends early")
        return data

    def _read_core(self):
        head = self._at(0, 64)
        kind, machine = struct.unpack_from("<2H", head, 16)
        if head[:6] != b"\x7fELF\x02\x01" or kind != _ELF_CORE:
            raise elf.NotElf("no core file")
        self.machine = elf.MACHINES.get(machine, f"processor {machine}")
        segments = self._segments(head)
        loads = sorted((s for s in segments if s.kind == elf.LOAD and s.file_size), key=lambda s: s.address)
        self._pieces = [_Piece(s.address, s.address + s.file_size, None, s.offset) for s in loads
                        if s.address <= _MOST and s.offset <= _MOST and s.file_size <= _MOST]
        self._starts = [piece.start for piece in self._pieces]
        size = os.fstat(self._file.fileno()).st_size
        missing = sum(min(s.file_size, max(s.offset + s.file_size - size, 0)) for s in loads)
        if missing:
            self.warnings.append(f"the core file is cut off: {amount(missing)} of the memory that it lists are missing")
        for segment in segments:
            if segment.kind == elf.NOTE and segment.file_size <= _MOST_NOTES:
                self._read_notes(self._at(segment.offset, segment.file_size), segment.alignment)
        self.mappings.sort(key=lambda mapping: mapping.start)
        self._mapped = [_Piece(m.start, m.end, m.path, m.offset) for m in self.mappings]
        self._mapped_starts = [piece.start for piece in self._mapped]

    def _segments(self, head):
        count, = struct.unpack_from("<H", head, 56)
        if count != _EXTENDED:
            return elf.segments(head, self._at)
        sections, = struct.unpack_from("<Q", head, 40)
        count, = struct.unpack_from("<I", self._at(sections, 64), 44)
        if count > _MOST_SEGMENTS:
            raise elf.NotElf("too many segments")
        offset, = struct.unpack_from("<Q", head, 32)
        return [elf.Segment(*row) for row in struct.iter_unpack("<IIQQQQQQ", self._at(offset, 56 * count))]

    def _read_notes(self, data, alignment):
        for owner, kind, _, what in elf.notes(data, alignment):
            if owner == b"CORE" and kind == _NT_PRSTATUS and len(what) >= _REGISTERS_AT:
                number, = struct.unpack_from("<i", what, _THREAD_AT)
                self.threads.append((number, self._thread_record(what)))
            elif kind == _NT_ARM_TLS and len(what) >= 8 and self.threads and self.machine == "aarch64":
                self.threads[-1] = (self.threads[-1][0], struct.unpack_from("<Q", what)[0])
            elif owner == b"CORE" and kind == _NT_PRPSINFO and len(what) >= _ARGUMENTS_AT + _ARGUMENTS:
                self.name = _text(what[_NAME_AT:_ARGUMENTS_AT])
                self.command = _text(what[_ARGUMENTS_AT:_ARGUMENTS_AT + _ARGUMENTS]).split()
                self.pid, = struct.unpack_from("<i", what, _PID_AT)
            elif owner == b"CORE" and kind == _NT_FILE:
                self.mappings += _mappings(what)

    def _thread_record(self, status):
        at = _REGISTERS_AT + 8 * _FS_BASE
        if self.machine != "x86_64" or len(status) < at + 8:
            return None
        return struct.unpack_from("<Q", status, at)[0]

    # ---- as of a process ----

    def facts(self):
        """What a core file does not tell is None."""
        nothing = dict.fromkeys(ProcessFacts._fields)
        return ProcessFacts(**{**nothing, "time": 0.0, "name": printable(self.name) or os.path.basename(self.path),
                               "threads": len(self.threads)})

    def tasks(self):
        return [Task(number, "", None, None) for number, _ in self.threads]

    def thread_records(self):
        return {number: record for number, record in self.threads if record}


def _opened_regular(path):
    """OSError where there is none: a core file may name any path, and to open a device or a pipe does something, or
    blocks. (So stat() comes first.) A folder is left to the first read."""
    def expect(mode):
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OSError(errno.ENOTSUP, "is no core file")

    expect(os.stat(path).st_mode)
    place = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        expect(os.fstat(place).st_mode)
    except OSError:
        os.close(place)
        raise
    return _File(place)


class _File:
    def __init__(self, place):
        self._place = place

    def fileno(self):
        return self._place

    def close(self):
        os.close(self._place)


def _bytes_of(file, size, offset):
    """What can be read there of that; of /proc some files are regular, and refuse."""
    try:
        return os.pread(file.fileno(), size, offset)
    except (OSError, OverflowError):
        return b""


def _text(data):
    return data.split(b"\0")[0].decode("utf-8", "replace")


def _mappings(data):
    """Those of NT_FILE: count, page size, and start, end, offset in pages of each; behind them the names."""
    count, page = struct.unpack_from("<2Q", data)
    if count > len(data) // 24 or page > _MOST_PAGE:
        return []
    names = data[16 + 24 * count:].split(b"\0")
    rows = struct.iter_unpack("<3Q", data[16:16 + 24 * count])
    return [maps.Mapping(start, end, "", offset * page, os.fsdecode(name))
            for (start, end, offset), name in zip(rows, names) if start < end <= _MOST and offset * page <= _MOST - end]
