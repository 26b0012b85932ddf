"""The command line: commands, options, help texts. What a command does is loaded when it is called."""

import argparse
import collections
import os
import sys
import textwrap

from spanalloc_cli import VERSION, complete, libraries, output, run as run_module

_places = None
_SUITE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench")
_FLAG = {"action": "store_true"}


class Option(collections.namedtuple("Option", "flags settings complete")):
    """`flags`: the long one first; `settings`: for argparse; `complete()`: words that fit as its value, or None."""

    def __new__(cls, *flags, complete=None, **settings):  # pylint: disable=redefined-outer-name
        return super().__new__(cls, flags, settings, complete)

    @property
    def takes_value(self):
        return self.settings.get("action") != "store_true"


class Command(collections.namedtuple("Command", "short arguments text options do takes_program mixes")):
    """`short`: for the list of commands; `arguments`: of the line of its usage; `text`: of its help; `do(given)`: gives
    the exit code; `takes_program`: its words are a program's, in given.command, or a process's number, in given.pid (None:
    no number; behind `--` there is a program, whatever it is called); `mixes`: options may follow these (else what follows the first of them is the program's, also without `--`; but behind a process's
    number there are options alone)."""

    def __new__(cls, short, arguments, text, options, do, takes_program=True, mixes=False):
        text = textwrap.dedent(text).strip("\n")
        return super().__new__(cls, short, arguments, text, options, do, takes_program, mixes)

    def is_number(self, word):
        """Whether a first word, not behind `--`, is a process's number."""
        return "PID" in self.arguments and word.isdecimal()


class _Help(argparse.RawDescriptionHelpFormatter):
    """`-c, --config NAME` in each version of Python."""

    def add_usage(self, usage, actions, groups, prefix=None):
        super().add_usage(usage, actions, groups, "Usage: ")

    def _format_action_invocation(self, action):
        flags = ", ".join(sorted(action.option_strings, key=len)) or action.metavar
        return f"{flags} {action.metavar}" if action.option_strings and action.nargs != 0 else flags


def _parser(name, command):
    parser = argparse.ArgumentParser(
        prog=f"spanalloc {name}", usage=f"spanalloc {name} [OPTIONS]{command.arguments and ' ' + command.arguments}",
        description=command.text, formatter_class=_Help, add_help=False, allow_abbrev=False)
    if command.takes_program:
        parser.add_argument("command", nargs="*" if command.mixes else argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.add_argument_group("Options")
    for option in command.options:
        options.add_argument(*option.flags, **option.settings)
    options.add_argument("-h", "--help", action="help", help="Show this message and exit.")
    return parser


def _parse(name, command, words):
    parser = _parser(name, command)
    if not command.takes_program:
        return parser.parse_args(words)
    # (argparse takes out some of these, so that it does not tell whether one stood before the first word.)
    at = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:at])
    is_program = at < len(words) and not given.command
    if is_program:
        given.command = words[at + 1:]
    elif at < len(words):
        given = parser.parse_args(words)
    given.pid = None
    if not is_program and given.command and command.is_number(given.command[0]):
        number, *behind = given.command
        given.command, given.pid = [], int(number)
        given = parser.parse_args(behind, given)
        if given.command:
            parser.error(f"behind a process's number there are options alone: {given.command[0]}")
    core = getattr(given, "core", None)
    if core is not None and (given.command or given.pid is not None):
        parser.error("beside a core file there is no process and no program")
    if not given.command and given.pid is None and core is None and not command.arguments.startswith("["):
        parser.error(f"missing: {command.arguments}")
    return given


# ---- what commands do ----


def _run(given):
    return run_module.run(_places, given.config, given.command)


def _compare(given):
    from spanalloc_cli import compare_command

    return compare_command.do(_places, given)


def _doctor(given):
    from spanalloc_cli.doctor import command

    return command.do(_places, given)


def _top(given):
    from spanalloc_cli.top import command

    return command.do(_places, given)


def _list(given):
    from spanalloc_cli import list_command

    return list_command.do(_places, given, os.path.isdir(_SUITE))


