"""`spanalloc bench manycore`: how allocators scale from 1 to 64 cores, on a simulated machine (docs/manycore.md).

    workload x allocator x cores x {short, long}  ->  one simulation, one line of manycore.csv
    long - short                                  ->  one point of a curve

The difference of two runs of different length is the steady state: what starting the program and its threads, and an
allocator's first contact with each size, cost is in both. A simulation gives the same counts each time it is run, so
there are no rounds: a line that is there, of the same program, library, plugin and settings, is not simulated again.
The real machine's speed does not enter; its CPUs each simulate one line at a time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import dataclasses
import functools
import hashlib
import json
import os
import queue
import sys
import time

from spanalloc_bench import allocators, execute, progress, simulator, tree
from spanalloc_bench.model import CRASHED, FAILED, HUNG, NOT_PRELOADED, OK, Allocator

CORES, QUICK_CORES = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16)
ALLOCATORS = ("standard", "oopsla15", "glibc", "jemalloc", "tcmalloc", "mimalloc", "tbbmalloc", "bump")
QUICK_ALLOCATORS = ("standard", "glibc", "mimalloc", "bump")
MOST_CORES = 120  # a chain of larson needs two cores when a thread follows another; the plugin has 256
TIMEOUT_S = 900.0
CSV = "manycore.csv"


# ---- what is simulated ----


SHORT, LONG = "short", "long"


@dataclasses.dataclass(frozen=True)
class Workload:
    """`argv(cores, turns)` of a run of so many rounds, generations, steps or batches: `short(cores)` in the short one,
    and `steady(cores)` more in the long one. The short one is long enough that no thread ends while others still
    start: 64 threads that allocate for the first time at once may take a millisecond. `least` cores are what it
    needs."""

    name: str
    title: str
    argv: callable
    short: callable
    steady: callable
    least: int = 1
    in_allocator: bool = False  # judged by the time in malloc and free alone, which the workload measures itself

    def turns(self, length, cores, scale) -> str:
        """In as many digits for both, so that memory is laid out alike and the runs begin alike, event by event."""
        turns = self.short(cores) + (0 if length == SHORT else max(2, self.steady(cores) // scale))
        return f"{turns:04d}"


def _threadtest(cores, rounds):
    return ["threadtest", "--threads", cores, "--objects", 500 * cores, "--rounds", rounds, "--size", 64]


def _larson(cores, generations):
    return ["larson", "--threads", cores, "--objects", 200, "--rounds", 8, "--generations", generations,
            "--low", 7, "--high", 500]


def _producer_consumer(cores, steps):
    return ["acdc", "--threads", cores, "--steps", steps, "--step-kib", 2, "--low", 16, "--high", 513,
            "--min-lifetime", 1, "--max-lifetime", 4, "--shared", 100, "--lists", 50, "--sets", 2]


def _malloc_test(cores, batches):
    return ["malloc_test", "--producers", cores // 2, "--batches", batches, "--batch", 512]


WORKLOADS = {workload.name: workload for workload in (
    Workload("threadtest", "threadtest: rounds of 500 objects of 64 bytes a thread", _threadtest,
             lambda cores: 24 + cores, lambda cores: 32),
    Workload("larson", "larson: 7 to 499 bytes, 200 objects a chain, a new thread after every 1600 replacements",
             _larson, lambda cores: 4, lambda cores: 4),
    # Every thread walks every live object: the work of a step grows with the square of the cores.
    Workload("producer-consumer",
             "ACDC producer-consumer: 16 to 512 bytes, the last of all threads to access an object frees it",
             _producer_consumer, lambda cores: 8, lambda cores: max(16, 400 // cores), in_allocator=True),
    Workload("malloc-test",
             "malloc-test: half of the cores allocate batches of 512 objects of 64 bytes, the others free them",
             _malloc_test, lambda cores: 6, lambda cores: 8, least=2),
)}


def settings(name: str, cores: int) -> tuple[tuple[str, str], ...]:
    """What an allocator is told of the simulated machine by a setting of its own."""
    if name == "glibc":  # its default on a machine of so many cores
        return (("GLIBC_TUNABLES", f"glibc.malloc.arena_max={8 * cores}"),)
    if name == "jemalloc":  # likewise
        return (("MALLOC_CONF", f"narenas:{4 * cores if cores > 1 else 1}"),)
    return ()


# qemu records every reserved page: 16 GiB take 0.1 s, the default would take minutes.
OUR_ARENA_BITS = 34

# Why the others need none; shown beside the curves.
NO_SETTING = {
    "tcmalloc": "none needed: caches per thread; their limit for all together (32 MiB) does not depend on the CPUs",
    "mimalloc": "none needed: a heap per thread",
    "tbbmalloc": "none available: a heap per thread",
    "bump": "none needed: a region per thread",
}


def for_cores(allocator: Allocator, cores: int) -> Allocator:
    """The allocator with its settings for a machine of so many cores."""
    own = settings(allocator.name, cores)
    if allocator.ours:
        own = (("SPANALLOC_CPUS", str(cores)), ("SPANALLOC_ARENA_BITS", str(OUR_ARENA_BITS)))
    return dataclasses.replace(allocator, environment=allocator.environment + own)


@dataclasses.dataclass(frozen=True)
class Cell:
    workload: Workload
    allocator: Allocator  # with its settings
    cores: int
    length: str           # SHORT or LONG
    argv: tuple[str, ...]
    fingerprint: str      # of the files that take part

    @property
    def key(self) -> tuple[str, ...]:
        return (self.workload.name, self.allocator.name, str(self.cores), self.length, " ".join(self.argv[1:]),
                _settings_text(self.allocator), self.fingerprint)


def _settings_text(allocator) -> str:
    return " ".join(f"{name}={value}" for name, value in allocator.environment)


@functools.lru_cache(maxsize=None)
def _digest(path) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]


# ---- one line ----


@dataclasses.dataclass
class Row:
    """One simulation. Fields are the columns of manycore.csv in this order."""

    workload: str
    allocator: str
    cores: int
    length: str
    arguments: str
    settings: str
    fingerprint: str
    status: str = OK
    problem: str = ""
    operations: int | None = None
    # Of one core, from the common start to the last thread's end; where the workload is judged by its time in the
    # allocator: the mean thread's cycles there.
    cycles: float | None = None
    threads: int | None = None
    cores_used: int | None = None
    instructions: int | None = None
    accesses: int | None = None
    llc: int | None = None
    transfers: int | None = None
    invalidations: int | None = None
    allocator_moves: int | None = None  # transfers and invalidations by instructions of the allocator itself
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
        return (self.workload, self.allocator, str(self.cores), self.length, self.arguments, self.settings,
                self.fingerprint)


class Point:
    """A point of a curve: what the long run has more than the short one. `problem` says why there is none."""

    def __init__(self, short: Row, long: Row):
        self.workload, self.allocator = long.workload, long.allocator
        self.cores, self.settings = long.cores, long.settings
        bad = next((row for row in (long, short) if row.status != OK), None)
        self.status, self.problem = (bad.status, bad.problem) if bad else (OK, "")
        self.lines = long.details.get("lines", [])
        if bad:
            return
        for name in DIFFERENCES:
            setattr(self, name, getattr(long, name) - getattr(short, name))
        if self.operations <= 0 or self.cycles <= 0:
            self.status, self.problem = FAILED, "the long run took no longer than the short one"
            return
        before = short.details["calls"]
        self.calls = {number: n - before.get(number, 0) for number, n in long.details["calls"].items()}
        # Only the dearest instructions are kept, so one that is dear in the long run alone counts in full.
        known = {_site_key(site): site for site in short.details["sites"]}
        self.sites = []
        for site in long.details["sites"]:
            less = known.get(_site_key(site), {})
            self.sites.append(site | {name: site[name] - less.get(name, 0) for name in _OF_SITES})

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
        return max(0.0, (self.transfers + self.invalidations) / self.operations)

    def each(self, name) -> float:
        return max(0.0, getattr(self, name) / self.operations)


_OF_SITES = ("transfers", "invalidations", "cycles")


def _site_key(site):
    return site.get("object"), site.get("offset", site["address"])


def points(rows) -> list[Point]:
    """One point for each workload, allocator and number of cores; of several runs, made with other programs or parameters,
    the last pair of one fingerprint."""
    pairs = {}
    for row in rows:
        pairs.setdefault((row.workload, row.allocator, row.cores), {}).setdefault(row.fingerprint, {})[row.length] = row
    found = []
    for of in pairs.values():
        whole = [pair for pair in of.values() if len(pair) == 2]
        if whole:
            found.append(Point(whole[-1][SHORT], whole[-1][LONG]))
    return found


FIELDS = tuple(field.name for field in dataclasses.fields(Row))
_TEXT = ("workload", "allocator", "length", "arguments", "settings", "fingerprint", "status", "problem")
_FRACTION = ("cycles", "real_s")
_COUNTS = ("threads", "instructions", "accesses", "llc", "transfers", "invalidations", "locked", "written_back",
           "faults", "syscalls", "shootdowns", "interrupts", "waits", "wakes")
DIFFERENCES = ("operations", "cycles", "allocator_moves", *_COUNTS)
COSTS_GHZ = 3  # the plugin's default: the workload's clock counts nanoseconds


def _simulate(machine, cell, binaries, cpu) -> Row:
    row = Row(cell.workload.name, cell.allocator.name, cell.cores, cell.length, " ".join(cell.argv[1:]), _settings_text(cell.allocator),
              cell.fingerprint)
    environment = (("LD_PRELOAD", cell.allocator.path), *cell.allocator.environment)
    argv = [os.path.join(binaries, cell.argv[0]), *cell.argv[1:]]
    began = time.monotonic()
    try:
        counts, output = machine.run(argv, cell.cores, environment=environment, pin=cpu, timeout=TIMEOUT_S)
        record = json.loads(output.strip().splitlines()[-1])
    except simulator.TimedOut as error:
        row.status, row.problem = HUNG, str(error)
        return row
    except (simulator.SimulationFailed, ValueError, IndexError) as error:
        row.status, row.problem = CRASHED, str(error) or "no record"
        return row
    row.real_s = round(time.monotonic() - began, 3)
    for name in _COUNTS:
        setattr(row, name, counts[name])
    row.cores_used = counts["cores"]
    row.operations = record["operations"]
    row.cycles = counts["cycles"]
    if cell.workload.in_allocator:
        row.cycles = record["metrics"]["allocator_s"] * 1e9 * COSTS_GHZ
    of_allocator = [o for o in counts["objects"] if os.path.realpath(o["object"]) == cell.allocator.path]
    row.allocator_moves = sum(o["transfers"] + o["invalidations"] for o in of_allocator)
    row.details = {"calls": counts["calls"], "sites": counts["sites"][:24], "lines": counts["lines"][:5]}
    if not counts["measured"]:
        row.status, row.problem = CRASHED, "the marks of the measured part were not seen"
    return row


# ---- the file ----


def read(folder) -> dict[tuple, Row]:
    """Every line of manycore.csv by its key; a later one replaces an earlier one. A line cut short by a kill is passed over."""
    path = os.path.join(folder, CSV)
    if not os.path.isfile(path):
        return {}
    rows = {}
    with open(path, newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        if tuple(next(lines, ())) != FIELDS:
            raise allocators.BadChoice(f"{path}: its columns are not those of this version; choose another --out")
        for values in lines:
            if len(values) != len(FIELDS):
                continue
            row = Row(**{name: _decoded(name, text) for name, text in zip(FIELDS, values)})
            rows[row.key] = row
    return rows


def _decoded(name, text):
    if name in _TEXT:
        return text
    if name == "details":
        return json.loads(text) if text else {}
    if text == "":
        return None
    return float(text) if name in _FRACTION else int(text)


def _append(folder, row):
    path = os.path.join(folder, CSV)
    new = not os.path.isfile(path)
    if not new:
        with open(path, "rb+") as file:  # what a kill left of a line
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
            new = not content
    with open(path, "a", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        if new:
            out.writerow(FIELDS)
        values = [getattr(row, name) for name in FIELDS]
        out.writerow(["" if v is None else json.dumps(v, separators=(",", ":")) if isinstance(v, dict) else v for v in values])


# ---- all of it ----


def cells_of(chosen, workloads, cores, scale, binaries, plugin) -> list[Cell]:
    """Many cores first: they take longest, and two CPUs then end at about the same time."""
    found = []
    for count in sorted(cores, reverse=True):
        for workload in workloads:
            if count < workload.least:
                continue
            for allocator in chosen:
                for length in (LONG, SHORT):
                    argv = tuple(str(word) for word in workload.argv(count, workload.turns(length, count, scale)))
                    files = (plugin, os.path.join(binaries, argv[0]), allocator.path)
                    fingerprint = "-".join(map(_digest, files)) + f"-{scale}"
                    found.append(Cell(workload, for_cores(allocator, count), count, length, argv, fingerprint))
    return found


def _weight(cell) -> float:
    """How long a cell takes in proportion: the work is the cores', and more of them hand over more often."""
    return cell.cores ** 1.3 * (3 if cell.length == LONG else 1)


