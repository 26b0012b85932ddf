"""Standard output and error of the command: failures, JSON, and what becomes of output that cannot be written."""

import contextlib
import errno
import json
import os
import signal
import sys

from spanalloc_cli import VERSION
from spanalloc_cli.run import OWN_FAILURE

JSON_FORMAT = 1  # becomes 2 when a key of --json goes or means something else; a new key leaves it
_CANNOT_BE_WRITTEN = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def fail(text, code=OWN_FAILURE):
    print(f"spanalloc: {text}", file=sys.stderr)
    sys.exit(code)


def print_json(facts):
    """What --json prints, and all that it prints. Scripts read it, by its description in docs/man/spanalloc.1."""
    json.dump({"format": JSON_FORMAT, "spanalloc": VERSION, **facts}, sys.stdout, indent=1)
    print()


@contextlib.contextmanager
def that_is_told_of(is_written=True):
    """Where standard output is closed, or full, the command says so and has failed (not one that does not write there:
    `is_written`); where standard error is closed, nobody is told anything."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # pylint: disable=consider-using-with
    if sys.stdout is None:
        if is_written:
            fail("standard output is closed")
        yield
        return
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # names need not be text, and there are other codes than UTF-8
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
        fail(f"cannot write to standard output: {error.strerror}")
