"""Runs the servers side by side: all allocators of all programs at once, so that what disturbs the machine disturbs them
alike. One thread a program sends each tick of its load to every allocator's server in turn; this one samples."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import time

from spanalloc_bench import execute, progress, verify
from spanalloc_bench.execute import RunFailed
from spanalloc_bench.model import NOT_PRELOADED
from spanalloc_bench.programs.servers import Server
from spanalloc_bench.soak import memory, programs
from spanalloc_bench.soak.phases import TICK_S, Schedule
from spanalloc_bench.soak.records import Sample

SAMPLE_S, SAID_S = 5.0, 60.0
SOCKET_PATH_BYTES = 100  # of the 108 that the kernel takes


class Soaked:
    """One program under all allocators: its servers, their clients, and the thread that loads them."""

    def __init__(self, places, name, schedule, seconds, stop):
        self.places, self.name, self.schedule, self.seconds, self.stop = places, name, schedule, seconds, stop
        self.module = programs.PROGRAMS[name]
        self.servers, self.clients = {}, {}  # by allocator's name
        self.problems = {}                   # why an allocator's server has no figures from then on
        self.late_s = 0.0
        self.began = None
        self.thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    # ---- starting ----

    def start_servers(self, chosen, scratch, stack):
        for allocator in chosen:
            folder = os.path.join(scratch, f"{self.name}-{allocator.name}")
            os.mkdir(folder)
            try:
                self._start(allocator, folder, stack)
            except RunFailed as failure:
                self.problems[allocator.name] = str(failure)

    def _start(self, allocator, folder, stack):
        self.module.prepare(folder)
        argv = self.module.server(folder)
        environment = {**execute.clean_environment(), **dict(allocator.environment)}
        # Debian's redis-server is linked with a jemalloc: that a library is loaded does not say whose malloc is called.
        objects, ending = verify.malloc_objects(self.places, allocator.path, [argv[0], "--version"], environment)
        if set(objects.values()) != {os.path.realpath(allocator.path)}:
            raise RunFailed(f"{NOT_PRELOADED}: malloc is in {', '.join(sorted(set(objects.values()))) or 'no object'}"
                            + f"; {argv[0]} --version {ending}" * bool(ending))
        server = stack.enter_context(
            Server(argv, folder, {**environment, "LD_PRELOAD": allocator.path}, os.path.join(folder, "server.log")))
        client = []

        def ready():
            try:
                client.append(self.module.connect(folder))
            except OSError:
                return False
            return True

        server.wait_until(ready)
        stack.callback(client[0].close)
        if not memory.has_loaded(server.process.pid, allocator.path):
            raise RunFailed(f"{NOT_PRELOADED}: {allocator.path} is not in the server's process{server.last_words()}")
        self.servers[allocator.name], self.clients[allocator.name] = server, client[0]

    # ---- loading ----

    def _guarded(self):
        try:
            self._each("fill", lambda clients: self.module.fill(clients, random.Random(f"{self.schedule.seed}-{self.name}")))
            self._load()
        except Exception as error:  # pylint: disable=broad-except  # the other programs go on; the report says it
            for name in list(self.clients):
                self.problems.setdefault(name, f"the load failed: {type(error).__name__}: {error}")
            self.clients.clear()

    def _each(self, what, action):
        """Runs `action` with the clients; where it fails because a server has ended, without that one from then on."""
        try:
            action(list(self.clients.values()))
        except (OSError, RunFailed, EOFError) as error:
            ended = self._ended()
            if not ended:
                raise
            for name in ended:
                del self.clients[name]
                self.problems[name] = f"the server ended in {what}: {error}{self.servers[name].last_words()}"

    def _ended(self) -> list[str]:
        """The allocators whose server has ended; its connection may have done so a moment before."""
        for _ in range(20):
            ended = [name for name in self.clients if self.servers[name].process.poll() is not None]
            if ended:
                break
            time.sleep(0.05)
        return ended

    def _load(self):
        self.began = time.monotonic()
        for number in range(int(self.seconds / TICK_S)):
            wait = self.began + number * TICK_S - time.monotonic()
            self.late_s = max(0.0, -wait)
            if self.stop.wait(max(0.0, wait)) or not self.clients:
                return
            tick = self.schedule.tick(number)
            self._each(f'"{tick.phase.name}"', lambda clients: self.module.load(clients, tick))

    # ---- looking ----

    def sample(self) -> list[Sample]:
        if self.began is None:
            return []
        seconds = time.monotonic() - self.began
        if seconds > self.seconds:
            return []
        cycle, phase = self.schedule.at(seconds)
        found = []
        for name in list(self.clients):
            pid = self.servers[name].process.pid
            now = memory.of(pid)
            if now is not None:
                found.append(Sample(self.name, name, round(seconds, 2), cycle, phase, now.rss_kib, now.page_tables_kib,
                                    now.anonymous_kib, memory.cpu_s(pid), round(self.late_s, 2)))
        return found


def _sizes(samples) -> str:
    by_program = {}
    for sample in samples:
        by_program.setdefault(sample.program, []).append(f"{sample.memory_kib / 1024:.0f}")
    return "; ".join(f"{name} {' '.join(sizes)}" for name, sizes in by_program.items())


def soak(places, names, chosen, seconds, cycle_s, seed, append) -> dict[str, dict]:
    """Runs the programs to the end; {program: {"problems": {allocator: why}, "late_s": most}}. `append` takes each round
    of samples."""
    execute.prepare_this_process()
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="spanalloc-soak-"))
        if len(os.path.join(scratch, "mariadb-" + max((a.name for a in chosen), key=len), "server.sock")) > SOCKET_PATH_BYTES:
            raise RunFailed(f"{scratch} is too long a path for Unix sockets: set TMPDIR to a shorter one")
        soaked = []
        for name in names:
            one = Soaked(places, name, Schedule(name, programs.PROGRAMS[name].PHASES, cycle_s, seed), seconds, stop)
            one.start_servers(chosen, scratch, stack)
            soaked.append(one)
        running = [one for one in soaked if one.clients]
        stack.callback(lambda: [one.thread.join() for one in running])
        stack.callback(stop.set)  # runs before the threads are joined, and those before the servers are ended
        for one in running:
            one.thread.start()
        most_late = _watch(running, seconds, append)
        return {one.name: {"problems": dict(one.problems), "late_s": most_late.get(one.name, 0.0)} for one in soaked}


def _watch(running, seconds, append) -> dict[str, float]:
    """Samples until the last program's load has ended; the most that each was behind its schedule."""
    interval = min(SAMPLE_S, max(TICK_S, seconds / 200))
    began, late = time.monotonic(), {}
    due = began + interval
    with progress.Bar(every_s=SAID_S) as bar:
        while any(one.thread.is_alive() for one in running):
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due + interval, time.monotonic())
            samples = [sample for one in running for sample in one.sample()]
            if samples:
                append(samples)
                bar.show(round(time.monotonic() - began), round(seconds), f"MiB of each server: {_sizes(samples)}")
            for one in running:
                late[one.name] = max(late.get(one.name, 0.0), one.late_s)
    return late
