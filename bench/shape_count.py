#!/usr/bin/env python3
"""Instructions a malloc/free pair takes in programs of many shapes, counted exactly by callgrind, and by an emulator for
what callgrind cannot run.

instruction_count.py counts the best case, 100 blocks of one size. Here the program is workloads/shape_loop.c: batches
of any number of blocks, of one size or several, freed in any order, also by another thread; from malloc, calloc or
aligned_alloc. Two runs of different
length are counted and subtracted, so that start-up does not matter. The loop and the procedure linkage table are
included: 14 instructions, 15 where an order is looked up.

    bench/shape_count.py                     the table of fixed shapes
    bench/shape_count.py --check             ours in the table within what count_baseline.json says of the toolchain, or
                                             else within its targets; and beside its peers in 50 drawn shapes
    bench/shape_count.py --write-baseline    records what ours take in the table with this toolchain
    bench/shape_count.py --draw 50           shapes drawn from a seed, and how far ours is from the best of each
    bench/shape_count.py --only standard,mimalloc-3.3.2 --shape "64 10000 forward"
    bench/shape_count.py --only standard --shape "64 1000 forward calloc" --shape "200 1000 stride 64"
    bench/shape_count.py --aarch64 build/aarch64            ours on 64-bit Arm beside x86-64; with --check within bounds

The seed is SPANALLOC_TEST_SEED, or 1, unless --seed gives one; it is printed, and draws the same shapes everywhere.

Of one thread the counts are the same every time, to the instruction: the clock of the counted programs stands still
(workloads/still_clock.h), and so does what else could show (common.counted_environment). Where threads end, whether
pthread_join has to wait is the machine's, and is some instructions in 100,000.
"""

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

# (sizes, blocks of a batch, order, and what is not malloc: calloc, or an alignment): the design's targets, by which ours
# is judged with a toolchain whose counts are not recorded.
TARGETS = {
    ("64", 1, "forward"): 101.0, ("64", 100, "forward"): 48.6, ("64", 1000, "forward"): 48.2, ("64", 10000, "forward"): 56.0,
    ("64", 10007, "stride"): 60.0, ("400", 1009, "stride"): 66.0, ("1024", 1000, "forward"): 72.0,
    ("2000", 100, "forward"): 80.0, ("3000", 100, "forward"): 80.0, ("20000", 20, "forward"): 80.0,
    ("100000", 5, "forward"): 141.0,
    ("64", 1000, "forward", "calloc"): 82.5, ("64", 10000, "forward", "calloc"): 83.0,
    ("1000", 100, "forward", "calloc"): 209.0,  # 155 of them memset's
    ("64", 1000, "forward", "64"): 79.5, ("200", 1000, "stride", "64"): 82.0, ("2000", 100, "forward", "4096"): 123.0,
    (",".join(str(size) for size in range(16, 1017, 50)), 200, "thread"): 165.0,
}
# --check: of so many drawn shapes the 95th percentile of ours / the best other. (The aim is 1.2.)
DRAWN, MOST_RATIO = 50, 2.0
OURS = "standard"
ORDERS = ("forward", "reverse", "stride", "random", "handed", "thread")
PAIRS = 10_000        # about so many in the shorter run
MOST_BYTES = 64 << 20  # of a drawn batch
MOST_SECONDS = 600    # of one run: it hangs
MOST_SIZES, MOST_BLOCKS = 64, 1 << 20  # that the program takes
# callgrind cannot run it, which takes too much address space, or reads what valgrind does not emulate: the emulator does.
EMULATED = ("snmalloc",)
# The target on 64-bit Arm, of the instructions on x86-64. (The aim is 1.15. To get into the library and to the thread's
# state alone takes 12 more of 48; and there are no operands in memory.)
MOST_AARCH64 = 1.55
ARM_SYSTEM = "/usr/aarch64-linux-gnu"
ARM_LIBC = os.path.join(ARM_SYSTEM, "lib", "libc.so.6")


def name_of(shape):
    sizes, blocks, order, *call = shape
    return " ".join([f"{sizes} x {blocks} {order[0] if order != 'random' else 'x'}", *call])


