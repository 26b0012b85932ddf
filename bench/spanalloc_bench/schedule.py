"""Which run comes when: rounds in balanced orders, resumed where an interruption left off, with an estimate of what is
left.

    for every round: for every case: every contender of the case, back to back, in the next of the case's orders

Contenders of a case run next to each other, so that what slows the machine down for a while slows all of them; rounds
lie far apart, so that it does not slow all of a case's samples. Comparisons are made within a round.

The orders of a case are a Williams design (balanced_orders): over all of them each contender stands at each place
equally often, and comes right after each other contender equally often. Orders that only rotate would balance the
places, but let each contender follow the same other one in nearly every round, and pay for what that leaves behind.
With fewer rounds than orders, which is usual, one case is balanced in part; as each case begins with another order, the
suite as a whole is balanced nearly.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import pathlib
import time

from spanalloc_bench import execute, machine, progress, store, tree
from spanalloc_bench.model import (
    HUNG, NOT_PRELOADED, OK, UNAVAILABLE, Allocator, Case, Family, Kind, Sample,
)

FORMAT = 1  # of meta.json


class Mixed(Exception):
    """The folder holds results of something else; the text names what differs and what to do."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run to be made."""

    round: int
    position: int
    case: Case
    allocator: Allocator


def contenders(case: Case, allocators) -> list[Allocator]:
    """Those of the allocators that a case is run under."""
    of_pages = case.family is Family.PAGES
    return [
        a for a in allocators
        if (a.kind is Kind.PAGES) == of_pages and (not case.allocators or a.name in case.allocators)
    ]


def balanced_orders(count) -> list[list[int]]:
    """Orders of 0 to count-1 in which each stands at each place equally often, and, of all pairs, each comes right
    after each other one equally often: a Williams design (E. J. Williams, "Experimental designs balanced for the
    estimation of residual effects of treatments", 1949). `count` orders for an even count, twice as many for an odd
    one. What a run leaves behind in the machine, say gigabytes that the kernel has just got back, then meets every
    contender alike."""
    zigzag = [0]
    for step in range(1, count):
        zigzag.append((zigzag[-1] + (step if step % 2 else -step)) % count)
    orders = [[(place + shift) % count for place in zigzag] for shift in range(count)]
    return orders if count % 2 == 0 else orders + [order[::-1] for order in orders]


def balanced_cells(cases, allocators, rounds) -> list[Cell]:
    """Every run in its order: another of the balanced orders in each round, and for each case another to begin with."""
    cells = []
    for round_ in range(1, rounds + 1):
        for number, case in enumerate(cases):
            row = contenders(case, allocators)
            orders = balanced_orders(len(row)) if row else [[]]
            for position, place in enumerate(orders[(round_ - 1 + number) % len(orders)], start=1):
                cells.append(Cell(round_, position, case, row[place]))
    return cells


# ---- what the results in a folder belong to ----
# Things are the same when their checksums are; paths, which another checkout or machine has elsewhere, only tell a reader.


def _sha256(path) -> str:
    """Of a file; empty where it cannot be read."""
    try:
        return tree.sha256(path)
    except OSError:
        return ""


def _programs(runner, cases) -> dict[str, str]:
    """{name: path} of the programs that the cases run: the workloads, and the real programs by their commands."""
    found = {}
    for case in cases:
        words = [case.argv[0]] if case.argv and case.family is not Family.DRIVER else []
        for word in [*words, *case.needs]:
            path = execute.find_program(runner.fill(word, Allocator("", "", Kind.PEER)))
            if path:
                found[os.path.basename(path)] = os.path.realpath(path)
    return found


def _case_facts(case: Case) -> dict:
    facts = dataclasses.asdict(case)
    for name in ("id", "prepare", "needs"):
        del facts[name]
    facts["family"] = case.family.value
    for name in ("parameters", "environment"):
        facts[name] = dict(facts[name])
    return facts


def _work_of(case: Case, runner) -> str:
    """A digest of what a case does besides the programs that it runs: its arguments, its settings, the scripts and inputs
    that they name, the code of its driver and of what makes its inputs. Titles, limits and metrics may change: they
    change no sample."""
    digest = hashlib.sha256()
    digest.update(repr((case.argv, case.environment, case.driver, case.prepare)).encode())
    for word in case.argv[1:]:
        for part in word.split():  # sqlite3's ".read FILE" is one word
            if part.startswith("{source}"):
                digest.update(_sha256(runner.fill(part, Allocator("", "", Kind.PEER))).encode())
    if case.driver or case.prepare:
        digest.update(_programs_code().encode())
    if case.family in (Family.WORKLOAD, Family.PAGES) and case.argv:
        # What a workload starts stands beside it.
        digest.update(_sha256(runner.fill(f"{case.argv[0]}_child", Allocator("", "", Kind.PEER))).encode())
    return digest.hexdigest()


