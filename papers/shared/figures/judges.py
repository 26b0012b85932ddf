"""What claims are made of: comparisons that know their own noise, and ways to join them.

A judge is asked with (data, subject), and gives a Verdict. Every comparison is a ratio taken in each round; it HOLDS when the
ratio's whole 95 % interval says so, DOES_NOT_HOLD when the whole interval says the opposite, else it is UNDECIDED.
Rounds in which what is compared ran too far apart do not count (data.near), as in the suite's tables.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from typing import Callable

from papers.shared.figures.data import (
    APART, FEWEST_ROUNDS, Data, NoData, Ratio, combined, interval, near, number, quotient,
)
from papers.shared.figures.figure import Answer, Measure, Point, Verdict

SUBJECT = ""  # stands for whoever the claim is judged on
# One lost comparison of many proves nothing while it is this close to a tie: with dozens of 95 % intervals in a claim
# some miss by chance.
SLACK = 1.02
# What chance makes Spearman's rank correlation exceed, either way, once in twenty, by the number of pairs; with fewer
# than five it may always be chance.
_CRITICAL = {5: 1.0, 6: 0.886, 7: 0.786, 8: 0.738, 9: 0.700, 10: 0.648, 11: 0.618, 12: 0.587, 13: 0.560, 14: 0.538,
             15: 0.521, 16: 0.503}
# Two names of one of the papers' systems: ours that stands for it, and itself.
_STANDS_FOR = {"supermalloc-original": "supermalloc"}

HOLDS, AGAINST, OPEN = Answer.HOLDS, Answer.DOES_NOT_HOLD, Answer.UNDECIDED


@dataclasses.dataclass(frozen=True, eq=False)
class Judge:
    """`rule(subject)`: what it goes by, a sentence without a verb, of which the whole 95 % interval is asked; empty where it
    has no numbers to judge, or says itself by what."""

    ask: Callable[[Data, str], Verdict]
    rule: Callable[[str], str] = lambda subject: ""
    over_all: bool = False         # takes one mean over the whole axis, which may hide what is so at an end of it
    about_rounds: bool = False     # judges by how rounds differ, so that one of them says nothing
    without_numbers: bool = False  # says the same of any data

    def __call__(self, data, subject) -> Verdict:
        return self.ask(data, subject)


# ---- places of a figure: functions of the data that give points ----


def everywhere(data: Data) -> list[Point]:
    return data.points


def to_cores(data: Data) -> list[Point]:
    """Thread counts that the machine has cores for."""
    return [p for p in data.points if p.x <= data.cores]


def beyond_one(data: Data) -> list[Point]:
    """Thread counts from two on, as far as there are cores."""
    return [p for p in data.points if 2 <= p.x <= max(2, data.cores)]


def most(data: Data) -> list[Point]:
    """The largest thread count."""
    return data.at(x=max(_counts(data)))


def fewest(data: Data) -> list[Point]:
    return data.at(x=min(_counts(data)))


def full(data: Data) -> list[Point]:
    """The largest thread count that the machine has cores for."""
    counts = _counts(data)
    return data.at(x=max(n for n in counts if n <= max(data.cores, counts[0])))


def _counts(data: Data) -> list[int]:
    if found := data.numbers():
        return found
    raise NoData("these results have no numbers of threads")


def only(*xs):
    return lambda data: [p for p in data.points if p.x in xs]


def series(name, place=everywhere):
    """The points of `place` that belong to one part of the figure."""
    return lambda data: [p for p in place(data) if p.series == name]


def _where(data, points) -> str:
    if len(data.all_points) == 1:
        return ""
    label = data.figure.panel.x_label
    parts = list(dict.fromkeys(p.series for p in points if p.series))
    xs = list(dict.fromkeys(str(p.x) for p in points if str(p.x)))
    all_of_it = len(points) == len(data.all_points) and len(points) > 3
    text = ", ".join(parts)
    if xs and not all_of_it:
        text += (": " if text else "") + f"{', '.join(xs)} {label}"
    elif all_of_it and not parts:
        text = f"over all {label}"
    return f" [{text}]" if text else ""


# ---- an interval against a band ----


def _against_band(ratio: Ratio, low, high, slack=1.0) -> Answer:
    """Where the interval lies. A limit of 1 is an order: equality is not enough for it."""
    if not ratio.sure:
        return OPEN
    over = 0.0 if low is None else low
    under = math.inf if high is None else high
    above = ratio.low > over if over == 1 else ratio.low >= over
    below = ratio.high < under if under == 1 else ratio.high <= under
    if above and below:
        return HOLDS
    tie = ratio.low == ratio.high == 1 and 1 in (over, under)
    if tie or ratio.high * slack < over or ratio.low > under * slack:
        return AGAINST
    return OPEN


def _join(verdicts) -> Verdict:
    """All of them must hold; one that clearly does not is enough against."""
    verdicts = list(verdicts)
    answers = [v.answer for v in verdicts]
    for answer in (AGAINST, OPEN, Answer.CANNOT_BE_SHOWN_HERE, Answer.NO_POWER,
                   Answer.NOT_BUILT, Answer.BY_CONSTRUCTION):
        if answer in answers:
            break
    else:
        answer = HOLDS
    return Verdict(answer, "; ".join(dict.fromkeys(v.text for v in verdicts)),
                   tuple(dict.fromkeys(name for v in verdicts for name in v.absent)), any(v.few for v in verdicts))


def _present(data, names, subject) -> list[str]:
    there = data.measured()
    return [name for name in names if name in there and name != subject]


def _systems(names) -> list[str]:
    return list(dict.fromkeys(_STANDS_FOR.get(name, name) for name in names))


def _among(data, names, one, found, doubtful=HOLDS, there=None) -> Verdict:
    """The verdict `found` on `one` against whoever of `names` is `there`. It names the absent; unless more than half
    are there, the answer that any of the absent could turn round is left open."""
    asked = _systems(name for name in names if name != one)
    there = _systems(_present(data, names, one) if there is None else there)
    absent = [name for name in asked if name not in there]
    few = bool(absent) and found.answer is doubtful and 2 * len(there) <= len(asked)
    failed = data.failed()
    named = (f"{name} ({failed[name].split()[0]})" if name in failed else name for name in absent)
    return dataclasses.replace(found, answer=OPEN if few else found.answer, few=few or found.few,
                               absent=tuple(dict.fromkeys((*found.absent, *named))))


# ---- the words of a rule ----


def _times(low, high) -> str:
    """A band of a ratio, in front of what it is a multiple of."""
    if low is None or high is None:
        value, words = (high, ("below", "at most")) if low is None else (low, ("above", "at least"))
        return words[0] if value == 1 else f"{words[1]} {value:.4g} times"
    return f"{low:.4g} to {high:.4g} times"


def _range(low, high, scale=1.0, unit="") -> str:
    ends = [None if end is None else number(end * scale) for end in (low, high)]
    words = f"at most {ends[1]}" if low is None else f"at least {ends[0]}" if high is None else f"{ends[0]} to {ends[1]}"
    return f"{words} {unit}".rstrip()


def _listed(names, but=None) -> str:
    return ", ".join(name for name in names if name != but)


def _best_of_others(what, band, among, one) -> str:
    return f"{what} of {one} {band} that of the best of {_listed(among, one)}"


# ---- what several judges ask ----


def _is_inside(low, high):
    return lambda value: (low is None or value >= low) and (high is None or value <= high)


def _each_time(values, is_good, rounds) -> Answer:
    """Of values that have no interval: all of them must be good, or none."""
    if rounds < FEWEST_ROUNDS:
        return OPEN
    good = sum(map(is_good, values))
    return HOLDS if good == len(values) else OPEN if good else AGAINST


def _best(data, names, one, measure, points) -> str:
    """Which of the others needs least."""
    medians = {name: statistics.median(data.score(name, measure, points).values()) for name in _present(data, names, one)}
    if not medians:
        raise NoData("none of the others has been measured")
    return min(medians, key=medians.get)


def _fact(data, one, key) -> float:
    if (one, key) not in data.facts:
        raise NoData(f"{key} of {one} is not known")
    return data.facts[one, key]


def _facts_of_others(data, names, one, key) -> dict[str, float]:
    return {name: data.facts[name, key] for name in names if (name, key) in data.facts and name != one}


# ---- judges: where `of` is SUBJECT they judge whoever the claim is judged on ----


def within(measure: Measure, low=None, high=None, of=SUBJECT, to=SUBJECT, at=everywhere):
    """`of`'s measure is between low and high times `to`'s, as geometric mean over the points."""

    def ask(data, subject):
        one, other, points = of or subject, to or subject, at(data)
        ratio = data.compare(one, other, measure, points)
        return Verdict(_against_band(ratio, low, high), f"{measure.name} {one}/{other}{_where(data, points)} {ratio}")

    return Judge(ask, lambda subject: f"{measure.name} of {of or subject} {_times(low, high)} that of {to or subject}",
                 over_all=at is everywhere)


def within_at_each(measure: Measure, low=None, high=None, of=SUBJECT, to=SUBJECT, at=everywhere):
    """At every single point `of`'s measure is between low and high times `to`'s."""

    def ask(data, subject):
        places = (within(measure, low, high, of, to, at=lambda found, point=point: [point]) for point in at(data))
        return all_of(*places)(data, subject)

    return Judge(ask, lambda subject: (
        f"{measure.name} of {of or subject} {_times(low, high)} that of {to or subject} at every place"))


def less(measure: Measure, than, of=SUBJECT, at=everywhere, by=1.0, low=None):
    """`of` has less than `by` times the measure of everyone in `than` that is there, and at least `low` times it."""
    names = (than,) if isinstance(than, str) else tuple(than)
    than_subject = names == (SUBJECT,)

    def ask(data, subject):
        one, points, verdicts, texts = of or subject, at(data), [], []
        others = [subject] if than_subject else _present(data, names, one)
        if not others:
            raise NoData("; ".join(data.why_not(name, measure, points) for name in names))
        slack = SLACK if len(others) > 1 else 1.0
        for other in others:
            ratio = data.compare(one, other, measure, points)
            verdicts.append(Verdict(_against_band(ratio, low, by, slack), ""))
            texts.append(f"{other} {ratio}")
        text = f"{measure.name} of {one}{_where(data, points)} against {', '.join(texts)}"
        return _among(data, () if than_subject else names, one, Verdict(_join(verdicts).answer, text))

    def rule(subject):
        others = subject if than_subject else _listed(names, of or subject)
        return f"{measure.name} of {of or subject} {_times(low, by)} that of {others}"

    return Judge(ask, rule, over_all=at is everywhere)


def close_to_best(measure: Measure, among, factor, of=SUBJECT, at=everywhere):
    """`of` needs at most `factor` times what the best of the others needs."""

    def ask(data, subject):
        one, points = of or subject, at(data)
        best = _best(data, among, one, measure, points)
        ratio = data.compare(one, best, measure, points)
        text = f"{measure.name} of {one}{_where(data, points)} against {best}, the best of the others, {ratio}"
        return _among(data, among, one, Verdict(_against_band(ratio, None, factor), text))

    return Judge(ask, lambda subject: _best_of_others(measure.name, _times(None, factor), among, of or subject))


def not_best(measure: Measure, others, at, of=SUBJECT):
    """Over the points the best of the others needs less than `of`."""
    best = close_to_best(measure, others, 1.0, of, at)

    def ask(data, subject):
        found = best(data, subject)  # the best of few is left open, not taken for the best of all
        turned = {HOLDS: AGAINST, AGAINST: HOLDS}.get(found.answer, found.answer)
        return dataclasses.replace(found, answer=turned)

    return Judge(ask, lambda subject: _best_of_others(measure.name, _times(1.0, None), others, of or subject))


def not_below_best(measure: Measure, among, factor, of=SUBJECT, at=everywhere):
    """`of` needs at least `factor` times what the best of the others needs: it has no particular advantage."""

    def ask(data, subject):
        one, points = of or subject, at(data)
        best = _best(data, among, one, measure, points)
        ratio = data.compare(one, best, measure, points)
        text = f"{measure.name} {one}/{best}{_where(data, points)} {ratio}"
        return _among(data, among, one, Verdict(_against_band(ratio, factor, None), text), doubtful=AGAINST)

    return Judge(ask, lambda subject: _best_of_others(measure.name, _times(factor, None), among, of or subject))


def best_at_each(measure: Measure, others, at, of=SUBJECT):
    """At every single point `of` needs less than the best of the others there."""

    def ask(data, subject):
        one, verdicts, texts = of or subject, [], []
        for point in at(data):
            best = _best(data, others, one, measure, [point])
            ratio = data.compare(one, best, measure, [point])
            verdicts.append(Verdict(_against_band(ratio, None, 1.0, SLACK), ""))
            texts.append(f"{point.x}: {ratio} of {best}'s")
        won = sum(v.answer is HOLDS for v in verdicts)
        text = f"{measure.name} of {one} is below the best other's at {won} of {len(verdicts)} " \
               f"{data.figure.panel.x_label}; {', '.join(texts)}"
        return _among(data, others, one, Verdict(_join(verdicts).answer, text))

    return Judge(ask, lambda subject: _best_of_others(measure.name, "below", others, of or subject) + " at every place")


def value_within(measure: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """`of`'s measure itself, in every round and at every point, lies between low and high."""

    def ask(data, subject):
        one, points = of or subject, at(data)
        found, rounds = data.pooled(one, measure, points)
        shown = sorted(v * measure.scale for v in (min(found), max(found)))
        span = number(shown[0]) if shown[0] == shown[1] else f"{number(shown[0])} to {number(shown[1])}"
        text = f"{measure.name} of {one}{_where(data, points)} {span} {measure.unit}".rstrip()
        return Verdict(_each_time(found, _is_inside(low, high), rounds), f"{text} in {len(found)} runs")

    return Judge(ask, lambda subject: (
        f"{measure.name} of {of or subject} {_range(low, high, measure.scale, measure.unit)} in every run"))


