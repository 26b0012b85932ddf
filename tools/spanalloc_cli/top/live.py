"""What `spanalloc top` does with a terminal, and with a program that it runs."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import tty

from spanalloc_cli import signals
from spanalloc_cli.terminal import whole_screen
from spanalloc_cli.top.look import Watcher
from spanalloc_cli.top.memory import CannotRead, Ended
from spanalloc_cli.top.screen import Screen

_TICK_S = 0.1  # how long a change of the terminal's size, or a program's end, may go unseen
_FIRST_PAUSE_S = 0.005  # between looks at a program that has just begun: it may end soon


@contextlib.contextmanager
def _keys():
    """A function that waits some seconds for a key: key(seconds) is "" where none came. Where standard input is no
    terminal it only waits."""
    if not sys.stdin.isatty():
        def wait(seconds):
            time.sleep(seconds)
            return ""

        yield wait
        return
    place = sys.stdin.fileno()
    before = termios.tcgetattr(place)

    def key(seconds):
        if not select.select([place], [], [], seconds)[0]:
            return ""
        data = os.read(place, 64)
        # An arrow or another such key is a sequence of characters, none of them meant.
        return "" if data[:1] == b"\x1b" else data[:1].decode("ascii", "replace")

    try:
        tty.setcbreak(place)
        yield key
    finally:
        termios.tcsetattr(place, termios.TCSADRAIN, before)


def _ends_by_signal(number, _):
    raise SystemExit(128 + number)


def show(watcher, output, interval, goes_on=lambda: True, seen=lambda look: None):
    """The live table, until the user ends it (True), or the process ends or goes_on() says no (False). `seen` is given
    each look. CannotRead as Watcher.look()."""
    screen = Screen(watcher.pid)
    with _keys() as key, whole_screen(output) as draw:
        keys = sys.stdin.isatty()
        look, size = None, None
        pause, due = min(_FIRST_PAUSE_S, interval), 0.0
        while goes_on():
            if time.monotonic() >= due and not screen.paused:
                try:
                    following = watcher.look()
                except Ended:
                    return False
                if look is not None:
                    screen.remember(look)
                look = following
                seen(look)
                size = None
                pause = interval if look.totals else min(2 * pause, interval)
                due = time.monotonic() + pause
            if look is not None and size != output.size:
                size = output.size
                draw(screen.draw(look, *size, keys))
            pressed = key(min(_TICK_S, max(due - time.monotonic(), 0.01)))
            if pressed in ("q", "Q"):
                return True
            if pressed == "s":
                screen.next_sort()
                size = None
            elif pressed in ("p", " "):
                screen.paused = not screen.paused
    return False


def watch_process(watcher, output, interval):
    """The live table of a process that runs. Returns what to say at the end."""
    watcher.process.expect_one()
    before = signal.signal(signal.SIGTERM, _ends_by_signal)
    try:
        ended_by_user = show(watcher, output, interval)
    except KeyboardInterrupt:
        return ""
    finally:
        signal.signal(signal.SIGTERM, before)
    return "" if ended_by_user else f"process {watcher.pid} has ended"


class Run:
    """A program that is watched to its end. `fullest`: the Look at which most was live, and `after_s` when that was;
    None: it ended before it could be looked at. `problem`: why it could not be; `exit_code`: as a shell tells it."""

    def __init__(self):
        self.exit_code = None
        self.watcher = self.fullest = self.after_s = self.problem = None

    def keep(self, look, after_s):
        if self.fullest is None or self._order(look) > self._order(self.fullest):
            self.fullest, self.after_s = look, after_s

    @staticmethod
    def _order(look):
        own = look.heaps.used_bytes if look.heaps else 0
        return look.totals is not None, look.live_bytes + own, look.facts.rss_bytes


def run(command, environment, interval, output=None, program_output=None):
    """Runs a program and looks at it until it ends. `output`: with a live table there; then what the program writes to
    the terminal is kept until the table has gone, and where the terminal is its input it reads nothing, for the keys
    are the table's. `program_output`: what it has as its standard output, else. OSError where it cannot be run."""
    result = Run()
    live = output is not None
    with contextlib.ExitStack() as at_end:
        kept = at_end.enter_context(tempfile.TemporaryFile()) if live else None
        streams = {"stdin": subprocess.DEVNULL if live and sys.stdin.isatty() else None,
                   "stdout": kept if live and sys.stdout.isatty() else program_output,
                   "stderr": kept if live and sys.stderr.isatty() else None}
        # Before the program: else it could be ended by what ends this command, and not the other way round.
        to = at_end.enter_context(signals.passed_on())
        program = subprocess.Popen(command, env=environment, restore_signals=True, **streams)
        at_end.callback(program.wait)
        to(program)
        result.watcher = Watcher(program.pid)
        start = time.monotonic()

        def seen(look):
            # (Before that it seems to be this command, or to have no heap.)
            if look.is_loaded:
                result.keep(look, time.monotonic() - start)

        try:
            if not live:
                _look_until_end(program, result.watcher, interval, seen)
            elif show(result.watcher, output, interval, lambda: program.poll() is None, seen):
                print(f"spanalloc: {command[0]} goes on, as process {program.pid}; here comes what it writes. "
                      "Ctrl-C ends it.", file=sys.stderr, flush=True)
        except CannotRead as error:
            result.problem = str(error)
        if kept is not None:
            _pass_on_until_end(program, kept)
        code = program.wait()
        result.exit_code = code if code >= 0 else 128 - code
    return result


def _look_until_end(program, watcher, interval, seen):
    pause = min(_FIRST_PAUSE_S, interval)
    while program.poll() is None:
        with contextlib.suppress(Ended):
            seen(watcher.look())
        try:
            program.wait(pause)
        except subprocess.TimeoutExpired:
            pause = min(1.5 * pause, interval)


def _pass_on_until_end(program, kept):
    """Writes what the program has written so far, and what it writes yet."""
    at = 0
    while True:
        ended = program.poll() is not None
        kept.flush()
        # (The program's file and ours are one, with one place in it: read without moving that.)
        for data in iter(lambda: os.pread(kept.fileno(), 1 << 16, at), b""):
            at += len(data)
            sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        if ended:
            return
        time.sleep(_TICK_S)

