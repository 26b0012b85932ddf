"""The words that a figure is written in: its points, its measures, its claims, and what becomes of a claim.

    Figure = points (a case each) x allocators  ->  Data  ->  one Verdict a Claim

Plain data; the four papers' modules are made of it, the other modules of this folder run, judge and draw it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Callable

from spanalloc_bench.model import Case, Sample

FOLDER = "figures"  # below a run's folder: ID.json, ID.png
FORMAT = 3          # of ID.json
PROCESS = "process alone"  # a row: the same program, hardly allocating, under glibc


class Answer(enum.Enum):
    """What became of a claim."""

    HOLDS = "holds"
    DOES_NOT_HOLD = "does not hold"
    UNDECIDED = "undecided"                        # the noise, or too few rounds, leave it open
    BY_CONSTRUCTION = "by construction"            # our own workload's parameters are the paper's: nothing is measured
    NO_POWER = "no power"                          # the experiment gives everybody the same, whatever is so
    SIMULATED = "simulated"                        # on a machine with as many cores, which is simulated: counted apart
    NOT_BUILT = "not built"                        # what the claim is about does not exist yet
    NOT_MEASURED = "not measured"                  # it exists, but these results were recorded without it
    CANNOT_BE_SHOWN_HERE = "cannot be shown here"  # too few cores, or something absent from this machine


@dataclasses.dataclass(frozen=True)
class Verdict:
    """An answer, one sentence with the numbers behind it, and those that the claim speaks of but are `absent`; `few`
    where too few are there to answer for all."""

    answer: Answer
    text: str
    absent: tuple[str, ...] = ()
    few: bool = False

    @property
    def evidence(self) -> str:
        if not self.absent:
            return self.text
        return f"{self.text}; absent: {', '.join(self.absent)}" + ": no more than half are there" * self.few


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number of a sample, lower or higher being better. `get` gives None where the sample has none.

    A `net` measure is of what is beyond the process itself: its `get` is given the row PROCESS's peak, too."""

    name: str
    unit: str
    get: Callable[..., float | None]
    scale: float = 1.0  # times this for display
    net: bool = False

    def of(self, sample: Sample, process_kib: float | None = None) -> float | None:
        return self.get(sample, process_kib) if self.net else self.get(sample)


def metric(key, unit="", name=None, scale=1.0) -> Measure:
    """A key of the record's "metrics"."""
    return Measure(name or key.replace("_", " "), unit, lambda sample: sample.metrics.get(key), scale)


def worst(call, key="max_ns", name=None) -> Measure:
    """A latency of the record, in nanoseconds, shown in milliseconds."""
    return Measure(name or f"slowest {call}", "ms", lambda sample: sample.latency.get(call, {}).get(key), 1e-6)


def peak_kib(sample) -> float | None:
    """Peak of RSS + page tables, without the tables that the workload keeps for itself."""
    return None if sample.peak_kib is None else sample.peak_kib - sample.metrics.get("own_kib", 0)


TIME = Measure("time", "ns/op", lambda sample: sample.value(), 1e9)
ELAPSED = Measure("elapsed", "s", lambda sample: sample.elapsed_s)
MEMORY = Measure("memory", "MiB", peak_kib, 1 / 1024)
USER = Measure("user", "s", lambda sample: sample.user_s)
SYSTEM = Measure("system", "s", lambda sample: sample.system_s)


PAGE_KIB = 4.0


def _beyond(sample, process_kib):
    """At least a page: the process alone varies by as much."""
    peak = peak_kib(sample)
    return None if peak is None else max(PAGE_KIB, peak - process_kib)


def _excess(sample, process_kib):
    """The suite's definition of fragmentation: what the peak holds beyond the peak of live bytes, as its share."""
    beyond = _beyond(sample, process_kib)
    if not sample.peak_live_bytes or beyond is None:
        return None
    return max(0.0, beyond * 1024 / sample.peak_live_bytes - 1)


NET_MEMORY = Measure("memory beyond the process", "MiB", _beyond, 1 / 1024, net=True)
FRAGMENTATION = Measure("fragmentation", "", _excess, net=True)


@dataclasses.dataclass(frozen=True)
class Point:
    """A place of the figure: one case, where it stands on the axis (`x`), and in which part (`series`) of the table."""

    case: Case
    x: int | str
    series: str = ""


@dataclasses.dataclass(frozen=True)
class StandIn:
    """A row that is no contender: a case run under glibc alone, read as the row `name` at the point of `beside`."""

    name: str
    case: Case
    beside: Case
    seconds: float = 0.1  # of a run, for the stated time


