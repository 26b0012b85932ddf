"""What README.md and docs/results.md quote of a run, in Markdown."""

from __future__ import annotations

import os
import re
import sys

from spanalloc_bench import analyse, documents, packed, store, tables, units, words
from spanalloc_bench.analyse import LOSS, MEMORY, METRIC, MIN_ROUNDS, NOTABLE, START_UP_KIB, TIE, TIME, WIN
from spanalloc_cli import libraries

README, RESULTS = "README.md", "docs/results.md"  # the documents, from the root of the source tree
SUITE, LOSSES, LIBRARIES = "bench", "losses", "libraries"  # markers in them
WHERE_LOST = "where-it-loses"                     # the heading in RESULTS that stands above LOSSES
AT_START = ", at start"
# What each library is for; what it is good at, the measurements say. Of what others have made, nothing.
TAKE_IT_FOR = {
    "standard": "running programs",
    "scalloc": "research: virtual spans, eager return and a span-pool as published",
    "supermalloc": "research: fullest fit, folios and caches for each CPU as published",
    "a2alloc": "learning and teaching: lists under locks",
}
SHOWN = 3  # failures of one contender; the report tells the others


def newest(results) -> str | None:
    """The folder below `results` whose run started last; None where there is none."""
    return packed.newest(results, store.SAMPLES, lambda folder: store.read_meta(folder).get("started") or "")


def _row(found, mine, other) -> list[str]:
    time, memory = found.score(mine, other, TIME), found.score(mine, other, MEMORY)
    return [other, units.ratio(time.ratio), time.tally, units.ratio(memory.ratio), memory.tally,
            found.score(mine, other, METRIC).tally, f"{time.cases} / {memory.cases}",
            " / ".join(map(str, tables.failed_counts(memory)))]


def _failures(found) -> list[str]:
    """A line a contender that has no figures somewhere: where, and why."""
    by_name = {}
    for p in found.failures():
        why = p.text.replace("`", "'")
        by_name.setdefault(p.allocator, []).append(
            f"{p.case} {tables.STATUS_WORDS.get(p.status, p.status)} in {p.rounds} of {p.of} round{'s' * (p.of != 1)}"
            + f" (`{why}`)" * bool(why))
    lines = []
    for name, places in by_name.items():
        rest = f"; and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
        lines.append(f"`{name}` has no figures of {len(places)} case{'s' * (len(places) > 1)}: "
                     f"{'; '.join(places[:SHOWN])}{rest}.")
    return lines


def _measured_at(found) -> str:
    """Machine, rounds, cases, commit and day, and that the code has gone on."""
    day = (found.meta.get("started") or "")[:10]
    newer = " What has changed in the code since that commit is not in these figures." if words.commit(found.meta) else ""
    return f"{', '.join([*words.overview(found), *([day] if day else [])])}.{newer}"


def _lost(found, ours) -> dict:
    """The cells of a table of losses, the largest loss first: (case, ours, measure) -> by how much any of `ours` loses
    there for certain by more than NOTABLE, and to whom most."""
    losses_found = []
    for mine in ours:
        for measure, start_up in ((TIME, False), (MEMORY, False), (MEMORY, True), (METRIC, False)):
            for v in found.extremes(mine, measure, worst=True, count=len(found.suite), start_up=start_up):
                if v.verdict == LOSS and v.notable:
                    losses_found.append((v, start_up))
    losses_found.sort(key=lambda loss: loss[0].size, reverse=True)
    return {(v.case, v.mine, v.measure): f"{tables.by_how_much(found, v)} ({v.other}{AT_START * start_up})"
            for v, start_up in losses_found}


def _table_of_losses(found, ours) -> list[str]:
    """A row a case that is lost in any measure, by its largest loss; nothing where none is."""
    cells = _lost(found, ours)
    if not cells:
        return []
    measures = {TIME: "time", MEMORY: "memory"}
    said = f"Where we lose by more than {100 * NOTABLE:.0f} %, by how much, and to whom most; the largest loss first"
    if any(AT_START in text for text in cells.values()):
        said += (f"; at start: the case holds less than {units.kib(START_UP_KIB)}, so that its memory is what a "
                 "process has at its start")
    if any(measure == METRIC for _, _, measure in cells):
        measures[METRIC] = "other number"
        said += "; other number: what the case is judged by instead of time, named in its row"
    columns = [(mine, measure) for mine in ours for measure in measures]
    rows = [[case_title(found, case), *(cells.get((case, *column), "") for column in columns)]
            for case in dict.fromkeys(case for case, _, _ in cells)]
    return [f"{said}:", "",
            *documents.table(["case", *(f"`{mine}` {measures[measure]}" for mine, measure in columns)], rows)]


