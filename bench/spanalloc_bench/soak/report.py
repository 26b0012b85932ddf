"""What a soak shows: a table a program on the screen and in docs/soak.md, and a picture of the curves."""

from __future__ import annotations

import dataclasses
import os

from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from spanalloc_bench import documents, plots, screen, units
from spanalloc_bench.soak import levels
from spanalloc_bench.soak.programs import PROGRAMS, TITLES

DOCUMENT, PICTURE = "docs/soak.md", "soak.png"
UNFINISHED = "not finished"
MOST = 1.1  # times the least of the others' level
VERDICTS = (0, 5)  # columns whose texts are no numbers
HEADINGS = ("allocator", "level", "of least other", "slope, KiB an hour", "slope, % an hour", "verdict", "peak")
ABOUT = (
    "Memory is RSS + page tables of the server's process. Level: mean of the second half, in whole cycles of the load. "
    "Of least other: the level over the least level of the other allocators, ours left out. Slope: of a line through the "
    "means of the second half's cycles, with its 95 % interval; flat: the interval contains 0; unclear: it does, but reaches "
    f"further than {100 * levels.WIDE:.0f} % to either side. Peak: the largest sample."
)


@dataclasses.dataclass(frozen=True)
class Row:
    program: str
    allocator: str
    level: float | None        # KiB
    slope: levels.Slope | None
    peak: int                  # KiB
    over_least: float | None   # the level / the least of the others that are not ours
    problem: str = ""


def programs_of(samples) -> list[str]:
    seen = {sample.program for sample in samples}
    return [name for name in PROGRAMS if name in seen]


def rows(samples, meta) -> list[Row]:
    """A row an allocator of each program, in the order in which they were named."""
    asked = meta["settings"]
    cycles = levels.judged_cycles(asked["minutes"], asked["cycle_s"])
    found = []
    for program in programs_of(samples):
        problems = meta["programs"].get(program, {"problems": dict.fromkeys(asked["allocators"], UNFINISHED)})["problems"]
        of = {name: [s for s in samples if s.program == program and s.allocator == name] for name in asked["allocators"]}
        by_cycle = {name: levels.means([(s.cycle, s.memory_kib) for s in mine], cycles) if name not in problems else {}
                    for name, mine in of.items()}
        level = {name: sum(means.values()) / len(means) for name, means in by_cycle.items() if means}
        for name, mine in of.items():
            least = min((value for other, value in level.items()
                         if other != name and not asked["allocators"][other]["ours"]), default=None)
            found.append(Row(
                program, name, level.get(name), levels.slope(by_cycle[name], asked["cycle_s"]),
                max((s.memory_kib for s in mine), default=0), level[name] / least if name in level and least else None,
                problems.get(name, "") or ("" if name in level else "no samples in the second half"),
            ))
    return found


def cells(row) -> list[str]:
    if row.level is None:
        return [row.allocator, "-", "-", "-", "-", row.problem, units.kib(row.peak)]
    change = percent = "-"
    verdict = levels.UNKNOWN
    if row.slope is not None and row.slope.half is not None:
        verdict = row.slope.verdict(row.level)
        change = f"{row.slope.per_hour:+,.0f} ± {row.slope.half:,.0f}"
        percent = f"{100 * row.slope.per_hour / row.level:+.2f} ± {100 * row.slope.half / row.level:.2f}"
    return [row.allocator, units.kib(row.level), units.ratio(row.over_least), change, percent, verdict, units.kib(row.peak)]


def findings(found, meta) -> list[str]:
    """A sentence for each of our libraries' rows that is not as it should be; else one that says so."""
    ours = [row for row in found
            if meta["settings"]["allocators"][row.allocator]["ours"] and row.program in meta["programs"]]
    said = []
    for row in ours:
        of = f"{row.allocator} under {TITLES[row.program]}"
        if row.problem:
            said.append(f"{of}: {row.problem}.")
            continue
        if row.slope is not None and row.slope.verdict(row.level) in (levels.GROWS, levels.UNCLEAR):
            what = "grows" if row.slope.verdict(row.level) == levels.GROWS else "may grow"
            said.append(f"{of} {what}: {units.kib(row.slope.per_hour)} ± {units.kib(row.slope.half)} an hour.")
        if row.over_least is not None and row.over_least > MOST:
            said.append(f"{of} takes {units.ratio(row.over_least)} times what the least of the others takes.")
    if not said and ours and all(row.slope is not None and row.slope.half is not None for row in ours):
        names = " and ".join(dict.fromkeys(row.allocator for row in ours))
        said = [f"{names}: no growth, and at most {MOST} times the least of the others, in every program."]
    return said


