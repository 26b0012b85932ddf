"""The README's table of a run, in Markdown. Needs no package beside Python's own."""

from __future__ import annotations

import os

from spanalloc_bench import analyse, store, tables, units
from spanalloc_bench.analyse import LOSS, MEMORY, NOTABLE, TIME
from spanalloc_bench.model import Kind


def newest(results) -> str | None:
    """The folder below `results` whose run started last; None where there is none."""
    folders = [os.path.join(results, name) for name in os.listdir(results)] if os.path.isdir(results) else []
    runs = [(store.read_meta(folder).get("started") or "", folder) for folder in folders
            if os.path.isfile(os.path.join(folder, store.SAMPLES))]
    return max(runs)[1] if runs else None


def _row(found, mine, other) -> str:
    cells = []
    for measure in (TIME, MEMORY):
        score = found.score(mine, other, measure)
        cells += [units.ratio(score.ratio), score.tally]
    return f"| {other} | {' | '.join(cells)} |"


def _losses(found, ours) -> list[str]:
    """A line a case that any of `ours` loses for certain by more than NOTABLE: to whom most, and by how much."""
    cells = {}
    for mine in ours:
        for measure in (TIME, MEMORY):
            for v in found.extremes(mine, measure, worst=True, count=len(found.suite)):
                if v.verdict == LOSS and v.notable:
                    cells[v.case, mine, measure] = f"{units.change(v.ratio)} ({v.other})"
    lines = []
    for case in found.suite:
        row = [cells.get((case, mine, measure), "") for mine in ours for measure in (TIME, MEMORY)]
        if any(row):
            title = found.cases[case].title.replace("|", "\\|")
            lines.append(f"| {title} | {' | '.join(row)} |")
    return lines


def readme_table(folder) -> str:
    """How our shipped configs stand to every allocator, and where they lose by more than NOTABLE."""
    found = analyse.load(folder)
    ours = [name for name in found.ours() if found.allocators[name].kind is Kind.OURS]
    text = [f"{', '.join(tables.overview_words(found))}. Ratios are ours / the other's, geometric means over the cases "
            "that both finished: below 1 ours is better. W/T/L: cases won, tied, lost; a tie is where the 95 % interval "
            "of the per-round ratio contains 1.", ""]
    for mine in ours:
        text += [f"| `{mine}` against | time | W/T/L | memory | W/T/L |", "|---|--:|--:|--:|--:|"]
        text += [_row(found, mine, other) for other in found.opponents(mine)]
        text.append("")
        if tables.memory_words(found, mine):
            text += [tables.memory_words(found, mine), ""]
    for mine in ours:
        failed = [f"{p.case} ({p.status})" for p in found.failures() if p.allocator == mine]
        if failed:
            text += [f"`{mine}` failed in {', '.join(failed)}.", ""]
    lines = _losses(found, ours)
    if lines:
        names = " | ".join(f"`{mine}` {measure}" for mine in ours for measure in (TIME, MEMORY))
        text += [f"Where we lose by more than {100 * NOTABLE:.0f} %, by how much, and to whom most:", "",
                 f"| case | {names} |", "|---|" + "--:|" * (2 * len(ours)), *lines, ""]
    elif tables.too_few_rounds(found):
        text += [tables.too_few_rounds(found), ""]
    elif ours:
        text += [f"No case is lost by more than {100 * NOTABLE:.0f} %.", ""]
    return "\n".join(text)
