"""The experiments that scalloc builds with ACDC (Aigner & Kirsch, ISMM 2013): producer-consumer (7.3), varying object
sizes (7.5), spatial locality (7.6), virtual spans (7.7.1: the workload of 7.5 under the ablations).

The paper's figures show a part of the time: what the mean thread spent in malloc and free (metric `allocator_s`), or in
its accesses (`access_s`); the rest, most of it, is the walk over the objects and the waiting for one another. The suite
judges locality by the accesses, and the others by `allocator_build_s`: malloc, free and `build_s`, the first writes, where
an allocator pays that returns memory eagerly and hands out what the kernel has yet to back. `mean_rss_kib` is the
paper's average memory.

`authors_*` have the parameters of the authors' scripts (cksystemsgroup/scalloc-artifact, ACDC-scripts), and the
sets of their ACDC: the papers' figures take these. The others are the suite's.
"""

from __future__ import annotations

from ..model import Case
from .builders import command, count, suites, unusual, workload

# Bytes that all threads of an object-size case allocate in all, and the most that one allocates in a step.
_TOTAL_KIB = 1536 << 10
_STEP_KIB = 8 << 10
_GIB = 1 << 20  # in KiB

# Metrics in seconds that the cases are judged by.
ALLOCATOR_TIME, ACCESS_TIME = "allocator_build_s", "access_s"


def producer_consumer(threads: int = 2, steps: int = 300) -> Case:
    """scalloc 7.3: every object of 16 to 512 bytes is shared with all threads, the last to access it frees it. The
    paper gives neither bytes a step nor steps; here 256 KiB a thread and step, lifetimes of 1 to 4 steps, 300 steps."""
    return workload(
        "producer-consumer" + unusual("s", steps, 300), "producer-consumer",
        f"ACDC producer-consumer, 16 to 512 bytes, {count(threads)}", "scalloc 7.3",
        command("acdc", threads=threads, steps=steps, step_kib=256, low=16, high=513, min_lifetime=1, max_lifetime=4,
                shared=100, lists=50),
        threads, metric=ALLOCATOR_TIME,
    )


