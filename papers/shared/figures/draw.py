"""A figure as PNG, in the suite's style, and as tables on the terminal."""

from __future__ import annotations

import statistics

from rich import box
from rich.markup import escape
from rich.table import Table

from papers.shared.figures import derived
from papers.shared.figures.data import Data, number
from papers.shared.figures.figure import Answer, Measure
from spanalloc_bench import screen

COLOURS = {Answer.HOLDS: "green", Answer.DOES_NOT_HOLD: "red", Answer.UNDECIDED: "yellow"}


def value(data: Data, name, measure: Measure, point):
    """The median as it is shown."""
    median = data.median(name, measure, point)
    return None if median is None else median * measure.scale


# ---- PNG ----


def _drawn(source, data, name, measure, point):
    """What the paper's axis shows: the measure, its reciprocal, or a speed-up. Its median, and its least and most over the
    rounds (of a speed-up: against the median of what it is relative to); None where there is nothing."""
    panel, found = data.figure.panel, source.values(name, measure, point).values()
    reference = derived.reference_of(source, data, name, measure, point) if panel.base else None

    def shown(amount):
        if panel.base:
            return reference / amount if reference and amount > 0 else None
        if panel.rate:
            return 1 / amount if amount > 0 else None
        return amount * measure.scale

    ends = [shown(amount) for amount in (min(found), max(found))] if len(found) > 1 else []
    low, high = sorted(ends) if ends and None not in ends else (None, None)
    return shown(statistics.median(found)) if found else None, low, high


def _y_label(figure, measure):
    if figure.panel.base:
        return derived.base_label(figure)
    return "operations per second" if figure.panel.rate else _heading(measure)


def _drawn_rows(data):
    """Variants stand beside the run of the paper's configuration that was made in turn with them, and no other."""
    apart = data.variants.contenders() if data.variants else []
    for name in data.measured():
        if name not in apart:
            yield name, data
    for name in apart:
        yield name, data.variants


def png(data: Data, path):
    """Draws the figure: its first measure, a panel a series; a table of one place, a panel a measure."""
    from spanalloc_bench import plots

    figure = data.figure
    title = f"{figure.id}: {figure.title}"
    if not figure.measures:
        panels = _fact_panels(plots, data)
    elif figure.panel.kind == "lines":
        parts = list(dict.fromkeys(p.series for p in data.points))
        panels = [_lines_panel(plots, data, figure.measures[0], part) for part in parts]
    else:
        panels = _bar_panels(plots, data)
    if len(panels) == 1:
        panels[0].width = max(panels[0].width, 0.115 * len(title))  # the title must fit
    note = f"{figure.paper}, {figure.number}; on {data.cores} cores; medians, with the least and the most of the rounds"
    plots.save(plots.figure(panels, title=title, note=note), path)


def _lines_panel(plots, data, measure, part):
    figure, points = data.figure, data.at(series=part)
    names = None if all(isinstance(p.x, int) for p in points) else {i: p.x for i, p in enumerate(points)}
    curves = {}
    for name, source in _drawn_rows(data):
        curve = [
            (i if names else point.x, *_drawn(source, data, name, measure, point)) for i, point in enumerate(points)
        ]
        if name not in data.stand_ins or any(y is not None for _, y, *_ in curve):
            curves[name] = curve
    log_x = not names and min(p.x for p in points) > 0 and max(p.x for p in points) >= 4 * min(p.x for p in points)
    return plots.lines(part, curves, x_label=figure.panel.x_label, y_label=_y_label(figure, measure), log_x=log_x,
                       log_y=figure.panel.log_y, x_names=names, width=9.0 if names else 5.0)


def _bar_panels(plots, data):
    """One panel of all measures of one unit at one place; else a panel a measure, its groups the places."""
    figure, rows_ = data.figure, list(_drawn_rows(data))

    def ends(source, name, measure, point):
        found = source.values(name, measure, point).values()
        return (min(found) * measure.scale, max(found) * measure.scale) if len(found) > 1 else (None, None)

    def bars(measure, point):
        found = {name: (value(source, name, measure, point), *ends(source, name, measure, point))
                 for name, source in rows_}
        return {name: bar for name, bar in found.items() if name not in data.stand_ins or bar[0] is not None}

    if len(data.points) == 1 and len({m.unit for m in figure.measures}) == 1 and len(figure.measures) > 1:
        groups = {m.name: bars(m, data.points[0]) for m in figure.measures}
        return [plots.bars("", groups, y_label=figure.measures[0].unit, log_y=figure.panel.log_y, width=6.0)]
    panels = []
    for measure in figure.measures:
        groups = {point.series or str(point.x): bars(measure, point) for point in data.points}
        # A measure that some of the places do not have is drawn for the others.
        known = {place: group for place, group in groups.items() if any(y is not None for y, *_ in group.values())}
        panels.append(plots.bars(measure.name if len(figure.measures) > 1 else "", known or groups,
                                 y_label=measure.unit or measure.name, log_y=figure.panel.log_y))
    return panels


