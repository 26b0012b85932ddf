"""What `spanalloc bench manycore` shows: tables on the screen, plots, JSON, and a part for the report of a run."""

from __future__ import annotations

import bisect
import functools
import html
import json
import os
import shutil
import subprocess

from spanalloc_bench import manycore, plots, units
from spanalloc_bench.model import OK

JSON, HTML = "manycore.json", "manycore.html"
PLACES = 3  # worst places named for an allocator
_CALLS = {"9": "mmap", "10": "mprotect", "11": "munmap", "12": "brk", "24": "sched_yield", "28": "madvise", "35": "nanosleep",
          "56": "clone", "202": "futex", "228": "clock_gettime", "230": "clock_nanosleep"}
ABOUT = (
    "Simulated: every thread has a core of its own with 512 KiB of cache; lines that move from core to core take 120 cycles each "
    "and one after the other. The counts are exact and the same in every run; the cycles are those of a model that leaves much "
    "out (docs/manycore.md). They say what grows with the cores, not how many nanoseconds a call takes."
)


# ---- names of places ----


@functools.lru_cache(maxsize=None)
def _symbols(path) -> tuple[list[int], list[tuple[int, str]]]:
    """Addresses in order, and (size, name) of each: what `nm` knows of a file, functions and data."""
    table = {}
    if shutil.which("nm"):
        for options in (["-D"], []):
            run = subprocess.run(["nm", "-C", "-S", "--defined-only", *options, path], stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL, text=True, errors="replace", check=False)
            for line in run.stdout.splitlines():
                words = line.split(maxsplit=3)
                if len(words) == 4 and words[2] != "a":
                    try:
                        table[int(words[0], 16)] = (int(words[1], 16), words[3])
                    except ValueError:
                        continue
    addresses = sorted(table)
    return addresses, [table[address] for address in addresses]


def place(site) -> str:
    """"libspanalloc.so: spanalloc::SpinLock::lock()" of a site or a line of the plugin's result."""
    if "object" not in site:
        return "heap" if site.get("moves") else f"{site['address']:#x}"
    name = os.path.basename(site["object"])
    addresses, known = _symbols(site["object"])
    at = bisect.bisect_right(addresses, site["offset"] + (63 if "moves" in site else 0)) - 1
    if at >= 0 and site["offset"] < addresses[at] + max(known[at][0], 1):
        return f"{name}: {_short(known[at][1])}"
    if "moves" in site and (at < 0 or site["offset"] > addresses[-1] + 4096):
        return "heap"  # mapped behind the file, but none of its own
    return f"{name}+{site['offset']:#x}"


def _short(symbol) -> str:
    """Without arguments and the names of templates' parameters."""
    depth, out = 0, []
    for c in symbol.replace("(anonymous namespace)::", ""):
        if c in "<(" and not "".join(out).endswith("operator"):
            depth += 1
        elif c in ">)" and depth:
            depth -= 1
        elif not depth:
            out.append(c)
    return "".join(out).strip()


def worst_places(row, in_allocator=True) -> list[tuple[str, int, int]]:
    """(place, moves, cycles lost there), of functions, the dearest first. Those of the workload itself are left out."""
    own = manycore.WORKLOADS[row.workload].argv(2, 1)[0] if row.workload in manycore.WORKLOADS else ""
    sums = {}
    for site in row.sites:
        if in_allocator and os.path.basename(site.get("object", "")) == own:
            continue
        moves, cycles = sums.get(name := place(site), (0, 0))
        sums[name] = (moves + site["transfers"] + site["invalidations"], cycles + site["cycles"])
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return [(name, *both) for name, both in ordered]


def calls(row) -> str:
    """The system calls that an operation makes, where they count: "sched_yield 0.17"."""
    found = [(n / row.operations, _CALLS.get(number, f"call {number}")) for number, n in row.calls.items()]
    return ", ".join(f"{name} {units.number(n)}" for n, name in sorted(found, reverse=True)[:3] if n >= 0.005)


# ---- curves ----