class Progress:
    """A line on a terminal, else one every ten seconds."""

    def __init__(self, cells, workers):
        self.left, self.total, self.done, self.workers = sum(map(_weight, cells)), len(cells), 0, workers
        self.began, self.worked, self.last = time.monotonic(), 0.0, 0.0

    def show(self, text, end=""):
        remaining = ""
        if self.worked > 0:
            spent = time.monotonic() - self.began
            remaining = f", about {progress.duration(spent * self.left / self.worked)} left"
        line = f"[{self.done}/{self.total}] {text}{remaining}"
        if sys.stderr.isatty():
            print(f"\r{line:100.100}", end=end, file=sys.stderr, flush=True)
        elif time.monotonic() - self.last >= progress.EVERY_S or end:
            self.last = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def add(self, cell, row):
        self.done += 1
        self.worked += _weight(cell)
        self.left -= _weight(cell)
        if row.status != OK:
            self.show(f"{cell.workload.name}, {cell.allocator.name}, {cell.cores} cores, {cell.length}: {row.status}: {row.problem}", end="\n")
        else:
            self.show(f"{cell.workload.name}, {cell.allocator.name}, {cell.cores} cores, {cell.length}")


def simulate(cells, folder, binaries, plugin) -> list[Row]:
    """Simulates what the folder does not have yet; the rows of all cells."""
    os.makedirs(folder, exist_ok=True)
    rows = read(folder)
    wanted = [cell for cell in cells if cell.key not in rows or rows[cell.key].status != OK]
    if len(wanted) < len(cells):
        print(f"{len(cells) - len(wanted)} of {len(cells)} simulations are in {folder}/{CSV} already", file=sys.stderr)
    cpus = sorted(os.sched_getaffinity(0))
    free = queue.SimpleQueue()
    for cpu in cpus:
        free.put(cpu)
    shown = Progress(wanted, len(cpus))

    def one(cell):
        cpu = free.get()
        try:
            return cell, _simulate(machine, cell, binaries, cpu)
        finally:
            free.put(cpu)

    with simulator.Simulator(plugin) as machine, concurrent.futures.ThreadPoolExecutor(len(cpus)) as pool:
        futures = [pool.submit(one, cell) for cell in wanted]
        try:
            for future in concurrent.futures.as_completed(futures):
                cell, row = future.result()
                _append(folder, row)
                rows[row.key] = row
                shown.add(cell, row)
        except BaseException:
            for future in futures:
                future.cancel()
            machine.stop()
            raise
    if sys.stderr.isatty() and wanted:
        print(file=sys.stderr)
    return [rows[cell.key] for cell in cells]


