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


def environment_with(places, config):
    """The environment in which a program runs on a config's library. libraries.Missing where that cannot be."""
    library = os.path.abspath(libraries.require_config(places, config))
    if " " in library or ":" in library:
        raise libraries.Missing(f"LD_PRELOAD cannot hold a path with a space or a colon: {library}")
    return dict(os.environ, LD_PRELOAD=preload_value(library))


def why_not_executed(command, error):
    """What to say of an OSError of exec, and the exit code."""
    if isinstance(error, FileNotFoundError):
        return f"{command}: command not found", NOT_FOUND
    return f"{command}: cannot be executed: {error.strerror}", NOT_EXECUTABLE


def run(places, config, command):
    """Replaces this process by the command, so that exit code and signals are its own. Returns only on failure."""
    try:
        environment = environment_with(places, config)
    except libraries.Missing as error:
        print(f"spanalloc: {error}", file=sys.stderr)
        return OWN_FAILURE
    # Python ignores these two, and exec would hand that on to the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        text, code = why_not_executed(command[0], error)
        print(f"spanalloc: {text}", file=sys.stderr)
        return code
