"""What the samples of a folder say: medians, ratios, and who wins, ties or loses, with how sure that is.

Everything is a ratio of one contender to another in one case, and **lower is better everywhere**: values of which more
is better are inverted before they are compared. Two contenders are compared within rounds (ratios.py): rounds in which
the two ran further apart than APART_S do not count for a verdict. How far a ratio is from 1 is told beside every
verdict: a difference may be certain and not matter.

A contender that failed in any round of a case has no figures there: it is counted as failed, by name, and the geometric
means are taken over the cases that both contenders finished.

Memory is the peak less the workload's own tables. Two kinds of cases are in no mean of memory and no tally of it: those
that hold less than START_UP_KIB, which compare what a process has at its start (they have a mean of their own), and
those that are judged by another number than their time: either that is their memory, or the same allocations stand in
a case that is judged by time, or they hold less than that too. They have tallies of their own (the measure METRIC), but
no mean, as their numbers are of different kinds.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics

from spanalloc_bench import store
from spanalloc_bench.facts import of_allocators, of_cases
from spanalloc_bench.model import METRIC, OK, TIME, UNAVAILABLE, Case, Kind, Sample
from spanalloc_bench.ratios import (
    LOSS, MIN_ROUNDS, TIE, UNDECIDED, WIN, geometric_mean, over_cases, paired, verdict_of,
)

NOTABLE = 0.05  # a difference beyond this is counted apart from the merely certain ones
APART_S = 600.0  # two runs of one round that began further apart than this may have met different machines
START_UP_KIB = 1024  # most live bytes of a case below this: its memory is that of a process that has just started
MOST = 0.9  # of the cases of a mean must have enough rounds for it to have one

# Measures. A case has TIME or METRIC, whatever it is judged by, never both; latency measures are (call, key).
MEMORY = "memory"
OWN_TABLES = "own_kib"  # a metric: what of a workload's peak its own tables are
PERCENTILES = {"p50_ns": "p50", "p99_ns": "p99", "p999_ns": "p99.9", "p9999_ns": "p99.99", "max_ns": "worst"}
LATENCY_KEYS = {key: PERCENTILES[key] for key in ("p9999_ns", "max_ns")}  # those that are compared


# ---- what is compared ----


@dataclasses.dataclass(frozen=True)
class Summary:
    median: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """(largest - smallest) / median."""
        return (self.high - self.low) / self.median if self.median else 0.0


@dataclasses.dataclass(frozen=True)
class Versus:
    """One contender against another in one case and measure. `ratio` < 1: the first is better; None where a value is
    zero, so that there is no ratio. `low` and `high` are None below two rounds, and where the runs lie `apart`."""

    case: str
    mine: str
    other: str
    measure: str | tuple[str, str]
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    verdict: str
    apart: bool = False
    logs: dict[int, float] = dataclasses.field(default_factory=dict, compare=False, repr=False)  # the ratios', by round

    @property
    def notable(self) -> bool:
        """Certain, and far enough from 1 to matter."""
        return self.verdict in (WIN, LOSS) and (self.ratio is None or abs(math.log(self.ratio)) > math.log1p(NOTABLE))

    @property
    def size(self) -> float:
        """The ratio; where a zero leaves none, what the verdict says of it."""
        if self.ratio is not None:
            return self.ratio
        return {WIN: 0.0, LOSS: math.inf}.get(self.verdict, 1.0)


@dataclasses.dataclass(frozen=True)
class Score:
    """One contender against another over many cases. The geometric mean covers `cases` of them."""

    mine: str
    other: str
    wins: int
    ties: int
    losses: int
    undecided: int          # too few rounds for a verdict, or
    apart: int              # of these: too far apart
    notable_wins: int       # by more than NOTABLE
    notable_losses: int
    ratio: float | None     # geometric mean
    low: float | None       # its 95 % interval, where there is a verdict
    high: float | None
    verdict: str
    cases: int              # how many the mean covers
    mine_failed: tuple[str, ...]   # cases that only the other finished
    other_failed: tuple[str, ...]  # cases that only mine finished
    both_failed: tuple[str, ...]

    @property
    def tally(self) -> str:
        """ "31/5/4" (wins, ties, losses), or what there is instead."""
        if self.wins + self.ties + self.losses:
            return f"{self.wins}/{self.ties}/{self.losses}"
        return "apart" if self.apart else "too few rounds" if self.undecided else "-"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A row without figures: which contender failed in which case, how, in how many of its rounds."""

    case: str
    allocator: str
    status: str
    text: str
    rounds: int
    of: int


