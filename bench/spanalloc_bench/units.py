"""Numbers as a reader wants them: three digits and a unit."""

from __future__ import annotations

import math


def missing(value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _scaled(value, steps, digits):
    for size, unit in steps:
        if abs(value) >= size:
            break
    scaled = value / size
    places = max(0, digits - 1 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    return f"{scaled:.{min(places, digits - 1)}f} {unit}"


def seconds(value, digits=3) -> str:
    """0.000000123 -> "123 ns"."""
    if missing(value):
        return "-"
    return _scaled(value, ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")), digits) if value else "0 s"


def kib(value, digits=3) -> str:
    """2048 -> "2.00 MiB"."""
    if missing(value):
        return "-"
    return _scaled(value, ((2**30, "TiB"), (2**20, "GiB"), (2**10, "MiB"), (1, "KiB")), digits) if value else "0 KiB"


def number(value) -> str:
    """1234567.8 -> "1,234,568"; 0.0123456 -> "0.0123"."""
    if missing(value):
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def ratio(value) -> str:
    """Two decimals near one; further out no more than three digits and enough to be right."""
    if missing(value):
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def change(value) -> str:
    """How far a ratio is from one: 1.05 -> "+5.0 %", 0.5 -> "−50 %", 4 -> "×4.0". Small ones keep their digits,
    so that a difference too small to matter is seen to be small."""
    if missing(value):
        return "-"
    percent = (value - 1) * 100
    sign = "−" if percent < 0 else "+"
    size = abs(percent)
    if percent >= 100:
        return f"×{value:,.0f}" if value >= 10 else f"×{value:.1f}"
    if size < 0.005:
        return "±0 %" if size < 1e-7 else f"{sign}<0.01 %"
    return f"{sign}{size:.2f} %" if size < 0.95 else f"{sign}{size:.1f} %" if size < 9.95 else f"{sign}{size:.0f} %"


def measured(value, metric) -> str:
    """The value of a metric, its unit read from the end of its name; "time" is in seconds."""
    if missing(value):
        return "-"
    if metric.endswith(("_per_s", "_per_second")):
        return f"{number(value)}/s"
    ends = {"_s": 1, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
    for end, size in ends.items():
        if metric == "time" or metric.endswith(end):
            return seconds(value if metric == "time" else value * size)
    if metric.endswith("_kib"):
        return kib(value)
    return kib(value / 1024) if metric.endswith("_bytes") else number(value)
