#!/usr/bin/env python3
"""Measures the figures that README.md quotes and writes them between its markers.

Run it on a quiet machine after `scripts/try --build-only`; it takes a few minutes.

    bench/readme_figures.py            measures and rewrites README.md
    bench/readme_figures.py --print    measures and prints
"""

import argparse
import os
import platform
import re
import subprocess
import sys

import common

BEGIN, END = "<!-- figures:begin -->\n", "<!-- figures:end -->"
RUNS = 9
HERE = os.path.dirname(os.path.abspath(__file__))


def output_of(*command):
    run = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True,
        env=dict(os.environ, NO_COLOR="1", COLUMNS="110", TERM="dumb"),
    )
    return "\n".join(line.rstrip() for line in run.stdout.strip("\n").splitlines())


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        match = re.search(r"model name\s*: (.*)", file.read())
    return match.group(1) if match else platform.machine()


def block(title, text):
    return f"{title}\n\n```\n{text}\n```\n\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_build_option(parser)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave README.md alone")
    options = parser.parse_args()
    machine = f"{processor()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
    text = f"Measured on {machine}, by `bench/readme_figures.py`.\n\n"
    text += block(
        "Instructions for 100 × `malloc`, one write each, 100 × `free`, loop and PLT included (callgrind, exact):",
        output_of(sys.executable, os.path.join(HERE, "instruction_count.py"), "--build", options.build),
    )
    text += block(
        "What a program that does nothing takes:",
        output_of(sys.executable, os.path.join(HERE, "startup_memory.py"), "--build", options.build),
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
    if options.only_print:
        print(text)
        return
    path = os.path.join(common.SOURCE, "README.md")
    with open(path, encoding="utf-8") as file:
        readme = file.read()
    head, rest = readme.split(BEGIN)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + BEGIN + "\n" + text + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
