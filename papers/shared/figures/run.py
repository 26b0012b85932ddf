"""Runs what a figure needs and has not got, judges its claims, and keeps the outcome as figures/ID.json and ID.png."""

from __future__ import annotations

import dataclasses
import json
import os

from spanalloc_bench import allocators, build, originals, schedule, store, tree
from spanalloc_bench import machine as machines
from papers.shared.figures import codesize, draw, simulated
from papers.shared.figures.data import Data
from papers.shared.figures.figure import FOLDER, Figure
from papers.shared.figures.records import VARIANTS, data_of, outcome
from spanalloc_bench.model import Allocator, Kind
from spanalloc_cli import libraries

ABSENT = "absent: not packaged; name one with --with {}=PATH"
NOT_FETCHED = "absent: not packaged; `spanalloc bench peers --originals` builds it"
# Seconds that every run, and that every program's first run under an allocator, takes besides.
START_S, ASK_S = 0.05, 0.1
# Peers of the papers that Debian does not package; where one is installed or given by --with, it takes its place.
UNPACKAGED = ("hoard", "llalloc", "streamflow", "supermalloc-original", "dlmalloc")


def cores() -> int:
    return len(os.sched_getaffinity(0))


# ---- contenders ----


def _named(places, name) -> Allocator:
    if name in UNPACKAGED and name not in {*libraries.packaged_allocators(), *_built()}:
        missing = NOT_FETCHED if name in originals.NAMES else ABSENT.format(name)
        return Allocator(name, "", Kind.PEER, missing=missing)
    return allocators.named(places, name)


def _built():
    return (entry["name"] for entry in libraries.built_peers())


def parts(places, figures) -> list[build.Part]:
    """What has to be built for the figures."""
    found = build.helpers(places)
    for figure in figures:
        found += build.of_contenders(places, [*figure.allocators, *figure.variants])
        found += build.of_cases(places, _cases(figure, cores()))
        found += [build.module(places, name.removesuffix(".so")) if name.endswith(".so") else build.program(places, name)
                  for name in figure.facts_programs]
    return found


def check(places, with_=(), nbbs=None):
    """BadChoice for a --with or --nbbs that cannot be taken, whether a figure has a use for it or not."""
    for text in with_:
        allocators.given(places, text)
    if nbbs is not None:
        allocators.page_managers(places, nbbs)


def useless(figure: Figure, with_=(), nbbs=None) -> list[str]:
    """What to say of the options that change nothing in this figure."""
    found = []
    if with_ and (figure.pages or figure.facts is codesize.supermalloc_modules):
        what = "its contenders are page managers" if figure.pages else "it counts lines of sources"
        found.append(f"--with has no use in {figure.id}: {what}")
    if nbbs is not None and allocators.NBBS not in figure.allocators:
        found.append(f"--nbbs has no use in {figure.id}: NBBS takes no part in it")
    return found


def contenders(places, figure: Figure, with_=(), nbbs=None) -> list[Allocator]:
    """The figure's allocators by name, and what the user names beside them."""
    if figure.pages:
        return [manager for manager in allocators.page_managers(places, nbbs) if manager.name in figure.allocators]
    found = {name: _named(places, name) for name in figure.allocators}
    for text in with_:
        taken = [name for name, allocator in found.items() if not allocator.missing]
        given = allocators.given(places, text, taken)
        found[given.name] = given
    return list(found.values())


def _present(found):
    return [allocator for allocator in found if not allocator.missing]


def present_or_to_be_built(places, found):
    """What takes part once the command that runs the figure has built it."""
    return [allocator for allocator in found
            if not allocator.missing or build.of_contenders(places, [allocator.name])]


# ---- running ----


class Renewal:
    """With --again every cell is measured anew once, however many of the figures of one command share it."""

    def __init__(self, again: bool):
        self.again = again
        self._done = set()

    def split(self, folder, cases, row):
        """(cases to measure anew, the others)."""
        if not self.again:
            return [], cases
        key = lambda case: (folder, case.id, frozenset(a.name for a in row))  # noqa: E731
        anew = [case for case in cases if key(case) not in self._done]
        self._done |= {key(case) for case in anew}
        return anew, [case for case in cases if case not in anew]


def _run(places, cases, row, rounds, folder, say, renewal):
    row = _present(row)
    if not cases or not row or not rounds:
        return
    for part, again in zip(renewal.split(folder, cases, row), (True, False)):
        if part:
            schedule.run_cells(places, part, row, rounds, folder, say, again=again)


def company(places, figures, with_=(), nbbs=None, planned=False) -> dict[str, list[Allocator]]:
    """By case, all whom any of the figures compares in it: measured together, they can be compared in each of them.
    `planned`: also those that are to be built."""
    found: dict[str, dict[str, Allocator]] = {}
    for figure in figures:
        row = contenders(places, figure, with_, nbbs)
        row = present_or_to_be_built(places, row) if planned else _present(row)
        for case in _cases(figure, cores()):
            found.setdefault(case.id, {}).update({allocator.name: allocator for allocator in row})
    return {case: list(row.values()) for case, row in found.items()}


