#!/usr/bin/env python3
"""What a program that does nothing takes: the memory of `true` under each allocator, more than under glibc.

Judged are the anonymous pages and the page tables that it has when it exits: what it has written to, the pages of the
library that the loader has relocated among them. How many pages of a file are mapped beside those that are read depends on
how the page cache has got it (the same library has been read at 288 and at 316 KiB); RSS, which has them, is printed only.
Read from /proc as the process stops for its exit, the median of several runs in rotation, at fixed addresses and without
huge pages.

    bench/startup_memory.py                the table
    bench/startup_memory.py --check        glibc and `standard` only; fails when `standard` takes more than its bound
"""

import ctypes
import os
import re
import shutil
import signal
import statistics

import common

RUNS = 11
# KiB more than glibc. Read are 136, the same each time: 48, and what a heap takes for its first block, which the library
# asks for before main (`true` itself asks for none). Four pages of 4 KiB are room for another loader and C library.
BOUNDS_KIB = {"standard": 152}

TRACEME, CONTINUE, SET_OPTIONS, TRACE_EXIT, EXIT_EVENT = 0, 7, 0x4200, 0x40, 6
SET_THP_DISABLE = 41
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def kib(pid, file, *fields):
    with open(f"/proc/{pid}/{file}", encoding="utf-8") as text:
        found = dict(re.findall(r"^(\w+):\s+(\d+) kB", text.read(), re.MULTILINE))
    return sum(int(found[field]) for field in fields)


def refusal_of_ptrace():
    """Why no program can be traced here, as some containers and filters of system calls have it; None: they can."""
    pid = os.fork()
    if pid == 0:
        refused = libc.ptrace(TRACEME, 0, None, None) != 0
        os._exit(ctypes.get_errno() if refused else 0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return os.strerror(os.WEXITSTATUS(status)) if os.WEXITSTATUS(status) else None


def read_at_exit(library, program):
    """(KiB of anonymous pages and page tables, KiB of RSS and page tables) of the program as it exits; None: no reading."""
    environment = common.counted_environment(library)
    pid = os.fork()
    if pid == 0:
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(silent, stream)
            libc.prctl(SET_THP_DISABLE, 1, 0, 0, 0)
            if libc.ptrace(TRACEME, 0, None, None) == 0:
                os.execve(program, [program], environment)
        finally:
            os._exit(127)
    found = None
    _, status = os.waitpid(pid, 0)  # stopped by its exec
    options = TRACE_EXIT
    while os.WIFSTOPPED(status):
        if options:
            libc.ptrace(SET_OPTIONS, pid, None, options)
            options = 0
        elif status >> 8 == signal.SIGTRAP | EXIT_EVENT << 8:
            tables = kib(pid, "status", "VmPTE")
            found = tuple(kib(pid, "smaps_rollup", *fields) + tables for fields in (("Anonymous", "Swap"), ("Rss",)))
        libc.ptrace(CONTINUE, pid, None, None)
        _, status = os.waitpid(pid, 0)
    return found if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else None


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="check our libraries against their bounds")
    options = parser.parse_args()
    common.fix_addresses()
    build = common.Build(options.build)
    checks = common.Checks()
    refusal = refusal_of_ptrace()
    if refusal:
        checks.skip(f"start-up memory: nothing can be read at a program's exit, for ptrace is refused here: {refusal}")
        checks.finish()
    program = shutil.which("true")
    allocators = [a for a in build.allocators() if not options.check or a[0] in ("glibc", *BOUNDS_KIB)]
    readings = {name: [] for name, _, _ in allocators}
    for run in range(RUNS):
        turn = run % len(allocators)
        for name, library, _ in allocators[turn:] + allocators[:turn]:
            found = read_at_exit(library, program)
            if found is None:
                checks.check(False, f"start-up memory of {name}: counted nothing: it did not come to its exit")
                checks.finish()
            readings[name].append(found)
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in readings.items()}
    base = medians["glibc"]
    print(f"{'`true`, KiB at its exit':<32}{'written':>9}{'RSS':>7}{'more than glibc: written':>26}{'RSS':>7}")
    usable = set()
    for name, library, ours in allocators:
        label = f"spanalloc {name}" if ours else name
        if not build.defines_malloc(library, [program]):
            print(f"{label:<32}  not measured: its malloc is not the one called")
            continue
        usable.add(name)
        written, rss = medians[name]
        print(f"{label:<32}{written:9.0f}{rss:7.0f}{written - base[0]:26.0f}{rss - base[1]:7.0f}")
    if options.check:
        for name, bound in BOUNDS_KIB.items():
            label = f"spanalloc {name}, start-up memory more than glibc's"
            if name not in usable:
                why = "not built, or not what `true` calls"
                checks.check(False, f"{label}: counted nothing, allowed {bound} KiB: {why}")
                continue
            more = medians[name][0] - base[0]
            read = [row[0] - base[0] for row in readings[name]]
            checks.check(
                more <= bound,
                f"{label}: counted {more:.0f} KiB, allowed {bound} KiB ({min(read):.0f} to {max(read):.0f} read)",
            )
        checks.finish()


if __name__ == "__main__":
    main()
