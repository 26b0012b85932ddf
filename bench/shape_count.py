#!/usr/bin/env python3
"""Instructions a malloc/free pair takes in programs of many shapes, counted exactly by callgrind.

instruction_count.py counts the best case, 100 blocks of one size. Here the program is workloads/shape_loop.c: batches
of any number of blocks, of one size or several, freed in any order, also by another thread. Two runs of different
length are counted and subtracted, so that start-up does not matter. The loop and the procedure linkage table are
included: 14 instructions, 15 where an order is looked up.

    bench/shape_count.py                     the table of fixed shapes
    bench/shape_count.py --draw 50           shapes drawn from a seed, and how far ours is from the best of each
    bench/shape_count.py --only standard,mimalloc-3.3.2 --shape "64 10000 forward"

The seed is the commit's unless --seed gives one; it is printed, and draws the same shapes everywhere.
"""

import argparse
import math
import os
import random
import re
import subprocess
import sys

import common

# (sizes, blocks of a batch, order)
FIXED = (
    ("64", 1, "forward"), ("64", 100, "forward"), ("64", 1000, "forward"), ("64", 10000, "forward"),
    ("64", 10007, "stride"), ("400", 1009, "stride"), ("1024", 1000, "forward"), ("2000", 100, "forward"),
    ("3000", 100, "forward"), ("20000", 20, "forward"), ("100000", 5, "forward"),
)
OURS = "standard"
PAIRS = 40_000        # about so many in the shorter run
MOST_BYTES = 64 << 20  # of a drawn batch
MOST_SECONDS = 120    # of one run
# callgrind cannot run it: it takes too much address space, or reads what valgrind does not emulate.
NOT_COUNTED = ("snmalloc",)


def name_of(shape):
    sizes, blocks, order = shape
    return f"{sizes} x {blocks} {order[0] if order != 'random' else 'x'}"


def rounds_of(shape):
    return max(2, math.ceil(PAIRS / shape[1]))


def instructions(program, library, shape, rounds):
    """Of one run. None when callgrind cannot run it."""
    sizes, blocks, order = shape
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--", program, sizes, str(blocks), order, str(rounds),
    ]
    try:
        run = subprocess.run(
            command, env=dict(os.environ, LD_PRELOAD=library, SPANALLOC_SEED="1", **common.settings(library)), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None
    match = re.search(r"Collected : (\d+)", run.stdout)
    return int(match.group(1)) if match and run.returncode == 0 else None


def pair_count(program, library, shape):
    rounds = rounds_of(shape)
    short, long = (instructions(program, library, shape, r) for r in (rounds, 2 * rounds))
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


def count_all(program, contenders, shapes):
    """{(shape, allocator): instructions a pair}, printed as it comes: a line a shape."""
    width = max(len(name_of(shape)[:40]) for shape in shapes)
    print(" " * width + "".join(f"{name:>24}" for name, _ in contenders), flush=True)
    found = {}
    for shape in shapes:
        print(f"{name_of(shape)[:40]:<{width}}", end="", flush=True)
        for name, library in contenders:
            count = pair_count(program, library, shape)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_build_option(parser)
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="N shapes drawn from the seed instead of the table")
    parser.add_argument("--seed", metavar="TEXT", help="what shapes are drawn from (default: the commit)")
    parser.add_argument("--only", metavar="A,B", help="these allocators")
    parser.add_argument("--shape", action="append", metavar="'SIZES BLOCKS ORDER'", help="this shape; may be repeated")
    options = parser.parse_args()
    build = common.Build(options.build)
    program = build.program("shape_loop")

    contenders = [(name, path) for name, path, _ in build.allocators() if not name.startswith(NOT_COUNTED)]
    if options.only:
        known = dict(contenders)
        missing = [name for name in options.only.split(",") if name not in known]
        if missing:
            sys.exit(f"shape_count: no allocator is called {missing[0]}; there are {', '.join(known)}")
        contenders = [(name, known[name]) for name in options.only.split(",")]
    contenders = [
        (name, path) for name, path in contenders if build.defines_malloc(path, [program, "64", "1", "forward", "1"])
    ]
    shapes = list(FIXED)
    if options.shape:
        shapes = []
        for text in options.shape:
            sizes, blocks, order = (text.split() + ["", "", ""])[:3]
            if not re.fullmatch(r"\d+(,\d+)*", sizes) or not blocks.isdigit() or len(text.split()) != 3:
                sys.exit(f"shape_count: --shape '{text}': expected SIZE[,SIZE...] BLOCKS ORDER, for example '64 1000 forward'")
            shapes.append((sizes, int(blocks), order))
    elif options.draw:
        seed = options.seed or commit()
        print(f"{options.draw} shapes drawn from seed {seed}")
        shapes = draw(seed, options.draw)
    found = count_all(program, contenders, shapes)
    by_shape = ratios(found, shapes)
    if by_shape:
        worst = sorted(by_shape.items(), key=lambda item: -item[1])[:5]
        print(f"{OURS} / the best other: median {percentile(by_shape.values(), 0.5):.2f}, "
              f"95th percentile {percentile(by_shape.values(), 0.95):.2f}, worst "
              + "; ".join(f"{ratio:.2f} ({name_of(shape)[:40]})" for shape, ratio in worst))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(f"shape_count: {error}")
