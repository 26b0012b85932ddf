"""Scalloc (Aigner, Kirsch, Lippautz, Sokolova; OOPSLA 2015): section 7's table and figures.

Our `scalloc` stands for the paper's scalloc, its ablations for the paper's other configurations, glibc for ptmalloc2
(its descendant), TBB's malloc for TBB, gperftools for TCMalloc, our `supermalloc` for SuperMalloc.
"""

from __future__ import annotations

import dataclasses
import functools

from spanalloc_bench.cases import acdc, classic, programs
from papers.shared.figures import judges as j
from papers.shared.figures.figure import (
    ELAPSED, MEMORY, NET_MEMORY, TIME, Claim, Figure, Measure, Panel, Paper, Point, StandIn, altered, metric, over_threads,
    process_alone, thread_axis,
)
from papers.scalloc.figures.table_1 import TABLE_1

PAPER = Paper(
    "scalloc", "Fast, Multicore-Scalable, Low-Fragmentation Memory Allocation through Large Virtual Memory and Global "
    "Data Structures", "M. Aigner, C. M. Kirsch, M. Lippautz, A. Sokolova; OOPSLA 2015",
    "four 10-core Intel Xeon E7-4850 at 2 GHz, 128 GB, Linux 3.8",
    (("Figure 1", "diagram: arena, virtual spans, real spans"), ("Figure 2", "diagram: layout of the span-pool"),
     ("Figure 3", "diagram: life cycle of a span"), ("Figure 4", "diagram: layout of a real span"),
     ("Listings 1 to 3", "code: span-pool; what the frontend does to spans and sets; frontend")),
    pictured="scalloc-12b",
)
SCALLOC = "scalloc"
OTHERS = ("glibc", "jemalloc", "tcmalloc", "tbbmalloc", "supermalloc", "hoard", "llalloc", "streamflow", "supermalloc-original")
ALL = (SCALLOC, "standard", *OTHERS)
NO_REUSE, SINGLE_STACK, LAZY = "scalloc-reuse-100", "scalloc-single-stack", "scalloc-lazy-reclaim"
NO_MADVISE, HUGE = "scalloc-no-madvise", "scalloc-no-virtual-spans"
HUGE_NO_MADVISE = "scalloc-no-madvise-no-virtual-spans"
MANY_CORES = 8  # fewer cannot tell scaling from luck
PAPERS_CORES = 32  # nearly its 40

ALLOCATOR_TIME = metric("allocator_s", "s", "allocator time")
ACCESS_TIME = metric("access_s", "s", "access time")
# The faults that madvise and page sizes cause lie in the first writes, which ACDC times apart.
WITH_FIRST_TOUCH = Measure("allocator and first-write time", "s", lambda sample: _sum(sample, "allocator_s", "build_s"))
# Beyond what the process needs before its first step: with small objects that is most of it.
# As the paper's, without page tables.
AVERAGE_MEMORY = Measure("average memory", "MiB", lambda sample: _average(sample.metrics), 1 / 1024)
# Threads that allocate for the first time may be spared what threads that have allocated suffer.
FALSE_SHARING = Measure("false sharing", "", lambda sample: max(
    (sample.metrics[key] for key in ("false_sharing", "false_sharing_warm") if key in sample.metrics), default=None))
COLD, WARM = metric("false_sharing", "", "at first"), metric("false_sharing_warm", "", "of threads that have allocated")


def _sum(sample, *keys):
    found = [sample.metrics.get(key) for key in keys]
    return None if None in found else sum(found)


def _average(metrics):
    try:
        mean, base = (metrics[f"{when}_rss_kib"] - metrics[f"{when}_page_tables_kib"] for when in ("mean", "base"))
        return max(4.0, mean - base)  # at least a page
    except KeyError:
        return None


def _alone(builder, **options):
    """The process alone beside each point of _over_threads."""
    return lambda cores: [process_alone(builder(threads=t), **options) for t in thread_axis(cores)]


_claim = functools.partial(Claim, subject=SCALLOC, beside=("standard",))


def _ablation(name, text, place, judge, *needs, **more):
    """A claim about the paper's own variants: nothing stands beside it."""
    return Claim(name, text, place, judge, subject=SCALLOC, needs=needs, **more)


SPEED_UP = Panel("lines", "threads", base=("glibc", 1))
OVER_THREADS = Panel("lines", "threads")


def _pair(number, title, shows, points, allocators, claims_a, claims_b, measure_a, measure_b, panels, letters="ab",
          points_b=None, **more):
    """The two halves of a figure: time and memory of the same runs, or of other `points_b`."""
    what = (f"{title}: temporal performance", f"{title}: memory consumption")
    return [
        Figure(f"scalloc-{number}{letter}",
               "scalloc", f"Figure {number}{letter}", what[i], shows, claims, places, allocators,
               measures, panel, **more)
        for i, (letter, claims, places, measures, panel) in enumerate(zip(
            letters, (claims_a, claims_b), (points, points_b or points),
            ((measure_a, measure_b), (measure_b, measure_a)), panels))
    ]


