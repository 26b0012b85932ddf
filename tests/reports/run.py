#!/usr/bin/env python3
"""The programs of this folder under each allocator: glibc, the peers of this machine, our libraries.

    tests/reports/run.py                     all, as a table on stdout
    tests/reports/run.py --only cross_pools  some
    tests/reports/run.py --record FILE       keeps what came out, as JSON
    tests/reports/run.py --write             puts the newest record of bench/results/reports into docs/reports.md

They are taken from the build folder (--build, default build/release). One after the other; nothing is timed.
"""

import argparse
import datetime
import glob
import json
import os
import platform
import re
import signal
import subprocess
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from spanalloc_cli import libraries  # noqa: E402

HANGS_AFTER = 40  # seconds: it may be a hang, or much more work
PEERS = ("jemalloc", "mimalloc", "tcmalloc")
DOCUMENT = os.path.join(SOURCE, "docs", "reports.md")
RECORDS = os.path.join(SOURCE, "bench", "results", "reports", "*.json")
BEGIN, END = "<!-- reports:begin -->\n", "<!-- reports:end -->"


def listed():
    """The lines of reports.txt, as dictionaries."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "reports.txt"), encoding="utf-8") as file:
        rows = [[part.strip() for part in line.split(" | ")] for line in file if re.match("[a-z]", line)]
    return [dict(zip(("program", "reports", "when", "kind", "traits"), row)) for row in rows]


def allocators(build):
    """[(name, library to preload or "")]: glibc first, ours last."""
    peers = libraries.packaged_allocators()
    places = libraries.Places(os.path.join(build, "lib"), os.path.join(build, "bin"))
    ours = libraries.our_configs(places)
    return [("glibc", "")] + [(name, peers[name]) for name in PEERS if name in peers] + \
        [(name, ours[name]) for name in libraries.SHIPPED_CONFIGS if name in ours]


def outcome(program, library):
    """(whether it ended well, what it said or how it ended)."""
    environment = dict(os.environ, LD_PRELOAD=library) if library else {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        run = subprocess.run([program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             timeout=HANGS_AFTER, check=False)
    except subprocess.TimeoutExpired:
        return False, f"not done in {HANGS_AFTER} s"
    if run.returncode < 0:
        return False, signal.Signals(-run.returncode).name
    return run.returncode == 0, run.stdout.strip().splitlines()[-1] if run.stdout.strip() else f"exit {run.returncode}"


def run_all(options):
    build = os.path.abspath(options.build)
    contenders = allocators(build)
    rows = {}
    for row in listed():
        name = row["program"]
        if options.only and name not in options.only:
            continue
        print(f"{name}: {row['kind']} ({row['reports']}, {row['when']})")
        rows[name] = {}
        for allocator, library in contenders:
            good, text = outcome(os.path.join(build, "tests", "reports", name), library)
            rows[name][allocator] = [good, text]
            print(f"  {allocator:<12} {'good ' if good else 'FAILS'} {text}", flush=True)
    return [name for name, _ in contenders], rows


def commit():
    run = subprocess.run(["git", "-C", SOURCE, "rev-parse", "--short=10", "HEAD"], stdout=subprocess.PIPE, text=True, check=False)
    return run.stdout.strip()


def links(reports):
    found = re.findall(r"([\w.-]+)/([\w.-]+) (\d+)", reports)
    return ", ".join(f"[{name} {number}](https://github.com/{owner}/{name}/issues/{number})" for owner, name, number in found)


def table(record):
    names = record["allocators"]
    lines = [f"{record['machine']}, {record['date']}, commit {record['commit']}.", "",
             "| report | when | kind, program | " + " | ".join(names) + " | outcome |",
             "|---|---|---|" + "---|" * len(names) + "---|"]
    for row in listed():
        outcomes = record["rows"].get(row["program"])
        if outcomes is None:
            continue
        cells = [text if good else f"**{text}**" for good, text in (outcomes[name] for name in names)]
        bad = [name for name in names if name in libraries.SHIPPED_CONFIGS and not outcomes[name][0]]
        result = "passes" if not bad else f"[{', '.join(bad)}](#{row['program'].replace('_', '')})"
        if "mended" in row["traits"].split():
            result = "mended" if not bad else f"mended in part: {result}"
        lines.append(f"| {links(row['reports'])} | {row['when']} | {row['kind']}: `{row['program']}` | "
                     + " | ".join(cells) + f" | {result} |")
    return "\n".join(lines) + "\n"


def write():
    with open(max(glob.glob(RECORDS)), encoding="utf-8") as file:
        record = json.load(file)
    with open(DOCUMENT, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(before + BEGIN + "\n" + table(record) + "\n" + END + rest.split(END)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="PROGRAM")
    parser.add_argument("--record", metavar="FILE")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        write()
        return
    names, rows = run_all(options)
    if options.record:
        machine = f"{os.cpu_count()} cores, Linux {platform.release()}, glibc {platform.libc_ver()[1]}"
        record = {"date": datetime.date.today().isoformat(), "commit": commit(), "machine": machine, "allocators": names, "rows": {}}
        if os.path.exists(options.record):
            with open(options.record, encoding="utf-8") as file:
                record["rows"] = json.load(file)["rows"]
        record["rows"].update(rows)
        with open(options.record, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