def case_title(found, case) -> str:
    """In a table's cell, with the number that the case is judged by where that is no time."""
    facts = found.cases[case]
    return facts.title.replace("|", "\\|") + (f": `{facts.metric}`" if facts.judged_by == METRIC else "")


def _no_losses(found) -> str:
    return words.too_few_rounds(found) or f"No case is lost by more than {100 * NOTABLE:.0f} %."


def suite_table(found) -> str:
    """How our shipped configs stand to every allocator, and who failed."""
    text = [f"{_measured_at(found)} Ratios are ours / the other's, geometric means over the cases that "
            "both finished (how many, time / memory: under cases); below 1 ours is better. W/T/L: cases won, tied, "
            "lost; a tie is where the 95 % interval of the per-round ratio contains 1. Other: the cases that are judged by "
            "another number than time. Failed: in how many cases, ours / the other.", ""]
    for mine in found.products():
        text += documents.table(
            [f"`{mine}` against", "time", "W/T/L", "memory", "W/T/L", "other W/T/L", "cases", "failed"],
            [_row(found, mine, other) for other in found.opponents(mine)])
        text.append("")
        for said in (words.memory_leaves_out(found, mine), words.other_numbers(found, mine)):
            text += [said, ""] if said else []
    for line in _failures(found):
        text += [line, ""]
    return "\n".join(text)


def losses(found) -> str:
    """Every case that our shipped configs lose for certain by more than NOTABLE."""
    ours = found.products()
    lines = _table_of_losses(found, ours) or ([_no_losses(found)] if ours else [])
    return "\n".join([*lines, ""])


def _mean_in_words(found, mine, measure, noun) -> str:
    """How the product's mean stands to each of the rivals'."""
    verdicts = {other: found.score(mine, other, measure).verdict for other in found.rivals()
                if found.score(mine, other, measure).ratio is not None}
    less = [other for other, verdict in verdicts.items() if verdict == WIN]
    count = {0: "none", len(verdicts): "all"}.get(len(less), len(less))
    said = [f"less {noun} than {count} of the {len(verdicts)} others"]
    for verdict, how in ((TIE, "as much as"), (LOSS, "more than")):
        names = [other for other in verdicts if verdicts[other] == verdict]
        said += [f"{how} {' and '.join(names)}"] if names else []
    return ", ".join(said)


def _left_out(found, mine) -> str:
    """Why the tallies of the brief table do not add up to all cases."""
    numbers = sum(found.cases[case].judged_by == METRIC for case in found.run_by(mine))
    start_up = len(found.run_by(mine, found.start_up))
    said = []
    if numbers:
        said.append(f"time leaves out {numbers} that {'is' if numbers == 1 else 'are'} judged by another number")
    if start_up:
        said.append(f"memory leaves out {'these and ' if numbers else ''}{start_up} that hold{'s' * (start_up == 1)} less "
                    f"than {units.kib(START_UP_KIB)}")
    elif numbers:
        said.append("so does memory")
    return "".join(f"; {text}" for text in [*said, "a row leaves out what either of the two did not finish"])


def brief(found) -> str:
    """The product against every allocator people use: two means, two tallies, and how many losses there are."""
    mine = next(iter(found.products()), None)
    if mine is None:
        return ""
    library = ", the engine of `libspanalloc.so`," if mine == libraries.DEFAULT_CONFIG else ""
    means = [_mean_in_words(found, mine, measure, noun) for measure, noun in ((TIME, "time"), (MEMORY, "memory"))]
    text = [f"{_measured_at(found)}", "",
            f"In the mean of the cases `{mine}`{library} takes {'; '.join(means)}. Ratios are `{mine}`'s / the other's, "
            f"geometric means: below 1 `{mine}` is better. W/T/L: cases won, tied, lost{_left_out(found, mine)}.", ""]
    rows = []
    for other in found.rivals():
        time, memory = found.score(mine, other, TIME), found.score(mine, other, MEMORY)
        version = found.allocators[other].version
        name = other if not version or re.search(r"\d", other) else f"{other} ({version})"
        rows.append([name, units.ratio(time.ratio), time.tally, units.ratio(memory.ratio), memory.tally])
    text += documents.table([f"`{mine}` against", "time", "W/T/L", "memory", "W/T/L"], rows)
    lost = _lost(found, [mine])
    if lost:
        counts = {name: sum(measure == which for _, _, measure in lost)
                  for name, which in (("time", TIME), ("memory", MEMORY), ("another number", METRIC))}
        told = ", ".join(f"{count} in {name}" for name, count in counts.items() if count)
        said = (f"`{mine}` loses by more than {100 * NOTABLE:.0f} %, to one of them at least, in "
                f"{len({case for case, _, _ in lost})} of the {len(found.run_by(mine))} cases ({told}): "
                f"[each of them, by how much, to whom]({RESULTS}#{WHERE_LOST}).")
    else:
        said = _no_losses(found)
    return "\n".join([*text, "", said, ""])


