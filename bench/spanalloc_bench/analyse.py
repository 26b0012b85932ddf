"""What the samples of a folder say: medians, ratios, and who wins, ties or loses, with how sure that is.

Everything is a ratio of one contender to another in one case, and **lower is better everywhere**: values of which more
is better are inverted before they are compared. Two contenders are compared round by round, because what disturbs a
machine disturbs a whole round: the interval is that of the mean of the logarithms of the per-round ratios (Student's t,
95 %). A verdict needs MIN_ROUNDS rounds; it is a tie where the interval contains 1. How far a ratio is from 1 is
told beside every verdict: a difference may be certain and not matter.

A contender that failed in any round of a case has no figures there: it is counted as failed, by name, and the geometric
means are taken over the cases that both contenders finished.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
import statistics

from spanalloc_bench import store
from spanalloc_bench.model import OK, UNAVAILABLE, Family, Kind, Sample

MIN_ROUNDS = 6
NOTABLE = 0.05  # a difference beyond this is counted apart from the merely certain ones
WIN, TIE, LOSS, UNDECIDED = "win", "tie", "loss", ""
FLOOR, PRODUCT = "bump", "standard"

# Measures. A case has "time" or "metric", whatever it is judged by, never both; latency measures are (call, key).
TIME, METRIC, MEMORY = "time", "metric", "memory"
PERCENTILES = {"p50_ns": "p50", "p99_ns": "p99", "p999_ns": "p99.9", "p9999_ns": "p99.99", "max_ns": "worst"}
LATENCY_KEYS = {key: PERCENTILES[key] for key in ("p9999_ns", "max_ns")}  # those that are compared
_TIME_NAMES = re.compile(r"(^|_)(s|ms|us|ns|per_s|per_second)$")
_TAIL_NAMES = re.compile(r"(^|_)(p\d+|max|worst)_")

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)


def student_t(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t; beyond the table by Fisher's expansion, right to four digits."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def geometric_mean(values) -> float | None:
    """None of nothing; every value is positive."""
    values = list(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


# ---- what is compared ----


@dataclasses.dataclass(frozen=True)
class CaseFacts:
    """What the report has to know of a case; from meta.json, so that it needs no catalogue."""

    id: str
    group: str
    title: str
    source: str = ""
    threads: int = 1
    metric: str = "time"
    better: str = "lower"
    family: str = Family.WORKLOAD.value
    parameters: tuple[tuple[str, str], ...] = ()
    full: bool = True   # part of the full suite
    quick: bool = False

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


@dataclasses.dataclass(frozen=True)
class AllocatorFacts:
    name: str
    kind: Kind
    path: str = ""
    version: str = ""
    sha256: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    missing: str = ""

    @property
    def ours(self) -> bool:
        return self.kind in (Kind.OURS, Kind.ABLATION)


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
    zero, so that there is no ratio. `low` and `high` are None below two rounds."""

    case: str
    mine: str
    other: str
    measure: str | tuple[str, str]
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    verdict: str

    @property
    def notable(self) -> bool:
        """Certain, and far enough from 1 to matter."""
        return self.verdict in (WIN, LOSS) and (self.ratio is None or abs(math.log(self.ratio)) > math.log1p(NOTABLE))


def paired(mine: dict[int, float], other: dict[int, float], higher_is_better=False):
    """(ratio, low, high, rounds, verdict) of two contenders' values by round; rounds that only one has do not count.

    A zero (counts have them) has no logarithm: there the verdict is that of the paired differences, without a ratio.
    """
    rounds = sorted(mine.keys() & other.keys())
    if not rounds:
        return None, None, None, 0, UNDECIDED
    pairs = [(other[r], mine[r]) if higher_is_better else (mine[r], other[r]) for r in rounds]
    if all(a > 0 and b > 0 for a, b in pairs):
        differences, outside = [math.log(a / b) for a, b in pairs], math.exp
    else:
        differences, outside = [a - b for a, b in pairs], None
    n = len(differences)
    mean = math.fsum(differences) / n
    low = high = None
    if n >= 2:
        half = student_t(n - 1) * statistics.stdev(differences) / math.sqrt(n)
        low, high = mean - half, mean + half
    # What rounding leaves of equal values is no difference.
    certain = n >= MIN_ROUNDS and max(low, -high) > 1e-12
    verdict = UNDECIDED if n < MIN_ROUNDS else TIE if not certain else WIN if mean < 0 else LOSS
    if outside is None:
        return (1.0 if all(a == b for a, b in pairs) else None), None, None, n, verdict
    return outside(mean), None if low is None else outside(low), None if high is None else outside(high), n, verdict