def altered(case: Case, name: str, **options) -> Case:
    """The case with other values of its command line and a name of its own: a figure's, none of the suite's."""
    argv = list(case.argv)
    for option, value in options.items():
        argv[argv.index(f"--{option.replace('_', '-')}") + 1] = str(value)
    start, _, end = case.id.rpartition(".")
    return dataclasses.replace(case, id=f"{start}-{name}.{end}", argv=tuple(argv), title=f"{case.title}, {name}",
                               full=False, quick=False)


def process_alone(case: Case, **options) -> StandIn:
    """The row PROCESS beside a case: its program, libraries and threads with next to nothing allocated, as `options`
    make it. Where little lives, most of a process's memory is none of the allocator's doing."""
    return StandIn(PROCESS, dataclasses.replace(altered(case, "alone", **options), allocators=("glibc",)), case)


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something that the paper's text or picture says about the figure, and the function that judges it.

    `judge(data, subject)` is asked only when every contender of `needs` is there and the machine has `cores`. Where the
    claim is about each single thread count (`each_count`), those of a smaller machine may go against it. The verdict is
    the one on `subject`; those on `beside` stand next to it."""

    name: str                # unique in the figure, [a-z0-9-]
    text: str
    place: str               # where in the paper
    judge: Callable[["object", str], Verdict]
    subject: str = ""        # who in our world stands for the paper's system; "" where the claim is about others
    beside: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    cores: int = 1           # a claim about scaling says nothing on a machine with fewer
    each_count: bool = False  # says of every thread count the same
    series: str | None = None  # the part of the figure that it is about; None: all of it
    huge_pages: bool = False  # needs a kernel that gives huge pages where asked
    own: bool = False         # ours: the paper says nothing of it
    played_by: tuple[str, str] | None = None  # (contender, the one that it may have been there)
    differs: str = ""         # how what is measured here is not what the paper measured; stands beside the rule


OWN = ""  # in a panel's base


@dataclasses.dataclass(frozen=True)
class Panel:
    """How the figure is drawn: "lines" over a numeric axis, or "bars" in groups."""

    kind: str
    x_label: str
    base: tuple[str, int] | None = None  # speed-up relative to this allocator (OWN: the row itself) at this x; None: the
                                         # measure as it is
    log_y: bool = False
    rate: bool = False                   # the reciprocal: operations per second
    spread: bool = False                 # the paper gives mean, least and most
    scores: bool = False                 # the paper gives the mean of speed-up(t) / t


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure or table of a paper that reports an experiment."""

    id: str                 # "scalloc-6a": the command's argument
    paper: str              # key of PAPERS
    number: str             # "Figure 6a"
    title: str
    shows: str              # what the paper shows, and how it is scaled to the machine
    claims: tuple[Claim, ...]
    points: Callable[[int], list[Point]]  # of the number of cores
    allocators: tuple[str, ...]           # by name; what is not there is listed as absent
    measures: tuple[Measure, ...]
    panel: Panel
    rounds: int = 6
    seconds_a_run: float = 0.6            # for the stated time
    facts: Callable | None = None         # (places, allocators) -> {(allocator, key): number}: figures without runs
    facts_seconds: float = 0.0            # how long that takes, for the stated time
    facts_programs: tuple[str, ...] = ()  # of bench/, that this runs, and plugins of it (NAME.so)
    pages: bool = False                   # its contenders are page managers
    stand_ins: Callable[[int], list[StandIn]] | None = None
    # A paper's variants differ by a few per cent. They are run in turn with the first of these, the paper's own
    # configuration, in a folder of their own: a run of that from an hour ago would not do.
    variants: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Paper:
    key: str
    title: str
    authors: str
    machine: str                          # what the paper measured on
    structural: tuple[tuple[str, str], ...]  # (number, what it is): not an experiment
    room: str = ""                        # its folder below papers/, where that is not the key
    pictured: str = ""                    # the figure in its REPORT.md


def thread_axis(cores: int, at_least: int = 8) -> list[int]:
    """1, 2, 4, ... up to the machine's cores, and at least to 8, so that also two cores see more threads than cores."""
    top = max(cores, at_least)
    counts = []
    n = 1
    while n < top:
        counts.append(n)
        n *= 2
    return [*counts, top]


def over_threads(builder: Callable[..., Case]) -> Callable[[int], list[Point]]:
    """A figure's points over the threads, of a builder of cases."""
    return lambda cores: [Point(builder(threads=t), t) for t in thread_axis(cores)]
