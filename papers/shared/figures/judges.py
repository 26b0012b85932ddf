"""What claims are made of: comparisons that know their own noise, and ways to join them.

A judge is a function (data, subject) -> Verdict. Every comparison is a ratio taken in each round; it HOLDS when the
ratio's whole 95 % interval says so, DOES_NOT_HOLD when the whole interval says the opposite, else it is UNDECIDED.
Rounds in which what is compared ran too far apart do not count (data.near), as in the suite's tables.
"""

from __future__ import annotations

import dataclasses
import math
import statistics

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
    return data.at(x=max(data.numbers()))


def fewest(data: Data) -> list[Point]:
    return data.at(x=min(data.numbers()))


def full(data: Data) -> list[Point]:
    """The largest thread count that the machine has cores for."""
    return data.at(x=max(n for n in data.numbers() if n <= max(data.cores, data.numbers()[0])))


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
    for answer in (AGAINST, OPEN, Answer.CANNOT_BE_SHOWN_HERE, Answer.NOT_BUILT, Answer.BY_CONSTRUCTION):
        if answer in answers:
            break
    else:
        answer = HOLDS
    return Verdict(answer, "; ".join(dict.fromkeys(v.text for v in verdicts)),
                   tuple(dict.fromkeys(name for v in verdicts for name in v.absent)), any(v.few for v in verdicts))


def _name(who, subject) -> str:
    return who or subject


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


# ---- what a verdict goes by ----

_RULES = {}


def _ruled(judge, rule):
    """The judge, that goes by `rule(subject)`: a sentence without a verb, of which the whole 95 % interval is asked."""
    _RULES[judge] = rule
    return judge


def rule_of(judge, subject) -> str:
    """What the judge goes by; empty where it has no numbers to judge, or says itself by what."""
    return _RULES[judge](subject) if judge in _RULES else ""


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


_OVER_ALL = set()


def _placed(judge, at):
    """The judge, that compares at the place `at`."""
    if at is everywhere:
        _OVER_ALL.add(judge)
    return judge


def is_over_all(judge) -> bool:
    """Whether it takes one mean over the whole axis, which may hide what is so at an end of it."""
    return judge in _OVER_ALL


# ---- judges ----


def within(measure: Measure, low=None, high=None, of=SUBJECT, to=SUBJECT, at=everywhere):
    """`of`'s measure is between low and high times `to`'s, as geometric mean over the points."""

    def judge(data, subject):
        one, other, points = _name(of, subject), _name(to, subject), at(data)
        ratio = data.compare(one, other, measure, points)
        return Verdict(_against_band(ratio, low, high), f"{measure.name} {one}/{other}{_where(data, points)} {ratio}")

    return _ruled(_placed(judge, at), lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_times(low, high)} that of {_name(to, subject)}"))


def less(measure: Measure, than, of=SUBJECT, at=everywhere, by=1.0, low=None):
    """`of` has less than `by` times the measure of everyone in `than` that is there, and at least `low` times it."""
    names = (than,) if isinstance(than, str) else tuple(than)

    def judge(data, subject):
        one, points, verdicts, texts = _name(of, subject), at(data), [], []
        others = [subject] if names == (SUBJECT,) else _present(data, names, one)
        if not others:
            raise NoData("; ".join(data.why_not(name, measure, points) for name in names))
        slack = SLACK if len(others) > 1 else 1.0
        for other in others:
            ratio = data.compare(one, other, measure, points)
            verdicts.append(Verdict(_against_band(ratio, low, by, slack), ""))
            texts.append(f"{other} {ratio}")
        text = f"{measure.name} of {one}{_where(data, points)} against {', '.join(texts)}"
        return _among(data, () if names == (SUBJECT,) else names, one, Verdict(_join(verdicts).answer, text))

    return _ruled(_placed(judge, at), lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_times(low, by)} that of "
        + (subject if names == (SUBJECT,) else _listed(names, _name(of, subject)))))