class Cell:
    """All rounds of one contender in one case."""

    def __init__(self, facts: Case, samples: list[Sample]):
        self.statuses = collections.Counter(s.status for s in samples)
        bad = next((s for s in samples if s.status != OK), None)
        self.ok = bad is None
        self.problem = "" if bad is None else bad.problem or bad.status
        self.status = OK if bad is None else bad.status
        self.rounds = len(samples)
        self.values: dict = {}   # measure -> round -> value
        self.metrics: dict = {}  # the record's further metrics: name -> values
        self.started = {s.round: s.started for s in samples if s.started is not None}
        for sample in samples:
            if sample.status == OK:
                self._take(facts, sample)

    def _take(self, facts, sample):
        def put(measure, value):
            if value is not None:
                self.values.setdefault(measure, {})[sample.round] = value

        put(facts.judged_by, sample.value(facts.metric))
        if sample.peak_kib is not None:
            put(MEMORY, sample.peak_kib - sample.metrics.get(OWN_TABLES, 0))
        put("live_kib", None if sample.peak_live_bytes is None else sample.peak_live_bytes / 1024)
        for name, value in sample.metrics.items():
            if name != facts.metric:
                self.metrics.setdefault(name, []).append(value)
        for call, values in sample.latency.items():
            for key, value in values.items():
                put((call, key), value)

    def near(self, other: Cell, rounds) -> list[int]:
        """Those of the rounds in which both ran at about the same time, as far as that is known."""
        def apart(round_):
            mine, its = self.started.get(round_), other.started.get(round_)
            return mine is not None and its is not None and abs(mine - its) > APART_S

        return [round_ for round_ in rounds if not apart(round_)]


# ---- the folder ----


