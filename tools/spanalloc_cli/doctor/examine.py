"""What the doctor is asked: this machine, a process, a program that it runs. Each gives its findings."""

import os

from spanalloc_cli.doctor import bounds, classes, environment, machine, preload, program
from spanalloc_cli.doctor.findings import FINE, KNOW, Finding, as_root, ordered, some
from spanalloc_cli.doctor.process import Process


class NoSubject(Exception):
    """What is asked about is not there; the text says so."""


def this_machine(files, variables):
    """`variables`: the environment of the shell that asks."""
    loader = preload.Loader(files, variables, current=files.link("/proc/self/cwd") or "/")
    entries = [loader.entry(name) for name in preload.names(variables.get("LD_PRELOAD"))]
    configs = [preload.engine_of(entry.path or entry.text) for entry in entries if entry.is_ours]
    return ordered([*environment.look(variables, entries), *bounds.look(files, "self", variables, configs),
                    *machine.look(files, variables)])


def a_process(files, number):
    process = Process(files, number)
    if not process.exists:
        raise NoSubject(f"there is no process {number}, or /proc does not show it")
    if process.is_zombie:
        raise NoSubject(f"process {number} ({process.name}) has ended, and its parent has not asked how: nothing is "
                        "left to look at")
    if process.is_kernels:
        raise NoSubject(f"process {number} ({process.name}) is a thread of the kernel: it uses no malloc")
    return _of_process(files, process, False)


def a_process_of_ours(files):
    """What makes findings of a process that the doctor has started: for watch()."""
    return lambda process: _of_process(files, process, True)


def a_run(files, path, watched, command):
    """`path`: the program's file, `watched`: its run by watch() with a_process_of_ours(), `command`: its words."""
    of_file = list(program.file_findings(files, path)) if path else []
    if watched.process is None:
        return ordered([*of_file, _not_seen(files, command[0]), *machine.look(files, os.environ)])
    found = list(watched.seen)
    if watched.others:
        found.append(Finding("program", KNOW, f"It started {some(watched.others, 'process', 'processes')} more.",
                             "What is said of a process is said of the one that had most in memory.",
                             "For another one, ask spanalloc doctor PID while it runs."))
    # The running program says which malloc it uses; so its file need not.
    return ordered([*found, *(finding for finding in of_file if finding.topic == "program")])


def _not_seen(files, name):
    """Why nothing was made of a run."""
    if any(path.startswith("/proc/") and path.endswith("/exe") for path in files.refused):
        return Finding("unreadable", KNOW, f"The processes of {name} may not be read.",
                       "One with privileges that you do not have the kernel shows to root only.",
                       as_root(f"spanalloc doctor -- {name}"))
    return Finding("program", KNOW, f"{name} ended before it could be looked at, once its libraries were there.",
                   "Nothing can be said of its memory.",
                   "Give it more to do, or ask spanalloc doctor PID of one that runs.")


def _of_process(files, process, ran_by_us):
    configs = [preload.engine_of(path) for path in process.ours()]
    found = [*program.process_findings(process, ran_by_us),
             *bounds.look(files, process.number, process.environment, configs)]
    if configs and not files.root:  # (made-up files have no process behind them)
        found += classes.findings(process.number)
    # How many mappings the process has tells more than how many one may have.
    counted = any(finding.topic == "map-count" for finding in found)
    found += (finding for finding in machine.look(files, process.environment)
              if not (counted and finding.topic == "map-count" and finding.severity == FINE))
    return ordered(found)