def close_to_best(measure: Measure, among, factor, of=SUBJECT, at=everywhere):
    """`of` needs at most `factor` times what the best of the others needs."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        scores = {name: data.score(name, measure, points) for name in _present(data, among, one)}
        if not scores:
            raise NoData("none of the others has been measured")
        best = min(scores, key=lambda name: statistics.median(scores[name].values()))
        ratio = data.compare(one, best, measure, points)
        text = f"{measure.name} of {one}{_where(data, points)} against {best}, the best of the others, {ratio}"
        return _among(data, among, one, Verdict(_against_band(ratio, None, factor), text))

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_times(None, factor)} that of the best of "
        f"{_listed(among, _name(of, subject))}"))


def not_best(measure: Measure, others, at, of=SUBJECT):
    """Over the points the best of the others needs less than `of`."""
    best = close_to_best(measure, others, 1.0, of, at)

    def judge(data, subject):
        found = best(data, subject)  # the best of few is left open, not taken for the best of all
        turned = {HOLDS: AGAINST, AGAINST: HOLDS}.get(found.answer, found.answer)
        return dataclasses.replace(found, answer=turned)

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_times(1.0, None)} that of the best of "
        f"{_listed(others, _name(of, subject))}"))


def value_within(measure: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """`of`'s measure itself, in every round and at every point, lies between low and high."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        found, rounds = data.pooled(one, measure, points)
        inside = sum((low is None or v >= low) and (high is None or v <= high) for v in found)
        shown = sorted(v * measure.scale for v in (min(found), max(found)))
        span = number(shown[0]) if shown[0] == shown[1] else f"{number(shown[0])} to {number(shown[1])}"
        text = f"{measure.name} of {one}{_where(data, points)} {span} {measure.unit}".rstrip()
        text += f" in {len(found)} runs"
        if rounds < FEWEST_ROUNDS:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if inside == len(found) else AGAINST if inside == 0 else OPEN, text)

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_range(low, high, measure.scale, measure.unit)} in every run"))


def mean_within(measure: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """The mean of `of`'s measure over the points lies between low and high in every round."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        columns = [data.values(one, measure, point) for point in points]
        rounds = set.intersection(*map(set, columns))
        if not rounds:
            raise NoData(data.why_not(one, measure, points))
        means = sorted(statistics.fmean(c[n] for c in columns) for n in rounds)
        everything, _ = data.pooled(one, measure, points)
        shown = [number(v * measure.scale) for v in (means[0], means[-1], min(everything), max(everything))]
        text = f"mean {measure.name} of {one}{_where(data, points)} {shown[0]} to {shown[1]} {measure.unit} in " \
               f"{len(means)} rounds (at single points {shown[2]} to {shown[3]})"
        inside = sum((low is None or v >= low) and (high is None or v <= high) for v in means)
        if len(means) < FEWEST_ROUNDS:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if inside == len(means) else AGAINST if inside == 0 else OPEN, text)

    return _ruled(judge, lambda subject: (
        f"mean {measure.name} of {_name(of, subject)} {_range(low, high, measure.scale, measure.unit)} in every "
        f"round"))


def not_below_best(measure: Measure, among, factor, of=SUBJECT, at=everywhere):
    """`of` needs at least `factor` times what the best of the others needs: it has no particular advantage."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        scores = {name: data.score(name, measure, points) for name in _present(data, among, one)}
        if not scores:
            raise NoData("none of the others has been measured")
        best = min(scores, key=lambda name: statistics.median(scores[name].values()))
        ratio = data.compare(one, best, measure, points)
        text = f"{measure.name} {one}/{best}{_where(data, points)} {ratio}"
        return _among(data, among, one, Verdict(_against_band(ratio, factor, None), text), doubtful=AGAINST)

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} {_times(factor, None)} that of the best of "
        f"{_listed(among, _name(of, subject))}"))


def measures_within(one: Measure, other: Measure, low=None, high=None, of=SUBJECT, at=everywhere):
    """Two measures of the same contender: one is between low and high times the other."""

    def judge(data, subject):
        name, points = _name(of, subject), at(data)
        ratio = data.ratio(data.score(name, one, points), data.score(name, other, points))
        return Verdict(_against_band(ratio, low, high), f"{one.name} / {other.name} of {name}{_where(data, points)} "
                                                        f"{ratio}")

    return _ruled(judge, lambda subject: f"{one.name} of {_name(of, subject)} {_times(low, high)} its {other.name}")


def best_at_each(measure: Measure, others, at, of=SUBJECT):
    """At every single point `of` needs less than the best of the others there."""

    def judge(data, subject):
        one, verdicts, texts = _name(of, subject), [], []
        for point in at(data):
            there = _present(data, others, one)
            if not there:
                raise NoData("none of the others has been measured")
            medians = {name: statistics.median(data.score(name, measure, [point]).values()) for name in there}
            best = min(medians, key=medians.get)
            ratio = data.compare(one, best, measure, [point])
            verdicts.append(Verdict(_against_band(ratio, None, 1.0, SLACK), ""))
            texts.append(f"{point.x}: {ratio} of {best}'s")
        won = sum(v.answer is HOLDS for v in verdicts)
        text = f"{measure.name} of {one} is below the best other's at {won} of {len(verdicts)} " \
               f"{data.figure.panel.x_label}; {', '.join(texts)}"
        return _among(data, others, one, Verdict(_join(verdicts).answer, text))

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} below that of the best of "
        f"{_listed(others, _name(of, subject))} at every place"))


