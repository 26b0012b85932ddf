#!/usr/bin/env python3
"""Writes the figures that README.md and docs/results.md quote between their markers, and the picture that README.md shows:
measures some, takes the suite's from bench/results.

Run it on a quiet machine after `scripts/bench --build-only`, by build/venv/bin/python3, as the picture needs matplotlib;
measuring takes a few minutes.

    bench/readme_figures.py            measures, and rewrites the documents and the picture
    bench/readme_figures.py --suite    measures nothing: only what the newest run in bench/results says; what was measured
                                       stays
    bench/readme_figures.py --libraries DIR
                                       measures nothing: only the table of docs/results.md that sets our libraries side by
                                       side, of the run in DIR (spanalloc bench run --quick --allocators
                                       standard,scalloc,supermalloc,a2alloc,glibc,jemalloc,tbbmalloc --out DIR; kept below
                                       bench/results/libraries)
    bench/readme_figures.py --print    prints the texts instead of rewriting
"""

import importlib.util
import os
import platform
import re
import subprocess
import sys

import common
from spanalloc_bench import documents, machine, readme
from spanalloc_cli import libraries

FIGURES = "figures"  # the marker in docs/results.md of what is measured here
PICTURE = os.path.join(common.SOURCE, "docs", "standing.png")
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
    """Without what a build for the papers' figures has besides."""
    besides = {name for name, library in libraries.LIBRARIES.items() if not library.in_every_build}
    return "\n".join(line for line in table.splitlines()
                     if not (line.startswith("spanalloc ") and line.split()[1] in besides))


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        match = re.search(r"model name\s*: (.*)", file.read())
    return match.group(1) if match else platform.machine()


def block(title, text):
    return f"{title}\n\n```\n{text}\n```\n\n"


def draw(run):
    """Time and memory of all allocators over the suite, as README.md shows it: wide enough for a screen of many pixels."""
    from spanalloc_bench import analyse, drawings, plots

    plots.save(drawings.standing(analyse.load(run)), PICTURE, dpi=200)


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
    parser = common.parser(__doc__)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave documents and picture alone")
    parser.add_argument("--suite", action="store_true", help="measure nothing, take only the suite's newest results")
    parser.add_argument("--libraries", metavar="DIR", help="measure nothing, take only the libraries' table, from the run in DIR")
    options = parser.parse_args()
    if options.libraries:
        parts = readme.which_library(os.path.abspath(options.libraries), common.SOURCE)
        if options.only_print:
            print("\n".join(parts.values()))
        else:
            documents.write(parts)
        return
    if not options.only_print and importlib.util.find_spec("matplotlib") is None:
        sys.exit(f"the picture needs matplotlib, which {sys.executable} does not have: build/venv/bin/python3 does")
    run = readme.newest(RESULTS)
    if run is None:
        sys.exit(f"there is no run of the suite in {RESULTS}")
    parts = readme.quotes(run, common.SOURCE)
    if not options.suite:
        parts[readme.RESULTS, FIGURES] = measured(options)
    if options.only_print:
        print("\n".join(parts.values()))
        return
    documents.write(parts)
    draw(run)


if __name__ == "__main__":
    main()
