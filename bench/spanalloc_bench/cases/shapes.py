"""What hurts allocators: the shapes in bench/workloads/attack_shapes.cpp, each found by trying to ruin one.

A shape that shows in the time is judged by it, and its memory counts, too; one that shows in what is held at one moment
is judged by `held_mib`. A variant is there where another size, or other numbers of threads and blocks, hurt others.
"""

from __future__ import annotations

from ..model import Case, Family
from .beyond import KIB, LITTLE_FOR_BUMP, MIB, SOURCE, _argv, _bytes, _short, _threads


def _shape(shape: str, variant: str, title: str, metric: str = "time", threads: int = 1, full: bool = False,
            quick: bool = False, **options) -> Case:
    if threads > 1:
        options["threads"] = threads
    return Case(
        id=f"shape-{shape}-{variant}.t{threads}", group="shapes", title=title, source=SOURCE, family=Family.WORKLOAD,
        threads=threads, argv=_argv("attack_shapes", shape=shape, **options), metric=metric,
        environment=LITTLE_FOR_BUMP, full=full, quick=quick,
    )


def comb(mib: int, stretch: int, **where) -> Case:
    """Size after size fills `mib` MiB, and keeps a block in each `stretch` bytes."""
    return _shape("comb", f"{mib}m-{_short(stretch)}", f"{mib} MiB filled with size after size, one block kept in "
                   f"{_bytes(stretch)}: memory", metric="held_mib", mib=mib, other=stretch, **where)