_ABOUT_ROUNDS = set()


def _about_rounds(judge):
    _ABOUT_ROUNDS.add(judge)
    return judge


def is_about_rounds(judge) -> bool:
    """Whether it judges by how rounds differ, so that one of them says nothing."""
    return judge in _ABOUT_ROUNDS


def each(names, judge, least=1):
    """The judge holds for every one of the names that is there; at least `least` of them must be."""

    def judge_each(data, subject):
        there = _present(data, names, None)
        if len(there) < least:
            raise NoData("; ".join(data.why_not(name) for name in names if name not in there))
        return _among(data, names, None, _join([judge(data, name) for name in there]))

    found = _ruled(judge_each, lambda subject: f"of each of {_listed(names)} that is there: {rule_of(judge, 'it')}")
    return _about_rounds(found) if is_about_rounds(judge) else found


def changes(measure: Measure, before, after, low=None, high=None, of=SUBJECT):
    """`of`'s measure at `after` is between low and high times that at `before`."""

    def judge(data, subject):
        one, first, last = _name(of, subject), before(data), after(data)
        ratio = data.ratio(data.score(one, measure, last), data.score(one, measure, first))
        return Verdict(_against_band(ratio, low, high),
                       f"{measure.name} of {one}{_where(data, last)} / {_where(data, first).strip()} {ratio}")

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)} at the last place {_times(low, high)} that at the first"))


def narrows(measure: Measure, one, other, before, after, low=None, high=1.0):
    """The ratio one/other shrinks from `before` to `after` (or moves by the given band)."""

    def judge(data, subject):
        a, b, first, last = _name(one, subject), _name(other, subject), before(data), after(data)
        ends = [quotient(data.score(a, measure, points), data.score(b, measure, points)) for points in (first, last)]
        rounds, apart = near(ends)
        if not rounds:
            raise NoData("no round has both ends")
        ratio = data.ratio(ends[1], ends[0])
        text = " to ".join(str(interval([end[n] for n in rounds], apart)) for end in ends)
        return Verdict(_against_band(ratio, low, high),
                       f"{measure.name} {a}/{b} goes from {text}{_where(data, first)}{_where(data, last)}: times "
                       f"{ratio}")

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(one, subject)} over that of {_name(other, subject)} at the last place "
        f"{_times(low, high)} what it is at the first"))


def scales(measure: Measure, of=SUBJECT, gain=1.25, high=None):
    """Doubling the threads up to the cores goes on gaining at least `gain` in throughput (at most `high`): judged from
    half the cores to all of them. `measure` is a time per operation."""

    def judge(data, subject):
        one, last = _name(of, subject), full(data)
        half = [n for n in data.numbers() if n <= last[0].x / 2]
        if not half:
            raise NoData("one core only")
        first = data.at(x=half[-1])
        ratio = data.ratio(data.score(one, measure, first), data.score(one, measure, last))
        return Verdict(_against_band(ratio, gain, high),
                       f"throughput of {one} from {first[0].x} to {last[0].x} threads grows {ratio} times")

    return _ruled(judge, lambda subject: (
        f"{measure.name} of {_name(of, subject)}: from half the cores to all of them throughput grows "
        f"{_range(gain, high)} times"))


def scalability_above(measure: Measure, better, worse, place):
    """The mean of speed-up(t) / t over the thread counts from two on is larger for `better` than for `worse`."""

    def score(data, name):
        points = sorted(place(data), key=lambda p: p.x)
        if len(points) < 2:
            raise NoData("one core only")
        counts = [p.x for p in points[1:]]
        return combined(lambda base, *times: statistics.fmean(base / t / x for x, t in zip(counts, times)),
                        *(data.score(name, measure, [p]) for p in points))

    def judge(data, subject):
        scores = {name: score(data, name) for name in (better, worse)}
        ratio = data.ratio(scores[better], scores[worse])
        values = ", ".join(f"{name} {statistics.median(s.values()):.3f}" for name, s in scores.items() if s)
        return Verdict(_against_band(ratio, 1.0, None), f"scores: {values}; ratio {ratio}")

    return _ruled(judge, lambda subject: f"mean of speed-up(t) / t of {better} above that of {worse}")