# ---- Figure 5 ----

FIGURE_5 = Figure(
    "scalloc-5", "scalloc", "Figure 5", "Single-threaded temporal performance: 483.xalancbmk",
    "SPEC's score relative to ptmalloc2. SPEC CPU2006 is not free: here Debian's xalan, the same XSLT processor, "
    "transforms a document made on the spot.",
    (
        _claim("beats-ptmalloc2", "Scalloc (among others) provides a significant improvement compared to ptmalloc2 (here: by a tenth at least).",
               "§7.1", j.less(ELAPSED, "glibc", by=1 / 1.1), differs="glibc 2.36, with thread caches, for the paper's ptmalloc2 of libc 2.19; "
               "scalloc is our engine, not the authors' program"),
        _claim("application-benchmarks",
               "We have also experimented with application benchmarks and generally found that scalloc either performs "
               "as other competitive allocators or better.", "§7",
               j.cannot("the paper does not name them; `spanalloc bench` runs real programs of its own choice"),
               beside=()),
        _claim("small-differences", "The differences among the best performing allocators including scalloc are small "
               "(here: within 10 % of the best other).", "§7.1",
               j.close_to_best(ELAPSED, tuple(name for name in OTHERS if name != "streamflow"), 1.10)),
    ),
    lambda cores: [Point(programs.xalan(), "")], ALL, (ELAPSED, MEMORY), Panel("bars", "allocator"), seconds_a_run=2.0,
)

# ---- Figures 6 to 8: thread-local workloads ----

_SCALES = "§7.2, on Figure "

FIGURES_6 = _pair(
    6, "Threadtest", "Rounds of allocating, then freeing, 10^5 / t objects of 64 bytes in t threads; speed-up against "
    "ptmalloc2 with one thread. 200 rounds instead of 10^4. `spanalloc bench manycore --workloads threadtest-2500` simulates it with "
    "2500 objects a thread.",
    over_threads(classic.threadtest), ALL,
    (
        _claim("scales",
               "All allocators but jemalloc scale until 39 threads (here: going from half the cores to all of them gains at least a quarter): scalloc.", "§7.2.1", j.scales(TIME), cores=PAPERS_CORES),
        Claim("others-scale", "All allocators but jemalloc scale until 39 threads: the others.", "§7.2.1",
              j.each(tuple(n for n in OTHERS if n != "jemalloc"), j.scales(TIME)), cores=PAPERS_CORES),
        Claim("jemalloc-does-not-scale", "… all but jemalloc.", "§7.2.1",
              j.scales(TIME, of="jemalloc", gain=None, high=1.25), cores=PAPERS_CORES),
        _claim("fastest-backend",
               "The span-pool provides the fastest backend of all considered allocators (here: as many threads as "
               "cores).", "§7.2.1",
               j.less(TIME, OTHERS, at=j.full), cores=MANY_CORES,
               differs="simulated with 2,500 objects a thread, as the paper has with 40 threads (10^5 over 8 are 12,500): TCMalloc "
               "takes them all from its thread caches, so that its backend is not in its time"),
        _ablation("no-reuse-time",
                  "The overhead of adding and removing spans to the reusable set is negligible (here: without reuse "
                  "within 5 %).", "§7.2.1", j.within(TIME, 0.95, 1.05, of=NO_REUSE, at=j.full), NO_REUSE),
    ),
    (
        _claim("out-of-step",
               "Threads run out of step, which ultimately manifests in lower memory consumption for a larger "
               "number of threads (here: as many threads as cores against one).", "§7.2.1",
               j.changes(NET_MEMORY, j.fewest, j.full, high=1.0), cores=MANY_CORES),
        _ablation("no-reuse-memory",
                  "Since allocations and deallocations are performed in rounds, reusing of spans has no effect on "
                  "memory consumption (here: without it within 5 %, up to as many threads as cores).", "§7.2.1",
                  j.within(NET_MEMORY, 0.95, 1.05, of=NO_REUSE, at=j.to_cores), NO_REUSE),
    ),
    TIME, NET_MEMORY, (SPEED_UP, OVER_THREADS), stand_ins=_alone(classic.threadtest, objects=1, rounds=1),
    variants=(SCALLOC, NO_REUSE), seconds_a_run=0.45,
)

_OTHER_SHBENCH = ("MicroQuill's shbench is not free; ours has lifetimes chosen so that spans are reused, and with others "
                  "the numbers are others")

