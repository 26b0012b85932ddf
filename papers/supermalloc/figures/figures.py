"""SuperMalloc (Kuszmaul; ISMM 2015): sections 1 and 9.

Our `supermalloc` engine stands for SuperMalloc; the authors' program takes part as `supermalloc-original` where it was built.
DLmalloc and Hoard are not packaged, but built when a user asks (`spanalloc bench peers --originals`): glibc's malloc is a
descendant of DLmalloc with arenas and thread caches, so no claim on DLmalloc is judged on it. (In Figures 9 to 13 the paper
may have called the C library's malloc so: see Figures 10 and 13.)
"""

from __future__ import annotations

import functools

from spanalloc_bench.cases import classic, programs
from spanalloc_bench.cases import supermalloc as workloads
from papers.shared.figures import calls, codesize, judges as j, simulated
from papers.shared.figures.figure import (
    ELAPSED, MEMORY, NET_MEMORY, SYSTEM, TIME, USER, Claim, Figure, Measure, Panel, Paper, Point, metric, peak_kib,
    process_alone, thread_axis, worst,
)

PAPER = Paper(
    "supermalloc", "SuperMalloc: A Super Fast Multithreaded Malloc for 64-bit Machines",
    "B. C. Kuszmaul; ISMM 2015",
    "4-core Intel i7-4770 (8 hardware threads), 16-core E5-2665, 2-core i7-4600U; Linux 3.15",
    (("Figure 2", "code: from a size to its bin"), ("Figure 3", "code: an idiom that needs 8-byte alignment"),
     ("Figure 4", "code: division by multiplication")),
    pictured="supermalloc-13",
)
SUPERMALLOC = "supermalloc"
OTHERS = ("jemalloc", "tbbmalloc", "hoard", "dlmalloc")
FIVE = (*OTHERS, SUPERMALLOC)  # the paper's
ORIGINAL = codesize.ORIGINAL
ALL = (SUPERMALLOC, "standard", "scalloc", "glibc", *OTHERS, ORIGINAL)
SCALING_CORES = 8
PAPERS_CORES = 32  # the hardware threads of its machine without transactions
NO_PREFETCH, NO_CPU, NO_GLOBAL = (f"supermalloc-no-{what}" for what in ("prefetch", "cpu-caches", "global-cache"))
RSEQ = "supermalloc-rseq"  # restartable sequences, which stand for transactions, in place of a CPU's locks
# In turn with each other in malloc-test.
IN_TURN = (SUPERMALLOC, NO_PREFETCH, NO_CPU, NO_GLOBAL, RSEQ)


_claim = functools.partial(Claim, subject=SUPERMALLOC, beside=(ORIGINAL, "standard", "scalloc"))
# About counters that are shared: with one core nobody contends.
_counter = functools.partial(Claim, cores=2)


def _program(name, text, place, judge, beside=(SUPERMALLOC,), **more):
    """A claim about how large the authors' program is, which another one of its design does not inherit."""
    return Claim(name, text, place, judge, subject=ORIGINAL, beside=beside, **more)


def _others(name, text, place, judge, *needs, **more):
    """A claim about the other allocators."""
    return Claim(name, text, place, judge, needs=needs, **more)


# ---- Figures 1 and 14: code size ----

_NO_SOURCE = "packages hold no source; `spanalloc bench peers` and `spanalloc bench peers --originals` fetch it"

FIGURE_1 = Figure(
    "supermalloc-1", "supermalloc", "Figure 1", "Code sizes",
    "Bytes and lines of source. Here: bytes of machine code (.text) of the shared libraries; bytes and lines of the source "
    "of those which `spanalloc bench peers`, with --originals or without, has built from theirs, blank lines and comments "
    "included. SuperMalloc's source is its author's of November 2014 (c0fd59d), whose lines and bytes are the paper's; its machine "
    "code is of his last version, of 2017. Ours stand beside it, with all that our libraries are made of, which is more than the "
    "engine. jemalloc's source is of the release 5 that `spanalloc bench peers` fetches, its machine code of the one that Debian "
    "packages (the paper: 3.6.0).",
    (
        _program("smallest", "By machine code, too, SuperMalloc is the smallest of the five.", "beyond the paper",
                 j.fact_less(codesize.TEXT, OTHERS), (SUPERMALLOC, "standard", "scalloc"), own=True),
        _others("jemalloc-largest", "JEmalloc is the largest of the five (here: bytes of source, TBBmalloc's left out, as nothing "
                "fetches it).", "Figure 1",
                j.if_known(j.each(("dlmalloc", "hoard", ORIGINAL), j.fact_less(codesize.BYTES, ("jemalloc",))), _NO_SOURCE)),
        _program("half-the-code", "By machine code SuperMalloc is less than half as large as the alternatives.",
                 "beyond the paper", j.fact_less(codesize.TEXT, OTHERS, by=0.5), (SUPERMALLOC, "standard", "scalloc"),
                 own=True),
        _program("half-the-lines", "SuperMalloc uses less than half as much code as the alternatives: lines of code (by "
                 "Figure 1 0.63 times DLmalloc's, 0.41 times TBBmalloc's).", "Abstract, Figure 1",
                 j.if_known(j.fact_less(codesize.LINES, OTHERS, by=0.5), _NO_SOURCE)),
        _program("fewest-lines", "SuperMalloc is the smallest of the five: 3,934 lines against 6,280 to 22,230.", "Figure 1",
                 j.if_known(j.fact_less(codesize.LINES, OTHERS), _NO_SOURCE)),
        _program("fewest-bytes", "SuperMalloc is the smallest of the five: 127K of source against 221K to 624K.", "Figure 1",
                 j.if_known(j.fact_less(codesize.BYTES, OTHERS), _NO_SOURCE)),
    ),
    lambda cores: [], ALL, (), Panel("bars", "allocator"), rounds=0, facts=codesize.sizes,
)

_LOCKS, _BINS = "lines: atomicity and locks", "lines: bins"

