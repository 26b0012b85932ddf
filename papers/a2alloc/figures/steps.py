"""What the a2alloc engine's configs do, counted: by the engine itself (papers/a2alloc/figures/steps.cpp), and by callgrind
in the libraries. The engine's counts are the same in every run; callgrind's differ by the few instructions of a thread
that waits."""

from __future__ import annotations

import concurrent.futures
import json
import os
import re
import shutil
import subprocess

from spanalloc_bench import execute, tree

PROGRAM = "a2alloc_steps"
BLOCKS, SUPERBLOCKS, CHURN_BLOCKS = "free blocks, larson", "superblocks, larson", "free blocks, churn"
FETCHED, CARRIED, LEFT = "fetched, threadtest", "carried, churn", "left, churn"
RECORDS = "for records"
LARSON_INSTRUCTIONS, THREADTEST_INSTRUCTIONS = "instructions, larson", "instructions, threadtest"
MEANING = "Free blocks and superblocks that an allocation looks at; superblocks fetched from the global heap in 1000 " \
    "allocations; superblocks carried, at most, over the most live bytes, and left over live bytes when nine in ten " \
    "objects are freed; superblocks for the records of 64 heaps"

# key: (trace, metric)
_COUNTED = {
    BLOCKS: ("larson", "blocks_looked_at"), SUPERBLOCKS: ("larson", "superblocks_looked_at"),
    CHURN_BLOCKS: ("churn", "blocks_looked_at"), FETCHED: ("threadtest", "fetched"),
    CARRIED: ("churn", "carried_over_live"), LEFT: ("churn", "left_over_live"), RECORDS: ("threads", "record_superblocks"),
}
# key: (program, arguments, operations a round). Two runs of different length are subtracted: a start does not count.
_LARSON = ("--threads", "1", "--low", "7", "--high", "500", "--objects", "4000", "--generations", "1")
_RUN = {
    LARSON_INSTRUCTIONS: ("larson", _LARSON, 4000, (10, 20)),
    THREADTEST_INSTRUCTIONS: ("threadtest", ("--threads", "1", "--size", "64", "--objects", "100000"), 100_000, (1, 2)),
}

PROGRAMS = (PROGRAM, *(program for program, *_ in _RUN.values()))


def _record(program, config, trace):
    run = subprocess.run([program, "--config", config, "--trace", trace], stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL, check=True)
    return json.loads(run.stdout)["metrics"]


def _counts(program, config):
    """{key: number} of one config of the engine."""
    traces = {trace: _record(program, config, trace) for trace in dict.fromkeys(trace for trace, _ in _COUNTED.values())}
    return {key: traces[trace][metric] for key, (trace, metric) in _COUNTED.items()}


def _instructions(program, arguments, rounds, library):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--", program, *arguments,
               "--rounds", str(rounds)]
    run = subprocess.run(command, env={**execute.clean_environment(), "LD_PRELOAD": library}, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    found = re.search(r"Collected : (\d+)", run.stdout)
    return int(found.group(1)) if run.returncode == 0 and found else None


def _instructions_an_operation(folder, key, library):
    program, arguments, operations, lengths = _RUN[key]
    short, long = (_instructions(os.path.join(folder, program), arguments, rounds, library) for rounds in lengths)
    return None if short is None or long is None else (long - short) / (operations * (lengths[1] - lengths[0]))


def facts(places, allocators):
    """{(allocator, key): number}: the engine's steps of those that are configs of it, instructions of those that are
    built; without valgrind no instructions."""
    folder = tree.workloads(places)
    program = os.path.join(folder, PROGRAM)
    found = {}
    if os.path.isfile(program):
        known = subprocess.run([program, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout
        for allocator in allocators:
            if re.search(rf"[(|]{re.escape(allocator.name)}[|)]", known):
                found.update({(allocator.name, key): n for key, n in _counts(program, allocator.name).items()})
    if shutil.which("valgrind"):
        wanted = [(a, key) for a in allocators if not a.missing for key in _RUN]
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            numbers = pool.map(lambda w: _instructions_an_operation(folder, w[1], w[0].path), wanted)
            found.update({(a.name, key): n for (a, key), n in zip(wanted, numbers) if n is not None})
    return found