FIGURES_7 = _pair(
    7, "Shbench",
       "Objects of 1 to 8 bytes with lifetimes of several rounds; speed-up against ptmalloc2 with one thread. Our own program, as "
    "MicroQuill's is not free: a round is of 8 objects, and a thread has 10^6 rounds.", over_threads(classic.shbench), ALL,
    (
        _claim("better-than-all", "Scalloc performs better than all other allocators except for llalloc (here: as many "
               "threads as cores).", "§7.2.2",
               j.less(TIME, tuple(name for name in OTHERS if name not in ("llalloc", "streamflow")), at=j.full),
               cores=MANY_CORES, differs=_OTHER_SHBENCH),
        _ablation("no-reuse-time",
                  "Disabling reusing of spans has no noticeable impact on performance (here: within 5 %).",
                  "§7.2.2", j.within(TIME, 0.95, 1.05, of=NO_REUSE, at=j.full), NO_REUSE, cores=MANY_CORES,
                  differs=_OTHER_SHBENCH),
    ),
    (
        _ablation("no-reuse-memory",
                  "Disabling reusing of spans results for 20 threads in a memory consumption increase of "
                  "14.7 % (here: as many threads as cores; half to twice that increase).", "§7.2.2",
                  j.within(NET_MEMORY, 1.0735, 1.294, of=NO_REUSE, at=j.full), NO_REUSE, cores=MANY_CORES,
                  differs=_OTHER_SHBENCH),
        _claim("llalloc-needs-more", "Scalloc performs better than all others except for llalloc, which consumes more "
               "memory.", "§7.2.2", j.less(NET_MEMORY, "llalloc"), needs=("llalloc",)),
        Claim("llalloc-peak", "The peak in llalloc's memory at 20 threads is repeatable: an allocator artifact.",
              "§7.2.2", j.cannot("the axis has no 20 threads"), needs=("llalloc",)),
        Claim("six-threads", "The decrease of memory consumption at 6 threads is a workload artifact.", "§7.2.2",
              j.cannot("MicroQuill's shbench is not free; that of the suite is another program, and its axis has no 6 "
                       "threads")),
        Claim("compact-is-slow",
              "Allocators that keep memory compact in this benchmark also suffer from degrading absolute "
              "performance.", "§7.2.2", j.trade_off(TIME, NET_MEMORY),
              differs=f"{_OTHER_SHBENCH}; our `standard` counts as one of the allocators"),
    ),
    TIME, NET_MEMORY, (SPEED_UP, OVER_THREADS), stand_ins=_alone(classic.shbench, rounds=1),
    variants=(SCALLOC, NO_REUSE), seconds_a_run=0.5,
)

FIGURES_8 = _pair(
    8, "Larson",
       "Threads that free and allocate objects of 7 bytes at random, pass them on to the next thread and end. "
    "Fixed work instead of 10 seconds. In the larson that `spanalloc bench manycore` simulates a thread replaces each object eight "
    "times and ends, so that an eighth of the frees are of another thread's objects (here less than 1 %).", over_threads(classic.larson), ALL,
    (
        _claim("all-scale", "All considered allocators scale but provide different speedups: scalloc (here: going from half the "
               "cores to all of them gains at least a quarter).", "§7.2.3", j.scales(TIME), cores=PAPERS_CORES),
        Claim("others-scale", "All considered allocators scale: the others.", "§7.2.3",
              j.each(tuple(name for name in OTHERS if name != "streamflow"), j.scales(TIME)), cores=PAPERS_CORES,
              differs="without Streamflow, which the paper leaves out there"),
        _ablation("no-reuse-time",
                  "Disabling span reuse reduces performance by 2.7 % at 20 threads (here: as many threads "
                  "as cores; half to twice that).", "§7.2.3", j.within(TIME, 1.0135, 1.056, of=NO_REUSE, at=j.full),
                  NO_REUSE, cores=MANY_CORES),
        _claim("competitive",
               "Scalloc is competitive in larson in performance and memory consumption (here: at most 1.5 times the best "
               "other's time, as many threads as cores; memory is not asked).", "§8", j.close_to_best(TIME, OTHERS, 1.5, at=j.full), cores=MANY_CORES),
    ),
    (
        Claim("speed-costs-memory",
              "Better absolute performance comes at the expense of increased memory consumption.",
              "§7.2.3", j.trade_off(TIME, NET_MEMORY)),
        _ablation("no-reuse-memory",
                  "Disabling span reuse increases memory consumption by 7.6 % at 20 threads (here: as many threads as "
                  "cores; half to twice that increase).", "§7.2.3",
                  j.within(NET_MEMORY, 1.038, 1.152, of=NO_REUSE, at=j.full), NO_REUSE, cores=MANY_CORES),
    ),
    TIME, NET_MEMORY, (Panel("lines", "threads", rate=True), OVER_THREADS),
    stand_ins=_alone(classic.larson, objects=1, rounds=1), variants=(SCALLOC, NO_REUSE), seconds_a_run=0.5,
)

# ---- Figure 9: producer-consumer ----

STEPS, LONGER, LONGEST = "30 steps", "120 steps", "480 steps"


