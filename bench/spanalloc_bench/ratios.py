"""Ratios of values that belong together by rounds, and how sure they are: means of logarithms with Student's t.

Two contenders are compared round by round, because what disturbs a machine disturbs a whole round. A verdict takes
MIN_ROUNDS rounds; it is a tie where the 95 % interval contains 1.
"""

from __future__ import annotations

import functools
import math
import statistics

MIN_ROUNDS = 6
WIN, TIE, LOSS, UNDECIDED = "win", "tie", "loss", ""
ROUNDING = 1e-12  # what it leaves of equal values is no difference


@functools.lru_cache(maxsize=None)
def student_t(freedom: float) -> float:
    """The two-sided 95 % quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def geometric_mean(values) -> float | None:
    """None of nothing; every value is positive."""
    values = list(values)
    return statistics.geometric_mean(values) if values else None


def half_interval(values) -> float:
    """How far the 95 % interval of the mean of two or more values reaches to either side."""
    return student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def _pairs(mine, other, rounds, higher_is_better):
    return [(other[r], mine[r]) if higher_is_better else (mine[r], other[r]) for r in rounds]


def logarithms(mine: dict[int, float], other: dict[int, float], rounds, higher_is_better=False) -> dict[int, float]:
    """The logarithm of the ratio in each of `rounds`; empty where a value is zero."""
    pairs = _pairs(mine, other, rounds, higher_is_better)
    if not all(a > 0 and b > 0 for a, b in pairs):
        return {}
    return {r: math.log(a / b) for r, (a, b) in zip(rounds, pairs)}


def paired(mine: dict[int, float], other: dict[int, float], higher_is_better=False):
    """(ratio, low, high, rounds, verdict) of two contenders' values by round; rounds that only one has do not count.

    A zero (counts have them) has no logarithm: there the verdict is that of the paired differences, without a ratio.
    """
    rounds = sorted(mine.keys() & other.keys())
    if not rounds:
        return None, None, None, 0, UNDECIDED
    pairs = _pairs(mine, other, rounds, higher_is_better)
    if all(a > 0 and b > 0 for a, b in pairs):
        differences, outside = [math.log(a / b) for a, b in pairs], math.exp
    else:
        differences, outside = [a - b for a, b in pairs], None
    n = len(differences)
    mean = math.fsum(differences) / n
    low = high = None
    if n >= 2:
        half = half_interval(differences)
        low, high = mean - half, mean + half
    certain = n >= MIN_ROUNDS and max(low, -high) > ROUNDING
    verdict = UNDECIDED if n < MIN_ROUNDS else TIE if not certain else WIN if mean < 0 else LOSS
    if outside is None:
        return (1.0 if all(a == b for a, b in pairs) else None), None, None, n, verdict
    return outside(mean), None if low is None else outside(low), None if high is None else outside(high), n, verdict


def over_cases(rows: list[dict[int, float]]) -> tuple[float | None, int]:
    """How far the interval of a mean over cases reaches, in logarithms, and over how many rounds.

    A round's value is its mean over the cases, so what hits all cases of a round is seen as the one disturbance that it
    is. `rows` are the cases' logarithms by round; only rounds that every case has count. None below MIN_ROUNDS."""
    rounds = set.intersection(*(set(row) for row in rows)) if rows else set()
    if len(rounds) < MIN_ROUNDS:
        return None, len(rounds)
    return half_interval([statistics.fmean(row[r] for row in rows) for r in sorted(rounds)]), len(rounds)
