"""Memory of another process. Memory reads that of one that runs, by process_vm_readv(2): nothing is stopped, and
nothing is run in that process. Others read a core file (core.py), or ask a debugger (spanalloc_cli/gdb_commands.py)."""

import ctypes
import errno
import os

_MOST_PIECES = 1024  # IOV_MAX
_MOST_BYTES = 8 << 20  # a call: what is read at once should be of one moment


class CannotRead(Exception):
    """The process's memory cannot be read at all; the text says why, and what to do."""


class Ended(Exception):
    """There is no such process, or no longer."""


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_size_t), ("bytes", ctypes.c_size_t)]


class Reader:
    """Addresses are numbers in the process. What cannot be read there is None: it was unmapped, or never was memory. A
    kind of memory has one of read() and read_each() at least; what is read is a memoryview of bytes. `warnings`: what to
    say of it as a whole, as far as it has been read."""

    warnings = ()

    def read(self, address, size):
        return self.read_each([(address, size)])[0]

    def read_each(self, ranges):
        """The bytes of each (address, size)."""
        return [self.read(*each) for each in ranges]

    def in_file(self, _address, _size):
        """What the file has there from which is read what is missing at other places; None: there is none."""
        return None

    def number(self, address, size=8):
        data = self.read(address, size)
        return None if data is None else int.from_bytes(data, "little")


class Memory(Reader):
    def __init__(self, pid, libc=None):
        self.pid = pid
        self._libc = libc or ctypes.CDLL(None, use_errno=True)
        self.calls = 0

    def read_each(self, ranges):
        """The bytes of each (address, size), in few calls."""
        found = []
        first = 0
        while first < len(ranges):
            end, size = first, 0
            while end < min(len(ranges), first + _MOST_PIECES) and (
                    end == first or size + ranges[end][1] <= _MOST_BYTES):
                size += ranges[end][1]
                end += 1
            found += self._read_some(ranges[first:end], size)
            first = end
        return found

    def _read_some(self, ranges, size):
        if any(not 0 <= address < 1 << 63 or not 0 <= bytes_ < 1 << 40 for address, bytes_ in ranges):
            ranges = [(address, bytes_) if 0 <= address < 1 << 63 and 0 <= bytes_ < 1 << 40 else (0, 0)
                      for address, bytes_ in ranges]
            return [None if piece == (0, 0) else self.read(*piece) for piece in ranges]
        if size == 0:
            return [b""] * len(ranges)
        buffer = bytearray(size)
        got = self._call(buffer, size, ranges)
        view = memoryview(buffer)
        found, at = [], 0
        for address, bytes_ in ranges:
            found.append(view[at:at + bytes_] if at + bytes_ <= got else None)
            at += bytes_
        if got < size and len(ranges) > 1:
            # The kernel ends at what it cannot read: the rest one by one.
            for i, data in enumerate(found):
                if data is None:
                    found[i] = self._read_some([ranges[i]], ranges[i][1])[0]
        return found

    def _call(self, buffer, size, ranges):
        """How many bytes were read."""
        self.calls += 1
        local = _Iovec(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), size)
        remote = (_Iovec * len(ranges))(*ranges)
        ctypes.set_errno(0)
        got = self._libc.process_vm_readv(
            ctypes.c_int(self.pid), ctypes.byref(local), ctypes.c_ulong(1), remote, ctypes.c_ulong(len(ranges)),
            ctypes.c_ulong(0))
        got = ctypes.c_ssize_t(got).value
        if got >= 0:
            return got
        error = ctypes.get_errno()
        if error == errno.EFAULT:
            return 0
        if error == errno.ESRCH:
            raise Ended(f"process {self.pid} has ended")
        if error in (errno.EPERM, errno.EACCES):
            raise CannotRead(why_refused(self.pid))
        raise CannotRead(f"the memory of process {self.pid} cannot be read: {os.strerror(error)}")


def _number_in(path):
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def why_refused(pid, proc="/proc"):
    """What to say where the kernel does not let this user read the process's memory."""
    scope = _number_in(f"{proc}/sys/kernel/yama/ptrace_scope")
    text = f"the kernel does not let you read the memory of process {pid}"
    if scope == 3:
        return f"{text}: kernel.yama.ptrace_scope is 3, by which no process may read another's until the next boot"
    if os.getuid() == 0:
        return (f"{text}, though you are root: this container, or a security module, allows no process_vm_readv "
                "(docker run --cap-add SYS_PTRACE). Ask from outside of it")
    owner = _owner(f"{proc}/{pid}/status")
    if owner is not None and owner != os.getuid():
        return (f"{text}, which belongs to another user (number {owner}). Ask as that user, or as root: "
                f"sudo spanalloc top {pid}")
    if scope == 2:
        return f"{text}: kernel.yama.ptrace_scope is 2, by which only root may: sudo spanalloc top {pid}"
    if scope == 1:
        return (f"{text}: kernel.yama.ptrace_scope is 1, by which only a parent may read a program's. Either\n"
                "  start the program by this command:  spanalloc top -- PROGRAM\n"
                f"  or ask as root:                     sudo spanalloc top {pid}\n"
                "  or allow it until the next boot:    sudo sysctl kernel.yama.ptrace_scope=0")
    return (f"{text}: it has privileges that you have not, or this container allows no process_vm_readv. "
            f"As root: sudo spanalloc top {pid}")


def _owner(status):
    try:
        with open(status, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("Uid:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
