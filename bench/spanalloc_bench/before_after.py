"""A table of all cases of a run that holds an older build of ours besides: before, after, and the best of the others.
In Markdown. Needs no package beside Python's own."""

from __future__ import annotations

import sys

from spanalloc_bench import analyse, units, words
from spanalloc_bench.analyse import MEMORY, METRIC, TIME
from spanalloc_bench.model import Kind

MINE, BEFORE = "standard", "before"  # contenders; the older build takes part by --with before=PATH


def _best_other(found, case, measure, before) -> tuple[str, float] | None:
    """As Analysis.best_other, which takes what --with names for one of the others."""
    rivals = [name for name in found.contenders(case) if name in found.rivals() and name != before]
    values = [(name, found.median(case, name, measure)) for name in rivals]
    values = [(name, value) for name, value in values if value is not None]
    choose = max if found.cases[case].better == "higher" and measure != MEMORY else min
    return choose(values, key=lambda pair: pair[1]) if values else None


def _cells(found, case, measure, before) -> list[str]:
    def told(value):
        return units.kib(value) if measure == MEMORY else units.measured(value, found.cases[case].metric)

    best = _best_other(found, case, measure, before)
    after = found.median(case, MINE, measure)
    told_after = told(after)
    ratio = found.relative(case, after, best[1], measure) if best else None
    if ratio is not None and ratio <= 1:
        told_after = f"**{told_after}**"
    return [told(found.median(case, before, measure)), told_after, f"{told(best[1])} {best[0]}" if best else "-"]


def table(folder, before=BEFORE) -> str:
    """A row a case of the suite in which ours ran. In bold: as good as the best of the others, or better."""
    found = analyse.load(folder)
    for name in (MINE, before):
        if name not in found.allocators or found.allocators[name].kind is Kind.BASELINE:
            sys.exit(f"{folder}: no samples of {name}")
    text = [f"{', '.join(words.overview(found))}. Medians; lower is better but where a case counts something good. In bold: as "
            "good as the best other allocator, or better. Cases that are judged by another number than time have it, "
            "named, in the place of time.", "",
            "| case | before | after | best other | memory before | after | best other |", "|---|--:|--:|--:|--:|--:|--:|"]
    for case in found.run_by(MINE):
        facts = found.cases[case]
        title = facts.title.replace("|", "\\|")
        number = f": `{facts.metric}`" if facts.judged_by == METRIC else ""
        cells = [*_cells(found, case, facts.judged_by if facts.judged_by == METRIC else TIME, before),
                 *_cells(found, case, MEMORY, before)]
        text.append(f"| {title}{number} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"
