"""`spanalloc bench keep`: of a run's folder what no command makes again, in little room.

    samples, simulations, outcomes  ->  compressed; runs, reports and verdicts go on from them
    what they were taken under      ->  the same, in fewer lines
    medians.csv                     ->  made anew: the one table that is there to be read
    what extensions have there      ->  as each of them says
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import tempfile

from spanalloc_bench import allocators, attacks, extensions, manycore, manycore_rows, medians, memory_return, packed, store
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
    beside = [extension for extension in extensions.joined if extension.holds(folder)]
    if not beside and not any(packed.path(folder, name) for name in TABLES):
        raise FileNotFoundError(f"{folder} holds no results: none of {', '.join(TABLES)}")
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
        for extension in beside:
            extension.keep(folder, whole, _fill)
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