def trade_off(one: Measure, other: Measure, at=full):
    """Over the contenders the two measures run against each other, further than chance would make them: their rank
    correlation is below 0 in every round, and beyond the critical value of so many contenders. Rounds repeat the same
    contenders, so they add no certainty beyond that."""

    def judge(data, subject):
        points, names = at(data), data.contenders()
        scores = {name: (data.score(name, one, points), data.score(name, other, points)) for name in names}
        rounds, apart = near([score for pair in scores.values() for score in pair]) if scores else ([], False)
        if len(names) < min(_CRITICAL) or not rounds:
            raise NoData(f"fewer than {min(_CRITICAL)} contenders have been measured, and a correlation of so few "
                         f"tells nothing")
        found = sorted(_rank_correlation([scores[m][0][n] for m in names], [scores[m][1][n] for m in names])
                       for n in rounds)
        text = f"rank correlation of {one.name} and {other.name} over {len(names)} allocators{_where(data, points)} " \
               f"{statistics.median(found):.2f} ({found[0]:.2f} to {found[-1]:.2f})"
        critical = _CRITICAL[min(len(names), max(_CRITICAL))]
        text += f"; beyond chance from {critical:.2f} on"
        if apart:
            return Verdict(OPEN, f"{text}; {APART}")
        one_sign = found[-1] < 0 or found[0] > 0
        if len(found) < FEWEST_ROUNDS or not one_sign or abs(statistics.median(found)) < critical - 1e-9:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if found[-1] < 0 else AGAINST, text)

    return _ruled(judge, lambda subject: (
        f"rank correlation of {one.name} and {other.name} negative in every round, and beyond chance"))


def _rank_correlation(xs, ys) -> float:
    """Spearman's, ties sharing their mean rank; 0 where one side is constant."""
    from scipy import stats

    return float(stats.spearmanr(xs, ys).statistic) if min(len(set(xs)), len(set(ys))) > 1 else 0.0


def _widest_by_chance(n) -> float:
    """How far apart chance brings two standard deviations of n values each, either way, once in twenty."""
    from scipy import stats

    return math.sqrt(stats.f.ppf(0.975, n - 1, n - 1))


def says(measure: Measure, yes: bool, of=SUBJECT, at=everywhere):
    """A yes/no measure is the same in every round and at every point, and is the expected one."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        found, rounds = data.pooled(one, measure, points)
        found = [value >= 0.5 for value in found]
        text = f"{measure.name} of {one}{_where(data, points)}: yes in {sum(found)} of {len(found)} runs"
        if rounds < FEWEST_ROUNDS or len(set(found)) > 1:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if found[0] == yes else AGAINST, text)

    return _ruled(judge, lambda subject: f"{measure.name} of {_name(of, subject)}: {'yes' if yes else 'no'} in every run")


def majority(names, judge):
    """The judge holds for more than half of the contenders that are there."""

    def judge_majority(data, subject):
        there = _present(data, names, None)
        if len(there) < 2:
            raise NoData("fewer than two of the others have been measured")
        groups = {HOLDS: [], AGAINST: [], OPEN: []}
        for name in there:
            groups[judge(data, name).answer].append(name)
        half = len(there) / 2
        words = {HOLDS: "holds for", AGAINST: "does not hold for", OPEN: "undecided for"}
        text = "; ".join(f"{words[answer]} {', '.join(found)}" for answer, found in groups.items() if found)
        answer = HOLDS if len(groups[HOLDS]) > half else AGAINST if len(groups[AGAINST]) >= half else OPEN
        return _among(data, names, None, Verdict(answer, text), doubtful=answer)

    return _ruled(judge_majority, lambda subject: (
        f"of more than half of {_listed(names)} that are there: {rule_of(judge, 'it')}"))


def _deviations(measure, one, other, low, high, at, relative=False):
    """The ratio of the standard deviations of the two over the rounds, `relative` to their means, lies in a band."""

    def judge(data, subject):
        a, b, points = _name(one, subject), _name(other, subject), at(data)
        scores = [sorted(data.score(name, measure, points).values()) for name in (a, b)]
        n = min(len(s) for s in scores)
        if n < 2:
            return Verdict(OPEN, f"{n} round: no deviation")
        spreads = [statistics.stdev(s) / (statistics.fmean(s) if relative else 1.0) for s in scores]
        ratio = spreads[0] / max(spreads[1], 1e-15)
        what = f"{'relative ' * relative}standard deviation of {measure.name}"
        certainty = _widest_by_chance(n) if n >= 6 else None
        text = f"{what} over {n} rounds, {a}/{b}: {number(ratio)}"
        if certainty is None:
            return Verdict(OPEN, text)
        span = Ratio(n, ratio / certainty, ratio, ratio * certainty)
        return Verdict(_against_band(span, low, high), f"{what}, {a}/{b}: {span}")

    return _ruled(_about_rounds(judge), lambda subject: (
        f"{'relative ' * relative}standard deviation of {measure.name} over the rounds, of "
        f"{_name(one, subject)} {_times(low, high)} that of {_name(other, subject)}"))


def steady(measure: Measure, one, other, factor, at=everywhere):
    """The standard deviations of the two over the rounds differ by at most `factor`."""
    return _deviations(measure, one, other, 1 / factor, factor, at)


def steadier(measure: Measure, than, of=SUBJECT, at=everywhere, relative=False):
    """The standard deviation of `of` over the rounds, `relative` to its mean or not, is below `than`'s."""
    return _deviations(measure, of, than, None, 1.0, at, relative)


