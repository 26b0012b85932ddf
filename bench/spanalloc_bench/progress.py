"""How far a run is and how long it will take: a bar on a terminal, else a line every ten seconds.

Nothing is drawn while a run is measured: the bar changes only between two runs, by this thread.
"""

from __future__ import annotations

import statistics
import sys
import time

from spanalloc_bench.model import Family

EVERY_S = 10.0
OVERHEAD_S = 0.08  # of one run besides the workload's own time
# Seconds that a case takes before anything is known of it.
FIRST_GUESS_S = {Family.WORKLOAD: 0.7, Family.PROGRAM: 3.0, Family.DRIVER: 6.0, Family.PAGES: 0.7}


class Estimate:
    """Seconds that the runs left will take, learned from those made: of the same case, else of how wrong the first
    guesses were."""

    def __init__(self, cells, samples):
        self.left = {}
        self.guess = {}
        self.seen = {}
        for cell in cells:
            self.left[cell.case.id] = self.left.get(cell.case.id, 0) + 1
            self.guess[cell.case.id] = FIRST_GUESS_S[cell.case.family]
        for sample in samples:
            if sample.case in self.guess and sample.wall_s is not None:
                self.seen.setdefault(sample.case, []).append(sample.wall_s + OVERHEAD_S)

    def done(self, cell, seconds=None):
        """One run less; `seconds` that it took, None where it was not made."""
        self.left[cell.case.id] -= 1
        if seconds is not None:
            self.seen.setdefault(cell.case.id, []).append(seconds)

    def seconds(self) -> float:
        off = [statistics.fmean(took) / self.guess[case] for case, took in self.seen.items()]
        factor = statistics.fmean(off) if off else 1.0
        total = 0.0
        for case, count in self.left.items():
            each = statistics.fmean(self.seen[case]) if case in self.seen else self.guess[case] * factor
            total += count * each
        return total


def duration(seconds) -> str:
    """"40 s", "12 min", "1 h 5 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Progress:
    """Shows it. A context manager; `say` prints what belongs above the bar."""

    def __init__(self, cells, samples, say):
        self.total = len(cells)
        self.count = 0
        self.estimate = Estimate(cells, samples)
        self.say = say
        self.bar = None
        self.last_line = 0.0
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(),
                       TextColumn("{task.fields[left]}"))
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self.task = self.bar.add_task("starting", total=self.total, left="")

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *exception):
        if self.bar:
            self.bar.stop()

    def begin(self, cell):
        self.began = time.monotonic()
        what = f"round {cell.round}: {cell.case.id}, {cell.allocator.name}"
        left = f"about {duration(self.estimate.seconds())} left"
        if self.bar:
            room = max(20, min(60, self.bar.console.width - 70))
            self.bar.update(self.task, description=f"{what:{room}.{room}}", completed=self.count, left=left, refresh=True)
        elif self.began - self.last_line >= EVERY_S:
            self.last_line = self.began
            self.say(f"[{self.count}/{self.total}] {what} ({left})")

    def end(self, cell, sample):
        self.count += 1
        # What cannot be run takes no time, which says nothing about the others.
        self.estimate.done(cell, time.monotonic() - self.began if sample.wall_s is not None else None)

    def skip(self, cell):
        self.count += 1
        self.estimate.done(cell)

    def print(self, text):
        if self.bar:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            self.say(text)
