#!/usr/bin/env python3
"""Instructions a malloc/free pair takes in programs of many shapes, counted exactly by callgrind, and by an emulator for
what callgrind cannot run.

instruction_count.py counts the best case, 100 blocks of one size. Here the program is workloads/shape_loop.c: batches
of any number of blocks, of one size or several, freed in any order, also by another thread. Two runs of different
length are counted and subtracted, so that start-up does not matter. The loop and the procedure linkage table are
included: 14 instructions, 15 where an order is looked up.

    bench/shape_count.py                     the table of fixed shapes
    bench/shape_count.py --check             ours in the table within its bounds, and beside the others in 50 drawn shapes
    bench/shape_count.py --draw 50           shapes drawn from a seed, and how far ours is from the best of each
    bench/shape_count.py --only standard,mimalloc-3.3.2 --shape "64 10000 forward"
    bench/shape_count.py --aarch64 build/aarch64            ours on 64-bit Arm beside x86-64; with --check within bounds

The seed is the commit's unless --seed gives one; it is printed, and draws the same shapes everywhere.
"""

import argparse
import concurrent.futures
import math
import os
import random
import re
import subprocess
import sys
import tempfile

import common
from spanalloc_cli import libraries

# (sizes, blocks of a batch, order): instructions that ours may take
BOUNDS = {
    ("64", 1, "forward"): 101.0, ("64", 100, "forward"): 48.6, ("64", 1000, "forward"): 48.2, ("64", 10000, "forward"): 56.0,
    ("64", 10007, "stride"): 60.0, ("400", 1009, "stride"): 66.0, ("1024", 1000, "forward"): 72.0,
    ("2000", 100, "forward"): 80.0, ("3000", 100, "forward"): 80.0, ("20000", 20, "forward"): 80.0,
    ("100000", 5, "forward"): 140.0, (",".join(str(size) for size in range(16, 1017, 50)), 200, "thread"): 165.0,
}
# --check: of so many drawn shapes the 95th percentile of ours / the best other. (The aim is 1.2.)
DRAWN, MOST_RATIO = 50, 2.0
OURS = "standard"
PAIRS = 10_000        # about so many in the shorter run
MOST_BYTES = 64 << 20  # of a drawn batch
MOST_SECONDS = 120    # of one run
# callgrind cannot run it, which takes too much address space, or reads what valgrind does not emulate: the emulator does.
EMULATED = ("snmalloc",)
# Of the instructions on x86-64. (The aim is 1.15. To get into the library and to the thread's state alone takes 12 more of
# 48; and there are no operands in memory.)
MOST_AARCH64 = 1.55


def name_of(shape):
    sizes, blocks, order = shape
    return f"{sizes} x {blocks} {order[0] if order != 'random' else 'x'}"


def rounds_of(shape):
    return max(2, math.ceil(PAIRS / shape[1]))


