"""The tables of an analysis, as plain data: the terminal, the HTML report and the README draw the same ones.

Ratios are ours / the other's, so below 1, and with a minus before the percentage, ours is better.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import statistics

from spanalloc_bench import units, words
from spanalloc_bench.analyse import LATENCY_KEYS, LOSS, MEMORY, METRIC, PERCENTILES, START_UP_KIB, TIME, WIN
from spanalloc_bench.model import CRASHED, FAILED, HUNG, NOT_PRELOADED, UNAVAILABLE, Kind

# What a cell is to the reader; the drawers choose colours.
PLAIN, OURS, BAD, DIM = "", "ours", "bad", "dim"


@dataclasses.dataclass(frozen=True)
class Cell:
    text: str
    tone: str = PLAIN   # WIN, LOSS, TIE, OURS, BAD, DIM
    link: str = ""      # a case's id
    span: int = 1       # columns that it takes; the row is that much shorter
    shares: tuple[int, int, int] = (0, 0, 0)  # wins, ties, losses, where the cell tells them


@dataclasses.dataclass(frozen=True)
class Column:
    text: str
    group: str = ""      # a heading above the heading, shared by neighbours
    left: bool = False
    short: str = ""      # the heading where room is scarce
    extra: bool = False  # left out where room is scarce
    join: bool = False   # stands in the cell of the column before it where room is scarce


@dataclasses.dataclass
class Table:
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    note: str = ""

    def groups(self) -> list[tuple[str, int]]:
        """The headings above the headings, and how many columns each is above; empty where no column has one."""
        found = [(name, len(list(columns))) for name, columns in itertools.groupby(c.group for c in self.columns)]
        return found if any(name for name, _ in found) else []

    def starts(self, place) -> bool:
        """Whether a group begins with this column, which is not the first."""
        return place > 0 and self.columns[place].group != self.columns[place - 1].group

    def placed(self, row):
        """The row's cells with the numbers of their columns."""
        return zip(row, itertools.accumulate((cell.span for cell in row), initial=0))


def _name(found, allocator) -> Cell:
    return Cell(allocator, OURS if found.allocators[allocator].ours else PLAIN)


def _value(found, case, value, measure) -> str:
    if measure == MEMORY:
        return units.kib(value)
    if isinstance(measure, tuple):
        return units.measured(value, measure[1])
    return units.measured(value, found.cases[case].metric)


def measure_name(measure, facts=None) -> str:
    if isinstance(measure, tuple):
        return f"{measure[0]} {LATENCY_KEYS.get(measure[1], measure[1])}"
    if measure == METRIC and facts:
        return facts.metric
    return measure


def by_how_much(found, versus) -> str:
    """How far the ratio is from one; where a zero leaves no ratio, both values."""
    if versus.ratio is not None:
        return units.change(versus.ratio)
    values = [found.median(versus.case, name, versus.measure) for name in (versus.mine, versus.other)]
    return " against ".join(_value(found, versus.case, value, versus.measure) for value in values)


def mean_cell(score) -> Cell:
    """Coloured where it is certain."""
    if score.ratio is None:
        return Cell("-", DIM)
    return Cell(f"{units.ratio(score.ratio)} {units.change(score.ratio).rjust(6)}", score.verdict)


def versus_cell(versus) -> Cell:
    """The verdict and by how much: "win −29 %"."""
    if versus is None:
        return Cell("-", DIM)
    by = "" if versus.ratio is None else units.change(versus.ratio)
    return Cell(f"{versus.verdict} {by}".strip() or "-", versus.verdict or DIM)


def interval_cell(versus) -> Cell:
    """Of a Versus or of a Score."""
    if versus is None or versus.low is None:
        return Cell("", DIM)
    low, high = units.ratio(versus.low), units.ratio(versus.high)
    if low == high:  # memory hardly varies: more digits, so that a small certain difference is seen to exclude 1
        low, high = f"{versus.low:.4f}", f"{versus.high:.4f}"
    return Cell(f"{low} to {high}", DIM)


# ---- all cases together ----