def _bench(words):
    """The benchmark suite takes the words as they are: it has commands and options of its own."""
    suite = _suite()
    if isinstance(suite, str):
        output.fail(suite)
    suite.main(_places, words)


def _suite():
    """The suite's commands; a text that says why there are none here."""
    if not os.path.isfile(os.path.join(_SUITE, "spanalloc_bench", "cli.py")):
        return ("the benchmark suite belongs to the source tree and is not installed with this command. In a clone of\n"
                "the repository run scripts/bench, which builds and runs it, or build/release/bin/spanalloc bench.")
    if sys.version_info < (3, 10):
        return f"bench needs Python 3.10 or newer; this is {sys.version.split()[0]}"
    sys.path[:0] = [_SUITE, os.path.dirname(_SUITE)]
    try:
        from spanalloc_bench import cli as suite
        from papers.shared.figures import commands  # noqa: F401  # they join the suite, which knows no paper
    except ImportError as error:
        return (f"{error}. bench needs the Python packages typer and rich: scripts/bench sets up build/venv, which\n"
                f"has them; or name a Python that does: SPANALLOC_PYTHON=/a/venv/bin/python3 (not {sys.executable})")
    return suite


# ---- values of options ----


def _complete_config():
    return list(libraries.our_configs(_places)) or list(libraries.SHIPPED_CONFIGS)


def _complete_allocator():
    return [*_complete_config(), *libraries.other_allocators()]