FIGURE_14 = Figure(
    "supermalloc-14", "supermalloc", "Figure 14", "Sizes of the modules of SuperMalloc",
    "Characters and lines of SuperMalloc's eight modules. Judged on its author's sources of November 2014 (c0fd59d), whose eight "
    "counts of lines are the paper's, if `spanalloc bench peers --originals` has fetched them. Beside it the "
    "files of our supermalloc engine, by what they hold, and the lock that it shares with the others; the switches of its "
    "ablations stand among its constants, which the paper counts with the bins. Its restartable sequences, which it has in "
    "place of locks under another setting only, are in none of the eight. Blank lines and comments are included.",
    (
        _program("caches-largest", "The biggest module is for managing the cache.", "§9 \"Complexity\"",
                 j.if_known(j.fact_largest("lines: caches", codesize.SUPERMALLOC_PARTS), _NO_SOURCE)),
        _program("objects-as-large",
                 "The code for the three size classes together is just a little larger than the cache "
                 "management code (here: 1 to 1.25 times).", "§9 \"Complexity\"",
                 j.if_known(j.fact_ratio(("lines: small objects", "lines: medium and large objects", "lines: huge objects"),
                                         ("lines: caches",), 1.0, 1.25), _NO_SOURCE)),
        _program("interface-second", "The interface to make the standard POSIX calls is second biggest.",
                 "§9 \"Complexity\"",
                 j.if_known(j.fact_largest("lines: POSIX interface", codesize.SUPERMALLOC_PARTS, place=2), _NO_SOURCE)),
        _program("locks-as-large-as-bins", "The code for invoking locks or hardware transactional memory, and the "
                 "metaprogram that computes the bin sizes, are each about 350 lines (357 and 332; here: half to twice 350, "
                 "and at most twice as much the one as the other).", "§9 \"Complexity\"",
                 j.if_known(j.all_of(j.fact_within(_LOCKS, 175, 700), j.fact_within(_BINS, 175, 700),
                                     j.fact_ratio((_LOCKS,), (_BINS,), 0.5, 2.0)), _NO_SOURCE)),
        _program("mmap-interface-small", "The code for interfacing to mmap is 123 lines, of the cache management 841 "
                 "(here: at most a quarter of it).", "§9 \"Complexity\"",
                 j.if_known(j.fact_ratio(("lines: mmap interface",), ("lines: caches",), None, 0.25), _NO_SOURCE)),
        _others("jemalloc-modules", "JEmalloc's biggest module manages its arenas, 2,577 lines, for what SuperMalloc "
                "has 1,793.", "§9 \"Complexity\"",
                j.not_measured("that is JEmalloc 3.6.0, which is public and which nothing here fetches; release 5, which "
                               "`spanalloc bench peers` does, has its arenas in many files")),
        _others("hoard-modules", "Hoard contains a huge number of modules, each of a few hundred lines (here: at least 50 "
                f"source files, nine in ten of at most {codesize.SHORT_LINES} lines).", "§9 \"Complexity\"",
                j.if_known(j.all_of(j.fact_within(codesize.MODULES, 50, of="hoard"),
                                    j.fact_within(codesize.SHORT_MODULES, 90, of="hoard")), _NO_SOURCE),
                differs="Heap Layers is counted as Hoard's, as in the paper's count of lines: 106 of its 151 files; 45 are Hoard's "
                "own"),
    ),
    lambda cores: [], (SUPERMALLOC, ORIGINAL), (), Panel("bars", "module"), rounds=0, facts=codesize.supermalloc_modules,
)

# ---- Figure 5: lock against contention ----

GLOBAL, PER_CPU = metric("global_ns", "ns", "global"), metric("per_cpu_ns", "ns", "per CPU")
NO_GETCPU = metric("per_cpu_no_getcpu_ns", "ns", "per CPU, no getcpu")
PER_CPU_RSEQ = metric("per_cpu_rseq_ns", "ns", "per CPU, number by rseq (ours)")
SEQUENCE = metric("per_cpu_sequence_ns", "ns", "per CPU, in a restartable sequence (ours)")
SEQUENCE_SWAP = metric("per_cpu_sequence_swap_ns", "ns", "the same, ended by an atomic swap (ours)")
PER_THREAD = metric("per_thread_ns", "ns", "per thread")

FIGURE_5 = Figure(
    "supermalloc-5", "supermalloc", "Figure 5", "Lock against contention",
    "What incrementing a counter costs: one global lock, a lock a CPU, the same without asking for the CPU, a variable "
    "a thread; and, not in the paper, a lock a CPU whose number is read from the area registered for restartable "
    "sequences, and the increment inside of such a sequence, without a lock. The lock is a test-and-set lock, as in the "
    "author's lock-overhead.cc; a plain increment inside of a sequence bounds what one can gain, as ours end by "
    "an atomic swap. No allocator takes part. Here 5 million increments a thread (the author: 100 million), as many threads "
    "as cores and at least two (the author: two). His program has no row without sched_getcpu(), but one that asks at each 32nd "
    "increment; ours takes the thread's number.",
    (
        _counter("contention-is-the-cost",
                "The cost of locking and accessing a shared data structure is mostly due to coherence traffic: the "
                "global lock costs several times a per-CPU one, also with the call to sched_getcpu() (the paper: 5 to "
                "14 times; here: at least twice).", "§8", j.measures_within(GLOBAL, PER_CPU, 2.0, None, of="glibc")),
        _counter("getcpu-costs",
                "If we factor out the cost of sched_getcpu(), the per-CPU data structure costs only 13.3 ns "
                "instead of 34.1 (the paper: 1.7 to 2.6 times; here: at least 1.3 times).", "§8",
                j.measures_within(PER_CPU, NO_GETCPU, 1.3, None, of="glibc")),
        _counter("uncontended-lock",
                "Uncontended locking is not so bad: a per-CPU lock costs 4 to 5 times an unlocked variable of the "
                "thread (here: at most 10 times).",
                "§8", j.measures_within(NO_GETCPU, PER_THREAD, None, 10.0, of="glibc")),
        _counter("order", "Per-thread is cheaper than per-CPU without getcpu.", "Figure 5",
                j.measures_within(PER_THREAD, NO_GETCPU, None, 1.0, of="glibc")),
    ),
    lambda cores: [Point(workloads.author_lock_contention(max(2, cores)), "")], ("glibc",),
    (GLOBAL, PER_CPU, PER_CPU_RSEQ, NO_GETCPU, SEQUENCE, SEQUENCE_SWAP, PER_THREAD), Panel("bars", "", log_y=True), seconds_a_run=1.0,
)

# ---- Figures 6 to 8: malloc-test ----


def _malloc_test(cores):
    return [Point(workloads.author_malloc_test(producers), producers) for producers in thread_axis(cores)]


