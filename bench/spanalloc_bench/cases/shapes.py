"""What hurts allocators: the shapes in bench/workloads/attack_shapes.cpp, each found by trying to ruin one.

A shape that shows in the time is judged by it, and its memory counts, too; one that shows in what is held at one moment
is judged by `held_mib`. A variant is there where another size, or other numbers of threads and blocks, hurt others.
"""

from __future__ import annotations

from ..model import Case
from .builders import BEYOND, KIB, LITTLE_FOR_BUMP, MIB, command, count, short, size_text, suites, workload


def _shape(shape: str, variant: str, title: str, metric: str = "time", threads: int = 1, **options) -> Case:
    if threads > 1:
        options["threads"] = threads
    argv = command("attack_shapes", shape=shape, **options)
    return workload(f"shape-{shape}-{variant}", "shapes", title, BEYOND, argv, threads, metric=metric,
                    environment=LITTLE_FOR_BUMP)


def comb(mib: int, stretch: int) -> Case:
    """Size after size fills `mib` MiB, and keeps a block in each `stretch` bytes."""
    return _shape("comb", f"{mib}m-{short(stretch)}", f"{mib} MiB filled with size after size, one block kept in "
                   f"{size_text(stretch)}: memory", metric="held_mib", mib=mib, other=stretch)


def edges(size: int, other: int, blocks: int, rounds: int) -> Case:
    return _shape("edges", f"{short(size)}-{short(other)}-n{rounds}",
                   f"realloc from {size_text(size)} to {size_text(other)} and back, {blocks} blocks in turn",
                   size=size, other=other, blocks=blocks, rounds=rounds)


def appends(size: int, step: int, blocks: int, rounds: int) -> Case:
    return _shape("appends", f"{short(size)}-{step}-n{rounds}",
                   f"{blocks} strings growing in turn by {step} B to {size_text(size)}",
                   size=size, other=step, blocks=blocks, rounds=rounds)


def shuffled(size: int, blocks: int, rounds: int) -> Case:
    return _shape("shuffled", f"{short(size)}-l{blocks}-n{rounds}",
                   f"{blocks} blocks of {size_text(size)} freed in a drawn order and allocated again",
                   size=size, blocks=blocks, rounds=rounds)


def makers(threads: int, blocks: int, rounds: int) -> Case:
    return _shape("makers", f"l{blocks}-n{rounds}", f"{count(threads)} make {blocks} blocks each, another frees "
                   "all: memory", metric="held_mib", threads=threads, blocks=blocks, rounds=rounds)


def sleepers(threads: int, each: int, rounds: int) -> Case:
    return _shape("sleepers", f"{short(each)}-n{rounds}",
                   f"{count(threads)} sleep after {rounds} times {size_text(each)} of every size, none kept: memory "
                   "1 s later", metric="held_mib", threads=threads, other=each, rounds=rounds)


def ring(threads: int, blocks: int, rounds: int) -> Case:
    return _shape("ring", f"l{blocks}-n{rounds}", f"{count(threads)} in a ring free each other's {blocks} blocks",
                   threads=threads, blocks=blocks, rounds=rounds)


def flip(size: int, other: int, mib: int, rounds: int) -> Case:
    return _shape("flip", f"{short(size)}-{short(other)}-n{rounds}",
                   f"{mib} MiB in blocks of {size_text(size)}, then of {size_text(other)}, in turn",
                   size=size, other=other, mib=mib, rounds=rounds)


def untouched(size: int, blocks: int, rounds: int) -> Case:
    return _shape("untouched", f"{short(size)}-l{blocks}-n{rounds}",
                   f"{size_text(size)} of which a word is written, {blocks} at a time",
                   size=size, blocks=blocks, rounds=rounds)


def trickle(size: int, mib: int, ms: int) -> Case:
    return _shape("trickle", f"{short(size)}-{mib}m-n{ms}",
                   f"{mib} MiB in blocks of {size_text(size)} come and go, then little happens for {ms / 1000:g} s: "
                   "mean memory", metric="held_mib", size=size, mib=mib, rounds=ms)


def aligned(size: int, alignment: int, blocks: int, rounds: int) -> Case:
    return _shape("aligned", f"{short(size)}-{short(alignment)}-n{rounds}",
                   f"{size_text(size)} aligned to {size_text(alignment)}, {blocks} at a time",
                   size=size, other=alignment, blocks=blocks, rounds=rounds)