# ---- the screen ----


def show(samples, meta, folder, console, say):
    """Prints the tables, and draws the picture into the folder."""
    found = rows(samples, meta)
    for program in programs_of(samples):
        lines = [cells(row) for row in found if row.program == program]
        console.print(screen.table(HEADINGS, lines, _title(program, meta), left=VERDICTS))
    for line in (*findings(found, meta), *notes(samples, meta), ABOUT):
        print(line)
    path = os.path.join(folder, PICTURE)
    save_picture(samples, meta, path)
    say(f"curves: {path}")


def _title(program, meta):
    version = meta["programs"].get(program, {}).get("version", "")
    return TITLES[program] + (f" ({version})" if version else "")


def cpu_share(samples) -> float:
    """CPUs that all servers together took, on average."""
    last = {(s.program, s.allocator): s for s in samples}
    return sum(s.cpu_s / s.seconds for s in last.values() if s.seconds > 0)


def notes(samples, meta) -> list[str]:
    """What else a reader of the tables must know."""
    asked = meta["settings"]
    said = [f"{asked['minutes']:g} minutes, cycles of {asked['cycle_s']:g} s, seed {asked['seed']}; all servers together "
            f"took {units.ratio(cpu_share(samples))} CPUs."]
    for program, facts in meta["programs"].items():
        if facts["late_s"] > 1:
            said.append(f"{TITLES[program]}: the load was up to {facts['late_s']:.0f} s behind its schedule, so some "
                        "phases were shorter than others.")
    unfinished = [p for p in programs_of(samples) if p not in meta["programs"]]
    if unfinished:
        said.append(f"Not finished: {', '.join(TITLES[p] for p in unfinished)}; the same command runs "
                    f"{'it' if len(unfinished) == 1 else 'them'} anew.")
    return said


# ---- the picture ----


def _panel(program, samples, meta):
    names = [name for name in meta["settings"]["allocators"] if any(
        s.program == program and s.allocator == name for s in samples)]
    cycles = levels.judged_cycles(meta["settings"]["minutes"], meta["settings"]["cycle_s"])

    def draw(axes):
        for name in sorted(names, key=lambda n: plots.style(n).ours):  # ours lie on top
            look = plots.style(name)
            points = [(s.seconds / 60, s.memory_kib / 1024) for s in samples if s.program == program and s.allocator == name]
            axes.plot(*zip(*points), look.dashes, color=look.color, lw=1.6 if look.ours else 0.9)
        axes.axvline(cycles.start * meta["settings"]["cycle_s"] / 60, color="#999999", lw=0.8, dashes=(3, 3))
        axes.set_ylim(bottom=0)
        axes.set_xlim(0, meta["settings"]["minutes"])
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=meta["settings"]["minutes"] > 8))
        axes.set(xlabel="minutes", ylabel="MiB, RSS + page tables")

    return plots.Panel(TITLES[program], draw, tuple(names), 9.0, 2.7)


def picture(samples, meta):
    drawing = plots.figure([_panel(program, samples, meta) for program in programs_of(samples)], columns=1,
                           note="right of the dashed line: what is judged")
    # The style's markers would cover the curves; the legend shows colours alone.
    for legend in drawing.legends:
        for handle in legend.legend_handles if hasattr(legend, "legend_handles") else legend.legendHandles:
            if isinstance(handle, Line2D):
                handle.set_marker("")
    return drawing


def save_picture(samples, meta, path):
    plots.save_small(picture(samples, meta), path, dpi=100)


# ---- the document ----


def markdown(samples, meta) -> str:
    found = rows(samples, meta)
    lines = ["![memory of three servers under each allocator over time](soak.png)", ""]
    for program in programs_of(samples):
        of = [cells(row) for row in found if row.program == program]
        lines += [*documents.table([_title(program, meta), *HEADINGS[1:]], of, left=VERDICTS), ""]
    lines += [" ".join(findings(found, meta)), ""] if findings(found, meta) else []
    started = min((facts["started"] for facts in meta["programs"].values()), default="")
    lines.append(" ".join([*notes(samples, meta), documents.origin({**meta, "started": started})]))
    return "\n".join(lines) + "\n"


def write_document(samples, meta, source, say):
    """Puts tables and picture into the document of the source tree."""
    documents.write({(DOCUMENT, "soak"): markdown(samples, meta)}, source)
    save_picture(samples, meta, os.path.join(source, os.path.dirname(DOCUMENT), PICTURE))
    say(f"wrote {DOCUMENT}")
