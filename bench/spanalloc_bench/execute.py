"""Runs one case under one contender once, and says what came of it: always a Sample, whatever the workload does.

Everything runs through spanalloc-measure. Its sampling thread wakes every 10 ms and takes about 30 us to read one
process: 0.3 % of one CPU. The peak of RSS does not depend on it (the kernel's own maximum is read at the exit of every
process); page tables do, and they hardly ever shrink. Reading the shared pages of several processes is dearer, so
reading is kept below 2 % of one CPU by sampling less often.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from spanalloc_bench import tree, verify
from spanalloc_bench.model import (
    CRASHED, FAILED, HUNG, NOT_PRELOADED, UNAVAILABLE, Allocator, Case, Family, Kind, Sample,
)

INTERVAL_MS = 10
SHARE_PERCENT = 2
GRACE_S = 10.0  # beyond a case's timeout, for spanalloc-measure to end what hangs
NO_ANSWER = 3   # exit code of a workload whose question has no answer under this contender

# Settings of allocators in the user's environment would change what is measured without being seen in any table.
FOREIGN_SETTINGS = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "JEMALLOC_", "TCMALLOC_", "MIMALLOC_", "TBB_", "SPANALLOC_",
                    "BUMP_")


def clean_environment() -> dict[str, str]:
    """The user's environment without what sets up an allocator."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN_SETTINGS)}


def find_program(name) -> str | None:
    """Path of a command, also of one that lies where only root's PATH looks, as servers do."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")


# ---- leaving nothing behind ----


_PR_SET_CHILD_SUBREAPER = 36


def prepare_this_process():
    """Lets this process inherit what a run leaves behind, so that it can be found and ended; no core dumps, which
    would take the time of the next run."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _descendants() -> set[int]:
    import psutil

    return {process.pid for process in psutil.Process().children(recursive=True)}


def end_all_but(before: set[int]):
    """Kills every process below this one that was not there before, daemons too, and waits for their end."""
    for _ in range(200):
        left = _descendants() - before
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # a child of another process that is going to end, or reaped already
        time.sleep(0.005)


# ---- what a driver is given ----


class RunFailed(Exception):
    """A run has no figures; `status` is one of model's, the text becomes the row's problem. For drivers too."""

    def __init__(self, problem, status=FAILED):
        super().__init__(problem)
        self.status = status


class _TimeIsUp(BaseException):
    """Not an Exception, so that a driver that catches those does not catch this."""


