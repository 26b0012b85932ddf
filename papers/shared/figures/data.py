"""What was measured for one figure, and how sure a comparison of two contenders in it is."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics

from spanalloc_bench.analyse import APART_S
from spanalloc_bench.ratios import half_interval
from papers.shared.figures.figure import PROCESS, Figure, Measure, Point, peak_kib
from spanalloc_bench.model import OK, Sample

FEWEST_ROUNDS = 3
ONE_ROUND = " (1 round)"
APART = f"runs more than {APART_S / 60:.0f} minutes apart; --again measures them together"


class NoData(Exception):
    """A number that a claim needs is not there; the text says which and why."""


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The mean of a ratio taken in every round, with its 95 % interval, which fewer than three rounds do not have, nor
    runs that lie `apart` in time."""

    rounds: int
    low: float
    middle: float
    high: float
    apart: bool = False

    @property
    def sure(self) -> bool:
        return self.rounds >= FEWEST_ROUNDS and not self.apart

    def __str__(self):
        if self.apart:
            return f"{number(self.middle)} ({APART})"
        if not self.sure:
            return f"{number(self.middle)}{ONE_ROUND}" if self.rounds == 1 else f"{number(self.middle)} ({self.rounds} rounds)"
        return f"{number(self.middle)} ({number(self.low)} to {number(self.high)})"


def number(value: float) -> str:
    """Three digits, without exponents where a reader can do without."""
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"


def interval(values, apart=False) -> Ratio:
    """The mean of positive ratios, one a round, and its 95 % interval: Student's, of their logarithms, as everywhere in
    the suite."""
    logs = [math.log(v) for v in values]
    n, mean = len(logs), statistics.fmean(logs)
    half = half_interval(logs) if n >= 2 else 0.0
    # What rounding leaves of equal values is no difference.
    half, mean = (x if abs(x) > 1e-12 else 0.0 for x in (half, mean))
    return Ratio(n, math.exp(mean - half), math.exp(mean), math.exp(mean + half), apart)


class Scores(dict):
    """A number by round. `begun` holds, by round and case, when the runs behind it began, as far as that is known;
    `apart` are the rounds whose number compares runs that lay too far apart."""

    def __init__(self, values=(), begun=None, apart=()):
        super().__init__(values)
        self.begun = dict(begun or {})
        self.apart = frozenset(apart)


def together(scores, round_) -> bool:
    """Whether what is compared in a round ran at about the same time, by the rule of the suite's tables. Of the same
    cases it is the runs of each case that count, of different ones all."""
    if any(round_ in one.apart for one in scores):
        return False
    begun = [one.begun.get(round_, {}) for one in scores]
    if all(cases.keys() == begun[0].keys() for cases in begun):
        groups = [[time for cases in begun for time in cases[case]] for case in begun[0]]
    else:
        groups = [[time for cases in begun for times in cases.values() for time in times]]
    return all(max(group) - min(group) <= APART_S for group in groups if group)


def near(scores) -> tuple[list[int], bool]:
    """The rounds to compare in, and whether too few of them had their runs together: then they are all there are."""
    rounds = sorted(set.intersection(*(set(one) for one in scores)))
    found = [round_ for round_ in rounds if together(scores, round_)]
    apart = FEWEST_ROUNDS > len(found) < len(rounds)
    return (rounds if apart else found), apart


def combined(function, *scores) -> Scores:
    """The function of several scores in every round that all have; it counts as taken when they were."""
    values, begun = {}, {}
    for round_ in sorted(set.intersection(*(set(one) for one in scores))):
        values[round_] = function(*(one[round_] for one in scores))
        for one in scores:
            for case, times in one.begun.get(round_, {}).items():
                cases = begun.setdefault(round_, {})
                cases[case] = (*cases.get(case, ()), *times)
    return Scores(values, begun, frozenset().union(*(one.apart for one in scores)))