def verify(machine, chosen, binaries, probe, folder) -> dict[str, str]:
    """{allocator: why its rows would not be its own}: asks inside a simulated process who defines malloc."""
    problems = {}
    out = os.path.join(folder, ".probe")
    for allocator in chosen:
        open(out, "w", encoding="ascii").close()
        environment = (("LD_PRELOAD", f"{probe}:{allocator.path}"), ("SPANALLOC_PROBE_OUT", out),
                       *for_cores(allocator, 2).environment)
        argv = [os.path.join(binaries, "threadtest"), "--threads", "1", "--objects", "10", "--rounds", "1"]
        try:
            machine.run(argv, 2, environment=environment, timeout=TIMEOUT_S)
        except simulator.SimulationFailed as error:
            problems[allocator.name] = str(error)
            continue
        with open(out, encoding="utf-8", errors="replace") as file:
            defined_by = {os.path.realpath(line.split("\t")[1]) for line in file if line.count("\t") == 2}
        if defined_by != {os.path.realpath(allocator.path)}:
            problems[allocator.name] = "malloc is in " + (", ".join(sorted(defined_by)) or "no object that the probe saw")
    if os.path.exists(out):
        os.unlink(out)
    return problems


# ---- the command ----


def _numbers(text):
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected numbers with commas between them") from None
    if not found or found[0] < 1 or found[-1] > MOST_CORES:
        raise argparse.ArgumentTypeError(f"{text}: from 1 to {MOST_CORES} cores")
    return found


