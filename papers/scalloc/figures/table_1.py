"""Scalloc's Table 1: what each workload does. Most of it our cases' parameters say, without a run: where they are the
paper's, that is by construction, and no finding."""

from __future__ import annotations

import os
import re

from spanalloc_bench import tree
from spanalloc_bench.cases import acdc, classic, programs
from papers.shared.figures import judges as j
from papers.shared.figures.figure import Answer, Claim, Figure, Panel, Point, Verdict, altered, metric

REMOTE_FREES = metric("remote_frees_percent", "%", "remote frees")

_ROWS = {  # the workload of a row, and the bytes that the paper gives: smallest, largest
    "threadtest": (classic.threadtest(), 64, 64), "larson": (classic.larson(), 7, 8),
    "producer-consumer": (acdc.authors_producer_consumer(2), 16, 512), "false sharing": (classic.cache_thrash(), 8, 8),
    "object sizes, smallest": (acdc.authors_object_size(4), 16, None),
    "object sizes, largest": (acdc.authors_object_size(20), None, 4 << 20),
    "locality": (acdc.authors_locality(100), 16, 32), "span-pool": (classic.threadtest(256), 256, 256),
}
_NO_TERMINATION = (programs.xalan(), classic.threadtest(), classic.shbench(), acdc.authors_producer_consumer(2),
                   classic.cache_thrash(), classic.cache_scratch(), acdc.authors_object_size(8), acdc.authors_locality(100),
                   classic.threadtest(256))


def _options(case):
    """--name VALUE of a case's command line, as numbers."""
    words = case.argv[1:]
    return {name.removeprefix("--"): int(value) for name, value in zip(words[::2], words[1::2]) if value.isdigit()}


def _default(program, option):
    """What a workload's option is where its cases do not give it: by the program's source."""
    path = os.path.join(tree.SOURCE, "bench", "workloads", f"{program}.cpp")
    with open(path, encoding="utf-8") as file:
        found = re.search(rf'integer\(\s*"{option}",\s*([\d\']+)', file.read())
    return int(found[1].replace("'", "")) if found else None


def _by_parameters(ask):
    """A judge that needs no run: `ask()` says whether our cases' parameters are the paper's, and what they are."""

    def judge(data, subject):
        is_same, text = ask()
        return Verdict(Answer.BY_CONSTRUCTION if is_same else Answer.DOES_NOT_HOLD, text)

    return j.Judge(judge)


def _default_sizes(program, case, low, high):
    """The sizes that a program takes by itself are the paper's, and the case takes them."""

    def ask():
        found = [_options(case).get(option, _default(program, option)) for option in ("low", "high")]
        return found == [low, high], f"{case.id}: {found[0]} to {found[1]} bytes"

    return _by_parameters(ask)


def _ends_threads(case, others):
    """The case runs several generations of threads, the others one."""
    generations = _options(case).get("generations", 1)
    also = [other.id for other in others if _options(other).get("generations", 1) > 1]
    return _by_parameters(lambda: (
        generations > 1 and not also,
        f"{case.id}: {generations} generations of threads; others with more than one: {', '.join(also) or 'none'}"))


def _sizes_of(case):
    options = _options(case)
    if "size" in options:
        return options["size"], options["size"]
    return options["low"], options["high"] - 1


def _same_sizes(table):
    """The suite's cases allocate what the paper's table says; no run is needed for that. A half-open 7 to 8 is 7."""

    def ask():
        wrong, texts = [], []
        for name, (case, low, high) in table.items():
            found = _sizes_of(case)
            texts.append(f"{name} {found[0]:,} to {found[1]:,}" if found[0] != found[1] else f"{name} {found[0]:,}")
            if (low and found[0] != low) or (high and not high - 1 <= found[1] <= high):
                wrong.append(name)
        return not wrong, "bytes: " + "; ".join(texts)

    return _by_parameters(ask)


def _few_remote(case, share):
    """Larson frees remotely what a thread takes over from the one before: each slot once in its rounds."""
    rounds = _options(case)["rounds"]
    return _by_parameters(lambda: (
        1 / rounds < share, f"{case.id}: one free of {rounds} a slot is of an object taken over, {1 / rounds:.2%}"))


_FOUR = "producer-consumer, 4 threads"
_BY_CHANCE = ("each thread draws anew in each step, from a fixed seed, in which order it visits the owners of objects, and the last to "
              "visit one frees it: by symmetry each is as likely; ties are left to the race")

TABLE_1 = Figure(
    "scalloc-table1", "scalloc", "Table 1", "Summary of benchmarks",
    "What each workload does: object sizes, local and remote frees, whether threads end. Here by our cases' "
    "parameters, and by ACDC's own count of remote frees, with two threads and four (locality: one).",
    (
        Claim("object-sizes",
              "Object sizes: threadtest 64, larson 7-8, producer-consumer 16-512, false sharing 8, object sizes "
              "16-4M, locality 16-32, span-pool 256 bytes.", "Table 1", _same_sizes(_ROWS)),
        Claim("larson", "Larson: at least 99 % local frees, less than 1 % remote.", "Table 1",
              _few_remote(classic.larson(), 0.01)),
        Claim("shbench-sizes", "Object sizes: shbench 1-8 bytes.", "Table 1",
              _default_sizes("shbench", classic.shbench(), 1, 8)),
        Claim("xalan-sizes", "Object sizes: 483.xalancbmk 1-2M bytes.", "Table 1",
              j.cannot("SPEC's program and documents are not free; of Debian's xalan with our document the number of calls and "
                       "their mean size are counted, and no others")),
        Claim("xalan-local", "483.xalancbmk is single-threaded: 100 % local frees, no thread ends.", "Table 1",
              j.cannot("SPEC's program is not free; what threads Debian's xalan starts, and who frees, is not counted")),
        Claim("thread-local", "Threadtest, shbench, span-pool and frontend: 100 % local frees.", "Table 1",
              j.cannot("their programs do not count who frees; each thread has a table of objects of its own, and "
                       "frees what is in it")),
        Claim("thread-termination", "Threads end in larson, and in no other of the benchmarks.", "Table 1",
              _ends_threads(classic.larson(), _NO_TERMINATION)),
        Claim("local", "Object sizes and spatial locality: 100 % local frees.", "Table 1",
              j.by_construction(
                  j.all_of(*(j.value_within(REMOTE_FREES, None, 0.0, "glibc", j.series(name))
                             for name in ("object sizes", "locality"))),
                  "no object is shared, and locality has one thread")),
        Claim("producer-consumer",
              "Producer-consumer: running two threads causes on average 50 % remote frees (here: 45 to 55 "
              "%, in 120 steps).", "§7.3", j.by_construction(
                  j.value_within(REMOTE_FREES, 45, 55, "glibc", j.series("producer-consumer")), _BY_CHANCE)),
        Claim("producer-consumer-more",
              "The probability of a remote free with n threads is 1 - 1/n: 40 threads cause on average 97.5 % (here: "
              "four threads, 70 to 80 %).", "§7.3", j.by_construction(
                  j.value_within(REMOTE_FREES, 70, 80, "glibc", j.series(_FOUR)), _BY_CHANCE)),
    ),
    lambda cores: [Point(altered(acdc.authors_producer_consumer(2), "s120", steps=120), "", "producer-consumer"),
                   Point(acdc.authors_producer_consumer(4), "", _FOUR),
                   Point(acdc.authors_object_size(8), "", "object sizes"),
                   Point(acdc.authors_locality(100), "", "locality")],
    ("glibc",), (REMOTE_FREES,), Panel("bars", ""), rounds=3,
)
