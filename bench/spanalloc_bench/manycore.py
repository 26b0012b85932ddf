"""`spanalloc bench manycore`: how allocators scale from 1 to 64 cores, on a simulated machine (docs/manycore.md).

    workload x allocator x cores x {short, long}  ->  one simulation, one line of manycore.csv
    long - short                                  ->  one point of a curve

The difference of two runs of different length is the steady state: what starting the program and its threads, and an
allocator's first contact with each size, cost is in both. Where that is most of both, the difference says nothing, and
there is no point. A simulation repeats the one before within some percent, so there are no rounds: a line that is
there, of the same program, library, plugin and settings, is not simulated again. The real machine's speed does not
enter; its CPUs each simulate one line at a time.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import json
import os
import queue
import shutil
import subprocess
import sys
import time

from spanalloc_bench import allocators, build, old_names, packed, progress, simulator, tree
from spanalloc_bench import machine as this_machine
from spanalloc_bench.cases import acdc
from spanalloc_bench.manycore_rows import COUNTS, CSV, LONG, META, SEED, SHORT, TURNS, Row, append, read
from spanalloc_bench.manycore_workloads import ALLOCATORS, WORKLOADS, Workload, settings
from spanalloc_bench.model import CRASHED, FAILED, HUNG, NOT_PRELOADED, OK, Allocator, Kind

CORES, QUICK_CORES = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 16)
QUICK_ALLOCATORS = ("standard", "glibc", "mimalloc", "bump")
MOST_CORES = 120  # a chain of larson needs two cores when a thread follows another; the plugin has 256
TIMEOUT_S = 900.0
PROBED = "threadtest"  # asked for whose malloc it has


# ---- what is simulated ----

# qemu records every reserved page: 16 GiB take 0.1 s, the default would take minutes.
OUR_ARENA_BITS = 34

# qemu has no vDSO, and without one our libraries count their looks at the clock instead of asking the kernel: each look
# would be a line that moves, and 16 of them a millisecond. A simulation is over before a real clock would tell.
OUR_SETTINGS = (("SPANALLOC_ARENA_BITS", str(OUR_ARENA_BITS)), ("SPANALLOC_CLOCK", "still"))


def for_cores(allocator: Allocator, cores: int) -> Allocator:
    """The allocator with its settings for a machine of so many cores."""
    own = settings(allocator.name, cores)
    if allocator.ours or allocator.kind is Kind.GIVEN:  # which may be ours, of before a change
        own = (("SPANALLOC_CPUS", str(cores)), *OUR_SETTINGS)
    return dataclasses.replace(allocator, environment=allocator.environment + own)


@dataclasses.dataclass(frozen=True)
class Cell:
    workload: Workload
    allocator: Allocator  # with its settings
    cores: int
    length: str           # SHORT or LONG
    turns: str
    argv: tuple[str, ...]
    fingerprint: str      # of the files that take part
    seed: int = 0

    @property
    def machine(self) -> tuple:
        """Further arguments of the plugin."""
        return (*self.workload.machine(self.cores), *(((SEED, self.seed),) if self.seed else ()))

    def row(self) -> Row:
        """Its line, still without results."""
        arguments = " ".join(map(str, self.workload.argv(self.cores, TURNS)[1:]))
        return Row(self.workload.name, self.allocator.name, self.cores, self.length, self.turns, arguments,
                   _text_of(self.machine), _text_of(self.allocator.environment), self.fingerprint)

    @property
    def key(self) -> tuple[str, ...]:
        return self.row().key


def _text_of(pairs) -> str:
    return " ".join(f"{name}={value}" for name, value in pairs)


_sha256 = functools.lru_cache(maxsize=None)(tree.sha256)

COSTS_GHZ = 3  # the plugin's default: the workload's clock counts nanoseconds


@functools.lru_cache(maxsize=None)
def _libraries_of(program) -> frozenset[str] | None:
    """Files that a workload maps without an allocator, itself among them; None where that cannot be found out."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    try:
        run = subprocess.run(["ldd", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             text=True, timeout=600, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    words = [word for line in run.stdout.splitlines() for word in line.split() if word.startswith("/")]
    return frozenset(map(os.path.realpath, [program, *words])) if words else None


def moves_in_allocator(objects, allocator_path, of_workload) -> int | None:
    """Moves by instructions of the allocator and of the libraries that it brings along: of every file that the
    workload does not map without it (TBB's malloc is two). None where the allocator's file is one of those that the
    workload maps anyway: in the C library, its threads and locks cannot be told from its malloc."""
    if of_workload is None or os.path.realpath(allocator_path) in of_workload:
        return None
    return sum(o["transfers"] + o["invalidations"] for o in objects
               if o["object"].startswith("/") and os.path.realpath(o["object"]) not in of_workload)


def _simulate(machine, cell, binaries, cpu) -> Row:
    row = cell.row()
    environment = (("LD_PRELOAD", cell.allocator.path), *cell.allocator.environment)
    argv = [os.path.join(binaries, cell.argv[0]), *cell.argv[1:]]
    began = time.monotonic()
    try:
        counts, output = machine.run(argv, cell.cores, environment=environment,
                                     options=cell.machine, pin=cpu, timeout=TIMEOUT_S)
        record = json.loads(output.strip().splitlines()[-1])
    except simulator.TimedOut as error:
        row.status, row.problem = HUNG, str(error)
        return row
    except (simulator.SimulationFailed, ValueError, IndexError) as error:
        row.status, row.problem = CRASHED, str(error) or "no record"
        return row
    row.real_s = round(time.monotonic() - began, 3)
    for name in COUNTS:
        setattr(row, name, counts[name])
    row.cores_used, row.running, row.expired_waits = counts["cores"], counts["running"], counts["expired_waits"]
    row.operations = record["operations"]
    row.cycles = counts["cycles"]
    if cell.workload.in_allocator:
        row.cycles = record["metrics"][acdc.ALLOCATOR_TIME] * 1e9 * COSTS_GHZ
    row.allocator_moves = moves_in_allocator(counts["objects"], cell.allocator.path, _libraries_of(argv[0]))
    row.details = {"calls": counts["calls"], "sites": counts["sites"][:24], "lines": counts["lines"][:5]}
    if not counts["measured"]:
        row.status, row.problem = CRASHED, "the marks of the measured part were not seen"
    elif row.expired_waits:
        row.status = FAILED
        row.problem = (f"{row.expired_waits} waits for the real kernel were given up, so the order of events may be "
                       "the real machine's")
    return row


def read_meta(folder) -> dict:
    """Under what the folder's lines were made; empty where nothing says it."""
    return old_names.read_record(folder, META)


def write_meta(folder, chosen, plugin, binaries, asked):
    """Adds a run to what the folder says of itself: commit and machine of each run; versions and checksums of what took
    part, which the fingerprints of the lines begin with."""
    meta = read_meta(folder)
    known = {facts["name"]: facts for facts in meta.get("allocators", [])}
    for allocator in chosen:
        known[allocator.name] = {
            "name": allocator.name, "path": tree.relative(allocator.path), "sha256": _sha256(allocator.path),
            "version": this_machine.version_of(allocator),
        }
    names = dict.fromkeys(workload.argv(2, 1)[0] for workload in WORKLOADS.values())
    paths = [plugin, *(os.path.join(binaries, name) for name in names)]
    files = {os.path.basename(path): _sha256(path) for path in paths if os.path.isfile(path)}
    meta = {
        "machine": this_machine.describe(), "qemu": this_machine.package_of(shutil.which(simulator.QEMU)),
        "allocators": list(known.values()), "programs": {**meta.get("programs", {}), **files},
        "runs": [*meta.get("runs", []), {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "arguments": asked,
                                         "git": this_machine.git_commit(tree.SOURCE)}],
    }
    packed.write_record(folder, META, meta)


# ---- all of it ----


def cells_of(chosen, workloads, cores, scale, binaries, plugin, seeds=1) -> list[Cell]:
    """Many cores first: they take longest, and two CPUs then end at about the same time."""
    found = []
    for count in sorted(cores, reverse=True):
        for workload in workloads:
            if count < workload.least:
                continue
            for allocator in chosen:
                for length in (LONG, SHORT):
                    turns = workload.turns(length, count, scale)
                    argv = tuple(str(word) for word in workload.argv(count, turns))
                    files = (plugin, os.path.join(binaries, argv[0]), allocator.path)
                    fingerprint = "-".join(_sha256(path)[:12] for path in files) + f"-{scale}"
                    found.extend(Cell(workload, for_cores(allocator, count), count, length, turns,
                                      argv + ("--seed", str(seed)) * bool(seed and workload.seeded), fingerprint, seed)
                                 for seed in range(seeds))
    return found


def _weight(cell) -> float:
    """How long a cell takes in proportion: the work is the cores', and more of them hand over more often."""
    return cell.cores ** 1.3 * (3 if cell.length == LONG else 1)


def simulate(cells, folder, binaries, plugin, asked="") -> list[Row]:
    """Simulates what the folder does not have yet; the rows of all cells. `asked`: the options, for the record."""
    os.makedirs(folder, exist_ok=True)
    old_names.part(folder, CSV, META)
    rows = read(folder)
    wanted = [cell for cell in cells if cell.key not in rows or rows[cell.key].status != OK]
    if len(wanted) < len(cells):
        print(f"{len(cells) - len(wanted)} of {len(cells)} simulations are in {folder}/{CSV} already", file=sys.stderr)
    if wanted:
        write_meta(folder, {cell.allocator.name: cell.allocator for cell in wanted}.values(), plugin, binaries, asked)
    cpus = sorted(os.sched_getaffinity(0))
    free = queue.SimpleQueue()
    for cpu in cpus:
        free.put(cpu)
    began, worked, weight = time.monotonic(), 0.0, sum(map(_weight, wanted))

    def one(cell):
        cpu = free.get()
        try:
            return cell, _simulate(machine, cell, binaries, cpu)
        finally:
            free.put(cpu)

    with simulator.Simulator(plugin) as machine, concurrent.futures.ThreadPoolExecutor(len(cpus)) as pool, \
            progress.Bar() as bar:
        futures = [pool.submit(one, cell) for cell in wanted]
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                cell, row = future.result()
                append(folder, row)
                rows[row.key] = row
                of = f"{cell.workload.name}, {cell.allocator.name}, {cell.cores} cores, {cell.length}"
                if row.status != OK:
                    bar.print(f"{of}: {row.status}: {row.problem}")
                worked += _weight(cell)
                bar.show(done, len(wanted), of, progress.left((time.monotonic() - began) * (weight / worked - 1)))
        except BaseException:
            for future in futures:
                future.cancel()
            machine.stop()
            raise
    return [rows[cell.key] for cell in cells]


def verify(machine, chosen, binaries, probe, folder) -> dict[str, str]:
    """{allocator: why its rows would not be its own}: asks inside a simulated process who defines malloc."""
    problems = {}
    out = os.path.join(folder, ".probe")
    for allocator in chosen:
        open(out, "w", encoding="ascii").close()
        environment = (("LD_PRELOAD", f"{probe}:{allocator.path}"), ("SPANALLOC_PROBE_OUT", out),
                       *for_cores(allocator, 2).environment)
        argv = [os.path.join(binaries, PROBED), "--threads", "1", "--objects", "10", "--rounds", "1"]
        try:
            machine.run(argv, 2, environment=environment, timeout=TIMEOUT_S)
        except simulator.SimulationFailed as error:
            problems[allocator.name] = str(error)
            continue
        with open(out, encoding="utf-8", errors="replace") as file:
            defined_by = {os.path.realpath(line.split("\t")[1]) for line in file if line.count("\t") == 2}
        if defined_by != {os.path.realpath(allocator.path)}:
            found = ", ".join(sorted(defined_by)) or "no object that the probe saw"
            problems[allocator.name] = f"malloc is in {found}"
    if os.path.exists(out):
        os.unlink(out)
    return problems


# ---- the command ----


def _counts(text) -> list[int]:
    """Of --cores."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise allocators.BadChoice(f"--cores {text}: expected numbers with commas between them") from None
    if not 1 <= found[0] <= found[-1] <= MOST_CORES:
        raise allocators.BadChoice(f"--cores {text}: from 1 to {MOST_CORES} cores")
    return found


def _build(places, names, workloads, say):
    programs = {workload.argv(workload.least, 1)[0] for workload in workloads} | {PROBED}
    build.make(places, [
        *build.helpers(places), build.module(places, "manycore"), *build.of_contenders(places, names),
        *(build.program(places, name) for name in sorted(programs)),
    ], say)


def _workloads(names):
    if not names:
        return [workload for workload in WORKLOADS.values() if workload.usual]
    for name in (found := names.split(",")):
        if name not in WORKLOADS:
            raise allocators.BadChoice(f"--workloads {name}: there are {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in found]


def command(places, *, cores, names, allocator_names, with_, out, quick, seeds, only_report, say, building) -> bool:
    """Runs the command; False where one of our libraries failed somewhere. `building`: what is not there is built
    first."""
    folder = os.path.abspath(out or tree.DEFAULT_OUT + "-quick" * quick)
    binaries = tree.workloads(places)
    plugin = os.path.join(binaries, simulator.PLUGIN)
    from spanalloc_bench import manycore_report

    if only_report:
        rows = list(read(folder).values())
        if not rows:
            raise allocators.BadChoice(f"{folder} holds no simulations: `spanalloc bench manycore` makes them")
        manycore_report.write(folder, rows, read_meta(folder))
        return True
    workloads, counts = _workloads(names), _counts(cores) if cores else QUICK_CORES if quick else CORES
    default_names = QUICK_ALLOCATORS if quick else ALLOCATORS
    reason = simulator.why_not()
    if not reason and building:
        _build(places, allocators.wanted(allocator_names, default_names), workloads, say)
    reason = reason or simulator.why_not(plugin)
    if reason:
        raise allocators.BadChoice(reason)
    chosen = allocators.present(places, allocator_names, default_names, with_, say)
    if not any(count >= workload.least for count in counts for workload in workloads):
        raise allocators.BadChoice("these workloads need more cores than these")
    os.makedirs(folder, exist_ok=True)
    with simulator.Simulator(plugin) as machine:
        problems = verify(machine, chosen, binaries, places.probe, folder)
    for name, problem in problems.items():
        say(f"{name} is left out: {NOT_PRELOADED}: {problem}")
    ours_failed = any(a.ours and a.name in problems for a in chosen)
    chosen = [allocator for allocator in chosen if allocator.name not in problems]
    if not chosen:
        raise allocators.BadChoice("no allocator is left")
    began = time.monotonic()
    cells = cells_of(chosen, workloads, counts, 4 if quick else 1, binaries, plugin, seeds)
    asked = {"quick": quick, "seeds": seeds if seeds > 1 else "", "cores": cores, "workloads": names, "allocators": allocator_names, "with": " ".join(with_)}
    rows = simulate(cells, folder, binaries, plugin,
                    " ".join(f"{name} {value}" for name, value in asked.items() if value))
    manycore_report.write(folder, rows, read_meta(folder))
    say(f"{len(rows)} simulations; took {progress.duration(time.monotonic() - began)}")
    ours = {allocator.name for allocator in chosen if allocator.ours}
    return not (ours_failed or any(row.status != OK and row.allocator in ours for row in rows))