_SHOWS = "Producers allocate batches of 4096 objects, as many consumers free them; the x axis counts the producers. As in the " \
         "author's new-malloc-test.c, objects have 1024 bytes, of which nothing is written, and at most 100 batches " \
         f"wait, of which the last one comes first. Here {workloads.MALLOC_TEST_BATCHES} batches in all (the paper: a fixed " \
         "time). `spanalloc bench manycore --workloads malloc-test-1k` simulates it with batches of 512 and a queue of two batches a " \
         "producer."
RATE = Panel("lines", "producers", rate=True, spread=True)
_NO_TRANSACTIONS = j.cannot("ours has no hardware transactions")


def at_eight(data):
    """The paper's 8-thread case: 8 producers."""
    return data.at(x=8)


FIGURE_6 = Figure(
    "supermalloc-6", "supermalloc", "Figure 6", "malloc-test on a machine with transactional memory",
    _SHOWS + " Ours has no hardware transactions, but locks, and under another "
    "setting restartable sequences.",
    (
        _claim("fastest-with-one",
               "SuperMalloc starts out faster than the others on one producer thread.", "§9 \"Speed\"",
               j.less(TIME, OTHERS, at=j.fewest)),
        _claim("scales",
               "SuperMalloc scales nearly linearly up to four producer threads, which is eight total threads (here: from "
               "one to two and from two to four each gains at least 1.6).", "§9 \"Speed\"",
               j.all_of(*(j.changes(TIME, j.only(few), j.only(2 * few), high=1 / 1.6) for few in (1, 2))),
               cores=SCALING_CORES),
        _others("dlmalloc-slows-down",
                "DLmalloc actually slows down as the number of threads increases.", "§9 \"Speed\"",
                j.changes(TIME, j.fewest, j.most, low=1.0, of="dlmalloc"), "dlmalloc", cores=SCALING_CORES),
        _others("tbb-scales-first",
                "TBBmalloc starts out scaling better than JEmalloc (here: from one producer to two) …",
                "§9 \"Speed\"", j.narrows(TIME, "tbbmalloc", "jemalloc", j.only(1), j.only(2)), "tbbmalloc", "jemalloc",
                cores=4),
        _others("tbb-ends-equal",
                "… but ends up at about the same place as JEmalloc (here: within 20 % with 8 producers, which are twice the "
                "8 hardware threads).", "§9 \"Speed\"",
                j.within(TIME, 1 / 1.2, 1.2, of="tbbmalloc", to="jemalloc", at=at_eight), "tbbmalloc", "jemalloc",
                cores=SCALING_CORES, differs="in the author's public data TBBmalloc takes 0.65 of JEmalloc's time with 4 "
                "producers, and 0.92 with 8"),
        _others("tbb-scales-before-hoard",
                "TBBmalloc starts out scaling better than Hoard (here: from one producer to two).",
                "§9 \"Speed\"", j.narrows(TIME, "tbbmalloc", "hoard", j.only(1), j.only(2)), "tbbmalloc", "hoard",
                cores=4),
        _others("hoard-falls-behind",
                "Hoard holds up pretty well, but starts falling behind JEmalloc when there is one pthread per hardware "
                "thread (here: its time grows against JEmalloc's from 4 producers to 8, on 8 hardware threads).",
                "§9 \"Speed\"", j.narrows(TIME, "hoard", "jemalloc", j.only(4), at_eight, low=1.0, high=None), "hoard",
                "jemalloc", cores=SCALING_CORES, differs="in the author's public data Hoard takes 1.73 of JEmalloc's time with "
                "1 producer, 0.99 with 4 and 1.72 with 8"),
        _others("factor-of-30", "The speed difference between DLmalloc and JEmalloc can be more than a factor of 30 "
                "(here: with 32 producers).", "§9 \"Speed\"",
                j.less(TIME, "dlmalloc", of="jemalloc", at=j.only(32), by=1 / 30),
                "dlmalloc", "jemalloc", cores=PAPERS_CORES, differs="in the author's public data it is 6.4 with 4 producers and "
                "10.9 with 8 on the machine of this figure, and above 30 from 23 producers on on the one of Figure 7"),
        _claim("twice-as-fast-with-one",
               "With one thread SuperMalloc is about 2.1 times faster than the best of DLmalloc, JEmalloc, Hoard, and "
               "TBBmalloc (here: one producer, at least 1.6 times, however much more).", "Abstract",
               j.less(TIME, OTHERS, at=j.fewest, by=1 / 1.6), differs="in the author's public data 2.1 is the variant with "
               "pthread mutexes; with transactions it is 2.0"),
        _claim("faster-with-eight",
               "With 8 threads and HTM, SuperMalloc is 2.75 times faster [than the best of the four] (here: 8 "
               "producers, at least twice).", "Abstract", j.less(TIME, OTHERS, at=at_eight, by=0.5),
               cores=SCALING_CORES, differs="in the author's public data 2.75 is the variant with pthread mutexes; with "
               "transactions it is 2.71"),
        _claim("prefetching", "Prefetching the data needed by a transaction before it starts is worth a few percent "
               "(here, before a lock is taken: without it all thread counts take half a percent to 10 % longer).",
               "§8, §9 \"Speed\"", j.within(TIME, 1.005, 1.10, of=NO_PREFETCH), needs=(NO_PREFETCH,), beside=(),
               differs="in the author's public data prefetching gains 1.4 to 4.5 % with transactions and loses 0.9 to 2.8 % "
               "with locks, at each of the eight counts"),
        _claim("transactions-commit", "The transactions fail, executing the lock-based fallback code, about 0.03 % of "
               "the time.", "§9 \"Speed\"", _NO_TRANSACTIONS, beside=()),
        _claim("early-subscription", "Early lock subscription inside transactions costs about half a percent.",
               "§9 \"Speed\"", _NO_TRANSACTIONS, beside=()),
        _claim("mutexes-hardly-slower", "With pthread mutexes it is slightly slower than with transactional memory, "
               "but the slowdown may not be significant.", "§9 \"Speed\"", _NO_TRANSACTIONS, beside=(),
               differs="in the author's public data the mutexes are faster at each of the eight counts; glibc's mutexes use "
               "transactions themselves on that machine, as the paper says"),
        _others("hyperthreading", "Hyperthreading essentially gives perfect speedup in this workload.", "§9 \"Speed\"",
                j.cannot("the suite does not place threads on the hardware threads of one core and of several"),
                differs="in the author's public data going from 4 to 8 threads on 4 cores gains 1.8 times"),
    ),
    _malloc_test, ALL, (TIME, MEMORY), RATE, seconds_a_run=0.5, variants=IN_TURN,
)

