"""How far a run is and how long it will take: a bar on a terminal, else a line every ten seconds.

Nothing is drawn while a run is measured: the bar changes only between two runs, by this thread.
"""

from __future__ import annotations

import collections
import math
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
        self.left = collections.Counter(cell.case.id for cell in cells)
        self.guess = {cell.case.id: FIRST_GUESS_S[cell.case.family] for cell in cells}
        self.seen = collections.defaultdict(list)
        for sample in samples:
            if sample.case in self.guess and sample.wall_s is not None:
                self.seen[sample.case].append(sample.wall_s + OVERHEAD_S)

    def done(self, cell, seconds=None):
        """One run less; `seconds` that it took, None where it was not made."""
        self.left[cell.case.id] -= 1
        if seconds is not None:
            self.seen[cell.case.id].append(seconds)

    def seconds(self) -> float:
        off = [statistics.fmean(took) / self.guess[case] for case, took in self.seen.items()]
        factor = statistics.fmean(off) if off else 1.0
        return sum(count * (statistics.fmean(self.seen[case]) if case in self.seen else self.guess[case] * factor)
                   for case, count in self.left.items())


def duration(seconds) -> str:
    """"40 s", "12 min", "1 h 5 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Bar:
    """Shows it. A context manager. `say` takes what is shown where there is no terminal, a line each `every_s`."""

    def __init__(self, say=None, every_s=None):
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self.every_s, self.last, self.bar = EVERY_S if every_s is None else every_s, -math.inf, None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as RichBar, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(),
                       TextColumn("{task.fields[note]}"))
            self.bar = RichBar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
            self.task = self.bar.add_task("starting", total=None, note="")

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *exception):
        if self.bar:
            self.bar.stop()

    def show(self, done, total, what, note=""):
        if self.bar:
            room = max(20, min(60, self.bar.console.width - 70))
            self.bar.update(self.task, description=f"{what:{room}.{room}}", completed=done, total=total, note=note,
                            refresh=True)
        elif time.monotonic() - self.last >= self.every_s:
            self.last = time.monotonic()
            self.say(f"[{done}/{total}] {what}" + (f" ({note})" if note else ""))

    def print(self, text):
        """What belongs above the bar."""
        if self.bar:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            self.say(text)


def left(seconds) -> str:
    return f"about {duration(seconds)} left"


class Progress(Bar):
    """How far the cells of a run are."""

    def __init__(self, cells, samples, say):
        super().__init__(say)
        self.total, self.count, self.estimate = len(cells), 0, Estimate(cells, samples)

    def begin(self, cell):
        self.began = time.monotonic()
        self.show(self.count, self.total, f"round {cell.round}: {cell.case.id}, {cell.allocator.name}",
                  left(self.estimate.seconds()))

    def end(self, cell, sample):
        self.count += 1
        # What cannot be run takes no time, which says nothing about the others.
        self.estimate.done(cell, time.monotonic() - self.began if sample.wall_s is not None else None)

    def skip(self, cell):
        self.count += 1
        self.estimate.done(cell)
