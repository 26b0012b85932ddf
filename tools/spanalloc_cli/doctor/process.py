"""What /proc says of one process, read at one moment."""

import collections
import struct

from spanalloc_cli import maps
from spanalloc_cli.doctor import elf, preload
from spanalloc_cli.doctor.files import kib
from spanalloc_cli.top import objects
from spanalloc_cli.top.memory import CannotRead, Ended, Memory

_TIB = 1 << 40
# Where libspanalloc.so, if nothing is in its way, begins its arena (5 to 25 TiB), and the 16 TiB that it may have
# (src/pages/address_range.hpp).
ARENA = (5 * _TIB, 41 * _TIB)
_AT_SECURE = 23
_GONE = " (deleted)"

Sums = collections.namedtuple("Sums", "resident huge swapped")  # bytes


def _without_note(path):
    """The path of a mapped file, which the kernel marks when the file is gone."""
    return path[:-len(_GONE)] if path.endswith(_GONE) else path


class Process:
    """Everything is read when it is made; what could not be is None, and `files.refused` says why."""

    def __init__(self, files, number):
        self.files = files
        self.number = number
        self.folder = f"/proc/{number}"
        self.top = f"{self.folder}/root"
        self.status = files.table(f"{self.folder}/status")
        self.exe = files.link(f"{self.folder}/exe")
        text = files.text(f"{self.folder}/maps")
        self.mappings = maps.mappings(text) if text else None
        environment = files.bytes(f"{self.folder}/environ")
        # Some programs write their title over it: what is left then is zeroes, or no name.
        self.has_overwritten_environment = bool(environment) and b"=" not in environment.split(b"\0")[0]
        self.environment = None if environment is None or self.has_overwritten_environment else dict(
            entry.split("=", 1) for entry in environment.decode("utf-8", "surrogateescape").split("\0") if "=" in entry)
        self.current = files.link(f"{self.folder}/cwd") or "/"
        self.is_secure = self._is_secure()
        self.rollup = {name: kib(value) for name, value in files.table(f"{self.folder}/smaps_rollup").items()}
        self.arena = self._arena()
        self.threads_asleep = self._threads_asleep()
        self._objects = None
        self._order = None
        self._is_order_told = False

    # ---- what it is ----

    @property
    def exists(self):
        return bool(self.status)

    @property
    def name(self):
        return self.status.get("Name", "")

    @property
    def is_zombie(self):
        return self.status.get("State", "").startswith("Z")

    @property
    def is_kernels(self):
        return "VmSize" not in self.status and not self.is_zombie

    @property
    def threads(self):
        return int(self.status.get("Threads", 0))

    def memory(self, name):
        """Bytes of a line of its status as VmRSS, 0 where it has none."""
        return kib(self.status.get(name)) or 0

    def _is_secure(self):
        """Whether the loader takes nothing from its environment (AT_SECURE); None: not told."""
        data = self.files.bytes(f"{self.folder}/auxv")
        if not data:
            return None
        pairs = struct.iter_unpack("=QQ", data[:len(data) // 16 * 16])
        return next((value != 0 for kind, value in pairs if kind == _AT_SECURE), None)

    def _arena(self):
        """What is in memory where the arena of libspanalloc.so is; None where nothing is, or it is not told."""
        resident = huge = swapped = seen = 0
        for mapping, lines in maps.with_lines(self.files.text(f"{self.folder}/smaps")):
            if ARENA[0] <= mapping.start < ARENA[1] and not mapping.path and "w" in mapping.permissions:
                figures = {line.partition(":")[0]: kib(line.partition(":")[2]) or 0 for line in lines}
                resident += figures.get("Rss", 0)
                huge += figures.get("AnonHugePages", 0)
                swapped += figures.get("Swap", 0)
                seen += 1
        return Sums(resident, huge, swapped) if seen else None

    def _threads_asleep(self):
        asleep = 0
        for thread in self.files.names(f"{self.folder}/task"):
            line = self.files.text(f"{self.folder}/task/{thread}/stat") or ""
            asleep += line.rpartition(")")[2].split()[:1] == ["S"]
        return asleep

    # ---- which files it runs ----

    @property
    def objects(self):
        """{path: Elf, None where it cannot be read} of the files that it has code of, the program first."""
        if self._objects is None:
            paths = [self.exe] if self.exe else []
            paths += [mapping.path for mapping in self.mappings or ()
                      if "x" in mapping.permissions and mapping.path.startswith("/")]
            self._objects = {path: self._read(path) for path in dict.fromkeys(paths)}
        return self._objects

    def _read(self, path):
        # A program that was replaced since it began can be read all the same; a library cannot.
        place = f"{self.folder}/exe" if path == self.exe and path.endswith(_GONE) else self.top + path
        try:
            return elf.read(self.files, place)
        except elf.NotElf:
            return None

    @property
    def program(self):
        """The Elf of the program; None where it cannot be read."""
        return self.objects.get(self.exe) if self.exe else None

    def ours(self):
        """The paths of our libraries that are mapped."""
        return [path for path in self.objects if preload.is_our_file(path)]

    @property
    def is_loaded(self):
        """Whether the loader is past the preloaded libraries: it maps them before what the program is linked with.
        False also where that cannot be told."""
        program = self.program
        if program is None or self.mappings is None:
            return False
        if program.is_static:
            return True
        return any(self._mapped_as(name) for name in program.needed)

    def _mapped_as(self, name):
        """The mapped file that the loader knows by a name."""
        for path, read in self.objects.items():
            if path != self.exe and (_without_note(path).rpartition("/")[2] == name or (read and read.soname == name)):
                return path
        return None

    def _mapped_entry(self, entry):
        """The mapped file of an entry of LD_PRELOAD."""
        same = (path for path in self.objects if _without_note(path) == entry.path)
        return next(same, None) or self._mapped_as(entry.text.rpartition("/")[2])

    def _entries(self, names):
        loader = preload.Loader(self.files, self.environment or {}, self.top, self.current)
        return [loader.entry(name) for name in names]

    def preloaded_by_environment(self):
        """The entries of its LD_PRELOAD."""
        return self._entries(preload.names((self.environment or {}).get("LD_PRELOAD")))

    def preloaded(self):
        """The same, and those of the system's file behind them: the loader's order."""
        system = preload.names_of_file(self.files.text(self.top + preload.SYSTEM_FILE))
        return self.preloaded_by_environment() + self._entries(system)

    def order(self):
        """The mapped files in which the loader looks for malloc, in that order: its own list, where that can be read.
        Else as it makes that list: the program, what is preloaded, what each of them is linked with, level by level.
        (What was opened later, by dlopen, is the list's end, or is not there.)"""
        if self._order is None:
            self._order = self._told_order()
            self._is_order_told = self._order is not None
        if self._order is None:
            found = [self.exe] if self.exe else []
            for entry in self.preloaded():
                path = self._mapped_entry(entry)
                if path and path not in found:
                    found.append(path)
            for path in found:  # grows while it is walked
                read = self.objects.get(path)
                for name in read.needed if read else ():
                    needed = self._mapped_as(name)
                    if needed and needed not in found:
                        found.append(needed)
            self._order = found
        return self._order

    def _told_order(self):
        if self.files.root or not self.mappings or not self.exe:  # (made-up files have no process behind them)
            return None
        try:
            return objects.link_order(Memory(self.number), self.mappings, self.exe)
        except (CannotRead, Ended):
            return None

    def malloc_object(self):
        """(the file whose malloc its calls reach, None where none has one; why that cannot be told, None where it can).
        """
        for path in self.order():
            read = self.objects.get(path)
            if read is None and preload.is_our_file(path):
                break  # it was replaced; each that bears the name has a malloc
            if read is None or read.exported is None:
                return None, "of a file that it has, the symbols cannot be read"
            if "malloc" in read.exported:
                break
        else:
            path = None
        is_sure = path == self.exe or self._is_order_told or self.environment is not None
        if not is_sure and self._others_may_be_preloaded():
            return None, "neither its environment nor its memory can be read"
        return path, None

    def _others_may_be_preloaded(self):
        """Whether a file that is not known to be in the loader's order has a malloc."""
        return any(preload.is_our_file(path) or (read and "malloc" in (read.exported or ()))
                   for path, read in self.objects.items() if path not in self.order())
