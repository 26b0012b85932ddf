"""Runs a program on the simulated machine with many cores (bench/manycore) and returns what it counted.

The machine is a plugin of Debian's qemu-x86_64. It tells the program of as many CPUs as it has cores: the clock and the
CPU masks by itself; the files below /sys that libraries look at through a folder of ours, which qemu looks into first.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading

QEMU = "qemu-x86_64"
PLUGIN = "manycore.so"
_CPU_FILES = ("online", "possible", "present")


class SimulationFailed(Exception):
    """The program did not come to its end on the simulated machine; the text says how it ended."""


class TimedOut(SimulationFailed):
    """It ran for longer than it was given."""


def why_not(plugin=None) -> str:
    """Why nothing can be simulated here; empty where it can. Without the plugin: whether it is of use here at all."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return "the simulated machine runs programs of x86-64, and this machine's are others"
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not installed: apt install qemu-user"
    if plugin is not None and not os.path.isfile(plugin):
        return f"{plugin} is not built: scripts/bench --build-only"
    return ""


class Simulator:
    """A context manager: owns a folder for what the simulated machine looks like and for results."""

    def __init__(self, plugin):
        self.plugin = plugin
        self._running = set()
        self._stopped = False
        self._lock = threading.Lock()
        self._scratch = tempfile.TemporaryDirectory(prefix="spanalloc-manycore-")
        if re.search(r"[,=]", self._scratch.name + plugin):
            raise SimulationFailed(
                f"qemu cannot take a path with a comma or an equals sign: {plugin}, {self._scratch.name}")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._scratch.cleanup()

    def stop(self):
        """Ends what other threads are running in here; their calls fail, and so do further ones."""
        self._stopped = True
        for process in list(self._running):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)

    def _machine(self, cpus) -> str:
        """Folder with the files that say how many CPUs there are."""
        root = os.path.join(self._scratch.name, f"cpus-{cpus}")
        folder = os.path.join(root, "sys/devices/system/cpu")
        with self._lock:
            if not os.path.isdir(folder):
                os.makedirs(folder)
                for name in _CPU_FILES:
                    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                        file.write(f"0-{cpus - 1}\n" if cpus > 1 else "0\n")
        return root

    def run(self, argv, cpus, *, environment=(), options=(), pin=None, timeout=None, check=True):
        """(the machine's counts, the program's output) of one run to its end; see manycore.c for the counts.

        `cpus`: cores of the machine, which the program is told. `environment`: (NAME, VALUE) pairs for the program
        alone. `options`: (name, value) pairs of costs.h. `pin`: the real CPU to keep to. `check`: an exit code other
        than 0 is a failure."""
        handle, result = tempfile.mkstemp(dir=self._scratch.name)
        os.close(handle)
        settings = [f"cpus={cpus}", f"out={result}"] + [f"{name}={value}" for name, value in options]
        settings += [f"pin={pin}"] if pin is not None else []
        command = [QEMU, "-seed", "1", "-L", self._machine(cpus)]
        for name, value in environment:
            if "," in value:  # qemu takes a comma for the next variable
                raise SimulationFailed(f"qemu cannot hand over {name}={value}, because of the comma")
            command += ["-E", f"{name}={value}"]
        command += ["-plugin", ",".join([self.plugin, *settings]), *argv]
        if self._stopped:
            raise SimulationFailed("stopped")
        # A session of its own, so that a run that is cut short leaves nothing behind.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )
        self._running.add(process)
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"no end within {timeout:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            self._running.discard(process)
        try:
            with open(result, encoding="utf-8") as file:
                counts = json.load(file)
        except ValueError:
            counts = None
        os.unlink(result)
        said = errors.strip().splitlines()
        said = [line for line in said if line.startswith("manycore: ")] or said  # the plugin knows better than qemu
        if process.returncode < 0 or (check and process.returncode):
            ending = f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
            raise SimulationFailed(ending + (f": {said[-1]}" if said else ""))
        if counts is None:
            raise SimulationFailed("the simulated machine has left no result" + (f": {said[-1]}" if said else ""))
        return counts, output