def _parser():
    parser = argparse.ArgumentParser(
        prog="spanalloc bench manycore", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Speed-up and cache lines that change owner, for 1 to 64 cores, on a simulated machine.\n\n"
        "Every workload runs under every allocator on a machine with a core per thread, simulated by a plugin of\n"
        "qemu-x86_64 (Debian's qemu-user). The counts do not depend on the real machine, nor on what else it is doing.\n"
        "The default takes about 40 minutes on 2 CPUs, --quick two minutes; an interrupted run goes on where it was.\n"
        "docs/manycore.md describes the model, what it was validated with, and what it leaves out.",
        epilog="examples: spanalloc bench manycore --quick\n"
        "          spanalloc bench manycore --workloads larson --allocators standard,mimalloc --cores 1,16,64\n\n"
        "exit code: 0; 1 when one of our libraries failed somewhere; 2 for bad options; 125 when nothing can be simulated;\n"
        "130 when interrupted.",
    )
    parser.add_argument("--cores", type=_numbers, metavar="N,N", help=f"default {','.join(map(str, CORES))}")
    parser.add_argument("--workloads", metavar="A,B", help=f"default all: {','.join(WORKLOADS)}")
    parser.add_argument("--allocators", metavar="A,B", help=f"default {','.join(ALLOCATORS)}")
    parser.add_argument("--with", dest="with_", action="append", default=[], metavar="NAME=PATH",
                        help="one more allocator: a shared object that defines malloc; may be repeated")
    parser.add_argument("--out", metavar="DIR", help="where results are kept; default out/bench of the source tree (with "
                        "--quick, out/bench-quick)")
    parser.add_argument("--quick", action="store_true", help=f"{','.join(map(str, QUICK_CORES))} cores, few allocators, a "
                        "quarter of the work")
    parser.add_argument("--report", action="store_true", help="simulate nothing: write tables and plots of what there is")
    return parser


