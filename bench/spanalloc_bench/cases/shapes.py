"""What hurts allocators: the shapes in bench/workloads/attack_shapes.cpp, each found by trying to ruin one.

A shape that shows in the time is judged by it, and its memory counts, too; one that shows in what is held at one moment
is judged by `held_mib`. A variant is there where another size, or other numbers of threads and blocks, hurt others.
"""

from __future__ import annotations

from ..model import Case
from .builders import BEYOND, KIB, LITTLE_FOR_BUMP, MIB, command, count, short, size_text, suites, workload

# shape: (what its id ends with, its title), of the program's options. `size` and `other` are sizes; or `other` is a
# {number}, `rounds` are milliseconds, and {last} is the largest of `blocks` sizes.
SHAPES = {
    "comb": ("{mib}m-{other_id}", "{mib} MiB filled with size after size, one block kept in {other}: memory"),
    "edges": ("{size_id}-{other_id}-n{rounds}",
              "realloc from {size} to {other} and back, {blocks} blocks in turn"),
    "appends": ("{size_id}-{number}-n{rounds}", "{blocks} strings growing in turn by {number} B to {size}"),
    "shuffled": ("{size_id}-l{blocks}-n{rounds}",
                 "{blocks} blocks of {size} freed in a drawn order and allocated again"),
    "makers": ("l{blocks}-n{rounds}", "{threads} make {blocks} blocks each, another frees all: memory"),
    "sleepers": ("{other_id}-n{rounds}",
                 "{threads} sleep after {rounds} times {other} of every size, none kept: memory 1 s later"),
    "ring": ("l{blocks}-n{rounds}", "{threads} in a ring free each other's {blocks} blocks"),
    "flip": ("{size_id}-{other_id}-n{rounds}", "{mib} MiB in blocks of {size}, then of {other}, in turn"),
    "untouched": ("{size_id}-l{blocks}-n{rounds}", "{size} of which a word is written, {blocks} at a time"),
    "trickle": ("{size_id}-{mib}m-n{rounds}",
                "{mib} MiB in blocks of {size} come and go, then little happens for {seconds:g} s: mean memory"),
    "aligned": ("{size_id}-{other_id}-n{rounds}", "{size} aligned to {other}, {blocks} at a time"),
    "firsts": ("{size_id}-{number}-l{blocks}-n{rounds}",
               "one block of each of {blocks} sizes, {size} to {last}, all freed and allocated again"),
    "graph": ("{size_id}-l{blocks}-w{number}-n{rounds}",
              "{blocks} nodes of {size}, half of them made anew, walked {number} times"),
    "asked": ("{size_id}-{other_id}-n{rounds}",
              "malloc_usable_size of {blocks} blocks of {size} to {other} in turn"),
    "once": ("{size_id}-l{blocks}", "{blocks} blocks of {size} made, written and freed once"),
    "crowd": ("n{rounds}", "{threads} at once take and free a block of every size, and end"),
    "handed": ("{size_id}-l{blocks}-n{rounds}", "{threads} sleep, each after {blocks} blocks of {size} that the next "
               "one frees: memory {seconds:g} s later"),
    "halves": ("{size_id}-l{blocks}-n{rounds}", "{blocks} buffers growing in turn by half to {size}, then freed"),
}
HELD = ("comb", "makers", "sleepers", "trickle", "handed")  # judged by what is held


def _case(variant: str, title: str, options: dict, threads: int, metric: str) -> Case:
    if threads > 1:
        options = {**options, "threads": threads}
    return workload(f"shape-{options['shape']}-{variant}", "shapes", title, BEYOND, command("attack_shapes", **options),
                    threads, metric=metric, environment=LITTLE_FOR_BUMP)


def shape(name: str, threads: int = 1, judged: tuple[str, ...] = (), **options) -> Case:
    """A case of the shape with the program's options in this order. `judged`: by another metric of the run than usual,
    with what then stands at the end of the id and of the title."""
    size, number = options.get("size", 0), options.get("other", 0)
    last = size + (options.get("blocks", 0) - 1) * number
    known = {**options, "size": size_text(size), "size_id": short(size), "other": size_text(number),
             "other_id": short(number), "number": number, "last": size_text(last), "threads": count(threads),
             "seconds": options.get("rounds", 0) / 1000}
    variant, title = (text.format(**known) for text in SHAPES[name])
    metric, id_end, title_end = judged or ("held_mib" if name in HELD else "time", "", "")
    return _case(variant + id_end, title + title_end.format(**known), {"shape": name, **options}, threads, metric)


