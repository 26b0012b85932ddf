"""Runs a program and looks at it, and at what it starts, until it ends."""

import subprocess
import time

from spanalloc_cli import signals
from spanalloc_cli.doctor.files import kib
from spanalloc_cli.doctor.process import Process

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.001, 0.05
_GROWN = 1.1  # a process is looked at again once it has so many times the memory


class Watched:
    """`exit_code`: as a shell tells it; `process`: of the program's processes the one that had most in memory when it
    was looked at, and `seen`: what was made of it then; None where each had ended before; `others`: how many more
    there were."""

    def __init__(self):
        self.exit_code = None
        self.process = self.seen = None
        self.others = 0


class _Watch:
    def __init__(self, files, program, look_at):
        self._files = files
        self._look_at = look_at
        self._program = program
        self._seen = set()
        self._largest = {}  # number -> (program, bytes) when it was looked at
        self._best = self._made = None
        self._most = 0

    def watched(self):
        result = Watched()
        result.process, result.seen = self._best, self._made
        result.others = max(0, len(self._seen) - 1)
        return result

    def look(self):
        for number in self._processes():
            self._seen.add(number)
            exe = self._files.link(f"/proc/{number}/exe")
            resident = kib(self._files.table(f"/proc/{number}/status").get("VmRSS")) or 0
            before = self._largest.get(number)
            if exe is None or before and before[0] == exe and resident < before[1] * _GROWN:
                continue
            if resident <= self._most:
                continue  # another one has more
            process = Process(self._files, number)
            # One that the loader is not through with, or that is ending, tells nothing.
            if process.exe == exe and process.is_loaded and process.memory("VmRSS"):
                made = self._look_at(process)
                # A process that has ended meanwhile has told too little.
                if self._files.link(f"/proc/{number}/exe") == exe:
                    self._largest[number] = (exe, resident)
                    self._best, self._made, self._most = process, made, resident

    def _processes(self):
        """The program's, and those that it has started and that have not left it."""
        found = [self._program]
        for number in found:  # grows while it is walked
            for thread in self._files.names(f"/proc/{number}/task"):
                children = (self._files.text(f"/proc/{number}/task/{thread}/children") or "").split()
                found += [int(child) for child in children if int(child) not in found]
        return found


def watch(files, command, environment, look_at, output=None):
    """Runs the command to its end, with `output` as its standard output. `look_at`: is given a Process that has more in
    memory than those before, while it runs, and makes of it what is wanted at the end. OSError where the command cannot
    be run."""
    with signals.passed_on() as to, subprocess.Popen(
            command, env=environment, stdout=output, restore_signals=True) as program:
        to(program)
        look = _Watch(files, program.pid, look_at)
        pause = _FIRST_PAUSE_S
        while program.poll() is None:
            look.look()
            time.sleep(pause)
            pause = min(pause * 1.5, _LAST_PAUSE_S)
        result = look.watched()
        result.exit_code = program.returncode if program.returncode >= 0 else 128 - program.returncode
        return result