def _fact_panels(plots, data):
    keys = list(dict.fromkeys(key for _, key in data.facts))
    facts = {key: {name: amount for (name, k), amount in data.facts.items() if k == key} for key in keys}
    return [plots.bars(key, {"": amounts}) for key, amounts in facts.items()]


# ---- terminal ----


def _table(data: Data, headings, rows, title=None, absent=()) -> Table:
    """A row a contender: its label, its numbers as texts. Below, why others have none."""
    drawn = screen.table(["", *headings], title=title, left=[0])
    # Names tell apart by their ends.
    names = [*data.measured(), *(data.variants.measured() if data.variants else [])]
    drawn.columns[0].min_width = max(map(len, names), default=0)
    for label, cells in rows:
        drawn.add_row(escape(label), *cells)
    for name, reason in dict(absent).items():
        drawn.add_row(escape(name), escape(reason.partition(":")[0]), style="dim")
    return drawn


def _text(amount) -> str:
    return "-" if amount is None else number(amount)


def _heading(measure) -> str:
    return measure.name + (f" ({measure.unit})" if measure.unit else "")


def tables(data: Data) -> list[Table]:
    """The figure's own numbers; then the medians behind them: a table a measure, its columns the points; one table of
    all measures where there is one point."""
    if not data.figure.measures:
        return [_facts_table(data)]
    found = [_table(data, one.columns, [(label, map(_text, values)) for label, values in one.rows], one.title)
             for one in derived.tables(data)]
    absent = {**data.missing, **data.failed()}

    def medians(columns, headings, title):
        """`columns(source)`: (measure, point) of each."""
        rows = [(label, name, [_text(value(source, name, *column)) for column in columns(source)])
                for label, source, name in derived.rows(data)]
        shown = [(label, cells) for label, name, cells in rows if name not in data.stand_ins or set(cells) != {"-"}]
        return _table(data, headings, shown, title, absent)

    measures = data.figure.measures
    if len(data.points) == 1:
        return [*found, medians(lambda source: [(measure, source.points[0]) for measure in measures],
                                map(_heading, measures), None)]
    places = [f"{point.series} {point.x}".strip() for point in data.points]
    return found + [medians(lambda source, measure=measure: [(measure, point) for point in source.points], places,
                            f"{_heading(measure)}, median") for measure in measures]


MOST_COLUMNS = 8


def _facts_table(data):
    """A row a contender; where there are many facts a row a fact."""
    keys, names = list(dict.fromkeys(key for _, key in data.facts)), list(dict.fromkeys(name for name, _ in data.facts))
    if len(keys) > MOST_COLUMNS:
        rows = [(key, [_text(data.facts.get((name, key))) for name in names]) for key in keys]
        return _table(data, names, rows, absent=data.missing)
    rows = [(name, [_text(data.facts.get((name, key))) for key in keys]) for name in data.measured()]
    return _table(data, keys, rows, absent=data.missing)


def claims_table(record) -> Table:
    """What the paper claims, whether it holds here, and by which numbers."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_lines=False)
    table.add_column("the paper claims", ratio=5)
    table.add_column("here", ratio=2)
    table.add_column("evidence", ratio=6)
    for claim in record["claims"]:
        answer = Answer(claim["verdict"])
        verdict = f"[{COLOURS.get(answer, 'dim')}]{answer.value}[/]"
        if claim["subject"]:
            verdict += f"\n[dim]{escape(claim['subject'])}[/]"
        evidence = escape(claim["evidence"])
        for name, other in claim["beside"].items():
            evidence += f"\n[dim]{escape(name)}: {other['verdict']}; {escape(other['evidence'])}[/]"
        place = "ours, beyond the paper" if claim["own"] else claim["place"]
        rule = f"\n[dim]rule: {escape(claim['rule'])}[/]" if claim["rule"] else ""
        table.add_row(f"{escape(claim['text'])} [dim]({escape(place)})[/]{rule}", verdict, evidence, end_section=True)
    return table
