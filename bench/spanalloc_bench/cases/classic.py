"""The workloads that the allocator literature has shared since Hoard: threadtest, shbench, larson, cache-scratch and
cache-thrash, as scalloc 7.2, 7.4 and 7.7, SuperMalloc 9 and the a2alloc report run them.

The papers' runs take minutes and machines of 8 to 80 hardware threads. Each builder says by which factor ours are
shorter; sizes, and the numbers of objects that are live at once, are the papers'. Every record counts its operations, so
the times per operation of different thread counts give the speed-up; the total work is the same at every thread count
(divided by the threads) but in shbench, where the paper fixes a thread's.
"""

from __future__ import annotations

from ..model import Case, Family


def _argv(program: str, threads: int, **options) -> tuple[str, ...]:
    argv = [f"{{bin}}/{program}", "--threads", str(threads)]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", str(value)]
    return tuple(argv)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def threadtest(size: int = 64, threads: int = 2, work: int = 0, rounds: int | None = None, full: bool = False,
               quick: bool = False) -> Case:
    """scalloc 7.2.1 (64 bytes), 7.7.2 (256 bytes), 7.7.3 (64 bytes); a2alloc 3. The paper: 10^4 rounds a thread of
    allocating, then freeing, 10^5 / threads objects. Here: the same objects, and at 64 bytes 200 rounds (1/50), at other
    sizes as many as allocate twice the bytes (256: 100 rounds, 1/100)."""
    usual = 200 if size == 64 else max(1, 25_600 // size)
    rounds = rounds or usual
    name = f"threadtest-{size}" + (f"-w{work}" if work else "") + (f"-r{rounds}" if rounds != usual else "")
    sections = {64: "scalloc 7.2.1, 7.7.3; a2alloc 3", 256: "scalloc 7.7.2"}
    return Case(
        id=f"{name}.t{threads}", group=f"threadtest-{size}",
        title=f"threadtest, {size} bytes, {_count(threads, 'thread')}" + (f", work {work}" if work else ""),
        source=sections.get(size, "scalloc 7.2.1, other sizes"), family=Family.WORKLOAD, threads=threads,
        argv=_argv("threadtest", threads, size=size, rounds=rounds, objects=100_000, work=work),
        parameters=(("size", str(size)), ("work", str(work))), full=full, quick=quick,
    )


def shbench(threads: int = 2, rounds: int = 1_000_000, full: bool = False, quick: bool = False) -> Case:
    """scalloc 7.2.2: objects of 1 to 8 bytes, 10^6 rounds a thread: the paper's own number."""
    return Case(
        id="shbench" + (f"-r{rounds}" if rounds != 1_000_000 else "") + f".t{threads}", group="shbench",
        title=f"shbench-style rounds, 1 to 8 bytes, {_count(threads, 'thread')}",
        source="scalloc 7.2.2", family=Family.WORKLOAD, threads=threads,
        argv=_argv("shbench", threads, rounds=rounds), full=full, quick=quick,
    )


def larson(threads: int = 2, low: int = 7, high: int = 8, latency: bool = False, rounds: int | None = None,
           full: bool = False, quick: bool = False) -> Case:
    """Sizes from `low` to below `high`: 7, 8 is scalloc 7.2.3, 7, 500 SuperMalloc's Figure 11; a2alloc's report gives
    no parameters. The papers: 10 seconds, 1000 objects a thread, 10^4 rounds a slot before a thread hands over. Here:
    fixed work, so that times compare: 10 generations of threads, 2000 rounds a slot in each, divided by the threads.

    `latency`: every call is timed (the time per operation then holds two reads of the clock a call; 500 rounds instead
    of 2000), and the case is judged by malloc's 99.99th percentile; mean and deviation, the columns of Figure 11, are
    metrics of the record."""
    usual = 500 if latency else 2000
    rounds = rounds or usual
    name = f"larson-{low}-{high}" + ("-latency" if latency else "") + (f"-r{rounds}" if rounds != usual else "")
    section = {(7, 8): "scalloc 7.2.3; a2alloc 3", (7, 500): "SuperMalloc 9, Figure 11"}.get((low, high), "larson")
    return Case(
        id=f"{name}.t{threads}", group="larson-latency" if latency else f"larson-{low}-{high}",
        title=f"larson, {low} to {high - 1} bytes, {_count(threads, 'thread')}" + (", every call timed" * latency),
        source=section, family=Family.WORKLOAD, threads=threads,
        argv=_argv("larson", threads, low=low, high=high, objects=1000, rounds=max(1, rounds // threads),
                   generations=10, latency=int(latency)),
        parameters=(("low", str(low)), ("high", str(high))),
        metric="malloc_p9999_ns" if latency else "time", full=full, quick=quick,
    )


def cache_scratch(threads: int = 2, repetitions: int = 20_000, full: bool = False, quick: bool = False) -> Case:
    """Passive false sharing: Hoard (Berger et al. 2000), scalloc 7.4, a2alloc 3. The yes or no is the record's metric
    `false_sharing` (`false_sharing_warm`: of threads that have allocated before). Hoard's usual run: 1000 times one object of 8 bytes a thread, written 10^6 / threads times. Here
    four objects at once, written 20,000 / threads times (1/12 of the writes: what shares a line takes many times longer,
    but not minutes); bench/workloads/support/false_sharing.hpp says why four."""
    return _cache("cache-scratch", "passive", threads, repetitions, full, quick)


def cache_thrash(threads: int = 2, repetitions: int = 20_000, full: bool = False, quick: bool = False) -> Case:
    """Active false sharing: as `cache_scratch`, but no thread is handed an object of another."""
    return _cache("cache-thrash", "active", threads, repetitions, full, quick)


def _cache(name: str, kind: str, threads: int, repetitions: int, full: bool, quick: bool) -> Case:
    program = name.replace("-", "_")
    return Case(
        id=f"{name}" + (f"-n{repetitions}" if repetitions != 20_000 else "") + f".t{threads}", group=name,
        title=f"{name} ({kind} false sharing), 8 bytes, {_count(threads, 'thread')}",
        source="scalloc 7.4; a2alloc 3", family=Family.WORKLOAD, threads=threads,
        argv=_argv(program, threads, size=8, held=4, iterations=1000, repetitions=repetitions), full=full, quick=quick,
    )


def suite() -> list[Case]:
    """Longer than the builders' own lengths, which the papers' figures take: about 0.4 s under most allocators.
    threadtest 400 rounds (1/25 of the paper's) and at 256 bytes 200 (1/50), shbench three times the paper's rounds, larson
    4000 rounds a slot, the caches 60,000 repetitions (1/4 of Hoard's writes)."""
    cases = [threadtest(64, t, rounds=400, full=True) for t in (1, 2, 4)]
    cases += [threadtest(256, t, rounds=200, full=True) for t in (2, 4)]
    cases += [shbench(t, rounds=3_000_000, full=True) for t in (1, 2, 4)]
    cases += [larson(t, rounds=4000, full=True) for t in (1, 2, 4)]
    cases += [larson(2, 7, 500, latency=True, full=True)]
    cases += [cache_scratch(2, repetitions=60_000, full=True), cache_thrash(2, repetitions=60_000, full=True)]
    cases += [
        threadtest(64, 2, rounds=20, quick=True), shbench(2, rounds=50_000, quick=True),
        larson(2, rounds=50, quick=True), cache_scratch(2, repetitions=2000, quick=True),
    ]
    return cases
