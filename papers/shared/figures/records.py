"""A figure's record: what was measured, what is claimed, what became of it.

    samples, and what no sample says (its note)  ->  Data  ->  the record

Whoever runs a figure gets its record as figures/ID.json. Where results are kept there is none of these, but one
figures.json with all notes: the records are made anew, by the claims and judges of today."""

from __future__ import annotations

import json
import math
import os
import statistics

from spanalloc_bench import allocators, old_names, packed, store
from papers.shared.figures import derived, simulated, verdicts
from papers.shared.figures.catalogue import FIGURES
from papers.shared.figures.data import Data
from papers.shared.figures.figure import FOLDER, FORMAT, Figure
from spanalloc_bench.model import Kind
from spanalloc_cli import libraries

VARIANTS = "variants"    # below a run's folder: the runs that a paper's variants made in turn
NOTES = "figures.json"   # in a folder of kept results
OLDER = 2                # the format of 0.1, whose records lack some of the note, and are judged anew
_OLDER_NAMES = {"folio": "supermalloc", **{name: old_names.of_authors(name) for name in old_names.AUTHORS}}
# What a note says of an engine that did not exist when it was written.
_DID_NOT_EXIST = "not built: this engine does not exist yet"
_MACHINE = ("processor", "transparent_hugepages")
_NOTED = ("cores", *_MACHINE, "absent", "given")
_SIMULATED = "simulated"  # of a note, where there is any


# ---- the data ----


def data_of(figure: Figure, cores, machine, missing, facts, given, samples, apart, simulations=()) -> Data:
    """The figure's data; `apart` are the samples of the folder VARIANTS, `simulations` the lines of figures/simulated.py."""
    variants = None
    if figure.variants:
        # What the process alone needs is the same beside both.
        shared = {row.case.id for row in figure.stand_ins(cores)} if figure.stand_ins else set()
        together = [*apart, *(sample for sample in samples if sample.case in shared)]
        variants = Data(figure, cores, together, missing, machine=machine, simulations=simulations)
    return Data(figure, cores, samples, missing, facts, machine, variants, given, simulations)


def note(record) -> dict:
    """What a record has from elsewhere than from samples: the machine, who was missing, who was given, counts."""
    found = {**{key: record[key] for key in _NOTED}, "facts": [entry for entry in record["data"] if "value" in entry]}
    if record.get(_SIMULATED):
        found[_SIMULATED] = record[_SIMULATED]
    return found


def _older_note(record, meta) -> dict:
    """The note of a record of 0.1, with the names of today. The folder's record says what this one does not: who was
    given, and what the kernel's setting was."""
    def today(name):
        return old_names.today(_OLDER_NAMES.get(name, name))

    given = {entry["name"] for entry in meta.get("allocators", []) if entry.get("kind") == Kind.GIVEN.value}
    named = {*FIGURES[record["id"]].allocators, *FIGURES[record["id"]].variants}
    rows = dict.fromkeys(today(entry["row"]) for entry in record["data"])
    return {
        "cores": record["cores"], "processor": record["processor"],
        "transparent_hugepages": meta.get("machine", {}).get("transparent_hugepages", ""),
        "absent": {today(name): why for name, why in record["absent"].items()},
        "given": [name for name in rows if name in given and name not in named],
        "facts": [{**entry, "row": today(entry["row"])} for entry in record["data"] if "value" in entry],
    }


def _noted_data(figure, noted, samples, apart, folders) -> Data:
    facts = {(entry["row"], entry["measure"]): entry["value"] for entry in noted["facts"]}
    machine = {key: noted[key] for key in _MACHINE}
    absent = {name: _reason_today(name, why) for name, why in noted["absent"].items()}
    for names, runs in ((figure.allocators, samples), (figure.variants, apart)):
        there = {sample.allocator for sample in runs} if figure.rounds else names
        absent.update({name: verdicts.NOT_MEASURED for name in names if name not in there and name not in absent})
    # Of simulations that are kept, too, all is there that judges ask for today.
    lines = simulated.lines(figure, folders, {*figure.allocators, *figure.variants, *noted["given"]})
    return data_of(figure, noted["cores"], machine, absent, facts, noted["given"], samples, apart,
                   lines or noted.get(_SIMULATED, ()))


def _reason_today(name, why) -> str:
    """Why a contender is not in recorded results, as it is to be read now."""
    return verdicts.NOT_MEASURED if why == _DID_NOT_EXIST and name in libraries.LIBRARIES else why


# ---- the record ----


def _plain(value):
    """Numbers as JSON keeps them, with the digits that mean something."""
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.6g}")
    return value


def _rounded(table):
    return {**table, "rows": [{**row, "values": [_plain(value) for value in row["values"]]} for row in table["rows"]]}


def _judged(claim, data):
    def of(subject):
        verdict = verdicts.verdict(claim, data, subject)
        return {"verdict": verdict.answer.value, "evidence": verdict.evidence}

    return {
        "name": claim.name, "text": claim.text, "place": claim.place, "own": claim.own, "subject": claim.subject,
        "rule": verdicts.rule(claim),
        **of(claim.subject),
        # (One that has to be fetched first says nothing where nobody did.)
        "beside": {name: of(name) for name in claim.beside
                   if name in libraries.LIBRARIES or name in data.measured() or name in data.failed()},
    }


