#!/usr/bin/env python3
"""Writes the table of all cases, before and after, and the best of the others, into docs/tuning.md, from a run of the
suite in which an older build took part:

    spanalloc bench run -w before=/tmp/before/libspanalloc.so --out DIR
    bench/before_after.py DIR                   rewrites docs/tuning.md
    bench/before_after.py DIR --place shapes    the table of that name there
    bench/before_after.py DIR --print           prints instead
"""

import sys

import common
from spanalloc_bench import analyse, documents, readme, units, words
from spanalloc_bench.analyse import MEMORY
from spanalloc_bench.model import Kind

MINE, BEFORE = "standard", "before"  # contenders; the older build takes part by --with before=PATH


def cells(found, case, measure, before):
    def told(value):
        return units.kib(value) if measure == MEMORY else units.measured(value, found.cases[case].metric)

    best = found.best_other(case, MINE, measure, without=before)
    after = found.median(case, MINE, measure)
    ratio = found.relative(case, after, best[1], measure) if best else None
    told_after = told(after) if ratio is None or ratio > 1 else f"**{told(after)}**"
    return [told(found.median(case, before, measure)), told_after, f"{told(best[1])} {best[0]}" if best else "-"]


def table(folder, before=BEFORE):
    """A row a case of the suite in which ours ran. In bold: as good as the best of the others, or better."""
    found = analyse.load(folder)
    for name in (MINE, before):
        if name not in found.allocators or found.allocators[name].kind is Kind.BASELINE:
            sys.exit(f"{folder}: no samples of {name}")
    rows = [[readme.case_title(found, case), *cells(found, case, found.cases[case].judged_by, before),
             *cells(found, case, MEMORY, before)] for case in found.run_by(MINE)]
    return "\n".join([
        f"{', '.join(words.overview(found))}. Medians; lower is better but where a case counts something good. In "
        "bold: as good as the best other allocator, or better. Cases that are judged by another number than time have it, "
        "named, in the place of time.", "",
        *documents.table(["case", "before", "after", "best other", "memory before", "after", "best other"], rows), ""])


def main():
    parser = common.parser(__doc__, builds=False)
    parser.add_argument("results", metavar="DIR", help="the run's folder")
    parser.add_argument("--before", default=BEFORE, metavar="NAME", help="what --with called the older build")
    parser.add_argument("--place", default="cases", metavar="NAME", help="between which markers (default: cases)")
    parser.add_argument("--print", action="store_true", dest="only_print", help="print, leave docs/tuning.md alone")
    options = parser.parse_args()
    text = table(options.results, options.before)
    if options.only_print:
        print(text, end="")
    else:
        documents.write({("docs/tuning.md", options.place): text + "\n"})


if __name__ == "__main__":
    main()
