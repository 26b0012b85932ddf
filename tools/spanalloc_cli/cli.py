"""The command line: options, help texts, tables. Loaded only when it is needed (see start.py)."""

import contextlib
import errno
import json
import signal
import os
import shutil
import sys
from typing import List, Optional

import typer
import typer.core
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from spanalloc_cli import VERSION, libraries, run as run_module
from spanalloc_cli.compare import Comparison, Contender, seldom
from spanalloc_cli.doctor import examine, report, watch
from spanalloc_cli.doctor.files import Files
from spanalloc_cli.top import live, look as top_look, screen as top_screen
from spanalloc_cli.top.memory import CannotRead, Ended

# Plain help texts: typer escapes brackets for a markup that is not rendered here.
typer.core.HAS_RICH = False
typer.core.rich = None  # the same for Debian 12's typer
HELP_SETTINGS = {"help_option_names": ["-h", "--help"]}
# What follows COMMAND's first word belongs to COMMAND, also without the `--`.
COMMAND_SETTINGS = {**HELP_SETTINGS, "allow_interspersed_args": False}

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, context_settings=HELP_SETTINGS,
    pretty_exceptions_enable=False,
    help="""Run programs on spanalloc, and see what that gains over the allocator they have.

    \b
    Examples:  spanalloc run -- git log --stat
               spanalloc compare -- python3 script.py
               spanalloc doctor
               spanalloc top 1234
               spanalloc list

    Each command has a --help of its own; spanalloc(1) describes them all.""",
)
_places = None
JSON_FORMAT = 1  # becomes 2 when a key of --json goes or means something else; a new key leaves it
_SUITE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench")


def _fail(text, code=run_module.OWN_FAILURE):
    print(f"spanalloc: {text}", file=sys.stderr)
    raise typer.Exit(code)


def _console(stream=None):
    """The table's console, on standard output. Not a terminal: no colours, and wide enough that nothing is cut."""
    stream = stream or sys.stdout
    if stream.isatty():
        return Console(file=stream)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else 140
    return Console(file=stream, width=width, no_color=True, highlight=False)


def _print_json(facts):
    """What --json prints, and all that it prints. Scripts read it, by its description in docs/man/spanalloc.1."""
    json.dump({"format": JSON_FORMAT, "spanalloc": VERSION, **facts}, sys.stdout, indent=1)
    print()


# ---- completion: what the scripts in tools/completion ask for ----

COMPLETION = "_SPANALLOC_COMPLETE"  # click's name for it: set by a shell that wants to know what fits


def complete_config():
    return list(libraries.our_configs(_places)) or list(libraries.SHIPPED_CONFIGS)


def complete_allocator():
    return [*complete_config(), *libraries.other_allocators()]


def complete_program(context: typer.Context, incomplete: str):
    """Programs on the PATH for a command's first word; the shell itself knows files."""
    if not incomplete or "/" in incomplete or context.params.get("command"):
        return []
    found = set()
    for folder in os.get_exec_path():
        try:
            found.update(e.name for e in os.scandir(folder) if e.name.startswith(incomplete) and os.access(e.path, os.X_OK))
        except OSError:
            continue
    return sorted(found)


def _know_the_suites_commands():
    """Puts the benchmark suite's commands in the place of `bench`, which hands its words on, where they are here."""
    if _why_no_suite():
        return
    sys.path.insert(0, _SUITE)
    try:
        from spanalloc_bench import cli as bench
    except ImportError:
        return
    bench.use_places(_places)
    app.registered_commands[:] = [command for command in app.registered_commands if command.name != "bench"]
    app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool):
    if wanted:
        print(f"spanalloc {VERSION}")
        raise typer.Exit(0)


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version.")
):
    pass


COMMAND = typer.Argument(
    ..., metavar="-- COMMAND...", help="The program and its arguments.", autocompletion=complete_program
)


@app.command("run", context_settings=COMMAND_SETTINGS)
def run_command(
    command: List[str] = COMMAND,
    config: str = typer.Option(
        libraries.DEFAULT_CONFIG, "--config", "-c", metavar="NAME", help="Which of our libraries; see `spanalloc list`.",
        autocompletion=complete_config,
    ),
):
    """Run a program with spanalloc as its malloc.

    The program takes the place of this command: exit code and signals are its own. Exit codes of the command
    itself: 127 no such program, 126 not executable, 2 wrong options, 125 anything else.

    \b
    Example:  spanalloc run -- python3 -c 'print("hello")'
    """
    raise typer.Exit(run_module.run(_places, config, command))


