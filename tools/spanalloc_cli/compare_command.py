"""`spanalloc compare`: which allocators take part, how far it is, and the table."""

import contextlib
import os
import shutil
import signal
import sys

from spanalloc_cli import libraries, run
from spanalloc_cli.compare import Comparison, Contender, seldom
from spanalloc_cli.output import fail, print_json
from spanalloc_cli.terminal import Output, Table, cropped, paint

SHORT_S = 0.1  # a program that runs for less is starting, most of the time
_BAR = 30


def do(places, given):
    command = given.command
    if not shutil.which(command[0]):
        # Up to 0.1 a file's name stood there.
        hint = f"; --json takes no file name: spanalloc compare --json ... > {command[0]}"
        fail(f"{command[0]}: command not found" + hint * (given.json and "--" in command[1:]), run.NOT_FOUND)
    for helper in (places.measure, places.probe):
        if not os.path.isfile(helper):
            fail(f"{helper} is missing; in the source tree, {libraries.BUILD} builds it")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the running command, as an interrupt does
    comparison = Comparison(places, command, contenders(places, given.with_), given.runs, given.timeout)
    try:
        with _progress(len(comparison.contenders) * (given.runs + 1)) as advance:
            comparison.run_all(advance)
    except KeyboardInterrupt:
        fail("interrupted", 130)
    base = comparison.contenders[0]
    if base.problem:
        if comparison.last_errors:
            print(comparison.last_errors.rstrip(), file=sys.stderr)
        fail(f"no comparison: the command under glibc: {base.problem}", 1)
    if given.json:
        print_json(comparison.as_json())
    else:
        output = Output()
        output.print(*table(comparison).lines(output.size[0]), *remarks(comparison))
    return int(any(c.problem for c in comparison.contenders if c.ours))


# ---- which take part ----


def _named(places, text):
    """A contender from an argument of --with: NAME or NAME=PATH."""
    name, equals, path = text.partition("=")
    if equals:
        if not os.path.isfile(path):
            fail(f"--with {text}: there is no file {path}")
        return Contender(name, path)
    name = libraries.current_name(name)
    others = libraries.other_allocators()
    if name in others:
        return Contender(name, others[name])
    ours = libraries.our_configs(places)
    if name in ours:
        return Contender(name, ours[name], ours=True)
    if name in libraries.SHIPPED_CONFIGS:
        libraries.require_config(places, name)  # says how it is built
    known = ", ".join([*ours, *others])
    return fail(f"--with {name}: not found on this machine. Found: {known}. For any other: --with {name}=PATH")


def contenders(places, chosen):
    base = libraries.glibc()
    if not base:
        fail("this system's C library is not glibc: there is nothing to compare with")
    found = [Contender("glibc", base)]
    ours = libraries.our_configs(places)
    if not ours:
        print("spanalloc: none of our libraries is built; `spanalloc list` says how", file=sys.stderr)
    if chosen:
        if libraries.DEFAULT_CONFIG in ours:
            found.append(Contender(libraries.DEFAULT_CONFIG, ours[libraries.DEFAULT_CONFIG], ours=True))
        found += [_named(places, text) for text in chosen]
    else:
        found += [Contender(name, ours[name], ours=True) for name in libraries.COMPARED_CONFIGS if name in ours]
        found += [Contender(name, path) for name, path in libraries.other_allocators().items()]
    unique = {}
    for contender in found:
        unique.setdefault(contender.name, contender)
    return list(unique.values())


# ---- how far it is ----


@contextlib.contextmanager
def _progress(total):
    """What Comparison.run_all calls. Nothing is drawn while a run is measured."""
    errors = Output(sys.stderr)
    if not errors.is_screen:
        yield seldom(total)
        return
    done = 0

    def advance(text):
        nonlocal done
        if text is None:
            done += 1
            return
        full = _BAR * done // total
        bar = paint("━" * full, "green") + paint("━" * (_BAR - full), "dim")
        errors.write("\r" + cropped(f"{text:24} {bar} {done}/{total}", errors.size[0] - 1))
        errors.stream.write("\x1b[K")
        errors.stream.flush()

    try:
        yield advance
    finally:
        errors.stream.write("\r\x1b[K")
        errors.stream.flush()


# ---- the table ----


def _memory(kib):
    return f"{kib / 1024:.1f} MiB" if kib < 10 << 20 else f"{kib / (1 << 20):.1f} GiB"


def _time(seconds):
    if seconds < 0.1:
        return f"{seconds * 1000:.2f} ms"
    return f"{seconds:.3f} s" if seconds < 100 else f"{seconds:.1f} s"


def _ratio(value):
    if value is None:
        return "-"
    return paint(f"{value:.2f}", *["green"] * (value < 0.975), *["red"] * (value > 1.025))


def remarks(comparison):
    """What stands below the table."""
    if any(c.ours for c in comparison.contenders):
        yield "spanalloc standard: libspanalloc.so. spanalloc NAME: libspanalloc-NAME.so, another engine or setting."
    yield (f"Medians of {comparison.rounds} run{'s' * (comparison.rounds > 1)} each, in rotation. "
           "Memory: peak of RSS + page tables, whole process tree.")
    median = comparison.contenders[0].medians()["wall_s"]
    if median < SHORT_S:
        yield (f"The program ends after {_time(median)}: most of that is its start, with one library more to load. "
               "Try a longer run.")


def table(comparison):
    found = Table("allocator", ">time", ">CPU", ">peak memory", ">page faults", ">time/glibc", ">memory/glibc")
    for c in comparison.contenders:
        name = paint(f"spanalloc {c.name}", "bold") if c.ours else c.name
        if c.problem or not c.runs:
            found.add(name, *["-"] * 6, note=c.problem or "not run")
            continue
        median, ratio = c.medians(), comparison.ratios(c)
        found.add(name, _time(median["wall_s"]), _time(median["cpu_s"]), _memory(median["peak_kib"]),
                  f"{median['page_faults']:,.0f}", _ratio(ratio["wall_s"]), _ratio(ratio["peak_kib"]),
                  note="" if c.processes_ours == c.processes else f"in {c.processes_ours} of {c.processes} processes")
    return found