@dataclasses.dataclass(frozen=True)
class Score:
    """One contender against another over many cases. The geometric mean covers `cases` of them."""

    mine: str
    other: str
    wins: int
    ties: int
    losses: int
    undecided: int          # too few rounds for a verdict
    notable_wins: int       # by more than NOTABLE
    notable_losses: int
    ratio: float | None     # geometric mean
    cases: int              # how many the mean covers
    no_ratio: int           # compared, but a zero has no ratio
    mine_failed: tuple[str, ...]   # cases that only the other finished
    other_failed: tuple[str, ...]  # cases that only mine finished
    both_failed: tuple[str, ...]

    @property
    def tally(self) -> str:
        """ "31/5/4" (wins, ties, losses), or what there is instead."""
        if self.wins + self.ties + self.losses:
            return f"{self.wins}/{self.ties}/{self.losses}"
        return "too few rounds" if self.undecided else "-"


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

    def __init__(self, facts: CaseFacts, samples: list[Sample]):
        self.statuses = collections.Counter(s.status for s in samples)
        bad = next((s for s in samples if s.status != OK), None)
        self.ok = bad is None
        self.problem = "" if bad is None else bad.problem or bad.status
        self.status = OK if bad is None else bad.status
        self.rounds = len(samples)
        self.values: dict = {}   # measure -> round -> value
        self.metrics: dict = {}  # the record's further metrics: name -> values
        for sample in samples:
            if sample.status == OK:
                self._take(facts, sample)

    def _take(self, facts, sample):
        def put(measure, value):
            if value is not None:
                self.values.setdefault(measure, {})[sample.round] = value

        put(facts.judged_by, sample.value(facts.metric))
        put(MEMORY, sample.peak_kib)
        put("live_kib", None if sample.peak_live_bytes is None else sample.peak_live_bytes / 1024)
        for name, value in sample.metrics.items():
            if name != facts.metric:
                self.metrics.setdefault(name, []).append(value)
        for call, values in sample.latency.items():
            for key, value in values.items():
                put((call, key), value)


# ---- the folder ----


class Analysis:
    """A folder's samples, ready for questions. Names of contenders and cases are in the order of the report.

    `cases` are all; `suite` are those that count: not the cases that only a paper's figure asked for, which would give
    what that figure varies a weight of its own. A folder of nothing but figures counts them all.
    """

    def __init__(self, samples: list[Sample], meta: dict, folder: str = ""):
        self.folder = folder
        self.meta = meta
        self.cases = _case_facts(samples, meta)
        self.suite = [case for case, facts in self.cases.items() if facts.full or facts.quick] or list(self.cases)
        self.allocators = _allocator_facts(samples, meta)
        by_cell = collections.defaultdict(list)
        for sample in samples:
            by_cell[sample.case, sample.allocator].append(sample)
        self._cells = {key: Cell(self.cases[key[0]], found) for key, found in by_cell.items()}
        self.rounds = max((s.round for s in samples), default=0)
        self._versus: dict = {}

    # -- names --

    def groups(self) -> list[str]:
        return list(dict.fromkeys(self.cases[case].group for case in self.suite))

    def cases_of(self, group: str) -> list[str]:
        return [case for case in self.suite if self.cases[case].group == group]

    def ours(self) -> list[str]:
        """Our configs that have samples, the product first."""
        return [name for name, facts in self.allocators.items() if facts.ours and self._ran(name)]

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

    def best_other(self, case: str, allocator: str, measure) -> tuple[str, float] | None:
        """The best median among the others: for one of ours, of the rivals; never the baseline, which frees nothing."""
        facts = self.allocators[allocator]
        others = [
            name for name in self.contenders(case)
            if name != allocator and self.allocators[name].kind is not Kind.BASELINE
            and not (facts.ours and self.allocators[name].ours)
        ]
        found = [(name, self.median(case, name, measure)) for name in others]
        found = [(name, value) for name, value in found if value is not None]
        if not found:
            return None
        choose = max if self._higher(case, measure) else min
        return choose(found, key=lambda pair: pair[1])

    def floor(self, case: str, allocator: str, measure) -> float | None:
        """What no allocator should be able to beat: the baseline's time, the peak of live bytes (KiB) for memory."""
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
        values = [cell.values[measure] for cell in cells]
        result = paired(*values, self._higher(case, measure))
        return Versus(case, mine, other, measure, *result) if result[3] else None

    def score(self, mine: str, other: str, measure, cases=None) -> Score:
        """Over `cases` (default: the suite) that have the measure and were run under both; a contender that is not
        there (not built, not installed) has not failed."""
        tally, ratios = collections.Counter(), []
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
            if found is None:
                continue
            tally[found.verdict] += 1
            tally["big " + found.verdict] += found.notable
            ratios.append(found.ratio)
        known = [ratio for ratio in ratios if ratio is not None]
        return Score(
            mine, other, tally[WIN], tally[TIE], tally[LOSS], tally[UNDECIDED],
            tally["big " + WIN], tally["big " + LOSS],
            geometric_mean(known), len(known), len(ratios) - len(known),
            tuple(failed[False, True]), tuple(failed[True, False]), tuple(failed[False, False]),
        )

    def extremes(self, mine: str, measure, worst: bool, count=5) -> list[Versus]:
        """Cases that `mine` loses, beside the rival that it loses most to; or that it wins against every rival, beside
        the one that comes closest.

        With fewer than MIN_ROUNDS rounds there are no verdicts, and the ratios alone choose."""
        found = []
        for case in self.suite:
            versus = [self.versus(case, mine, other, measure) for other in self.rivals() if other != mine]
            versus = [v for v in versus if v and v.ratio is not None]
            if worst:
                versus = [v for v in versus if v.verdict in (LOSS, UNDECIDED) and v.ratio > 1]
            elif not all(v.verdict in (WIN, UNDECIDED) and v.ratio < 1 for v in versus):
                continue
            if versus:
                found.append(max(versus, key=lambda v: v.ratio))
        return sorted(found, key=lambda v: v.ratio, reverse=worst)[:count]

    def finishers(self) -> list[str]:
        """Ours and the rivals that finished at least half of the cases that any of them did: one that hangs everywhere
        would leave nothing that all have in common."""
        names = [*self.ours(), *self.rivals()]
        done = {name: {case for case in self.suite if self.median(case, name, MEMORY) is not None} for name in names}
        half = len(set().union(*done.values())) / 2
        return [name for name in names if len(done[name]) >= half]

    def _means(self, names, ratios_of) -> tuple[dict[str, float], int]:
        """Geometric mean of each name's ratios over the cases where all of them have one, and how many these are."""
        rows = [ratios_of(case) for case in self.suite]
        rows = [row for row in rows if row is not None and all(row.get(name) for name in names)]
        return ({name: geometric_mean(row[name] for row in rows) for name in names} if rows else {}), len(rows)

    def standing(self, measure, names) -> tuple[dict[str, float], int]:
        """Each contender's geometric mean of (its median / the best median of the case), over the cases that every one
        of `names` finished, and how many these are."""
        def ratios_of(case):
            medians = {name: self.median(case, name, measure) for name in names}
            if any(value is None for value in medians.values()):
                return None
            best = (max if self._higher(case, measure) else min)(medians.values())
            return {name: self.relative(case, value, best, measure) for name, value in medians.items()}

        return self._means(names, ratios_of)

    def above_floor(self, measure, names) -> tuple[dict[str, float], int]:
        """The same for the ratio to the floor."""
        return self._means(names, lambda case: {
            name: self.relative(case, self.median(case, name, measure), self.floor(case, name, measure), measure)
            for name in names
        })

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