def _named_contender(text):
    """A contender from an argument of --with: NAME or NAME=PATH."""
    name, equals, path = text.partition("=")
    if equals:
        if not os.path.isfile(path):
            _fail(f"--with {text}: there is no file {path}")
        return Contender(name, path)
    name = libraries.current_name(name)
    others = libraries.other_allocators()
    if name in others:
        return Contender(name, others[name])
    ours = libraries.our_configs(_places)
    if name in ours:
        return Contender(name, ours[name], ours=True)
    if name in libraries.SHIPPED_CONFIGS:
        try:
            libraries.require_config(_places, name)
        except libraries.Missing as error:
            _fail(error)
    known = ", ".join([*ours, *others])
    return _fail(f"--with {name}: not found on this machine. Found: {known}. For any other: --with {name}=PATH")


def _contenders(chosen):
    base = libraries.glibc()
    if not base:
        _fail("this system's C library is not glibc: there is nothing to compare with")
    contenders = [Contender("glibc", base)]
    ours = libraries.our_configs(_places)
    if not ours:
        print("spanalloc: none of our libraries is built; `spanalloc list` says how", file=sys.stderr)
    if chosen:
        if libraries.DEFAULT_CONFIG in ours:
            contenders.append(Contender(libraries.DEFAULT_CONFIG, ours[libraries.DEFAULT_CONFIG], ours=True))
        contenders += [_named_contender(text) for text in chosen]
    else:
        contenders += [Contender(name, ours[name], ours=True) for name in libraries.COMPARED_CONFIGS if name in ours]
        contenders += [Contender(name, path) for name, path in libraries.other_allocators().items()]
    unique = {}
    for contender in contenders:
        unique.setdefault(contender.name, contender)
    return list(unique.values())


def _run_with_progress(comparison):
    total = len(comparison.contenders) * (comparison.rounds + 1)
    if not sys.stderr.isatty():
        comparison.run_all(seldom(total))
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=total)

        def advance(text):
            if text is None:
                progress.advance(task)
            else:
                progress.update(task, description=text)

        comparison.run_all(advance)


def _memory(kib):
    return f"{kib / 1024:.1f} MiB"


def _time(seconds):
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1000:.2f} ms"


def _ratio(value):
    if value is None:
        return "-"
    colour = "green" if value < 0.975 else "red" if value > 1.025 else ""
    text = f"{value:.2f}"
    return f"[{colour}]{text}[/]" if colour else text


SHORT_S = 0.1  # a program that runs for less is starting, most of the time


def _remarks(comparison):
    """What stands below the table."""
    if any(c.ours for c in comparison.contenders):
        yield "spanalloc standard: libspanalloc.so. spanalloc NAME: libspanalloc-NAME.so, another engine or setting."
    yield (f"Medians of {comparison.rounds} run{'s' * (comparison.rounds > 1)} each, in rotation. "
           "Memory: peak of RSS + page tables, whole process tree.")
    median = comparison.contenders[0].medians()["wall_s"]
    if median < SHORT_S:
        yield f"The program ends after {_time(median)}: most of that is its start, with one library more to load. Try a longer run."


def _table(comparison):
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    table.add_column("allocator")
    for heading in ("time", "CPU", "peak memory", "page faults", "time/glibc", "memory/glibc"):
        table.add_column(heading, justify="right")
    table.add_column("note")
    for c in comparison.contenders:
        name = f"[bold]spanalloc {c.name}[/]" if c.ours else c.name
        if c.problem or not c.runs:
            table.add_row(name, *["-"] * 6, c.problem or "not run")
            continue
        median, ratio = c.medians(), comparison.ratios(c)
        note = "" if c.processes_ours == c.processes else f"in {c.processes_ours} of {c.processes} processes"
        table.add_row(
            name, _time(median["wall_s"]), _time(median["cpu_s"]), _memory(median["peak_kib"]),
            f"{median['page_faults']:,.0f}", _ratio(ratio["wall_s"]), _ratio(ratio["peak_kib"]), note,
        )
    return table