def _producer_consumer(cores):
    return [Point(acdc.authors_producer_consumer(t), t) for t in thread_axis(cores, 4)[1:]]


def _with_longer(cores):
    points = [dataclasses.replace(point, series=STEPS) for point in _producer_consumer(cores)]
    return [*points, *(Point(altered(acdc.authors_producer_consumer(2), f"s{n}", steps=n), 2, name)
                       for n, name in ((120, LONGER), (480, LONGEST)))]


_AS_ACDC = "The authors' parameters, and sets of objects as their ACDC makes them. "
_UP_TO_CORES = j.series(STEPS, j.beyond_one)

FIGURES_9 = _pair(
    9, "Producer-consumer",
       "ACDC: every object of 16 to 512 bytes is shared with all threads, the last to access it frees it; total time a "
    "thread spends in the allocator, average memory (without what the process needs before its first step). " + _AS_ACDC +
    "Its threads wait for one another with each fifth step, write shared objects with each access, and a set's objects are all "
    "freed by one thread; ours wait with each step and write when they allocate, and each object is freed by the last thread that "
    "accesses it. Memory is without page tables, as the paper's. Work grows with the square of the threads, so two cores see at most 4.",
    _producer_consumer, ALL,
    (
        _claim("best-until-30",
               "Up to 30 threads scalloc and Streamflow provide the best temporal performance (here: from "
               "two threads to as many as cores).", "§7.3",
               j.less(ALLOCATOR_TIME, tuple(name for name in OTHERS if name != "streamflow"), at=j.beyond_one),
               cores=MANY_CORES, each_count=True,
               differs="malloc and free alone are timed; ACDC's clock holds part of the first writes, too: with them "
               "jemalloc, TCMalloc, Hoard and SuperMalloc need less as well"),
        _claim("best-beyond-30", "For more than 30 threads scalloc outperforms all other allocators.", "§7.3",
               j.less(ALLOCATOR_TIME, OTHERS, at=j.full), cores=32),
        _ablation("reuse-is-no-bottleneck",
                  "Using a lock-based implementation for reusing spans is not a performance bottleneck (here: without "
                  "reuse the allocator takes at least 95 % of the time).", "§7.3",
                  j.within(ALLOCATOR_TIME, 0.95, None, of=NO_REUSE, at=j.beyond_one), NO_REUSE, cores=MANY_CORES,
                  differs="what is left out here is the reuse, its lock with it, and not the lock alone"),
    ),
    (
        Claim("no-blowup",
              "All allocators deal with blowup fragmentation: no unbounded growth in memory consumption (here: "
              "with two threads, 480 steps take at most 1.2 times the memory of 120).", "§7.3",
              j.each((SCALLOC, *OTHERS), j.changes(AVERAGE_MEMORY, j.series(LONGER), j.series(LONGEST), high=1.2)),
              differs="the paper sees it over the number of threads"),
        _claim("competitive-memory",
               "Only jemalloc and ptmalloc2 require less memory than scalloc: it needs less than the "
               "others (here: with as many threads as cores).", "§7.3",
               j.less(AVERAGE_MEMORY, tuple(n for n in OTHERS if n not in ("glibc", "jemalloc")), at=_UP_TO_CORES),
               cores=MANY_CORES, differs="page tables, which are a tenth here, are left out, as ACDC does"),
        Claim("less-memory-more-time",
              "jemalloc and ptmalloc2 require less memory at the expense of higher total per-thread "
              "allocator time (here: from two threads to as many as cores).", "§7.3",
              j.each(("jemalloc", "glibc"), j.all_of(
                  j.less(AVERAGE_MEMORY, SCALLOC, at=_UP_TO_CORES),
                  j.less(ALLOCATOR_TIME, j.SUBJECT, of=SCALLOC, at=_UP_TO_CORES))), needs=(SCALLOC,), cores=MANY_CORES),
    ),
    ALLOCATOR_TIME, AVERAGE_MEMORY, (OVER_THREADS, OVER_THREADS), points_b=_with_longer,
    variants=(SCALLOC, NO_REUSE), seconds_a_run=0.4,
)

FIGURES_9[1] = dataclasses.replace(FIGURES_9[1], seconds_a_run=3.0)  # of 480 steps 10 s

# ---- Figures 10 and 12: object sizes, virtual spans ----

SIZES = {4: "16-64B", 6: "64-256B", 8: "256B-1KB", 10: "1-4KB", 12: "4-16KB", 14: "16-64KB", 16: "64-256KB",
         18: "256KB-1MB", 20: "1-4MB"}


# The paper's threads and steps (the authors' script has 5 steps). Up to 2^8 bytes the memory of a few threads is too little to be measured in a process of
# megabytes, that of the paper's 40 is not.
_PAPER_THREADS, _STEPS, _SMALL = 40, 30, 8