def mean_within(measure: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """The mean of `of`'s measure over the points lies between low and high in every round."""

    def ask(data, subject):
        one, points = of or subject, at(data)
        columns = [data.values(one, measure, point) for point in points]
        rounds = set.intersection(*map(set, columns))
        if not rounds:
            raise NoData(data.why_not(one, measure, points))
        means = sorted(statistics.fmean(c[n] for c in columns) for n in rounds)
        everything, _ = data.pooled(one, measure, points)
        shown = [number(v * measure.scale) for v in (means[0], means[-1], min(everything), max(everything))]
        text = f"mean {measure.name} of {one}{_where(data, points)} {shown[0]} to {shown[1]} {measure.unit} in " \
               f"{len(means)} rounds (at single points {shown[2]} to {shown[3]})"
        return Verdict(_each_time(means, _is_inside(low, high), len(means)), text)

    return Judge(ask, lambda subject: (
        f"mean {measure.name} of {of or subject} {_range(low, high, measure.scale, measure.unit)} in every round"))


def says(measure: Measure, yes: bool, of=SUBJECT, at=everywhere):
    """A yes/no measure is the same in every round and at every point, and is the expected one."""

    def ask(data, subject):
        one, points = of or subject, at(data)
        values, rounds = data.pooled(one, measure, points)
        found = [value >= 0.5 for value in values]
        text = f"{measure.name} of {one}{_where(data, points)}: yes in {sum(found)} of {len(found)} runs"
        return Verdict(_each_time(found, lambda value: value == yes, rounds), text)

    return Judge(ask, lambda subject: f"{measure.name} of {of or subject}: {'yes' if yes else 'no'} in every run")


def measures_within(one: Measure, other: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """Two measures of the same contender: one is between low and high times the other."""

    def ask(data, subject):
        name, points = of or subject, at(data)
        ratio = data.ratio(data.score(name, one, points), data.score(name, other, points))
        return Verdict(_against_band(ratio, low, high),
                       f"{one.name} / {other.name} of {name}{_where(data, points)} {ratio}")

    return Judge(ask, lambda subject: f"{one.name} of {of or subject} {_times(low, high)} its {other.name}")


def each(names, judge, least=1):
    """The judge holds for every one of the names that is there; at least `least` of them must be."""

    def ask(data, subject):
        there = _present(data, names, None)
        if len(there) < least:
            raise NoData("; ".join(data.why_not(name) for name in names if name not in there))
        return _among(data, names, None, _join([judge(data, name) for name in there]))

    return Judge(ask, lambda subject: f"of each of {_listed(names)} that is there: {judge.rule('it')}",
                 about_rounds=judge.about_rounds)


def majority(names, judge):
    """The judge holds for more than half of the contenders, those that are absent among them."""

    def ask(data, subject):
        there = _present(data, names, None)
        if len(there) < 2:
            raise NoData("fewer than two of the others have been measured")
        groups = {HOLDS: [], AGAINST: [], OPEN: []}
        for name in there:
            groups[judge(data, name).answer].append(name)
        half, systems = len(_systems(names)) / 2, {answer: len(_systems(found)) for answer, found in groups.items()}
        words = {HOLDS: "holds for", AGAINST: "does not hold for", OPEN: "undecided for"}
        text = "; ".join(f"{words[answer]} {', '.join(found)}" for answer, found in groups.items() if found)
        answer = HOLDS if systems[HOLDS] > half else AGAINST if systems[AGAINST] >= half else OPEN
        return _among(data, names, None, Verdict(answer, text), doubtful=answer)

    return Judge(ask, lambda subject: f"of more than half of {_listed(names)}: {judge.rule('it')}")


def changes(measure: Measure, before, after, low=None, high=None, of=SUBJECT):
    """`of`'s measure at `after` is between low and high times that at `before`."""

    def ask(data, subject):
        one, first, last = of or subject, before(data), after(data)
        ratio = data.ratio(data.score(one, measure, last), data.score(one, measure, first))
        return Verdict(_against_band(ratio, low, high),
                       f"{measure.name} of {one}{_where(data, last)} / {_where(data, first).strip()} {ratio}")

    return Judge(ask, lambda subject: (
        f"{measure.name} of {of or subject} at the last place {_times(low, high)} that at the first"))


def narrows(measure: Measure, one, other, before, after, low=None, high=1.0):
    """The ratio one/other shrinks from `before` to `after` (or moves by the given band)."""

    def ask(data, subject):
        a, b, first, last = one or subject, other or subject, before(data), after(data)
        ends = [quotient(data.score(a, measure, points), data.score(b, measure, points)) for points in (first, last)]
        rounds, apart = near(ends)
        if not rounds:
            raise NoData("no round has both ends")
        ratio = data.ratio(ends[1], ends[0])
        text = " to ".join(str(interval([end[n] for n in rounds], apart)) for end in ends)
        return Verdict(_against_band(ratio, low, high), f"{measure.name} {a}/{b} goes from {text}{_where(data, first)}"
                                                        f"{_where(data, last)}: times {ratio}")

    return Judge(ask, lambda subject: (
        f"{measure.name} of {one or subject} over that of {other or subject} at the last place "
        f"{_times(low, high)} what it is at the first"))


def scales(measure: Measure, of=SUBJECT, gain=1.25, high=None):
    """Doubling the threads up to the cores goes on gaining at least `gain` in throughput (at most `high`): judged from
    half the cores, or the next smaller count that was run, to all of them, by as much more as that is more than a doubling.
    `measure` is a time per operation."""

    def ask(data, subject):
        one, last = of or subject, full(data)
        half = [n for n in data.numbers() if n <= last[0].x / 2]
        if not half:
            raise NoData("one core only")
        first = data.at(x=half[-1])
        ratio = data.ratio(data.score(one, measure, first), data.score(one, measure, last))
        doublings = math.log2(last[0].x / first[0].x)
        band = [bound and bound ** doublings for bound in (gain, high)]
        return Verdict(_against_band(ratio, *band),
                       f"throughput of {one} from {first[0].x} to {last[0].x} threads grows {ratio} times")

    return Judge(ask, lambda subject: (
        f"{measure.name} of {of or subject}: from half the cores, or the next smaller count, to all of them throughput grows "
        f"{_range(gain, high)} times a doubling"))


def scalability_above(measure: Measure, better, worse, place, by=1.0):
    """The mean of speed-up(t) / t over the thread counts from two on is larger for `better` than for `worse`, by a factor at
    least."""

    def score(data, name):
        points = sorted(place(data), key=lambda p: p.x)
        if len(points) < 2:
            raise NoData("one core only")
        counts = [p.x for p in points[1:]]
        return combined(lambda base, *times: statistics.fmean(base / t / x for x, t in zip(counts, times)),
                        *(data.score(name, measure, [p]) for p in points))

    def ask(data, subject):
        scores = {name: score(data, name) for name in (better, worse)}
        ratio = data.ratio(scores[better], scores[worse])
        values = ", ".join(f"{name} {statistics.median(s.values()):.3f}" for name, s in scores.items() if s)
        return Verdict(_against_band(ratio, by, None), f"scores: {values}; ratio {ratio}")

    return Judge(ask, lambda subject: f"mean of speed-up(t) / t of {better} above "
                                      + (f"{by:.3g} times " if by != 1 else "") + f"that of {worse}")


def trade_off(one: Measure, other: Measure, at=full):
    """Over the contenders the two measures run against each other, further than chance would make them: their rank
    correlation is below 0 in every round, and beyond the critical value of so many contenders. Rounds repeat the same
    contenders, so they add no certainty beyond that."""

    def ask(data, subject):
        points, names = at(data), data.contenders()
        scores = {name: (data.score(name, one, points), data.score(name, other, points)) for name in names}
        rounds, apart = near([score for pair in scores.values() for score in pair]) if scores else ([], False)
        if len(names) < min(_CRITICAL) or not rounds:
            raise NoData(f"fewer than {min(_CRITICAL)} contenders have been measured, and a correlation of so few "
                         f"tells nothing")
        found = sorted(_rank_correlation([scores[m][0][n] for m in names], [scores[m][1][n] for m in names])
                       for n in rounds)
        critical, middle = _CRITICAL[min(len(names), max(_CRITICAL))], statistics.median(found)
        text = f"rank correlation of {one.name} and {other.name} over {len(names)} allocators{_where(data, points)} " \
               f"{middle:.2f} ({found[0]:.2f} to {found[-1]:.2f}); beyond chance from {critical:.2f} on"
        if apart:
            return Verdict(OPEN, f"{text}; {APART}")
        one_sign = found[-1] < 0 or found[0] > 0
        if len(found) < FEWEST_ROUNDS or not one_sign or abs(middle) < critical - 1e-9:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if found[-1] < 0 else AGAINST, text)

    return Judge(ask, lambda subject: (
        f"rank correlation of {one.name} and {other.name} negative in every round, and beyond chance"))


def _rank_correlation(xs, ys) -> float:
    """Spearman's, ties sharing their mean rank; 0 where one side is constant."""
    from scipy import stats

    return float(stats.spearmanr(xs, ys).statistic) if min(len(set(xs)), len(set(ys))) > 1 else 0.0


def _widest_by_chance(n) -> float:
    """How far apart chance brings two standard deviations of n values each, either way, once in twenty."""
    from scipy import stats

    return math.sqrt(stats.f.ppf(0.975, n - 1, n - 1))


def _deviations(measure, one, other, low, high, at, relative=False):
    """The ratio of the standard deviations of the two over the rounds, `relative` to their means, lies in a band."""
    what = f"{'relative ' * relative}standard deviation of {measure.name}"

    def ask(data, subject):
        a, b, points = one or subject, other or subject, at(data)
        scores = [sorted(data.score(name, measure, points).values()) for name in (a, b)]
        n = min(len(s) for s in scores)
        if n < 2:
            return Verdict(OPEN, f"{n} round: no deviation")
        spreads = [statistics.stdev(s) / (statistics.fmean(s) if relative else 1.0) for s in scores]
        ratio = spreads[0] / max(spreads[1], 1e-15)
        if n < 6:
            return Verdict(OPEN, f"{what} over {n} rounds, {a}/{b}: {number(ratio)}")
        certainty = _widest_by_chance(n)
        span = Ratio(n, ratio / certainty, ratio, ratio * certainty)
        return Verdict(_against_band(span, low, high), f"{what}, {a}/{b}: {span}")

    return Judge(ask, lambda subject: (
        f"{what} over the rounds, of {one or subject} {_times(low, high)} that of {other or subject}"), about_rounds=True)


def steady(measure: Measure, one, other, factor, at=everywhere):
    """The standard deviations of the two over the rounds differ by at most `factor`."""
    return _deviations(measure, one, other, 1 / factor, factor, at)


def steadier(measure: Measure, than, of=SUBJECT, at=everywhere, relative=False):
    """The standard deviation of `of` over the rounds, `relative` to its mean or not, is below `than`'s."""
    return _deviations(measure, of, than, None, 1.0, at, relative)


def below_range(measure: Measure, than, of=SUBJECT, at=everywhere, worst=False):
    """The mean of `of`'s rounds (its slowest, with `worst`) is below what lies between the fastest and the slowest
    round of `than`. It is said of the runs themselves: there is no interval."""
    what = f"{'slowest' if worst else 'mean'} {measure.name}"

    def ask(data, subject):
        one, points = of or subject, at(data)
        mine, theirs = (list(data.score(name, measure, points).values()) for name in (one, than))
        value, span = max(mine) if worst else statistics.fmean(mine), max(theirs) - min(theirs)
        text = f"{what} of {one} {number(value * measure.scale)} {measure.unit}, {than} varies by " \
               f"{number(span * measure.scale)} {measure.unit}"
        return Verdict(_each_time([value], lambda v: v < span, min(len(mine), len(theirs))), text)

    return Judge(ask, lambda subject: (
        f"{what} of {of or subject} below what lies between the fastest and the slowest round of {than}"),
        about_rounds=True)


def fact_less(key, than, of=SUBJECT, by=1.0, chance=1.0):
    """A number that no run gives: `of` has less than `by` times everyone's of `than` that is there. `chance`: the factor
    by which two such numbers of the same allocator differ once in twenty, either way; what differs by less is undecided."""

    def ask(data, subject):
        one = of or subject
        mine, theirs = data.facts.get((one, key)), _facts_of_others(data, than, one, key)
        if mine is None or not theirs:
            known = [*theirs, *([one] if mine is not None else [])]
            raise NoData(f"{key} is known of {', '.join(known) or 'nobody'} only")
        text = f"{key} of {one} {number(mine)}; " + ", ".join(f"{n} {number(v)}" for n, v in theirs.items())
        if chance != 1:
            text += f"; by chance up to {chance:g} times apart"
        answer = (HOLDS if all(mine * chance < by * value for value in theirs.values()) else
                  AGAINST if any(mine >= by * value * chance for value in theirs.values()) else OPEN)
        return _among(data, than, one, Verdict(answer, text), there=list(theirs))

    return Judge(ask, lambda subject: (
        f"{key} of {of or subject} {_times(None, by)} that of {_listed(than, of or subject)}"
        + (f", by more than the {chance:g} times of chance" if chance != 1 else "")))


def fact_not_below_best(key, among, factor, of=SUBJECT):
    """`of` has at least `factor` times what the best of the others has: no particular advantage."""

    def ask(data, subject):
        one = of or subject
        mine, theirs = data.facts.get((one, key)), _facts_of_others(data, among, one, key)
        if mine is None or not theirs:
            raise NoData(f"{key} is not known of {one} and another")
        best = min(theirs, key=theirs.get)
        text = f"{key} of {one} {number(mine)}; the best other's, {best}'s, {number(theirs[best])}"
        found = Verdict(HOLDS if mine >= factor * theirs[best] else AGAINST, text)
        return _among(data, among, one, found, doubtful=AGAINST, there=list(theirs))

    return Judge(ask, lambda subject: _best_of_others(key, _times(factor, None), among, of or subject))


def fact_ratio(upper, lower, low, high, of=SUBJECT):
    """The sum of the facts `upper` over the sum of the facts `lower` of one contender lies in a band."""

    def ask(data, subject):
        one, sums = of or subject, []
        for keys in (upper, lower):
            missing = [key for key in keys if (one, key) not in data.facts]
            if missing:
                raise NoData(f"{', '.join(missing)} of {one} is not known")
            sums.append(sum(data.facts[one, key] for key in keys))
        return Verdict(HOLDS if _is_inside(low, high)(sums[0] / sums[1]) else AGAINST,
                       f"{one}: {' + '.join(upper)} {sums[0]:,.0f}, {' + '.join(lower)} {sums[1]:,.0f}")

    return Judge(ask, lambda subject: (
        f"{' + '.join(upper)} of {of or subject} {_times(low, high)} its {' + '.join(lower)}"))


def fact_largest(key, parts, of=SUBJECT, place=1):
    """Of one contender's facts `parts`, `key` is the largest, or has another `place` by size."""

    def ask(data, subject):
        one = of or subject
        found = {part: data.facts[one, part] for part in parts if (one, part) in data.facts}
        if key not in found or len(found) < 2:
            raise NoData(f"{key} of {one} is not known")
        larger = sum(value > found[key] for value in found.values())
        return Verdict(HOLDS if larger == place - 1 else AGAINST,
                       f"{one}: " + ", ".join(f"{part} {value:,.0f}" for part, value in found.items()))

    rank = "the largest" if place == 1 else f"number {place} by size"
    return Judge(ask, lambda subject: f"{key} of {of or subject}: {rank} of {_listed(parts)}")


def fact_within(key, low=None, high=None, of=SUBJECT):
    """A number that no run gives lies between low and high."""

    def ask(data, subject):
        value = _fact(data, of or subject, key)
        return Verdict(HOLDS if _is_inside(low, high)(value) else AGAINST, f"{of or subject}: {key} {number(value)}")

    return Judge(ask, lambda subject: f"{key} of {of or subject} {_range(low, high)}")


def simulated_less(count, what, than, of=SUBJECT, least=1):
    """On each simulated number of cores from `least` on an operation of `of` has less of a count than one of `than`, with
    every seed that both have."""

    def ask(data, subject):
        one = of or subject
        known = {(line["row"], line["cores"], line.get("seed", 0)): line[count] for line in data.simulations if count in line}
        pairs = collections.defaultdict(list)
        for (name, cores, seed), mine in known.items():
            if name == one and cores >= least and (than, cores, seed) in known:
                pairs[cores].append((mine, known[than, cores, seed]))
        if not pairs:
            raise NoData(f"these results have no simulation of {one} and {than}")
        fewer = [mine < theirs for found in pairs.values() for mine, theirs in found]
        text = ", ".join(f"{cores} cores {_least_to_greatest(mine for mine, _ in found)} against "
                         f"{_least_to_greatest(theirs for _, theirs in found)} ({len(found)} seed{'s' * (len(found) > 1)})"
                         for cores, found in sorted(pairs.items()))
        said = HOLDS if all(fewer) else OPEN if any(fewer) else AGAINST
        return Verdict(Answer.SIMULATED, f"{said.value}; {what} of {one} against {than}: {text}")

    return Judge(ask, lambda subject: (
        f"{what} of {of or subject} below that of {than} on every simulated number of cores from {least} on"))


def _least_to_greatest(values):
    """A number, or from the least to the greatest."""
    found = sorted(values)
    return number(found[0]) if found[0] == found[-1] else f"{number(found[0])} to {number(found[-1])}"


def in_proportion(saved: Measure, cost: Measure, without, factor, of=SUBJECT, at=everywhere):
    """By what factor `of` has less of one measure than `without`, and by what factor it has more of the other: their
    quotient differs from point to point by at most `factor`."""

    def ask(data, subject):
        one, points = of or subject, at(data)

        def factors(point):
            pairs = [(data.score(a, m, [point]), data.score(b, m, [point]))
                     for a, b, m in ((without, one, saved), (one, without, cost))]
            return [quotient(*pair) for pair in pairs]

        both = {point: factors(point) for point in points}
        quotients = [quotient(*pair) for pair in both.values()]
        spread = data.ratio(combined(max, *quotients), combined(min, *quotients))
        shown = [" for ".join(f"{statistics.median(scores.values()):.2f}" for scores in pair) for pair in both.values()]
        text = f"factors by which {one} has less {saved.name} than {without}, for more {cost.name}: " + ", ".join(
            f"{point.x} {words}" for point, words in zip(points, shown))
        return Verdict(_against_band(spread, None, factor), f"{text}; largest quotient over the smallest {spread}")

    return Judge(ask, lambda subject: (
        f"{saved.name} {without}/{of or subject} over {cost.name} {of or subject}/{without}, the largest of all places "
        f"{_times(None, factor)} the smallest"))


def _aside(found, answer, why) -> Verdict:
    """What was found is told, and is no verdict."""
    return dataclasses.replace(found, answer=answer, text=f"{why}; seen here: {found.answer.value}; {found.text}")


def _set_aside(answer, judge, why):
    return dataclasses.replace(judge, ask=lambda data, subject: _aside(judge(data, subject), answer, why))


def by_construction(judge, why):
    """Our workload is told to be as the claim says; it says how the judge's numbers come about."""
    return _set_aside(Answer.BY_CONSTRUCTION, judge, why)


def another_subject(judge, why):
    """What the claim is about is not here; what stands for it decides nothing."""
    return _set_aside(Answer.CANNOT_BE_SHOWN_HERE, judge, why)


def left_out(judge, why):
    """What the claim is about could be had; what stands for it decides nothing."""
    return _set_aside(Answer.NOT_MEASURED, judge, why)


def no_power(judge, why):
    """The experiment would say so whatever was so."""
    return _set_aside(Answer.NO_POWER, judge, why)


def told_apart(judge, measure: Measure, by, at=everywhere):
    """What the judge says, if the experiment tells anybody apart: the contenders' measures, as means over the points, reach
    over a factor of more than `by`, the judge's own uncertainty aside."""

    def ask(data, subject):
        found = judge(data, subject)
        scores = {}
        for name in data.measured():
            try:
                scores[name] = statistics.median(data.score(name, measure, at(data)).values())
            except (NoData, statistics.StatisticsError):
                continue  # it has not been measured at all places
        if len(scores) < 2 or max(scores.values()) > by * min(scores.values()):
            return found
        least, largest = min(scores, key=scores.get), max(scores, key=scores.get)
        return _aside(found, Answer.NO_POWER, (
            f"the {measure.name} of all {len(scores)} lies within {scores[largest] / scores[least] - 1:.1%}, from {least} to "
            f"{largest}"))

    return dataclasses.replace(judge, ask=ask)


def if_known(judge, reason):
    """What the judge says; where it has no numbers, that it cannot be shown here, and why."""

    def ask(data, subject):
        try:
            return judge(data, subject)
        except NoData as error:
            return Verdict(Answer.CANNOT_BE_SHOWN_HERE, f"{reason} ({error})")

    return Judge(ask, judge.rule)


def all_of(*judges):
    """Every one of the judges holds."""
    return Judge(lambda data, subject: _join([one(data, subject) for one in judges]),
                 lambda subject: "; ".join(filter(None, (one.rule(subject) for one in judges))),
                 about_rounds=any(one.about_rounds for one in judges))


def not_measured(reason):
    """A claim that could be measured, and was not: the reason."""
    return Judge(lambda data, subject: Verdict(Answer.NOT_MEASURED, reason), without_numbers=True)


def cannot(reason):
    """A claim that this suite has no means to measure: the reason."""
    return Judge(lambda data, subject: Verdict(Answer.CANNOT_BE_SHOWN_HERE, reason), without_numbers=True)
