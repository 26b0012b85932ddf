"""What a figure's claims look like on more cores than there are: on the simulated machine (`spanalloc bench manycore`), where
the figure's workload runs there. Of five seeds (`--seeds 5`) it is a verdict of its own, "simulated"; of one it is said beside
the claim.

    simulations in the figure's folder  ->  lines of the figure's record  ->  Data for each number of cores
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
import re

from spanalloc_bench import manycore_rows
from papers.shared.figures.data import Data
from papers.shared.figures.figure import Figure, Point
from spanalloc_bench.model import OK, Case, Family, Sample

CORES = (8, 16, 32, 40)  # of which claims are asked
SEEDS = 5            # for a verdict
GHZ = 3.0            # in the record cycles are seconds
PROBLEM = "problem"  # of a line: why there are no numbers
MOVES = "moves"      # of a line: coherence traffic, which is counted, and so no time


@dataclasses.dataclass(frozen=True)
class _Simulation:
    """What simulates the cases of such names. (Not producer-consumer: its figure asks for malloc and free, and the simulation
    counts the first writes, too.)"""

    cases: str
    workload: str
    on_axis: callable = lambda cores: cores  # what stands on a figure's axis for so many cores


_SIMULATIONS = (
    _Simulation(r"malloc-test-1k.*", "malloc-test-1k", lambda cores: cores // 2), _Simulation(r"larson-\d+-\d+(-.*)?", "larson"),
    _Simulation(r"threadtest-64(-.*)?", "threadtest-2500"), _Simulation(r"threadtest-8-w10-.*-o420", "threadtest-420"),
)


def of_case(case) -> _Simulation | None:
    name = case.id.rpartition(".")[0]  # without the number of threads
    return next((found for found in _SIMULATIONS if re.fullmatch(found.cases, name)), None)


def _series(figure: Figure) -> dict[str, _Simulation]:
    """{series: its simulation} of the series whose every point is simulated."""
    found = collections.defaultdict(set)
    for point in figure.points(2):
        found[point.series].add(of_case(point.case))
    return {series: simulation for series, (simulation, *others) in found.items() if simulation and not others}


@functools.lru_cache(maxsize=4)
def _read(folder, written) -> tuple:
    """`written`: when the folder's files were."""
    return tuple(manycore_rows.read(folder).values())


def _rows(folder) -> tuple:
    paths = [os.path.join(folder, name) for name in (manycore_rows.CSV, f"{manycore_rows.CSV}.xz")]
    return _read(os.path.abspath(folder), tuple(os.stat(path).st_mtime_ns for path in paths if os.path.exists(path)))


def lines(figure: Figure, folders, names) -> list[dict]:
    """Of every contender in `names`: the cycles of an operation and the lines of the cache that change owner in it, by series,
    cores and seed, or the `problem` for which there is none; [] where none of the folders has such simulations. Of the same
    one in several the last counts."""
    if not figure.rounds or not (known := _series(figure)):
        return []
    rows = [row for folder in folders for row in _rows(folder)]
    found = []
    for seed in sorted({row.seed for row in rows}):
        for point in manycore_rows.points(rows, seed):
            if point.allocator not in names:
                continue
            found_here = {PROBLEM: point.problem or point.status} if point.status != OK else {
                "cycles": float(f"{point.cycles / point.operations:.6g}"), MOVES: float(f"{point.moves:.6g}")}
            line = {"row": point.allocator, "cores": point.cores, **({"seed": seed} if seed else {}), **found_here}
            found += [{**({"series": series} if series else {}), **line}
                      for series, simulation in known.items() if simulation.workload == point.workload]
    return found


def _by_place(found) -> dict[tuple, list[dict]]:
    places = collections.defaultdict(list)
    for line in found:
        places[line.get("series", ""), line["row"], line["cores"]].append(line)
    return places


def data(figure: Figure, found, seeds=1, own=True) -> dict[int, Data]:
    """{cores: the figure's data as it would be there} of such lines, of so many seeds each: of one, that of no seed. Fewer
    threads than cores run on a machine of as many cores. Without its `own`: of these smaller machines alone."""
    found = [line for line in found if PROBLEM not in line]
    kept = [line for place in _by_place(found).values() if len(place) >= seeds for line in place
            if seeds > 1 or not line.get("seed")]
    return {cores: _data(figure, cores, [line for line in kept if line["cores"] < cores + own]) for cores in CORES
            if any(line["cores"] == cores for line in kept)}


def imagined(figure: Figure, names) -> list[dict]:
    """Lines as a simulation of everything would have them: whether a judge finds in them what it asks for."""
    return [{**({"series": series} if series else {}), "row": name, "cores": cores, "seed": seed, "cycles": 1.0, MOVES: 0.0}
            for series in _series(figure) for name in names for cores in (1, 2, 4, *CORES) for seed in range(SEEDS)]


def _data(figure, cores, found) -> Data:
    known = _series(figure)
    cases = {place: Case(id=f"simulated.{'.'.join(map(str, place))}", group="", title="", source="", family=Family.WORKLOAD,
                         argv=())
             for place in sorted({(line.get("series", ""), line["cores"]) for line in found})}
    here = dataclasses.replace(
        figure, points=lambda _: [Point(case, known[series].on_axis(count), series)
                                  for (series, count), case in cases.items() if series in known],
        variants=(), stand_ins=None, allocators=tuple(dict.fromkeys((*figure.allocators, *(line["row"] for line in found)))))
    samples = []
    for line in found:
        seconds = line["cycles"] / (GHZ * 1e9)
        samples.append(Sample(cases[line.get("series", ""), line["cores"]].id, line["row"], line.get("seed", 0) + 1, 1,
                              elapsed_s=seconds, operations=1))
    return Data(here, cores, samples)