def _sizes(cores):
    return [Point(acdc.authors_object_size(exponent, cores), name) for exponent, name in SIZES.items()]


def _sizes_of_40(cores):
    """For memory, a few KiB in a process of megabytes will not do: of the small sizes, all threads of the machine
    allocate what 40 did, in as many steps."""

    def case(exponent):
        usual = acdc.authors_object_size(exponent, cores)
        if exponent > _SMALL or cores >= _PAPER_THREADS:
            return usual
        return altered(usual, f"as-{_PAPER_THREADS}", steps=_STEPS, step_kib=(_PAPER_THREADS << exponent) // cores)

    return [Point(case(exponent), name) for exponent, name in SIZES.items()]


def _size(low, high):
    """The intervals from 2^low to 2^(high + 2) bytes."""
    return j.only(*(name for exponent, name in SIZES.items() if low <= exponent <= high))


OVER_SIZES = Panel("lines", "object sizes", log_y=True)

FIGURES_10 = _pair(
    10, "Object sizes",
        "ACDC with thread-local objects of growing size in as many threads as the machine has cores (the "
    "paper: 40): total time in malloc and free, average memory (without page tables, as the paper's, and without what the "
    "process needs before its first step; up to 1 KB the threads allocate as much in all as the paper's 40). " + _AS_ACDC + "What lives is accessed once a step "
    "(ACDC: after each set); steps until a thread has allocated 1 GiB, at least the authors' 5 and at most 4096 (the text: "
    "30).", _sizes, ALL,
    (
        _claim("best-below-1mb", "For object sizes smaller than 1MB scalloc outperforms all other allocators.", "§7.5",
               j.best_at_each(ALLOCATOR_TIME, OTHERS, _size(4, 18))),
        _claim("mmap-above-1mb",
               "For objects larger than 1MB scalloc relies on mmap, which adds system call latency (here: "
               "it loses to at least one other).", "§7.5", j.not_best(ALLOCATOR_TIME, OTHERS, _size(20, 20))),
        _claim("no-contention", "Even in the presence of 40 threads we do not observe contention on the span-pool.",
               "§7.5", j.cannot("the span-pool does not count how often a thread finds another in its way"), beside=()),
    ),
    (
        _claim("small-higher",
               "The average memory consumption of scalloc allocating small objects is higher (yet still "
               "competitive): here, up to 1 KB, more than the best other but at most twice as much.", "§7.5",
               j.all_of(j.close_to_best(AVERAGE_MEMORY, OTHERS, 2.0, at=_size(4, 8)),
                        j.not_best(AVERAGE_MEMORY, OTHERS, _size(4, 8)))),
        _claim("large-smallest",
               "For larger object sizes scalloc causes the smallest memory overhead comparable to jemalloc "
               "and ptmalloc2 (here: from 64 KB on at most 10 % above the best other; that those two are near it is not asked).", "§7.5",
               j.close_to_best(AVERAGE_MEMORY, OTHERS, 1.10, at=_size(16, 20))),
    ),
    ALLOCATOR_TIME, AVERAGE_MEMORY, (OVER_SIZES, OVER_SIZES), points_b=_sizes_of_40, seconds_a_run=0.35,
)

_VARIANTS = (SCALLOC, NO_MADVISE, HUGE, HUGE_NO_MADVISE)

FIGURES_12 = _pair(
    12, "Virtual spans",
        "Figure 10's experiment, as ours is, with four configurations: with and without madvise, with 4 KB pages and "
    "with transparent huge pages (here by MADV_HUGEPAGE on the arena).", _sizes, (),
    (
        _ablation("madvise-costs",
                  "The difference between scalloc and scalloc-no-madvise is the cost and consequences of "
                  "calling madvise: without it the allocator and the first touch take less time.", "§7.7.1",
                  j.less(WITH_FIRST_TOUCH, SCALLOC, of=NO_MADVISE, at=_size(8, 18)), NO_MADVISE),
        _ablation("small-same",
                  "For small objects up to 256 bytes there are no differences (here: within 10 %).", "§7.7.1",
                  j.within(ALLOCATOR_TIME, 0.9, 1.1, of=NO_MADVISE, at=_size(4, 6)), NO_MADVISE),
        _ablation("huge-same",
                  "For huge objects (larger than 1MB) there are no differences (here: within 10 %).", "§7.7.1",
                  j.within(ALLOCATOR_TIME, 0.9, 1.1, of=NO_MADVISE, at=_size(20, 20)), NO_MADVISE),
        _ablation("4k-pages-better", "Virtual spans perform better with 4KB pages than with 2MB pages.", "§7.7.1",
                  j.less(WITH_FIRST_TOUCH, HUGE, at=_size(4, 18)), HUGE, huge_pages=True),
        _ablation("falling-back-costs",
                  "Zeroing 2MB pages and eventually falling back to 4KB pages causes a significant temporal overhead "
                  "compared to scalloc (here: at least 10 % from 64 KB to 1 MB).", "§7.7.1",
                  j.within(WITH_FIRST_TOUCH, 1.1, None, of=HUGE, at=_size(16, 18)), HUGE, huge_pages=True),
        _ablation("no-madvise-helps-huge",
                  "The total allocator time [without madvise and virtual spans] is lower compared to "
                  "scalloc-no-virtual-spans because no madvise calls are necessary (here: as mean from 256 bytes to 1 MB).",
                  "§7.7.1",
                  j.less(ALLOCATOR_TIME, HUGE, of=HUGE_NO_MADVISE, at=_size(8, 18)), HUGE,
                  HUGE_NO_MADVISE, huge_pages=True, differs="up to 4 KB decides it; at no size above is it told apart"),
    ),
    (
        _ablation("madvise-saves",
                  "The memory consumption of scalloc improves almost proportionally to the cost of calling "
                  "madvise (here: by size, the factor of memory over the factor of time differs by at most two).",
                  "§7.7.1", j.in_proportion(AVERAGE_MEMORY, WITH_FIRST_TOUCH, NO_MADVISE, 2.0, at=_size(8, 18)),
                  NO_MADVISE),
        _ablation("small-same",
                  "For small objects up to 256 bytes there are no differences (here: within 10 %).", "§7.7.1",
                  j.within(AVERAGE_MEMORY, 0.9, 1.1, of=NO_MADVISE, at=_size(4, 6)), NO_MADVISE),
        _ablation("huge-same",
                  "For huge objects (larger than 1MB) there are no differences (here: within 10 %).", "§7.7.1",
                  j.within(AVERAGE_MEMORY, 0.9, 1.1, of=NO_MADVISE, at=_size(20, 20)), NO_MADVISE),
        _ablation("huge-pages-blow-up",
                  "With 2MB pages memory consumption increases dramatically for small size classes "
                  "(here: at least twice as much up to 256 bytes).", "§7.7.1",
                  j.within(AVERAGE_MEMORY, 2.0, None, of=HUGE, at=_size(4, 6)), HUGE, huge_pages=True),
        _ablation("madvise-falls-back",
                  "For larger objects scalloc-no-virtual-spans approaches the small memory footprint of "
                  "scalloc (here: at most 25 % more from 64 KB to 1 MB).", "§7.7.1",
                  j.within(AVERAGE_MEMORY, None, 1.25, of=HUGE, at=_size(16, 18)), HUGE, huge_pages=True),
        _ablation("huge-pages-cost-small",
                  "With 2MB pages the cost of allocating spans goes up, especially for small size classes (here: their "
                  "factor over 4KB pages, in 30 steps, is larger up to 256 bytes than above).", "§7.7.1",
                  j.narrows(WITH_FIRST_TOUCH, HUGE, SCALLOC, _size(4, 6), _size(8, 18)), HUGE, huge_pages=True,
                  differs="judged on the runs that are measured for memory, where spans are allocated for a large part of the "
                  "time; in the 4096 steps of the runs for time they are reused"),
        _ablation("worst-of-four", "Without madvise and virtual spans memory consumption is the highest of the four.",
                  "§7.7.1", j.all_of(*(j.less(AVERAGE_MEMORY, HUGE_NO_MADVISE, of=name) for name in _VARIANTS[:3])),
                  *_VARIANTS[1:], huge_pages=True),
    ),
    ALLOCATOR_TIME, AVERAGE_MEMORY, (OVER_SIZES, OVER_SIZES), points_b=_sizes_of_40, variants=_VARIANTS,
    seconds_a_run=0.5,
)

# ---- Figure 11: locality ----

LISTS = tuple(range(0, 101, 10))


def _compact(cores):
    return [StandIn("compact",
                    dataclasses.replace(acdc.authors_locality(p, compact=True), allocators=("glibc",)),
                    acdc.authors_locality(p), 0.6)
            for p in LISTS]


def _told_apart(judge):
    """Where no objects lie closer together than others, the time of their accesses says nothing of the layout."""
    return j.told_apart(judge, ACCESS_TIME, 1.05)


def _approaches_compact(name):
    return _told_apart(j.all_of(j.narrows(ACCESS_TIME, name, "compact", j.only(0), j.only(100)),
                                j.within(ACCESS_TIME, None, 1.2, of=name, to="compact", at=j.only(100))))


FIGURE_11 = Figure(
    "scalloc-11", "scalloc", "Figure 11", "Memory access time for the locality experiment",
    "ACDC accesses objects of 16 to 32 bytes, a growing share of them in allocation order (lists), the others not "
    "(trees); `compact` stores each set in contiguous memory, the optimum. " + _AS_ACDC + "ACDC accesses what lives after "
    "each set, ours after each 20th.",
    (
        _claim("jemalloc-faster",
               "Only jemalloc and llalloc provide a memory layout that can be accessed slightly faster: jemalloc's "
               "(here: by up to 20 %).", "§7.6", _told_apart(j.within(ACCESS_TIME, 0.8, 1.0, of="jemalloc")),
               needs=("jemalloc",)),
        _claim("llalloc-faster",
               "Only jemalloc and llalloc provide a memory layout that can be accessed slightly faster: llalloc's "
               "(here: by up to 20 %).", "§7.6", _told_apart(j.within(ACCESS_TIME, 0.8, 1.0, of="llalloc")),
               needs=("llalloc",)),
        _claim("others-slower",
               "Only jemalloc and llalloc provide a memory layout that can be accessed slightly faster: nobody "
               "else's (here: none is faster by more than 2 %).", "§7.6",
               _told_apart(j.less(ACCESS_TIME, tuple(n for n in OTHERS if n not in ("jemalloc", "llalloc")), by=1.02))),
        _claim("approaches-compact",
               "For a larger ratio of accesses in allocation order scalloc and TBB approach the compact "
               "baseline: scalloc (here: its excess ratio shrinks from 0 to 100 % lists, to at most 1.2).", "§7.6",
               _approaches_compact(j.SUBJECT)),
        _claim("tbb-approaches-compact",
               "For a larger ratio of accesses in allocation order scalloc and TBB approach the compact "
               "baseline: TBB.", "§7.6", _approaches_compact("tbbmalloc"), subject="tbbmalloc", beside=()),
        *(_claim(f"{name}-approaches-compact",
                 f"For a larger ratio of accesses in allocation order llalloc, scalloc, Streamflow, and TBB approach "
                 f"the compact baseline: {title}.", "§7.6", _approaches_compact(name), subject=name, beside=())
          for name, title in (("llalloc", "llalloc"), ("streamflow", "Streamflow"))),
        Claim("others-improve-less",
              "The other allocators improve as well [with more accesses in allocation order] but not as much (here: "
              "from 0 to 100 % lists, as scalloc).", "§7.6",
              _told_apart(j.each(tuple(n for n in OTHERS if n not in ("tbbmalloc", "llalloc", "streamflow")), j.all_of(
                  j.changes(ACCESS_TIME, j.only(0), j.only(100), high=1.0),
                  j.narrows(ACCESS_TIME, j.SUBJECT, SCALLOC, j.only(0), j.only(100), low=1.0, high=None)))),
              needs=(SCALLOC,)),
        _ablation("threshold-100-time",
                  "Memory access time improves even more with the reusability threshold at 100 %, …",
                  "§7.6", _told_apart(j.less(ACCESS_TIME, SCALLOC, of=NO_REUSE)), NO_REUSE),
        _ablation("threshold-100-memory", "… at the expense of higher memory consumption.", "§7.6",
                  j.less(MEMORY, NO_REUSE), NO_REUSE),
        Claim("cache-misses",
              "At 60 % lists the L1 miss rate is 15.2 % with scalloc, 20.8 % with ptmalloc2; last-level cache loads "
              "190.2M against 408.5M.", "§7.6", j.cannot("needs hardware counters (perf), which the suite does not "
                                                               "read")),
    ),
    lambda cores: [Point(acdc.authors_locality(p), p) for p in LISTS], ALL, (ACCESS_TIME, MEMORY),
    Panel("lines", "% in allocation order"), stand_ins=_compact, variants=(SCALLOC, NO_REUSE), seconds_a_run=1.0,
)

# ---- Figures 13 and 14: span-pool, frontend ----

def _threadtest_256(threads):
    return classic.threadtest(256, threads, rounds=50)


_SMALL_OBJECTS = "8 bytes"


def _with_8_bytes(cores):
    """Beside the figure's own points objects of 8 bytes, with one thread and with as many as there are cores."""
    counts = sorted({1, max(t for t in thread_axis(cores) if t <= cores)})
    return [*over_threads(_threadtest_256)(cores),
            *(Point(classic.threadtest(8, t, rounds=100), t, _SMALL_OBJECTS) for t in counts)]


FIGURES_13 = _pair(
    13, "Span-pool", "Threadtest with objects of 256 bytes, the span-pool with a stack a core and with a single stack; "
    "speed-up against ptmalloc2 with one thread. 50 rounds instead of 10^4 (of the 8-byte objects 100).", _with_8_bytes,
    (SCALLOC, "standard", "glibc"),
    (
        _ablation("single-stack-degrades", "For an increasing number of threads a single stack is unable to deal with "
                  "contention: scalloc's design trades the better performance (up to 2.7x) (here: as many threads as "
                  "cores, at least half of that gain).", "§7.7.2",
                  j.within(TIME, 1.85, None, of=SINGLE_STACK, at=j.series("", j.full)), SINGLE_STACK, cores=16),
        _ablation("small-need-one-stack", "For workloads that only utilize small objects, e.g. 8-byte objects, real "
                  "spans provide enough buffering, only requiring a single stack (here: within 5 %, as many threads as "
                  "cores).", "§7.7.2",
                  j.within(TIME, 0.95, 1.05, of=SINGLE_STACK, at=j.series(_SMALL_OBJECTS, j.full)), SINGLE_STACK,
                  cores=16),
    ),
    (
        _ablation("single-stack-saves",
                  "… for slightly worse memory utilization (up to 15 %): a single stack needs less, and "
                  "scalloc at most 15 % more (here: as many threads as cores).", "§7.7.2",
                  j.all_of(j.less(NET_MEMORY, SCALLOC, of=SINGLE_STACK, at=j.full),
                           j.within(NET_MEMORY, None, 1.15, to=SINGLE_STACK, at=j.full)), SINGLE_STACK,
                  cores=16),
    ),
    TIME, NET_MEMORY, (SPEED_UP, OVER_THREADS), points_b=over_threads(_threadtest_256),
    variants=(SCALLOC, SINGLE_STACK), seconds_a_run=0.3,
    stand_ins=_alone(_threadtest_256, objects=1, rounds=1),
)

FIGURES_14 = _pair(
    14, "Frontend",
    "Threadtest as in Figure 6, 200 rounds instead of 10^4, empty spans returned with the last free and only in the next "
    "slow path of an allocation.", over_threads(classic.threadtest),
    (SCALLOC, "standard", "glibc"),
    (
        _ablation("same-speed",
                  "Both scalloc versions provide almost the same speedup (here: within 5 %, up to the cores).",
                  "§7.7.3", j.within(TIME, 0.95, 1.05, of=LAZY, at=j.to_cores), LAZY, cores=MANY_CORES),
    ),
    (
        _ablation("eager-saves",
                  "Returning spans eagerly reduces memory consumption; at 39 threads the difference is about "
                  "25 % (here: as many threads as cores; half to twice that).", "§7.7.3",
                  j.within(NET_MEMORY, 1.125, 1.5, of=LAZY, at=j.full), LAZY, cores=MANY_CORES),
    ),
    TIME, NET_MEMORY, (SPEED_UP, OVER_THREADS), variants=(SCALLOC, LAZY), seconds_a_run=0.45,
    stand_ins=_alone(classic.threadtest, objects=1, rounds=1),
)

# ---- section 7.4 ----

_ACTIVE, _PASSIVE = "active (cache-thrash)", "passive (cache-scratch)"


def _sharing(cores):
    threads = max(2, min(cores, 8))
    return [Point(classic.cache_thrash(threads), "", _ACTIVE), Point(classic.cache_scratch(threads), "", _PASSIVE)]


def _shares(active, passive, measure=FALSE_SHARING):
    return j.all_of(j.says(measure, active, at=j.series(_ACTIVE)), j.says(measure, passive, at=j.series(_PASSIVE)))


SECTION_7_4 = Figure(
    "scalloc-7.4", "scalloc", "§7.4", "Robustness against false sharing",
    "Hoard's active-false and passive-false benchmarks; the paper omits the graphs because they only show binary "
    "results. Here the workload says yes or no by the addresses it is given, and its time. Passive false sharing is "
    "asked for twice, of threads whose first call is the free and of threads that have allocated before: yes where either "
    "is.",
    (
        _claim("scalloc-none", "Scalloc's design ensures that in the cases covered no false sharing appears.", "§7.4",
               _shares(False, False)),
        Claim("most-avoid", "Most allocators avoid active and passive false sharing.", "§7.4",
              j.majority((SCALLOC, *OTHERS), _shares(False, False, COLD)),
              differs="of threads whose first call is the free, as in Hoard's program, but with four objects a thread instead of "
              "one; of threads that have allocated before jemalloc shares passively, too"),
        _claim("tcmalloc-both",
               "TCMalloc suffers from both active and passive false sharing.", "§7.4", _shares(True, True),
               subject="tcmalloc", beside=()),
        _claim("supermalloc-both", "SuperMalloc suffers from both active and passive false sharing.", "§7.4",
               _shares(True, True), subject="supermalloc-original", beside=("supermalloc",),
               differs="the author's last version, two years after SuperMalloc's paper"),
        _claim("hoard-passive", "Hoard is prone to passive false sharing only.", "§7.4", _shares(False, True),
               subject="hoard", beside=()),
    ),
    _sharing, ALL, (FALSE_SHARING, COLD, WARM, ELAPSED), Panel("bars", "kind"), seconds_a_run=0.4,
)

FIGURES = [TABLE_1, FIGURE_5, *FIGURES_6, *FIGURES_7, *FIGURES_8, SECTION_7_4, *FIGURES_9, *FIGURES_10, FIGURE_11,
           *FIGURES_12, *FIGURES_13, *FIGURES_14]
