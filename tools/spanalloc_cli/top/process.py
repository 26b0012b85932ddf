"""What /proc and the kernel tell of a process, and which of its threads is which."""

import collections
import ctypes
import os
import struct
import time

from spanalloc_cli import maps
from spanalloc_cli.doctor import elf
from spanalloc_cli.top.memory import CannotRead, Ended, why_refused

Task = collections.namedtuple("Task", "tid name minor_faults major_faults")

_NEAR = 1 << 20  # farther from each other a thread's mark and its other records are not


class Process:
    """Everything is read anew by each call. All but expect_one() raise Ended when nothing is left of the process, and
    CannotRead where the kernel refuses."""

    def __init__(self, pid, proc="/proc"):
        self.pid = pid
        self._folder = f"{proc}/{pid}"
        self._proc = proc

    def text(self, name):
        try:
            with open(f"{self._folder}/{name}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except (FileNotFoundError, ProcessLookupError):
            if os.path.isdir(self._folder) and name.startswith("task/"):
                return ""
            raise Ended(f"process {self.pid} has ended") from None
        except OSError as error:
            raise CannotRead(why_refused(self.pid, self._proc)) from error

    def expect_one(self):
        """Ended, with a text that says so, where there never was such a process, or nothing is left of it."""
        if not os.path.isdir(self._folder):
            raise Ended(f"there is no process {self.pid}")
        status = self.status()
        if status.get("State", "").startswith("Z"):
            raise Ended(f"process {self.pid} has ended, and its parent has not asked how")
        if "VmSize" not in status:
            raise CannotRead(f"process {self.pid} is a thread of the kernel: it has no heap")
        if status.get("Tgid", str(self.pid)) != str(self.pid):
            raise CannotRead(f"{self.pid} is a thread of process {status['Tgid']}: spanalloc top {status['Tgid']}")

    def status(self):
        lines = (line.partition(":") for line in self.text("status").splitlines())
        return {name: rest.strip() for name, _, rest in lines}

    def mappings(self):
        found = maps.mappings(self.text("maps"))
        if not found:  # its memory goes first: of a process that its parent has not asked for the kernel tells no more
            raise Ended(f"process {self.pid} has ended")
        return found

    def is_loaded(self):
        """Whether the loader is past the preloaded libraries: it maps them before what the program is linked with. False
        also where that cannot be told."""
        try:
            with self.open_program() as file:
                program = elf.Elf(file)
        except (OSError, ValueError, struct.error):
            return False
        if program.is_static:
            return any(mapping.path.startswith("/") for mapping in self.mappings())
        mapped = {mapping.path.rpartition("/")[2] for mapping in self.mappings()}
        return any(name.startswith(needed.partition(".so")[0]) for needed in program.needed for name in mapped)

    def open_program(self):
        return open(f"{self._folder}/exe", "rb")

    def command(self):
        words = self.text("cmdline").split("\0")
        return [word for word in words if word]

    def stat(self, task=None):
        """The fields of a line of stat behind the name, which may hold anything; empty for a thread that has ended."""
        text = self.text("stat" if task is None else f"task/{task}/stat")
        return text.rpartition(")")[2].split()

    def uptime_s(self):
        """Since its start."""
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - int(self.stat()[19]) / os.sysconf("SC_CLK_TCK"), 0.0)

    def tasks(self):
        """[Task], the main thread first."""
        found = []
        try:
            names = sorted(map(int, os.listdir(f"{self._folder}/task")))
        except OSError:
            raise Ended(f"process {self.pid} has ended") from None
        for tid in sorted(names, key=lambda tid: tid != self.pid):
            fields = self.stat(tid)
            if len(fields) > 9:
                name = self.text(f"task/{tid}/comm").rstrip("\n")
                found.append(Task(tid, printable(name), int(fields[7]), int(fields[9])))
        return found

    def facts(self):
        status, fields = self.status(), self.stat()
        if status.get("State", "").startswith("Z") or "VmSize" not in status or len(fields) < 20:
            raise Ended(f"process {self.pid} has ended")

        def bytes_of(name):
            return int(status.get(name, "0 kB").split()[0]) * 1024

        return ProcessFacts(
            time=time.monotonic(), name=printable(status.get("Name", "")), uptime_s=self.uptime_s(),
            threads=int(status.get("Threads", 0)), rss_bytes=bytes_of("VmRSS"),
            rss_file_bytes=bytes_of("RssFile") + bytes_of("RssShmem"), page_table_bytes=bytes_of("VmPTE"),
            swap_bytes=bytes_of("VmSwap"), minor_faults=int(fields[7]), major_faults=int(fields[9]))


ProcessFacts = collections.namedtuple(
    "ProcessFacts", "time name uptime_s threads rss_bytes rss_file_bytes page_table_bytes swap_bytes minor_faults "
    "major_faults")


def printable(text):
    return "".join(c if c.isprintable() else "?" for c in text)


_GET_ROBUST_LIST = {"x86_64": 274, "aarch64": 100, "riscv64": 100}


def thread_records(tids, libc=None):
    """{tid: an address in the C library's record of the thread}, as far as the kernel tells: it knows for each thread
    where its list of robust mutexes begins (get_robust_list(2)), which the C library keeps in that record."""
    call = _GET_ROBUST_LIST.get(os.uname().machine)
    if call is None:
        return {}
    libc = libc or ctypes.CDLL(None, use_errno=True)
    found = {}
    for tid in tids:
        head, size = ctypes.c_size_t(), ctypes.c_size_t()
        refused = libc.syscall(ctypes.c_long(call), ctypes.c_long(tid), ctypes.byref(head), ctypes.byref(size))
        if not refused and head.value:
            found[tid] = head.value
    return found


def threads_by_mark(marks, records):
    """{mark: tid}. `marks`: addresses in threads' own storage, `records`: {tid: an address in its record}. In every
    thread the one is as far from the other as in all others: the distance that most threads have in common is that."""
    marks = sorted(marks)
    distances = collections.Counter()
    for record in records.values():
        distances.update(record - mark for mark in marks if abs(record - mark) < _NEAR)
    if not distances:
        return {}
    distance, _ = min(distances.items(), key=lambda item: (-item[1], abs(item[0])))
    by_record = {record: tid for tid, record in records.items()}
    return {mark: by_record[mark + distance] for mark in marks if mark + distance in by_record}
