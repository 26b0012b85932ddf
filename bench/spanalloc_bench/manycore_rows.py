"""The lines of manycore.csv, one a simulation, and the points that pairs of them make: see manycore.py."""

from __future__ import annotations

import dataclasses

from spanalloc_bench import csv_lines
from spanalloc_bench.model import OK

CSV, META = "manycore.csv", "manycore-meta.json"
SHORT, LONG = "short", "long"
TURNS = "{turns}"      # stands for their number in a line's arguments
SEED = "seed"          # an argument of the plugin
REJECTED = "rejected"  # a point whose two runs do not say what the steady state is
LEAST_SHARE = 0.5      # of the long run that must be steady
NOISE = 0.01           # an operation: by how much a count may fall from the short run to the long one


# ---- one line ----


@dataclasses.dataclass
class Row:
    """One simulation. Fields are the columns of manycore.csv in this order."""

    workload: str
    allocator: str
    cores: int
    length: str
    turns: str
    arguments: str  # with TURNS for the turns
    machine: str    # further arguments of the plugin
    settings: str
    fingerprint: str
    status: str = OK
    problem: str = ""
    operations: int | None = None
    # Of one core, from the common start to the last thread's end; where the workload is judged by the allocator's time:
    # the mean thread's cycles in malloc, in free and in the first write of new objects.
    cycles: float | None = None
    threads: int | None = None
    cores_used: int | None = None     # by threads that live at a time, asleep or not
    running: int | None = None        # threads that run at a time
    expired_waits: int | None = None  # that were given up: see turns.h
    instructions: int | None = None
    accesses: int | None = None
    llc: int | None = None
    transfers: int | None = None
    invalidations: int | None = None
    # Transfers and invalidations by instructions of the allocator; none where its file is the workload's own as well.
    allocator_moves: int | None = None
    locked: int | None = None
    written_back: int | None = None
    faults: int | None = None
    syscalls: int | None = None
    shootdowns: int | None = None
    interrupts: int | None = None
    waits: int | None = None
    wakes: int | None = None
    real_s: float | None = None
    details: dict = dataclasses.field(default_factory=dict)  # calls, sites, lines of the plugin's result

    @property
    def key(self):
        return (self.workload, self.allocator, str(self.cores), self.length, self.turns, *self.of)

    @property
    def seed(self) -> int:
        """Of the times by which threads start and wake late; 0: none does."""
        return next((int(word[len(SEED) + 1:]) for word in self.machine.split() if word.startswith(f"{SEED}=")), 0)

    @property
    def of(self):
        """What two runs have in common that only differ in their length."""
        return self.arguments, self.machine, self.settings, self.fingerprint


class Point:
    """A point of a curve: what the long run has more than the short one. `problem` says why there is none."""

    def __init__(self, short: Row, long: Row):
        self.workload, self.allocator = long.workload, long.allocator
        self.cores, self.settings = long.cores, long.settings
        self.cores_used, self.running, self.expired_waits = long.cores_used, long.running, long.expired_waits
        bad = next((row for row in (long, short) if row.status != OK), None)
        self.status, self.problem = (bad.status, bad.problem) if bad else (OK, "")
        self.lines = long.details.get("lines", [])
        if bad:
            return
        for name in DIFFERENCES:
            both = getattr(long, name), getattr(short, name)
            setattr(self, name, None if None in both else both[0] - both[1])
        self.problem = self._why_not_steady(long)
        if self.problem:
            self.status = REJECTED
            return
        before = short.details["calls"]
        self.calls = {number: n - before.get(number, 0) for number, n in long.details["calls"].items()}
        # Only the dearest instructions are kept, so one that is dear in the long run alone counts in full.
        known = {_site_key(site): site for site in short.details["sites"]}
        self.sites = []
        for site in long.details["sites"]:
            less = known.get(_site_key(site), {})
            self.sites.append(site | {name: site[name] - less.get(name, 0) for name in _OF_SITES})

    def _why_not_steady(self, long) -> str:
        """Empty where the difference says something."""
        if self.operations <= 0 or self.cycles <= 0:
            return "the long run took no longer than the short one"
        share = self.cycles / long.cycles
        if share < LEAST_SHARE:
            return f"only {share:.0%} of the long run is steady; the start is the rest"
        fallen = [name for name in DIFFERENCES if (getattr(self, name) or 0) < -NOISE * self.operations]
        return f"fewer in the long run than in the short one: {', '.join(fallen)}" if fallen else ""

    @property
    def core_cycles(self) -> float:
        """Cycles of a core that an operation takes."""
        return self.cycles * self.cores / self.operations

    @property
    def throughput(self) -> float:
        """Operations of the whole machine in 1000 cycles."""
        return 1000 * self.operations / self.cycles

    @property
    def moves(self) -> float:
        """Lines that change owner, an operation."""
        return self._each(self.transfers + self.invalidations)

    def each(self, name) -> float | None:
        """A count, an operation; None where it is not known."""
        value = getattr(self, name)
        return None if value is None else self._each(value)

    def _each(self, value) -> float:
        """What is less than nothing is within NOISE of it: else the point has been rejected."""
        return max(0.0, value / self.operations)


_OF_SITES = ("transfers", "invalidations", "cycles")


def _site_key(site):
    return site.get("object"), site.get("offset", site["address"])


def points(rows, seed=0) -> list[Point]:
    """One point for each workload, allocator and number of cores; of several runs of the seed, made with other programs,
    settings or parameters, the last pair that differs in nothing but the turns."""
    pairs = {}
    for row in (row for row in rows if row.seed == seed):
        pairs.setdefault((row.workload, row.allocator, row.cores), {}).setdefault(row.of, {})[row.length] = row
    found = []
    for of in pairs.values():
        whole = [pair for pair in of.values() if len(pair) == 2]
        if whole:
            found.append(Point(whole[-1][SHORT], whole[-1][LONG]))
    return found


COUNTS = ("threads", "instructions", "accesses", "llc", "transfers", "invalidations", "locked", "written_back",
           "faults", "syscalls", "shootdowns", "interrupts", "waits", "wakes")
DIFFERENCES = ("operations", "cycles", "allocator_moves", *COUNTS)


# ---- the file ----


def read(folder) -> dict[tuple, Row]:
    """Every line of manycore.csv by its key; a later one replaces an earlier one."""
    return {row.key: row for row in csv_lines.read(Row, folder, CSV, META)}


def append(folder, row):
    with csv_lines.opened(Row, folder, CSV) as file:
        csv_lines.add(file, Row, [row])
