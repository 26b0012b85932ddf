#!/usr/bin/env python3
"""The tables of papers/a2alloc/DESIGN.md: what the engine's parameters do, and what the report's future work gives.

Parameters: each row is the report's engine with K, F or the size of a superblock changed, in the traces of
papers/a2alloc/figures/steps.cpp, which says what the columns are. All but the times is exact; times are medians of rounds, each
of which begins with another row. Future work: from a folder that the figures a2alloc-future and a2alloc-future-counts
have been run into.

    papers/a2alloc/figures/tables.py                                print the parameters' tables, without times
    papers/a2alloc/figures/tables.py --rounds 7                     with times, on a quiet machine
    papers/a2alloc/figures/tables.py --results out/bench            also the table of the future work
    papers/a2alloc/figures/tables.py --results out/bench --write    put what would be printed into DESIGN.md
"""

import json
import os
import statistics
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path[:0] = [SOURCE, os.path.join(SOURCE, "bench")]

import common  # noqa: E402
from spanalloc_bench import documents  # noqa: E402
from papers.shared.figures import records  # noqa: E402

DESIGN = "papers/a2alloc/DESIGN.md"
SHIPPED, CLASSES = "a2alloc", "a2alloc-size-classes"
TRACES = ("larson", "churn", "requests", "loaded")
# What is varied, as (config, label); the chosen value is marked.
PARAMETERS = (
    ("K", (("k-0", "0"), ("k-2", "2"), ("k-4", "4"), (SHIPPED, "**8**"), ("k-16", "16"), ("k-32", "32"))),
    ("F", (("f-0", "0: none is evicted"), ("f-1", "1"), (SHIPPED, "**3**"), ("f-7", "7"), ("f-15", "15"),
           ("f-10000", "10000: all are"))),
    ("superblock", (("size-16k", "16 KiB"), ("size-32k", "32 KiB"), (SHIPPED, "**64 KiB**"), ("size-128k", "128 KiB"),
                    ("size-256k", "256 KiB"))),
    ("K with size classes", (("classes-k-8", "8"), ("classes-k-16", "16"), (CLASSES, "**32**"), ("classes-k-64", "64"))),
)
# (heading, trace, metric)
COUNTED = (
    ("free blocks looked at, larson", "larson", "blocks_looked_at"),
    ("superblocks, larson", "larson", "superblocks_looked_at"),
    ("carried / live, larson", "larson", "carried_over_live"),
    ("carried / live, churn", "churn", "carried_over_live"),
    ("fetched, requests", "requests", "fetched"),
    ("KiB kept, requests", "requests", "kept_kib"),
    ("fetched, loaded", "loaded", "fetched"),
    ("KiB kept, loaded", "loaded", "kept_kib"),
)
FUTURE, FUTURE_COUNTS = "a2alloc-future", "a2alloc-future-counts"
CONFIGS = ("a2alloc", "a2alloc-size-classes", "a2alloc-fullest-first", "a2alloc-shared-records",
           "a2alloc-classes", "kheap", "glibc")


def number(value):
    """Three digits, and no exponent."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:.4f}".rstrip("0").rstrip(".") if "e" in text else text


def table(headings, rows):
    lines = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# ---- the parameters ----


def record(program, config, trace):
    run = subprocess.run([program, "--config", config, "--trace", trace], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout)


def times(program, configs, rounds):
    """{(config, trace): median nanoseconds an operation}, the configs taking turns."""
    runs = {}
    for turn in range(rounds):
        for trace in TRACES:
            for place in range(len(configs)):
                config = configs[(place + turn) % len(configs)]
                found = record(program, config, trace)
                runs.setdefault((config, trace), []).append(found["elapsed_s"] / found["operations"] * 1e9)
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    return {key: statistics.median(values) for key, values in runs.items()}


def parameters(program, rounds):
    configs = list(dict.fromkeys(config for _, rows in PARAMETERS for config, _ in rows))
    counted = {(config, trace): record(program, config, trace)["metrics"] for config in configs for trace in TRACES}
    timed = times(program, configs, rounds)
    headings = [heading for heading, _, _ in COUNTED] + [f"ns, {trace}" for trace in TRACES if timed]
    found = []
    for name, rows in PARAMETERS:
        cells = [[label, *(number(counted[config, trace][metric]) for _, trace, metric in COUNTED),
                  *(number(timed[config, trace]) for trace in TRACES if timed)] for config, label in rows]
        found.append(table([name, *headings], cells))
    return "\n\n".join(found)


# ---- the future work ----


def numbers(outcome):
    """{(row, column): number}; of a row that ran twice, what ran in turn with the variants."""
    found = {}
    for entry in outcome["data"]:
        row, together, _ = entry["row"].partition(", in turn")
        place = entry.get("series", "")
        column = ", ".join(filter(None, (entry["measure"], entry.get("unit"), place)))
        if together or (row, column) not in found:
            found[row, column] = entry.get("median", entry.get("value"))
    return found


def future(folder):
    known_figures, found = records.of_folder(folder), []
    for name in (FUTURE_COUNTS, FUTURE):
        outcome = known_figures.get(name)
        if outcome is None:
            print(f"{folder} lacks a figure; run:  spanalloc bench figure {name} --out {folder}", file=sys.stderr)
            continue
        known = numbers(outcome)
        columns = list(dict.fromkeys(column for row, column in known if row in CONFIGS))
        rows = [[config, *(number(known[config, c]) if known.get((config, c)) is not None else "" for c in columns)]
                for config in CONFIGS]
        about = f"`spanalloc bench figure {name}`"
        if outcome["rounds"]:
            about += f", medians of {outcome['rounds']} rounds on {outcome['processor']}, {outcome['cores']} cores"
        found.append(f"{about}:\n\n" + table(["config", *columns], rows))
    return "\n\n".join(found)


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="also take times, N runs each (default: none)")
    parser.add_argument("--results", metavar="DIR", help="folder that the figures have been run into")
    parser.add_argument("--write", action="store_true", help="write into DESIGN.md instead of printing")
    options = parser.parse_args()
    parts = {"parameters": parameters(common.Build(options.build).program("a2alloc_steps"), options.rounds)}
    if options.results:
        parts["future"] = future(options.results)
    if not options.write:
        print("\n\n".join(parts.values()))
        return
    documents.write({(DESIGN, name): f"{content}\n\n" for name, content in parts.items()})
    print(f"wrote {DESIGN}")


if __name__ == "__main__":
    main()
