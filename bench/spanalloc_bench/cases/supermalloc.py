"""The workloads of SuperMalloc's section 9 (and the table of its section 8) that are no real programs.

The paper runs them for seconds to minutes on 4 cores with 8 hardware threads, and on 16 cores. Ours are shorter, by the
factor that each builder names. The work of malloc-test and SuperServer is one total that the threads divide. Larson
with latencies, Figure 11, is `classic.larson(threads, 7, 500, latency=True)`.

`author_*` have the parameters of the author's programs (kuszmaul/SuperMalloc): the paper's figures take these. The others
are the suite's.
"""

from __future__ import annotations

import dataclasses

from ..model import Case, Family
from .builders import command, count, suites, unusual, workload

MALLOC_TEST_BATCHES = 3600


def malloc_test(producers: int = 1, batches: int = MALLOC_TEST_BATCHES) -> Case:
    """SuperMalloc 9, Figures 6 to 8: `producers` threads allocate, as many free. The paper: batches of 4096 for a fixed
    time. Here: the same batches, of 64-byte objects, 3600 of them that the producers divide (14.7 million objects)."""
    return Case(
        id=f"malloc-test{unusual('b', batches, MALLOC_TEST_BATCHES)}.p{producers}", group="malloc-test",
        title=f"malloc-test, {count(producers, 'producer')} and as many consumers", source="SuperMalloc 9, Figures 6-8",
        family=Family.WORKLOAD, threads=2 * producers,
        argv=command("malloc_test", producers=producers, batches=max(1, batches // producers)),
        parameters=(("producers", str(producers)),),
    )


def author_malloc_test(producers: int = 1) -> Case:
    """SuperMalloc 9, Figures 6 to 8, as new-malloc-test.c: objects of 1024 bytes, of which nothing is written, and at
    most 100 batches waiting, of which the last one comes first. Here 3600 batches that the producers divide (the paper: a
    fixed time)."""
    usual = malloc_test(producers)
    return dataclasses.replace(
        usual, id=usual.id.replace("malloc-test", "malloc-test-1k"),
        title=usual.title + ", 1 KiB",
        argv=(*usual.argv, "--low", "1024", "--high", "1024", "--bound", "100", "--order", "lifo", "--stamps", "off"))


def author_superserver(threads: int = 2) -> Case:
    """SuperMalloc 9, Figure 12, as server.cc: of an object that expires the header is freed, by another thread,
    and never its data; every byte is written, within the timed call. Here 20 million allocations that the threads divide,
    0.9 GiB (the paper: ten seconds of four threads, 0.9 to 1.9 GiB)."""
    return workload(
        "superserver-author", "superserver-latency", f"SuperServer as its author's, {count(threads)}",
        "SuperMalloc 9, Figure 12",
        command("superserver", threads=threads, allocations=20_000_000 // threads, max_k=22, expired="kept", write="all",
                latency="on"),
        threads, metric="malloc_p9999_ns")


def author_vyukov() -> Case:
    """SuperMalloc 9, Figure 13, as vyukov.cpp: 200 threads of 50,000 objects, written whole."""
    usual = vyukov(200, 50_000)
    return dataclasses.replace(usual, id=usual.id.replace("vyukov", "vyukov-author"),
                               argv=(*usual.argv, "--write", "all"))


def author_lock_contention(threads: int = 2, increments: int = 5_000_000) -> Case:
    """SuperMalloc 8, Figure 5, as lock-overhead.cc: a test-and-set lock (there: 100 million increments)."""
    usual = lock_contention(threads, increments)
    return dataclasses.replace(usual, id=usual.id.replace("lock-contention", "lock-contention-author"),
                               argv=(*usual.argv, "--lock", "test-and-set"))


def superserver(threads: int = 2, latency: bool = False, allocations: int = 2_000_000) -> Case:
    """SuperMalloc 9, Figure 12. The paper: 12 s on 8 hardware threads, 0.9 to 1.9 GiB. Here: 2 million allocations that
    the threads divide, 15 to 25 MiB alive with the dead in the mail (1/50 of the memory).

    `latency`: every call is timed (the time per operation then holds two reads of the clock a call), and the case is
    judged by malloc's 99.99th percentile; the slowest calls, the columns of Figure 12, are metrics of the record."""
    group = "superserver" + "-latency" * latency
    return workload(
        group + unusual("n", allocations, 2_000_000), group,
        f"SuperServer, {count(threads)}" + ", every call timed" * latency, "SuperMalloc 9, Figure 12",
        command("superserver", threads=threads, allocations=max(1, allocations // threads),
                latency="on" if latency else "off"),
        threads, metric="malloc_p9999_ns" if latency else "time",
    )


def vyukov(threads: int = 40, objects: int = 10_000) -> Case:
    """SuperMalloc 9, Figure 13: the chain; its question is peak memory against the floor. The paper: 200 threads of
    50,000 objects, 100 MiB alive, 20 s and more. Here: 40 threads (1/5) of 10,000 (1/5), 20 MiB alive."""
    return workload(
        f"vyukov-n{objects}", "vyukov", f"Vyukov's chain, {count(threads)}, {objects} objects each",
        "SuperMalloc 9, Figure 13", command("vyukov", threads=threads, objects=objects), threads,
        parameters=(("objects", str(objects)),),
    )


def lock_contention(threads: int = 2, increments: int = 1_000_000) -> Case:
    """SuperMalloc 8, Figure 5: metrics global_ns, per_cpu_ns, per_cpu_no_getcpu_ns, per_thread_ns, and of today
    per_cpu_rseq_ns, per_cpu_sequence_ns and per_cpu_sequence_swap_ns. It calls no allocator, so it runs under the C library's alone."""
    return workload(
        f"lock-contention-n{increments}", "lock-contention", f"lock against contention, {count(threads)}",
        "SuperMalloc 8, Figure 5", command("lock_contention", threads=threads, increments=increments), threads,
        metric="global_ns", allocators=("glibc",),
    )


def page_uncommit(rounds: int = 100_000) -> Case:
    """SuperMalloc 10, as madvise.cc (there: a million calls): metrics uncommit_and_touch_ns, uncommitted_ns, touch_ns, and
    ours uncommit_ns. It calls no allocator, so it runs under the C library's alone."""
    return workload(
        f"page-uncommit-n{rounds}", "page-uncommit", "uncommitting a page", "SuperMalloc 10",
        command("page_uncommit", rounds=rounds), 1, metric="uncommit_and_touch_ns", allocators=("glibc",),
    )


def suite() -> list[Case]:
    """SuperServer and the locks run longer than the builders' own lengths: SuperServer
    with 8 million allocations, 48 to 64 MiB alive, or 4 million where each is timed; the locks with 4 million increments."""
    return suites(
        full=[
            malloc_test(1), malloc_test(2), *(superserver(t, allocations=8_000_000) for t in (1, 2, 4)),
            superserver(2, latency=True, allocations=4_000_000), vyukov(), lock_contention(increments=4_000_000),
        ],
        quick=[
            malloc_test(1, batches=100), superserver(2, allocations=200_000), vyukov(threads=10, objects=2000),
            lock_contention(increments=100_000),
        ],
    )
