"""Lock-free coalescing (Leite & Rocha; ISMM 2019): section 5.

The contenders are page managers: `mmap` (the operating system, SYS), `tree` (the paper's, COA) and `tree-recursive`
(COA-R), `static` (ours), and NBBS where its path is given.
"""

from __future__ import annotations

import functools
import math

from spanalloc_bench.cases import pages
from papers.shared.figures import judges as j
from papers.shared.figures.figure import ELAPSED, TIME, Claim, Figure, Panel, Paper, Point, metric, over_threads

PAPER = Paper(
    "coalescing", "A Lock-Free Coalescing-Capable Mechanism for Memory Management",
    "R. Leite, R. Rocha; ISMM 2019", "four 6-core AMD Opteron 8425 HE at 2.1 GHz, 128 GB, Linux 4.4",
    (("Figure 1", "diagram: block information"), ("Figure 2", "diagram: locating neighbours"),
     ("Figure 3", "diagram: backward coalescing"), ("Figure 4", "diagram: simultaneous coalescing"),
     ("Listings", "code: mapper, controller, allocation, deallocation")),
    room="leite_rocha",
    pictured="coalescing-5",
)
COA, COA_R, OURS, SYS, NBBS = "tree", "tree-recursive", "static", "mmap", "nbbs"
MANAGERS = (COA, COA_R, OURS, SYS, NBBS)
SCALING_CORES = 8
FAILURES = metric("failures", "", "failures")
MOST_FAILURES = metric("failures_max", "", "failures in the worst run")
FAILURE_SHARE = metric("failures_per_free", "%", "failures a free", 100)


_claim = functools.partial(Claim, subject=COA, beside=(OURS,))


def _recursion_is_free(measure):
    return Claim("recursion-is-free", "The results with and without recursive coalescing are very similar: its cost is "
                 "negligible (here: within 10 % at each number of threads up to the cores).", "§5, after Figure 7",
                 j.within_at_each(measure, 0.9, 1.1, of=COA_R, at=j.to_cores), subject=COA, needs=(COA_R,))


def _ours_beats_theirs(measure):
    return Claim("static-faster-than-tree", "Our mechanism (static) is faster than the paper's (up to as many threads "
                 "as cores).", "beyond the paper", j.less(measure, COA, at=j.to_cores), subject=OURS, needs=(COA,),
                 own=True)


LINES = Panel("lines", "threads", log_y=True)

FIGURE_5 = Figure(
    "coalescing-5", "coalescing", "Figure 5", "Linux scalability, in pages",
    "Each thread allocates 10,000 blocks of one page, then frees them, three times (the paper: once); execution time. A request "
    "that is refused waits and tries again, where the paper's turns to the operating system.",
    (
        _claim("best", "Our mechanism obtains the best results: faster than the operating system.", "§5, Figure 5",
               j.less(TIME, SYS, at=j.to_cores), needs=(SYS,)),
        _claim("tendency-like-os",
               "… with a performance tendency comparable to the operating system as the number of threads "
               "increases (here: from one thread to as many as cores, within a factor of 2 of the system's growth).",
               "§5, Figure 5", j.narrows(TIME, j.SUBJECT, SYS, j.fewest, j.full, low=0.5, high=2.0), needs=(SYS,),
               cores=SCALING_CORES),
        _claim("nbbs-bad", "NBBS performs quite badly, even with a single thread (here: at least 10 times our time).",
               "§5, Figure 5", j.less(TIME, NBBS, at=j.fewest, by=0.1), needs=(NBBS,)),
        Claim("nbbs-degrades",
              "NBBS suffers from massive performance degradation as the number of threads increases (execution time of "
              "the same work a thread; here: at least doubled from one thread to as many as cores).", "§5, Figure 5",
              j.changes(ELAPSED, j.fewest, j.full, low=2.0, of=NBBS), needs=(NBBS,), cores=SCALING_CORES),
        *(Claim(f"{name}-degrades", f"Similarly to the previous benchmark [Figure 5], all mechanisms show a "
                f"performance degradation as the number of threads increases: {title}.", "§5, after Figure 6",
                j.changes(ELAPSED, j.fewest, j.full, low=1.0, of=name), needs=(name,), cores=SCALING_CORES)
          for name, title in ((SYS, "the operating system"), (COA, "ours"))),
        _recursion_is_free(TIME),
        _ours_beats_theirs(TIME),
    ),
    over_threads(pages.linux_scalability), MANAGERS, (ELAPSED, TIME), LINES, pages=True, seconds_a_run=0.3,
)