FIGURE_7 = Figure(
    "supermalloc-7", "supermalloc", "Figure 7", "malloc-test on a machine without transactional memory", _SHOWS,
    (
        _claim("locks-fast-too",
               "The same decisions that make HTM run fast also make lock-based code run fast: SuperMalloc is "
               "the fastest with locks (here: over all thread counts).", "§9 \"Speed\"", j.less(TIME, OTHERS),
               cores=PAPERS_CORES),
        _claim("saturates",
               "This machine has 32 hardware threads, and SuperMalloc saturates the hardware at about 16 producers: "
               "it gains until then (here: from 8 producers to 16 at least a quarter).", "§9 \"Speed\"",
               j.changes(TIME, j.only(8), j.only(16), high=1 / 1.25), cores=PAPERS_CORES),
        _claim("faster-with-32",
               "On 32 threads without HTM SuperMalloc is 3.4 times faster [than the best of DLmalloc, JEmalloc, Hoard, "
               "and TBBmalloc] (here: 32 producers, at least 2.5 times).", "Abstract",
               j.less(TIME, OTHERS, at=j.only(32), by=0.4), cores=32),
        _claim("cpu-caches", "Instead of paying for all the cache-coherence traffic of a global structure, a per-CPU one "
               "pays only the cost of executing the lock instruction (here: less time, over all thread counts, than where "
               "all CPUs have one's caches, and so its capacity as well; the paper: of a counter, Figure 5).", "§8",
               j.less(TIME, NO_CPU), needs=(NO_CPU,), cores=PAPERS_CORES, own=True, beside=()),
        _claim("cpu-caches-traffic", "Instead of paying for all the cache-coherence traffic of a global structure, a per-CPU "
               "one pays only the cost of executing the lock instruction (§8; here: the traffic itself, counted on 8 and more "
               "simulated cores; fewer lines of the cache change owner than where all CPUs have one's caches).", "§8",
               j.if_known(j.simulated_less(simulated.MOVES, "cache lines that change owner, an operation,", NO_CPU,
                                           least=SCALING_CORES),
                          "`spanalloc bench manycore --workloads malloc-test` counts it"),
               needs=(NO_CPU,), own=True, beside=()),
        _claim("global-cache", "The global cache, of which many objects move in constant time, spares the lock of a bin's "
               "folios (less time than without it, over all thread counts).", "beyond the paper", j.less(TIME, NO_GLOBAL),
               needs=(NO_GLOBAL,), own=True, beside=()),
    ),
    _malloc_test, ALL, (TIME, MEMORY), RATE, seconds_a_run=0.5, variants=IN_TURN,
)

_NEWER = ("hoard", "jemalloc", "tbbmalloc", "supermalloc")

FIGURE_8 = Figure(
    "supermalloc-8",
    "supermalloc", "Figure 8", "Mean, fastest and slowest trial of malloc-test with 8 producers",
    _SHOWS + " How runs differ in instructions, for which two cores are enough: `spanalloc bench figure supermalloc-calls`.",
    (
        _claim("three-times-faster",
               "SuperMalloc runs about three times faster than JEmalloc and TBBmalloc (here: at least "
               "twice).", "§9 \"Speed\"", j.less(TIME, ("jemalloc", "tbbmalloc"), at=at_eight, by=0.5),
               cores=SCALING_CORES),
        _others("similar-variance",
                "For JEmalloc, TBBmalloc and SuperMalloc the variance is similar: the first two (here: "
                "standard deviations at most 3 times apart; needs many rounds).", "§9 \"Speed\"",
                j.steady(TIME, "jemalloc", "tbbmalloc", 3.0, at=at_eight), "jemalloc", "tbbmalloc",
                cores=SCALING_CORES),
        _claim("similar-variance-too",
               "For JEmalloc, TBBmalloc and SuperMalloc the variance is similar: SuperMalloc's (here: standard deviations "
               "at most 3 times apart from each of theirs).", "§9 \"Speed\"",
               j.all_of(*(j.steady(TIME, j.SUBJECT, name, 3.0, at=at_eight) for name in ("jemalloc", "tbbmalloc"))),
               needs=("jemalloc", "tbbmalloc"), cores=SCALING_CORES),
        _others("dlmalloc-slowest",
                "Not only are the newer allocators faster than DLmalloc, but their variance is less: faster.",
                "§9 \"Speed\"",
                j.each(_NEWER, j.less(TIME, "dlmalloc", at=at_eight)),
                "dlmalloc", cores=SCALING_CORES),
        _others("variance-below-dlmallocs",
                "Not only are the newer allocators faster than DLmalloc, but their variance is less: the variance "
                "(here: standard deviations).", "§9 \"Speed\"",
                j.each(_NEWER, j.steadier(TIME, "dlmalloc", at=at_eight)),
                "dlmalloc", cores=SCALING_CORES),
        _others("mean-below-dlmallocs-variance",
                "The mean time to allocate for the others is less than the variance of DLmalloc [slowest less fastest "
                "run].", "§9 \"Speed\"", j.each(_NEWER, j.below_range(TIME, "dlmalloc", at=at_eight)), "dlmalloc",
                cores=SCALING_CORES),
        _others("worst-below-dlmallocs-variance",
                "For JEmalloc, TBBmalloc and SuperMalloc, the worst-case time to allocate is less than the variance of "
                "DLmalloc.", "§9 \"Speed\"",
                j.each(("jemalloc", "tbbmalloc", "supermalloc"), j.below_range(TIME, "dlmalloc", at=at_eight, worst=True)),
                "dlmalloc", cores=SCALING_CORES),
        _claim("relative-variance-less",
               "Since SuperMalloc runs about three times faster, the relative variance is correspondingly three times "
               "less (by its own Figure 8 it is twice JEmalloc's; here: standard deviations, less than JEmalloc's and "
               "TBBmalloc's).", "§9 \"Speed\"",
               j.all_of(*(j.steadier(TIME, name, at=at_eight, relative=True) for name in ("jemalloc", "tbbmalloc"))),
               needs=("jemalloc", "tbbmalloc"), cores=SCALING_CORES),
        _others("original-is-noisy",
                "The original malloc-test varies by more than ten percent, so that only DLmalloc could be told from "
                "the others; the improved one by about half a percent.", "§9 \"Speed\"",
                j.cannot("the suite has the improved malloc-test only, and not the original, which is the author's "
                         "test-malloc_test.c; of how runs of the improved one differ two cores say nothing, on which 16 "
                         "threads take turns")),
    ),
    lambda cores: [Point(workloads.author_malloc_test(8), 8)], ALL, (TIME,), Panel("bars", "producers", spread=True),
    seconds_a_run=0.5, rounds=8,
)