def rounds_of(shape):
    return max(2, math.ceil(PAIRS / shape[1]))


class Uncounted(Exception):
    """A run that gave no count; the text says why."""


def run_in(command, environment):
    """What it prints. Uncounted when it fails, or takes too long."""
    try:
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise Uncounted(f"took more than {MOST_SECONDS} seconds") from None
    except FileNotFoundError:
        raise Uncounted(f"{command[0]} is not installed") from None
    if run.returncode != 0:
        last = (run.stdout.strip().splitlines() or ["no output"])[-1]
        raise Uncounted(f"exit code {run.returncode}: {last[:160]}")
    return run.stdout


class Callgrind:
    def instructions(self, command, library):
        """Of one run."""
        printed = run_in(
            ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--", *command],
            common.counted_environment(library),
        )
        match = re.search(r"Collected : (\d+)", printed)
        if not match:
            raise Uncounted("callgrind prints no count")
        return int(match.group(1))


class Emulator:
    """One of QEMU's, with the plugin that counts."""

    def __init__(self, program, plugin, *arguments):
        self.command, self.plugin = [program, "-seed", "1", *arguments], plugin

    def environment(self, library):
        """Of the program: all that counts are taken in."""
        return common.counted_environment(library)

    def run(self, command, preloaded, library):
        """What the plugin writes."""
        # Of our usual arena the emulator would have to keep books.
        wanted = {**self.environment(library), "LD_PRELOAD": preloaded, "SPANALLOC_ARENA_BITS": "36"}
        # What has a comma cannot be said to the emulator. It passes on its own environment, which does no harm to itself.
        own = {name: value for name, value in wanted.items() if "," in value or name == "PATH"}
        words = ",".join(f"{name}={value}" for name, value in wanted.items() if name not in own)
        with tempfile.NamedTemporaryFile(prefix="spanalloc-instructions-") as out:
            run_in([*self.command, "-plugin", f"file={self.plugin},out={out.name}", "-E", words, *command], own)
            written = out.read().decode()
        if not written.strip():
            raise Uncounted(f"{os.path.basename(self.plugin)} wrote nothing: can {self.command[0]} load plugins?")
        return written

    def instructions(self, command, library):
        return int(self.run(command, library, library))


def counter_of(name, build):
    if not name.startswith(EMULATED):
        return Callgrind()
    return Emulator("qemu-x86_64", build.program("instructions.so"))


def quick_counter(build):
    """Four times as quick as callgrind, and counts the same, but of threads that run at once; None: it does not run here."""
    counter = Emulator("qemu-x86_64", os.path.join(build.folder, "bench", "instructions.so"))
    try:
        counter.instructions([build.program("shape_loop"), "64", "1", "forward", "1"], libraries.glibc())
    except Uncounted:
        return None
    return counter


def pair_count(counter, program, library, shape):
    sizes, blocks, order, *call = shape
    rounds = rounds_of(shape)
    short, long = (
        counter.instructions([program, sizes, str(blocks), order, str(r), *call], library) for r in (rounds, 2 * rounds)
    )
    return (long - short) / (rounds * shape[1])


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


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def count_all(build, contenders, shapes, counter=None):
    """{(shape, allocator): instructions a pair}, printed as it comes: a line a shape, "-" where there is none, and why. By
    this counter, or each by its own."""
    width = max(len(name_of(shape)[:40]) for shape in shapes)
    print(" " * width + "".join(f"{name:>24}" for name, _ in contenders), flush=True)
    found, failed = {}, {}
    program = build.program("shape_loop")
    # What else runs adds no instructions.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        counts = {
            (shape, name): pool.submit(pair_count, counter or counter_of(name, build), program, library, shape)
            for shape in shapes for name, library in contenders
        }
        for shape in shapes:
            print(f"{name_of(shape)[:40]:<{width}}", end="", flush=True)
            for name, _ in contenders:
                try:
                    found[shape, name] = counts[shape, name].result()
                    text = format(found[shape, name], ".1f")
                except Uncounted as reason:
                    failed[name, str(reason)] = failed.get((name, str(reason)), 0) + 1
                    text = "-"
                print(f"{text:>24}", end="", flush=True)
            print(flush=True)
    for (name, reason), times in failed.items():
        print(f"{name} not counted in {times} of {len(shapes)} shapes: {reason}")
    return found