def object_size(exponent: int, threads: int = 2, total_kib: int | None = None) -> Case:
    """scalloc 7.5 and 7.7.1: local objects of [2^x, 2^(x+2)) bytes; a step allocates 2^x KB, accesses the objects and
    frees those of the step before. The paper: 40 threads, 30 steps. Here: at most 8 MiB a step and thread (so 1/2 of
    the paper's for x = 14, 1/8 for x = 16, 1/128 for x = 20), and as many steps as make 1.5 GiB over all threads
    (512 MiB beyond x = 18, where a byte takes longer), at least 30 and at most 15,000 / threads: with small objects, 30
    steps last less than a millisecond. `total_kib`: another total, with as many times the most steps."""
    if not 4 <= exponent <= 20:
        raise ValueError(f"exponent {exponent}: scalloc 7.5 has 4 to 20")
    usual = _TOTAL_KIB if exponent <= 18 else _TOTAL_KIB // 3
    total_kib = total_kib or usual
    step_kib = min(1 << exponent, _STEP_KIB)
    steps = max(30, min(total_kib // threads // step_kib, 15_000 * total_kib // usual // threads))
    name = f"object-size-{exponent}" + (f"-{_short(total_kib)}" if total_kib != usual else "")
    low, high = 1 << exponent, 1 << (exponent + 2)
    return workload(
        name, "object-size", f"ACDC object sizes, {_bytes(low)} to {_bytes(high)}, {count(threads)}",
        "scalloc 7.5, 7.7.1",
        command("acdc", threads=threads, steps=steps, step_kib=step_kib, low=low, high=high, min_lifetime=1,
                max_lifetime=1, shared=0, lists=100),
        threads, parameters=(("exponent", str(exponent)),), metric=ALLOCATOR_TIME,
    )


def locality(percent_lists: int, threads: int = 1, steps: int = 30) -> Case:
    """scalloc 7.6: objects of 16 to 32 bytes, `percent_lists` % of the sets lists (accessed in allocation order), the
    others trees. The paper names neither threads, steps nor the live set, only that it fits into the last cache level;
    here 1 MiB a step, lifetimes of 1 to 5 steps (about 4 MiB live), 30 steps, two passes over all that lives a step."""
    return workload(
        f"locality-{percent_lists}" + unusual("s", steps, 30), "locality",
        f"ACDC locality, {percent_lists} % lists, {count(threads)}", "scalloc 7.6",
        command("acdc", threads=threads, steps=steps, step_kib=1024, low=16, high=33, min_lifetime=1, max_lifetime=5,
                shared=0, lists=percent_lists, sets=10, passes=2),
        threads, parameters=(("lists", str(percent_lists)),), metric=ACCESS_TIME,
    )


def _authors(name: str, group: str, title: str, source: str, threads: int, *, metric: str, parameters=(), **options) -> Case:
    return workload(f"acdc-{name}", group, title, source, command("acdc", threads=threads, sets_by="size", **options),
                    threads, parameters=parameters, metric=metric)


def authors_producer_consumer(threads: int = 2) -> Case:
    """scalloc 7.3: -s 4 -S 9 -d 30 -l 1 -L 5 -t 1000000 -O -T 100 -R 100 -A: 30 steps of 1,000,000 bytes a thread, which
    live for 1 to 5 steps, every object shared with all threads, all that lives accessed after each set."""
    return _authors("producer-consumer", "producer-consumer", f"ACDC producer-consumer, 16 to 511 bytes, {count(threads)}",
                    "scalloc 7.3", threads, metric=ALLOCATOR_TIME, steps=30, step_bytes=1_000_000, low=16, high=512,
                    min_lifetime=0, max_lifetime=4, shared=100, lists=100, write=10, access_every=1)


def authors_object_size(exponent: int, threads: int = 2) -> Case:
    """scalloc 7.5 and 7.7.1: -d 5 -l 1 -L 1 -t 2^x KB (the text: 30 steps), 40 threads. Here: the steps that allocate 1 GiB
    a thread, at least 5, at most 4096; with small objects, 5 last less than a millisecond."""
    if not 4 <= exponent <= 20:
        raise ValueError(f"exponent {exponent}: scalloc 7.5 has 4 to 20")
    low, high, step_kib = 1 << exponent, 1 << (exponent + 2), 1 << exponent
    return _authors(f"object-size-{exponent}", "object-size",
                    f"ACDC object sizes, {_bytes(low)} to {_bytes(high)}, {count(threads)}", "scalloc 7.5, 7.7.1", threads,
                    metric=ALLOCATOR_TIME, parameters=(("exponent", str(exponent)),),
                    steps=max(5, min(4096, _GIB // step_kib)), step_kib=step_kib, low=low, high=high, min_lifetime=0,
                    max_lifetime=0, shared=0, lists=100, write=10)


def authors_locality(percent_lists: int, compact: bool = False) -> Case:
    """scalloc 7.6: -t 1000000 -d 30 -l 1 -L 10 -s 4 -S 5 -w 0 -A: 30 steps of 1,000,000 bytes, which live for 1 to 10
    steps, read only, in one thread. All that lives is accessed after each set; here after each 20th."""
    return _authors(f"locality-{percent_lists}" + "-compact" * compact, "locality",
                    f"ACDC locality, {percent_lists} % lists" + ", compact" * compact, "scalloc 7.6", 1, metric=ACCESS_TIME,
                    parameters=(("lists", str(percent_lists)),), steps=30, step_bytes=1_000_000, low=16, high=32,
                    min_lifetime=0, max_lifetime=9, shared=0, lists=percent_lists, write=0, access_every=20,
                    compact=int(compact))


def _bytes(n: int) -> str:
    for unit, size in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n // size} {unit}"
    return f"{n} bytes"


def _short(kib: int) -> str:
    return f"g{kib // _GIB}" if kib % _GIB == 0 else f"k{kib}"


def suite() -> list[Case]:
    """Longer than the builders' own lengths, which the papers' figures take: about 0.4 s under most allocators, where
    `bump` can hold what they allocate. Producer-consumer 1000 steps, locality 75, object sizes 5 GiB in all (3 GiB beyond
    x = 18)."""
    return suites(
        full=[
            *(producer_consumer(t, steps=1000) for t in (2, 4)),
            *(object_size(x, 2, total_kib=(5 if x <= 18 else 3) * _GIB) for x in (4, 8, 12, 16, 20)),
            *(locality(p, steps=75) for p in (0, 50, 100)),
        ],
        quick=[producer_consumer(2, steps=40), object_size(10, 2, total_kib=32 << 10), locality(50, steps=10)],
    )
