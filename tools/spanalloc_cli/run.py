"""`spanalloc run`: becomes the program, with our library preloaded."""

import os
import signal
import sys

from spanalloc_cli import libraries

# What env(1) and the shells return too.
OWN_FAILURE = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127


def preload_value(path):
    """LD_PRELOAD with `path` in front of what is there already."""
    old = os.environ.get("LD_PRELOAD", "")
    return f"{path}:{old}" if old else path


def run(places, config, command):
    """Replaces this process by the command, so that exit code and signals are its own. Returns only on failure."""
    try:
        library = os.path.abspath(libraries.require_config(places, config))
    except libraries.Missing as error:
        print(f"spanalloc: {error}", file=sys.stderr)
        return OWN_FAILURE
    if " " in library or ":" in library:
        print(f"spanalloc: LD_PRELOAD cannot hold a path with a space or a colon: {library}", file=sys.stderr)
        return OWN_FAILURE
    environment = dict(os.environ, LD_PRELOAD=preload_value(library))
    # Python ignores these two, and exec would hand that on to the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        print(f"spanalloc: {command[0]}: command not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"spanalloc: {command[0]}: cannot be executed: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE
