"""`spanalloc bench attacks`: memory-safety attacks against every allocator (docs/security.md).

    attack x size x allocator x repetition  ->  one process of bench/workloads/attacks.c, which does one thing wrong
    how it ended, what it printed           ->  one outcome
    all repetitions and sizes               ->  one cell of the table, which shows the worst

No figure here depends on how fast anything is, so the processes run side by side.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import signal
import subprocess
import time

from spanalloc_bench import (
    allocators, build, csv_lines, documents, execute, machine, old_names, packed, progress, screen, tree,
)
from spanalloc_bench.model import Allocator, Kind
from spanalloc_cli import libraries

PROGRAM, CSV, META = "attacks", "attacks.csv", "attacks-meta.json"
DOCUMENT = "docs/security.md"
HANG_S = 10.0  # unless the caller says otherwise: a busy machine needs more
LISTED_S = 600

REFUSED, CAUGHT, NO_ANSWER, UNNOTICED, HANG, CRASH, HARM, FAILED = (
    "refused", "caught", "untried", "unnoticed", "hang", "crash", "harm", "failed")
# "unnoticed" stands between an allocator that stops an attack and one that goes astray. What says nothing about the
# allocator hides no run that does.
WORST_LAST = (NO_ANSWER, FAILED, REFUSED, CAUGHT, UNNOTICED, HANG, CRASH, HARM)
MEANINGS = {
    REFUSED: "the process was ended by the allocator at the very call that was wrong",
    CAUGHT: "the allocator ended it later, before any harm was seen",
    HARM: "a block was handed out twice, over another one, misaligned, or where the program has its own data",
    CRASH: "the process was ended by a signal other than SIGABRT: mostly SIGSEGV, where something wrong had been followed; "
           "but some allocators end a process by SIGILL or SIGTRAP",
    HANG: "it came to no end within {hang_s:g} s",
    UNNOTICED: "neither the allocator nor the program noticed anything: ignored, lost, or not harmful yet",
    NO_ANSWER: "cannot be tried with this allocator",
    FAILED: "the program itself went wrong: nothing is known",
}
HARMFUL = {
    "twice", "overlapping", "misaligned", "unmapped", "program's-own", "tells-heap-address", "tells-stack-address",
    "tells-library-address", "borders-on-library", "borders-on-program",
}
HARMLESS = {"nothing", "no-memory", "size", "no-size", "tells-nothing", "borders-on-nothing"}
# Where what was seen says more than how bad it is.
SHOWN_AS = {
    "tells-nothing": "none", "tells-heap-address": "heap", "tells-stack-address": "stack",
    "tells-library-address": "library", "borders-on-nothing": "no", "borders-on-library": "yes",
    "borders-on-program": "yes", "size": "tells it", "no-size": "tells 0",
}
ADDRESSES = "addresses"  # its runs are judged together


# ---- what is run ----


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str
    group: str
    sizes: tuple[int, ...]
    repeat: int
    title: str


@dataclasses.dataclass(frozen=True)
class End:
    """How a process ended: its signal or exit code, the lines it printed, its last line on stderr."""

    lines: tuple[str, ...] = ()
    signal: int = 0
    code: int = 0
    hung: bool = False
    said: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of attacks.csv: `runs` runs had this outcome."""

    attack: str
    size: int
    allocator: str
    outcome: str
    observed: str
    runs: int


