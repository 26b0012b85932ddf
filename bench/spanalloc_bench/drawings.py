"""Which plots an analysis has: the overview of all ratios, a picture of each group, the latencies."""

from __future__ import annotations

from spanalloc_bench import plots
from spanalloc_bench.analyse import MEMORY, METRIC, PERCENTILES, TIME
from spanalloc_bench.model import Kind

LIMIT = 3.0        # bars of ratios are cut here
REFERENCE = "glibc"


def overview(found, mine, measure):
    """The ratio of `mine` to each rival in every case, with its interval; None where there is nothing to draw."""
    rivals = [name for name in found.rivals() if name != mine]
    cases = [case for case in found.suite if any(found.versus(case, mine, name, measure) for name in rivals)]
    if not cases:
        return None
    panels = []
    for name in rivals:
        rows, group = [], None
        for case in cases:
            if found.cases[case].group != group and len(found.cases_of(found.cases[case].group)) > 1:
                rows.append((f"#{found.cases[case].group}", None, None, None, ""))
            group = found.cases[case].group
            v = found.versus(case, mine, name, measure)
            rows.append((case, v.ratio, v.low, v.high, v.verdict) if v else (case, None, None, None, ""))
        panels.append(plots.forest(name, rows, labels=not panels, width=1.75, x_label="ratio"))
    title = f"{mine} / each: {measure}, 95 % intervals (left of 1: {mine} is better)"
    return plots.figure(panels, columns=len(panels), title=title)


def standing(found):
    """Every contender's distance from the best, time against memory."""
    names = found.finishers()
    (time, timed), (memory, weighed) = found.standing(TIME, names), found.standing(MEMORY, names)
    points = {name: (time[name], memory[name]) for name in names if name in time and name in memory}
    if len(points) < 2:
        return None
    labels = {name: f"spanalloc {name}" for name in points if found.allocators[name].ours}
    panel = plots.scatter(
        "Time and memory over the suite: lower left is better", points, labels=labels, least=1.0,
        x_label=f"time: how many times the best of each case (geometric mean of {timed} cases)",
        y_label=f"memory: how many times the best ({weighed} cases)")
    return plots.figure([panel])


def _series(found, group):
    """Cases of a group that differ in nothing but the threads: series -> {threads: case}; two or more counts each."""
    series = {}
    for case in found.cases_of(group):
        facts = found.cases[case]
        series.setdefault(facts.series, {})[facts.threads] = case
    return {name: dict(sorted(cases.items())) for name, cases in series.items() if len(cases) > 1}


def _names(found, cases):
    return [name for name in found.allocators if any(found.cell(case, name) for case in cases)]


def _over_threads(found, name, cases):
    """Speed-up (or the case's metric) and memory over threads, as in the papers' figures."""
    contenders, measure = _names(found, cases.values()), found.cases[next(iter(cases.values()))].judged_by
    values = {n: {t: found.median(case, n, measure) for t, case in cases.items()} for n in contenders}
    first = next(iter(cases))
    reference = next((n for n in [REFERENCE, *contenders] if values.get(n, {}).get(first)), None)
    panels = []
    if measure == TIME and reference:
        base = values[reference][first]
        speed = {}
        for n in contenders:
            ratios = {t: found.relative(cases[t], value, base, measure) for t, value in values[n].items()}
            speed[n] = [(t, 1 / ratio if ratio else None) for t, ratio in ratios.items()]
        label = f"speed-up over {reference}, {first} thread{'s' * (first > 1)}"
        panels.append(plots.lines(f"{name}: speed-up", speed, y_label=label))
    elif measure == METRIC:
        metric = found.cases[cases[first]].metric
        unit = "ns" if metric.endswith("_ns") else ""
        panels.append(plots.lines(f"{name}: {metric}", {n: list(v.items()) for n, v in values.items()}, y_unit=unit))
    memory = {n: [(t, found.median(case, n, MEMORY)) for t, case in cases.items()] for n in contenders
              if found.allocators[n].kind is not Kind.BASELINE}
    floor = []
    for t, case in cases.items():
        live = [found.median(case, n, "live_kib") for n in contenders]
        live = sorted(value for value in live if value is not None)
        floor += [(t, live[len(live) // 2])] if live else []
    panels.append(plots.lines(f"{name}: memory", memory, y_label="peak of RSS + page tables", y_unit="kib",
                              floor=floor or None))
    return panels


def _beside_reference(found, cases):
    """Bars of time and memory relative to glibc, a group of bars a case."""
    panels = []
    for measure, what in ((TIME, "time"), (MEMORY, "memory")):
        values = {}
        for case in cases:
            base = found.median(case, REFERENCE, measure)
            if base is None or measure not in found.measures(case):
                continue
            names = [n for n in found.contenders(case)
                     if n != REFERENCE and (measure == TIME or found.allocators[n].kind is not Kind.BASELINE)]
            values[case] = {n: found.relative(case, found.median(case, n, measure), base, measure) for n in names}
        if values:
            panels.append(plots.bars(f"{what} / {REFERENCE}'s", values, line_at=1, limit=LIMIT, y_unit="ratio"))
    return panels


def group(found, name):
    """The figure of one group; None where it has none."""
    series = _series(found, name)
    panels = [panel for stem, cases in series.items() for panel in _over_threads(found, stem, cases)]
    drawn = {case for cases in series.values() for case in cases.values()}
    rest = [case for case in found.cases_of(name) if case not in drawn]
    if rest:
        panels += _beside_reference(found, rest)
    return plots.figure(panels) if panels else None


def latency(found, case):
    """Percentiles of one case, a panel a call; None where nothing was timed."""
    calls = list(dict.fromkeys(measure[0] for measure in found.measures(case) if isinstance(measure, tuple)))
    panels = []
    for call in calls:
        series = {}
        for name in found.contenders(case):
            values = {key: found.median(case, name, (call, key)) for key in PERCENTILES}
            if any(value is not None for value in values.values()):
                series[name] = values
        panels.append(plots.percentiles(f"{call}", series))
    return plots.figure(panels, title=found.cases[case].title) if panels else None
