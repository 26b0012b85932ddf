#!/usr/bin/env python3
"""Writes the figures that README.md quotes between its markers: measures some, takes the suite's from bench/results.

Run it on a quiet machine after `scripts/try --build-only`; measuring takes a few minutes.

    bench/readme_figures.py            measures and rewrites README.md
    bench/readme_figures.py --suite    measures nothing: only the table of the newest run in bench/results
    bench/readme_figures.py --print    prints instead of rewriting
"""

import argparse
import os
import platform
import re
import subprocess
import sys

import common
from spanalloc_bench import machine, readme

FIGURES, SUITE = "figures", "bench"  # the names in README.md's markers
RUNS = 9
HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(HERE, "results")


def output_of(*command):
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True,
        env=dict(os.environ, NO_COLOR="1", COLUMNS="110", TERM="dumb"),
    )
    return "\n".join(line.rstrip() for line in run.stdout.strip("\n").splitlines())


def quoted(table):
    """Without the variants that a build for the papers' figures has besides."""
    return "\n".join(line for line in table.splitlines()
                     if not re.match(r"spanalloc (scalloc|a2alloc)-", line))


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        match = re.search(r"model name\s*: (.*)", file.read())
    return match.group(1) if match else platform.machine()


def block(title, text):
    return f"{title}\n\n```\n{text}\n```\n\n"


def suite():
    """The table of the newest run that is committed; None where there is none."""
    run = readme.newest(RESULTS)
    if run is None:
        return None
    where = os.path.relpath(run, common.SOURCE)
    return f"{readme.readme_table(run)}\nAll of it: [{where}/report.html]({where}/report.html).\n\n"


def measured(options):
    """What this machine says now."""
    where = f"{processor()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
    commit = machine.git_commit(common.SOURCE).get("commit", "")[:10]
    text = f"Measured on {where}, by `bench/readme_figures.py`" + (f", commit {commit}" if commit else "") + ".\n\n"
    text += block(
        "Instructions for 100 × `malloc`, one write each, 100 × `free`, loop and the calls' jumps into the library included "
        "(counted by valgrind's callgrind, exact; snmalloc's in an emulator, and Google's tcmalloc without the "
        "restartable sequences that it is made for, which valgrind lacks):",
        quoted(output_of(sys.executable, os.path.join(HERE, "instruction_count.py"), "--build", options.build)),
    )
    text += block(
        "What a program that does nothing takes:",
        quoted(output_of(sys.executable, os.path.join(HERE, "startup_memory.py"), "--build", options.build)),
    )
    python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    text += block(
        "CPython parsing and compiling a part of its own library, every object through `malloc` (what `scripts/try` runs):",
        output_of(
            os.path.join(options.build, "bin", "spanalloc"), "compare", "-n", str(RUNS), "--",
            "env", "PYTHONMALLOC=malloc", "PYTHONHASHSEED=0", python, "-S",
            os.path.join(HERE, "workloads", "parse_library.py"),
        ),
    )
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_build_option(parser)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave README.md alone")
    parser.add_argument("--suite", action="store_true", help="measure nothing, take only the suite's newest results")
    options = parser.parse_args()
    parts = {SUITE: suite()}
    if parts[SUITE] is None:
        if options.suite:
            sys.exit(f"there is no run of the suite in {RESULTS}")
        del parts[SUITE]
    if not options.suite:
        parts[FIGURES] = measured(options)
    if options.only_print:
        print("\n".join(parts.values()))
        return
    path = os.path.join(common.SOURCE, "README.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for name, content in parts.items():
        text = readme.between_markers(text, name, content)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