def below_range(measure: Measure, than, of=SUBJECT, at=everywhere, worst=False):
    """The mean of `of`'s rounds (its slowest, with `worst`) is below what lies between the fastest and the slowest
    round of `than`. It is said of the runs themselves: there is no interval."""

    def judge(data, subject):
        one, points = _name(of, subject), at(data)
        mine, theirs = (list(data.score(name, measure, points).values()) for name in (one, than))
        value, span = max(mine) if worst else statistics.fmean(mine), max(theirs) - min(theirs)
        text = f"{'slowest' if worst else 'mean'} {measure.name} of {one} {number(value * measure.scale)} " \
               f"{measure.unit}, {than} varies by {number(span * measure.scale)} {measure.unit}"
        if min(len(mine), len(theirs)) < FEWEST_ROUNDS:
            return Verdict(OPEN, text)
        return Verdict(HOLDS if value < span else AGAINST, text)

    return _ruled(_about_rounds(judge), lambda subject: (
        f"{'slowest' if worst else 'mean'} {measure.name} of {_name(of, subject)} below what lies between the "
        f"fastest and the slowest round of {than}"))


def fact_less(key, than, of=SUBJECT, by=1.0):
    """A number that no run gives: `of` has less than `by` times everyone's of `than` that is there. No noise here."""

    def judge(data, subject):
        one = _name(of, subject)
        mine = data.facts.get((one, key))
        theirs = {name: data.facts[name, key] for name in than if (name, key) in data.facts and name != one}
        if mine is None or not theirs:
            raise NoData(f"{key} is known of {', '.join([*theirs, *([one] if mine is not None else [])]) or 'nobody'} "
                         f"only")
        text = f"{key} of {one} {number(mine)}; " + ", ".join(f"{n} {number(v)}" for n, v in theirs.items())
        answer = HOLDS if all(mine < by * value for value in theirs.values()) else AGAINST
        return _among(data, than, one, Verdict(answer, text), there=list(theirs))

    return _ruled(judge, lambda subject: (
        f"{key} of {_name(of, subject)} {_times(None, by)} that of {_listed(than, _name(of, subject))}"))


def fact_ratio(upper, lower, low, high, of=SUBJECT):
    """The sum of the facts `upper` over the sum of the facts `lower` of one contender lies in a band."""

    def judge(data, subject):
        one = _name(of, subject)
        sums = []
        for keys in (upper, lower):
            missing = [key for key in keys if (one, key) not in data.facts]
            if missing:
                raise NoData(f"{', '.join(missing)} of {one} is not known")
            sums.append(sum(data.facts[one, key] for key in keys))
        ratio = sums[0] / sums[1]
        holds = (low is None or ratio >= low) and (high is None or ratio <= high)
        return Verdict(HOLDS if holds else AGAINST,
                       f"{one}: {' + '.join(upper)} {sums[0]:,.0f}, {' + '.join(lower)} {sums[1]:,.0f}")

    return _ruled(judge, lambda subject: (
        f"{' + '.join(upper)} of {_name(of, subject)} {_times(low, high)} its {' + '.join(lower)}"))