def replace(size: int, blocks: int, rounds: int, other: int = 0, threads: int = 1) -> Case:
    """Of `blocks` blocks in each thread a drawn one is freed and another of its size allocated, `rounds` times in all
    threads together. Their sizes: `size`, or drawn from there to `other`."""
    sizes = f"{short(size)}-{short(other)}" if other else short(size)
    title = f"{size_text(size)} to {size_text(other)}" if other else size_text(size)
    return _shape("replace", f"{sizes}-l{blocks}-n{rounds}",
                  f"one of {blocks} blocks of {title} freed at random, as much allocated, {count(threads)}",
                  size=size, other=other or size, blocks=blocks, rounds=rounds // threads, threads=threads)


def firsts(size: int, step: int, blocks: int, rounds: int) -> Case:
    return _shape("firsts", f"{short(size)}-{step}-l{blocks}-n{rounds}",
                  f"one block of each of {blocks} sizes, {size_text(size)} to {size_text(size + (blocks - 1) * step)}, "
                  "all freed and allocated again", size=size, other=step, blocks=blocks, rounds=rounds)


def graph(size: int, blocks: int, walks: int, rounds: int) -> Case:
    return _shape("graph", f"{short(size)}-l{blocks}-w{walks}-n{rounds}",
                  f"{blocks} nodes of {size_text(size)}, half of them made anew, walked {walks} times",
                  size=size, other=walks, blocks=blocks, rounds=rounds)


def asked(size: int, other: int, blocks: int, rounds: int) -> Case:
    return _shape("asked", f"{short(size)}-{short(other)}-n{rounds}",
                  f"malloc_usable_size of {blocks} blocks of {size_text(size)} to {size_text(other)} in turn",
                  size=size, other=other, blocks=blocks, rounds=rounds)


def once(size: int, blocks: int) -> Case:
    return _shape("once", f"{short(size)}-l{blocks}",
                  f"{blocks} blocks of {size_text(size)} made, written and freed once", size=size, blocks=blocks)


def crowd(threads: int, ms: int, metric: str = "time") -> Case:
    """One run gives the time and what is held; a case is judged by one of them: "time", "held_mib", "trimmed_mib"."""
    suffix, what = {"time": ("", ""), "held_mib": ("-held", f": memory {ms / 1000:g} s later"),
                    "trimmed_mib": ("-trim", ": memory after malloc_trim")}[metric]
    return _shape("crowd", f"n{ms}{suffix}",
                  f"{threads} threads at once take and free a block of every size, and end{what}", metric=metric,
                  threads=threads, rounds=ms)


def handed(threads: int, size: int, blocks: int, ms: int) -> Case:
    return _shape("handed", f"{short(size)}-l{blocks}-n{ms}",
                  f"{count(threads)} sleep, each after {blocks} blocks of {size_text(size)} that the next one frees: "
                  f"memory {ms / 1000:g} s later", metric="held_mib", threads=threads, size=size, blocks=blocks,
                  rounds=ms)


def halves(size: int, blocks: int, rounds: int, metric: str = "time") -> Case:
    """One run gives time, peak and what is held; a case is judged by the first two, or by the last ("held_mib")."""
    held = metric == "held_mib"
    return _shape("halves", f"{short(size)}-l{blocks}-n{rounds}" + ("-held" if held else ""),
                  f"{blocks} buffers growing in turn by half to {size_text(size)}, then freed" + ": memory" * held,
                  metric=metric, size=size, blocks=blocks, rounds=rounds)


def suite() -> list[Case]:
    return suites(full=[
        comb(16, 4 * KIB), comb(16, 64 * KIB),
        edges(MIB, MIB + 1, blocks=20, rounds=2000),
        edges(40_000, 66_000, blocks=100, rounds=6000),
        appends(2000, 1, blocks=2000, rounds=6),
        shuffled(200, blocks=200_000, rounds=8), shuffled(32, blocks=500_000, rounds=5),
        makers(32, blocks=1000, rounds=40), makers(100, blocks=300, rounds=40),
        sleepers(64, 60 * KIB, rounds=3),
        ring(8, blocks=1000, rounds=600), ring(16, blocks=200, rounds=1500),
        flip(3000, 5000, mib=32, rounds=400), flip(40_000, 100_000, mib=32, rounds=400),
        untouched(2_000_000, blocks=50, rounds=300_000),
        untouched(40_000_000, blocks=1, rounds=30_000),
        trickle(256, mib=128, ms=1500),
        aligned(100, 4 * KIB, blocks=1000, rounds=3_000_000),
        aligned(100, 64 * KIB, blocks=100, rounds=4_000_000),
        aligned(64 * KIB, 64 * KIB, blocks=20, rounds=60_000),
        edges(100, 104, blocks=100, rounds=100_000),
        edges(1000, 1010, blocks=100, rounds=100_000),
        edges(70_000, 70_100, blocks=100, rounds=50_000),
        replace(4 * KIB, blocks=200, rounds=8_000_000),
        replace(4 * KIB, blocks=1000, rounds=8_000_000),
        replace(16 * KIB, blocks=300, rounds=8_000_000),
        replace(32 * KIB, blocks=40, rounds=8_000_000),
        replace(32 * KIB, blocks=2000, rounds=6_000_000),
        replace(16, blocks=10_000, rounds=5_000_000, other=32 * KIB),
        replace(KIB, blocks=2000, rounds=12_000_000),
        replace(8 * KIB, blocks=500, rounds=12_000_000, threads=2),
        replace(16, blocks=1000, rounds=12_000_000, other=32 * KIB, threads=4),
        firsts(16, 16, blocks=32, rounds=1_500_000), firsts(16, 64, blocks=64, rounds=600_000),
        graph(32, blocks=150_000, walks=1, rounds=100), graph(96, blocks=40_000, walks=8, rounds=60),
        asked(16, 2000, blocks=1000, rounds=40_000),
        asked(4 * KIB, 40_000, blocks=300, rounds=150_000),
        once(200, blocks=2_000_000), once(2000, blocks=150_000),
        crowd(400, ms=1000), crowd(400, ms=1000, metric="held_mib"),
        crowd(400, ms=1000, metric="trimmed_mib"),
        handed(32, 8 * KIB, blocks=512, ms=500), handed(100, 100, blocks=10_000, ms=500),
        halves(64 * MIB, blocks=2, rounds=3), halves(64 * MIB, blocks=2, rounds=3, metric="held_mib"),
        halves(MIB, blocks=100, rounds=4),
    ], quick=[
        comb(2, 4 * KIB),
        edges(MIB, MIB + 1, blocks=5, rounds=200),
        ring(4, blocks=100, rounds=100),
        replace(8 * KIB, blocks=100, rounds=200_000, threads=2),
        firsts(16, 16, blocks=32, rounds=20_000),
        graph(32, blocks=10_000, walks=1, rounds=10),
    ])
