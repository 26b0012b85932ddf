#!/usr/bin/env python3
"""Writes the table of all cases, before and after, into docs/tuning.md, from a run of the suite in which an older build
took part:

    spanalloc bench run -w before=/tmp/before/libspanalloc.so --out DIR
    bench/before_after.py DIR            rewrites docs/tuning.md
    bench/before_after.py DIR --print    prints instead
    bench/before_after.py DIR --section cliffs   the same of a run of the shapes in that section of the page
"""

import argparse
import os

import common
from spanalloc_bench import before_after, readme


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", metavar="DIR", help="the run's folder")
    parser.add_argument("--before", default=before_after.BEFORE, metavar="NAME", help="what --with called the older build")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave docs/tuning.md alone")
    parser.add_argument("--section", default="cases", choices=("cases", "cliffs"),
                        help="which table of docs/tuning.md (default: cases, all of the suite)")
    options = parser.parse_args()
    table = before_after.table(options.results, options.before)
    if options.only_print:
        print(table, end="")
        return
    path = os.path.join(common.SOURCE, "docs", "tuning.md")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(readme.between_markers(text, options.section, table + "\n", "docs/tuning.md"))


if __name__ == "__main__":
    main()