def load(folder) -> Analysis:
    """The analysis of a run's folder; FileNotFoundError where it has no samples, store.Damaged for a damaged file."""
    samples = store.samples(folder)
    if not samples:
        raise FileNotFoundError(f"{folder}: no samples there (no {store.SAMPLES}, or an empty one)")
    return Analysis(samples, store.read_meta(folder), str(folder))


def _case_facts(samples, meta) -> dict[str, CaseFacts]:
    """Cases with samples: in the order of meta.json, then those that it does not know."""
    known, present = meta.get("cases", {}), list(dict.fromkeys(s.case for s in samples))
    order = [case for case in known if case in set(present)] + [case for case in present if case not in known]
    names = {field.name for field in dataclasses.fields(CaseFacts)}
    facts = {}
    for case in order:
        given = {key: value for key, value in known.get(case, {}).items() if key in names and value is not None}
        given["parameters"] = tuple(dict(given.get("parameters", {})).items())
        given = {"group": case.split(".")[0], "title": case, **given, "id": case}
        facts[case] = CaseFacts(**given)
    return facts


def _guessed_kind(name) -> Kind:
    """For a folder without meta.json."""
    fixed = {"standard": Kind.OURS, "oopsla15": Kind.OURS, "glibc": Kind.SYSTEM, FLOOR: Kind.BASELINE}
    return fixed.get(name, Kind.ABLATION if name.startswith("oopsla15-") else Kind.PEER)


def _allocator_facts(samples, meta) -> dict[str, AllocatorFacts]:
    facts = {}
    for given in meta.get("allocators", []):
        environment = given.get("environment") or {}
        facts[given["name"]] = AllocatorFacts(
            given["name"], Kind(given.get("kind") or _guessed_kind(given["name"]).value), given.get("path") or "",
            given.get("version") or "", given.get("sha256") or "", tuple(dict(environment).items()),
            given.get("missing") or "",
        )
    for name in dict.fromkeys(s.allocator for s in samples):
        facts.setdefault(name, AllocatorFacts(name, _guessed_kind(name)))
    order = (Kind.OURS, Kind.ABLATION, Kind.SYSTEM, Kind.PEER, Kind.GIVEN, Kind.BASELINE, Kind.PAGES)
    return dict(sorted(facts.items(), key=lambda item: (item[0] != PRODUCT, order.index(item[1].kind))))
