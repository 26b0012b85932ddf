"""Runs one command under several allocators in rotation and collects what spanalloc-measure says."""

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TIMED_OUT = 124
PROGRESS_EVERY_S = 10.0  # where no terminal shows a bar
# What a row of the table is made of, from one run's record.
MEASURES = {
    "wall_s": lambda r: r["wall_s"],
    "cpu_s": lambda r: r["user_s"] + r["system_s"],
    "peak_kib": lambda r: r["peak_kib"],
    "page_faults": lambda r: r["minor_faults"] + r["major_faults"],
}


class Contender:
    """One allocator in the comparison. `problem` says why its figures are not to be believed, None if they are."""

    def __init__(self, name, path, ours=False):
        self.name = name
        self.path = os.path.realpath(path)
        self.ours = ours
        self.problem = None
        self.malloc_object = None  # what defines malloc in the command, as seen from inside
        self.processes = 0         # processes of the warm-up in which that was looked at
        self.processes_ours = 0    # those in which it was this contender
        self.runs = []

    def medians(self):
        return {key: statistics.median(get(r) for r in self.runs) for key, get in MEASURES.items()}


def seldom(total):
    """What Comparison.run_all calls where no terminal shows a bar: a line every ten seconds, so that a log stays short
    and a long comparison does not look as if it hung."""
    done, last = 0, time.monotonic()

    def advance(text):
        nonlocal done, last
        if text is None:
            done += 1
        elif time.monotonic() - last >= PROGRESS_EVERY_S:
            last = time.monotonic()
            print(f"[{done}/{total}] {text}", file=sys.stderr, flush=True)

    return advance


class Comparison:
    """A command, its contenders and the runs."""

    def __init__(self, places, command, contenders, rounds, timeout):
        self.places = places
        self.command = command
        self.contenders = contenders
        self.rounds = rounds
        self.timeout = timeout
        self.order = []
        self.last_errors = ""

    def schedule(self):
        """Rounds of contenders; each round starts with another one, so that none profits from its place."""
        n = len(self.contenders)
        for r in range(self.rounds):
            yield [self.contenders[(r + i) % n] for i in range(n)]

    def run_all(self, advance):
        """One warm-up run each, which also verifies, then the rounds. Calls advance(text) before every run and
        advance(None) after it."""
        for contender in self.contenders:
            advance(f"warm-up: {contender.name}")
            self._warm_up(contender)
            advance(None)
            if contender is self.contenders[0] and contender.problem:
                return  # the base of all ratios is missing
        for number, contenders in enumerate(self.schedule(), start=1):
            self.order.append([c.name for c in contenders if not c.problem])
            for contender in contenders:
                advance(f"round {number} of {self.rounds}: {contender.name}")
                if not contender.problem:
                    self._timed_run(contender)
                advance(None)

    def _warm_up(self, contender):
        with tempfile.NamedTemporaryFile(prefix="spanalloc-probe-") as out:
            record = self._measure(
                contender, preload=f"{self.places.probe}:{contender.path}", set_=[f"SPANALLOC_PROBE_OUT={out.name}"]
            )
            lines = out.read().decode(errors="replace").splitlines()
        contender.problem = failure_text(record, self.timeout)
        if not contender.problem:
            self._verify(contender, record["process_id"], lines)

    def _verify(self, contender, root, lines):
        """Believes a row only when the command's malloc is the contender's."""
        objects = {}  # process -> object; a later line is a later program of the same process
        for line in lines:
            process, object_, _ = line.split("\t", 2)
            objects[int(process)] = os.path.realpath(object_)
        contender.processes = len(objects)
        contender.processes_ours = sum(o == contender.path for o in objects.values())
        contender.malloc_object = objects.get(root)
        if contender.malloc_object is None:
            contender.problem = "not preloaded (static or set-user-id program?)"
        elif contender.malloc_object != contender.path:
            contender.problem = f"malloc is in {contender.malloc_object}"

    def _timed_run(self, contender):
        record = self._measure(contender, preload=contender.path, expect=contender.path)
        contender.problem = failure_text(record, self.timeout)
        if not contender.problem and not record["expected_mapped"] and record["exit_readings"] > 0:
            contender.problem = "library was not mapped in a timed run"
        if not contender.problem:
            contender.runs.append(record)

    def _measure(self, contender, preload, expect=None, set_=()):
        """One run's record, a dict; None when there is none."""
        with tempfile.TemporaryDirectory(prefix="spanalloc-compare-") as scratch:
            out = os.path.join(scratch, "record")
            arguments = [self.places.measure, "--out", out, "--preload", preload, "--timeout", str(self.timeout)]
            if expect:
                arguments += ["--expect", expect]
            for pair in set_:
                arguments += ["--set", pair]
            with open(os.path.join(scratch, "errors"), "w+b") as errors:
                subprocess.run(
                    [*arguments, "--", *self.command],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, check=False,
                )
                errors.seek(0)
                self.last_errors = errors.read()[-2000:].decode(errors="replace")
            try:
                with open(out, encoding="utf-8") as file:
                    return json.load(file)
            except (OSError, ValueError):
                return None

    def ratios(self, contender):
        base = self.contenders[0].medians()
        mine = contender.medians()
        return {key: mine[key] / base[key] if base[key] else None for key in MEASURES}

    def as_json(self):
        rows = []
        for c in self.contenders:
            counts = c.runs and not c.problem
            rows.append({
                "name": c.name, "path": c.path, "ours": c.ours, "problem": c.problem,
                "malloc_defined_by": c.malloc_object,
                "processes_verified": c.processes_ours, "processes_looked_at": c.processes,
                "median": c.medians() if counts else None, "ratio_to_glibc": self.ratios(c) if counts else None,
                "runs": c.runs,
            })
        machine = {
            "system": platform.platform(), "machine": platform.machine(), "cpus": os.cpu_count(),
            "libc": " ".join(platform.libc_ver()),
        }
        return {"command": self.command, "rounds": self.rounds, "machine": machine, "order": self.order, "rows": rows}


def failure_text(record, timeout):
    """Why a run does not count; None when it went well."""
    if record is None:
        return "could not be started"
    if record["timed_out"]:
        return f"timed out after {timeout:g} s"
    if record["signal"]:
        try:
            name = signal.Signals(record["signal"]).name
        except ValueError:
            name = str(record["signal"])
        return f"killed by {name}"
    if record["exit_code"]:
        return f"failed with exit code {record['exit_code']}"
    return None
