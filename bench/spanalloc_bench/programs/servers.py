"""What the drivers of servers share: starting one under the contender, waiting for it, ending it whatever happens."""

import os
import signal
import subprocess
import time

from ..execute import RunFailed, find_program
from ..model import UNAVAILABLE

START_S, STOP_S, KILLED_S = 600, 600, 600  # for what hangs; a busy machine takes its time


def command(name):
    """Path of a program. RunFailed where there is none."""
    found = find_program(name)
    if not found:
        raise RunFailed(f"{name} is not installed", UNAVAILABLE)
    return found


def _has_members(group):
    """Whether a process group has any, once those are reaped that are our children by now."""
    try:
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


class Server:
    """A process group that lives no longer than the `with` block. The command is the server, or something that passes
    signals on to it and ends as it ends (spanalloc-measure)."""

    def __init__(self, argv, folder, environment, log):
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # Its group's number is ours only until the leader's end has been taken notice of.
        if self.process.poll() is not None:
            return
        group = self.process.pid
        os.killpg(group, signal.SIGKILL)
        self.process.wait()
        # Under spanalloc-measure the server is its child, not ours: it is gone when the group is.
        deadline = time.monotonic() + KILLED_S
        while _has_members(group) and time.monotonic() < deadline:
            time.sleep(0.005)

    def wait_until(self, ready):
        """Returns when ready() is true; RunFailed when the server ends before, or takes too long."""
        deadline = time.monotonic() + START_S
        while not ready():
            if self.process.poll() is not None:
                raise RunFailed(f"the server ended at its start{self._ending()}")
            if time.monotonic() > deadline:
                raise RunFailed(f"the server is not ready after {START_S} s{self.last_words()}")
            time.sleep(0.01)

    def stop(self):
        """Asks it to end and waits for that, so that its exit is part of the test; RunFailed when it ends badly."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise RunFailed(f"the server does not end within {STOP_S} s{self.last_words()}") from None
        if self.process.returncode:
            raise RunFailed(f"the server ended badly{self._ending()}")

    def _ending(self):
        code = self.process.returncode
        return f" ({'signal' if code < 0 else 'exit code'} {abs(code)}){self.last_words()}"

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            lines = file.read()[-2000:].split("\n")
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


def load(server, argv, folder, environment):
    """Runs a load generator, without the contender, to its end; (its output, seconds that it took). RunFailed when it
    fails."""
    begin = time.monotonic()
    run = subprocess.run(
        argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        check=False,
    )
    seconds = time.monotonic() - begin
    output = run.stdout.decode(errors="replace")
    if server.process.poll() is not None:
        raise RunFailed(f"the server ended under load{server._ending()}")
    if run.returncode:
        raise RunFailed(f"{os.path.basename(argv[0])} failed: {' '.join(output.split())[-300:]}{server.last_words()}")
    return output, seconds