def edges(size: int, other: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("edges", f"{_short(size)}-{_short(other)}-n{rounds}",
                   f"realloc from {_bytes(size)} to {_bytes(other)} and back, {blocks} blocks in turn",
                   size=size, other=other, blocks=blocks, rounds=rounds, **where)


def appends(size: int, step: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("appends", f"{_short(size)}-{step}-n{rounds}",
                   f"{blocks} strings growing in turn by {step} B to {_bytes(size)}",
                   size=size, other=step, blocks=blocks, rounds=rounds, **where)


def shuffled(size: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("shuffled", f"{_short(size)}-l{blocks}-n{rounds}",
                   f"{blocks} blocks of {_bytes(size)} freed in a drawn order and allocated again",
                   size=size, blocks=blocks, rounds=rounds, **where)


def makers(threads: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("makers", f"l{blocks}-n{rounds}", f"{_threads(threads)} make {blocks} blocks each, another frees "
                   "all: memory", metric="held_mib", threads=threads, blocks=blocks, rounds=rounds, **where)


def sleepers(threads: int, each: int, rounds: int, **where) -> Case:
    return _shape("sleepers", f"{_short(each)}-n{rounds}",
                   f"{_threads(threads)} sleep after {rounds} times {_bytes(each)} of every size, none kept: memory 1 s "
                   "later", metric="held_mib", threads=threads, other=each, rounds=rounds, **where)


def ring(threads: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("ring", f"l{blocks}-n{rounds}", f"{_threads(threads)} in a ring free each other's {blocks} blocks",
                   threads=threads, blocks=blocks, rounds=rounds, **where)


def flip(size: int, other: int, mib: int, rounds: int, **where) -> Case:
    return _shape("flip", f"{_short(size)}-{_short(other)}-n{rounds}",
                   f"{mib} MiB in blocks of {_bytes(size)}, then of {_bytes(other)}, in turn",
                   size=size, other=other, mib=mib, rounds=rounds, **where)


def untouched(size: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("untouched", f"{_short(size)}-l{blocks}-n{rounds}",
                   f"{_bytes(size)} of which a word is written, {blocks} at a time",
                   size=size, blocks=blocks, rounds=rounds, **where)


def trickle(size: int, mib: int, ms: int, **where) -> Case:
    return _shape("trickle", f"{_short(size)}-{mib}m-n{ms}",
                   f"{mib} MiB in blocks of {_bytes(size)} come and go, then little happens for {ms / 1000:g} s: mean "
                   "memory", metric="held_mib", size=size, mib=mib, rounds=ms, **where)


def aligned(size: int, alignment: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("aligned", f"{_short(size)}-{_short(alignment)}-n{rounds}",
                   f"{_bytes(size)} aligned to {_bytes(alignment)}, {blocks} at a time",
                   size=size, other=alignment, blocks=blocks, rounds=rounds, **where)


def replace(size: int, blocks: int, rounds: int, other: int = 0, **where) -> Case:
    """Of `blocks` blocks in each thread a drawn one is freed and another of its size allocated, `rounds` times in all
    threads together. Their sizes: `size`, or drawn from there to `other`."""
    threads = where.get("threads", 1)
    sizes = f"{_short(size)}-{_short(other)}" if other else _short(size)
    title = f"{_bytes(size)} to {_bytes(other)}" if other else _bytes(size)
    return _shape("replace", f"{sizes}-l{blocks}-n{rounds}",
                  f"one of {blocks} blocks of {title} freed at random, as much allocated, {_threads(threads)}",
                  size=size, other=other or size, blocks=blocks, rounds=rounds // threads, **where)


def firsts(size: int, step: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("firsts", f"{_short(size)}-{step}-l{blocks}-n{rounds}",
                  f"one block of each of {blocks} sizes, {_bytes(size)} to {_bytes(size + (blocks - 1) * step)}, all freed "
                  "and allocated again", size=size, other=step, blocks=blocks, rounds=rounds, **where)


def graph(size: int, blocks: int, walks: int, rounds: int, **where) -> Case:
    return _shape("graph", f"{_short(size)}-l{blocks}-w{walks}-n{rounds}",
                  f"{blocks} nodes of {_bytes(size)}, half of them made anew, walked {walks} times",
                  size=size, other=walks, blocks=blocks, rounds=rounds, **where)


def asked(size: int, other: int, blocks: int, rounds: int, **where) -> Case:
    return _shape("asked", f"{_short(size)}-{_short(other)}-n{rounds}",
                  f"malloc_usable_size of {blocks} blocks of {_bytes(size)} to {_bytes(other)} in turn",
                  size=size, other=other, blocks=blocks, rounds=rounds, **where)


def once(size: int, blocks: int, **where) -> Case:
    return _shape("once", f"{_short(size)}-l{blocks}", f"{blocks} blocks of {_bytes(size)} made, written and freed once",
                  size=size, blocks=blocks, **where)


def crowd(threads: int, ms: int, metric: str = "time", **where) -> Case:
    """One run gives the time and what is held; a case is judged by one of them: "time", "held_mib", "trimmed_mib"."""
    suffix, what = {"time": ("", ""), "held_mib": ("-held", f": memory {ms / 1000:g} s later"),
                    "trimmed_mib": ("-trim", ": memory after malloc_trim")}[metric]
    return _shape("crowd", f"n{ms}{suffix}", f"{threads} threads at once take and free a block of every size, and end{what}",
                  metric=metric, threads=threads, rounds=ms, **where)


def handed(threads: int, size: int, blocks: int, ms: int, **where) -> Case:
    return _shape("handed", f"{_short(size)}-l{blocks}-n{ms}",
                  f"{_threads(threads)} sleep, each after {blocks} blocks of {_bytes(size)} that the next one frees: memory "
                  f"{ms / 1000:g} s later", metric="held_mib", threads=threads, size=size, blocks=blocks, rounds=ms, **where)


def halves(size: int, blocks: int, rounds: int, metric: str = "time", **where) -> Case:
    """One run gives time, peak and what is held; a case is judged by the first two, or by the last ("held_mib")."""
    held = metric == "held_mib"
    return _shape("halves", f"{_short(size)}-l{blocks}-n{rounds}" + ("-held" if held else ""),
                  f"{blocks} buffers growing in turn by half to {_bytes(size)}, then freed" + (": memory" if held else ""),
                  metric=metric, size=size, blocks=blocks, rounds=rounds, **where)


def suite() -> list[Case]:
    full = [
        comb(16, 4 * KIB, full=True), comb(16, 64 * KIB, full=True),
        edges(MIB, MIB + 1, blocks=20, rounds=2000, full=True),
        edges(40_000, 66_000, blocks=100, rounds=6000, full=True),
        appends(2000, 1, blocks=2000, rounds=6, full=True),
        shuffled(200, blocks=200_000, rounds=8, full=True), shuffled(32, blocks=500_000, rounds=5, full=True),
        makers(32, blocks=1000, rounds=40, full=True), makers(100, blocks=300, rounds=40, full=True),
        sleepers(64, 60 * KIB, rounds=3, full=True),
        ring(8, blocks=1000, rounds=600, full=True), ring(16, blocks=200, rounds=1500, full=True),
        flip(3000, 5000, mib=32, rounds=400, full=True), flip(40_000, 100_000, mib=32, rounds=400, full=True),
        untouched(2_000_000, blocks=50, rounds=300_000, full=True),
        untouched(40_000_000, blocks=1, rounds=30_000, full=True),
        trickle(256, mib=128, ms=1500, full=True),
        aligned(100, 4 * KIB, blocks=1000, rounds=3_000_000, full=True),
        aligned(100, 64 * KIB, blocks=100, rounds=4_000_000, full=True),
        aligned(64 * KIB, 64 * KIB, blocks=20, rounds=60_000, full=True),
        edges(100, 104, blocks=100, rounds=100_000, full=True),
        edges(1000, 1010, blocks=100, rounds=100_000, full=True),
        edges(70_000, 70_100, blocks=100, rounds=50_000, full=True),
        replace(4 * KIB, blocks=200, rounds=8_000_000, full=True),
        replace(4 * KIB, blocks=1000, rounds=8_000_000, full=True),
        replace(16 * KIB, blocks=300, rounds=8_000_000, full=True),
        replace(32 * KIB, blocks=40, rounds=8_000_000, full=True),
        replace(32 * KIB, blocks=2000, rounds=6_000_000, full=True),
        replace(16, blocks=10_000, rounds=5_000_000, other=32 * KIB, full=True),
        replace(KIB, blocks=2000, rounds=12_000_000, full=True),
        replace(8 * KIB, blocks=500, rounds=12_000_000, threads=2, full=True),
        replace(16, blocks=1000, rounds=12_000_000, other=32 * KIB, threads=4, full=True),
        firsts(16, 16, blocks=32, rounds=1_500_000, full=True), firsts(16, 64, blocks=64, rounds=600_000, full=True),
        graph(32, blocks=150_000, walks=1, rounds=100, full=True), graph(96, blocks=40_000, walks=8, rounds=60, full=True),
        asked(16, 2000, blocks=1000, rounds=40_000, full=True),
        asked(4 * KIB, 40_000, blocks=300, rounds=150_000, full=True),
        once(200, blocks=2_000_000, full=True), once(2000, blocks=150_000, full=True),
        crowd(400, ms=1000, full=True), crowd(400, ms=1000, metric="held_mib", full=True),
        crowd(400, ms=1000, metric="trimmed_mib", full=True),
        handed(32, 8 * KIB, blocks=512, ms=500, full=True), handed(100, 100, blocks=10_000, ms=500, full=True),
        halves(64 * MIB, blocks=2, rounds=3, full=True), halves(64 * MIB, blocks=2, rounds=3, metric="held_mib", full=True),
        halves(MIB, blocks=100, rounds=4, full=True),
    ]
    quick = [
        comb(2, 4 * KIB, quick=True),
        edges(MIB, MIB + 1, blocks=5, rounds=200, quick=True),
        ring(4, blocks=100, rounds=100, quick=True),
        replace(8 * KIB, blocks=100, rounds=200_000, threads=2, quick=True),
        firsts(16, 16, blocks=32, rounds=20_000, quick=True),
        graph(32, blocks=10_000, walks=1, rounds=10, quick=True),
    ]
    return full + quick
