#!/usr/bin/env python3
"""Reads what sp_stats_json writes under a library: documents that keep to their schema, with figures that add up.

usage: check_statistics.py LIBRARY PROGRAM DOCS ENGINE
       check_statistics.py --self-test

PROGRAM is statistics.c, DOCS the folder with statistics.md and statistics.schema.json. Prints what is wrong, one line
each; exit code 0 when nothing is.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

import json_schema

MOMENTS = ("empty", "held", "threads", "kernel", "full")
# Blocks that `held` has more than `empty`, and bytes of large objects.
HELD_BLOCKS, HELD_LARGE = 300 + 1000 + 50, 5 * (20 << 20)
ENGINES = ("standard", "scalloc", "a2alloc", "supermalloc")


def documents(written):
    """{moment: (document, mallinfo2's fields or None)}"""
    found, moment, text, info = {}, None, "", None
    for line in written.splitlines(True):
        if line.strip() in MOMENTS:
            moment, text, info = line.strip(), "", None
        elif line.startswith("mallinfo2 "):
            info = [int(word) for word in line.split()[1:]]
        else:
            text += line
        found[moment] = (text, info)
    return {moment: (json.loads(text), info) for moment, (text, info) in found.items()}


def sums(document):
    """What must hold in any document of a process whose other threads rest."""
    totals = document["totals"]
    rows = document.get("classes", [])
    for row in rows:
        if row["blocks"] != row["live_blocks"] + row["free_blocks"] + row["unsure_blocks"]:
            yield f"class {row['block_bytes']} does not add up: {row}"
    for kind in ("live", "free", "unsure") if rows else ():
        count = sum(row[f"{kind}_blocks"] for row in rows)
        size = sum(row[f"{kind}_blocks"] * row["block_bytes"] for row in rows)
        if (totals[f"{kind}_blocks"], totals[f"{kind}_bytes"]) != (count, size):
            yield f"{kind} blocks: {count} of {size} bytes by class, the totals differ: {totals}"
    if "pool_bytes" in totals:
        parts = sum(totals[name] for name in ("pool_bytes", "kept_span_bytes", "dirty_bytes", "clean_bytes"))
        if parts != totals["pooled_bytes"]:
            yield f"free memory is {parts} in parts: {totals}"
    if totals["opened_bytes"] > totals["reserved_bytes"]:
        yield "more is open than is held"
    if "threads" in document and sum(thread["is_calling"] for thread in document["threads"]) > 1:
        yield "two threads are the calling one"


def agrees(totals, info):
    """mallinfo2 of the same moment."""
    wanted = [totals[name] for name in ("opened_bytes", "carved_bytes", "pooled_bytes", "pooled_bytes", "large_objects",
                                        "large_bytes")]
    wanted += [totals.get("free_blocks", 0), totals.get("free_bytes", 0)]
    if wanted != info:
        yield f"mallinfo2 says {info}, not {wanted}"


def problems(found, schema, engine):
    if tuple(found) != MOMENTS:
        yield f"the documents are {sorted(map(str, found))}"
        return
    for moment, (document, info) in found.items():
        yield from (f"{moment}: {problem}" for problem in json_schema.problems(document, schema))
        if document["engine"] != engine:
            yield f"{moment}: engine {document['engine']}"
        if moment != "threads":
            yield from (f"{moment}: {problem}" for problem in sums(document))
        if info is not None:
            yield from (f"{moment}: {problem}" for problem in agrees(document["totals"], info))
    empty, held, kernel = (found[moment][0] for moment in ("empty", "held", "kernel"))
    if "live_blocks" in held["totals"]:
        before, after = ({name: document["totals"].get(f"{name}_blocks", 0) for name in ("live", "unsure")}
                         for document in (empty, held))
        least = after["live"] - before["live"] - before["unsure"]
        most = after["live"] + after["unsure"] - before["live"]
        if not least <= HELD_BLOCKS <= most:
            yield f"{HELD_BLOCKS} blocks more are between {least} and {most}"
        if engine == "standard" and least != most:
            yield f"the only thread's blocks are not known exactly: {before}, then {after}"
    if held["totals"]["large_bytes"] - empty["totals"]["large_bytes"] < HELD_LARGE:
        yield "large objects are missing"
    if "pid" in held or "pid" not in kernel:
        yield "the process's number is told where it was not asked for, or the other way round"
    if engine == "standard":
        if [thread["is_calling"] for thread in held["threads"]] != [True]:
            yield f"the threads are {held['threads']}"
        if kernel["totals"].get("resident_bytes", 0) == 0 or "resident_bytes" in held["totals"]:
            yield "memory in use is not told, or unasked"
        if [thread["tid"] for thread in kernel["threads"] if thread["is_calling"]] != [kernel["pid"]]:
            yield "the main thread's number is not the process's"


def documented(text):
    """{table: {field: engines}} of statistics.md: rows that begin with `name`, below a heading with the table's."""
    tables, current = {}, None
    for line in text.splitlines():
        if line.startswith("#"):
            name = re.search(r"`(\w+)`", line)
            current = tables.setdefault(name.group(1), {}) if name else None
        row = re.match(r"\| `(\w+)` \|", line)
        if row and current is not None:
            engines = line.rstrip("| ").rpartition("|")[2].split(",")
            current[row.group(1)] = {engine.strip() for engine in engines}
    return tables


def document_problems(tables, schema, found, engine):
    """The description, the schema and what is written name the same fields."""
    parts = {"document": schema, **{name: schema["properties"][name] for name in ("totals", "program_heaps")}}
    parts.update({name: schema["properties"][name]["items"] for name in ("classes", "threads", "bins")})
    parts["folios"] = parts["bins"]["properties"]["folios"]["items"]
    for name, part in parts.items():
        differ = set(tables.get(name, ())) ^ set(part["properties"])
        if differ:
            yield f"statistics.md and the schema differ on {name}: {sorted(differ)}"
    told = set(found["kernel"][0]["totals"])
    promised = {field for field, engines in tables["totals"].items() if engine in engines or "all" in engines}
    if told != promised:
        yield f"statistics.md is wrong on what {engine} tells in all: {sorted(told ^ promised)}"


def self_test():
    """A check that finds nothing must be able to."""
    row = {"block_bytes": 16, "blocks": 4, "live_blocks": 1, "free_blocks": 2, "unsure_blocks": 1}
    totals = {"opened_bytes": 1, "reserved_bytes": 1, "live_blocks": 1, "live_bytes": 16, "free_blocks": 2,
              "free_bytes": 32, "unsure_blocks": 1, "unsure_bytes": 16}
    good = {"totals": totals, "classes": [row]}
    bad = [{"totals": totals, "classes": [{**row, "free_blocks": 3}]}, {"totals": {**totals, "live_bytes": 17},
           "classes": [row]}, {"totals": {**totals, "opened_bytes": 2}, "classes": [row]}]
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0}}, "required": ["a"],
              "additionalProperties": False}
    wrong = [{}, {"a": -1}, {"a": "1"}, {"a": True}, {"a": 1, "b": 2}, []]
    fine = not list(sums(good)) and all(list(sums(document)) for document in bad)
    fine = fine and not list(json_schema.problems({"a": 0}, schema))
    fine = fine and all(list(json_schema.problems(document, schema)) for document in wrong)
    print("the check finds what is wrong" if fine else "the check passes what is wrong, or refuses what is right")
    return 0 if fine else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 4 or arguments[3] not in ENGINES:
        print(__doc__, file=sys.stderr)
        return 2
    library, program, docs, engine = arguments
    schema = json.loads(pathlib.Path(docs, "statistics.schema.json").read_text(encoding="utf-8"))
    tables = documented(pathlib.Path(docs, "statistics.md").read_text(encoding="utf-8"))
    written = subprocess.run([program], env={**os.environ, "LD_PRELOAD": library}, check=True, stdout=subprocess.PIPE,
                             text=True).stdout
    found = documents(written)
    wrong = list(problems(found, schema, engine)) or list(document_problems(tables, schema, found, engine))
    print("\n".join(wrong) or f"{len(found)} documents, {len(found['held'][0]['totals'])} figures in all")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