def ratios(found, shapes, peers):
    """Ours / the best of these peers, by shape, where both were counted."""
    result = {}
    for shape in shapes:
        others = [count for (s, name), count in found.items() if s == shape and name in peers]
        if (shape, OURS) in found and others:
            result[shape] = found[shape, OURS] / min(others)
    return result


def summary_of(by_shape):
    worst = sorted(by_shape.items(), key=lambda item: -item[1])[:5]
    return (f"{OURS} / the best peer: median {percentile(by_shape.values(), 0.5):.2f}, "
            f"95th percentile {percentile(by_shape.values(), 0.95):.2f}, worst "
            + "; ".join(f"{ratio:.2f} ({name_of(shape)[:40]})" for shape, ratio in worst))


def compare_aarch64(build, folder, checked, writes):
    """Ours on both processors, each shape of the table by one thread."""
    other = common.Build(folder)
    for place in (build, other):
        if OURS not in libraries.our_configs(place.places):
            sys.exit(f"shape_count: there is no libspanalloc.so in {place.folder}: build it there first")
    here = Emulator("qemu-x86_64", build.program("instructions.so"))
    there = Emulator("qemu-aarch64", build.program("instructions.so"), "-L", ARM_SYSTEM)
    library = libraries.our_configs(build.places)[OURS]
    arm_library = libraries.our_configs(other.places)[OURS]
    checks = common.Checks()
    counts = common.Counts(checks, common.toolchain_of(arm_library, ARM_LIBC), writes) if checked or writes else None
    width = max(len(name_of(shape)) for shape in TARGETS)
    print(f"{'':<{width}}{'x86-64':>10}{'aarch64':>10}{'ratio':>8}")
    for shape in TARGETS:
        name = f"aarch64, {name_of(shape)}"
        try:
            x86 = pair_count(here, build.program("shape_loop"), library, shape)
            arm = pair_count(there, other.program("shape_loop"), arm_library, shape)
        except Uncounted as reason:
            checks.check(False, f"{name}: nothing counted: {reason}")
            continue
        print(f"{name_of(shape):<{width}}{x86:>10.1f}{arm:>10.1f}{arm / x86:>8.2f}", flush=True)
        if counts:
            counts.judge(name, arm, x86 * MOST_AARCH64)
    if counts:
        counts.write()
    checks.finish()


def judge_table(build, ours, checks, writes):
    """Ours in the shapes of the table."""
    found = count_all(build, [ours], list(TARGETS))
    counts = common.Counts(checks, common.toolchain_of(ours[1], libraries.glibc()), writes)
    for shape, target in TARGETS.items():
        counts.judge(f"spanalloc {OURS}, {name_of(shape)}", found.get((shape, OURS), math.inf), target)
    counts.write()


def check(build, contenders, peers, seed, writes):
    """The table; and ours beside its peers in shapes that nobody has chosen."""
    checks = common.Checks()
    ours = [row for row in contenders if row[0] == OURS]
    if not ours:
        checks.check(False, f"spanalloc {OURS}: not built, or not what programs call here: nothing counted")
        checks.finish()
    judge_table(build, ours[0], checks, writes)
    if writes:
        checks.finish()
    print(f"{DRAWN} shapes drawn from seed {seed}")
    if not libraries.built_peers():
        print("Peers are those that are installed: `spanalloc bench peers` builds today's releases.")
    shapes = draw(seed, DRAWN)
    # A ratio that may be 2 does not need the count to the instruction.
    found = count_all(build, ours + [row for row in contenders if row[0] in peers], shapes, quick_counter(build))
    for shape in shapes:
        if (shape, OURS) not in found:
            checks.check(False, f"spanalloc {OURS}, {name_of(shape)}, of seed {seed}: nothing counted")
    by_shape = ratios(found, shapes, peers)
    if len(by_shape) < DRAWN // 2:
        checks.skip("drawn shapes beside peers: none is installed that can be counted")
    else:
        worst = percentile(by_shape.values(), 0.95)
        print(summary_of(by_shape))
        checks.check(
            worst <= MOST_RATIO,
            f"spanalloc {OURS} / the best peer, 95th percentile of {len(by_shape)} shapes of seed {seed}: "
            f"counted {worst:.2f}, allowed {MOST_RATIO}",
        )
    checks.finish()


