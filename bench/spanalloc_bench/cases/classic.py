"""The workloads that the allocator literature has shared since Hoard: threadtest, shbench, larson, cache-scratch and
cache-thrash, as scalloc 7.2, 7.4 and 7.7, SuperMalloc 9 and the a2alloc report run them.

The papers' runs take minutes and machines of 8 to 80 hardware threads. Each builder says by which factor ours are
shorter; sizes, and the numbers of objects that are live at once, are the papers'. Every record counts its operations, so
the times per operation of different thread counts give the speed-up; the total work is the same at every thread count
(divided by the threads) but in shbench, where the paper fixes a thread's.
"""

from __future__ import annotations

from ..model import Case
from .builders import command, count, suites, unusual, workload


def threadtest(size: int = 64, threads: int = 2, work: int = 0, rounds: int | None = None) -> Case:
    """scalloc 7.2.1 (64 bytes), 7.7.2 (256 bytes), 7.7.3 (64 bytes); a2alloc 3. The paper: 10^4 rounds a thread of
    allocating, then freeing, 10^5 / threads objects. Here: the same objects, and at 64 bytes 200 rounds (1/50), at other
    sizes as many as allocate twice the bytes (256: 100 rounds, 1/100)."""
    usual = 200 if size == 64 else max(1, 25_600 // size)
    rounds = rounds or usual
    sections = {64: "scalloc 7.2.1, 7.7.3; a2alloc 3", 256: "scalloc 7.7.2"}
    return workload(
        f"threadtest-{size}{unusual('w', work, 0)}{unusual('r', rounds, usual)}", f"threadtest-{size}",
        f"threadtest, {size} bytes, {count(threads)}" + (f", work {work}" if work else ""),
        sections.get(size, "scalloc 7.2.1, other sizes"),
        command("threadtest", threads=threads, size=size, rounds=rounds, objects=100_000, work=work), threads,
        parameters=(("size", str(size)), ("work", str(work))),
    )


def shbench(threads: int = 2, rounds: int = 1_000_000) -> Case:
    """scalloc 7.2.2: objects of 1 to 8 bytes, 10^6 rounds a thread: the paper's own number."""
    return workload("shbench" + unusual("r", rounds, 1_000_000), "shbench",
                    f"shbench-style rounds, 1 to 8 bytes, {count(threads)}", "scalloc 7.2.2",
                    command("shbench", threads=threads, rounds=rounds), threads)


def larson(threads: int = 2, low: int = 7, high: int = 8, latency: bool = False, rounds: int | None = None) -> Case:
    """Sizes from `low` to below `high`: 7, 8 is scalloc 7.2.3, 7, 500 SuperMalloc's Figure 11; a2alloc's report gives
    no parameters. The papers: 10 seconds, 1000 objects a thread, 10^4 rounds a slot before a thread hands over. Here:
    fixed work, so that times compare: 10 generations of threads, 2000 rounds a slot in each, divided by the threads.

    `latency`: every call is timed (the time per operation then holds two reads of the clock a call; 500 rounds instead
    of 2000), and the case is judged by malloc's 99.99th percentile; mean and deviation, the columns of Figure 11, are
    metrics of the record."""
    usual = 500 if latency else 2000
    rounds = rounds or usual
    section = {(7, 8): "scalloc 7.2.3; a2alloc 3", (7, 500): "SuperMalloc 9, Figure 11"}.get((low, high), "larson")
    return workload(
        f"larson-{low}-{high}" + "-latency" * latency + unusual("r", rounds, usual),
        "larson-latency" if latency else f"larson-{low}-{high}",
        f"larson, {low} to {high - 1} bytes, {count(threads)}" + ", every call timed" * latency, section,
        command("larson", threads=threads, low=low, high=high, objects=1000, rounds=max(1, rounds // threads),
                generations=10, latency=int(latency)),
        threads, parameters=(("low", str(low)), ("high", str(high))), metric="malloc_p9999_ns" if latency else "time",
    )


def cache_scratch(threads: int = 2, repetitions: int = 20_000) -> Case:
    """Passive false sharing: Hoard (Berger et al. 2000), scalloc 7.4, a2alloc 3. The yes or no is the record's metric
    `false_sharing` (`false_sharing_warm`: of threads that have allocated before). Hoard's usual run: 1000 times one object of 8 bytes a thread, written 10^6 / threads times. Here
    four objects at once, written 20,000 / threads times (1/12 of the writes: what shares a line takes many times longer,
    but not minutes); bench/workloads/support/false_sharing.hpp says why four."""
    return _cache("cache-scratch", "passive", threads, repetitions)


def cache_thrash(threads: int = 2, repetitions: int = 20_000) -> Case:
    """Active false sharing: as `cache_scratch`, but no thread is handed an object of another."""
    return _cache("cache-thrash", "active", threads, repetitions)


def _cache(name: str, kind: str, threads: int, repetitions: int) -> Case:
    return workload(
        name + unusual("n", repetitions, 20_000), name, f"{name} ({kind} false sharing), 8 bytes, {count(threads)}",
        "scalloc 7.4; a2alloc 3",
        command(name.replace("-", "_"), threads=threads, size=8, held=4, iterations=1000, repetitions=repetitions),
        threads,
    )


def suite() -> list[Case]:
    """Longer than the builders' own lengths, which the papers' figures take: about 0.4 s under most allocators.
    threadtest 400 rounds (1/25 of the paper's) and at 256 bytes 200 (1/50), shbench three times the paper's rounds, larson
    4000 rounds a slot, the caches 60,000 repetitions (1/4 of Hoard's writes)."""
    return suites(
        full=[
            *(threadtest(64, t, rounds=400) for t in (1, 2, 4)), *(threadtest(256, t, rounds=200) for t in (2, 4)),
            *(shbench(t, rounds=3_000_000) for t in (1, 2, 4)), *(larson(t, rounds=4000) for t in (1, 2, 4)),
            larson(2, 7, 500, latency=True), cache_scratch(2, repetitions=60_000), cache_thrash(2, repetitions=60_000),
        ],
        quick=[
            threadtest(64, 2, rounds=20), shbench(2, rounds=50_000), larson(2, rounds=50),
            cache_scratch(2, repetitions=2000),
        ],
    )
