"""`spanalloc bench`: the commands, their options and help texts. The work is done elsewhere, imported when it is needed,
so that what is missing for one command does not stop another."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import os
import shlex
import signal
import sys
from typing import List, Optional

import typer
import typer.core

from spanalloc_bench import allocators, build, packages, progress, schedule, screen, store, tree
from spanalloc_bench.model import CRASHED, FAILED, HUNG, NOT_PRELOADED, OK
from spanalloc_cli import libraries

OWN_FAILURE, INTERRUPTED = 125, 130
ROUNDS, QUICK_ROUNDS = 6, 2
QUICK_OUT = tree.DEFAULT_OUT + "-quick"

# Plain help texts: typer escapes brackets for a markup that is not rendered here.
typer.core.HAS_RICH = False
typer.core.rich = None  # the same for Debian 12's typer
HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, context_settings=HELP_SETTINGS,
    pretty_exceptions_enable=False,
    help="""Benchmarks: our libraries against the allocators that people use, and the papers' experiments.

    A *case* is one workload with fixed parameters; a *contender* is an allocator. Every case runs under every contender,
    in rounds; each run is a line of samples.csv. Results stay in out/bench of the source tree, or where --out says.

    \b
    spanalloc bench run --quick      a first look, under 5 minutes on 2 cores
    spanalloc bench run              the full suite and its report, about an hour
    spanalloc bench figure list      the figures and tables of the papers, each a command of its own
    spanalloc bench list             all cases and contenders
    spanalloc bench keep             a run's samples in little room, to be kept
    spanalloc bench attacks          what allocators do when memory is misused
    spanalloc bench soak             whether the memory of servers grows in forty minutes of changing load
    spanalloc bench memory-return    how much memory comes back once most of a heap is freed, and when
    spanalloc bench peers            builds newer allocators than the system has, to be compared with

    docs/benchmarks.md says what is measured and how.""",
)
_places = None


def fail(text, code=OWN_FAILURE):
    print(f"spanalloc bench: {text}", file=sys.stderr)
    raise typer.Exit(code)


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- completion (tools/spanalloc_cli/complete.py) ----


def _one_of(words):
    """Completes a word that is one of these, or the last of several with commas between them."""

    def complete(incomplete: str):
        before, comma, _ = incomplete.rpartition(",")
        taken = before.split(",")
        return [before + comma + word for word in words() if word not in taken]

    return complete


def _all_contenders():
    found = allocators.discover(_places, ablations=True) + allocators.by_name_only(_places)
    return [*(contender.name for contender in found), *allocators.PAGE_MANAGERS]


def complete_case():
    return [case.id for case in _cases(("full", "quick"), None)]


def complete_peer():
    from spanalloc_bench.originals import NAMES
    from spanalloc_bench.peers import FAMILIES

    return [*FAMILIES, *NAMES]


complete_contenders = _one_of(_all_contenders)
complete_servers = _one_of(lambda: ("redis", "mariadb", "node"))

# ---- options that several commands have ----


def out_option(about):
    return typer.Option(None, "--out", "-o", metavar="DIR", help=about)


def _only_option(about):
    return typer.Option(None, "--only", "-k", metavar="PATTERN", autocompletion=complete_case, help=about)


def _contenders_option(about):
    return typer.Option(None, "--allocators", "-a", metavar="A,B", autocompletion=complete_contenders, help=about)


OUT = out_option("Where the results are kept. Default: out/bench of the source tree; with --quick, out/bench-quick.")
ROUNDS_OPTION = typer.Option(
    None, "--rounds", "-n", min=1, metavar="N",
    help=f"Runs of every case under every contender. Default {ROUNDS}, the fewest that a verdict takes; with --quick "
    f"{QUICK_ROUNDS}.",
)
WITH = typer.Option(
    None, "--with", "-w", metavar="NAME=PATH",
    help="One more contender: a shared object that defines malloc. May be repeated.",
)
NBBS = typer.Option(
    None, "--nbbs", metavar="PATH",
    help="A shared object built from the public code of NBBS, a peer in the cases of page managers: see 'One more "
    "allocator' in docs/benchmarks.md.",
)
AGAIN = typer.Option(
    False, "--again",
    help="Measure anew what has results already. The old samples are moved to samples-set-aside.csv.",
)
NO_BUILD = typer.Option(
    False, "--no-build", help="Build nothing, and leave out what is not built. Without this it is built first.",
)


def guarded(kept="What was measured is kept: the same command goes on from there."):
    """Of a command: what a user can mend ends in one line. `kept`: what an interruption leaves."""

    def decorated(command):
        @functools.wraps(command)
        def guarded(*arguments, **options):
            from spanalloc_bench import execute

            signal.signal(signal.SIGTERM, signal.default_int_handler)
            try:
                return command(*arguments, **options)
            except (allocators.BadChoice, build.Failed, schedule.Mixed, store.InUse, store.Damaged, libraries.Missing,
                    FileNotFoundError) as error:
                return fail(error)
            except OSError as error:
                return fail(f"{error.filename or 'the results'}: {error.strerror}")
            except KeyboardInterrupt:
                execute.end_all_but(set())
                return fail(f"interrupted. {kept}", INTERRUPTED)

        return guarded

    return decorated


# ---- what is to be run ----


def _cases(suites, patterns):
    """The cases of "full", of "quick" or of both, in that order, as far as the patterns name them."""
    from spanalloc_bench.cases import catalogue

    cases = list(dict.fromkeys(case for suite in suites for case in catalogue() if getattr(case, suite)))
    if not patterns:
        return cases
    chosen = [case for case in cases if any(_matches(case, pattern) for pattern in patterns)]
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in chosen):
            raise allocators.BadChoice(
                f"--only {pattern}: no case of the {' or the '.join(suites)} suite has that in its name; "
                "`spanalloc bench list` shows them"
            )
    return chosen


def _matches(case, pattern):
    """A pattern with *, ? or [ is a shell's pattern of the whole id or group; any other is a part of one."""
    if any(c in pattern for c in "*?["):
        return fnmatch.fnmatchcase(case.id, pattern) or fnmatch.fnmatchcase(case.group, pattern)
    return pattern in case.id or pattern in case.group


def _contenders(names, with_, ablations, nbbs, planned=False):
    """`planned`: what is named may still have to be built."""
    def there(contender):
        return not contender.missing or planned and build.of_contenders(_places, [contender.name])

    found = allocators.discover(_places, with_ or (), ablations) + allocators.page_managers(_places, nbbs)
    if not names:
        return found
    chosen = allocators.chosen(_places, names, found, there)
    if ablations:  # what is asked for is meant to run
        chosen += [contender for contender in found if contender.name in allocators.ABLATIONS]
    return list(dict.fromkeys(chosen))


@app.command("run", context_settings=HELP_SETTINGS)
@guarded()
def run_command(
    quick: bool = typer.Option(False, "--quick", help="Small parameters, few cases: under 5 minutes on 2 cores."),
    rounds: Optional[int] = ROUNDS_OPTION,
    only: Optional[List[str]] = _only_option(
        "Only cases with this in their name or group, for example larson or 'threadtest-*.t2'. May be repeated."),
    names: Optional[str] = _contenders_option(
        "Only these contenders, by name, a2alloc and kheap among them, and what --with and --ablations "
        "add. Default: all others that there are.",
    ),
    with_: Optional[List[str]] = WITH,
    ablations: bool = typer.Option(
        False, "--ablations", help="Also the ablations of what is compared: about twice the time."
    ),
    out: Optional[str] = OUT,
    again: bool = AGAIN,
    nbbs: Optional[str] = NBBS,
    no_build: bool = NO_BUILD,
    list_: bool = typer.Option(False, "--list", help="Only print what would be run."),
):
    """Run the suite, print who wins, and write the report.

    The full suite takes about an hour on 2 cores, --quick under 5 minutes; leave the machine alone meanwhile. It can be
    interrupted at any time: the same command goes on from there. A contender that crashes or hangs is a row that says
    so. What is not built yet is built first, unless --no-build is given. At the end each workload's medians and ratios are printed, then the summary, and DIR holds report.html, the plots,
    samples.csv, medians.csv and meta.json.

    Exit code: 0; 1 when one of our libraries crashed, hung or failed somewhere; 125 when nothing could be run; 130 when
    interrupted.

    \b
    Examples:  spanalloc bench run --quick
               spanalloc bench run --only larson --allocators standard,jemalloc --out /tmp/larson
               spanalloc bench run --with mine=./libmine.so --out /tmp/mine
    """

    folder = os.path.abspath(out) if out else QUICK_OUT if quick else tree.DEFAULT_OUT
    cases = _cases(("quick",) if quick else ("full",), only)
    count = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    if not no_build and not list_:
        build.make(_places, build.helpers(_places), say)  # which check what --with names
    chosen = _contenders(names, with_, ablations, nbbs, planned=not no_build)
    cells = schedule.balanced_cells(cases, chosen, count)
    if not cells:
        raise allocators.BadChoice("none of these contenders runs in any of these cases")
    taking_part = {cell.allocator.name: cell.allocator for cell in cells}
    if list_:
        _print_cases([case for case in cases if schedule.contenders(case, chosen)])
        to_build = [a.name for a in taking_part.values()
                    if a.missing and not no_build and build.of_contenders(_places, [a.name])]
        _print_contenders([dataclasses.replace(a, missing="not built yet: the run builds it") if a.name in to_build
                           else a for a in chosen])
        runs = [cell for cell in cells if not cell.allocator.missing or cell.allocator.name in to_build]
        guess = progress.duration(progress.Estimate(runs, []).seconds())
        print(f"{len(runs)} runs, {count} of each case under each contender: very roughly {guess}. Results: {folder}")
        return
    # Before an hour of measuring, so that what they lack, or an edit meanwhile, does not spoil its end.
    import psutil  # noqa: F401
    from spanalloc_bench import analyse, report, summary  # noqa: F401

    if not no_build:
        build.make(_places, [*build.of_contenders(_places, taking_part), *build.of_cases(_places, cases)], say)
        chosen = _contenders(names, with_, ablations, nbbs)
    schedule.run_cells(_places, cases, chosen, count, folder, say, again=again)
    _require_results(folder, cases)
    summary.print_groups(analyse.load(folder), screen.console())
    _show(folder)
    print(f"One case with everything about it: spanalloc bench report {shlex.quote(folder)} --only CASE")
    _judge_ours(folder, cases, chosen)


def _show(folder):
    """The summary on the screen, the report in the folder."""
    from spanalloc_bench import analyse, report, summary

    found = analyse.load(folder)
    summary.print_summary(found, screen.console())
    print(f"Report: {report.write(folder)}")
    return found


def _require_results(folder, cases):
    """BadChoice, with the reasons, where the folder has no figure of any of these cases."""
    ids = {case.id for case in cases}
    found = [s for s in store.samples(folder) if s.case in ids]
    if not any(s.status == OK for s in found):
        reasons = list(dict.fromkeys(f"{s.status}: {s.problem}".rstrip(": ") for s in found))
        more = f"; and {len(reasons) - 3} other reasons" if len(reasons) > 3 else ""
        raise allocators.BadChoice(f"nothing could be run: {'; '.join(reasons[:3])}{more}")


def _judge_ours(folder, cases, chosen):
    ours = {contender.name for contender in chosen if contender.ours}
    ids = {case.id for case in cases}
    bad = {
        (s.allocator, s.case) for s in store.samples(folder)
        if s.allocator in ours and s.case in ids and s.status in (CRASHED, HUNG, FAILED, NOT_PRELOADED)
    }
    if bad:
        fail("no result for " + ", ".join(f"{name} in {case}" for name, case in sorted(bad)), 1)


# ---- looking at results ----


@app.command("report", short_help="Print a run's summary once more, and write its report.", context_settings=HELP_SETTINGS)
@guarded()
def report_command(
    folder: Optional[str] = typer.Argument(None, metavar="[DIR]", help="A run's folder. Default: out/bench."),
    tables: bool = typer.Option(False, "--tables", help="Also print the table of every case."),
    only: Optional[List[str]] = _only_option("Print just the tables of the cases with this in their name."),
):
    """Print the summary of a run once more and write its report again. Takes seconds; needs no allocator.

    \b
    Examples:  spanalloc bench report
               spanalloc bench report out/bench --only larson
    """

    from spanalloc_bench import analyse, packed, summary

    where = os.path.abspath(folder) if folder else tree.DEFAULT_OUT
    if not packed.path(where, store.SAMPLES):
        raise FileNotFoundError(
            f"{where} holds no results: there is no {store.SAMPLES}. `spanalloc bench run` makes one")
    if only:
        found = analyse.load(where)
        chosen = [case for case in found.cases if any(fnmatch.fnmatchcase(case, p) or p in case for p in only)]
        if not chosen:
            raise allocators.BadChoice(f"{where} has no case with {' or '.join(only)} in its name")
    else:
        found = _show(where)
        chosen = found.suite if tables else []
    for case in chosen:
        summary.print_case_table(found, case, screen.console())


@app.command("keep", short_help="Copy a run's samples, compressed, to be kept.", context_settings=HELP_SETTINGS)
@guarded(kept="Nothing was changed.")
def keep_command(
    folder: str = typer.Argument(..., metavar="DIR", help="A run's folder."),
    destination: str = typer.Argument(..., metavar="DESTINATION", help="The folder to be made, for example in bench/results."),
    pictures: Optional[List[str]] = typer.Option(
        None, "--picture", metavar="NAME", help="Also this picture of DIR, which a document shows. May be repeated."
    ),
):
    """Copy from a run's folder what no command makes again: its samples, compressed, and what they were taken under.

    report, papers, attacks --show, memory-return --show, soak --report and manycore --report read DESTINATION as they read
    DIR, and make tables, verdicts and pictures again. DIR stays as it is.

    \b
    Example:  spanalloc bench keep out/bench bench/results/2030-01-31-my-machine --picture standing.png
    """

    from spanalloc_bench import keep

    kept = keep.keep(folder, destination, pictures or ())
    print(f"{destination}: {kept.files} files, {kept.lines:,} lines, {kept.bytes / 1e6:.2f} MB")


@app.command("list", short_help="List the cases and the contenders.", context_settings=HELP_SETTINGS)
@guarded()
def list_command(
    quick: bool = typer.Option(False, "--quick", help="Only the cases of the quick suite."),
    only: Optional[List[str]] = _only_option("Only cases with this in their name."),
):
    """List the cases of the suite and the contenders of this machine; for what is missing, how to get it."""

    cases = _cases(("quick",) if quick else ("full", "quick"), only)
    _print_cases(cases)
    found = _contenders(None, None, True, None)
    _print_contenders(found)
    if any(contender.missing and build.of_contenders(_places, [contender.name]) for contender in found):
        print("What is not built yet is built by the command that runs it.")
    named = allocators.by_name_only(_places)
    print("Only where --allocators names them: " + ", ".join(
        contender.name + " (not built)" * bool(contender.missing) for contender in named))


def _print_cases(cases):
    def suites(case):
        return ", ".join(name for name, yes in (("full", case.full), ("quick", case.quick)) if yes)

    screen.console().print(screen.table(("case", "what it is", "from", "suite"),
                                        [(case.id, case.title, case.source, suites(case)) for case in cases]))


def _print_contenders(found):
    screen.console().print(screen.table(("contender", "kind", "library"), [
        (contender.name, "page manager" if contender.kind.value == "pages" else contender.kind.value,
         contender.missing or contender.path) for contender in found]))


@app.command("manycore", short_help="Simulate machines of 1 to 64 cores.", context_settings=HELP_SETTINGS)
@guarded()
def manycore_command(
    cores: Optional[str] = typer.Option(
        None, "--cores", metavar="N,N", help="Default 1,2,4,8,16,32,64; of an odd number malloc-test leaves one idle."
    ),
    names: Optional[str] = typer.Option(
        None, "--workloads", metavar="A,B",
        help="Of threadtest, larson, producer-consumer and malloc-test, which are the default, threadtest-2500, threadtest-420, malloc-test-1k and shared-slots.",
    ),
    allocators_: Optional[str] = _contenders_option(
        "Only these, by name, and what --with adds. Default: standard, scalloc, supermalloc, glibc, jemalloc, tcmalloc, "
        "mimalloc, tbbmalloc and bump; with --quick standard, glibc, mimalloc and bump.",
    ),
    with_: Optional[List[str]] = WITH,
    out: Optional[str] = OUT,
    quick: bool = typer.Option(False, "--quick", help="1, 2, 4 and 16 cores, few allocators, less work: two minutes."),
    seeds: int = typer.Option(1, "--seeds", min=1, max=1000, metavar="N",
                              help="Each simulation N times, with threads that start and wake by another seed's times."),
    report: bool = typer.Option(False, "--report", help="Simulate nothing: tables and plots of what there is."),
    no_build: bool = NO_BUILD,
):
    """Speed-up and cache lines that change owner, for 1 to 64 cores, on a simulated machine.

    Every workload runs under every allocator on a machine with a core per thread, simulated by a plugin of qemu-x86_64
    (Debian's qemu-user). The real machine's speed does not enter; a simulation that had to go on without waiting for
    the real kernel counts as failed, and the same command tries it again. The default takes about half an hour on 2
    CPUs; an interrupted run goes on where it was. docs/manycore.md describes the model, what it was validated with, and
    what it leaves out.

    Exit code: 0; 1 when one of our libraries failed somewhere; 125 when nothing can be simulated; 130 when interrupted.

    \b
    Examples:  spanalloc bench manycore --quick
               spanalloc bench manycore --workloads larson --allocators standard,mimalloc --cores 1,16,64
    """

    from spanalloc_bench import manycore

    if not manycore.command(
        _places, cores=cores, names=names, allocator_names=allocators_, with_=with_ or (), out=out, quick=quick,
        seeds=seeds, only_report=report, say=say, building=not no_build,
    ):
        raise typer.Exit(1)


@app.command("peers", context_settings=HELP_SETTINGS)
@guarded(kept="Peers that were built are kept.")
def peers_command(
    only: Optional[List[str]] = typer.Argument(
        None, metavar="[NAME...]", autocompletion=complete_peer,
        help="Only these: mimalloc, snmalloc, jemalloc, rpmalloc, tcmalloc-google. Default: all. With --originals: hoard, "
        "dlmalloc, supermalloc-original.",
    ),
    originals: bool = typer.Option(
        False, "--originals", help="Build the programs that the papers were measured with instead, for their figures."
    ),
    no_build: bool = NO_BUILD,
):
    """Build today's allocators, to be compared with. What distributions package is years old.

    Their sources come from crates, by cargo; versions and checksums are pinned (bench/peers/Cargo.lock). Each is built as
    a shared library below build/peers of the source tree, with the options of its own release, and from then on every
    command here and `spanalloc compare` take it, named with its version, in the place of the packaged one of the same
    name. Nothing of theirs becomes a part of spanalloc; to be rid of them, remove build/peers.

    With --originals: Hoard, DLmalloc and SuperMalloc's own program, which no system packages, take part in the papers'
    figures from then on, and where they are named. git fetches their public sources, each by the name of a commit, which
    is a checksum of everything in it.

    Needs cargo, gcc, cmake, make and a network the first time (--originals: git, gcc and a network); takes some minutes,
    most of them for tcmalloc-google. What cannot be built is said, and the rest goes on.

    Exit code: 0 when all were built; 1 when some could not be; 125 when none could be tried; 130 when interrupted.

    \b
    Examples:  spanalloc bench peers
               spanalloc bench peers mimalloc rpmalloc
               spanalloc bench peers --originals
    """

    from spanalloc_bench import originals as of_papers, peers

    if not no_build:
        build.make(_places, build.helpers(_places), say)  # which check what was built
    if (of_papers if originals else peers).command(_places, only or [], say):
        raise typer.Exit(1)


@app.command("attacks", short_help="See what allocators do when memory is misused.", context_settings=HELP_SETTINGS)
@guarded(kept="An earlier run's outcomes are as they were.")
def attacks_command(
    attacks: Optional[str] = typer.Option(
        None, "--attacks", "-k", metavar="A,B", help="Only these attacks, by name; --list shows them. Default: all."
    ),
    names: Optional[str] = _contenders_option(
        "Only these allocators, by name, and what --with adds. Default: ours that ship, and all others found on this "
        "machine.",
    ),
    with_: Optional[List[str]] = WITH,
    rounds: Optional[int] = typer.Option(
        None, "--rounds", "-n", min=1, metavar="N",
        help="Processes a size and allocator. Default 5, and 100 of attacks that draw random numbers.",
    ),
    hang_s: float = typer.Option(
        10.0, "--hang", min=0.1, metavar="SECONDS",
        help="A process that takes longer counts as one that hangs. A busy machine needs more.",
    ),
    out: Optional[str] = out_option("Where the outcomes are kept. Default: out/bench of the source tree."),
    no_build: bool = NO_BUILD,
    show: bool = typer.Option(False, "--show", help="Run nothing: the table of the outcomes that are in DIR."),
    write: bool = typer.Option(False, "--write", help="Also put the table into docs/security.md."),
    list_: bool = typer.Option(False, "--list", help="Only print the attacks."),
):
    """What an allocator does when a program misuses memory: a table, attack by allocator.

    A program with a bug may free a block twice, write to a block that it has freed, write past a block's end, or free
    what malloc never returned. An attacker makes use of that when malloc then hands out the same memory twice, or memory
    that was never its own. Here a small program does one such thing at a time, under every allocator, and looks at what
    malloc returns from then on. The best end is that the allocator stops the process at once ("refused"), the worst that
    it goes on with wrong memory ("harm"); all words are explained below the table.

    Takes some minutes. No library of this machine is changed, and nothing but the attacked processes is harmed. DIR then
    holds attacks.csv, with what every process came to, and attacks-meta.json; an earlier run's are replaced.
    docs/security.md says what spanalloc promises and does not.

    Exit code: 0; 125 when nothing could be run; 130 when interrupted.

    \b
    Examples:  spanalloc bench attacks
               spanalloc bench attacks --attacks double-free,overwrite-zero --allocators standard,glibc
               spanalloc bench attacks --with mine=./libmine.so --out /tmp/mine
    """

    from spanalloc_bench import attacks as suite

    if list_:
        if not no_build:
            build.make(_places, [build.program(_places, suite.PROGRAM)], say)
        screen.console().print(screen.table(("attack", "what it is", "bytes", "processes"), [
            (attack.name, f"{attack.group}: {attack.title}", ", ".join(map(str, attack.sizes)), str(attack.repeat))
            for attack in suite.chosen_attacks(suite.catalogue(_places), attacks)]))
        return
    suite.command(_places, names=names, attacks=attacks, with_=with_ or (), rounds=rounds, hang_s=hang_s, out=out,
                  write_document=write, show=show, say=say, console=screen.console(), building=not no_build)


@app.command("soak", short_help="See whether the memory of servers grows.", context_settings=HELP_SETTINGS)
@guarded(kept="Programs that were finished are kept: the same command starts the others anew.")
def soak_command(
    minutes: float = typer.Option(40.0, "--minutes", "-m", min=0.1, metavar="N", help="How long the load goes on."),
    names: Optional[str] = typer.Option(
        None, "--programs", "-p", metavar="A,B", autocompletion=complete_servers,
        help="Of redis, mariadb and node. Default: all that are installed.",
    ),
    allocators_: Optional[str] = _contenders_option(
        "Only these, by name, and what --with adds. Default: standard,glibc,jemalloc,mimalloc; of jemalloc and "
        "mimalloc the newest release that `spanalloc bench peers` has built, else the packaged one.",
    ),
    with_: Optional[List[str]] = WITH,
    cycle: float = typer.Option(
        120.0, "--cycle", min=4.0, metavar="SECONDS",
        help="One cycle of the load's eight phases. The second half of the run is judged in whole cycles; an interval "
        "takes four of them.",
    ),
    seed: int = typer.Option(1, "--seed", metavar="N", help="What the load's random numbers begin with."),
    out: Optional[str] = out_option("Where the samples are kept. Default: out/bench-soak of the source tree."),
    again: bool = typer.Option(False, "--again", help="Replace the soak that is in DIR."),
    no_build: bool = NO_BUILD,
    report: bool = typer.Option(False, "--report", help="Run nothing: tables and picture of what is in DIR."),
    write: bool = typer.Option(False, "--write", help="Also put the tables and the picture into docs/soak.md."),
):
    """Does memory grow? Servers under changing load for forty minutes, an allocator each, side by side.

    Redis, MariaDB and a Node server run once under every allocator, all at the same time, and are sent the same load:
    cycles of eight phases that write small and large values, let them grow, expire and be deleted, open sessions, sort,
    compress, and rest. Memory is sampled every five seconds. The tables show each server's level in the second half of
    the run, and whether it grows there. Only memory is compared, so the load is light (below one CPU for all servers),
    and the machine may be used meanwhile, as long as it is not short of memory or busy throughout.

    The servers listen on Unix sockets in a temporary folder; they, the folder and their data are gone when the command
    ends, also when it is interrupted. The same command then starts the programs that were not finished once more.
    DIR holds soak.csv, a line a sample, soak-meta.json and soak.png. docs/soak.md says how slope and level are computed.

    Needs, of Debian's packages: redis-tools; mariadb-server-core; nodejs. What is missing is said, and the rest goes
    on.

    Exit code: 0; 1 when a server failed under one of our libraries; 125 when nothing could be run; 130 when interrupted.

    \b
    Examples:  spanalloc bench soak
               spanalloc bench soak --programs redis --minutes 10 --cycle 30 --out /tmp/soak
               spanalloc bench soak --report --write
    """

    from spanalloc_bench.soak import command

    if not command.command(
        _places, minutes=minutes, names=names, allocator_names=allocators_, with_=with_ or (), cycle_s=cycle,
        seed=seed, out=out, again=again, only_report=report, write=write, say=say, console=screen.console(),
        building=not no_build,
    ):
        raise typer.Exit(1)


@app.command("memory-return", short_help="See how much memory comes back once most of a heap is freed.",
             context_settings=HELP_SETTINGS)
@guarded(kept="An earlier run's samples are as they were.")
def memory_return_command(
    names: Optional[str] = _contenders_option(
        "Only these, by name, and what --with adds. Default: standard, and all others found on this machine.",
    ),
    with_: Optional[List[str]] = WITH,
    cases: Optional[List[str]] = typer.Option(
        None, "--case", "-c", metavar="SIZE:KEEP[:none]",
        help="Blocks of SIZE bytes, of which one in KEEP is kept (0: none); with :none the program sleeps afterwards. May be "
        "repeated; the first one is drawn. Default: eight cases, 1000:64 first.",
    ),
    # Half as long again as the slowest decay time that is a default, jemalloc's.
    seconds: float = typer.Option(15.0, "--seconds", "-s", min=0.2, max=3600.0, metavar="N", help="How long each case goes on."),
    megabytes: int = typer.Option(200, "--megabytes", "-m", min=1, max=1_000_000, metavar="N", help="Of all blocks of a case."),
    out: Optional[str] = out_option("Where the samples are kept. Default: out/bench-memory-return of the source tree."),
    no_build: bool = NO_BUILD,
    show: bool = typer.Option(False, "--show", help="Run nothing: table and picture of the samples that are in DIR."),
    write: bool = typer.Option(False, "--write", help="Also put sentences, table and picture into README.md and docs/results.md."),
):
    """Once most of a heap is freed, how much memory comes back, and when? A picture, and a table case by allocator.

    A program allocates blocks of 200 MB in all, writes them, frees most, and then allocates and frees a small block each
    millisecond. Its memory, RSS and page tables, is read from outside every 50 ms, under every allocator alike, each as it
    is by default. The allocators of a case run side by side.

    Takes two minutes, and 200 MB of memory an allocator. DIR then holds memory-return.csv, a line a sample,
    memory-return-meta.json, and memory-return.png, the curves of the first case; an earlier run's are replaced.
    docs/results.md tells what was found.

    Exit code: 0; 1 when one of our libraries failed; 125 when nothing could be run; 130 when interrupted.

    \b
    Examples:  spanalloc bench memory-return
               spanalloc bench memory-return --case 256:16 --allocators standard,glibc --seconds 5 --out /tmp/return
               spanalloc bench memory-return --show
    """

    from spanalloc_bench import memory_return

    if not memory_return.command(
        _places, names=names, with_=with_ or (), cases=cases or (), seconds=seconds, megabytes=megabytes, out=out,
        show=show, write_documents=write, say=say, console=screen.console(), building=not no_build,
    ):
        raise typer.Exit(1)


def use_places(places):
    """Says where the build's files are."""
    global _places
    _places = places


def places():
    return _places


def complete(places):
    """Answers a shell that asks what fits: typer does, by the variables that it finds, of `spanalloc bench`'s words."""
    use_places(places)
    command = typer.Typer(add_completion=False)
    command.callback()(lambda: None)
    command.add_typer(app, name="bench")
    command(prog_name="spanalloc")


def main(places, arguments):
    """Runs one command; `places` says where the build's files are. Does not return."""
    use_places(places)
    try:
        app(args=arguments, prog_name="spanalloc bench")
    except ImportError as error:
        if (error.name or "").startswith("spanalloc_bench"):
            print(f"spanalloc bench: this source tree lacks a part of the suite: {error}", file=sys.stderr)
        else:
            said = packages.install_and_restart(error, building="--no-build" not in arguments)
            print(f"spanalloc bench: {said}", file=sys.stderr)
        sys.exit(OWN_FAILURE)