def run_in(command, environment):
    """What it prints. None when it fails, or takes too long."""
    try:
        run = subprocess.run(
            command, env=dict(os.environ, **environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    return run.stdout if run.returncode == 0 else None


class Callgrind:
    def instructions(self, command, library):
        """Of one run. None when callgrind cannot run it."""
        printed = run_in(
            ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--", *command],
            {"LD_PRELOAD": library, "SPANALLOC_SEED": "1", **common.settings(library)},
        )
        match = re.search(r"Collected : (\d+)", printed or "")
        return int(match.group(1)) if match else None


class Emulator:
    """One of QEMU's, with the plugin that counts."""

    def __init__(self, program, plugin, *arguments):
        self.command, self.plugin = [program, *arguments], plugin

    def run(self, command, preloaded, library):
        """What the plugin writes. None when the program fails."""
        wanted = {"LD_PRELOAD": preloaded, "SPANALLOC_SEED": "1", "SPANALLOC_ARENA_BITS": "36", **common.settings(library)}
        words = ",".join(f"{name}={value}" for name, value in wanted.items())
        with tempfile.NamedTemporaryFile(prefix="spanalloc-instructions-") as out:
            if run_in([*self.command, "-plugin", f"file={self.plugin},out={out.name}", "-E", words, *command], {}) is None:
                return None
            return out.read().decode()

    def instructions(self, command, library):
        counted = self.run(command, library, library)
        return int(counted) if counted else None


def counter_of(name, build):
    if not name.startswith(EMULATED):
        return Callgrind()
    return Emulator("qemu-x86_64", build.program("instructions.so"))


def pair_count(counter, program, library, shape):
    sizes, blocks, order = shape
    rounds = rounds_of(shape)
    short, long = (
        counter.instructions([program, sizes, str(blocks), order, str(r)], library) for r in (rounds, 2 * rounds)
    )
    return None if short is None or long is None else (long - short) / (rounds * shape[1])


def draw(seed, wanted):
    """Shapes from a seed: sizes as programs have them, small ones most often."""
    numbers = random.Random(seed)

    def size():
        return int(2 ** numbers.triangular(3, 17, 6))

    shapes = []
    while len(shapes) < wanted:
        sizes = [size() for _ in range(1 if numbers.random() < 0.6 else numbers.randint(2, 12))]
        blocks = int(2 ** numbers.uniform(0, 14))
        if blocks * max(sizes) > MOST_BYTES:
            continue
        order = numbers.choice(("forward", "reverse", "stride", "random", "random", "handed"))
        shapes.append((",".join(map(str, sizes)), blocks, order))
    return shapes


def commit():
    run = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=common.SOURCE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        check=False,
    )
    return run.stdout.strip()[:10] or "0"


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def count_all(build, contenders, shapes):
    """{(shape, allocator): instructions a pair}, printed as it comes: a line a shape."""
    width = max(len(name_of(shape)[:40]) for shape in shapes)
    print(" " * width + "".join(f"{name:>24}" for name, _ in contenders), flush=True)
    found = {}
    program = build.program("shape_loop")
    # What is counted does not depend on what else runs.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        counts = {
            (shape, name): pool.submit(pair_count, counter_of(name, build), program, library, shape)
            for shape in shapes for name, library in contenders
        }
        for shape in shapes:
            print(f"{name_of(shape)[:40]:<{width}}", end="", flush=True)
            for name, _ in contenders:
                count = counts[shape, name].result()
                if count is not None:
                    found[shape, name] = count
                print(f"{'-' if count is None else format(count, '.1f'):>24}", end="", flush=True)
            print(flush=True)
    return found


def ratios(found, shapes):
    """Ours / the best other, by shape, where both were counted."""
    result = {}
    for shape in shapes:
        others = [count for (s, name), count in found.items() if s == shape and name != OURS]
        if (shape, OURS) in found and others:
            result[shape] = found[shape, OURS] / min(others)
    return result


def summary_of(by_shape):
    worst = sorted(by_shape.items(), key=lambda item: -item[1])[:5]
    return (f"{OURS} / the best other: median {percentile(by_shape.values(), 0.5):.2f}, "
            f"95th percentile {percentile(by_shape.values(), 0.95):.2f}, worst "
            + "; ".join(f"{ratio:.2f} ({name_of(shape)[:40]})" for shape, ratio in worst))


def compare_aarch64(build, folder, checked):
    """Ours on both processors, each shape of the table by one thread."""
    other = common.Build(folder)
    here = Emulator("qemu-x86_64", build.program("instructions.so"))
    there = Emulator("qemu-aarch64", build.program("instructions.so"), "-L", "/usr/aarch64-linux-gnu")
    library = libraries.our_configs(build.places)[OURS]
    arm_library = libraries.our_configs(other.places)[OURS]
    checks = common.Checks()
    width = max(len(name_of(shape)) for shape in BOUNDS)
    print(f"{'':<{width}}{'x86-64':>10}{'aarch64':>10}{'ratio':>8}")
    for shape in BOUNDS:
        x86 = pair_count(here, build.program("shape_loop"), library, shape)
        arm = pair_count(there, other.program("shape_loop"), arm_library, shape)
        if x86 is None or arm is None:
            checks.check(False, f"{name_of(shape)}: cannot be counted")
            continue
        print(f"{name_of(shape):<{width}}{x86:>10.1f}{arm:>10.1f}{arm / x86:>8.2f}", flush=True)
        if checked:
            checks.check(arm / x86 <= MOST_AARCH64, f"{name_of(shape)}: {arm / x86:.2f} of x86-64, at most {MOST_AARCH64}")
    if checked:
        checks.finish()