LEGEND = (
    "W/T/L: wins, ties, losses; a tie is where the 95 % interval of the per-round ratio contains 1. > 5 %: wins : "
    "losses by more than that. mean: geometric mean of the ratios ours / the other's; below 1, and with a minus, ours "
    "is better; coloured where its own interval, of the rounds' means, does not contain 1. floor: against an allocator "
    "that never frees."
)


def _tally_cells(score) -> list[Cell]:
    undecided = not score.wins + score.ties + score.losses
    notable = "-" if undecided else f"{score.notable_wins} : {score.notable_losses}"
    shares = (score.wins, score.ties, score.losses)
    tone = DIM if undecided else PLAIN
    return [Cell(score.tally, tone, shares=shares), Cell(notable, tone), mean_cell(score), interval_cell(score)]


def failed_counts(score) -> list[int]:
    """In how many of the cases ours failed, and the other; cases in which both did are in both."""
    return [len(failed) + len(score.both_failed) for failed in (score.mine_failed, score.other_failed)]


def _failed(score) -> list[Cell]:
    return [Cell(str(count), BAD if count else DIM) for count in failed_counts(score)]


_AGAINST = (
    Column("wins / ties / losses", short="W/T/L"), Column("by > 5 %", short="> 5 %"),
    Column("geometric mean", short="mean"), Column("95 % interval", extra=True),
)


def _against(group, *, join=False, which=_AGAINST):
    return [dataclasses.replace(column, group=group, join=join and i > 0) for i, column in enumerate(which)]


def matrix(found, mine) -> Table:
    """`mine` against each allocator, in time and in memory."""
    columns = [Column(f"{mine} against", left=True, short="against"), *_against("time"), *_against("memory"),
               Column("time / memory", "compared", short="cases"),
               Column("ours", "failed"), Column("its", "failed", join=True)]
    rows = []
    for other in found.opponents(mine):
        time, memory = found.score(mine, other, TIME), found.score(mine, other, MEMORY)
        rows.append([_name(found, other), *_tally_cells(time), *_tally_cells(memory),
                     Cell(f"{time.cases}/{memory.cases}"), *_failed(memory)])
    baseline = found.baseline()
    if baseline:
        floor = found.score(mine, baseline, TIME)
        mean = Cell(units.ratio(floor.ratio), DIM)
        rows.append([Cell(f"{baseline} (floor)", DIM), Cell(""), Cell(""), mean, *[Cell("")] * 5,
                     Cell(str(floor.cases), DIM), *_failed(floor)])
    return Table(f"{mine} in time and memory", columns, rows, words.memory_leaves_out(found, mine))


def extremes(found, mine, worst: bool, count=5) -> Table:
    """The worst losses to, or the best wins even against, the best of the rivals."""
    columns = [Column("measure", left=True), Column("case", left=True), Column("", left=True, extra=True),
               Column("best other", left=True), Column(mine), Column("the other"), Column("by how much"),
               Column("95 % interval of the ratio", short="95 % interval")]
    rows = []
    for measure in (TIME, MEMORY, METRIC):
        for v in found.extremes(mine, measure, worst, count):
            values = [_value(found, v.case, found.median(v.case, name, measure), measure) for name in (mine, v.other)]
            facts = found.cases[v.case]
            rows.append([Cell(measure_name(measure, facts)), Cell(v.case, link=v.case), Cell(facts.title, DIM),
                         Cell(v.other), *map(Cell, values),
                         Cell(by_how_much(found, v), LOSS if worst else WIN), interval_cell(v)])
    what = f"Worst losses of {mine} to" if worst else f"Best wins of {mine} over"
    return Table(f"{what} the best of the others", columns, rows, "" if rows else "none")


def by_group(found, mine) -> Table:
    """Geometric means of each group, time and memory side by side."""
    others = found.opponents(mine)
    columns = [Column("group", left=True), Column("cases")]
    columns += [Column(what, other, join=what != "time") for other in others for what in ("time", "mem.")]
    rows = []
    for group in found.groups():
        cases, cells = found.cases_of(group), []
        for other in others:
            for measure in (TIME, MEMORY):
                score = found.score(mine, other, measure, cases)
                cells.append(Cell(units.ratio(score.ratio), score.verdict if score.ratio else DIM))
        if any(cell.text != "-" for cell in cells):
            rows.append([Cell(group), Cell(str(len(found.run_by(mine, cases)))), *cells])
    start_up = found.run_by(mine, found.start_up)
    if start_up:
        cells = []
        for other in others:
            score = found.score(mine, other, MEMORY, start_up=True)
            cells += [Cell("-", DIM), Cell(units.ratio(score.ratio), score.verdict if score.ratio else DIM)]
        rows.append([Cell(f"below {units.kib(START_UP_KIB)} live"), Cell(str(len(start_up))), *cells])
    return Table(f"{mine} over each, by group (geometric means; below 1 {mine} is better)", columns, rows)


