"""What the a2alloc report leaves for later, built and measured: size classes (2.1), superblocks ordered by fullness
(2.1.2, 2.2.1), several heap records in one superblock (3.2). Our own experiment; the report has no such figures.

`a2alloc-size-classes`, `a2alloc-fullest-first` and `a2alloc-shared-records` change one thing each,
`a2alloc-classes` all three. They run in turn with the faithful engine, kheap and glibc, where each could matter.
"""

from __future__ import annotations

import dataclasses

from spanalloc_bench.cases import beyond
from papers.a2alloc.figures import figures as a2alloc
from papers.a2alloc.figures import steps
from papers.shared.figures import judges as j
from papers.shared.figures.figure import NET_MEMORY, TIME, Claim, Figure, Panel, Point, metric, process_alone

PAPER = a2alloc.PAPER
A2ALLOC, KHEAP, LIBC = a2alloc.A2ALLOC, a2alloc.KHEAP, a2alloc.LIBC
CLASSES, FULLEST, SHARED, ALL_THREE = (f"a2alloc-{what}" for what in (
    "size-classes", "fullest-first", "shared-records", "classes"))
CONFIGS = (A2ALLOC, CLASSES, FULLEST, SHARED, ALL_THREE)

CHURN, IDLE = "churn", "400 idle threads"
PHASES = metric("rss_over_live_mean", "", "memory over live bytes, mean of the phases")
IDLE_MEMORY = metric("idle_over_live", "", "memory over live bytes, idle")


def _label(name, threads):
    return f"{name}, {threads} thread{'s' * (threads > 1)}"


def _idle():
    """Little memory a thread: 400 of them, of 20 objects of 16 to 64 bytes a burst keeping two."""
    case = beyond.idle_threads(threads=400, rounds=3)
    return dataclasses.replace(case, id="idle-threads-small-r3.t400", title="400 idle threads of little memory",
                               argv=(*case.argv, "--burst", "20", "--keep", "2", "--high", "64"))


def _pairs(cores):
    """(name, threads) of larson and threadtest: one thread, and as many as there are cores."""
    return [(name, t) for name in ("larson", "threadtest") for t in dict.fromkeys((1, max(1, min(cores, 8))))]


def _points(cores):
    single = [(beyond.fragmentation(live_mib=4), CHURN), (_idle(), IDLE)]
    return [*(Point(a2alloc.case(name, t), "", _label(name, t)) for name, t in _pairs(cores)),
            *(Point(dataclasses.replace(case, timeout_s=a2alloc.TIMEOUT_S), "", label) for case, label in single)]


def _alone(cores):
    return [process_alone(a2alloc.case(name, t), objects=1, rounds=1) for name, t in _pairs(cores)]


def _of(*names):
    """The points whose names begin so."""
    return lambda data: [p for p in data.points if p.series.startswith(names)]


def _claim(name, text, judge, *needs):
    return Claim(name, text, "beyond the paper", judge, subject=A2ALLOC, needs=needs, own=True)


def _less_than_faithful(measure, config, place):
    return j.less(measure, j.SUBJECT, of=config, at=place)


FIGURE = Figure(
    "a2alloc-future", "a2alloc", "Future work", "What the report left for later",
    "Ours, no figure of the report: size classes, superblocks ordered by fullness, heap records that share a superblock, "
    "each alone and all together, in turn with the faithful engine; with size classes a thread may keep 32 superblocks "
    "instead of 8, as each class in use needs one. Larson and threadtest as in Figures 3 to 5; a churn "
    "of 4 MiB through six phases of sizes, small enough for first fit; 400 threads that hold little and sleep.",
    (
        _claim("size-classes-faster", "Size classes make larson faster: the first free block fits.",
               _less_than_faithful(TIME, CLASSES, _of("larson")), CLASSES),
        _claim("size-classes-cost-memory", "… for memory where the sizes change: a superblock of a class that is out of use "
               "serves no other (the churn).", j.less(PHASES, CLASSES, of=j.SUBJECT, at=_of(CHURN)), CLASSES),
        _claim("move-to-front-faster", "The report's order, the superblock last used first, is faster in larson than that "
               "by fullness, as the report hopes (its 2.1.2).", j.less(TIME, FULLEST, of=j.SUBJECT, at=_of("larson")),
               FULLEST),
        _claim("fullest-first-same-memory", "… and by fullness takes about the same memory (the churn, within 5 %).",
               j.within(PHASES, 0.95, 1.05, of=FULLEST, at=_of(CHURN)), FULLEST),
        _claim("shared-records-save", "Heap records that share superblocks save memory where threads are many.",
               _less_than_faithful(IDLE_MEMORY, SHARED, _of(IDLE)), SHARED),
        _claim("shared-records-are-free", "… and cost no time (larson, within 10 %).",
               j.within(TIME, 0.9, 1.1, of=SHARED, at=_of("larson")), SHARED),
        _claim("together-faster", "All three together make larson faster.",
               _less_than_faithful(TIME, ALL_THREE, _of("larson")), ALL_THREE),
    ),
    _points, (LIBC,), (TIME, NET_MEMORY, PHASES, IDLE_MEMORY), Panel("bars", "workload", log_y=True),
    stand_ins=_alone, variants=(*CONFIGS, KHEAP, LIBC), seconds_a_run=0.6,
)


def _counted(name, text, key, one, than=A2ALLOC, by=1.0):
    variant = one if one != A2ALLOC else than
    return _claim(name, text, j.fact_less(key, (than,), of=one, by=by), variant)


COUNTS = Figure(
    "a2alloc-future-counts", "a2alloc", "Future work, counted", "Steps of the search, superblocks, instructions",
    "Ours, no figure of the report. The engine counts itself, in traces that are the same in every run "
    f"(papers/a2alloc/figures/steps.cpp). {steps.MEANING}. Instructions of one operation of larson and of threadtest with one "
    "thread, the workload's own included, by callgrind. No times: exact on a busy machine, too. Takes about a minute.",
    (
        _counted("size-classes-end-the-search", "With size classes an allocation looks at fewer free blocks.", steps.BLOCKS,
                 CLASSES),
        _counted("fullest-first-searches-longer", "Fullest first, it looks at more than in the report's order.",
                 steps.BLOCKS, A2ALLOC, FULLEST),
        _counted("fullest-first-carries-less", "… but fewer superblocks stay when nine in ten objects are freed.",
                 steps.LEFT, FULLEST),
        _counted("records-share", "The records of 64 heaps need at most a tenth of the superblocks.", steps.RECORDS, SHARED,
                 by=0.1),
        _counted("together-fewer-instructions", "All three together take fewer instructions an operation of larson, …",
                 steps.LARSON_INSTRUCTIONS, ALL_THREE),
        _claim("size-classes-are-most-of-it", "… and size classes alone fewer still: keeping order by fullness has its "
               "price, also without them.",
               j.all_of(j.fact_less(steps.LARSON_INSTRUCTIONS, (ALL_THREE,), of=CLASSES),
                        j.fact_less(steps.LARSON_INSTRUCTIONS, (FULLEST,), of=A2ALLOC)), CLASSES),
    ),
    lambda cores: [], (*CONFIGS, KHEAP, LIBC), (), Panel("bars", "config"), rounds=0, facts=steps.facts, facts_seconds=60,
    facts_programs=steps.PROGRAMS,
)

FIGURES = [FIGURE, COUNTS]
