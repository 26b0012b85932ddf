"""What a figure's claims look like on more cores than there are: on the simulated machine (`spanalloc bench manycore`), where
the figure's workload runs there. A simulation is one number without a spread, so it makes no verdict; it is said beside one.

    simulations in the figure's folder  ->  lines of the figure's record  ->  Data for each number of cores
"""

from __future__ import annotations

import dataclasses

from spanalloc_bench import manycore_rows
from papers.shared.figures.data import Data
from papers.shared.figures.figure import Figure, Point
from spanalloc_bench.model import OK, Case, Family, Sample

CORES = (8, 16, 40)  # of which claims are asked
GHZ = 3.0            # in the record cycles are seconds
MOVES = "moves"      # of a line: coherence traffic, which is counted, and so no time
# By the group of a figure's cases: the simulation's name, and what stands on the axis for so many cores.
_AXIS = {"malloc-test": ("malloc-test", lambda cores: cores // 2)}


def _axis(figure: Figure):
    groups = {point.case.group for point in figure.points(2)}
    return _AXIS.get(groups.pop()) if len(groups) == 1 else None


def lines(figure: Figure, folder, names) -> list[dict]:
    """Of every contender in `names`: the cycles of an operation and the lines of the cache that change owner in it, by cores;
    [] where the folder has no such simulations."""
    if not figure.rounds or not _axis(figure):
        return []
    workload, _ = _axis(figure)
    return [{"row": point.allocator, "cores": point.cores, "cycles": float(f"{point.cycles / point.operations:.6g}"),
             MOVES: float(f"{point.moves:.6g}")}
            for point in manycore_rows.points(manycore_rows.read(folder).values())
            if point.workload == workload and point.status == OK and point.allocator in names]


def data(figure: Figure, found) -> dict[int, Data]:
    """{cores: the figure's data as it would be there} of such lines."""
    return {cores: _data(figure, cores, part) for cores in CORES
            if (part := [line for line in found if line["cores"] <= cores]) and any(line["cores"] == cores for line in part)}


def _data(figure, cores, found) -> Data:
    _, on_axis = _axis(figure)
    cases = {count: Case(id=f"simulated.{count}", group="", title="", source="", family=Family.WORKLOAD, argv=())
             for count in sorted({line["cores"] for line in found})}
    here = dataclasses.replace(
        figure, points=lambda _: [Point(case, on_axis(count)) for count, case in cases.items()], variants=(),
        stand_ins=None, allocators=tuple(dict.fromkeys((*figure.allocators, *(line["row"] for line in found)))))
    samples = [Sample(cases[line["cores"]].id, line["row"], 1, 1, elapsed_s=line["cycles"] / (GHZ * 1e9), operations=1)
               for line in found]
    return Data(here, cores, samples)