# ---- which library ----


def _times(found, mine, others) -> list:
    """How `mine` compares in time in each case, with whom of the others it comes off worst against there; the worst
    first."""
    rows = ([found.versus(case, mine, other, TIME) for other in others] for case in found.suite)
    rows = [[v for v in row if v and v.ratio is not None] for row in rows]
    return sorted((max(row, key=lambda v: v.ratio) for row in rows if row), key=lambda v: -v.ratio)


def _title(found, v) -> str:
    return f"{found.cases[v.case].title} ({tables.by_how_much(found, v)})".replace("|", "\\|")


def _is_faster(v) -> bool:
    """Notably; for certain, where there are rounds enough to be."""
    return v.notable and v.verdict == WIN if v.rounds >= MIN_ROUNDS else v.ratio < 1 / (1 + NOTABLE)


def _take_it(found, name, times) -> str:
    """For what, and where it takes less time than the product."""
    said = [TAKE_IT_FOR[name]] if name in TAKE_IT_FOR else []
    faster = [v for v in times if _is_faster(v)]
    if times:
        said.append(f"less time than `{times[0].other}` in {len(faster)} of {len(times)} cases"
                    + (f", most in {_title(found, faster[-1])}" if faster else ""))
    return "; ".join(said)


def _library_row(found, name, base) -> list[str]:
    label = f"`{name}`" if found.allocators[name].ours else name
    if name == base:
        others = [other for other in [*found.ours(), *found.rivals()] if other != base]
        times = _times(found, name, others)
        cells = ["1", "1", f"{_title(found, times[0])} against {times[0].other}" if times else "-", TAKE_IT_FOR.get(name, "")]
    else:
        times = _times(found, name, [base])
        cells = [*(units.ratio(found.score(name, base, measure).ratio) for measure in (TIME, MEMORY)),
                 _title(found, times[0]) if times else "-", _take_it(found, name, times)]
    return [label, *cells]


def libraries_table(found) -> str:
    """Our shipped libraries and whoever else was run, as ratios to the product."""
    base = libraries.DEFAULT_CONFIG
    if base not in found.ours():
        sys.exit(f"the run has no samples of {base}, which the others are set against")
    names = [*found.ours(), *found.rivals()]
    gone = [name for name in libraries.SHIPPED_CONFIGS if name not in names]
    text = [f"{_measured_at(found)} Time and memory: geometric means of the ratios to `{base}`'s over the cases that both "
            "finished; below 1 is better. The cases are those in which the ratio of times is largest and smallest; of "
            f"`{base}` itself, with whichever other is furthest before it. Counted as less time is what is less by more than "
            f"{100 * NOTABLE:.0f} %.", ""]
    too_few = words.too_few_rounds(found)
    text += [f"{too_few}", ""] if too_few else []
    rows = [_library_row(found, name, base) for name in names]
    rows += [[f"`{name}`", "-", "-", "not in this run", TAKE_IT_FOR.get(name, "")] for name in gone]
    text += documents.table(["library", "time", "memory", "takes most time at", "take it for"], rows, left=(0, 3, 4))
    for line in ["", *_failures(found)]:
        text += [line] if not line else [line, ""]
    return "\n".join(text)


def which_library(folder, source) -> dict[tuple[str, str], str]:
    """What the documents quote of a run of our libraries side by side."""
    outside = os.path.relpath(folder, source).startswith(os.pardir)
    name = os.path.basename(os.path.abspath(folder)) if outside else documents.link(folder, RESULTS, source)
    return {(RESULTS, LIBRARIES): f"{libraries_table(analyse.load(folder))}\nThe samples: {name}.\n\n"}


# ---- all that is quoted ----


def quotes(folder, source) -> dict[tuple[str, str], str]:
    """What the documents quote of a run: (document, marker) -> text."""
    found = analyse.load(folder)
    return {
        (README, SUITE): f"{brief(found)}\n",
        (RESULTS, SUITE): (f"{suite_table(found)}\nEvery sample, the machine and the allocators' checksums: "
                           f"{documents.link(folder, RESULTS, source)}.\n\n"),
        (RESULTS, LOSSES): f"{losses(found)}\n",
    }
