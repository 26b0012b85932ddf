"""What the terminal shows of a folder: a first screen that is read in a minute, and every case's table on request."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spanalloc_bench import tables, words
from spanalloc_bench.analyse import LOSS, MEMORY, METRIC, TIE, TIME, WIN

_STYLES = {WIN: "green", LOSS: "red", TIE: "", tables.OURS: "bold", tables.BAD: "bold red", tables.DIM: "dim"}


def _text(cell) -> Text:
    return Text(cell.text, _STYLES.get(cell.tone, ""))


def draw(table: tables.Table, wide=False) -> Table:
    """A table for rich; `wide`: with the columns that are left out or joined where room is scarce.

    A group of columns has no heading of its own there: its name stands above its first column. A cell that spans the
    row, the reason why there are no figures, stands below the table.
    """
    drawn = Table(title=Text(table.title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, header_style="bold",
                  caption_justify="left", pad_edge=False, collapse_padding=True)
    notes = [table.note] if table.note else []
    shown = [column for column in table.columns if wide or not column.extra]
    grouped, previous = any(column.group for column in shown), None
    headings = []
    for column in shown:
        text = column.text if wide else column.short or column.text
        if column.join and not wide:
            headings[-1][1] += f" {text}"
            continue
        headings.append([column.group if column.group != previous else "", text, column.left])
        previous = column.group
    for group, text, left in headings:
        heading = Text(f"{group}\n{text}" if grouped else text)
        drawn.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in table.rows:
        cells = []
        for cell, place in table.placed(row):
            column = table.columns[place]
            if cell.span > 1:
                notes.append(f"{row[0].text} {cell.text}")
                cells.append(Text(cell.text.split(":")[0], _STYLES[cell.tone]))
            elif column.join and not wide:
                cells[-1] = Text.assemble(cells[-1], " ", _text(cell))
            elif wide or not column.extra:
                cells.append(_text(cell))
        drawn.add_row(*cells)
    drawn.caption = Text("\n".join(notes)) if notes else None
    return drawn


def _print(to: Console, table: tables.Table):
    """Wide where it fits; else brief, and on a terminal narrower still the terminal breaks lines: nothing is cut."""
    unbounded = to.options.update(width=10_000)
    for wide in (True, False):
        drawn = draw(table, wide)
        needed = Measurement.get(to, unbounded, drawn).maximum
        if needed <= to.width:
            break
    width = to.width
    to.width = max(needed, width)
    to.print(drawn)
    to.width = width
    to.print()


def print_summary(found, to: Console):
    """The first screen: where the product wins, ties and loses against each allocator, and by how much."""
    ours = found.products()
    overview = escape(" · ".join(words.overview(found)))
    to.print(f"[bold]spanalloc's benchmark suite[/]  {overview}", highlight=False)
    for name in (name for name, facts in found.allocators.items() if facts.missing):
        to.print(f"[dim]{escape(name)}: {escape(found.allocators[name].missing)}[/]", highlight=False)
    if not ours:
        to.print("None of our libraries ran: nothing to compare. The cases' own tables follow the option --tables.")
        return
    product = ours[0]
    to.print()
    for measure in (TIME, MEMORY):
        to.print(Text(words.headline(found, product, measure)))
    if words.other_numbers(found, product):
        to.print(Text(words.other_numbers(found, product)))
    if words.too_few_rounds(found):
        to.print(Text(words.too_few_rounds(found), "yellow"))
    if words.measured_apart(found, product):
        to.print(Text(words.measured_apart(found, product), "yellow"))
    for line in tables.problem_lines(found):
        to.print(Text(f"No figures: {line}.", "red"))
    to.print()
    _print(to, tables.matrix(found, product))
    to.print(Text(tables.LEGEND, "dim"))
    to.print()
    for worst in (True, False):
        _print(to, tables.extremes(found, product, worst))
    _print(to, tables.by_group(found, product))
    for name in ours[1:]:
        _print(to, tables.matrix(found, name))
    if found.latencies():
        _print(to, tables.latency_matrix(found, product))


def print_groups(found, to: Console):
    """Every workload: the medians of all, and their ratios to the best of the others and to the floors."""
    for group in found.groups():
        for measure in (TIME, METRIC, MEMORY):
            table = tables.group_brief(found, group, measure)
            if table:
                _print(to, table)


def print_case_table(found, case: str, to: Console):
    """One case: medians, ratios to the best of the others and to the floors, the product's verdict on each; below that
    the latencies."""
    measures = found.measures(case)
    judged = [measure for measure in measures if not isinstance(measure, tuple)]
    _print(to, tables.case_table(found, case, found.products()[:1], judged))
    latencies = [measure for measure in measures if isinstance(measure, tuple)]
    if latencies:
        _print(to, tables.latency_table(found, case))