def _programs_code() -> str:
    """A digest of the code that makes inputs and drives servers: any module of its package."""
    sources = sorted((pathlib.Path(__file__).parent / "programs").glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def _allocator_facts(allocator: Allocator, known: dict) -> dict:
    facts = {
        "name": allocator.name, "kind": allocator.kind.value, "path": tree.relative(allocator.path),
        "version": "", "sha256": "", "environment": dict(allocator.environment), "missing": allocator.missing,
    }
    if not allocator.missing and allocator.kind is not Kind.PAGES:
        facts["sha256"] = _sha256(allocator.path)
        same = known.get("sha256") == facts["sha256"]
        facts["version"] = known["version"] if same else machine.version_of(allocator)
    return facts


def _by_name(meta) -> dict[str, dict]:
    return {facts["name"]: facts for facts in meta.get("allocators", [])}


def _changed(old: dict, new: dict, results: store.Store) -> tuple[set[str], set[str], list[str]]:
    """(contenders, programs, machine's properties) of which the folder has results from another one."""
    with_samples = {sample.allocator for sample in results.samples()}
    known = _by_name(old)
    allocators = {
        name for name, facts in _by_name(new).items()
        if name in with_samples and not facts["missing"] and _differs(known.get(name), facts)
    }
    programs = {
        name for name, facts in new["programs"].items()
        if name in old["programs"] and old["programs"][name]["sha256"] != facts["sha256"]
    }
    properties = [
        name for name in machine.IDENTITY if with_samples and old["machine"].get(name) != new["machine"].get(name)
    ]
    return allocators, programs, properties


def _differs(old, new) -> bool:
    if old is None or old["missing"]:
        return False
    return any(old[key] != new[key] for key in ("sha256", "environment"))


def _uses(facts, program) -> bool:
    return program in facts.get("programs", ())


def _join(old, new):
    """meta.json of a folder that goes on: what earlier runs knew and this one does not name stays."""
    for part in ("programs", "cases", "verified"):
        new[part] = {**old[part], **new[part]}
    new["allocators"] = list({**_by_name(old), **_by_name(new)}.values())
    new["started"] = old["started"]
    new["rounds"] = max(old["rounds"], new["rounds"])
    new["runs"] = [*old["runs"], *new["runs"]]
    return new


def _describe(runner, cases, allocators, rounds, old) -> dict:
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    programs = _programs(runner, cases)
    old_programs = old.get("programs", {})
    facts = {}
    for name, path in programs.items():
        sha256 = _sha256(path)
        known = old_programs.get(name, {})
        version = known["version"] if known.get("sha256") == sha256 else machine.package_of(path)
        facts[name] = {"path": tree.relative(path), "sha256": sha256, "version": version}
    known = _by_name(old)
    described = {}
    for case in cases:
        described[case.id] = {
            **_case_facts(case), "programs": sorted(_programs(runner, [case])), "work": _work_of(case, runner),
        }
    source = machine.git_commit(tree.SOURCE)
    return {
        "format": FORMAT, "started": now, "rounds": rounds, "git": source,
        "machine": machine.describe(),
        "settings": {"sampling_interval_ms": execute.INTERVAL_MS, "sampling_share_percent": execute.SHARE_PERCENT},
        "allocators": [_allocator_facts(a, known.get(a.name, {})) for a in allocators],
        "programs": facts, "cases": described, "verified": {},
        "runs": [{"started": now, "rounds": rounds, "git": source, "load_at_start": round(machine.load(), 2),
                  "exits_are_seen": execute.exits_are_seen(runner.places)}],
    }


def _claim(results, runner, cases, allocators, rounds, again) -> dict:
    """The folder's meta.json for this run. Mixed when its results are of something else; with `again`, those and the
    results of the cells chosen are set aside first."""
    old = store.read_meta(results.folder)
    if old and old.get("format") != FORMAT:
        raise Mixed(f"{results.folder} was written by another version of the suite; choose another --out")
    if not old and results.samples():
        raise Mixed(f"{results.folder} has samples but no {store.META} that says of what; choose another --out")
    new = _describe(runner, cases, allocators, rounds, old)
    if not old:
        return new
    changed, programs, properties = _changed(old, new, results)
    # Only a program that a stored sample ran under makes a difference.
    sampled = {sample.case for sample in results.samples()}
    programs = {p for p in programs if any(_uses(old["cases"].get(case, {}), p) for case in sampled)}
    # A folder of an older version does not know what its cases did.
    other_work = {case for case in sampled & new["cases"].keys()
                  if old["cases"].get(case, {}).get("work", new["cases"][case]["work"]) != new["cases"][case]["work"]}
    if again:
        chosen, names = {case.id for case in cases}, {a.name for a in allocators}

        def stale(sample):
            facts = old["cases"].get(sample.case, {})
            return (bool(properties) or sample.allocator in changed or sample.case in other_work
                    or any(_uses(facts, p) for p in programs)
                    or sample.case in chosen and sample.allocator in names)

        results.set_aside(stale)
        return _join(old, new) if results.samples() else new
    differences = [f"allocator {name}" for name in sorted(changed)] + [f"program {name}" for name in sorted(programs)]
    differences += [f"case {case}" for case in sorted(other_work)]
    differences += [f"the machine's {name} ({old['machine'].get(name)}, now {new['machine'].get(name)})"
                    for name in properties]
    if differences:
        raise Mixed(
            f"{results.folder} holds results taken with another {differences[0]}"
            + (f" (and {', '.join(differences[1:])})" if differences[1:] else "")
            + ". They are not mixed: measure anew with --again (the old samples are set aside in "
            f"{store.SET_ASIDE}), or choose another folder with --out."
        )
    return _join(old, new)


# ---- inputs ----


def make_fixtures(places, cases, say) -> dict[str, str]:
    """Makes the inputs of the cases that are not there yet; returns {name: problem} of those that cannot be made."""
    folder = pathlib.Path(tree.fixtures(places))
    problems = {}
    for name in dict.fromkeys(name for case in cases for name in case.prepare):
        try:
            function = getattr(importlib.import_module("spanalloc_bench.programs.fixtures"), name)
            made_from = _programs_code()  # a fixture is made anew when the code that makes it has changed
            mark = folder / f".made-{name}"
            if mark.exists() and mark.read_text() == made_from:
                continue
            say(f"making the input {name}")
            folder.mkdir(parents=True, exist_ok=True)
            function(folder)
            mark.write_text(made_from)
        except Exception as error:  # whatever goes wrong there is the case's row, not the end of the run
            problems[name] = f"its input {name} could not be made: {error}"
    return problems


# ---- the run ----


def _to_do(cells, results):
    """The cells that have no result yet. What hung once is not waited for in every round; what cannot be run, or not under
    the contender, is stated once."""
    return [cell for cell in cells if not _settled(cell, results)]


def _settled(cell, results) -> bool:
    if results.has(cell.case.id, cell.allocator.name, cell.round):
        return True
    for round_ in range(1, cell.round):
        earlier = results.get(cell.case.id, cell.allocator.name, round_)
        if earlier is not None and earlier.status in (HUNG, NOT_PRELOADED, UNAVAILABLE):
            return True
    return False


def _append(results, sample):
    """Adds a sample, unless it only repeats that something cannot be run."""
    known = results.get(sample.case, sample.allocator, sample.round)
    if known is None or known.status != UNAVAILABLE or (known.status, known.problem) != (sample.status, sample.problem):
        results.append(sample)


def run_cells(places, cases, allocators, rounds, folder, say, again=False) -> None:
    """Makes every run of cases x allocators x rounds that `folder` has no result of yet.

    `say(text)` gets what the user should read. Raises Mixed or store.InUse before anything is run; KeyboardInterrupt
    passes through, with every finished sample kept."""
    for helper in (places.measure, places.probe):
        if not os.path.isfile(helper):
            raise FileNotFoundError(f"{helper} is not built: scripts/bench --build-only")
    execute.prepare_this_process()
    runner = execute.Runner(places)
    with store.Store(folder) as results:
        meta = _claim(results, runner, cases, allocators, rounds, again)
        store.write_meta(folder, meta)
        busy = machine.load()
        if busy > machine.BUSY_LOAD:
            say(f"warning: this machine is busy (load {busy:.1f}): figures taken now are noisy")
        if not meta["runs"][-1]["exits_are_seen"]:
            say("warning: this machine does not let spanalloc-measure look at processes as they end (ptrace is refused): "
                "runs are not checked for whose malloc they had, and memory is only sampled")
        problems = make_fixtures(places, cases, say)
        cells = balanced_cells(cases, allocators, rounds)
        left = _to_do(cells, results)
        if len(left) < len(cells):
            say(f"{len(cells) - len(left)} of {len(cells)} results are there already")
        told = set()
        with progress.Progress(left, results.samples(), say) as shown:
            for cell in left:
                if _settled(cell, results):  # by an earlier round of this run
                    shown.skip(cell)
                    continue
                shown.begin(cell)
                problem = next((problems[name] for name in cell.case.prepare if name in problems), None)
                if problem:
                    sample = Sample(cell.case.id, cell.allocator.name, cell.round, cell.position, UNAVAILABLE, problem,
                                    started=round(time.time(), 3))
                else:
                    sample = runner.run(cell.case, cell.allocator, cell.round, cell.position)
                _append(results, sample)
                shown.end(cell, sample)
                trouble = (sample.case, sample.allocator, sample.status)
                if sample.status not in (OK, UNAVAILABLE) and trouble not in told:
                    told.add(trouble)
                    shown.print(f"{sample.case}, {sample.allocator}: {sample.status}: {sample.problem}")
        meta["verified"].update(_verified(runner))
        store.write_meta(folder, meta)


def _verified(runner):
    """{contender: {program: object that was seen to define malloc in it}}, for meta.json"""
    found = {}
    for (program, allocator), path in sorted(runner.verified.items()):
        found.setdefault(allocator, {})[program] = tree.relative(path)
    return found