def _numbers(data):
    found = []
    for label, source, name in derived.rows(data):
        for point in source.points:
            for measure in data.figure.measures:
                values = sorted(source.values(name, measure, point).values())
                if values:
                    median = statistics.median(values)
                    found.append({
                        "row": label, "case": point.case.id, "series": point.series, "x": point.x,
                        "measure": measure.name, "unit": measure.unit, "rounds": len(values),
                        "median": _plain(median * measure.scale), "mean": _plain(statistics.fmean(values) * measure.scale),
                        "low": _plain(values[0] * measure.scale), "high": _plain(values[-1] * measure.scale),
                    })
    found += [{"row": name, "measure": key, "value": amount} for (name, key), amount in data.facts.items()]
    return found


def outcome(data: Data) -> dict:
    """The figure's record."""
    figure = data.figure
    numbers = _numbers(data)
    rounds = [n["rounds"] for n in numbers if "rounds" in n and n["row"] not in data.stand_ins]
    return {
        "format": FORMAT, "id": figure.id, "paper": figure.paper, "number": figure.number, "title": figure.title,
        "command": f"spanalloc bench figure {figure.id}",
        "cores": data.cores, "processor": data.machine.get("processor", ""),
        "transparent_hugepages": data.machine.get("transparent_hugepages", ""),
        # (A place that another figure asks for more rounds of has these here, too.)
        "rounds": max(rounds, default=0), "fewest_rounds": min(rounds, default=0),
        "absent": data.missing, "given": list(data.given), "claims": [_judged(claim, data) for claim in figure.claims],
        "shown": [_rounded(table.record()) for table in derived.tables(data)], "data": numbers,
        **({_SIMULATED: data.simulations} if data.simulations else {}),
    }


# ---- a folder's ----


def _read(path, format=FORMAT) -> dict:
    """A file of records or notes; {} where there is none, or one of another version."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise store.Damaged(f"{path}: {error}") from None
    return found if found.get("format") == format else {}


def files(folder) -> set[str]:
    """Ids of the figures that have a figures/ID.json, of whatever version."""
    path = os.path.join(folder, FOLDER)
    names = os.listdir(path) if os.path.isdir(path) else []
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def written(folder) -> dict[str, dict]:
    """{figure's id: record} of the folder's figures/ID.json."""
    return _written(folder, FORMAT)


def _written(folder, format):
    found = {name: _read(os.path.join(folder, FOLDER, f"{name}.json"), format) for name in FIGURES}
    return {name: record for name, record in found.items() if record}


def notes(folder) -> dict[str, dict]:
    """{figure's id: note} of every figure that was run into the folder."""
    found = _read(os.path.join(folder, NOTES)).get("figures", {})
    found.update({name: note(record) for name, record in written(folder).items()})
    older = _written(folder, OLDER)
    meta = store.read_meta(folder) if older else {}
    found.update({name: _older_note(record, meta) for name, record in older.items()})
    return {name: found[name] for name in FIGURES if name in found}


def write_notes(folder, found):
    packed.replace(os.path.join(folder, NOTES), packed.laid_out({"format": FORMAT, "figures": found}).encode())


def can_be_kept(folder) -> bool:
    """Whether the folder has figures to keep. BadChoice where one was judged by another version."""
    found = notes(folder)
    other = sorted(files(folder) - found.keys())
    if other:
        raise allocators.BadChoice(
            f"{folder} has figures of another version, {other[0]} for one: `spanalloc bench figure all --out {folder}` "
            "judges them anew, and measures only what is not there")
    return bool(found)


def keep(folder, target, copy_tables):
    """Keeps the notes of the folder's figures, and the variants' runs by `copy_tables`."""
    if os.path.isdir(os.path.join(folder, VARIANTS)):
        os.mkdir(os.path.join(target, VARIANTS))
        copy_tables(os.path.join(folder, VARIANTS), os.path.join(target, VARIANTS))
    write_notes(target, notes(folder))


def from_samples(folder, simulated_in=()) -> dict[str, Data]:
    """{figure's id: data} of every figure that was run into the folder and has no figures/ID.json there; with the
    simulations of the other folders as well."""
    there = written(folder)
    left = {name: noted for name, noted in notes(folder).items() if name not in there}
    if not left:
        return {}
    samples, apart = store.samples(folder), store.samples(os.path.join(folder, VARIANTS))
    folders = simulated_in or (folder,)
    return {name: _noted_data(FIGURES[name], noted, samples, apart, folders) for name, noted in left.items()}


def of_folder(folder, simulated_in=()) -> dict[str, dict]:
    """{figure's id: record} of every figure that was run into the folder: as it was judged then, or, where only samples
    are kept, as it is judged now."""
    judged_now = {name: outcome(data) for name, data in from_samples(folder, simulated_in).items()}
    return {**written(folder), **judged_now}