def _curves(rows, workload, value):
    """{allocator: [(cores, value)]} in the allocators' order of appearance."""
    names = dict.fromkeys(row.allocator for row in rows if row.workload == workload)
    found = {name: sorted((row.cores, value(row)) for row in rows
                          if row.workload == workload and row.allocator == name and row.status == OK) for name in names}
    return {name: points for name, points in found.items() if points}


def speed_up(rows, workload) -> dict[str, list[tuple[int, float]]]:
    """Throughput relative to the fewest cores simulated, which count as so many."""
    curves = _curves(rows, workload, lambda row: row.throughput)
    return {name: [(n, value / points[0][1] * points[0][0]) for n, value in points] for name, points in curves.items()}


def panels(rows, workload):
    judged = manycore.WORKLOADS[workload]
    of = " in the allocator" if judged.in_allocator else ""
    moves = {name: [(n, max(value, 1e-4)) for n, value in points]
             for name, points in _curves(rows, workload, lambda row: row.moves).items()}
    scale = {"x_label": "cores", "log_x": True}
    return [
        plots.lines("Speed-up", speed_up(rows, workload), ideal=True, log_y=True, y_label=f"times its own one core{of}", **scale),
        plots.lines("Cycles of a core for an operation", _curves(rows, workload, lambda row: row.core_cycles), log_y=True,
                    y_label=f"cycles{of}", **scale),
        plots.lines("Lines that change owner", moves, log_y=True, y_label="transfers and invalidations an operation", **scale),
    ]


def settings_lines(rows) -> list[str]:
    """What each allocator was told of the machine, at its largest."""
    lines = []
    for name in dict.fromkeys(row.allocator for row in rows):
        most = max((row for row in rows if row.allocator == name), key=lambda row: row.cores)
        lines.append(f"{name}: " + (f"{most.settings} (at {most.cores} cores)" if most.settings
                                    else manycore.NO_SETTING.get(name, "no setting given")))
    return lines


# ---- tables ----

HEADINGS = ("allocator", "cycles/op", "speed-up", "moves/op", "in allocator", "faults/op", "calls/op", "shootdowns",
            "dearest places in the allocator and below (share of the cycles of all cores)")


def table(rows, workload, cores) -> list[list[str]]:
    """One line an allocator at one number of cores, the quickest first."""
    speed = speed_up(rows, workload)
    found, failed = [], []
    for row in rows:
        if row.workload != workload or row.cores != cores:
            continue
        if row.status != OK:
            failed.append([row.allocator, *["-"] * (len(HEADINGS) - 2), f"{row.status}: {row.problem}"])
            continue
        of_all = row.core_cycles * row.operations
        places = "; ".join(f"{name} {cycles / of_all:.0%}" for name, _, cycles in worst_places(row)[:PLACES]
                           if cycles >= 0.01 * of_all)
        if manycore.WORKLOADS[workload].in_allocator:
            places = "; ".join(name for name, _, _ in worst_places(row)[:PLACES])
        extra = calls(row)
        found.append((row.core_cycles, [
            row.allocator, units.number(round(row.core_cycles, 1)), units.ratio(dict(speed[row.allocator])[cores]),
            units.number(row.moves), units.number(row.each("allocator_moves")), units.number(row.each("faults")),
            units.number(row.each("syscalls")), units.number(max(0, row.shootdowns)), places + (f" [{extra}]" if extra else ""),
        ]))
    return [line for _, line in sorted(found, key=lambda item: item[0])] + failed


def print_tables(rows, console):
    from rich import box
    from rich.table import Table

    for workload in dict.fromkeys(row.workload for row in rows):
        cores = max(row.cores for row in rows if row.workload == workload)
        title = f"{manycore.WORKLOADS[workload].title}; {cores} cores"
        drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", title=title, title_justify="left", title_style="bold")
        for i, heading in enumerate(HEADINGS):
            drawn.add_column(heading, justify="left" if i in (0, len(HEADINGS) - 1) else "right", overflow="fold")
        for line in table(rows, workload, cores):
            drawn.add_row(*line)
        console.print(drawn)
        curves = Table(box=box.SIMPLE_HEAD, header_style="bold", title="Speed-up / lines that change owner an operation",
                       title_justify="left")
        speed, moves = speed_up(rows, workload), _curves(rows, workload, lambda row: row.moves)
        counts = sorted({n for points in speed.values() for n, _ in points})
        curves.add_column("cores")
        for n in counts:
            curves.add_column(str(n), justify="right")
        for name in speed:
            of, at = dict(speed[name]), dict(moves[name])
            curves.add_row(name, *(f"{units.ratio(of[n])} / {units.number(at[n])}" if n in of else "-" for n in counts))
        console.print(curves)
    print("Settings for the simulated machine (each is also told of so many CPUs by the system):")
    for line in settings_lines(rows):
        print(f"  {line}")
    print(ABOUT)