class Analysis:
    """A folder's samples, ready for questions. Names of contenders and cases are in the order of the report.

    `cases` are all; `suite` are those that count: not the cases that only a paper's figure asked for, which would give
    what that figure varies a weight of its own. A folder of nothing but figures counts them all.
    """

    def __init__(self, samples: list[Sample], meta: dict, folder: str = ""):
        self.folder = folder
        self.meta = meta
        self.cases = of_cases(samples, meta)
        self.suite = [case for case, facts in self.cases.items() if facts.full or facts.quick] or list(self.cases)
        self.allocators = of_allocators(samples, meta)
        by_cell = collections.defaultdict(list)
        for sample in samples:
            by_cell[sample.case, sample.allocator].append(sample)
        self._cells = {key: Cell(self.cases[key[0]], found) for key, found in by_cell.items()}
        self.rounds = self._complete_rounds()
        small = {case for case in self.suite if self._live_kib(case) < START_UP_KIB}
        judged_by_time = [case for case in self.suite if self.cases[case].judged_by == TIME]
        self.start_up = [case for case in judged_by_time if case in small]
        self.memory_cases = [case for case in judged_by_time if case not in small]
        self._versus: dict = {}

    def _complete_rounds(self) -> int:
        """Rounds that every case of the suite has, under one contender at least; cases that nobody finished aside."""
        most = collections.Counter()
        for (case, _), cell in self._cells.items():
            most[case] = max(most[case], cell.statuses[OK])
        return min((most[case] for case in self.suite if most[case]), default=0)

    def _live_kib(self, case) -> float:
        """The most that the program held; of one that does not know it, without end."""
        values = [self.median(case, name, "live_kib") for name in self.contenders(case)]
        return max((value for value in values if value is not None), default=math.inf)

    # -- names --

    def groups(self) -> list[str]:
        return list(dict.fromkeys(self.cases[case].group for case in self.suite))

    def cases_of(self, group: str) -> list[str]:
        return [case for case in self.suite if self.cases[case].group == group]

    def sources(self, group: str) -> list[str]:
        """Where the cases of a group come from."""
        return list(dict.fromkeys(filter(None, (self.cases[case].source for case in self.cases_of(group)))))

    def run_by(self, name: str, cases=None) -> list[str]:
        """Those of `cases` (default: the suite) that a contender ran in, whatever came of it."""
        def ran(case):
            cell = self._cells.get((case, name))
            return cell is not None and cell.status != UNAVAILABLE

        return [case for case in (self.suite if cases is None else cases) if ran(case)]

    def ours(self) -> list[str]:
        """Our configs that have samples, the product first."""
        return [name for name, facts in self.allocators.items() if facts.ours and self._ran(name)]

    def products(self) -> list[str]:
        """Our shipped configs that have samples; ablations have figures of their own."""
        return [name for name in self.ours() if self.allocators[name].kind is Kind.OURS]

    def rivals(self) -> list[str]:
        """The allocators that people use: neither ours nor the baseline nor page managers."""
        wanted = (Kind.SYSTEM, Kind.PEER, Kind.GIVEN)
        return [name for name, facts in self.allocators.items() if facts.kind in wanted and self._ran(name)]

    def opponents(self, mine: str) -> list[str]:
        """Whom a table sets `mine` against: the rivals, then our other configs."""
        return [name for name in [*self.rivals(), *self.ours()] if name != mine]

    def baseline(self) -> str | None:
        found = [name for name, facts in self.allocators.items() if facts.kind is Kind.BASELINE and self._ran(name)]
        return found[0] if found else None

    def contenders(self, case: str) -> list[str]:
        """Those with samples in a case."""
        return [name for name in self.allocators if (case, name) in self._cells]

    def _ran(self, name) -> bool:
        return any(allocator == name for _, allocator in self._cells)

    # -- one cell --

    def cell(self, case: str, allocator: str) -> Cell | None:
        return self._cells.get((case, allocator))

    def summary(self, case: str, allocator: str, measure) -> Summary | None:
        """None where the contender failed or the measure is not there."""
        cell = self._cells.get((case, allocator))
        if cell is None or not cell.ok or not cell.values.get(measure):
            return None
        values = list(cell.values[measure].values())
        return Summary(statistics.median(values), min(values), max(values), len(values))

    def median(self, case: str, allocator: str, measure) -> float | None:
        found = self.summary(case, allocator, measure)
        return found.median if found else None

    def measures(self, case: str) -> list:
        """TIME or METRIC, MEMORY, and the latencies that any contender has here."""
        found = {measure for name in self.contenders(case) for measure in self._cells[case, name].values}
        calls = {measure[0] for measure in found if isinstance(measure, tuple)}
        calls = sorted(calls, key=lambda call: (call != "malloc", call))
        latencies = [(call, key) for call in calls for key in LATENCY_KEYS if (call, key) in found]
        return [measure for measure in (TIME, METRIC, MEMORY) if measure in found] + latencies

    def latencies(self) -> list[tuple[str, str]]:
        """The latency measures of the suite."""
        return list(dict.fromkeys(m for case in self.suite for m in self.measures(case) if isinstance(m, tuple)))

    def _higher(self, case, measure) -> bool:
        return measure in (TIME, METRIC) and self.cases[case].better == "higher"

    def relative(self, case: str, value: float | None, base: float | None, measure) -> float | None:
        """value / base so that lower is better; None where there is no such ratio."""
        if value is None or base is None:
            return None
        if self._higher(case, measure):
            value, base = base, value
        return value / base if value > 0 and base > 0 else 1.0 if value == base else None

    # -- best, floors --

    def best_other(self, case: str, allocator: str, measure, without: str = "") -> tuple[str, float] | None:
        """The best median among the others: for one of ours, of the rivals; never the baseline, which frees nothing,
        nor the one called `without`."""
        facts = self.allocators[allocator]
        others = [
            name for name in self.contenders(case)
            if name not in (allocator, without) and self.allocators[name].kind is not Kind.BASELINE
            and not (facts.ours and self.allocators[name].ours)
        ]
        found = [(name, self.median(case, name, measure)) for name in others]
        found = [(name, value) for name, value in found if value is not None]
        if not found:
            return None
        choose = max if self._higher(case, measure) else min
        return choose(found, key=lambda pair: pair[1])

    def floor(self, case: str, allocator: str, measure) -> float | None:
        """For time the baseline's, which has no work but faults in fresh memory all the time, so that one that reuses
        memory may be faster; for memory the peak of live bytes (KiB), which takes no allocator into account."""
        if measure == MEMORY:
            return self.median(case, allocator, "live_kib")
        baseline = self.baseline()
        return self.median(case, baseline, measure) if baseline and measure == TIME else None

    # -- one against another --

    def versus(self, case: str, mine: str, other: str, measure) -> Versus | None:
        """None where one of them failed or did not run, or has no such measure."""
        key = (case, mine, other, measure)
        if key not in self._versus:
            self._versus[key] = self._compare(*key)
        return self._versus[key]

    def _compare(self, case, mine, other, measure):
        cells = [self._cells.get((case, name)) for name in (mine, other)]
        if not all(cell and cell.ok and cell.values.get(measure) for cell in cells):
            return None
        mine_by_round, other_by_round = (cell.values[measure] for cell in cells)
        common = sorted(mine_by_round.keys() & other_by_round.keys())
        near = cells[0].near(cells[1], common)
        apart = MIN_ROUNDS > len(near) < len(common)
        rounds = common if apart else near
        if not rounds:
            return None
        result = paired({r: mine_by_round[r] for r in rounds}, other_by_round, self._higher(case, measure))
        if apart:  # a ratio there is, but nobody knows what it owes to the time between
            return Versus(case, mine, other, measure, result.ratio, None, None, result.rounds, UNDECIDED, True)
        return Versus(case, mine, other, measure, *result[:5], False, result.logs)

    def score(self, mine: str, other: str, measure, cases=None, start_up=False) -> Score:
        """Over `cases` (default: the suite) that have the measure and were run under both; a contender that is not
        there (not built, not installed) has not failed. Memory: over the memory_cases among them, or, with `start_up`,
        over those that compare only that."""
        tally, compared = collections.Counter(), []
        counted = set(self.start_up if start_up else self.memory_cases) if measure == MEMORY else None
        failed = {(True, False): [], (False, True): [], (False, False): []}
        for case in self.suite if cases is None else cases:
            cells = [self._cells.get((case, name)) for name in (mine, other)]
            if None in cells or any(cell.status == UNAVAILABLE for cell in cells):
                continue
            good = tuple(cell.ok for cell in cells)
            if good != (True, True):
                if measure == MEMORY or measure == self.cases[case].judged_by:
                    failed[good].append(case)
                continue
            found = self.versus(case, mine, other, measure)
            if found is None or counted is not None and case not in counted:
                continue
            tally[found.verdict] += 1
            tally["big " + found.verdict] += found.notable
            tally["apart"] += found.apart
            compared.append(found)
        known = [found for found in compared if found.ratio is not None]
        return Score(
            mine, other, tally[WIN], tally[TIE], tally[LOSS], tally[UNDECIDED], tally["apart"],
            tally["big " + WIN], tally["big " + LOSS], *_mean(known), len(known),
            tuple(failed[False, True]), tuple(failed[True, False]), tuple(failed[False, False]),
        )

    def extremes(self, mine: str, measure, worst: bool, count=5, start_up=False) -> list[Versus]:
        """Cases that `mine` loses, beside the rival that it loses most to; or that it wins against every rival, beside
        the one that comes closest.

        With fewer than MIN_ROUNDS rounds there are no verdicts, and the ratios alone choose. Memory: of the
        memory_cases, or, with `start_up`, of those that compare only that."""
        found = []
        for case in self.start_up if start_up else self._counted(measure):
            versus = [self.versus(case, mine, other, measure) for other in self.rivals() if other != mine]
            versus = [v for v in versus if v]
            if worst:
                versus = [v for v in versus if v.verdict in (LOSS, UNDECIDED) and v.size > 1]
                versus = [v for v in versus if v.verdict == LOSS] or versus  # what is certain first
            elif not all(v.verdict in (WIN, UNDECIDED) and v.size < 1 for v in versus):
                continue
            if versus:
                found.append(max(versus, key=lambda v: v.size))
        return sorted(found, key=lambda v: v.size, reverse=worst)[:count]

    def finishers(self) -> list[str]:
        """Ours and the rivals that finished at least half of the cases that any of them did: one that hangs everywhere
        would leave nothing that all have in common."""
        names = [*self.ours(), *self.rivals()]
        done = {name: {case for case in self.suite if self.median(case, name, MEMORY) is not None} for name in names}
        half = len(set().union(*done.values())) / 2
        return [name for name in names if len(done[name]) >= half]

    def _means(self, names, ratios_of, cases) -> tuple[dict[str, float], int]:
        """Geometric mean of each name's ratios over the cases where all of them have one, and how many these are."""
        rows = [ratios_of(case) for case in cases]
        rows = [row for row in rows if row is not None and all(row.get(name) for name in names)]
        return ({name: geometric_mean(row[name] for row in rows) for name in names} if rows else {}), len(rows)

    def _counted(self, measure) -> list[str]:
        return self.memory_cases if measure == MEMORY else self.suite

    def standing(self, measure, names, cases=None) -> tuple[dict[str, float], int]:
        """Each contender's geometric mean of (its median / the best median of the case), over the cases that every one
        of `names` finished, and how many these are. `cases`: others than those that count for the measure."""
        def ratios_of(case):
            medians = {name: self.median(case, name, measure) for name in names}
            if any(value is None for value in medians.values()):
                return None
            best = (max if self._higher(case, measure) else min)(medians.values())
            return {name: self.relative(case, value, best, measure) for name, value in medians.items()}

        return self._means(names, ratios_of, self._counted(measure) if cases is None else cases)

    def above_floor(self, measure, names) -> tuple[dict[str, float], int]:
        """The same for the ratio to the floor."""
        return self._means(names, lambda case: {
            name: self.relative(case, self.median(case, name, measure), self.floor(case, name, measure), measure)
            for name in names
        }, self._counted(measure))

    # -- what went wrong --

    def problems(self) -> list[Problem]:
        """Every row without figures, in the order of the report."""
        found = []
        for case in self.suite:
            for name in self.contenders(case):
                cell = self._cells[case, name]
                if not cell.ok:
                    bad = cell.rounds - cell.statuses[OK]
                    found.append(Problem(case, name, cell.status, cell.problem, bad, cell.rounds))
        return found

    def failures(self) -> list[Problem]:
        """The problems that tell something about an allocator: not those of what is missing on the machine."""
        return [problem for problem in self.problems() if problem.status != UNAVAILABLE]


def _mean(compared: list[Versus]):
    """(ratio, low, high, verdict) over cases: the geometric mean of all, with the interval of those that have enough
    rounds, where these are MOST of them."""
    ratio = geometric_mean(versus.ratio for versus in compared)
    rows = [versus.logs for versus in compared if len(versus.logs) >= MIN_ROUNDS]
    half = over_cases(rows) if rows and len(rows) >= MOST * len(compared) else None
    if half is None:
        return ratio, None, None, UNDECIDED
    mean = math.log(ratio)
    return ratio, math.exp(mean - half), math.exp(mean + half), verdict_of(mean, half)


def load(folder) -> Analysis:
    """The analysis of a run's folder; FileNotFoundError where it has no samples, store.Damaged for a damaged file."""
    samples = store.samples(folder)
    if not samples:
        raise FileNotFoundError(f"{folder}: no samples there (no {store.SAMPLES}, or an empty one)")
    return Analysis(samples, store.read_meta(folder), str(folder))
