"""What a paper's figure shows where that is not the measure itself: speed-ups, operations a second, scores, the spread of
the rounds. As tables of numbers: the terminal prints them, the record keeps them, the PNG draws the curves."""

from __future__ import annotations

import dataclasses
import statistics

from papers.shared.figures.data import Data
from papers.shared.figures.figure import OWN


@dataclasses.dataclass(frozen=True)
class Derived:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]  # (row's label, a number a column)

    def record(self) -> dict:
        return {"title": self.title, "columns": list(self.columns),
                "rows": [{"row": label, "values": list(values)} for label, values in self.rows]}


def rows(data: Data):
    """(label, data, name) of every row: the contenders, and the variants beside what they were run in turn with."""
    for name in data.measured():
        yield name, data, name
    if data.variants:
        again = set(data.measured())
        for name in data.variants.contenders():
            yield f"{name}, in turn with its variants" if name in again else name, data.variants, name


def reference_of(source: Data, base: Data, name, measure, point) -> float | None:
    """The median that speed-ups are against: of one contender, or of the row itself, at one x; `base` holds the base's
    runs."""
    other, x = source.figure.panel.base
    runs, whose = (source, name) if other == OWN else (base, other)
    return next((runs.median(whose, measure, p) for p in runs.at(series=point.series) if p.x == x), None)


def speed_up(source: Data, base: Data, name, measure, point) -> float | None:
    """Against the figure's base."""
    reference = reference_of(source, base, name, measure, point)
    mine = source.median(name, measure, point)
    return None if not mine or not reference else reference / mine


def base_label(figure) -> str:
    other, x = figure.panel.base
    return f"speed-up against {'itself' if other == OWN else other} with {x} thread{'s' * (x != 1)}"


def _by_point(data, title, number) -> Derived:
    """number(source, name, point) for every row and point; rows without any number are left out."""
    found = [(label, tuple(number(source, name, point) for point in source.points)) for label, source, name in rows(data)]
    columns = tuple(f"{point.series} {point.x}".strip() for point in data.points)
    return Derived(title, columns, tuple(row for row in found if any(value is not None for value in row[1])))


def _rate(source, name, measure, point):
    median = source.median(name, measure, point)
    return 1 / median if median else None


def _score(source, name, measure, series, largest) -> float | None:
    """The mean of speed-up(t) / t over the thread counts from two to `largest`, speed-ups against the row itself: in
    every round, and of these the median."""
    points = sorted((p for p in source.at(series=series) if p.x <= largest), key=lambda p: p.x)
    columns = [source.values(name, measure, point) for point in points]
    rounds = set.intersection(*map(set, columns)) if len(columns) > 1 else set()
    scores = [statistics.fmean(columns[0][n] / column[n] / point.x for column, point in zip(columns[1:], points[1:]))
              for n in rounds]
    return statistics.median(scores) if scores else None


def _scores(data, measure) -> list[Derived]:
    """Up to the cores, which is what is judged, and over all thread counts that were run."""
    parts = tuple(dict.fromkeys(point.series for point in data.points))
    counts = sorted({point.x for point in data.points})
    within = [count for count in counts if count <= data.cores]
    found = []
    for some, note in ((within, "no more threads than cores"), (counts, "all that were run; not judged")):
        if len(some) < 2 or (found and some == within):
            continue
        listed = ", ".join(map(str, some[1:]))
        title = f"score: mean of speed-up(t) / t over t = {listed} ({note})"
        values = [(label, tuple(_score(source, name, measure, part, some[-1]) for part in parts))
                  for label, source, name in rows(data)]
        found.append(Derived(title, parts, tuple(row for row in values if any(v is not None for v in row[1]))))
    return found


def _spread(data, measure) -> list[Derived]:
    """Mean, least and most of the rounds."""
    unit = f" ({measure.unit})" if measure.unit else ""
    found = []
    for word, of in (("mean", statistics.fmean), ("least", min), ("most", max)):
        def number(source, name, point, of=of):
            values = source.values(name, measure, point).values()
            return of(values) * measure.scale if values else None

        found.append(_by_point(data, f"{measure.name}{unit}, {word} of the rounds", number))
    return found


def tables(data: Data) -> list[Derived]:
    """The figure's own numbers, or none where it shows the measure as it is."""
    figure = data.figure
    if not figure.measures:
        return []
    panel, measure = figure.panel, figure.measures[0]
    found = []
    if panel.scores:
        found += _scores(data, measure)
    if panel.base:
        found.append(_by_point(data, base_label(figure), lambda source, name, point:
                               speed_up(source, data, name, measure, point)))
    if panel.rate:
        found.append(_by_point(data, "operations per second, median", lambda source, name, point:
                               _rate(source, name, measure, point)))
    if panel.spread:
        found += _spread(data, measure)
    return [table for table in found if table.rows]