FIGURE_6 = Figure(
    "coalescing-6", "coalescing", "Figure 6", "Threadtest, in pages",
    "Each thread allocates 100 blocks of one page, then frees them, 300 times (the paper: 100 times); execution time. A request "
    "that is refused waits and tries again, where the paper's turns to the operating system.",
    (
        _claim("ten-times-os",
               "Execution times are one order of magnitude better than the operating system's (here: at least 5 "
               "times, up to as many threads as cores).", "§5, Figure 6", j.less(TIME, SYS, at=j.to_cores, by=0.2), needs=(SYS,)),
        _claim("hundred-times-nbbs",
               "… and two orders of magnitude better than NBBS (here: at least 50 times).", "§5, Figure 6",
               j.less(TIME, NBBS, at=j.to_cores, by=0.02), needs=(NBBS,)),
        Claim("all-degrade",
              "All mechanisms show a performance degradation as the number of threads increases: the operating "
              "system (execution time of the same work a thread, up to the cores).", "§5, Figure 6",
              j.changes(ELAPSED, j.fewest, j.full, low=1.0, of=SYS), needs=(SYS,), cores=SCALING_CORES),
        _claim("degrades", "All mechanisms show a performance degradation as the number of threads increases: ours.",
               "§5, Figure 6", j.changes(ELAPSED, j.fewest, j.full, low=1.0), cores=SCALING_CORES),
        Claim("nbbs-degrades",
              "All mechanisms show a performance degradation as the number of threads increases: NBBS.",
              "§5, Figure 6", j.changes(ELAPSED, j.fewest, j.full, low=1.0, of=NBBS), needs=(NBBS,),
              cores=SCALING_CORES),
        _recursion_is_free(TIME),
        _ours_beats_theirs(TIME),
    ),
    over_threads(pages.threadtest), MANAGERS, (ELAPSED, TIME), LINES, pages=True, seconds_a_run=0.4,
)

FIGURE_7 = Figure(
    "coalescing-7", "coalescing", "Figure 7", "Larson, in pages",
    "Threads that allocate 1 to 128 pages into random slots and hand their slots on; allocations a second. Fixed work "
    "instead of 5 seconds. A request that is refused waits and tries again, where the paper's turns to the operating system.",
    (
        _claim("throughput-grows",
               "Our mechanism consistently handles higher allocation throughput as the number of threads "
               "increases, … (here: going from half the cores to all of them gains at least a tenth).", "§5, Figure 7", j.scales(TIME, gain=1.1), cores=SCALING_CORES),
        Claim("os-does-not", "… which is not the case with the operating system.", "§5, Figure 7",
              j.scales(TIME, of=SYS, gain=None, high=1.1), needs=(SYS,), cores=SCALING_CORES),
        Claim("nbbs-does-not", "… which is not the case with NBBS.", "§5, Figure 7",
              j.scales(TIME, of=NBBS, gain=None, high=1.1), needs=(NBBS,), cores=SCALING_CORES),
        _claim("above-os",
               "Its throughput lies above the operating system's.", "Figure 7", j.less(TIME, SYS, at=j.to_cores),
               needs=(SYS,)),
        _claim("above-more-with-threads",
               "Our proposal obtains the best results, especially as the number of threads increases: its time over the "
               "operating system's shrinks (here: from one thread to as many as cores).", "§6",
               j.narrows(TIME, j.SUBJECT, SYS, j.fewest, j.full), needs=(SYS,), cores=SCALING_CORES),
        _claim("above-nbbs", "Our proposal obtains the best results, against NBBS and the operating system: NBBS.",
               "§6", j.less(TIME, NBBS, at=j.to_cores), needs=(NBBS,)),
        _recursion_is_free(TIME),
        _ours_beats_theirs(TIME),
    ),
    over_threads(pages.larson), MANAGERS, (TIME,), Panel("lines", "threads", log_y=True, rate=True), pages=True,
    seconds_a_run=0.7,
)

BLOCKS = (100, 500, 1000, 2000, 4000)
RUNS = 40
MIDDLE = (8, 12, 16)  # thread counts at which the paper saw more failures
MIDDLE_CORES = 24     # the paper's: beyond the middle there must be more cores


def _failures(cores):
    """Two threads and the most; the middle where there are cores for it."""
    most = max(2, min(max(cores, 4), 32))
    middle = MIDDLE if cores >= MIDDLE_CORES else ()
    return [Point(pages.coalescing_failures(threads, blocks, RUNS), blocks, f"{threads} threads")
            for threads in dict.fromkeys((2, *middle, most)) for blocks in BLOCKS]


def _threads_of(point):
    return int(point.series.split()[0])


