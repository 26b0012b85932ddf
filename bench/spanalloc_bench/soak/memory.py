"""What the kernel says of a process: its memory, its CPU time, the libraries that it has loaded."""

from __future__ import annotations

import dataclasses
import os

import psutil


@dataclasses.dataclass(frozen=True)
class Memory:
    rss_kib: int
    page_tables_kib: int
    anonymous_kib: int

    @property
    def total_kib(self) -> int:
        return self.rss_kib + self.page_tables_kib


def of(pid: int) -> Memory | None:
    """None when the process has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file)
        return Memory(*(int(fields[name].split()[0]) for name in ("VmRSS", "VmPTE", "RssAnon")))
    except (OSError, KeyError):  # a process that has ended but not been waited for has no such lines
        return None


def cpu_s(pid: int) -> float:
    """Seconds of CPU that the process has taken; 0 when it has ended."""
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return 0.0


def has_loaded(pid: int, path: str) -> bool:
    """Whether the file is mapped into the process."""
    try:
        return os.path.realpath(path) in (mapping.path for mapping in psutil.Process(pid).memory_maps())
    except psutil.Error:
        return False