def latency_matrix(found, mine) -> Table:
    measures = found.latencies()
    columns = [Column(f"{mine} against", left=True, short="against")]
    for measure in measures:
        columns += _against(measure_name(measure), join=True, which=(Column("W/T/L"), _AGAINST[2]))
    columns.append(Column("cases"))
    rows = []
    for other in found.opponents(mine):
        scores = [found.score(mine, other, measure) for measure in measures]
        cells = [cell for score in scores for cell in (_tally_cells(score)[0], mean_cell(score))]
        if any(score.cases for score in scores):
            rows.append([_name(found, other), *cells, Cell(str(max(score.cases for score in scores)))])
    return Table(f"{mine}: latency of single calls", columns, rows)


def standing(found) -> Table:
    """Every contender beside the best of each case, and beside the floors."""
    names = found.finishers()
    left_out = [name for name in [*found.ours(), *found.rivals()] if name not in names]
    note = f" Left out, as they finished less than half of the cases: {', '.join(left_out)}." if left_out else ""
    parts = {
        "time / best ({} cases)": found.standing(TIME, names),
        "memory / best ({} cases)": found.standing(MEMORY, names),
        "time / floor ({} cases)": found.above_floor(TIME, names),
        "memory / live bytes ({} cases)": found.above_floor(MEMORY, names),
    }
    if found.start_up:
        parts["start-up memory / best ({} cases)"] = found.standing(MEMORY, names, found.start_up)
        note = (f" Start-up: the cases that hold less than {units.kib(START_UP_KIB)}; they are in no other column of "
                f"memory.{note}")
    columns = [Column("allocator", left=True)] + [Column(text.format(count)) for text, (_, count) in parts.items()]
    first = next(iter(parts.values()))[0]
    rows = [
        [_name(found, name), *[Cell(units.ratio(means.get(name))) for means, _ in parts.values()]]
        for name in sorted(names, key=lambda name: first.get(name, math.inf))
    ]
    return Table("Every allocator beside the best of each case, and beside the floors", columns, rows,
                 f"Geometric means over the cases that every allocator of the table finished; 1 is always the best.{note}")


STATUS_WORDS = {
    CRASHED: "crashed", HUNG: "hung", FAILED: "failed", NOT_PRELOADED: "not preloaded", UNAVAILABLE: "not available",
}


def _status_cell(cell, why="", span=1) -> Cell:
    """In the place of figures: what happened."""
    word = STATUS_WORDS.get(cell.status, cell.status)
    return Cell(f"{word}{why}", DIM if cell.status == UNAVAILABLE else BAD, span=span)


def problems(found) -> Table:
    """Rows without figures: a line a contender and reason; what nobody could run, one line together."""
    together = collections.defaultdict(list)
    for p in found.problems():
        rounds = "" if p.rounds == p.of else f" ({p.rounds} of {p.of} rounds)"
        together[p.allocator, p.status, p.text].append(p.case + rounds)
    lines = collections.defaultdict(list)
    for (name, status, text), cases in together.items():
        lines[status, text, tuple(cases), "" if status == UNAVAILABLE else name].append(name)
    columns = [Column(text, left=True) for text in ("allocator", "what", "why", "cases")]
    rows = []
    for (status, text, cases, _), names in lines.items():
        who = _name(found, names[0]) if len(names) == 1 else Cell(", ".join(names), DIM)
        rows.append([who, Cell(STATUS_WORDS.get(status, status), DIM if status == UNAVAILABLE else BAD), Cell(text),
                     Cell(f"{len(cases)}: {', '.join(cases)}")])
    return Table("Rows without figures", columns, rows, "" if rows else "none: every contender finished every case")


