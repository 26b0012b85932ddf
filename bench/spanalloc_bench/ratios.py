"""Ratios of values that belong together by rounds, and how sure they are: means of logarithms with Student's t.

Two contenders are compared round by round, because what disturbs a machine disturbs a whole round. A verdict takes
MIN_ROUNDS rounds; it is a tie where the 95 % interval contains 1.
"""

from __future__ import annotations

import functools
import math
import statistics
import typing

MIN_ROUNDS = 6
WIN, TIE, LOSS, UNDECIDED = "win", "tie", "loss", ""
ROUNDING = 1e-12  # what it leaves of equal values is no difference


@functools.lru_cache(maxsize=None)
def student_t(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit  # here, as the list of figures and completion need no package

    return float(stdtrit(freedom, 0.975))


def geometric_mean(values) -> float | None:
    """None of nothing; every value is positive."""
    values = list(values)
    return statistics.geometric_mean(values) if values else None


def half_interval(values) -> float:
    """How far the 95 % interval of the mean of two or more values reaches to either side."""
    return student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def verdict_of(mean: float, half: float) -> str:
    """Of a mean of logarithms or differences, and how far its interval reaches."""
    return TIE if abs(mean) - half <= ROUNDING else WIN if mean < 0 else LOSS


class Paired(typing.NamedTuple):
    ratio: float | None
    low: float | None
    high: float | None
    rounds: int
    verdict: str
    logs: dict[int, float]  # of the ratio, by round


def paired(mine: dict[int, float], other: dict[int, float], higher_is_better=False) -> Paired:
    """Two contenders' values by round; rounds that only one has do not count.

    A zero (counts have them) has no logarithm: there the verdict is that of the paired differences, without a ratio.
    """
    if higher_is_better:
        mine, other = other, mine
    rounds = sorted(mine.keys() & other.keys())
    if not rounds:
        return Paired(None, None, None, 0, UNDECIDED, {})
    positive = all(mine[r] > 0 and other[r] > 0 for r in rounds)
    apart = {r: math.log(mine[r] / other[r]) if positive else mine[r] - other[r] for r in rounds}
    mean = statistics.fmean(apart.values())
    half = half_interval(list(apart.values())) if len(rounds) > 1 else None
    verdict = UNDECIDED if len(rounds) < MIN_ROUNDS else verdict_of(mean, half)
    if not positive:
        return Paired(None if any(apart.values()) else 1.0, None, None, len(rounds), verdict, {})
    low, high = (None, None) if half is None else (math.exp(mean - half), math.exp(mean + half))
    return Paired(math.exp(mean), low, high, len(rounds), verdict, apart)


def over_cases(rows: list[dict[int, float]]) -> float | None:
    """How far the interval of a mean over cases reaches, in logarithms; None below MIN_ROUNDS.

    A round's value is its mean over the cases, so what hits all cases of a round is seen as the one disturbance that it
    is. `rows` are the cases' logarithms by round; only rounds that every case has count."""
    import pandas

    means = pandas.DataFrame(rows).dropna(axis="columns").mean()
    return half_interval(list(means)) if len(means) >= MIN_ROUNDS else None
