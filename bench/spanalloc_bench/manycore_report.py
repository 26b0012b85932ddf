"""What `spanalloc bench manycore` shows: tables on the screen, plots, JSON, and a part for the report of a run."""

from __future__ import annotations

import bisect
import functools
import os
import shutil
import subprocess

from markupsafe import Markup

from spanalloc_bench import manycore_rows, packed, pages, plots, screen, simulator, tables, units, words
from spanalloc_bench.manycore_workloads import ALLOCATORS, NO_SETTING, WORKLOADS
from spanalloc_bench.model import OK

JSON, HTML = "manycore.json", "manycore.html"
PLACES = 3  # worst places named for an allocator
_CALLS = {"9": "mmap", "10": "mprotect", "11": "munmap", "12": "brk", "24": "sched_yield", "28": "madvise",
          "35": "nanosleep", "56": "clone", "202": "futex", "228": "clock_gettime", "230": "clock_nanosleep"}
BASE = "glibc"  # with the fewest cores of a workload: what all curves are relative to, as in scalloc 7.2
ABOVE_IDEAL = 1.02
ABOUT = (
    "Simulated: every thread has a core of its own with 512 KiB of cache, and a new one waits while all cores are "
    "busy. Lines that move from core to core take 120 cycles each and one after the other. Counts are those of the "
    "program as it ran, nearly the same in every run; a run that did not keep the simulated order counts as failed. "
    "The cycles are those of a model that leaves much out (docs/manycore.md): they say what grows with the cores, not "
    "how many nanoseconds a call takes. \"In allocator\" are moves by the allocator's own instructions, not known of "
    "the C library's malloc, whose file holds its locks and threads as well."
)
ABOVE = (
    "* above the ideal: its throughput grows by more than its cores do. Then its run with the fewest cores is slow for "
    "what it does, and the other column is the one to compare."
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
                fields = line.split(maxsplit=3)
                if len(fields) == 4 and fields[2] != "a":
                    try:
                        table[int(fields[0], 16)] = (int(fields[1], 16), fields[3])
                    except ValueError:
                        continue
    addresses = sorted(table)
    return addresses, [table[address] for address in addresses]


def place(site) -> str:
    """"libspanalloc.so.0.2.0: spanalloc::SpinLock::lock()" of a site or a line of the plugin's result."""
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
    own = WORKLOADS[row.workload].argv(2, 1)[0] if row.workload in WORKLOADS else ""
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


def _count(cores) -> str:
    return f"{cores} core" + "s" * (cores != 1)


def over_base(rows, workload) -> dict[str, list[tuple[int, float]]]:
    """Throughput relative to one and the same run, BASE with the workload's fewest cores; empty without that run."""
    curves = _curves(rows, workload, lambda row: row.throughput)
    base = dict(curves.get(BASE, ())).get(WORKLOADS[workload].least)
    return {name: [(n, value / base) for n, value in points] for name, points in curves.items()} if base else {}


def speed_up(rows, workload) -> dict[str, list[tuple[int, float]]]:
    """Throughput relative to the allocator's own with the workload's fewest cores; nothing of an allocator without that
    run. It hides how quick this one is, so it is shown beside over_base."""
    curves = _curves(rows, workload, lambda row: row.throughput)
    least = WORKLOADS[workload].least
    return {name: [(n, value / dict(points)[least]) for n, value in points] for name, points in curves.items()
            if least in dict(points)}


def above_ideal(rows, workload) -> list[tuple[str, int, float]]:
    """(allocator, cores, speed-up) of the points that gain more than the cores they have more."""
    least = WORKLOADS[workload].least
    return [(name, n, value) for name, points in speed_up(rows, workload).items() for n, value in points
            if value > ABOVE_IDEAL * n / least]


def panels(rows, workload):
    judged = WORKLOADS[workload]
    of = " in malloc, free, first writes" if judged.in_allocator else ""
    moves = {name: [(n, max(value, 1e-4)) for n, value in points]
             for name, points in _curves(rows, workload, lambda row: row.moves).items()}
    cycles = _curves(rows, workload, lambda row: row.core_cycles)
    over, own = over_base(rows, workload), speed_up(rows, workload)
    ideal = sorted({(n, n / judged.least) for points in own.values() for n, _ in points})
    scale = {"x_label": "cores", "log_x": True, "log_y": True}
    fewest = _count(judged.least)
    found = []
    if over:
        found.append(plots.lines("Throughput", over, y_label=f"times {BASE}'s with {fewest}{of}", **scale))
    if own:
        found.append(plots.lines("Speed-up", own, y_label=f"times its own with {fewest}{of}", floor=ideal,
                                 floor_label="ideal", **scale))
    return found + [
        plots.lines("Cycles of a core for an operation", cycles, y_label=f"cycles{of}", **scale),
        plots.lines("Lines that change owner", moves, y_label="transfers and invalidations an operation", **scale),
    ]


def settings_lines(rows) -> list[str]:
    """What each allocator was told of the machine, at its largest."""
    lines = []
    for name in dict.fromkeys(row.allocator for row in rows):
        most = max((row for row in rows if row.allocator == name), key=lambda row: row.cores)
        lines.append(f"{name}: " + (f"{most.settings} (at {most.cores} cores)" if most.settings
                                    else NO_SETTING.get(name, "no setting given")))
    return lines


# ---- tables ----


PLACE_HEADING = "dearest places in the allocator and below (share of the cycles of all cores)"
LEFT = ("allocator", PLACE_HEADING)  # these columns' texts; the others are numbers


def headings(workload) -> tuple[str, ...]:
    fewest = _count(WORKLOADS[workload].least)
    return ("allocator", "cycles/op", f"over {BASE}, {fewest}", f"over itself, {fewest}", "ran at a time", "moves/op",
            "in allocator", "faults/op", "calls/op", "shootdowns", PLACE_HEADING)


def most_cores(rows, workload) -> int:
    return max(row.cores for row in rows if row.workload == workload)


def _speeds(rows, workload):
    """Texts of the two relative throughputs by (allocator, cores); what is above the ideal has a star."""
    above = {(name, n) for name, n, _ in above_ideal(rows, workload)}
    over = {(name, n): units.ratio(v) for name, points in over_base(rows, workload).items() for n, v in points}
    own = {(name, n): units.ratio(v) + "*" * ((name, n) in above)
           for name, points in speed_up(rows, workload).items() for n, v in points}
    return over, own


def table(rows, workload, cores) -> list[list[str]]:
    """One line an allocator at one number of cores, the quickest first."""
    over, own = _speeds(rows, workload)
    found, failed = [], []
    for row in rows:
        if row.workload != workload or row.cores != cores:
            continue
        if row.status != OK:
            failed.append([row.allocator, *["-"] * (len(headings(workload)) - 2), f"{row.status}: {row.problem}"])
            continue
        of_all = row.core_cycles * row.operations
        places = "; ".join(f"{name} {cycles / of_all:.0%}" for name, _, cycles in worst_places(row)[:PLACES]
                           if cycles >= 0.01 * of_all)
        if WORKLOADS[workload].in_allocator:
            places = "; ".join(name for name, _, _ in worst_places(row)[:PLACES])
        extra, key = calls(row), (row.allocator, cores)
        found.append((row.core_cycles, [
            row.allocator, units.number(round(row.core_cycles, 1)), over.get(key, "-"), own.get(key, "-"),
            units.number(row.running), units.number(row.moves), units.number(row.each("allocator_moves")),
            units.number(row.each("faults")), units.number(row.each("syscalls")), units.number(max(0, row.shootdowns)),
            places + (f" [{extra}]" if extra else ""),
        ]))
    return [line for _, line in sorted(found, key=lambda item: item[0])] + failed


def notes(rows, workload) -> list[str]:
    """What a reader of a workload's curves must know: points that are none, points above the ideal, threads that ran
    beyond the cores."""
    of = [row for row in rows if row.workload == workload]
    lines = [f"No point: {row.allocator}, {_count(row.cores)}: {row.status}: {row.problem}" for row in of
             if row.status != OK]
    if above_ideal(rows, workload):
        lines.append(ABOVE)
    beyond = [f"{row.allocator} {row.running} of {row.cores}" for row in of
              if row.status == OK and row.running > row.cores + 1]  # the main thread sleeps nearly all the time
    if beyond:
        lines.append("For a while more threads ran than the machine has cores, as threads that wake up do not wait for "
                     f"one: {', '.join(beyond)}")
    return lines


def print_tables(rows):
    console = screen.console(200)
    for workload in dict.fromkeys(row.workload for row in rows):
        cores, texts = most_cores(rows, workload), headings(workload)
        console.print(screen.table(
            texts, table(rows, workload, cores), f"{WORKLOADS[workload].title}; {_count(cores)}",
            left=[place for place, text in enumerate(texts) if text in LEFT]))
        over, own = _speeds(rows, workload)
        moves = _curves(rows, workload, lambda row: row.moves)
        counts = sorted({n for points in moves.values() for n, _ in points})
        lines = [[name, *(" / ".join([over.get((name, n), "-"), own.get((name, n), "-"), units.number(dict(points)[n])])
                          if n in dict(points) else "-" for n in counts)] for name, points in moves.items()]
        console.print(screen.table(
            ["cores", *map(str, counts)], lines, f"Throughput over {BASE}'s / over its own with "
            f"{_count(WORKLOADS[workload].least)} / lines that change owner an operation", left=[0]))
        for line in notes(rows, workload):
            print(line)
    print("Settings for the simulated machine (each is also told of so many CPUs by the system):")
    for line in settings_lines(rows):
        print(f"  {line}")
    print(ABOUT)


# ---- files ----


def origin(meta) -> list[str]:
    """Commit, machine and versions, as the folder has them."""
    if not meta:
        return ["not known: the folder has no " + manycore_rows.META]
    commits = dict.fromkeys(words.commit(run) or "no commit" for run in meta["runs"])
    machine = meta["machine"]
    lines = [
        "commit " + ", ".join(commits),
        f"simulated by {meta['qemu'] or simulator.QEMU} on {machine['processor']}, {machine['system']}, Linux "
        f"{machine['kernel']}, {machine['libc']}",
    ]
    return lines + [f"{facts['name']}: {facts['version'] or facts['path']}, sha256 {facts['sha256'][:12]}"
                    for facts in meta["allocators"]]


def as_json(rows, meta) -> dict:
    points = []
    for row in rows:
        point = {name: getattr(row, name) for name in ("workload", "allocator", "cores", "cores_used", "running",
                                                      "expired_waits", "settings", "status", "problem")}
        if row.status == OK:
            point |= {name: getattr(row, name) for name in manycore_rows.DIFFERENCES}
            point |= {"core_cycles_per_operation": row.core_cycles, "moves_per_operation": row.moves,
                      "places": [{"place": name, "moves": moves, "cycles": cycles}
                                 for name, moves, cycles in worst_places(row)],
                      "calls": {_CALLS.get(k, k): n for k, n in row.calls.items()},
                      "lines": [{"place": place(line), "moves": line["moves"]} for line in row.lines]}
        points.append(point)
    workloads = dict.fromkeys(row.workload for row in rows)
    return {
        "about": ABOUT, "meta": meta, "settings": settings_lines(rows),
        "base": {workload: f"{BASE} with {_count(WORKLOADS[workload].least)}" for workload in workloads},
        "over_base": {workload: over_base(rows, workload) for workload in workloads},
        "speed_up": {workload: speed_up(rows, workload) for workload in workloads},
        "above_ideal": {workload: above_ideal(rows, workload) for workload in workloads},
        "notes": {workload: notes(rows, workload) for workload in workloads}, "points": points,
    }


def fragment(rows, drawings, meta) -> str:
    """A part for report.html, styled by the page that it is put into."""
    parts = []
    for workload in dict.fromkeys(row.workload for row in rows):
        cores, drawing = most_cores(rows, workload), drawings.get(workload)
        columns = [tables.Column(text, left=text in LEFT) for text in headings(workload)]
        parts.append({
            "name": workload, "title": WORKLOADS[workload].title, "cores": _count(cores),
            "notes": notes(rows, workload),
            "picture": drawing and Markup(plots.inline(drawing, f"Curves of {workload}, up to {_count(cores)}")),
            "table": tables.Table("", columns, [list(map(tables.Cell, line)) for line in table(rows, workload, cores)]),
        })
    return pages.TEMPLATES.get_template("manycore.html").render(
        about=ABOUT, parts=parts, lists=(("Settings", settings_lines(rows)), ("Made with", origin(meta))))


def write(folder, rows, meta):
    """Prints the tables and writes manycore.json, the plots, and the part for the report."""
    rows, order = manycore_rows.points(rows), list(ALLOCATORS)
    rows.sort(key=lambda row: (list(WORKLOADS).index(row.workload),
                               order.index(row.allocator) if row.allocator in order else len(order), row.cores))
    print_tables(rows)
    drawings = {}
    for workload in dict.fromkeys(row.workload for row in rows if row.status == OK):
        drawings[workload] = plots.figure(panels(rows, workload), title=f"{workload}, simulated", columns=2)
        plots.save(drawings[workload], os.path.join(folder, f"manycore-{workload}.png"))
    packed.write_record(folder, JSON, as_json(rows, meta))
    packed.replace(os.path.join(folder, HTML), fragment(rows, drawings, meta).encode())
    print(f"Results: {packed.path(folder, manycore_rows.CSV) or folder}, {JSON}, manycore-*.png")