# ---- Figures 9 and 10: a database, Ghostscript ----


FIGURE_9 = Figure(
    "supermalloc-9", "supermalloc", "Figure 9", "A database under load",
    "Super Smack's select-key on MySQL: queries a second and peak memory. Here: Debian's MariaDB under sysbench, 80,000 "
    "selects by key of 8 clients, which take 2 s.",
    (
        _others("same-speed",
                "All five allocators are essentially the same speed with a few percent variance (here: within 5 % of "
                "the best).", "§9 \"Speed\"", j.each(FIVE, j.close_to_best(TIME, FIVE, 1.05), least=2)),
        _others("tbb-uses-more", "TBBmalloc uses a few percent more memory: more than the others (here: the others have at "
                "least 0.9 times as much).", "§9 \"Speed\"",
                j.each(("jemalloc", "supermalloc", "hoard", "dlmalloc"), j.less(MEMORY, "tbbmalloc", low=0.9)), "tbbmalloc"),
        _others("dlmalloc-uses-less", "DLmalloc appears to use a few percent less memory (here: at most 10 % less than each of "
                "the others).", "§9 \"Speed\"",
                j.less(MEMORY, ("jemalloc", "tbbmalloc", "hoard", "supermalloc"), of="dlmalloc", low=0.9), "dlmalloc"),
        _claim("as-fast", "All five are essentially the same speed: SuperMalloc (here: within 5 % of the best other).",
               "§9 \"Speed\"", j.close_to_best(TIME, OTHERS, 1.05)),
        _claim("same-memory",
               "The other allocators [but DLmalloc and TBBmalloc] were about the same: SuperMalloc (here: within 2 % of "
               "JEmalloc's memory).", "§9 \"Speed\"",
               j.within(MEMORY, 0.98, 1.02, to="jemalloc"), needs=("jemalloc",)),
        _others("hoard-same-memory",
                "The other allocators were about the same in the footprint: Hoard (here: within 2 % of JEmalloc).",
                "§9 \"Speed\"", j.within(MEMORY, 0.98, 1.02, of="hoard", to="jemalloc"), "hoard", "jemalloc"),
        _others("tbb-leaks", "TBBmalloc appears to suffer a memory leak; every time the benchmark runs, the footprint "
                "grows by about a megabyte.", "§9 \"Speed\"",
                j.cannot("every run has a database server of its own: none lives on to the next run"), "tbbmalloc"),
        _others("jemalloc-pauses", "JEmalloc causes a 3 s pause about once per day on a database server.",
                "§9 \"Speed\"", j.cannot("no run of the suite lasts for days"), "jemalloc"),
    ),
    lambda cores: [Point(programs.database(), "")], ALL, (TIME, MEMORY), Panel("bars", "allocator"), seconds_a_run=1.7,
)

_QUICKER = ("tbbmalloc", "supermalloc", "dlmalloc")  # in Figure 10 than JEmalloc and Hoard
_NOT_DLMALLOC = "what the paper calls DLmalloc there was most likely the C library's malloc"
_SLICES = ("here no hardware thread is free, so the slowest of millions of calls holds time slices of other processes; "
           "supermalloc-calls counts instructions")
_MAYBE_GLIBC = {"differs": _NOT_DLMALLOC, "played_by": ("dlmalloc", "glibc")}

FIGURE_10 = Figure(
    "supermalloc-10", "supermalloc", "Figure 10", "Ghostscript on a large PDF",
    "Run time and peak memory of gs on the Intel manual of 3251 pages, more than three minutes. Here: a PDF of 400 pages, made "
    "on the spot, some 2 s, by a newer gs than the paper's 9.14. The paper says that its DLmalloc is 2.8.6, which is the one here. Where it says DLmalloc in this figure the "
    "author's script (measure_gs) preloads nothing: it ran the C library's malloc, of 2014, whose descendant stands beside it as "
    "glibc.",
    (
        _others("jemalloc-slower",
                "JEmalloc [and, by the table, Hoard; the text says TBBmalloc] are significantly slower: JEmalloc than "
                "the others.", "§9 \"gs\", Figure 10", j.each(_QUICKER, j.less(ELAPSED, "jemalloc")), "jemalloc",
                **_MAYBE_GLIBC),
        _others("jemalloc-smallest",
                "JEmalloc and Hoard, which are the slowest, also exhibit the smallest memory footprint: JEmalloc.",
                "§9 \"gs\"", j.less(MEMORY, _QUICKER, of="jemalloc"), "jemalloc", **_MAYBE_GLIBC),
        _others("dlmalloc-equals-tbb",
                "The difference between DLmalloc and TBBmalloc is small, less than one standard deviation (here: "
                "within 2 %).", "§9 \"gs\"", j.within(ELAPSED, 1 / 1.02, 1.02, of="dlmalloc", to="tbbmalloc"),
                "dlmalloc", "tbbmalloc", **_MAYBE_GLIBC),
        _others("hoard-slower", "JEmalloc and Hoard are the slowest: Hoard is slower than the others.",
                "§9 \"gs\", Figure 10", j.each(_QUICKER, j.less(ELAPSED, "hoard")), "hoard", **_MAYBE_GLIBC),
        _others("hoard-small",
                "JEmalloc and Hoard, which are the slowest, also exhibit the smallest memory footprint: Hoard.",
                "§9 \"gs\"", j.less(MEMORY, _QUICKER, of="hoard"), "hoard", **_MAYBE_GLIBC),
        _claim("slightly-slower",
               "SuperMalloc is slightly slower [than DLmalloc and TBBmalloc], the difference just larger than "
               "the measurement error (here: 0 to 5 % slower than each of the two).", "§9 \"gs\"",
               j.all_of(*(j.within(ELAPSED, 1.0, 1.05, to=name) for name in ("dlmalloc", "tbbmalloc"))),
               needs=("dlmalloc", "tbbmalloc"), **_MAYBE_GLIBC),
        _claim("most-wasteful", "SuperMalloc is, by a small margin, the most wasteful of space (here: by whatever margin).",
               "§9 \"gs\"", j.all_of(*(j.less(MEMORY, j.SUBJECT, of=name) for name in OTHERS)), needs=OTHERS,
               beside=(ORIGINAL,), **_MAYBE_GLIBC),
    ),
    lambda cores: [Point(programs.ghostscript(), "")], ALL, (ELAPSED, MEMORY), Panel("bars", "allocator", spread=True),
    seconds_a_run=1.8,
)

