#!/usr/bin/env python3
"""Runs the quick suite once under few contenders and checks that it comes to its end and that what it writes can be read.

How fast anything was is not looked at: test machines are shared. Each case is a check; a case whose program is not
installed is a skip. The last line is "N passed, N failed, N skipped".

    tests/bench/smoke.py BUILD_FOLDER
"""

import html.parser
import json
import os
import shutil
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from common import Checks  # noqa: E402
from spanalloc_bench import store  # noqa: E402
from spanalloc_bench.allocators import page_managers  # noqa: E402
from spanalloc_bench.cases import catalogue  # noqa: E402
from spanalloc_bench.model import OK, UNAVAILABLE, Family  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

CONTENDERS = ("standard", "scalloc", "glibc")
TIME_LIMIT_S = 600  # for hangs


class Links(html.parser.HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self):
        super().__init__()
        self.loaded = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "srcset") or (name == "href" and tag == "link"):
                if value and not value.startswith(("data:", "#")):
                    self.loaded.append(value)


def bench(command, *arguments):
    print("+ spanalloc bench", *arguments, flush=True)
    return subprocess.run([command, "bench", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, check=False, timeout=TIME_LIMIT_S)


def check_rows(checks, folder, managers):
    """Every quick case has a good row under each of its contenders, but for those that say that it is no question for
    them while others answer it."""
    rows = {}
    for sample in store.samples(folder):
        rows.setdefault(sample.case, {})[sample.allocator] = sample
    for case in catalogue():
        if not case.quick:
            continue
        wanted = [name for name in (managers if case.family is Family.PAGES else CONTENDERS)
                  if not case.allocators or name in case.allocators]
        found = rows.get(case.id, {})
        rows_of_it = [found[name] for name in wanted if name in found]
        good = [s for s in rows_of_it if s.status == OK]
        bad = [s for s in rows_of_it if s.status not in (OK, UNAVAILABLE)]
        troubles = [f"no row of {name}" for name in wanted if name not in found]
        if not troubles and not good and not bad:
            checks.skip(f"{case.id}: {rows_of_it[0].problem}")
            continue
        troubles += [f"{s.allocator} {s.status}: {s.problem}" for s in bad]
        troubles += [f"no {case.metric} of {s.allocator}" for s in good if s.value(case.metric) is None]
        checks.check(bool(wanted) and not troubles, f"{case.id}" + "".join(f"; {text}" for text in troubles))


def check_outputs(checks, command, folder, run, names):
    for name in CONTENDERS:
        checks.check(name in run.stdout, f"the summary names {name}")
    with open(os.path.join(folder, store.META), encoding="utf-8") as file:
        meta = json.load(file)
    ours = {facts["name"]: facts for facts in meta["allocators"]}
    checks.check(all(ours[name]["sha256"] for name in CONTENDERS), "meta.json says which libraries")
    verified = meta["verified"]
    checks.check(all(verified.get(name) and set(verified[name].values()) == {ours[name]["path"]} for name in CONTENDERS),
                 "meta.json says whose malloc was seen in use")
    page = Links()
    with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
        text = file.read()
    page.feed(text)
    checks.check(len(text) > 10_000 and not page.loaded, f"report.html is self-contained {page.loaded[:3]}")
    pictures = [name for name in os.listdir(folder) if name.endswith(".png")]
    heads = set()
    for name in pictures:
        with open(os.path.join(folder, name), "rb") as file:
            heads.add(file.read(8))
    checks.check(heads == {b"\x89PNG\r\n\x1a\n"}, f"{len(pictures)} PNGs")
    with open(os.path.join(folder, store.SAMPLES), "rb") as file:
        before = file.read()
    again = bench(command, "run", "--quick", "--rounds", "1", "--allocators", names, "--out", folder)
    with open(os.path.join(folder, store.SAMPLES), "rb") as file:
        after = file.read()
    checks.check(again.returncode == 0 and after == before, "the same command measures nothing twice")


def main():
    build = os.path.abspath(sys.argv[1])
    command = os.path.join(build, "bin", "spanalloc")
    places = libraries.Places(os.path.join(build, "lib"), os.path.join(build, "bin"))
    managers = [manager.name for manager in page_managers(places) if not manager.missing]
    names = ",".join([*CONTENDERS, *managers])
    folder = tempfile.mkdtemp(prefix="spanalloc-smoke-")
    checks = Checks()
    try:
        run = bench(command, "run", "--quick", "--rounds", "1", "--allocators", names, "--out", folder)
        checks.check(run.returncode == 0, f"bench run --quick ends with exit code {run.returncode}")
        check_rows(checks, folder, managers)
        check_outputs(checks, command, folder, run, names)
        listed = bench(command, "figure", "list")
        checks.check(listed.returncode == 0 and "scalloc-6a" in listed.stdout, "bench figure list")
        papers = bench(command, "papers", "--results", folder)
        checks.check(papers.returncode == 0 and "scalloc-6a" in papers.stdout, "bench papers")
        figure = bench(command, "figure", "supermalloc-1", "--out", folder)
        checks.check(figure.returncode == 0, "bench figure supermalloc-1, which runs nothing")
    finally:
        shutil.rmtree(folder)
    checks.finish()


if __name__ == "__main__":
    main()
