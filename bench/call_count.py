#!/usr/bin/env python3
"""How many instructions single calls of malloc and free take in whole programs: the median, the tail, and the longest call,
in user mode, counted exactly in an emulator (QEMU's, package qemu-user).

The library call_marks.so, preloaded before the allocator, executes a marked no-operation before and after each call; the
plugin calls.so counts what a thread executes in between. On a machine with as many cores as this one; the order in which
threads run differs from run to run, and is not the real machine's.

    bench/call_count.py                                       all programs, all allocators that are here
    bench/call_count.py --program superserver --only standard,mimalloc-3.3.2
"""

import collections
import sys

import common
from shape_count import Emulator, Uncounted

# Shortened: an emulated call takes a hundred times as long as a real one.
PROGRAMS = {
    "superserver": ["superserver", "--threads", "2", "--allocations", "200000"],
    "larson": ["larson", "--threads", "2", "--rounds", "60", "--high", "500"],
    "browser": ["mixed", "--distribution", "browser", "--operations", "300000"],
}
CALLS = ("malloc", "free")
SHARES = (0.5, 0.99, 0.999, 0.9999)
HEADINGS = ("p50", "p99", "p99.9", "p99.99", "most")


def percentiles(calls):
    """Of {instructions: how many calls took so many}: at SHARES, and the most."""
    total = sum(calls.values())
    wanted, seen, found = list(SHARES), 0, []
    for instructions, count in sorted(calls.items()):
        seen += count
        while wanted and seen >= wanted[0] * total:
            found.append(instructions)
            wanted.pop(0)
    return [*found, max(calls)]


class Calls(Emulator):
    """Counts of single calls instead of a program's."""

    def __init__(self, build):
        super().__init__("qemu-x86_64", build.program("calls.so"))
        self.marks = build.program("call_marks.so")

    def environment(self, library):
        """As a user has it, but for the seed: what is done by the clock belongs to the longest calls."""
        return {**common.found_by(), "SPANALLOC_SEED": "1", **common.settings(library)}

    def of(self, command, library):
        """{call: {instructions: how many}}."""
        text = self.run(command, f"{self.marks}:{library}", library)
        found = {call: collections.Counter() for call in CALLS}
        for line in text.splitlines():
            call, instructions, count = line.split()
            found[call][int(instructions)] += int(count)
        if not all(found.values()):
            raise Uncounted("its calls do not pass the marks")
        return found


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--only", metavar="A,B", help="these allocators")
    parser.add_argument("--program", action="append", choices=sorted(PROGRAMS), help="this program; may be repeated")
    options = parser.parse_args()
    build = common.Build(options.build)
    known = {name: path for name, path, _ in build.allocators()}
    names = options.only.split(",") if options.only else list(known)
    for name in names:
        if name not in known:
            sys.exit(f"call_count: no allocator is called {name}; there are {', '.join(known)}")
    counter = Calls(build)
    counted = False
    for program in options.program or PROGRAMS:
        command = [build.program(PROGRAMS[program][0]), *PROGRAMS[program][1:]]
        print(f"{program}: instructions of a call")
        print(f"{'':<24}" + "".join(f"{call + ' ' + heading:>14}" for call in CALLS for heading in HEADINGS))
        for name in names:
            print(f"{name:<24}", end="", flush=True)
            try:
                found = counter.of(command, known[name])
            except Uncounted as reason:
                print(f"  not counted: {reason}")
                continue
            counted = True
            print("".join(f"{figure:>14,}" for call in CALLS for figure in percentiles(found[call])), flush=True)
    if not counted:
        sys.exit("call_count: nothing could be counted")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(f"call_count: {error}")
