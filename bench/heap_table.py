#!/usr/bin/env python3
"""What an arena a query costs: heaps that are made, serve some blocks and end with them (bench/workloads/heaps.cpp), of
spanalloc, of mimalloc, arenas of jemalloc, std::pmr::monotonic_buffer_resource, and malloc with a free for each block.

A table of nanoseconds a query and of the most memory, medians of processes in rotation. Each library is preloaded, so that
what its heaps are beside is its own malloc. Times are worth something on a machine that does nothing else.

    bench/heap_table.py                 prints it
    bench/heap_table.py --place heaps   writes it between the markers of that name in docs/tuning.md
"""

import json
import os
import statistics
import subprocess
import sys

import common
from spanalloc_bench import documents

# What a query is.
SHAPES = (
    {"blocks": 10}, {"blocks": 100}, {"blocks": 100, "freed": 50}, {"blocks": 100, "end": "reset"},
    {"blocks": 100, "threads": 2}, {"blocks": 100, "largest": 16384}, {"blocks": 1000, "freed": 30, "largest": 4096},
    {"blocks": 5000}, {"blocks": 50000, "freed": 20},
)
BLOCKS = 4_000_000  # of a process


def contenders(build):
    """[(name, kind, library)]; "" preloads nothing."""
    ours = dict((name, path) for name, path, mine in build.allocators() if mine)["standard"]
    rows = [("spanalloc", "spanalloc", ours)]
    for name, path in common.libraries.other_allocators().items():
        if name.startswith("mimalloc"):
            rows.append((name, "mimalloc", path))
        if name.startswith("jemalloc"):
            rows.append((f"{name}, arenas", "jemalloc", path))
    return rows + [("monotonic, on glibc", "monotonic", ""), ("monotonic, on spanalloc", "monotonic", ours),
                   ("malloc and free, glibc", "malloc", ""), ("malloc and free, spanalloc", "malloc", ours)]


def measured(build, shape, kind, library):
    """(nanoseconds a query, KiB at the peak); None: it has no such function."""
    queries = max(20, BLOCKS // shape["blocks"])
    if kind == "mimalloc" or kind == "jemalloc":
        queries = max(20, queries // 8)  # they take longer for a short query
    words = [word for name, value in {**shape, "kind": kind, "queries": queries}.items()
             for word in (f"--{name}", str(value))]
    command = [build.places.measure, "--interval", "10", "--share", "2"]
    if library:
        command += ["--preload", library]
    command += ["--", build.program("heaps"), *words]
    environment = dict(os.environ, **common.settings(library))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        return None
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.returncode} {done.stderr}")
    peak = json.loads(done.stderr.splitlines()[-1])["peak_kib"]
    return json.loads(done.stdout)["metrics"]["ns_a_query"], peak


def name_of(shape):
    parts = [f"{shape['blocks']:,} blocks of 16 to {shape.get('largest', 512):,} bytes"]
    if "freed" in shape:
        parts.append(f"{shape['freed']} % freed before")
    if "threads" in shape:
        parts.append(f"{shape['threads']} threads")
    if shape.get("end") == "reset":
        parts.append("one heap, emptied")
    return ", ".join(parts)


def table(read, names, rounds):
    lines = []
    for row, shape in enumerate(SHAPES):
        cells, times = [], {}
        for name in names:
            values = [each for each in read[row, name] if each is not None]
            if values:
                times[name] = (statistics.median(v[0] for v in values), statistics.median(v[1] for v in values))
        least = min(value[0] for value in times.values())
        for name in names:
            if name not in times:
                cells.append("none")
                continue
            time, peak = times[name]
            text = f"{time:,.0f}"
            cells.append((f"**{text}**" if time == least else text) + f"; {peak / 1024:.1f}")
        lines.append([name_of(shape), *cells])
    return "\n".join([
        "Nanoseconds a query, and MiB in memory at the peak; in bold what is least in its column's row of the times.",
        "",
        *documents.table(["a query", *names], lines, left=range(len(names) + 1)), "",
        f"Medians of {rounds} processes each, in rotation.\n"])


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="processes of each kind, in rotation (default: 6)")
    parser.add_argument("--place", metavar="NAME", help="between which markers of docs/tuning.md")
    options = parser.parse_args()
    build = common.Build(options.build)
    rows = contenders(build)
    read = {}
    for number in range(options.rounds):
        for row, shape in enumerate(SHAPES):
            for name, kind, library in rows:
                read.setdefault((row, name), []).append(measured(build, shape, kind, library))
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    text = table(read, [name for name, _, _ in rows], options.rounds)
    if options.place:
        documents.write({("docs/tuning.md", options.place): text + "\n"})
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