def _nearer_to_threads(data, subject):
    """At each number of threads that there are cores for, and of blocks: below the geometric middle of both."""
    places = [p for p in data.points if _threads_of(p) <= max(2, data.cores)]
    judges = (j.value_within(FAILURES, None, _threads_of(p) * math.sqrt(p.x), at=lambda found, p=p: [p]) for p in places)
    return j.all_of(*judges)(data, subject)


def _grows_with_blocks(data, subject):
    """From the fewest blocks to the most, at each number of threads."""
    series = dict.fromkeys(p.series for p in data.points)
    judges = (j.changes(FAILURES, j.series(name, j.only(BLOCKS[0])), j.series(name, j.only(BLOCKS[-1])), low=1.1)
              for name in series)
    return j.all_of(*judges)(data, subject)


_GROWS_WITH_BLOCKS = j.Judge(_grows_with_blocks, lambda subject: (
    f"failures of {subject} with {BLOCKS[-1]:,} blocks at least 1.1 times those with {BLOCKS[0]}, at each number of threads"))
_AS_MANY_AS_THREADS = j.Judge(_nearer_to_threads, lambda subject: (
    f"failures of {subject} at every place below the number of threads times the root of the blocks a thread"))


def _is_more_in_the_middle(data, subject):
    """In proportion to the threads, against the fewest and the most of them."""

    def places(*counts):
        return lambda found: [p for p in found.points if _threads_of(p) in counts and p.x >= 500]

    typical = math.prod(MIDDLE) ** (1 / len(MIDDLE))  # scores are geometric means
    ends = (2, max(map(_threads_of, data.points)))
    judges = (j.changes(FAILURES, places(end), places(*MIDDLE), low=typical / end) for end in ends)
    return j.all_of(*judges)(data, subject)


_MORE_IN_THE_MIDDLE = j.Judge(_is_more_in_the_middle, lambda subject: (
    f"failures a thread of {subject} with {', '.join(map(str, MIDDLE))} threads above those with two and with the most"))


FIGURE_8 = Figure(
    "coalescing-8", "coalescing", "Figure 8", "Failed coalescing attempts",
    "T threads free B randomly distributed blocks each, all at once; the blocks that remain, less one, are the "
    "failures. The operating system has no such number. The paper: the mean of 1000 runs, 2 to 32 threads; here of 40 "
    "in each round.",
    (
        _claim("rare",
               "Coalescing failures only occur in a very small percentage of all deallocations (here: at most 1 % "
               "as mean over all points).",
               "§5 \"Coalescing Failures\"", j.mean_within(FAILURE_SHARE, None, 0.01), cores=2),
        _claim("grows-with-blocks",
               "In general, the number of failures increases as the number of blocks to be deallocated increases (here: "
               "from 100 blocks to 4000 by a tenth at least, for each number of threads).",
               "§5 \"Coalescing Failures\"", _GROWS_WITH_BLOCKS, beside=(), cores=2),
        _claim("as-many-as-threads",
               "The total number of coalescing failures is closer to the number of threads itself (here: than to the "
               "number of frees, as a ratio, for each number of blocks and of threads up to the cores).",
               "§5 \"Coalescing Failures\"", _AS_MANY_AS_THREADS, beside=(), cores=2),
        _claim("more-in-the-middle",
               "With 500 to 4000 blocks and with 8, 12 and 16 threads there is a higher amount of coalescing failures "
               "(here: more a thread than with two and with the most threads).", "§5 \"Coalescing Failures\"",
               _MORE_IN_THE_MIDDLE, beside=(), cores=MIDDLE_CORES),
        Claim("recursive-close-to-one",
              "With recursive coalescing the number of remaining blocks is close to 1 on average; only in a very small "
              "fraction of the experiments it is 2 or 3 (here: 0.05 failures a run at most, as mean over all points, and never "
              "more than 2).",
              "§5 \"Coalescing Failures\"",
              j.all_of(j.mean_within(FAILURES, None, 0.05), j.value_within(MOST_FAILURES, None, 2.0)), subject=COA_R,
              beside=(OURS,), cores=2),
        Claim("static-never-fails", "Our mechanism (static) leaves one block in every single run: no failure.",
              "beyond the paper", j.value_within(MOST_FAILURES, None, 0.0), subject=OURS, cores=2, own=True),
    ),
    _failures, (COA, COA_R, OURS), (FAILURES, FAILURE_SHARE, MOST_FAILURES), Panel("lines", "blocks a thread"),
    pages=True, seconds_a_run=0.25,
)

FIGURES = [FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8]
