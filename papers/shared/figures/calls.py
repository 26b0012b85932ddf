"""Single calls of malloc and free by the instructions that they take, in user mode: their mean, their deviation, the longest
one; and how much the mean differs from run to run. Counted in an emulator (bench/call_count.py), so that neither the kernel
nor what else the machine does is in it. Threads run in another order in each run: that is what makes runs differ."""

from __future__ import annotations

import math
import os
import statistics

from spanalloc_bench import tree

# program: (name in claims, its arguments); an emulated call takes a hundred times as long as a real one.
PROGRAMS = {
    "larson": ("larson", "--threads", "2", "--low", "7", "--high", "500", "--objects", "1000", "--rounds", "60",
               "--generations", "4"),
    "superserver": ("superserver", "--threads", "2", "--allocations", "200000"),
}
# Runs of it are compared with each other: 8 producers, as in Figure 8.
VARIED = ("malloc_test", "--producers", "8", "--batches", "16", "--batch", "4096")
RUNS = 5
# By how many times the ranges of two such samples of the same normal distribution differ once in twenty, either way.
CHANCE = 3.2
CALLS = ("malloc", "free")
MEAN_OF_RUNS, SPREAD = "malloc-test: instructions a call", "malloc-test: slowest less fastest run over their mean"
WORKLOADS = tuple(dict.fromkeys(command[0] for command in (*PROGRAMS.values(), VARIED)))
PLUGIN, MARKS = "calls.so", "call_marks.so"


def mean_of(program, call):
    return f"{program}: mean {call}"


def deviation_of(program, call):
    return f"{program}: deviation of {call}"


def worst_of(program, call):
    return f"{program}: longest {call}"


def of_counts(program, counts) -> dict[str, float]:
    """{key: number} of {call: {instructions: how many calls took so many}}."""
    found = {}
    for call, calls in counts.items():
        number = sum(calls.values())
        mean = sum(n * times for n, times in calls.items()) / number
        square = sum(times * (n - mean) ** 2 for n, times in calls.items()) / number
        found[mean_of(program, call)], found[deviation_of(program, call)] = mean, math.sqrt(square)
        found[worst_of(program, call)] = max(calls)
    return found


def of_runs(runs) -> dict[str, float]:
    """Of the counts of several runs: an instruction count a call, and how far the runs lie apart."""
    means = [sum(n * times for calls in counts.values() for n, times in calls.items())
             / sum(times for calls in counts.values() for times in calls.values()) for counts in runs]
    mean = statistics.fmean(means)
    return {MEAN_OF_RUNS: mean, SPREAD: (max(means) - min(means)) / mean}


def _of(counter, folder, library) -> dict[str, float]:
    from shape_count import Uncounted

    found = {}
    try:
        for program, (name, *arguments) in PROGRAMS.items():
            found.update(of_counts(program, counter.of([os.path.join(folder, name), *arguments], library)))
        name, *arguments = VARIED
        found.update(of_runs([counter.of([os.path.join(folder, name), *arguments], library) for _ in range(RUNS)]))
    except Uncounted:
        pass  # it has no numbers
    return found


def facts(places, allocators):
    """{(allocator, key): number} of those that are there; nothing without the emulator or its plugin."""
    import call_count  # bench/ itself, where the counting scripts are
    import common

    folder = tree.workloads(places)
    if any(not os.path.isfile(os.path.join(folder, name)) for name in (*WORKLOADS, PLUGIN, MARKS)):
        return {}
    counter = call_count.Calls(common.Build(os.path.dirname(folder)))
    return {(allocator.name, key): number for allocator in allocators if not allocator.missing
            for key, number in _of(counter, folder, allocator.path).items()}
