#!/usr/bin/env python3
"""Instructions a malloc/free pair takes, counted exactly by callgrind, and by an emulator for what callgrind cannot run.

The program is workloads/pair_loop.c: 100 blocks allocated, one byte written into each, all freed; and one block
after the other in the last round of a thread's specific destructors. Two runs of different length are counted and
subtracted, so that start-up does not matter. The count includes the loop and the procedure linkage table (14 on
x86-64). Programs of other shapes, beside the other allocators and on 64-bit Arm: shape_count.py.

    bench/instruction_count.py              the table
    bench/instruction_count.py --check      fails when one of our libraries takes more than count_baseline.json says,
                                            or, with another toolchain, than its target
    bench/instruction_count.py --write-baseline    records what ours take with this toolchain
"""

import math
import sys

import common
from shape_count import Uncounted, counter_of
from spanalloc_cli import libraries

SIZES = (64, 400)
ORDERS = ("forward", "reverse")
ROUNDS = 500
PAIRS_A_ROUND = 100
# In the last round of a thread's specific destructors, 64 bytes, one pair after the other.
LAST_ROUND = (64, "last-round")
# The designs' targets: of SIZES and ORDERS, and of LAST_ROUND. Judged by where the toolchain's counts are not recorded.
TARGETS = {name: tuple(map(float, library.value("instructions").split(",")))
           for name, library in libraries.LIBRARIES.items() if library.value("instructions")}


def pair_count(counter, program, library, size, order):
    short, long = (
        counter.instructions([program, str(size), order, str(rounds)], library) for rounds in (ROUNDS, 2 * ROUNDS)
    )
    return (long - short) / (ROUNDS * PAIRS_A_ROUND)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--check", action="store_true", help="check our libraries against their bounds, no others")
    common.add_baseline_option(parser)
    options = parser.parse_args()
    judged = options.check or options.write_baseline
    build = common.Build(options.build)
    program = build.program("pair_loop")
    common.fix_addresses()
    checks = common.Checks()

    allocators = [a for a in build.allocators() if not judged or (a[2] and a[0] in TARGETS)]
    columns = [(size, order) for size in SIZES for order in ORDERS] + [LAST_ROUND]
    headings = [f"{size} {order}" for size, order in columns]
    print(f"{'instructions a pair':<24}" + "".join(f"{h:>14}" for h in headings), flush=True)
    rows = {}
    for name, library, ours in allocators:
        label = f"spanalloc {name}" if ours else name
        if not build.defines_malloc(library, [program, "64", "forward", "1"]):
            print(f"{label:<24}  not measured: its malloc is not the one called")
            continue
        print(f"{label:<24}", end="", flush=True)
        figures = rows[name] = {}
        for size, order in columns:
            try:
                figures[size, order] = pair_count(counter_of(name, build), program, library, size, order)
            except Uncounted as reason:
                print(f"  not counted: {reason}", end="", flush=True)
                break
            print(f"{figures[size, order]:14.1f}", end="", flush=True)
        print()
    if judged:
        counts = {}
        paths = {name: library for name, library, _ in allocators}
        for name, (pair, last_round) in TARGETS.items():
            if name not in paths:
                checks.check(False, f"spanalloc {name}: not built, nothing counted")
                continue
            toolchain = common.toolchain_of(paths[name], libraries.glibc())
            if toolchain not in counts:
                counts[toolchain] = common.Counts(checks, toolchain, options.write_baseline)
            for column in columns:
                count = rows.get(name, {}).get(column, math.inf)  # inf: not counted
                counts[toolchain].judge(
                    f"spanalloc {name}, {column[0]} bytes, {column[1]}", count, last_round if column == LAST_ROUND else pair)
        for toolchain in counts.values():
            toolchain.write()
        checks.finish()


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as error:
        sys.exit(f"instruction_count: {error}")