def catalogue(places) -> list[Attack]:
    """The attacks that the program knows."""
    program = os.path.join(tree.workloads(places), PROGRAM)
    try:
        text = subprocess.run([program, "list"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=LISTED_S, env=execute.clean_environment(), check=True).stdout
    except (OSError, subprocess.SubprocessError):
        raise FileNotFoundError(f"{program} is not built: scripts/bench --build-only") from None
    found = []
    for line in text.splitlines():
        name, group, sizes, repeat, title = line.split("\t")
        found.append(Attack(name, group, tuple(map(int, sizes.split())), int(repeat), title))
    return found


def chosen_attacks(known, names) -> list[Attack]:
    """Those that `names`, "A,B", names; all of them where it is None."""
    if names is None:
        return known
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in {attack.name for attack in known}:
            raise allocators.BadChoice(f"--attacks {name}: no attack has that name. There are: "
                                       + ", ".join(attack.name for attack in known))
    return [attack for attack in known if attack.name in wanted]


def contenders(places, names, with_) -> list[Allocator]:
    """All that ship or are installed; of who never frees there is nothing to learn, unless somebody names it."""
    found = allocators.discover(places, with_)
    if names is not None:
        return allocators.chosen(places, names, found)
    there = [c for c in [*found, *allocators.by_name_only(places)]
             if not c.missing and c.kind not in (Kind.BASELINE, Kind.ABLATION)]
    ours = [c for name in libraries.SHIPPED_CONFIGS for c in there if c.name == name]  # first, as they ship
    return ours + [c for c in there if c not in ours]


# ---- running ----


def run_once(program, attack, size, allocator, hang_s=HANG_S) -> End:
    environment = {**execute.clean_environment(), **dict(allocator.environment), "LD_PRELOAD": allocator.path}
    process = subprocess.Popen([program, attack, str(size)], env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    hung = False
    try:
        out, errors = process.communicate(timeout=hang_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        hung = True
    said = errors.decode(errors="replace").strip().splitlines()
    code = process.returncode
    return End(tuple(out.decode(errors="replace").splitlines()), max(0, -code), max(0, code), hung, said[-1] if said else "")


def classify(end: End) -> tuple[str, str]:
    """(outcome, what was observed) of one run."""
    if end.hung:
        return HANG, ""
    if "attacking" not in end.lines:
        if end.lines[-1:] == ("cannot-tell",) and not end.signal and not end.code:
            return NO_ANSWER, "cannot-tell"
        return FAILED, end.said or _ending(end)
    returned = "returned" in end.lines
    if end.signal == signal.SIGABRT:
        return (CAUGHT if returned else REFUSED), "SIGABRT"
    if end.signal:
        return CRASH, _ending(end)
    if end.code:  # the program's own failures have code 2
        return (FAILED, end.said) if end.code == 2 else ((CAUGHT if returned else REFUSED), _ending(end))
    word = end.lines[-1]
    if word in HARMFUL:
        return HARM, word
    if word in HARMLESS or word.startswith("0x"):
        return UNNOTICED, word
    return FAILED, f"it printed {word}"


def _ending(end):
    if not end.signal:
        return f"exit code {end.code}"
    try:
        return signal.Signals(end.signal).name
    except ValueError:
        return f"signal {end.signal}"


def spread(pairs) -> tuple[int, int]:
    """(bits that vary, different ones) of the distances between two addresses in each of many processes."""
    distances = [(first - second) % (1 << 47) for first, second in pairs]
    varying = 0
    for distance in distances:
        varying |= distance ^ distances[0]
    return varying.bit_count(), len(set(distances))


def attack_once_and_again(program, attack, size, allocator, rounds=None, hang_s=HANG_S) -> list[Row]:
    """The rows of one attack with one size on one allocator, the commonest first."""
    seen, ends = {}, []
    for _ in range(rounds or attack.repeat):
        ends.append(run_once(program, attack.name, size, allocator, hang_s))
        outcome = classify(ends[-1])
        seen[outcome] = seen.get(outcome, 0) + 1
        if outcome[0] == HANG:
            break  # once is enough to wait for
    if attack.name == ADDRESSES and {outcome for outcome, _ in seen} == {UNNOTICED}:
        bits, different = spread([tuple(int(word, 16) for word in end.lines[-1].split()) for end in ends])
        return [Row(attack.name, size, allocator.name, UNNOTICED, f"{bits} bits vary, {different} distances", len(ends))]
    return [Row(attack.name, size, allocator.name, outcome, observed, runs)
            for (outcome, observed), runs in sorted(seen.items(), key=lambda item: -item[1])]


def run(places, attacks, chosen, rounds=None, hang_s=HANG_S) -> list[Row]:
    """Every attack on every allocator."""
    program = os.path.join(tree.workloads(places), PROGRAM)
    execute.prepare_this_process()
    allocators.require_used(places, chosen, program)
    cells = [(attack, size, allocator) for attack in attacks for size in attack.sizes for allocator in chosen]
    rows, began = [], time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, progress.Bar() as bar:
        waiting = [pool.submit(attack_once_and_again, program, *cell, rounds, hang_s) for cell in cells]
        try:
            for done, ((attack, size, allocator), made) in enumerate(zip(cells, waiting), start=1):
                rows += made.result()
                each = (time.monotonic() - began) / done
                bar.show(done, len(cells), f"{attack.name} {size}, {allocator.name}",
                         progress.left(each * (len(cells) - done)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return rows


# ---- results ----


def facts(attacks, chosen, hang_s=HANG_S) -> dict:
    """What the outcomes depend on; and what their table needs besides."""
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "machine": machine.describe(),
        "source": machine.git_commit(tree.SOURCE),
        "allocators": {c.name: {"version": machine.version_of(c), "path": tree.relative(c.path)} for c in chosen},
        "attacks": [dataclasses.asdict(attack) for attack in attacks],
        "hang_s": hang_s,
    }


def write(folder, rows, meta):
    packed.write_table(folder, CSV, csv_lines.text(Row, rows))
    packed.write_record(folder, META, meta)


def read(folder) -> tuple[list[Row], dict]:
    rows, meta = csv_lines.read(Row, folder, CSV, META), old_names.read_record(folder, META)
    if not rows or not meta:
        raise FileNotFoundError(f"{folder} holds no outcomes: it lacks {META if rows else CSV}. `spanalloc bench "
                                "attacks` makes both")
    return rows, meta


# ---- the table ----


def _word(row) -> str:
    if row.attack == ADDRESSES and row.outcome == UNNOTICED:
        return row.observed.partition(" vary")[0]
    return SHOWN_AS.get(row.observed, row.outcome)


def worst(rows) -> str:
    """The word of one size's runs; with a star where not all ended like that."""
    words = {_word(row): WORST_LAST.index(row.outcome) for row in rows}
    if not words:
        return ""
    found = max(words, key=lambda word: words[word])
    return found + "*" * (len(words) > 1)


def size_text(size) -> str:
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def sizes_text(of, sizes) -> str:
    """Three or more that follow each other are a range."""
    texts, i = [], 0
    while i < len(of):
        end = i
        while end + 1 < len(of) and sizes.index(of[end + 1]) == sizes.index(of[end]) + 1:
            end += 1
        run = [size_text(size) for size in of[i:end + 1]]
        texts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else run
        i = end + 1
    return ", ".join(texts)


def cell(rows, sizes) -> str:
    """The worst of each size; sizes that ended alike stand together, and are not named where all did."""
    by_word = {}
    for size in sizes:
        word = worst([row for row in rows if row.size == size])
        if word:
            by_word.setdefault(word, []).append(size)
    if len(by_word) == 1:
        return next(iter(by_word))
    return "; ".join(f"{word} ({sizes_text(of, sizes)})" for word, of in by_word.items())


def table(rows, meta) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """(headings, [(group, rows of cells)])."""
    names = list(meta["allocators"])
    of = {}
    for row in rows:
        of.setdefault((row.attack, row.allocator), []).append(row)
    groups = {}
    for attack in meta["attacks"]:
        cells = [cell(of.get((attack["name"], name), []), attack["sizes"]) for name in names]
        groups.setdefault(attack["group"], []).append([attack["title"], *cells])
    return ["attack", *names], list(groups.items())


# What is counted: the end of an attack with one size. What only tells, or shows where memory lies, is not misuse.
COUNTED = (((REFUSED, CAUGHT), "noticed: the allocator ended the process, by a message or abort()"),
           ((CRASH,), "ended by a signal other than SIGABRT"),
           ((HANG,), "came to no end"),
           ((UNNOTICED,), "unnoticed, without harm so far"),
           ((HARM,), "harm"),
           ((NO_ANSWER,), "cannot be tried"),
           ((FAILED,), "the program itself went wrong"))
NOT_COUNTED = ("what memory tells", "where memory lies")


def tally(rows, meta) -> list[list[str]]:
    """For each of COUNTED its words and how many there are of each allocator: attack and size by its worst end."""
    asked = [attack for attack in meta["attacks"] if attack["group"] not in NOT_COUNTED]
    worst_of = {}
    for row in rows:
        key = (row.attack, row.size, row.allocator)
        worst_of[key] = max(worst_of.get(key, row.outcome), row.outcome, key=WORST_LAST.index)
    ends = {name: [] for name in meta["allocators"]}
    for name, of_it in ends.items():
        for attack in asked:
            for size in attack["sizes"]:
                key = (attack["name"], size, name)
                if key not in worst_of:
                    raise ValueError(f"no outcome of {attack['name']} with {size} bytes on {name}: the record is not whole")
                of_it.append(worst_of[key])
    counts = [[sum(end in outcomes for end in of_it) for of_it in ends.values()] for outcomes, _ in COUNTED]
    # Each attack is in one line, and no more than that.
    assert all(sum(column) == len(of_it) for column, of_it in zip(zip(*counts, strict=True), ends.values(), strict=True))
    return [[title, *map(str, line)] for (_, title), line in zip(COUNTED, counts, strict=True)]


def _tally_heading(meta):
    attacks = sum(len(attack["sizes"]) for attack in meta["attacks"] if attack["group"] not in NOT_COUNTED)
    return f"of {attacks} attacks (each size is one)"


def _meanings(meta):
    """{word: what it means in this run}."""
    return {word: text.format(hang_s=meta.get("hang_s", HANG_S)) for word, text in MEANINGS.items()}


def _versions(meta):
    """{allocator: its version without the package's name}."""
    return {name: known["version"].split()[-1] if known["version"] else "" for name, known in meta["allocators"].items()}


def print_table(rows, meta, console):
    headings, groups = table(rows, meta)
    versions = _versions(meta)
    shown = screen.table("\n".join(filter(None, (heading, versions.get(heading, "")))) for heading in headings)
    styles = {HARM: "red", CRASH: "yellow", HANG: "yellow", REFUSED: "green", CAUGHT: "green"}
    for group, lines in groups:
        shown.add_row(f"[bold]{group}[/bold]")
        for title, *cells in lines:
            shown.add_row("  " + title, *(f"[{style}]{text}[/{style}]" if (style := next(
                (styles[word] for word in styles if word in text), "")) else text for text in cells))
        shown.add_section()
    shown.add_row(f"[bold]{_tally_heading(meta)}[/bold]")
    for title, *counts in tally(rows, meta):
        shown.add_row("  " + title, *counts)
    console.print(shown)
    for word, meaning in _meanings(meta).items():
        console.print(f"{word}: {meaning}", markup=False, highlight=False)
    console.print("*: not in each of its runs; the worst is shown", markup=False, highlight=False)


def markdown(rows, meta) -> str:
    headings, groups = table(rows, meta)
    versions = _versions(meta)
    lines = []
    counted = [[title, *counts] for title, *counts in tally(rows, meta)]
    for group, of in [(_tally_heading(meta), counted), *groups]:
        named = [group, *(f"{name}<br>{versions[name]}" if versions[name] else name for name in headings[1:])]
        rows = [[title, *(_marked(text).replace("; ", "<br>") for text in cells)] for title, *cells in of]
        lines += [*documents.table(named, rows, left=range(len(named))), ""]
    rows = [[_marked(word), meaning] for word, meaning in _meanings(meta).items()]
    rows.append(["\\*", "not in each of its runs; the worst is shown"])
    lines += [*documents.table(["word", "meaning"], rows, left=(0, 1)), ""]
    sizes = sorted({size for attack in meta["attacks"] for size in attack["sizes"]})
    lines.append(f"Block sizes: {', '.join(f'{size:,}' for size in sizes)} bytes (k: thousand, M: million), named where they "
                 "differ.")
    lines.append(documents.origin(meta, processor=False))
    return "\n".join(lines) + "\n"


def _marked(text):
    """What an attacker hopes for stands out."""
    return text.replace("*", "\\*").replace(HARM, f"**{HARM}**")


# ---- the command ----


def parts(places, names) -> list[build.Part]:
    """What has to be built for these contenders, "A,B"; None: for those that are attacked by default."""
    return [*build.helpers(places), build.program(places, PROGRAM),
            *build.of_contenders(places, allocators.wanted(names, libraries.SHIPPED_CONFIGS))]


def command(places, *, names, attacks, with_, rounds, hang_s, out, write_document, show, say, console, building=False):
    """`building`: what is not there is built first."""
    folder = os.path.abspath(out) if out else tree.DEFAULT_OUT
    if write_document and (names or attacks or with_):
        raise allocators.BadChoice("--write: docs/security.md holds the whole table; "
                                   "leave --attacks, --allocators and --with out")
    if show:
        rows, meta = read(folder)
    else:
        if building:
            build.make(places, parts(places, names), say)
        chosen = contenders(places, names, with_)
        wanted = chosen_attacks(catalogue(places), attacks)
        began = time.monotonic()
        meta = facts(wanted, chosen, hang_s)
        rows = run(places, wanted, chosen, rounds, hang_s)
        write(folder, rows, meta)
        say(f"took {progress.duration(time.monotonic() - began)}; outcomes: {os.path.join(folder, CSV)}")
    print_table(rows, meta, console)
    if write_document:
        documents.write({(DOCUMENT, "attacks"): markdown(rows, meta)})
        say(f"wrote {DOCUMENT}")