def _rows(cases, row, beside):
    """(cases, contenders) that run together: those of the figure, and whom others of the command compare there."""
    found = {}
    for case in cases:
        whole = {allocator.name: allocator for allocator in [*row, *beside.get(case.id, ())]}
        found.setdefault(tuple(whole), ([], list(whole.values())))[0].append(case)
    return found.values()


def _cases(figure, count):
    points = [point.case for point in figure.points(count)]
    extra = [row.case for row in figure.stand_ins(count)] if figure.stand_ins else []
    return list({case.id: case for case in [*points, *extra]}.values())


def counts(places, figure) -> tuple[int, int]:
    """How many contenders can be run here: those of the figure, and its variants."""
    main, variants = (len(present_or_to_be_built(places, row)) for row in
                      (contenders(places, figure), [_named(places, name) for name in figure.variants]))
    return main, variants if variants > 1 else 0


def estimate(figure: Figure, count, main: int, variants: int, seen: set | None = None, beside=None) -> float:
    """Minutes that the figure takes when nothing of it is there yet; `seen` holds the cases that earlier figures of the
    same command have run, which cost nothing again, `beside` the company of the command's figures."""
    seen, beside = set() if seen is None else seen, beside or {}
    runs, seconds = 0, 0.0
    for part, row in (("main", main), (VARIANTS, variants)):
        fresh = {(part, point.case.id) for point in figure.points(count)} - seen
        seen |= fresh
        runs += sum(max(row, len(beside.get(case, ()))) if part == "main" else row for part, case in fresh)
    seconds += runs * figure.seconds_a_run
    for row in figure.stand_ins(count) if figure.stand_ins else ():
        if ("main", row.case.id) not in seen:
            seen.add(("main", row.case.id))
            runs, seconds = runs + 1, seconds + row.seconds
    # Every allocator is first asked whose malloc it is.
    asked = ASK_S * (main + variants) if runs else 0
    return ((seconds + runs * START_S) * figure.rounds + asked + figure.facts_seconds) / 60


def measure(places, figure: Figure, rounds, folder, say, *, with_=(), nbbs=None, renewal=None, beside=None) -> Data:
    """Runs the missing cells and returns the figure's data. `beside`: the company of the command's figures."""
    renewal = renewal or Renewal(False)
    count = cores()
    row = contenders(places, figure, with_, nbbs)
    rounds = with_rounds(figure, rounds).rounds
    cases = _cases(figure, count)
    for some, whole in _rows(cases, row, beside or {}):
        _run(places, some, whole, rounds, folder, say, renewal)
    missing = {allocator.name: allocator.missing for allocator in row if allocator.missing}
    apart_folder = os.path.join(folder, VARIANTS)
    variants = [_named(places, name) for name in figure.variants]
    if variants:
        missing.update({allocator.name: allocator.missing for allocator in variants if allocator.missing})
        gone = [allocator.name for allocator in variants[1:] if allocator.missing]
        if gone:
            say(f"{', '.join(gone)}: not built, so the claims about them stay open")
        points = [point.case for point in figure.points(count)]
        if len(_present(variants)) > 1:
            _run(places, points, variants, rounds, apart_folder, say, renewal)
    facts = figure.facts(places, row) if figure.facts else {}
    given = [allocator.name for allocator in row if allocator.name not in figure.allocators]
    names = {allocator.name for allocator in (*row, *variants)}
    return data_of(figure, count, machines.describe(), missing, facts, given, store.samples(folder),
                   store.samples(apart_folder), simulated.lines(figure, [folder], names))


# ---- the outcome ----


def keep(data: Data, folder) -> dict:
    """Writes figures/ID.json and, where there is anything to draw, figures/ID.png; returns the record."""
    target = os.path.join(folder, FOLDER)
    os.makedirs(target, exist_ok=True)
    record = outcome(data)
    path = os.path.join(target, f"{record['id']}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(record, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.replace(path + ".new", path)
    picture = os.path.join(target, f"{record['id']}.png")
    if numbers_there(record):
        draw.png(data, picture)
    elif os.path.exists(picture):
        os.remove(picture)  # of an earlier run that had something to draw
    return record


def numbers_there(record) -> bool:
    return bool(record["data"])


def why_empty(data: Data) -> str:
    """Why the figure has no numbers: each reason once, with those that it is about."""
    reasons: dict[str, list[str]] = {}
    for name, why in {**data.missing, **data.failed()}.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())


def show(data: Data, record, console):
    figure = data.figure
    console.print(f"[bold]{figure.id}[/]  {figure.paper}, {figure.number}: {figure.title}")
    console.print(figure.shows, style="dim")
    for table in draw.tables(data):
        console.print(table)
    console.print(draw.claims_table(record))


def default_folder(out) -> str:
    return os.fspath(out) if out else tree.DEFAULT_OUT


def with_rounds(figure: Figure, rounds) -> Figure:
    """The figure at another number of rounds; one without runs stays without."""
    return figure if rounds is None or not figure.rounds else dataclasses.replace(figure, rounds=rounds)
