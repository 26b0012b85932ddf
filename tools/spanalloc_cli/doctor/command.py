"""`spanalloc doctor`, the command: what it is asked about, and where it prints."""

import os
import shutil
import sys

from spanalloc_cli import run
from spanalloc_cli.doctor import examine, report, watch
from spanalloc_cli.doctor.files import Files
from spanalloc_cli.output import fail, print_json
from spanalloc_cli.terminal import Output


def do(places, given):
    if given.command:
        return _of_run(places, given.command, given.config, given.json)
    if given.pid is None:
        found = examine.this_machine(Files(), dict(os.environ))
        _print(found, given.json, sys.stdout, kind="machine", process=None, command=None, exit_code=None)
        return 0
    try:
        found = examine.a_process(Files(), given.pid)
    except examine.NoSubject as error:
        fail(error)
    _print(found, given.json, sys.stdout, kind="process", process=given.pid, command=None, exit_code=None)
    return 0


def _of_run(places, command, config, as_json):
    """Runs a program, prints what was found, and returns the program's exit code."""
    files = Files()
    environment = run.environment_with(places, config)
    try:
        watched = watch.watch(files, command, environment, examine.a_process_of_ours(files),
                              output=sys.stderr if as_json else None)
    except OSError as error:
        fail(*run.why_not_executed(command[0], error))
    found = examine.a_run(files, shutil.which(command[0]), watched, command)
    _print(found, as_json, sys.stdout if as_json else sys.stderr, kind="program",
           process=watched.process.number if watched.process else None, command=command, exit_code=watched.exit_code)
    return watched.exit_code


def _print(found, as_json, stream, **subject):
    if as_json:
        print_json(report.as_json(found, **subject))
        return
    output = Output(stream)
    output.print(*report.as_text(found, output.size[0] if output.is_terminal else 100))