class Context:
    """What a case's driver works with: run(context) -> record, a dict with the keys of a workload's record.

    Keys that count: "elapsed_s", "operations", "peak_live_bytes", "metrics", "latency"; all of them may be missing.
    It raises RunFailed, or anything else, where there is no result."""

    def __init__(self, runner: Runner, case: Case, allocator: Allocator, scratch: str, probe: bool):
        self._probe, self.places = probe, runner.places
        self.case, self.allocator, self.scratch = case, allocator, scratch
        self.timeout = case.timeout_s
        self.fixtures = tree.fixtures(runner.places)
        self.environment = clean_environment()  # for the programs that the driver starts without the contender
        self.probe_out = os.path.join(scratch, "probe")
        self.record_out = os.path.join(scratch, "record")

    def measured_command(self, argv, set=()) -> list[str]:
        """`argv` wrapped so that it runs under the contender and is measured. Call it once a run: its record is the
        run's. `set` holds further NAME=VALUE for it. Start it with env=context.environment."""
        command = [
            self.places.measure, "--out", self.record_out, "--interval", str(INTERVAL_MS), "--share", str(SHARE_PERCENT),
            "--timeout", str(self.timeout),
        ]
        if self.allocator.kind is not Kind.PAGES:
            preload = self.allocator.path
            if self._probe:
                open(self.probe_out, "wb").close()
                preload = f"{self.places.probe}:{preload}"
                command += ["--set", f"SPANALLOC_PROBE_OUT={self.probe_out}"]
            command += ["--preload", preload, "--expect", self.allocator.path]
        if self.allocator.kind is Kind.BASELINE:
            command += ["--set", f"BUMP_REFUSED={_refusal_mark(self.scratch)}"]
        for name, value in (*self.allocator.environment, *self.case.environment):
            command += ["--set", f"{name}={value}"]
        for pair in set:
            command += ["--set", pair]
        return [*command, "--", *argv]

    def record(self) -> dict | None:
        """What spanalloc-measure wrote; None before the measured command has ended."""
        try:
            with open(self.record_out, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None


# ---- running ----


class Runner:
    """Runs cases; remembers which (program, contender) pairs have shown whose malloc they use."""

    def __init__(self, places):
        self.places = places
        self.verified: dict[tuple[str, str], str] = {}  # (program, contender) -> object that defines malloc

    def fill(self, text: str, allocator: Allocator) -> str:
        for name, value in (
            ("{bin}", tree.workloads(self.places)), ("{fixtures}", tree.fixtures(self.places)),
            ("{source}", tree.SOURCE), ("{manager}", allocator.path),
        ):
            text = text.replace(name, value)
        return text

    def run(self, case: Case, allocator: Allocator, round_: int, position: int) -> Sample:
        sample = Sample(case.id, allocator.name, round_, position, started=round(time.time(), 3))
        before = _descendants()
        try:
            self._require(case, allocator)
            with tempfile.TemporaryDirectory(prefix="spanalloc-bench-") as scratch:
                try:
                    if case.family is Family.DRIVER:
                        self._drive(case, allocator, scratch, sample)
                    else:
                        self._execute(case, allocator, scratch, sample)
                except RunFailed as failure:
                    if not os.path.exists(_refusal_mark(scratch)):
                        raise
                    # That the memory of who never frees comes to its end is no failure.
                    raise RunFailed(f"its limit of memory was reached, as it never frees ({failure})",
                                    UNAVAILABLE) from None
        except RunFailed as failure:
            return Sample(case.id, allocator.name, round_, position, failure.status, str(failure),
                          started=sample.started)
        finally:
            end_all_but(before)
        return sample

    def program_of(self, case: Case) -> str:
        """What a pair is verified for: a workload's program; of real programs each case, whose commands start others."""
        return os.path.basename(case.argv[0]) if case.family in (Family.WORKLOAD, Family.PAGES) else case.id

    def _require(self, case, allocator):
        if allocator.missing:
            raise RunFailed(allocator.missing, UNAVAILABLE)
        for command in case.needs:
            if not find_program(command):
                raise RunFailed(f"{command} is not installed", UNAVAILABLE)
        if case.argv and case.family is not Family.DRIVER:
            program = self.fill(case.argv[0], allocator)
            if not find_program(program):
                raise RunFailed(f"there is no program {program}", UNAVAILABLE)

    def _execute(self, case, allocator, scratch, sample):
        workload = case.family is not Family.PROGRAM
        argv = [self.fill(word, allocator) for word in case.argv]
        program = self.program_of(case)
        probe = allocator.kind is not Kind.PAGES and (program, allocator.name) not in self.verified
        if probe and workload:
            self._verify_apart(argv[0], program, allocator)
            probe = False
        context = Context(self, case, allocator, scratch, probe)
        out, errors = os.path.join(scratch, "stdout"), os.path.join(scratch, "stderr")
        with open(out if workload else os.devnull, "wb") as out_file, open(errors, "wb") as errors_file:
            process = subprocess.Popen(
                context.measured_command(argv), env=context.environment, cwd=scratch, stdin=subprocess.DEVNULL,
                stdout=out_file, stderr=errors_file, start_new_session=True,
            )
            try:
                process.wait(timeout=case.timeout_s + GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise RunFailed(f"no end within {case.timeout_s:g} s", HUNG) from None
        record = context.record()
        _judge_end(record, case.timeout_s, _last_line(errors))
        self._judge_malloc(context, program, record, probe)
        _take_measures(sample, record)
        sample.elapsed_s = sample.wall_s
        if workload:
            _take_record(sample, _parse_record(_last_line(out)))

    def _drive(self, case, allocator, scratch, sample):
        module, _, function = case.driver.partition(":")
        program = self.program_of(case)
        probe = allocator.kind is not Kind.PAGES and (program, allocator.name) not in self.verified
        context = Context(self, case, allocator, scratch, probe)
        problem = None
        result = {}
        try:
            drive = getattr(importlib.import_module(f"spanalloc_bench.programs.{module}"), function)
            with _deadline(case.timeout_s):
                result = drive(context)
        except _TimeIsUp:
            raise RunFailed(f"no end within {case.timeout_s:g} s", HUNG) from None
        except RunFailed as failure:
            problem = failure
        except Exception as error:  # a driver's fault is a row, not the end of the run
            problem = RunFailed(f"{type(error).__name__}: {error}")
        record = context.record()
        if record is not None and (record["timed_out"] or record["signal"] in _CRASHES):
            _judge_end(record, case.timeout_s, "")  # the server's end explains the driver's trouble
        if problem is not None:
            raise problem
        if record is None:
            raise RunFailed("the driver measured nothing")
        self._judge_malloc(context, program, record, probe)
        _take_measures(sample, record)
        sample.elapsed_s = sample.wall_s
        _take_record(sample, result or {})

    def _verify_apart(self, path, program, allocator):
        """Asks a workload's own binary, whose --help does nothing, so that no measured run carries the probe."""
        environment = {**clean_environment(), **dict(allocator.environment)}
        objects, ending = verify.malloc_objects(self.places, allocator.path, [path, "--help"], environment)
        if ending:
            raise RunFailed(f"already its --help {ending}", HUNG if "no end" in ending else CRASHED)
        self._believe(program, allocator, objects)

    def _judge_malloc(self, context, program, record, probe):
        """Believes a run only when the contender's library was in the process, and its malloc once seen in use."""
        if context.allocator.kind is Kind.PAGES:
            return
        if record["exit_readings"] > 0 and not record["expected_mapped"]:
            raise RunFailed("the library was not loaded (static or set-user-id program?)", NOT_PRELOADED)
        if context.case.family is Family.WORKLOAD and record["processes_without_expected"] > 0:
            # What a real program starts may drop the preloading; a workload's processes are what it measures.
            without = record["processes_without_expected"]
            raise RunFailed(f"{without} of its processes ran without the library", NOT_PRELOADED)
        if probe:
            with open(context.probe_out, encoding="utf-8", errors="replace") as file:
                self._believe(program, context.allocator, verify.probe_lines(file.read()))

    def _believe(self, program, allocator, objects):
        if not objects:
            raise RunFailed("the library was not loaded (static or set-user-id program?)", NOT_PRELOADED)
        others = sorted(set(objects.values()) - {allocator.path})
        if others:
            raise RunFailed(f"malloc is in {', '.join(others)}", NOT_PRELOADED)
        self.verified[program, allocator.name] = allocator.path


class _deadline:
    """Raises _TimeIsUp in the main thread after some seconds, and again every second while that is swallowed."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __enter__(self):
        def ring(number, frame):
            raise _TimeIsUp

        self.old = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)

    def __exit__(self, *exception):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.old)


# ---- reading what a run left ----

_CRASHES = {
    signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS,
}


def _refusal_mark(scratch) -> str:
    """The file that the baseline makes when it refuses for the first time."""
    return os.path.join(scratch, "refused")


def exits_are_seen(places) -> bool:
    """Whether spanalloc-measure may look at a process as it ends. Where it may not (ptrace is refused, as in some
    containers), no run is checked for whose malloc it had, and the memory of the last moments is not seen."""
    with tempfile.TemporaryDirectory(prefix="spanalloc-bench-") as scratch:
        out = os.path.join(scratch, "record")
        subprocess.run([places.measure, "--out", out, "--", "true"], check=False)
        try:
            with open(out, encoding="utf-8") as file:
                return json.load(file)["exit_readings"] > 0
        except (OSError, ValueError, KeyError):
            return False


def _last_line(path) -> str:
    """The last line of a file that is not empty; of a long file, of its last 64 KiB."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _judge_end(record, timeout, last_words):
    """RunFailed unless the command ended with exit code 0."""
    said = f": {last_words}" if last_words else ""
    if record is None:
        raise RunFailed(f"could not be started{said}")
    if record["timed_out"]:
        raise RunFailed(f"no end within {timeout:g} s", HUNG)
    if record["signal"]:
        try:
            name = signal.Signals(record["signal"]).name
        except ValueError:
            name = f"signal {record['signal']}"
        raise RunFailed(f"killed by {name}{said}", CRASHED)
    if record["exit_code"] == NO_ANSWER:
        raise RunFailed(last_words or "its question has no answer here", UNAVAILABLE)
    if record["exit_code"]:
        raise RunFailed(f"exit code {record['exit_code']}{said}")


def _parse_record(line) -> dict:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise RunFailed(f"its last line is no record: {line[:200] or '(nothing)'}")
    return record


_MEASURES = (
    "wall_s", "user_s", "system_s", "peak_kib", "peak_rss_kib", "peak_page_tables_kib", "minor_faults", "major_faults",
    "voluntary_switches", "involuntary_switches",
)


def _take_measures(sample, record):
    for name in _MEASURES:
        setattr(sample, name, record[name])


def _take_record(sample, record):
    """What the workload says of itself. A record with a number that is none is a fault of the workload."""
    try:
        if record.get("elapsed_s") is not None:
            sample.elapsed_s = float(record["elapsed_s"])
        for name in ("operations", "peak_live_bytes"):
            if record.get(name) is not None:
                setattr(sample, name, int(record[name]))
        sample.metrics = {str(name): float(value) for name, value in record.get("metrics", {}).items()}
        sample.latency = {str(call): dict(figures) for call, figures in record.get("latency", {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise RunFailed(f"its record cannot be read: {error}") from None
    if sample.elapsed_s is not None and not sample.elapsed_s > 0:
        raise RunFailed(f"its record says that it took {sample.elapsed_s} s")