def check(build, contenders, seed):
    """The bounds of the table; and ours beside the others in shapes that nobody has chosen."""
    checks = common.Checks()
    ours = [row for row in contenders if row[0] == OURS]
    if not ours:
        checks.check(False, f"spanalloc {OURS} is not built")
        checks.finish()
    found = count_all(build, ours, list(BOUNDS))
    for shape, bound in BOUNDS.items():
        count = found.get((shape, OURS), math.inf)
        checks.check(count <= bound, f"{name_of(shape)}: {count:.1f} instructions, at most {bound:.1f}")
    print(f"{DRAWN} shapes drawn from seed {seed}")
    shapes = draw(seed, DRAWN)
    by_shape = ratios(count_all(build, contenders, shapes), shapes)
    if len(by_shape) < DRAWN:
        checks.skip(f"{DRAWN - len(by_shape)} drawn shapes: no other allocator to compare with (`spanalloc bench peers`)")
    if by_shape:
        worst = percentile(by_shape.values(), 0.95)
        print(summary_of(by_shape))
        checks.check(worst <= MOST_RATIO, f"drawn shapes: 95th percentile {worst:.2f}, at most {MOST_RATIO}")
    checks.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_build_option(parser)
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="N shapes drawn from the seed instead of the table")
    parser.add_argument("--seed", metavar="TEXT", help="what shapes are drawn from (default: the commit)")
    parser.add_argument("--only", metavar="A,B", help="these allocators")
    parser.add_argument("--check", action="store_true", help="check ours against its bounds, and against the others")
    parser.add_argument("--shape", action="append", metavar="'SIZES BLOCKS ORDER'", help="this shape; may be repeated")
    parser.add_argument("--aarch64", metavar="DIR", help="compare ours with the build for 64-bit Arm in this folder")
    options = parser.parse_args()
    build = common.Build(options.build)
    program = build.program("shape_loop")
    if options.aarch64:
        return compare_aarch64(build, options.aarch64, options.check)

    contenders = [(name, path) for name, path, _ in build.allocators()]
    if options.only:
        known = dict(contenders)
        missing = [name for name in options.only.split(",") if name not in known]
        if missing:
            sys.exit(f"shape_count: no allocator is called {missing[0]}; there are {', '.join(known)}")
        contenders = [(name, known[name]) for name in options.only.split(",")]
    contenders = [
        (name, path) for name, path in contenders if build.defines_malloc(path, [program, "64", "1", "forward", "1"])
    ]
    seed = options.seed or commit()
    if options.check:
        return check(build, contenders, seed)
    shapes = list(BOUNDS)
    if options.shape:
        shapes = []
        for text in options.shape:
            sizes, blocks, order = (text.split() + ["", "", ""])[:3]
            if not re.fullmatch(r"\d+(,\d+)*", sizes) or not blocks.isdigit() or len(text.split()) != 3:
                sys.exit(f"shape_count: --shape '{text}': expected SIZE[,SIZE...] BLOCKS ORDER, for example '64 1000 forward'")
            shapes.append((sizes, int(blocks), order))
    elif options.draw:
        print(f"{options.draw} shapes drawn from seed {seed}")
        shapes = draw(seed, options.draw)
    found = count_all(build, contenders, shapes)
    by_shape = ratios(found, shapes)
    if by_shape:
        print(summary_of(by_shape))
    return None


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(f"shape_count: {error}")