def replace(size: int, blocks: int, rounds: int, other: int = 0, threads: int = 1) -> Case:
    """Of `blocks` blocks in each thread a drawn one is freed and another of its size allocated, `rounds` times in all
    threads together. Their sizes: `size`, or drawn from there to `other`."""
    sizes = f"{short(size)}-{short(other)}" if other else short(size)
    title = f"{size_text(size)} to {size_text(other)}" if other else size_text(size)
    options = {"size": size, "other": other or size, "blocks": blocks, "rounds": rounds // threads}
    return _case(f"{sizes}-l{blocks}-n{rounds}",
                 f"one of {blocks} blocks of {title} freed at random, as much allocated, {count(threads)}",
                 {"shape": "replace", **options}, threads, "time")


HELD_LATER = ("held_mib", "-held", ": memory {seconds:g} s later")
TRIMMED = ("trimmed_mib", "-trim", ": memory after malloc_trim")


def suite() -> list[Case]:
    return suites(full=[
        shape("comb", mib=16, other=4 * KIB), shape("comb", mib=16, other=64 * KIB),
        shape("edges", size=MIB, other=MIB + 1, blocks=20, rounds=2000),
        shape("edges", size=40_000, other=66_000, blocks=100, rounds=6000),
        shape("appends", size=2000, other=1, blocks=2000, rounds=6),
        shape("shuffled", size=200, blocks=200_000, rounds=8), shape("shuffled", size=32, blocks=500_000, rounds=5),
        shape("makers", threads=32, blocks=1000, rounds=40), shape("makers", threads=100, blocks=300, rounds=40),
        shape("sleepers", threads=64, other=60 * KIB, rounds=3),
        shape("ring", threads=8, blocks=1000, rounds=600), shape("ring", threads=16, blocks=200, rounds=1500),
        shape("flip", size=3000, other=5000, mib=32, rounds=400),
        shape("flip", size=40_000, other=100_000, mib=32, rounds=400),
        shape("untouched", size=2_000_000, blocks=50, rounds=300_000),
        shape("untouched", size=40_000_000, blocks=1, rounds=30_000),
        shape("trickle", size=256, mib=128, rounds=1500),
        shape("aligned", size=100, other=4 * KIB, blocks=1000, rounds=3_000_000),
        shape("aligned", size=100, other=64 * KIB, blocks=100, rounds=4_000_000),
        shape("aligned", size=64 * KIB, other=64 * KIB, blocks=20, rounds=60_000),
        shape("edges", size=100, other=104, blocks=100, rounds=100_000),
        shape("edges", size=1000, other=1010, blocks=100, rounds=100_000),
        shape("edges", size=70_000, other=70_100, blocks=100, rounds=50_000),
        replace(4 * KIB, blocks=200, rounds=8_000_000),
        replace(4 * KIB, blocks=1000, rounds=8_000_000),
        replace(16 * KIB, blocks=300, rounds=8_000_000),
        replace(32 * KIB, blocks=40, rounds=8_000_000),
        replace(32 * KIB, blocks=2000, rounds=6_000_000),
        replace(16, blocks=10_000, rounds=5_000_000, other=32 * KIB),
        replace(KIB, blocks=2000, rounds=12_000_000),
        replace(8 * KIB, blocks=500, rounds=12_000_000, threads=2),
        replace(16, blocks=1000, rounds=12_000_000, other=32 * KIB, threads=4),
        shape("firsts", size=16, other=16, blocks=32, rounds=1_500_000),
        shape("firsts", size=16, other=64, blocks=64, rounds=600_000),
        shape("graph", size=32, other=1, blocks=150_000, rounds=100),
        shape("graph", size=96, other=8, blocks=40_000, rounds=60),
        shape("asked", size=16, other=2000, blocks=1000, rounds=40_000),
        shape("asked", size=4 * KIB, other=40_000, blocks=300, rounds=150_000),
        shape("once", size=200, blocks=2_000_000), shape("once", size=2000, blocks=150_000),
        shape("crowd", threads=400, rounds=1000), shape("crowd", threads=400, rounds=1000, judged=HELD_LATER),
        shape("crowd", threads=400, rounds=1000, judged=TRIMMED),
        shape("handed", threads=32, size=8 * KIB, blocks=512, rounds=500),
        shape("handed", threads=100, size=100, blocks=10_000, rounds=500),
        shape("halves", size=64 * MIB, blocks=2, rounds=3),
        shape("halves", size=64 * MIB, blocks=2, rounds=3, judged=("held_mib", "-held", ": memory")),
        shape("halves", size=MIB, blocks=100, rounds=4),
    ], quick=[
        shape("comb", mib=2, other=4 * KIB),
        shape("edges", size=MIB, other=MIB + 1, blocks=5, rounds=200),
        shape("ring", threads=4, blocks=100, rounds=100),
        replace(8 * KIB, blocks=100, rounds=200_000, threads=2),
        shape("firsts", size=16, other=16, blocks=32, rounds=20_000),
        shape("graph", size=32, other=1, blocks=10_000, rounds=10),
    ])