def _number(kind, least, most=float("inf")):
    def take(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            what = "a whole number" if kind is int else "a number"
            bounds = f"of at least {least}" if most == float("inf") else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{text}: it takes {what} {bounds}")
        return value

    return take


# ---- the commands ----


def _config(text):
    return Option("--config", "-c", default=libraries.DEFAULT_CONFIG, metavar="NAME", help=text,
                  complete=_complete_config)


COMMANDS = {
    "run": Command(
        "Run a program with spanalloc as its malloc.", "-- COMMAND...", """
        Run a program with spanalloc as its malloc.

        The program takes the place of this command: exit code and signals are its own. Exit codes of the
        command itself: 127 no such program, 126 not executable, 2 wrong options, 125 anything else.

        Example:  spanalloc run -- python3 -c 'print("hello")'
        """,
        (_config("Which of our libraries; see `spanalloc list`."),), _run),
    "compare": Command(
        "Compare allocators on a program: time and memory.", "-- COMMAND...", """
        Run a program under several allocators and compare time and memory.

        The allocators take turns, each round in another order, after one uncounted warm-up run each in which
        a probe inside the program checks whose malloc it really uses. The table shows medians. Memory is the
        peak of RSS + page tables, summed over the program's whole process tree. glibc's row preloads libc
        itself, so that a program linked against another allocator is compared rightly. The program's output
        is not shown.

        Example:  spanalloc compare -n 5 -- python3 -c 'x = [str(i) for i in range(10**6)]'
        """,
        (Option("--runs", "-n", type=_number(int, 1), default=5, metavar="RUNS",
                help="Counted runs under each allocator (default 5)."),
         Option("--with", "-w", dest="with_", action="append", default=[], metavar="NAME[=PATH]",
                help="Compare glibc and our standard config with just these: a config, an allocator found on this "
                "machine, or NAME=PATH of any shared object that defines malloc. May be repeated. Default: glibc, "
                "standard, scalloc, supermalloc, and every other allocator found.", complete=_complete_allocator),
         Option("--json", **_FLAG, help="Print JSON instead of the table, with every run's figures; spanalloc(1) "
                "describes it."),
         Option("--timeout", type=_number(float, 0.1), default=600.0, metavar="SECONDS",
                help="Give up on a run after this (default 600).")), _compare),
    "doctor": Command(
        "What costs memory or time here, and what to do.", "[PID | -- COMMAND...]", """
        Say what costs memory or time here, in plain words, each with what to do.

        Without argument: of this machine, and of what programs get that are started from this shell. With the
        number of a process: of that one. With a program: runs it on spanalloc, looks at it meanwhile, and says
        at its end what was found, on standard error; the exit code is the program's (128 and the signal's
        number if one ended it). Else the exit code is 0, whatever is found.

        Examples:  spanalloc doctor
                   spanalloc doctor 1234
                   spanalloc doctor -- python3 script.py
        """,
        (_config("Which of our libraries the program runs on."),
         Option("--json", **_FLAG, help="Print JSON instead of text; spanalloc(1) describes it. The program's standard "
                "output goes to standard error.")), _doctor),
    "top": Command(
        "Show live what a process's heap holds.", "PID | --core FILE | -- COMMAND...", """
        Show live what the heap of a process holds: by size of blocks, and by thread.

        The process need not know: nothing is counted there for this, and nothing is stopped. Its memory is
        read from outside, which the kernel must allow (a refusal says how). Keys: q ends, s sorts otherwise,
        p pauses. Where standard output is no terminal there is one table, as with --once.

        With a core file: one table of what the process held when it ended. The library's file must be where it
        was, and be the same.

        With a program: runs it on spanalloc. While the table is shown the terminal is the table's: what the
        program writes there comes afterwards, and it reads nothing there. The exit code is the program's.

        Examples:  spanalloc top 1234
                   spanalloc top -- python3 script.py
                   spanalloc top --once $(pidof -s redis-server)
                   spanalloc top --core core.1234
        """,
        (_config("Which of our libraries the program runs on."),
         Option("--interval", "-i", type=_number(float, 0.1, 3600.0), default=1.0, metavar="SECONDS",
                help="Time between two looks (default 1)."),
         Option("--core", metavar="FILE", help="One table, of the process that left this core file."),
         Option("--once", **_FLAG, help="One table instead of a live one: of a process as it is now, of a program as "
                "it was at its fullest, on standard error when it has ended."),
         Option("--json", **_FLAG, help="As --once, as JSON on standard output; spanalloc(1) describes it. The "
                "program's standard output goes to standard error.")), _top, mixes=True),
    "list": Command(
        "List our configs and the other allocators.", "", """
        List our configs and the other allocators found on this machine.

        Examples:  spanalloc list
                   spanalloc list --json
        """,
        (Option("--json", **_FLAG, help="Print JSON instead of the table; spanalloc(1) describes it."),), _list,
        takes_program=False),
    "bench": Command("Benchmarks, in a source tree: `bench --help`.", "", "", (), None, takes_program=False),
}

HELP = """\
Usage: spanalloc [OPTIONS] COMMAND [ARGS]...

Run programs on spanalloc, and see what that gains over the allocator they have.

Examples:  spanalloc run -- git log --stat
           spanalloc compare -- python3 script.py
           spanalloc doctor
           spanalloc top 1234
           spanalloc list

Each command has a --help of its own; spanalloc(1) describes them all.

Options:
  --version   Print the version.
  -h, --help  Show this message and exit.

Commands:
"""


def _call(words):
    """Does what the words say, and gives the exit code."""
    name = words[0] if words else "--help"
    if name == "--version":
        print(f"spanalloc {VERSION}")
    elif name in ("-h", "--help"):
        print(HELP + "\n".join(f"  {each:9}{command.short}" for each, command in COMMANDS.items()))
    elif name == "bench":
        return _bench(words[1:])
    elif name in COMMANDS:
        return COMMANDS[name].do(_parse(name, COMMANDS[name], words[1:]))
    else:
        kind = "option" if name.startswith("-") else "command"
        output.fail(f"there is no {kind} {name}: spanalloc --help", 2)
    return 0


def _complete():
    words, begun = complete.asked()
    if words[:1] != ["bench"]:
        complete.answer(complete.offered(COMMANDS, words, begun))
        return
    suite = _suite()
    if not isinstance(suite, str):
        suite.complete(_places)


def main(places, words):
    global _places
    _places = places
    with output.that_is_told_of(is_written=words[:1] != ["run"]):
        if complete.ASKED_BY in os.environ:
            _complete()
            return
        try:
            sys.exit(_call(words))
        except libraries.Missing as error:
            output.fail(error)
        except KeyboardInterrupt:
            sys.exit(130)
