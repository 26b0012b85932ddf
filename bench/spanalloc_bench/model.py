"""The words that the suite is written in: allocator, case, sample. Plain data; every other module speaks in them.

    case x allocator x round  ->  one Sample, one line of samples.csv

A *case* is one workload with all its parameters fixed, so that a sample can be compared with every other sample of the
same case and with nothing else. Figures and the suite name the same cases, so what one has measured serves the other.
"""

from __future__ import annotations

import dataclasses
import enum
import re


class Kind(enum.Enum):
    """What an allocator is to the reader of a table."""

    OURS = "ours"          # a library that we ship
    ABLATION = "ablation"  # a paper's ablation of ours, built on request
    PEER = "peer"          # an allocator that people use today
    SYSTEM = "system"      # the C library's, preloaded as itself
    BASELINE = "baseline"  # bump: never frees, the floor for time
    GIVEN = "given"        # named by --with
    PAGES = "pages"        # a page manager: a contender of the cases of the family "pages"


@dataclasses.dataclass(frozen=True)
class Allocator:
    """A contender. `path` is a shared object for LD_PRELOAD; for a page manager, the value of the workload's --manager."""

    name: str
    path: str
    kind: Kind
    environment: tuple[tuple[str, str], ...] = ()  # settings that it runs with, shown beside its figures
    missing: str = ""  # why it cannot run ("not built: ..."); empty where it can

    @property
    def ours(self) -> bool:
        return self.kind in (Kind.OURS, Kind.ABLATION)


class Family(enum.Enum):
    """How a case is run and read."""

    WORKLOAD = "workload"  # a program of bench/workloads: its last line of output is its JSON record
    PROGRAM = "program"    # a real program: its time is the wall clock's, its record is empty
    DRIVER = "driver"      # a function that starts a server under the allocator and loads it (programs/)
    PAGES = "pages"        # a program of bench/workloads that exercises a page manager instead of malloc


TIME, METRIC = "time", "metric"  # what a case is judged by
_TIME_NAMES = re.compile(r"(^|_)(s|ms|us|ns|per_s|per_second)$")
_TAIL_NAMES = re.compile(r"(^|_)(p\d+|max|worst)_")


@dataclasses.dataclass(frozen=True)
class Case:
    """One workload with its parameters fixed.

    `argv` may hold {bin} (folder of the built workloads), {fixtures} (folder of generated inputs), {source} (the
    source tree) and {manager} (family PAGES). `prepare` names functions of programs.fixtures that make the inputs; they
    run once, under no contender, before the first round.
    """

    id: str               # "threadtest-64.t2": unique, stable, [a-z0-9.-]
    group: str            # "threadtest": the row group of tables
    title: str            # "threadtest, 64 bytes, 2 threads"
    source: str = ""      # "scalloc 7.2" or "beyond the papers"
    family: Family = Family.WORKLOAD
    argv: tuple[str, ...] = ()
    threads: int = 1
    parameters: tuple[tuple[str, str], ...] = ()  # what varies along a figure's axis besides the threads
    metric: str = "time"   # "time" (seconds per operation where the record counts operations, else seconds) or a key of
                           # the record's "metrics"
    better: str = "lower"
    timeout_s: float = 600.0  # for what hangs
    needs: tuple[str, ...] = ()  # commands that must exist; a missing one is a row that says so
    prepare: tuple[str, ...] = ()
    driver: str = ""       # family DRIVER: "module:function" below spanalloc_bench.programs
    environment: tuple[tuple[str, str], ...] = ()
    allocators: tuple[str, ...] = ()  # only these contenders, by name; () for every one of the family's
    full: bool = False     # part of the full suite
    quick: bool = False    # part of --quick

    @property
    def judged_by(self) -> str:
        """TIME where the case's metric is one, else METRIC: a count, a share or the tail of a latency is in no mean of
        times."""
        timed = _TIME_NAMES.search(self.metric) and not _TAIL_NAMES.search(self.metric)
        return TIME if self.metric == "time" or timed else METRIC

    @property
    def series(self) -> str:
        """The same for cases that differ in nothing but their threads."""
        return re.sub(r"\.t\d+(?=$|\.)", "", self.id)


OK = "ok"
# The other values of Sample.status: why a row has no figures.
CRASHED, HUNG, FAILED, NOT_PRELOADED, UNAVAILABLE = "crashed", "hung", "failed", "not-preloaded", "unavailable"


@dataclasses.dataclass
class Sample:
    """One run. Fields are columns of samples.csv in this order; `metrics` and `latency` are JSON in one column each."""

    case: str
    allocator: str
    round: int             # from 1
    position: int          # place in the round's order, from 1
    status: str = OK
    problem: str = ""      # one line, where status is not OK
    elapsed_s: float | None = None        # the workload's own clock; the wall clock's for a program
    operations: int | None = None
    wall_s: float | None = None
    user_s: float | None = None
    system_s: float | None = None
    peak_kib: float | None = None         # RSS + page tables, sampled, with the kernel's own maximum of RSS
    peak_rss_kib: float | None = None
    peak_page_tables_kib: float | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    peak_live_bytes: int | None = None    # the floor for memory, where the workload knows it
    metrics: dict = dataclasses.field(default_factory=dict)   # name -> number
    latency: dict = dataclasses.field(default_factory=dict)   # "malloc" -> {"count", "p50_ns", ..., "max_ns"}
    started: float | None = None          # seconds since the epoch

    def value(self, metric: str = "time") -> float | None:
        """The number that a case is judged by; None where this sample has none."""
        if self.status != OK:
            return None
        if metric == "time":
            if self.elapsed_s is None:
                return None
            return self.elapsed_s / self.operations if self.operations else self.elapsed_s
        return self.metrics.get(metric)
