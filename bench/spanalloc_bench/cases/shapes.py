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
    ]
    quick = [
        comb(2, 4 * KIB, quick=True),
        edges(MIB, MIB + 1, blocks=5, rounds=200, quick=True),
        ring(4, blocks=100, rounds=100, quick=True),
    ]
    return full + quick
