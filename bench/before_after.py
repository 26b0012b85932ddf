#!/usr/bin/env python3
"""Writes the table of all cases, before and after, into docs/tuning.md, from a run of the suite in which an older build
took part:

    spanalloc bench run -w before=/tmp/before/libspanalloc.so --out DIR
    bench/before_after.py DIR                   rewrites docs/tuning.md
    bench/before_after.py DIR --place shapes    the table of that name there
    bench/before_after.py DIR --print           prints instead
"""

import argparse
import os

import common
from spanalloc_bench import before_after, readme


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", metavar="DIR", help="the run's folder")
    parser.add_argument("--before", default=before_after.BEFORE, metavar="NAME", help="what --with called the older build")
    parser.add_argument("--place", default="cases", metavar="NAME", help="between which markers (default: cases)")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave docs/tuning.md alone")
    options = parser.parse_args()
    table = before_after.table(options.results, options.before)
    if options.only_print:
        print(table, end="")
        return
    path = os.path.join(common.SOURCE, "docs", "tuning.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(readme.between_markers(text, options.place, table + "\n", "docs/tuning.md"))


if __name__ == "__main__":
    main()