# ---- Figures 11 and 12: larson, SuperServer ----

MEAN_MALLOC = metric("malloc_mean_ns", "ns", "mean malloc")
DEVIATION = metric("malloc_stddev_ns", "ns", "deviation of malloc")


def _hardware_threads(cores):
    """The paper ran larson with 8 threads on 8 hardware threads."""
    return max(2, min(cores, 8))


def _larson(cores):
    return classic.larson(_hardware_threads(cores), 7, 500, latency=True)


FIGURE_11 = Figure(
    "supermalloc-11", "supermalloc", "Figure 11", "Larson, with the deviation of single calls",
    "Larson with sizes of 7 to 500 bytes, 1000 objects a thread, as many threads as hardware threads (the paper: 8): "
    "time an operation, the standard deviation of malloc's time, peak memory (here beyond the process: with fewer "
    "threads than the paper's it is most of it). The author's writes every byte of an object, ours a stamp at either end. "
    "Timing each call is part of the time. Here ten generations of threads and 2.5 "
    "million pairs of calls a thread, which take 0.3 to 1 s (the paper: 10 s).",
    (
        _claim("fastest", "SuperMalloc was fastest by a small margin (here: by whatever margin).", "§9 \"Larson\"",
               j.less(TIME, OTHERS), **_MAYBE_GLIBC),
        _others("deviation",
                "The standard deviation is much larger than the mean: there are some very slow allocations (here: of "
                "the calls of malloc alone, at least 5 times, for every allocator).", "§9 \"Larson\"",
                j.each(FIVE, j.measures_within(DEVIATION, MEAN_MALLOC, 5.0, None)),
                differs=f"{_SLICES}; {_NOT_DLMALLOC}", played_by=("dlmalloc", "glibc")),
        _others("no-advantage",
                "It wasn't clear that any of the allocators has any particular advantage [in its slowest call] "
                "(here: none's worst malloc is below half of the best other's; that this is not clear, the paper says, "
                "too).", "§9 \"Larson\"", j.each(FIVE, j.not_below_best(worst("malloc"), FIVE, 0.5), least=2),
                differs=f"{_SLICES}; {_NOT_DLMALLOC}", played_by=("dlmalloc", "glibc")),
        _claim("less-memory",
               "SuperMalloc takes less memory than JEmalloc and TBBmalloc (7.3 against 8.7 and 9.9 MiB), and more than "
               "DLmalloc and Hoard (6.6 and 7.0 MiB).", "Figure 11",
               j.all_of(j.less(NET_MEMORY, ("jemalloc", "tbbmalloc")),
                        *(j.less(NET_MEMORY, j.SUBJECT, of=name) for name in ("dlmalloc", "hoard"))),
               needs=("dlmalloc", "hoard"), **_MAYBE_GLIBC),
    ),
    lambda cores: [Point(_larson(cores), "")], ALL, (TIME, MEAN_MALLOC, DEVIATION, worst("malloc"), NET_MEMORY),
    Panel("bars", "allocator"), seconds_a_run=1.0,
    stand_ins=lambda cores: [process_alone(_larson(cores), objects=1, rounds=1)],
)

_FIXED_WORK = "the elapsed time of a fixed number of allocations, where the paper's is ten seconds and the clean-up behind them"
_OF_WHAT_LIVES = {"differs": "the peak after a fixed number of allocations, of which 0.9 GiB live under every allocator: only what is "
                  "beyond that can differ; the paper's is of what each allocated in ten seconds, as none of the data is freed, and "
                  f"so holds how fast it is, too; {_NOT_DLMALLOC}", "played_by": ("dlmalloc", "glibc")}