def problem_lines(found) -> list[str]:
    """The same for a summary: one short line a contender."""
    counts = collections.defaultdict(lambda: collections.defaultdict(list))
    for p in found.failures():
        counts[p.allocator][STATUS_WORDS.get(p.status, p.status)].append(p.case)
    lines = []
    for name, kinds in counts.items():
        parts = []
        for word, cases in kinds.items():
            some = ", ".join(cases[:3] + ["…"] * (len(cases) > 3))
            parts.append(f"{word} in {len(cases)} case{'s' * (len(cases) > 1)} ({some})")
        lines.append(f"{name} {'; '.join(parts)}")
    return lines


# ---- one group, one case ----


def _of_group(found, group, measure, title, first_cell, cell_of) -> Table | None:
    """Cases by allocators: `cell_of(case, name, value)` where there is a median, else why there is none. None where nothing
    has the measure."""
    cases = [case for case in found.cases_of(group) if measure in found.measures(case)]
    if not cases:
        return None
    names = [name for name in found.allocators if any(found.cell(case, name) for case in cases)]

    def filled(case, name):
        cell, value = found.cell(case, name), found.median(case, name, measure)
        if cell is None or (cell.ok and value is None):
            return Cell("-", DIM)
        return cell_of(case, name, value) if cell.ok else _status_cell(cell)

    return Table(title(measure_name(measure, found.cases[cases[0]])),
                 [Column("case", left=True)] + [Column(name) for name in names],
                 [[first_cell(case), *(filled(case, name) for name in names)] for case in cases])


def group_table(found, group, measure, mine) -> Table | None:
    """Medians, and below each how `mine` stands to it."""
    def title(what):
        what = "memory (peak of RSS + page tables)" if measure == MEMORY else what
        return f"{what[0].upper()}{what[1:]}"

    def cell_of(case, name, value):
        against = None if name in (mine, found.baseline()) else found.versus(case, mine, name, measure)
        below = "\n" + units.change(against.ratio) if against and against.ratio else ""
        tone = OURS if name == mine else against.verdict or DIM if against else DIM
        return Cell(_value(found, case, value, measure) + below, tone)

    return _of_group(found, group, measure, title, lambda case: Cell(found.cases[case].title, link=case), cell_of)


def group_brief(found, group, measure) -> Table | None:
    """For a screen: medians, below each its ratio to the best of the others, and to the floor."""
    floor = f" and to {found.baseline()}" if measure == TIME and found.baseline() else ""
    floor = " and to the live bytes" if measure == MEMORY else floor

    def cell_of(case, name, value):
        below = " ".join(units.ratio(ratio) for ratio in _to_best_and_floor(found, case, name, measure, value)
                         if ratio is not None)
        return Cell(f"{_value(found, case, value, measure)}\n{below}", _name(found, name).tone)

    return _of_group(found, group, measure, lambda what: f"{group}: {what}; below, the ratio to the best other{floor}",
                     Cell, cell_of)


def _to_best_and_floor(found, case, name, measure, value):
    """The ratios of a median to the best of the others, and to the floor; None where there is none."""
    best = found.best_other(case, name, measure)
    return (found.relative(case, value, best[1], measure) if best else None,
            found.relative(case, value, found.floor(case, name, measure), measure))


def case_table(found, case, ours=None, measures=None, further=True) -> Table:
    """Everything about one case, or just `measures` of it: medians, spread, ratios to the best of the others and to the
    floors, verdicts of `ours` (default: all our configs) against each, and with `further` the record's other metrics.
    """
    facts = found.cases[case]
    names = found.contenders(case)
    ours = [name for name in (found.ours() if ours is None else ours) if name in names]
    measures = found.measures(case) if measures is None else measures
    further = sorted({metric for name in names for metric in found.cell(case, name).metrics}) if further else []
    columns = [Column("allocator", left=True)]
    for measure in measures:
        group = measure_name(measure, facts)
        columns += [Column("median", group), Column("spread", group, extra=True),
                    Column("/ best other", group, short="/ best")]
        if measure in (TIME, MEMORY):
            text = "/ floor" if measure == TIME else "/ live bytes"
            columns.append(Column(text, group, short=text.removesuffix(" bytes")))
        for mine in ours:
            columns += [Column(f"{mine} against it", group, short=mine), Column("95 % interval", group, extra=True)]
    columns += [Column(metric, "further") for metric in further]
    if len(columns) == 1:  # nobody finished: room for the reasons
        columns.append(Column("no figures", left=True))
        names = [name for name in names if not found.cell(case, name).ok]
    rows = [_case_row(found, case, name, measures, ours, further, len(columns)) for name in names]
    return Table(f"{facts.title}  ({case}; {facts.source})", columns, rows)