def _chosen(places, options):
    names = options.allocators.split(",") if options.allocators else QUICK_ALLOCATORS if options.quick else ALLOCATORS
    chosen = [allocators.named(places, name.strip()) for name in names]
    for allocator in chosen:
        if allocator.missing and options.allocators:
            raise allocators.BadChoice(f"--allocators {allocator.name}: {allocator.missing}")
        if allocator.missing:
            print(f"{allocator.name} is left out: {allocator.missing}", file=sys.stderr)
    chosen = [allocator for allocator in chosen if not allocator.missing]
    chosen += [allocators.given(places, text, [a.name for a in chosen]) for text in options.with_]
    return chosen


def _workloads(names):
    if not names:
        return list(WORKLOADS.values())
    for name in (found := names.split(",")):
        if name not in WORKLOADS:
            raise allocators.BadChoice(f"--workloads {name}: there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in found]


def command(places, arguments) -> int:
    """Runs the command with its words; returns the exit code."""
    options = _parser().parse_args(list(arguments))
    default = tree.DEFAULT_OUT + ("-quick" if options.quick else "")
    folder = os.path.abspath(options.out or default)
    binaries = tree.workloads(places)
    plugin = os.path.join(binaries, simulator.PLUGIN)
    from spanalloc_bench import manycore_report

    if options.report:
        rows = list(read(folder).values())
        if not rows:
            raise allocators.BadChoice(f"{folder} holds no simulations: `spanalloc bench manycore` makes them")
        manycore_report.write(folder, rows)
        return 0
    reason = simulator.why_not(plugin)
    if reason:
        raise allocators.BadChoice(reason)
    chosen, workloads = _chosen(places, options), _workloads(options.workloads)
    cores = options.cores or (QUICK_CORES if options.quick else CORES)
    if not any(count >= workload.least for count in cores for workload in workloads):
        raise allocators.BadChoice("these workloads need more cores than these")
    os.makedirs(folder, exist_ok=True)
    with simulator.Simulator(plugin) as machine:
        problems = verify(machine, chosen, binaries, places.probe, folder)
    for name, problem in problems.items():
        print(f"{name} is left out: {NOT_PRELOADED}: {problem}", file=sys.stderr)
    ours_failed = any(a.ours and a.name in problems for a in chosen)
    chosen = [allocator for allocator in chosen if allocator.name not in problems]
    if not chosen:
        raise allocators.BadChoice("no allocator is left")
    began = time.monotonic()
    cells = cells_of(chosen, workloads, cores, 4 if options.quick else 1, binaries, plugin)
    rows = simulate(cells, folder, binaries, plugin)
    manycore_report.write(folder, rows)
    print(f"{len(rows)} simulations; took {progress.duration(time.monotonic() - began)}", file=sys.stderr)
    ours = {allocator.name for allocator in chosen if allocator.ours}
    return 1 if ours_failed or any(row.status != OK and row.allocator in ours for row in rows) else 0