def quotient(one: Scores, other: Scores) -> Scores:
    """one / other in every round, for a comparison with another such quotient, which may be of another time."""
    values = combined(lambda a, b: a / b, one, other)
    return Scores(values, apart=[round_ for round_ in values if not together((one, other), round_)])


class Data:
    """The samples of a figure's points, by contender and round.

    `missing` says of a contender why it could not run; `facts` holds numbers that no run gives (code sizes); `machine`
    is that of meta.json; `variants` are the data of the variants, which ran in turn with the paper's own configuration
    and are compared with no other run of it; `given` names the contenders that a user added; `simulated` is the figure's
    data on simulated machines, by their cores, of the lines `simulations`."""

    def __init__(self, figure: Figure, cores: int, samples: list[Sample], missing=None, facts=None, machine=None,
                 variants: Data | None = None, given=(), simulations=()):
        self.figure = figure
        self.cores = cores
        self.points = self.all_points = figure.points(cores)
        self.missing = dict(missing or {})
        self.facts = dict(facts or {})
        self.machine = dict(machine or {})
        self.variants = variants
        self.given = tuple(given)
        self.simulations = list(simulations)
        rows = figure.stand_ins(cores) if figure.stand_ins else []
        stand_ins = {row.case.id: (row.name, row.beside.id) for row in rows}
        self.stand_ins = frozenset(row.name for row in rows)
        named = (*figure.allocators, *(row.name for row in rows), *given)
        self._rows = list(dict.fromkeys(named if variants else (*named, *figure.variants)))
        wanted = {point.case.id for point in self.points}
        self._cells: dict[tuple[str, str], dict[int, Sample]] = {}
        for sample in samples:
            if sample.case in wanted and sample.allocator in self._rows:
                self._cells.setdefault((sample.allocator, sample.case), {})[sample.round] = sample
            elif sample.case in stand_ins and sample.allocator == "glibc":
                self._cells.setdefault(stand_ins[sample.case], {})[sample.round] = sample

    # ---- what there is ----

    def _runs(self, allocator: str, point: Point) -> dict[int, Sample]:
        """Its runs at this point by round; none where any round failed: who fails in one round has no figures."""
        cells = self._cells.get((allocator, point.case.id), {})
        return cells if all(sample.status == OK for sample in cells.values()) else {}

    def _failure(self, allocator: str, points) -> str:
        """How its runs at the first of the points failed where any did; "" where none did."""
        for point in points:
            cells = self._cells.get((allocator, point.case.id), {})
            bad = [sample for sample in cells.values() if sample.status != OK]
            if bad:
                rounds = f"{len(bad)} of {len(cells)} round{'s' * (len(cells) != 1)}"
                return f"{bad[0].status} in {rounds} of {bad[0].case}: {bad[0].problem}".rstrip(": ")
        return ""

    def measured(self) -> list[str]:
        """Contenders with figures at one point or more, in the figure's order, those given after them."""
        good = {a for a, _ in self.facts}
        return [name for name in self._rows if name in good or any(self._runs(name, point) for point in self.points)]

    def contenders(self) -> list[str]:
        """Those measured that are allocators, not a case that is shown as a row."""
        return [name for name in self.measured() if name not in self.stand_ins]

    def failed(self) -> dict[str, str]:
        """How those failed that ran and have figures nowhere."""
        found, there = {}, self.measured()
        for name in self._rows:
            failure = self._failure(name, self.points)
            if failure and name not in there and name not in self.missing:
                found[name] = failure
        return found

    def _process_kib(self, point: Point) -> dict[int, float]:
        """What the program itself needs at this point, by round: the row PROCESS."""
        found = {n: peak_kib(sample) for n, sample in self._runs(PROCESS, point).items()}
        return {n: peak for n, peak in found.items() if peak is not None}

    def values(self, allocator: str, measure: Measure, point: Point) -> dict[int, float]:
        """The measure by round. What is net is so of the same round's process, or of the median one where the round has
        none."""
        alone = self._process_kib(point) if measure.net else {}
        if measure.net and (not alone or allocator in self.stand_ins):
            return {}
        usual = statistics.median(alone.values()) if alone else None
        found = {n: measure.of(sample, alone.get(n, usual)) for n, sample in self._runs(allocator, point).items()}
        return {n: float(value) for n, value in found.items() if value is not None and value == value}

    def median(self, allocator, measure, point) -> float | None:
        found = self.values(allocator, measure, point)
        return statistics.median(found.values()) if found else None

    def why_not(self, allocator, measure=None, points=()) -> str:
        """Why there is no number of this contender."""
        if allocator in self.missing:
            return f"{allocator}: {self.missing[allocator]}"
        places = points or self.points
        failure = self._failure(allocator, places)
        if failure:
            return f"{allocator} {failure}"
        if measure is not None and measure.net and not all(map(self._process_kib, places)):
            return f"{PROCESS} {self._failure(PROCESS, places) or 'has not been measured'}"
        return f"{allocator} has not been measured" + (f" for {measure.name}" if measure else "")

    def cast(self, name, played_by) -> Data:
        """The data with another contender's runs for those of `name`."""
        part = copy.copy(self)
        part._cells = {(name if row == played_by else row, case): cells
                       for (row, case), cells in self._cells.items() if row != name}
        return part

    # ---- places of the figure ----

    def up_to_cores(self) -> Data:
        """The part with no more threads than cores; `all_points` stay the figure's."""
        part = copy.copy(self)
        part.points = [point for point in self.all_points if isinstance(point.x, int) and point.x <= self.cores]
        return part

    def only(self, x) -> Data:
        """The part at one place of the axis; `all_points` stay the figure's."""
        part = copy.copy(self)
        part.points = self.at(x=x)
        return part

    def at(self, x=None, series=None) -> list[Point]:
        return [p for p in self.points if (x is None or p.x == x) and (series is None or p.series == series)]

    def numbers(self, series=None) -> list[int]:
        """The numeric axis, ascending."""
        return sorted({p.x for p in self.at(series=series) if isinstance(p.x, int)})

    # ---- comparisons ----

    def score(self, allocator, measure, points) -> Scores:
        """The geometric mean over the points, for each round that has all of them. NoData when there is none."""
        columns = [self.values(allocator, measure, point) for point in points]
        rounds = set.intersection(*(set(c) for c in columns)) if columns else set()
        if not rounds:
            raise NoData(self.why_not(allocator, measure, points))
        begun = {n: {point.case.id: self._begun(allocator, point, n) for point in points} for n in rounds}
        if len(columns) == 1:
            return Scores(columns[0], begun)
        tiny = 1e-12  # a geometric mean knows no zero; a share of nothing counts as next to nothing
        means = {n: math.exp(statistics.fmean(math.log(max(c[n], tiny)) for c in columns)) for n in sorted(rounds)}
        return Scores(means, begun)

    def _begun(self, allocator, point, round_) -> tuple[float, ...]:
        started = self._cells[allocator, point.case.id][round_].started
        return () if started is None else (started,)

    def pooled(self, allocator, measure, points) -> tuple[list[float], int]:
        """Every value over all points and rounds, and the number of rounds. NoData when a point has none."""
        columns = [self.values(allocator, measure, point) for point in points]
        if not columns or not all(columns):
            raise NoData(self.why_not(allocator, measure, points))
        return [value for column in columns for value in column.values()], min(len(column) for column in columns)

    def ratio(self, one: Scores, other: Scores) -> Ratio:
        """one / other, round by round: what disturbs a round disturbs both, where they ran at about the same time."""
        tiny = 1e-12
        rounds, apart = near((one, other))
        if not rounds:
            raise NoData("no round has both sides")
        return interval([max(one[n], tiny) / max(other[n], tiny) for n in rounds], apart)

    def compare(self, one, other, measure, points) -> Ratio:
        return self.ratio(self.score(one, measure, points), self.score(other, measure, points))
