"""Level and slope of memory in the second half of a run, in whole cycles.

The load repeats itself, so memory is compared cycle by cycle: the mean of a cycle has no phase in it. The slope is that
of a straight line through the means of the cycles (least squares). Means that follow each other may still be alike, which
makes a line look surer than it is; so the interval counts only as many cycles as are independent of each other, by the
residuals' correlation with their neighbours (Santer and others, J. Geophys. Res. 105, 2000): n (1 - r) / (1 + r).
"""

from __future__ import annotations

import dataclasses
import math
import statistics

from spanalloc_bench.ratios import student_t

LEAST_CYCLES = 4  # fewer have no interval worth the name
FLAT, GROWS, FALLS, UNCLEAR, UNKNOWN = "flat", "grows", "falls", "unclear", "too short"
WIDE = 0.1  # of the level: an interval that reaches further than so much an hour does not show that nothing grows


@dataclasses.dataclass(frozen=True)
class Slope:
    """Of a unit an hour. `half` is how far the 95 % interval reaches to either side; None where cycles are too few."""

    per_hour: float
    half: float | None
    independent: float  # cycles, of those that the line goes through

    def verdict(self, level: float) -> str:
        if self.half is None:
            return UNKNOWN
        if abs(self.per_hour) <= self.half:
            return FLAT if self.half <= WIDE * level else UNCLEAR
        return GROWS if self.per_hour > 0 else FALLS


def judged_cycles(minutes: float, cycle_s: float) -> range:
    """The whole cycles of the second half."""
    end = int(minutes * 60 / cycle_s + 1e-9)
    return range(math.ceil(minutes * 30 / cycle_s - 1e-9), end)


def means(points, cycles) -> dict[int, float]:
    """{cycle: mean} of points (cycle, value), as far as the cycles have any."""
    of = {}
    for cycle, value in points:
        if cycle in cycles:
            of.setdefault(cycle, []).append(value)
    return {cycle: statistics.fmean(values) for cycle, values in sorted(of.items())}


def slope(by_cycle: dict[int, float], cycle_s: float) -> Slope | None:
    """Of the line through the means of cycles; None of less than two."""
    n = len(by_cycle)
    if n < 2:
        return None
    hours = [cycle * cycle_s / 3600 for cycle in by_cycle]
    values = list(by_cycle.values())
    line = statistics.linear_regression(hours, values)
    residuals = [y - line.intercept - line.slope * x for x, y in zip(hours, values)]
    squares = math.fsum(r * r for r in residuals)
    alike = math.fsum(a * b for a, b in zip(residuals, residuals[1:])) / squares if squares > 0 else 0.0
    independent = n * (1 - alike) / (1 + alike) if alike > 0 else float(n)
    if n < LEAST_CYCLES:
        return Slope(line.slope, None, independent)
    freedom = max(1.0, independent - 2)
    # Between two whole numbers of degrees of freedom the lower one, whose interval is the wider.
    half = student_t(int(freedom)) * math.sqrt(squares / freedom / (n * statistics.pvariance(hours)))
    return Slope(line.slope, half, independent)