FIGURE_12 = Figure(
    "supermalloc-12", "supermalloc", "Figure 12", "SuperServer",
    "Sizes over a wide range, lifetimes in proportion to size, objects freed by other threads: times, peak memory, slowest "
    "calls. Here as many threads as hardware threads, at least two (the author's server.cc: four, on eight). It allocates for "
    "ten seconds with any allocator: the paper's elapsed times, 11.5 to 13.0 s, are those and what the clean-up at the end takes. "
    "Ours are of a fixed number of allocations. As in the author's server.cc, of an object that expires "
    "the header is freed and never its data, and every byte is written, within the timed call. Here 20 million allocations "
    "that the threads divide, 0.9 GiB of data (the paper: ten seconds, 0.9 to 1.9 GiB at the peak), and an object expires "
    "when another of its size takes its place (the author's: the one of the highest address). Timing each call is part of "
    "the time.",
    (
        _claim("smallest-footprint",
               "SuperMalloc has the smallest footprint by a significant margin (here: at most 0.8 times each of the "
               "others').", "§9 \"SuperServer\"", j.less(MEMORY, OTHERS, by=0.8), **_OF_WHAT_LIVES),
        _claim("slower",
               "The fastest allocators are Hoard and TBBmalloc, with JEmalloc close behind, followed by SuperMalloc: "
               "it is slower than TBBmalloc.", "§9 \"SuperServer\"", j.less(ELAPSED, j.SUBJECT, of="tbbmalloc"),
               needs=("tbbmalloc",), differs=_FIXED_WORK),
        _others("jemalloc-close",
                "JEmalloc runs close behind TBBmalloc (here: 0 to 10 % slower).", "§9 \"SuperServer\"",
                j.within(ELAPSED, 1.0, 1.10, of="jemalloc", to="tbbmalloc"), "jemalloc", "tbbmalloc",
                differs=_FIXED_WORK),
        _others("tbb-slow-call",
                "TBBmalloc has an occasionally slow allocation that takes more than a millisecond, whereas "
                "JEmalloc keeps the slowest down to about half that.", "§9 \"SuperServer\"",
                j.less(worst("malloc"), "tbbmalloc", of="jemalloc", by=0.75), "jemalloc", "tbbmalloc", cores=SCALING_CORES, differs=_SLICES),
        _others("dlmalloc-slow-call",
                "TBBmalloc and DLmalloc both have an occasionally slow allocation that takes more than a millisecond, "
                "whereas the others keep the slowest down to about half that: DLmalloc against JEmalloc.",
                "§9 \"SuperServer\"", j.less(worst("malloc"), "dlmalloc", of="jemalloc", by=0.75), "dlmalloc",
                "jemalloc", cores=SCALING_CORES, differs=f"{_SLICES}; {_NOT_DLMALLOC}", played_by=("dlmalloc", "glibc")),
        _claim("no-slow-call",
               "… the others keep the slowest allocation down to about half a millisecond: SuperMalloc (here: at most "
               "0.75 of TBBmalloc's).", "§9 \"SuperServer\"", j.less(worst("malloc"), "tbbmalloc", by=0.75),
               needs=("tbbmalloc",), cores=SCALING_CORES, differs=_SLICES),
        _others("hoard-no-slow-call",
                "… the others keep the slowest allocation down to about half a millisecond: Hoard (here: at most 0.75 "
                "of TBBmalloc's).", "§9 \"SuperServer\"", j.less(worst("malloc"), "tbbmalloc", of="hoard", by=0.75),
                "hoard", "tbbmalloc", cores=SCALING_CORES, differs=_SLICES),
        *(_claim(f"{name}-twice-the-footprint",
                 f"SuperMalloc has the smallest footprint, with Hoard and DLmalloc off by a factor of two: {title} "
                 f"(here: 1.5 to 2.5 times).", "§9 \"SuperServer\"",
                 j.within(MEMORY, 1.5, 2.5, of=name), needs=(name,), **_OF_WHAT_LIVES)
          for name, title in (("hoard", "Hoard"), ("dlmalloc", "DLmalloc"))),
        _others("hoard-and-tbb-fastest",
                "The fastest allocators are Hoard and TBBmalloc (here: each faster than the other three).",
                "§9 \"SuperServer\"", j.all_of(*(j.less(ELAPSED, ("jemalloc", "supermalloc", "dlmalloc"), of=name)
                                                 for name in ("hoard", "tbbmalloc"))), "hoard", "tbbmalloc",
                differs=_FIXED_WORK),
        _others("dlmalloc-slowest", "… with JEmalloc close behind, followed by SuperMalloc and DLmalloc: DLmalloc is "
                "slower than the others.", "§9 \"SuperServer\"", j.each(_NEWER, j.less(ELAPSED, "dlmalloc")),
                "dlmalloc", differs=f"{_FIXED_WORK}; {_NOT_DLMALLOC}", played_by=("dlmalloc", "glibc")),
        _others("free-is-fast",
                "All of the allocators are pretty fast at calling free() (the paper: the slowest free is at most a "
                "tenth of the slowest malloc).", "§9 \"SuperServer\"",
                j.each(FIVE, j.measures_within(worst("free"), worst("malloc"), None, 0.1)), cores=SCALING_CORES, differs=f"{_SLICES}; {_NOT_DLMALLOC}", played_by=("dlmalloc", "glibc")),
    ),
    lambda cores: [Point(workloads.author_superserver(_hardware_threads(cores)), "")], ALL,
    (ELAPSED, USER, SYSTEM, MEMORY, worst("malloc"), worst("free")), Panel("bars", "allocator"), seconds_a_run=5.0,
)

# ---- Figure 13: the Vyukov chain ----

FOOTPRINT = Measure("peak memory over peak live", "",
                    lambda s: peak_kib(s) * 1024 / s.peak_live_bytes if s.peak_live_bytes and s.peak_kib else None)

_PAPERS, _SHORTER = "200 threads", "40 threads"
_FITTING = tuple(name for name in OTHERS if name != "tbbmalloc")
_NO_FOLIO_BACK = ("by its author's notes and sources the SuperMalloc of that figure gave no folio back to the kernel yet, as section "
                  "4 says, and as the engine and his last version do")
_PURGES_BY_AGE = "jemalloc 5 purges by the age of pages, where 3.6 purged by their share"
_TOO_LARGE = "TBBmalloc, which may need more memory there than the machine has, is left out"

FIGURE_13 = Figure(
    "supermalloc-13", "supermalloc", "Figure 13", "The Vyukov chain",
    "Thread 0 allocates and gives to thread 1, which frees and allocates, and so on; 200 threads, 50,000 objects each, of "
    "which every byte is written, never more than 100 MiB live: the author's parameters. Three rounds. There the last thread "
    "allocates nothing; here what it allocates is freed by the first. Beside it a chain of 40 threads of 10,000 objects, 20 "
    "MiB, as in the longer one TBBmalloc may need more memory than there is. The author's threads end 5 s after their turn; ours "
    "live to the end. No run of DLmalloc in this chain is among the author's scripts and notes, and the paper's 2.3 GiB are near "
    "what glibc takes here, not DLmalloc.",
    (
        _others("tbb-blows-up",
                "TBBmalloc blew up memory substantially: 4.1 GiB for at most 100 MiB (here: at least 10 times what lives).",
                "§9 \"Footprint\"", j.value_within(FOOTPRINT, 10.0, None, "tbbmalloc", j.series(_SHORTER)), "tbbmalloc",
                differs="the shorter chain is judged"),
        _others("jemalloc-system",
                "JEmalloc used a great deal of system time, apparently aggressively calling madvise() (10.3 s, the others "
                "0.2 to 5.8; here: at least 1.5 times each of the others').", "§9 \"Footprint\"",
                j.each(("dlmalloc", "hoard", "supermalloc"),
                       j.less(SYSTEM, "jemalloc", by=1 / 1.5, at=j.series(_PAPERS))),
                "jemalloc", differs=f"{_TOO_LARGE}; {_NOT_DLMALLOC}; {_PURGES_BY_AGE}; {_NO_FOLIO_BACK}", played_by=("dlmalloc", "glibc")),
        _others("dlmalloc-blows-up", "DLmalloc blew up memory substantially: 2.3 GiB of RSS (here: at least 10 times what "
                "lives).", "§9 \"Footprint\"", j.value_within(FOOTPRINT, 10.0, None, "dlmalloc", j.series(_PAPERS)), "dlmalloc",
                **_MAYBE_GLIBC),
        _claim("smallest",
               "SuperMalloc has the smallest footprint of all, about twice what is live (219 MiB; here: less than the "
               "others, and at most 2.5 times the live bytes).", "Figure 13",
               j.all_of(j.less(MEMORY, _FITTING, at=j.series(_PAPERS)),
                        j.value_within(FOOTPRINT, None, 2.5, at=j.series(_PAPERS))),
               differs=f"{_TOO_LARGE}; {_NOT_DLMALLOC}; {_PURGES_BY_AGE}, and holds some 19 times what lives, where the paper's "
               f"held 2.3 times; {_NO_FOLIO_BACK}: with 2.2 times what lives, as there, it would not be below Hoard's",
               played_by=("dlmalloc", "glibc")),
        _claim("little-system-time",
               "SuperMalloc needs next to no system time (0.2 of 16 s; here: at most a tenth of its user "
               "time).", "Figure 13", j.measures_within(SYSTEM, USER, None, 0.1, at=j.series(_PAPERS)),
               differs=_NO_FOLIO_BACK),
    ),
    lambda cores: [Point(workloads.author_vyukov(), "", _PAPERS), Point(workloads.vyukov(), "", _SHORTER)], ALL,
    (ELAPSED, USER, SYSTEM, MEMORY), Panel("bars", "chain", log_y=True), seconds_a_run=5.0, rounds=3,
)