def shape_from(text):
    """Of an argument --shape."""
    words = text.split()
    good = len(words) in (3, 4) and re.fullmatch(r"\d+(,\d+)*", words[0]) and words[1].isdigit() and words[2] in ORDERS
    good = good and (len(words) == 3 or words[3] == "calloc" or (words[3].isdigit() and int(words[3]).bit_count() == 1))
    if not good or words[0].count(",") >= MOST_SIZES or not 1 <= int(words[1]) <= MOST_BLOCKS:
        sys.exit(
            f"shape_count: --shape '{text}': expected SIZE[,SIZE...] BLOCKS ORDER [calloc|ALIGNMENT], for example '64 1000 forward'; "
            f"at most {MOST_SIZES} sizes, 1 to {MOST_BLOCKS} blocks, as the order one of {', '.join(ORDERS)}, and as an "
            "alignment a power of two"
        )
    return words[0], int(words[1]), *words[2:]


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--draw", type=int, default=0, metavar="N", help="N shapes drawn from the seed instead of the table")
    parser.add_argument("--seed", metavar="TEXT", help="what shapes are drawn from (default: SPANALLOC_TEST_SEED, or 1)")
    parser.add_argument("--only", metavar="A,B", help="these allocators")
    parser.add_argument("--check", action="store_true", help="check ours against its bounds, and against the others")
    common.add_baseline_option(parser)
    parser.add_argument("--shape", action="append", metavar="'SIZES BLOCKS ORDER'", help="this shape; may be repeated")
    parser.add_argument(
        "--aarch64", metavar="DIR", help="compare ours with the build for 64-bit Arm in this folder, in the table's shapes"
    )
    options = parser.parse_args()
    if options.draw < 0:
        parser.error("--draw: expected a number of shapes, at least 1")
    chosen = [name for name in ("only", "shape", "draw", "seed") if getattr(options, name)]
    if options.aarch64 and chosen:
        parser.error(f"--aarch64 compares the table's shapes: no --{chosen[0]} with it")
    if (options.check or options.write_baseline) and (options.shape or options.draw):
        parser.error("--check and --write-baseline have shapes of their own: no --shape or --draw with them")
    shapes = [shape_from(text) for text in options.shape or []] or list(TARGETS)
    build = common.Build(options.build)
    program = build.program("shape_loop")
    common.fix_addresses()
    if options.aarch64:
        return compare_aarch64(build, options.aarch64, options.check, options.write_baseline)

    rows = build.allocators()
    peers = {name for name, _, ours in rows if not ours}
    # Without being asked, those of ours that are compared elsewhere.
    contenders = [
        (name, path) for name, path, ours in rows if not ours or options.only or name in libraries.COMPARED_CONFIGS
    ]
    if options.only:
        known = dict(contenders)
        missing = [name for name in options.only.split(",") if name not in known]
        if missing:
            sys.exit(f"shape_count: no allocator is called {missing[0]}; there are {', '.join(known)}")
        contenders = [(name, known[name]) for name in options.only.split(",")]
    contenders = [
        (name, path) for name, path in contenders if build.defines_malloc(path, [program, "64", "1", "forward", "1"])
    ]
    seed = options.seed or os.environ.get("SPANALLOC_TEST_SEED") or "1"
    if options.check or options.write_baseline:
        return check(build, contenders, peers, seed, options.write_baseline)
    if options.draw:
        print(f"{options.draw} shapes drawn from seed {seed}")
        shapes = draw(seed, options.draw)
    found = count_all(build, contenders, shapes)
    by_shape = ratios(found, shapes, peers)
    if by_shape:
        print(summary_of(by_shape))
    return None if found else sys.exit("shape_count: nothing could be counted")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, FileNotFoundError) as error:
        sys.exit(f"shape_count: {error}")