def case_tables(found, case) -> list[Table]:
    """Everything about one case, a table a measure; its columns' heading names it."""
    parts = [case_table(found, case, measures=[measure], further=False) for measure in found.measures(case)]
    if not parts or any(found.cell(case, name).metrics for name in found.contenders(case)):
        parts.append(case_table(found, case, ours=[], measures=[]))
    return [dataclasses.replace(part, title="") for part in parts]


def latency_table(found, case) -> Table:
    """A case's latencies: medians over the rounds of every percentile."""
    names = [name for name in found.contenders(case) if found.cell(case, name).ok]
    calls = list(dict.fromkeys(measure[0] for measure in found.measures(case) if isinstance(measure, tuple)))
    columns = [Column("allocator", left=True)] + [Column(text, call) for call in calls for text in PERCENTILES.values()]
    keys = [(call, key) for call in calls for key in PERCENTILES]
    rows = [
        [_name(found, name), *[Cell(units.measured(found.median(case, name, key), key[1])) for key in keys]]
        for name in names
    ]
    return Table("Time of one call", columns, rows)


def _case_row(found, case, name, measures, ours, further, width):
    cell = found.cell(case, name)
    if not cell.ok:
        return [_name(found, name), _status_cell(cell, f": {cell.problem}", width - 1)]
    row = [_name(found, name)]
    for measure in measures:
        summary = found.summary(case, name, measure)
        value = summary.median if summary else None
        to_best, to_floor = _to_best_and_floor(found, case, name, measure, value)
        row += [Cell(_value(found, case, value, measure)),
                Cell(f"{100 * summary.spread:.1f} %" if summary else "-", DIM), Cell(units.ratio(to_best))]
        if measure in (TIME, MEMORY):
            row.append(Cell(units.ratio(to_floor), DIM))
        for mine in ours:
            if name in (mine, found.baseline()):  # the floor is no rival: its column is "/ floor"
                row += [Cell(""), Cell("")]
            else:
                versus = found.versus(case, mine, name, measure)
                row += [versus_cell(versus), interval_cell(versus)]
    medians = {metric: statistics.median(values) for metric, values in cell.metrics.items()}
    return row + [Cell(units.measured(medians.get(metric), metric), DIM) for metric in further]


# ---- the run ----


def programs(found) -> Table:
    """The binaries that were run."""
    columns = [Column(text, left=True) for text in ("program", "version", "file", "sha256")]
    rows = []
    for name, facts in (found.meta.get("programs") or {}).items():
        rows.append([Cell(name), Cell(facts.get("version") or ""), Cell(facts.get("path") or ""),
                     Cell((facts.get("sha256") or "")[:12], DIM)])
    return Table("Programs", columns, rows)


def allocators(found) -> Table:
    columns = [Column(text, left=True) for text in ("allocator", "kind", "version", "settings", "library", "sha256")]
    kinds = {Kind.OURS: "ours", Kind.ABLATION: "ours, ablation", Kind.PEER: "peer", Kind.SYSTEM: "C library",
             Kind.BASELINE: "floor for time", Kind.GIVEN: "given by --with", Kind.PAGES: "page manager"}
    rows = []
    for facts in found.allocators.values():
        settings = " ".join(f"{key}={value}" for key, value in facts.environment) or "as shipped"
        rows.append([_name(found, facts.name), Cell(kinds[facts.kind]), Cell(facts.version), Cell(settings),
                     Cell(facts.missing or facts.path, BAD if facts.missing else PLAIN), Cell(facts.sha256[:12], DIM)])
    return Table("Allocators", columns, rows)