# ---- Section 10: what it costs to uncommit a page ----

UNCOMMIT, UNCOMMITTED = metric("uncommit_and_touch_ns", "ns", "committed: the call, and a write"), metric(
    "uncommitted_ns", "ns", "uncommitted already: the call")
TOUCH, CALL = metric("touch_ns", "ns", "a write alone"), metric("uncommit_ns", "ns", "committed: the call alone (ours)")

SECTION_10 = Figure(
    "supermalloc-madvise", "supermalloc", "§10", "What it costs to uncommit a page",
    "madvise(MADV_DONTNEED) of one page, again and again. As the author's madvise.cc, whose first figure holds the call and the "
    "write that commits the page again; 100,000 times (there: a million). Ours: the call alone, of pages that were written before. "
    "No allocator takes part, and huge pages are forbidden there.",
    (
        Claim("uncommitting-costs", "It takes 1800 ns to uncommit a page by madvise(MADV_DONTNEED), and 240 ns where it is "
              "uncommitted already (7.5 times; here: at least 3 times).", "§10",
              j.measures_within(UNCOMMIT, UNCOMMITTED, 3.0, None, of="glibc")),
        Claim("uncommitting-alone-costs", "So it does without the page fault that commits the page again (at least 1.5 times).",
              "beyond the paper", j.measures_within(CALL, UNCOMMITTED, 1.5, None, of="glibc"), own=True),
    ),
    lambda cores: [Point(workloads.page_uncommit(), "")], ("glibc",), (UNCOMMIT, CALL, UNCOMMITTED, TOUCH),
    Panel("bars", "", log_y=True), seconds_a_run=1.0,
)

# ---- Figures 8, 11 and 12 by instructions ----


_counted = functools.partial(Claim, own=True)


def _ratio(program, upper, lower, low, high):
    return j.fact_ratio((upper(program),), (lower(program),), low, high)


FIGURE_CALLS = Figure(
    "supermalloc-calls", "supermalloc", "Figures 8, 11, 12, counted", "Variance, deviation and longest calls by instructions",
    "Ours: what the paper asks of times, of instructions in user mode, which neither the kernel nor the machine's other work "
    "disturbs: each call of malloc and free in larson and SuperServer with two threads, counted in an emulator; and five runs "
    "of malloc-test with 8 producers, whose threads run in another order each time. Some minutes, exact on a busy machine. Page "
    "faults and waits, in which the paper's slow calls may lie, are not in it: a row says whether the allocators' own code is "
    "why, and neither confirms nor refutes what the paper says of time.",
    (
        _counted("similar-variance", "SuperMalloc's runs of malloc-test lie apart by less of their mean than JEmalloc's and "
                 "TBBmalloc's (of time: Figure 8).", "Figure 8",
                 j.fact_less(calls.SPREAD, ("jemalloc", "tbbmalloc"), chance=calls.CHANCE), SUPERMALLOC, ("standard", "scalloc")),
        _counted("steady-runs", "Each of the five allocators' runs of malloc-test lie apart by at most 5 % of their mean (of time: "
                 "§9 \"Speed\", about half a percent).", "§9 \"Speed\"", j.each(FIVE, j.fact_within(calls.SPREAD, None, 0.05))),
        _counted("deviation", "What is slow in Figure 11 is in the allocators' own instructions, not only in the kernel and in "
                 "waiting: in larson the deviation of malloc is at least 5 times its mean, for each of the five.", "Figure 11",
                 j.each(FIVE, _ratio("larson", lambda p: calls.deviation_of(p, "malloc"),
                                     lambda p: calls.mean_of(p, "malloc"), 5.0, None))),
        _counted("no-advantage", "By its own instructions none of the five has an advantage in its slowest call in larson: none's "
                 "longest malloc is below half of the best other's (of time: Figure 11).", "§9 \"Larson\"",
                 j.each(FIVE, j.fact_not_below_best(calls.worst_of("larson", "malloc"), FIVE, 0.5), least=2)),
        _counted("no-slow-call", "TBBmalloc's slow allocations in SuperServer are in its own instructions: SuperMalloc's longest "
                 "malloc is at most 0.75 of TBBmalloc's (of time: Figure 12).", "Figure 12",
                 j.fact_less(calls.worst_of("superserver", "malloc"), ("tbbmalloc",), by=0.75), SUPERMALLOC,
                 ("standard", "scalloc")),
        _counted("free-is-fast", "By instructions, too, all five are fast at calling free in SuperServer: the longest free is at "
                 "most a tenth of the longest malloc (of time: Figure 12).", "Figure 12",
                 j.each(FIVE, _ratio("superserver", lambda p: calls.worst_of(p, "free"),
                                     lambda p: calls.worst_of(p, "malloc"), None, 0.1))),
    ),
    lambda cores: [], ALL, (), Panel("bars", "allocator"), rounds=0, facts=calls.facts, facts_seconds=420,
    facts_programs=(*calls.WORKLOADS, calls.PLUGIN, calls.MARKS),
)

FIGURES = [FIGURE_1, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10, FIGURE_11, FIGURE_12, FIGURE_13,
           FIGURE_14, SECTION_10, FIGURE_CALLS]