@app.command("compare", short_help="Compare allocators on a program: time and memory.", context_settings=COMMAND_SETTINGS)
def compare_command(
    command: List[str] = COMMAND,
    runs: int = typer.Option(5, "--runs", "-n", min=1, help="Counted runs under each allocator."),
    with_: Optional[List[str]] = typer.Option(
        None, "--with", "-w", metavar="NAME[=PATH]", autocompletion=complete_allocator,
        help="Compare glibc and our standard config with just these: a config, an allocator found on this machine, "
        "or NAME=PATH of any shared object that defines malloc. May be repeated. Default: glibc, standard, scalloc, "
        "supermalloc, and every other allocator found.",
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON instead of the table, with every run's figures; spanalloc(1) describes it."
    ),
    timeout: float = typer.Option(600.0, "--timeout", min=0.1, metavar="SECONDS", help="Give up on a run after this."),
):
    """Run a program under several allocators and compare time and memory.

    The allocators take turns, each round in another order, after one uncounted warm-up run each in which a
    probe inside the program checks whose malloc it really uses. The table shows medians. Memory is the peak of
    RSS + page tables, summed over the program's whole process tree. glibc's row preloads libc itself, so that
    a program linked against another allocator is compared rightly. The program's output is not shown.

    \b
    Example:  spanalloc compare -n 5 -- python3 -c 'x = [str(i) for i in range(10**6)]'
    """
    if not shutil.which(command[0]):
        # Up to 0.1 a file's name stood there.
        hint = f"; --json takes no file name: spanalloc compare --json ... > {command[0]}"
        _fail(f"{command[0]}: command not found" + hint * (as_json and "--" in command[1:]), run_module.NOT_FOUND)
    for helper in (_places.measure, _places.probe):
        if not os.path.isfile(helper):
            _fail(f"{helper} is missing; in the source tree, {libraries.BUILD} builds it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the running command, as an interrupt does
    comparison = Comparison(_places, command, _contenders(with_ or []), runs, timeout)
    try:
        _run_with_progress(comparison)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    base = comparison.contenders[0]
    if base.problem:
        if comparison.last_errors:
            print(comparison.last_errors.rstrip(), file=sys.stderr)
        _fail(f"no comparison: the command under glibc: {base.problem}", 1)
    if as_json:
        _print_json(comparison.as_json())
    else:
        _console().print(_table(comparison))
        for line in _remarks(comparison):
            print(line)
    if any(c.problem for c in comparison.contenders if c.ours):
        raise typer.Exit(1)


SUBJECT = typer.Argument(
    None, metavar="[PID | -- COMMAND...]", help="A process, or a program and its arguments. Default: this machine.",
    autocompletion=complete_program,
)


@app.command("doctor", short_help="What costs memory or time here, and what to do.", context_settings=COMMAND_SETTINGS)
def doctor_command(
    command: Optional[List[str]] = SUBJECT,
    config: str = typer.Option(
        libraries.DEFAULT_CONFIG, "--config", "-c", metavar="NAME", help="Which of our libraries the program runs on.",
        autocompletion=complete_config,
    ),
    as_json: bool = typer.Option(
        False, "--json",
        help="Print JSON instead of text; spanalloc(1) describes it. The program's standard output goes to standard error.",
    ),
):
    """Say what costs memory or time here, in plain words, each with what to do.

    Without argument: of this machine, and of what programs get that are started from this shell. With the number of a
    process: of that one. With a program: runs it on spanalloc, looks at it meanwhile, and says at its end what was
    found, on standard error; the exit code is the program's (128 and the signal's number if one ended it). Else the
    exit code is 0, whatever is found.

    \b
    Examples:  spanalloc doctor
               spanalloc doctor 1234
               spanalloc doctor -- python3 script.py
    """
    if not command:
        found = examine.this_machine(Files(), dict(os.environ))
        _print_findings(found, as_json, sys.stdout, kind="machine", process=None, command=None, exit_code=None)
    elif len(command) == 1 and command[0].isdecimal():
        try:
            found = examine.a_process(Files(), int(command[0]))
        except examine.NoSubject as error:
            _fail(error)
        _print_findings(
            found, as_json, sys.stdout, kind="process", process=int(command[0]), command=None, exit_code=None)
    else:
        raise typer.Exit(_examine_run(command, config, as_json))


def _examine_run(command, config, as_json):
    """Runs a program, prints what was found, and returns the program's exit code."""
    files = Files()
    environment = run_module.environment_with(_places, config)
    try:
        watched = watch.watch(files, command, environment, examine.a_process_of_ours(files),
                              output=sys.stderr if as_json else None)
    except OSError as error:
        _fail(*run_module.why_not_executed(command[0], error))
    found = examine.a_run(files, shutil.which(command[0]), watched, command)
    _print_findings(found, as_json, sys.stdout if as_json else sys.stderr, kind="program",
                    process=watched.process.number if watched.process else None, command=command,
                    exit_code=watched.exit_code)
    return watched.exit_code


def _print_findings(found, as_json, stream, **subject):
    if as_json:
        _print_json(report.as_json(found, **subject))
        return
    width = shutil.get_terminal_size().columns if stream.isatty() else 100
    for line in report.as_text(found, width):
        print(line, file=stream)


WATCHED = typer.Argument(
    ..., metavar="PID | -- COMMAND...", help="A process, or a program and its arguments.",
    autocompletion=complete_program,
)


# (Options may follow the PID; so a program with options of its own stands behind `--`.)
@app.command("top", short_help="Show live what a process's heap holds.", context_settings=HELP_SETTINGS)
def top_command(
    command: List[str] = WATCHED,
    config: str = typer.Option(
        libraries.DEFAULT_CONFIG, "--config", "-c", metavar="NAME", help="Which of our libraries the program runs on.",
        autocompletion=complete_config,
    ),
    interval: float = typer.Option(
        1.0, "--interval", "-i", min=0.1, max=3600.0, metavar="SECONDS", help="Time between two looks."
    ),
    once: bool = typer.Option(
        False, "--once", help="One table instead of a live one: of a process as it is now, of a program as it was at "
        "its fullest, on standard error when it has ended."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="As --once, as JSON on standard output; spanalloc(1) describes it. The program's standard "
        "output goes to standard error."
    ),
):
    """Show live what the heap of a process holds: by size of blocks, and by thread.

    The process need not know: nothing is counted there for this, and nothing is stopped. Its memory is read from
    outside, which the kernel must allow (a refusal says how). Keys: q ends, s sorts otherwise, p pauses. Where standard
    output is no terminal there is one table, as with --once.

    With a program: runs it on spanalloc. While the table is shown the terminal is the table's: what the program writes
    there comes afterwards, and it reads nothing there. The exit code is the program's.

    \b
    Examples:  spanalloc top 1234
               spanalloc top -- python3 script.py
               spanalloc top --once $(pidof -s redis-server)
    """
    console = _console()
    shows_live = not once and not as_json
    if shows_live and (not sys.stdout.isatty() or console.is_dumb_terminal):
        print("spanalloc: standard output is no terminal: one table, as with --once", file=sys.stderr)
        shows_live = False
    try:
        if len(command) == 1 and command[0].isdecimal():
            _top_of_process(int(command[0]), console, interval, shows_live, as_json)
        else:
            raise typer.Exit(_top_of_run(command, config, console, interval, shows_live, as_json))
    except (CannotRead, Ended) as error:
        _fail(error)


def _top_of_process(pid, console, interval, shows_live, as_json):
    watcher = top_look.Watcher(pid)
    watcher.process.expect_one()
    if shows_live:
        said = live.watch_process(watcher, console, interval)
        if said:
            print(f"spanalloc: {said}", file=sys.stderr)
        return
    look = watcher.look()
    if as_json:
        _print_json(top_look.as_json(watcher, look))
    else:
        console.print(_top_table(pid, look, console.width))


def _top_table(pid, look, width, sort="size", height=None):
    return top_screen.Screen(pid, sort).draw(look, width, height)


def _top_of_run(command, config, console, interval, shows_live, as_json):
    """Runs a program, shows it, and returns its exit code."""
    environment = run_module.environment_with(_places, config)
    try:
        result = live.run(command, environment, interval, console if shows_live else None,
                          sys.stderr if as_json else None)
    except OSError as error:
        _fail(*run_module.why_not_executed(command[0], error))
    if result.problem:
        print(f"spanalloc: {result.problem}", file=sys.stderr)
    elif result.fullest is None:
        print(f"spanalloc: {command[0]} ended before it could be looked at", file=sys.stderr)
    if as_json:
        found = top_look.as_json(result.watcher, result.fullest, command) if result.fullest else {"process": None}
        _print_json({**found, "exit_code": result.exit_code, "after_s": result.after_s})
    elif result.fullest is not None:
        errors = _console(sys.stderr)
        errors.print(f"At its fullest, {result.after_s:.1f} s after its start:", highlight=False)
        fits = {"sort": "live", "height": errors.height} if errors.is_terminal else {}
        errors.print(_top_table(result.watcher.pid, result.fullest, errors.width, **fits))
    return result.exit_code


@app.command("list", short_help="List our configs and the other allocators.", context_settings=HELP_SETTINGS)
def list_command(
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of the table; spanalloc(1) describes it."),
):
    """List our configs and the other allocators found on this machine.

    \b
    Examples:  spanalloc list
               spanalloc list --json
    """
    ours = libraries.our_configs(_places)
    rows = [(name, "spanalloc", ours.get(name)) for name in dict.fromkeys([*libraries.SHIPPED_CONFIGS, *ours])]
    rows.append(("glibc", "C library", libraries.glibc()))
    rows += [(name, "other", path) for name, path in libraries.other_allocators().items()]
    if as_json:
        _print_json({"allocators": [{"name": name, "kind": kind, "path": path} for name, kind, path in rows]})
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for heading in ("name", "kind", "library"):
        table.add_column(heading, overflow="fold")
    for name, kind, path in rows:
        table.add_row(name, kind, path or ("not found" if kind == "C library" else f"not built: {libraries.BUILD}"))
    _console().print(table)
    packaged = libraries.packaged_allocators()
    missing = [package for name, package in libraries.PACKAGES.items() if name not in packaged]
    if os.path.isdir(_SUITE) and not libraries.built_peers():
        print("Newer ones can be built from source: spanalloc bench peers")
    if missing:
        print(f"Debian has more to compare with: apt install {' '.join(missing)}")


def _why_no_suite():
    """Why there is no `bench` here; empty where there is."""
    if not os.path.isfile(os.path.join(_SUITE, "spanalloc_bench", "cli.py")):
        return (
            "the benchmark suite belongs to the source tree and is not installed with this command. In a clone of the\n"
            "repository run scripts/bench, which builds and runs it, or build/release/bin/spanalloc bench."
        )
    if sys.version_info < (3, 10):
        return f"bench needs Python 3.10 or newer; this is {sys.version.split()[0]}"
    return ""


@app.command(
    "bench", short_help="Benchmarks, in a source tree: `bench --help`.", add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def bench_command(context: typer.Context):
    """Benchmarks and the papers' experiments, in a source tree: see `spanalloc bench --help`."""
    why_not = _why_no_suite()
    if why_not:
        _fail(why_not)
    sys.path.insert(0, _SUITE)
    from spanalloc_bench import cli as bench

    bench.main(_places, context.args)


def main(places, arguments):
    global _places
    _places = places
    if COMPLETION in os.environ:
        _know_the_suites_commands()
    with _output_that_is_told_of():
        try:
            app(args=arguments, prog_name="spanalloc")
        except libraries.Missing as error:
            print(f"spanalloc: {error}", file=sys.stderr)
            sys.exit(run_module.OWN_FAILURE)


_CANNOT_BE_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF)


@contextlib.contextmanager
def _output_that_is_told_of():
    """Where standard output is closed, or full, the command says so and has failed; where standard error is closed,
    nobody is told anything."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # pylint: disable=consider-using-with
    if sys.stdout is None:
        print("spanalloc: standard output is closed", file=sys.stderr)
        sys.exit(run_module.OWN_FAILURE)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, *_CANNOT_BE_WRITTEN) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python writes at its end
        if error.errno == errno.EPIPE:
            sys.exit(128 + signal.SIGPIPE)  # as a program that does not ask
        print(f"spanalloc: cannot write to standard output: {error.strerror}", file=sys.stderr)
        sys.exit(run_module.OWN_FAILURE)
