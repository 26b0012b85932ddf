"""`spanalloc bench memory-return`: how much memory an allocator returns to the kernel once most of a heap is freed
(docs/results.md), and when.

    case x allocator               ->  one process of bench/workloads/memory_return.cpp
    /proc/PID/status, every 50 ms  ->  a line of memory-return.csv
    the first case                 ->  a picture of the curves, and the sentences of README.md
    all cases                      ->  the table in docs/results.md

The allocators of a case run side by side: only memory is compared, and the programs sleep most of the time.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import math
import os
import re
import signal
import subprocess
import threading
import time

import pandas

from spanalloc_bench import (
    allocators, build, csv_lines, documents, execute, machine, old_names, packed, progress, readme, screen, store,
    tree,
)
from spanalloc_bench.analyse import NOTABLE
from spanalloc_bench.soak import memory
from spanalloc_cli import libraries

PROGRAM = "memory_return"
CSV, META, PICTURE = "memory-return.csv", "memory-return-meta.json", "memory-return.png"
MARKER = "memory-return"                    # in README.md and docs/results.md
HEADING = "memory-that-is-returned"         # the heading in docs/results.md that stands above the table
DOCUMENT_PICTURE = os.path.join("docs", PICTURE)
SAMPLES_OF = "Samples"                      # the picture's field: checksum of the samples that it shows

MEGABYTES = 200      # 10^6 bytes, of all blocks of a case
SOON_S = 1.0
INTERVAL_S = 0.05
BEFORE = 5           # samples of the full heap
TIME_UP_S = 600      # for what hangs

SMALL, NONE = "small", "none"
WORK = {SMALL: "then light work", NONE: "then sleep"}


# ---- what is run ----


@dataclasses.dataclass(frozen=True)
class Case:
    size: int
    keep: int  # one block in so many is kept; 0: none
    work: str = SMALL

    @property
    def id(self) -> str:
        return f"{self.size}:{self.keep}:{self.work}"

    def blocks(self, megabytes) -> int:
        return max(1, megabytes * 10**6 // self.size)

    @property
    def title(self) -> str:
        kept = f"1 of {self.keep} kept" if self.keep else "none kept"
        return f"{size_text(self.size)}, {kept}, {WORK[self.work]}"


# The first one is drawn.
CASES = (Case(1000, 64), Case(1000, 8), Case(1000, 0), Case(1000, 64, NONE), Case(16, 64), Case(16, 8), Case(65536, 64),
         Case(65536, 8))


def size_text(size) -> str:
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size:,} bytes"


def case_of(text) -> Case:
    """The case of an argument --case SIZE:KEEP or SIZE:KEEP:WORK."""
    found = re.fullmatch(r"(\d{1,10}):(\d{1,9})(?::(\w+))?", text)
    if not found or not 16 <= int(found[1]) <= 10**9 or (found[3] or SMALL) not in WORK:
        raise allocators.BadChoice(
            f"--case {text}: expected SIZE:KEEP or SIZE:KEEP:{NONE}, for example 1000:64: blocks of 16 to {10**9:,} bytes, "
            "of which one in KEEP is kept (0: none)")
    return Case(int(found[1]), int(found[2]), found[3] or SMALL)


def contenders(places, names, with_) -> list[allocators.Allocator]:
    """Those named; else the default library of ours and all others that are here, but for the floor, which never frees."""
    known = allocators.discover(places, with_)
    if names:
        return allocators.chosen(places, names, known)
    found = [c for c in known if not c.missing and c.kind is not allocators.Kind.BASELINE
             and (not c.ours or c.name == libraries.DEFAULT_CONFIG)]
    if not found:
        raise allocators.BadChoice("no allocator is left")
    return found


# ---- running ----


@dataclasses.dataclass(frozen=True)
class Sample:
    case: str
    allocator: str
    seconds: float  # since the first free
    rss_kib: int
    page_tables_kib: int

    @property
    def memory_kib(self) -> int:
        return self.rss_kib + self.page_tables_kib


def run_once(program, case, allocator, seconds, megabytes) -> list[Sample]:
    """The samples of one process. RunFailed where it ends too early or badly."""
    argv = [program, "--blocks", str(case.blocks(megabytes)), "--size", str(case.size), "--keep", str(case.keep),
            "--work", case.work]
    environment = {**execute.clean_environment(), **dict(allocator.environment), "LD_PRELOAD": allocator.path}
    looks = []  # (moment, what the kernel says)
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as process:
        time_up = threading.Timer(seconds + TIME_UP_S, process.kill)
        time_up.start()
        try:
            full = process.stdout.readline() == b"full\n"
            began = time.monotonic() + BEFORE * INTERVAL_S
            if full:
                _look(process, began - BEFORE * INTERVAL_S, began, looks)
                process.stdin.write(b"\n")
                process.stdin.flush()
                began = time.monotonic()
                _look(process, began, began + seconds, looks)
            _, errors = process.communicate()  # closes its input, which ends it
        except BrokenPipeError:
            _, errors = process.communicate()
        finally:
            time_up.cancel()
            process.kill()
    whole = full and looks and looks[-1][0] >= began + seconds - 2 * INTERVAL_S
    if process.returncode or not whole:
        raise execute.RunFailed(_ending(process.returncode, errors))
    return [Sample(case.id, allocator.name, round(moment - began, 3), now.rss_kib, now.page_tables_kib)
            for moment, now in looks]


def _look(process, start, end, looks):
    """Adds a look at the process to `looks` every INTERVAL_S from `start` to `end`, or until it has ended."""
    for number in range(1, round((end - start) / INTERVAL_S) + 1):
        time.sleep(max(0.0, start + number * INTERVAL_S - time.monotonic()))
        now = memory.of(process.pid)
        if now is None:
            return
        looks.append((time.monotonic(), now))


def _ending(code, errors) -> str:
    said = (errors.decode(errors="replace").strip().splitlines() or [""])[-1]
    how = f"the program was killed by {signal.Signals(-code).name}" if code < 0 else f"the program ended with exit code {code}"
    return how + f": {said}" * bool(said)


def run(places, cases, chosen, seconds, megabytes, say) -> tuple[list[Sample], dict[str, dict[str, str]]]:
    """All samples; and by case and allocator why there are none."""
    program = os.path.join(tree.workloads(places), PROGRAM)
    execute.prepare_this_process()
    allocators.require_used(places, chosen, program)
    samples, problems = [], {}
    for number, case in enumerate(cases, 1):
        say(f"[{number}/{len(cases)}] {case.title}: {', '.join(c.name for c in chosen)}")
        with concurrent.futures.ThreadPoolExecutor(len(chosen)) as pool:
            waiting = {c.name: pool.submit(run_once, program, case, c, seconds, megabytes) for c in chosen}
            try:
                for name, made in waiting.items():
                    try:
                        samples += made.result()
                    except execute.RunFailed as failure:
                        problems.setdefault(case.id, {})[name] = str(failure)
                        say(f"    {name}: {failure}")
            except BaseException:
                execute.end_all_but(set())  # else the pool would wait for them
                raise
    return samples, problems


# ---- results ----


def facts(cases, chosen, seconds, megabytes) -> dict:
    """What the samples depend on."""
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "machine": machine.describe(),
        "source": machine.git_commit(tree.SOURCE),
        "settings": {"seconds": seconds, "interval_s": INTERVAL_S, "megabytes": megabytes},
        "allocators": {c.name: machine.facts_of(c) for c in chosen},
        "cases": [dataclasses.asdict(case) for case in cases],
    }


def write(folder, samples, meta):
    packed.write_table(folder, CSV, csv_lines.text(Sample, samples))
    packed.write_record(folder, META, meta)


def read(folder) -> tuple[list[Sample], dict]:
    samples = csv_lines.read(Sample, folder, CSV, META)
    if not samples:
        raise FileNotFoundError(f"{folder} holds no samples: there is no {CSV}, or an empty one. `spanalloc bench "
                                "memory-return` makes one")
    return samples, read_meta(folder)


def read_meta(folder) -> dict:
    if not os.path.isfile(os.path.join(folder, META)):
        raise store.Damaged(f"{folder} has {CSV}, but no {META}")
    try:
        meta = old_names.read_record(folder, META)
        if not meta["cases"] or not meta["allocators"] or not meta["settings"]["seconds"] > 0 or not meta["started"]:
            raise ValueError("it names no case, allocator or time")
        return meta
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise store.Damaged(f"{os.path.join(folder, META)}: this is no record of memory-return: {error}") from None


def newest(results) -> str | None:
    """The kept folder whose run started last; None where there is none."""
    return packed.newest(results, CSV, lambda folder: read_meta(folder)["started"])


# ---- what they say ----


OURS = libraries.DEFAULT_CONFIG


def cases_of(meta) -> list[Case]:
    return [Case(**case) for case in meta["cases"]]


def levels(samples, meta) -> pandas.DataFrame:
    """KiB of each case and allocator that has samples, in the record's order: before the first free, SOON_S after it,
    at the end."""
    frame = pandas.DataFrame([(s.case, s.allocator, s.seconds, s.memory_kib) for s in samples],
                             columns=["case", "allocator", "seconds", "kib"])

    def level(at):
        return frame[frame.seconds <= at].groupby(["case", "allocator"]).kib.last()

    found = pandas.DataFrame({"before": level(0.0), "soon": level(SOON_S), "last": level(math.inf)})
    order = pandas.MultiIndex.from_product([[case.id for case in cases_of(meta)], meta["allocators"]],
                                           names=found.index.names)
    return found.reindex(order).dropna()


def _mib(kib) -> str:
    return f"{kib / 1024:.0f}" if kib >= 10 * 1024 else f"{kib / 1024:.1f}"


def losses(samples, meta, moment) -> tuple[int, list[str]]:
    """(cases with a level of ours, those in which another holds less at the moment, "soon" or "last": by how much, and
    who)."""
    judged, lost, titles = 0, [], {case.id: case.title for case in cases_of(meta)}
    for case, found in levels(samples, meta)[moment].groupby("case", sort=False):
        held = found.droplevel("case")
        judged += OURS in held
        if OURS in held and held[OURS] > (1 + NOTABLE) * held.min():
            lost.append(f"{titles[case]}: {_mib(held[OURS])} MiB, {held.idxmin()} {_mib(held.min())}")
    return judged, lost


def headings(meta) -> list[str]:
    return [f"MiB after {SOON_S:g} s / {meta['settings']['seconds']:g} s", *meta["allocators"]]


def table(samples, meta) -> list[list[str]]:
    """A row a case, a column an allocator: MiB SOON_S after the first free and at the end, the least bold."""
    found = levels(samples, meta)[["soon", "last"]]
    is_least = found <= (1 + NOTABLE) * found.groupby("case").transform("min")

    def cell(key):
        if key not in found.index:
            return "failed"
        texts = map(_mib, found.loc[key])
        return " / ".join(f"**{text}**" if least else text for text, least in zip(texts, is_least.loc[key]))

    return [[case.title, *(cell((case.id, name)) for name in meta["allocators"])] for case in cases_of(meta)]


def _words_of_losses(samples, meta) -> list[str]:
    """A paragraph a moment."""
    said = []
    for moment, seconds in (("soon", SOON_S), ("last", meta["settings"]["seconds"])):
        judged, lost = losses(samples, meta, moment)
        if judged:
            said.append(f"After {seconds:g} s `{OURS}` is within {100 * NOTABLE:.0f} % of the least in "
                        f"{judged - len(lost)} of {judged} rows." + f" Another holds less in: {'; '.join(lost)}." * bool(lost))
    return said


def markdown(samples, meta, where="") -> str:
    """What docs/results.md holds. `where`: a link to the samples."""
    lines = documents.table(headings(meta), table(samples, meta))
    problems = [f"{case}, {name}: {why}." for case, of in meta.get("problems", {}).items() for name, why in of.items()]
    for said in (*_words_of_losses(samples, meta), *problems):
        lines += ["", said]
    lines += ["", documents.origin(meta) + f" The samples: {where}." * bool(where)]
    return "\n".join(lines) + "\n"


def brief(samples, meta) -> str:
    """What README.md holds."""
    case, seconds = cases_of(meta)[0], meta["settings"]["seconds"]
    found = levels(samples, meta).query("case == @case.id").droplevel("case")
    others = found["last"].drop(OURS, errors="ignore").sort_values(kind="stable")
    if OURS not in found.index or others.empty:
        raise allocators.BadChoice(f"README.md tells of {OURS} beside others, which the first case lacks")
    freed = f"{case.keep - 1} of {case.keep}" if case.keep else "all"
    said = (f"A program fills {meta['settings']['megabytes']} MB with blocks of {size_text(case.size)}, frees {freed} of them, "
            f"and goes on with {'little work' if case.work == SMALL else 'none'}. "
            f"`{OURS}` goes from {_mib(found.before[OURS])} MiB to {_mib(found.soon[OURS])} within {SOON_S:g} s. "
            f"After {seconds:g} s the others hold {_mib(others.iloc[0])} ({others.index[0]}) to "
            f"{_mib(others.iloc[-1])} ({others.index[-1]}): "
            f"[all cases, also those it loses]({readme.RESULTS}#{HEADING}).")
    return f"![{ALT}]({DOCUMENT_PICTURE})\n\n{said}\n"


ALT = "Line chart: memory of each allocator over time, once a program has freed most of its blocks"


def quotes(folder, source) -> dict[tuple[str, str], str]:
    """What the documents quote of a run: (document, marker) -> text."""
    samples, meta = read(folder)
    where = documents.link(folder, readme.RESULTS, source)
    return {(readme.README, MARKER): brief(samples, meta), (readme.RESULTS, MARKER): markdown(samples, meta, where)}


# ---- the picture ----


def checksum(samples) -> str:
    """Of what a picture is drawn from."""
    return hashlib.sha256(repr(samples).encode()).hexdigest()


def curves(samples, meta) -> dict[str, list[tuple[float, float]]]:
    """Of the first case: allocator -> (seconds, MiB)."""
    case = cases_of(meta)[0].id
    lines = {name: [(s.seconds, s.memory_kib / 1024) for s in samples if (s.case, s.allocator) == (case, name)]
             for name in meta["allocators"]}
    return {name: points for name, points in lines.items() if points}


def spread(values, gap, most) -> list[float]:
    """The values, moved as little as it takes to lie `gap` apart, in the same order, none above `most`."""
    groups = []  # [indices, their middle]: what has met moves as one
    for index in sorted(range(len(values)), key=values.__getitem__):
        groups.append([[index], values[index]])
        while len(groups) > 1 and groups[-1][1] - groups[-2][1] < gap * (len(groups[-1][0]) + len(groups[-2][0])) / 2:
            last = groups.pop()
            groups[-1][0] += last[0]
            groups[-1][1] = sum(values[i] for i in groups[-1][0]) / len(groups[-1][0])
    placed = [0.0] * len(values)
    for indices, middle in groups:
        for place, index in enumerate(indices):
            placed[index] = middle + gap * (place - (len(indices) - 1) / 2)
    for index in sorted(range(len(values)), key=placed.__getitem__, reverse=True):
        placed[index] = min(placed[index], most)
        most = placed[index] - gap
    return placed


def picture(samples, meta):
    """The curves of the first case, each with its name at its end."""
    from spanalloc_bench import plots

    case, lines, seconds = cases_of(meta)[0], curves(samples, meta), meta["settings"]["seconds"]
    names = list(lines)
    height = 3.9

    def draw(axes):
        top = 1.05 * max(mib for points in lines.values() for _, mib in points)
        axes.set_ylim(0, top)
        axes.set_xlim(-0.02 * seconds, seconds)
        labels = spread([lines[name][-1][1] for name in names], 0.17 * top / (height - 0.9), top)
        for name, label in zip(names, labels):
            look = plots.style(name)
            shown = f"spanalloc {name}" if look.ours else name
            axes.plot(*zip(*lines[name]), look.dashes, color=look.color, lw=2.4 if look.ours else 1.3,
                      zorder=3 if look.ours else 2, gid=name)
            axes.annotate(f"{shown}, {_mib(1024 * lines[name][-1][1])}", lines[name][-1], xytext=(1.035, label),
                          textcoords=axes.get_yaxis_transform(), va="center", color=look.color, annotation_clip=False,
                          fontweight="bold" if look.ours else "normal",
                          arrowprops={"arrowstyle": "-", "color": look.color, "lw": 0.7, "shrinkA": 0, "shrinkB": 0,
                                      "relpos": (0, 0.5)})
        axes.set(xlabel=f"seconds since the first free, {WORK[case.work]}", ylabel="MiB, RSS + page tables")

    share = f"{case.keep - 1} of {case.keep}" if case.keep else "All"
    title = f"{share} blocks of {size_text(case.size)} are freed: lower is better"
    return plots.figure([plots.Panel(title, draw, (), 6.4, height)])


def save_picture(samples, meta, path):
    from spanalloc_bench import plots

    plots.save_small(picture(samples, meta), path, dpi=200, notes={SAMPLES_OF: checksum(samples)})


# ---- the command ----


def print_table(samples, meta, console):
    lines = [[cell.replace("**", "") for cell in line] for line in table(samples, meta)]
    console.print(screen.table(headings(meta), lines))
    for said in _words_of_losses(samples, meta):
        console.print(said.replace("`", ""), markup=False, highlight=False)


def command(places, *, names, with_, cases, seconds, megabytes, out, show, write_documents, say, console, building=False) -> bool:
    """Runs the command; False where one of our libraries has no figures of a case. `building`: what is not there is built
    first."""
    folder = os.path.abspath(out) if out else tree.DEFAULT_OUT + "-memory-return"
    if write_documents and (names or with_ or cases or megabytes != MEGABYTES):
        raise allocators.BadChoice("--write: the documents hold all cases and allocators; "
                                   "leave --allocators, --with, --case and --megabytes out")
    if not show:
        wanted = list(dict.fromkeys(map(case_of, cases))) or list(CASES)
        if building:
            ours = allocators.wanted(names, [libraries.DEFAULT_CONFIG])
            build.make(places, [*build.helpers(places), build.program(places, PROGRAM),
                                *build.of_contenders(places, ours)], say)
        chosen = contenders(places, names, with_)
        began = time.monotonic()
        meta = facts(wanted, chosen, seconds, megabytes)
        samples, meta["problems"] = run(places, wanted, chosen, seconds, megabytes, say)
        if not samples:
            raise allocators.BadChoice("no allocator has finished a case: " + "; ".join(
                f"{name}: {why}" for of in meta["problems"].values() for name, why in of.items()))
        write(folder, samples, meta)
        say(f"took {progress.duration(time.monotonic() - began)}; samples: {os.path.join(folder, CSV)}")
    samples, meta = read(folder)
    print_table(samples, meta, console)
    if curves(samples, meta):
        save_picture(samples, meta, os.path.join(folder, PICTURE))
        say(f"picture: {os.path.join(folder, PICTURE)}")
    if write_documents:
        documents.write(quotes(folder, tree.SOURCE))
        save_picture(samples, meta, os.path.join(tree.SOURCE, DOCUMENT_PICTURE))
        say(f"wrote {readme.README}, {readme.RESULTS} and {DOCUMENT_PICTURE}")
    ours = {name for name, known in meta["allocators"].items() if known["ours"]}
    return not any(ours & set(of) for of in meta.get("problems", {}).values())