def fact_largest(key, parts, of=SUBJECT, place=1):
    """Of one contender's facts `parts`, `key` is the largest, or has another `place` by size."""

    def judge(data, subject):
        one = _name(of, subject)
        found = {part: data.facts[one, part] for part in parts if (one, part) in data.facts}
        if key not in found or len(found) < 2:
            raise NoData(f"{key} of {one} is not known")
        larger = sum(value > found[key] for value in found.values())
        return Verdict(HOLDS if larger == place - 1 else AGAINST,
                       f"{one}: " + ", ".join(f"{part} {value:,.0f}" for part, value in found.items()))

    return _ruled(judge, lambda subject: (
        f"{key} of {_name(of, subject)}: "
        + ("the largest" if place == 1 else f"number {place} by size") + f" of {_listed(parts)}"))


def fact_not_below_best(key, among, factor, of=SUBJECT):
    """`of` has at least `factor` times what the best of the others has: no particular advantage."""

    def judge(data, subject):
        one = _name(of, subject)
        mine = data.facts.get((one, key))
        theirs = {name: data.facts[name, key] for name in among if (name, key) in data.facts and name != one}
        if mine is None or not theirs:
            raise NoData(f"{key} is not known of {one} and another")
        best = min(theirs, key=theirs.get)
        text = f"{key} of {one} {number(mine)}; the best other's, {best}'s, {number(theirs[best])}"
        found = Verdict(HOLDS if mine >= factor * theirs[best] else AGAINST, text)
        return _among(data, among, one, found, doubtful=AGAINST, there=list(theirs))

    return _ruled(judge, lambda subject: (
        f"{key} of {_name(of, subject)} {_times(factor, None)} that of the best of "
        f"{_listed(among, _name(of, subject))}"))


def fact_within(key, low=None, high=None, of=SUBJECT):
    """A number that no run gives lies between low and high."""

    def judge(data, subject):
        one = _name(of, subject)
        if (one, key) not in data.facts:
            raise NoData(f"{key} of {one} is not known")
        value = data.facts[one, key]
        inside = (low is None or value >= low) and (high is None or value <= high)
        return Verdict(HOLDS if inside else AGAINST, f"{one}: {key} {number(value)}")

    return _ruled(judge, lambda subject: f"{key} of {_name(of, subject)} {_range(low, high)}")


def simulated_less(count, what, than, of=SUBJECT, least=1):
    """On each simulated number of cores from `least` on an operation of `of` has less of a count than one of `than`. It is
    of one simulation each: a count, not a time, and without an interval."""

    def judge(data, subject):
        one = _name(of, subject)
        known = {(line["row"], line["cores"]): line[count] for line in data.simulations if count in line}
        found = {cores: (known[name, cores], known[than, cores]) for name, cores in sorted(known, key=lambda key: key[1])
                 if name == one and cores >= least and (than, cores) in known}
        if not found:
            raise NoData(f"these results have no simulation of {one} and {than}")
        fewer = sum(mine < theirs for mine, theirs in found.values())
        text = ", ".join(f"{cores} cores {number(mine)} against {number(theirs)}" for cores, (mine, theirs) in found.items())
        return Verdict(HOLDS if fewer == len(found) else OPEN if fewer else AGAINST,
                       f"{what} of {one} against {than}, simulated: {text}")

    return _ruled(judge, lambda subject: (
        f"{what} of {_name(of, subject)} below that of {than} on every simulated number of cores from {least} on"))


def if_known(judge, reason):
    """What the judge says; where it has no numbers, that it cannot be shown here, and why."""

    def judge_if_known(data, subject):
        try:
            return judge(data, subject)
        except NoData as error:
            return Verdict(Answer.CANNOT_BE_SHOWN_HERE, f"{reason} ({error})")

    return _ruled(judge_if_known, lambda subject: rule_of(judge, subject))


def all_of(*judges):
    """Every one of the judges holds."""

    def judge(data, subject):
        return _join([one(data, subject) for one in judges])

    found = _ruled(judge, lambda subject: "; ".join(filter(None, (rule_of(one, subject) for one in judges))))
    return _about_rounds(found) if any(map(is_about_rounds, judges)) else found


_WITHOUT_NUMBERS = set()


def cannot(reason):
    """A claim that this suite has no means to measure: the reason."""
    return _fixed(Answer.CANNOT_BE_SHOWN_HERE, reason)


def _fixed(answer, reason):
    def judge(data, subject):
        return Verdict(answer, reason)

    _WITHOUT_NUMBERS.add(judge)
    return judge


def needs_no_numbers(judge) -> bool:
    """Whether it says the same of any data."""
    return judge in _WITHOUT_NUMBERS
