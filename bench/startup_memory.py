#!/usr/bin/env python3
"""What a program that does nothing takes: the peak of RSS + page tables of `true` under each allocator.

Read at the exit stop of the process (spanalloc-measure), median of several runs in rotation, against glibc.

    bench/startup_memory.py                the table
    bench/startup_memory.py --check        glibc and `standard` only, more often: the kernel's reading varies by some tens of
                                           KiB; fails when `standard` takes over 344 KiB more than glibc
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

import common

RUNS, CHECKED_RUNS = 101, 201
# Half of that is the library's file, of which the kernel maps pages around those that are touched, how many depends on how
# the page cache has got it: the same library has been read at 288 and at 316. Since then it has grown by 20 KiB of code that is
# mapped (thinning, loans, the bound on warm memory); of data it touches what it did. Less than this would fail by chance.
BOUNDS_KIB = {"standard": 344}


def peak_kib(build, library, program):
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "record")
        command = [build.places.measure, "--out", out, "--preload", library, "--", program]
        subprocess.run(command, check=True)
        with open(out, encoding="utf-8") as file:
            record = json.load(file)
    if record["exit_readings"] != 1:
        raise SystemExit("startup_memory: no reading at the exit stop: ptrace is not allowed here")
    return record["peak_kib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_build_option(parser)
    parser.add_argument("--check", action="store_true", help="check our libraries against their bounds")
    options = parser.parse_args()
    build = common.Build(options.build)
    program = shutil.which("true")
    allocators = [a for a in build.allocators() if not options.check or a[0] in ("glibc", *BOUNDS_KIB)]
    readings = {name: [] for name, _, _ in allocators}
    for run in range((CHECKED_RUNS if options.check else RUNS) + 1):
        turn = run % len(allocators)
        for name, library, _ in allocators[turn:] + allocators[:turn]:
            value = peak_kib(build, library, program)
            if run > 0:  # the first round only fills the page cache
                readings[name].append(value)
    base = statistics.median(readings["glibc"])
    checks = common.Checks()
    print(f"{'`true`, peak RSS + page tables':<32}{'KiB':>8}{'more than glibc':>18}")
    for name, library, ours in allocators:
        label = f"spanalloc {name}" if ours else name
        if not build.defines_malloc(library, [program]):
            print(f"{label:<32}  not measured: its malloc is not the one called")
            continue
        median = statistics.median(readings[name])
        print(f"{label:<32}{median:8.0f}{median - base:18.0f}")
    if options.check:
        for name, bound in BOUNDS_KIB.items():
            if name not in readings:
                checks.check(False, f"spanalloc {name} is not built")
                continue
            more = statistics.median(readings[name]) - base
            checks.check(more <= bound, f"spanalloc {name}: {more:.0f} KiB more than glibc, at most {bound}")
        checks.finish()


if __name__ == "__main__":
    main()
