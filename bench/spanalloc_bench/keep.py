"""`spanalloc bench keep`: of a run's folder what no command makes again, in little room.

    samples, simulations, outcomes  ->  compressed; runs, reports and verdicts go on from them
    what they were taken under      ->  the same, in fewer lines
    figures/ID.json                 ->  figures.json, without what the samples say
    medians.csv                     ->  made anew: the one table that is there to be read
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import tempfile

from spanalloc_bench import allocators, attacks, manycore, manycore_rows, medians, memory_return, packed, store
from papers.shared.figures import records as figures
from spanalloc_bench.soak import records as soak

TABLES = (store.SAMPLES, manycore_rows.CSV, attacks.CSV, soak.CSV, memory_return.CSV)
METAS = (store.META, manycore.META, attacks.META, soak.META, memory_return.META)


@dataclasses.dataclass(frozen=True)
class Kept:
    files: int
    lines: int
    bytes: int


def keep(folder, destination, pictures=()) -> Kept:
    """Makes the folder `destination`; `pictures` are files of `folder` that are to be seen there. Changes nothing in
    `folder`. BadChoice or FileNotFoundError before anything is written."""
    folder, destination = os.path.abspath(folder), os.path.abspath(destination)
    notes = figures.notes(folder)
    if not notes and not any(packed.path(folder, name) for name in TABLES):
        raise FileNotFoundError(f"{folder} holds no results: none of {', '.join(TABLES)}")
    other = sorted(figures.files(folder) - notes.keys())
    if other:
        raise allocators.BadChoice(
            f"{folder} has figures of another version, {other[0]} for one: `spanalloc bench figure all --out {folder}` "
            "judges them anew, and measures only what is not there")
    if os.path.lexists(destination) and (not os.path.isdir(destination) or os.listdir(destination)):
        raise allocators.BadChoice(f"{destination} holds something already; choose another folder")
    for name in pictures:
        if os.path.basename(name) != name or not os.path.isfile(os.path.join(folder, name)):
            raise allocators.BadChoice(f"--picture {name}: {folder} has no file of that name")
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    with store.Hold(folder, fcntl.LOCK_SH), tempfile.TemporaryDirectory(dir=os.path.dirname(destination)) as scratch:
        whole = os.path.join(scratch, "kept")  # in its place once all of it is there
        os.mkdir(whole)
        _fill(folder, whole)
        if packed.path(folder, store.SAMPLES):
            medians.write(folder, whole)
        if os.path.isdir(os.path.join(folder, figures.VARIANTS)):
            os.mkdir(os.path.join(whole, figures.VARIANTS))
            _fill(os.path.join(folder, figures.VARIANTS), os.path.join(whole, figures.VARIANTS))
        if notes:
            figures.write_notes(whole, notes)
        for name in pictures:
            shutil.copyfile(os.path.join(folder, name), os.path.join(whole, name))
        os.rename(whole, destination)
    return count(os.path.join(below, name) for below, _, names in os.walk(destination) for name in names)


def _fill(folder, target):
    for name in TABLES:
        if packed.path(folder, name):
            table = packed.content(folder, name)
            packed.replace(os.path.join(target, name + packed.SUFFIX), packed.pack(table))
            if packed.content(target, name) != table:
                raise OSError(f"{name} did not come back from {target}")
    for name in METAS:
        if os.path.isfile(os.path.join(folder, name)):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                meta = json.load(file)
            packed.replace(os.path.join(target, name), packed.laid_out(meta).encode())


def count(paths) -> Kept:
    """As `cat FILES | wc -lc` counts."""
    found = []
    for path in paths:
        with open(path, "rb") as file:
            content = file.read()
        found.append((content.count(b"\n"), len(content)))
    return Kept(len(found), sum(lines for lines, _ in found), sum(size for _, size in found))