# ---- files ----


def as_json(rows) -> dict:
    points = []
    for row in rows:
        point = {name: getattr(row, name) for name in ("workload", "allocator", "cores", "settings", "status", "problem")}
        if row.status == OK:
            point |= {name: getattr(row, name) for name in manycore.DIFFERENCES}
            point |= {"core_cycles_per_operation": row.core_cycles, "moves_per_operation": row.moves,
                      "places": [{"place": name, "moves": moves, "cycles": cycles} for name, moves, cycles in worst_places(row)],
                      "calls": {_CALLS.get(k, k): n for k, n in row.calls.items()},
                      "lines": [{"place": place(line), "moves": line["moves"]} for line in row.lines]}
        points.append(point)
    speed = {workload: speed_up(rows, workload) for workload in dict.fromkeys(row.workload for row in rows)}
    return {"about": ABOUT, "settings": settings_lines(rows), "speed_up": speed, "points": points}


def fragment(rows, drawings) -> str:
    """A part for report.html: plain HTML and SVG, styled by the page that it is put into."""
    body = [f"<h2>Many cores</h2><p>{html.escape(ABOUT)}</p>"]
    for workload, drawing in drawings.items():
        cores = max(row.cores for row in rows if row.workload == workload)
        body.append(f"<h3>{html.escape(workload)}</h3><p class=\"note\">{html.escape(manycore.WORKLOADS[workload].title)}</p>")
        body.append(f"<figure>{plots.inline(drawing, f'Curves of {workload} from 1 to {cores} cores')}</figure>")
        head = "".join(f'<th class="{"left" if i in (0, len(HEADINGS) - 1) else ""}">{html.escape(text)}</th>'
                       for i, text in enumerate(HEADINGS))
        lines = "".join("<tr>" + "".join(
            f'<td{" class=" + chr(34) + "left wrap" + chr(34) if i == len(line) - 1 else ""}>{html.escape(text)}</td>'
            for i, text in enumerate(line)) + "</tr>" for line in table(rows, workload, cores))
        body.append(f'<p class="note">At {cores} cores:</p><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>')
    body.append("<h3>Settings</h3><ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in settings_lines(rows)) + "</ul>")
    body.append("<p class=\"note\">Command: <code>spanalloc bench manycore</code></p>")
    return "".join(body)


def write(folder, rows):
    """Prints the tables and writes manycore.json, the plots, and the part for the report."""
    from rich.console import Console

    rows = manycore.points(rows)
    order = list(manycore.ALLOCATORS)
    rows.sort(key=lambda row: (list(manycore.WORKLOADS).index(row.workload),
                               order.index(row.allocator) if row.allocator in order else len(order), row.cores))
    import sys

    print_tables(rows, Console() if sys.stdout.isatty() else Console(width=200, no_color=True, highlight=False))
    drawings = {}
    for workload in dict.fromkeys(row.workload for row in rows if row.status == OK):
        drawings[workload] = plots.figure(panels(rows, workload), title=f"{workload}, simulated", columns=3)
        plots.save(drawings[workload], os.path.join(folder, f"manycore-{workload}.png"))
    with open(os.path.join(folder, JSON), "w", encoding="utf-8") as file:
        json.dump(as_json(rows), file, indent=1)
        file.write("\n")
    with open(os.path.join(folder, HTML), "w", encoding="utf-8") as file:
        file.write(fragment(rows, drawings))
    print(f"Results: {folder}/{manycore.CSV}, {JSON}, manycore-*.png")
