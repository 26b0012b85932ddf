"""`spanalloc top`, the command: of a process, of a core file, or of a program that it runs; live, or one table."""

import sys

from spanalloc_cli import run
from spanalloc_cli.output import fail, print_json
from spanalloc_cli.terminal import Output
from spanalloc_cli.top import core, live, look as looks, screen
from spanalloc_cli.top.memory import CannotRead, Ended


def do(places, given):
    output = Output()
    shows_live = not given.once and not given.json and given.core is None
    if shows_live and not output.is_screen:
        print("spanalloc: standard output is no terminal: one table, as with --once", file=sys.stderr)
        shows_live = False
    try:
        if given.core is not None:
            return _of_core(given.core, output, given.json)
        if given.pid is not None:
            return _of_process(given.pid, output, given.interval, shows_live, given.json)
        return _of_run(places, given, output if shows_live else None)
    except (CannotRead, Ended) as error:
        return fail(error)


def _of_process(pid, output, interval, shows_live, as_json):
    watcher = looks.Watcher(pid)
    watcher.process.expect_one()
    if shows_live:
        said = live.watch_process(watcher, output, interval)
        if said:
            print(f"spanalloc: {said}", file=sys.stderr)
        return 0
    look = watcher.look()
    if as_json:
        print_json(looks.as_json(pid, watcher.process.command(), look))
    else:
        output.print(*screen.Screen(pid).draw(look, output.size[0]))
    return 0


def _of_core(path, output, as_json):
    still = core.Core(path)
    look = looks.of_still(still)
    if as_json:
        print_json(looks.as_json(still.pid, still.command, look))
    else:
        output.print(*screen.Screen(still.pid).draw(look, output.size[0]))
    return 0


def _of_run(places, given, output):
    """Runs a program, shows it, and returns its exit code."""
    command = given.command
    environment = run.environment_with(places, given.config)
    try:
        result = live.run(command, environment, given.interval, output, sys.stderr if given.json else None)
    except OSError as error:
        fail(*run.why_not_executed(command[0], error))
    if result.problem:
        print(f"spanalloc: {result.problem}", file=sys.stderr)
    elif result.fullest is None:
        print(f"spanalloc: {command[0]} ended before it could be looked at", file=sys.stderr)
    if given.json:
        found = (looks.as_json(result.watcher.pid, command, result.fullest) if result.fullest
                 else {"process": None})
        print_json({**found, "exit_code": result.exit_code, "after_s": result.after_s})
    elif result.fullest is not None:
        errors = Output(sys.stderr)
        width, height = errors.size
        errors.print(f"At its fullest, {result.after_s:.1f} s after its start:",
                     *screen.Screen(result.watcher.pid).draw(result.fullest, width, height))
    return result.exit_code
