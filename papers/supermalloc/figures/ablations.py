"""What single ideas of SuperMalloc are worth: the engine in turn with itself without one of them.

The paper takes out one only, the prefetching (Figure 6, where caches less stand beside it). Of others it says what they are
for, or what they cost: such claims are judged here; what it does not say is marked as ours. Each config is a few lines of papers/supermalloc/engine/config.hpp.
"""

from __future__ import annotations

from spanalloc_bench.cases import beyond, classic
from spanalloc_bench.cases import supermalloc as workloads
from papers.shared.figures import judges as j
from papers.supermalloc.figures import figures as supermalloc
from papers.shared.figures.figure import MEMORY, NET_MEMORY, TIME, Claim, Figure, Panel, Point, metric, process_alone

PAPER = supermalloc.PAPER
SUPERMALLOC, NO_PREFETCH, RSEQ = supermalloc.SUPERMALLOC, supermalloc.NO_PREFETCH, supermalloc.RSEQ
FIRST_FIT, POWERS, NO_OFFSET, ALIGNED_TO_8 = (
    f"{SUPERMALLOC}-{what}" for what in ("first-fit", "powers-of-two", "no-offset", "aligned-to-8"))
CONFIGS = (NO_PREFETCH, FIRST_FIT, POWERS, NO_OFFSET, ALIGNED_TO_8, RSEQ)

PHASES = metric("rss_over_live_mean", "", "memory over live bytes, mean of the phases")
FREED = metric("rss_over_live_freed90", "", "memory over live bytes when 90 % is freed")
# Parts of the figure.
SERVER, CHURN, MEDIUM, LARGE_WORDS, LARGE, SMALL = (
    "SuperServer", "churn", "first words, 4000 bytes", "first words, 100,000 bytes", "large objects", "threadtest, 40 bytes")


def _small():
    return classic.threadtest(40, 1, rounds=20)


def _points(cores):
    return [
        Point(workloads.superserver(max(2, min(cores, 8))), "", SERVER), Point(beyond.fragmentation(), "", CHURN),
        Point(beyond.first_words(4000, 1000, 5_000_000), "", MEDIUM),
        Point(beyond.first_words(100_000, 500, 5_000_000), "", LARGE_WORDS),
        Point(beyond.large_objects(16 << 10, 64 << 10, live=500, operations=40_000, touch="all"), "", LARGE),
        Point(_small(), "", SMALL),
    ]


def _at(*names):
    return lambda data: [point for point in data.points if point.series in names]


def _claim(name, text, place, judge, *needs, **more):
    return Claim(name, text, place, judge, subject=SUPERMALLOC, needs=needs, own=place == _OURS, **more)


_OURS = "beyond the paper"
_NOT_THE_CACHE = ("a read of these objects takes several times as long as under glibc with the offset and without it, so it waits "
                  "for something else than sets of the cache")
_SAME_FOLIOS = ("the churn frees objects at random, so that no folio is nearly empty before others in either order; "
               "the caches, which keep some MiB of each bin, take in much of it and serve most of what is allocated next")


def _less_than(measure, config, *places, by=1.0):
    """The engine has less of it than without the idea."""
    return j.less(measure, config, of=j.SUBJECT, at=_at(*places), by=by)


FIGURE = Figure(
    "supermalloc-ablations", "supermalloc", "Ablations", "What single ideas of the paper are worth",
    "Ours, no figure of the paper: the engine in turn with itself without one of its ideas, where that could matter. The "
    "folio at the lowest address instead of the fullest; powers of two instead of primes; no random offset; bins of 24, 40 and "
    "56 bytes, aligned to 8 bytes; no prefetching; and with restartable sequences (`SPANALLOC_RSEQ=1`). (Its caches, and prefetching in malloc-test: Figures 6 and 7.) SuperServer "
    "as in Figure 12; a churn of 32 MiB through six phases of sizes; random reads of the first words of "
    "objects of one size; large objects of 16 to 64 KiB at random replacement; 100,000 objects of 40 bytes.",
    (
        _claim("fullest-fit-empties", "Fullest fit: in theory this should help empty out nearly empty pages so that they "
               "can be returned to the operating system (here: the churn, 90 % freed; less memory than with first fit).",
               "§3", j.no_power(_less_than(FREED, FIRST_FIT, CHURN), _SAME_FOLIOS), FIRST_FIT),
        _claim("first-fit-as-good", "First fit for fixed-size objects is generally pretty good at freeing up entire blocks, "
               "and in practice seems to be just as good as fullest fit (here: memory in the churn within 5 %).", "§1",
               j.no_power(j.within(PHASES, 0.95, 1.05, of=FIRST_FIT, at=_at(CHURN)), _SAME_FOLIOS), FIRST_FIT),
        _claim("primes-against-conflicts", "A prime multiple of the cache line not only reduces conflicts within a class "
               "size but reduces inter-size cache-index conflicts: within a class size (here: reads of first words in objects of "
               "4000 bytes take less time than with powers of two; conflicts between sizes are not measured).", "§4", _less_than(TIME, POWERS, MEDIUM), POWERS),
        _claim("primes-waste-less", "Spaced as they are, primes waste less than powers of two (the churn).", _OURS,
               _less_than(PHASES, POWERS, CHURN), POWERS),
        _claim("offset-against-conflicts", "In order to avoid associativity issues, SuperMalloc adds a random number of "
               "cache lines to large objects (here: reads of first words in objects of 100,000 bytes take less time than "
               "without).", "§5", j.no_power(_less_than(TIME, NO_OFFSET, LARGE_WORDS), _NOT_THE_CACHE), NO_OFFSET),
        _claim("offset-wastes", "It can result in at most 25 % internal fragmentation, and on average wastes only 12.5 % "
               "(here: the average, in objects of 16 to 64 KiB memory at most 1.0625 times that without).", "§5",
               j.within(MEMORY, None, 1.0625, to=NO_OFFSET, at=_at(LARGE)), NO_OFFSET, differs="12.5 % is half a page of the "
               "smallest such object, 16 KiB; half a page of ours is some 6 %. 10 of the 30 MiB are the process's own, or free, in both"),
        _claim("eight-bytes-fit-better", "The disadvantage of removing sizes for the sake of alignment is that it increases internal "
               "fragmentation (here: of 24, 40 and 56 bytes, which alignment to 16 bytes removes beyond the paper's 8; memory "
               "of objects of 40 bytes).", "§3",
               j.less(NET_MEMORY, j.SUBJECT, of=ALIGNED_TO_8, at=_at(SMALL)), ALIGNED_TO_8),
        _claim("sequences-spare-locks", "Restartable sequences in place of a CPU's locks: less time in large objects, of which "
               "a thread keeps few, and so goes to its CPU's caches often.", _OURS,
               j.less(TIME, j.SUBJECT, of=RSEQ, at=_at(LARGE)), RSEQ),
        _claim("prefetch-serves", "Prefetching makes SuperServer no slower (within 3 %).", _OURS,
               j.within(TIME, None, 1.03, to=NO_PREFETCH, at=_at(SERVER)), NO_PREFETCH),
    ),
    _points, ("glibc",), (TIME, MEMORY, NET_MEMORY, PHASES, FREED), Panel("bars", "workload", log_y=True),
    stand_ins=lambda cores: [process_alone(_small(), objects=1, rounds=1)], variants=(SUPERMALLOC, *CONFIGS),
    seconds_a_run=0.6,
)

FIGURES = [FIGURE]
