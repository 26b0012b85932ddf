"""What `spanalloc bench manycore` simulates: the workloads with their two lengths, and what allocators are told of a
machine with so many cores."""

from __future__ import annotations

import dataclasses

from spanalloc_bench.manycore_rows import SHORT
from spanalloc_cli import libraries

ALLOCATORS = (*libraries.COMPARED_CONFIGS, "glibc", "jemalloc", "tcmalloc", "mimalloc", "tbbmalloc", "bump")


@dataclasses.dataclass(frozen=True)
class Workload:
    """`argv(cores, turns)` of a run of so many rounds, generations, steps or batches: `short(cores)` in the short one,
    and `steady(cores, scale)` more in the long one, where a scale above 1 asks for less. The short one is long enough
    that no thread ends while others still start: 64 threads that allocate for the first time at once may take a
    millisecond. `machine(cores)`: further (name, value) arguments of the plugin. `least` cores are what it needs. One that
    is not `usual` runs where it is named: it is nearer to a paper's than the usual one, and dearer."""

    name: str
    title: str
    argv: callable
    short: callable
    steady: callable
    least: int = 1
    in_allocator: bool = False  # judged by the time that the allocator answers for, which the workload measures itself
    machine: callable = lambda cores: ()
    usual: bool = True
    seeded: bool = False  # its program draws what it varies by from the simulation's seed

    def turns(self, length, cores, scale) -> str:
        """In as many digits for both, so that memory is laid out alike and the runs begin alike, event by event."""
        turns = self.short(cores) + (0 if length == SHORT else self.steady(cores, scale))
        return f"{turns:04d}"


def _threadtest(objects):
    return lambda cores, rounds: ["threadtest", "--threads", cores, "--objects", objects * cores, "--rounds", rounds, "--size", 64]


def _threadtest_420(cores, rounds):
    return ["threadtest", "--threads", cores, "--objects", 420, "--rounds", rounds, "--size", 8, "--work", 10]


def _larson(cores, generations):
    return ["larson", "--threads", cores, "--objects", 200, "--rounds", 8, "--generations", generations,
            "--low", 7, "--high", 500]


_WARM_UP = 24  # steps: then a thread has allocated some 190 objects, of every size, and freed most of them


def _producer_consumer(cores, steps):
    return ["acdc", "--threads", cores, "--steps", steps, "--step-kib", 2, "--low", 16, "--high", 513,
            "--min-lifetime", 1, "--max-lifetime", 4, "--shared", 100, "--lists", 50, "--sets", 1,
            "--interval", "step", "--warm-up", _WARM_UP]


def _shared_slots(cores, operations):
    return ["shared_slots", "--threads", cores, "--operations", operations]


def _malloc_test(cores, batches):
    """The queue holds two batches a producer, so that with any number of cores it is full before the short run ends."""
    return ["malloc_test", "--producers", cores // 2, "--batches", batches, "--batch", 512, "--bound", cores]


def _malloc_test_1k(cores, batches):
    """Of 12 batches the first ones have filled every CPU's caches, so that what is counted is allocated again."""
    return [*_malloc_test(cores, batches), "--low", 1024, "--high", 1024, "--order", "lifo", "--stamps", "off"]


WORKLOADS = {workload.name: workload for workload in (
    Workload("threadtest", "threadtest: rounds of 500 objects of 64 bytes a thread", _threadtest(500),
             lambda cores: 24 + cores, lambda cores, scale: max(32, 6 * cores)),
    Workload("larson", "larson: 7 to 499 bytes, 200 objects a chain, a new thread after every 1600 replacements",
             _larson, lambda cores: 4, lambda cores, scale: max(2, 4 // scale),
             # Counted from when four threads a chain have been started: the first ones, which the main thread starts
             # at once, may take longer than all that follows.
             machine=lambda cores: (("from_thread", 1 + 4 * cores),)),
    # Every thread walks every live object: the work of a step grows with the square of the cores.
    Workload("producer-consumer",
             "ACDC producer-consumer: 16 to 512 bytes, the last of all threads to access an object frees it",
             _producer_consumer, lambda cores: _WARM_UP + 2, lambda cores, scale: max(24, 400 // cores // scale),
             in_allocator=True),
    Workload("malloc-test",
             "malloc-test: half of the cores allocate batches of 512 objects of 64 bytes, the others free them",
             _malloc_test, lambda cores: 6, lambda cores, scale: 16, least=2),
    Workload("threadtest-2500", "threadtest: rounds of 2500 objects of 64 bytes a thread", _threadtest(2500),
             lambda cores: 6 + cores // 8, lambda cores, scale: 24, usual=False),
    Workload("threadtest-420", "threadtest: rounds of 420 objects of 8 bytes that the threads divide, 10 empty turns beside each "
             "call", _threadtest_420, lambda cores: 300, lambda cores, scale: 600, usual=False),
    Workload("malloc-test-1k",
             "malloc-test: half of the cores allocate batches of 512 objects of 1024 bytes, which nobody writes, the others "
             "free them, the last batch first", _malloc_test_1k, lambda cores: 12, lambda cores, scale: 48, least=2,
             usual=False),
    # The short run fills every place, the thread's own some ten times.
    Workload("shared-slots",
             "shared slots: blocks of 16 to 495 bytes are replaced at random, three in four in 1024 places of the thread's own, "
             "one in four in 1024 that all have; a seed varies all of it", _shared_slots,
             lambda cores: 20_000, lambda cores, scale: 30_000 // scale, usual=False, seeded=True),
)}


def settings(name: str, cores: int) -> tuple[tuple[str, str], ...]:
    """What an allocator is told of the simulated machine by a setting of its own."""
    if name == "glibc":  # its default on a machine of so many cores
        return (("GLIBC_TUNABLES", f"glibc.malloc.arena_max={8 * cores}"),)
    if name == "jemalloc":  # likewise
        return (("MALLOC_CONF", f"narenas:{4 * cores if cores > 1 else 1}"),)
    return ()


# Why the others need none; shown beside the curves.
NO_SETTING = {
    "tcmalloc": "none needed: caches per thread; their limit for all together (32 MiB) does not depend on the CPUs",
    "mimalloc": "none needed: a heap per thread",
    "tbbmalloc": "none available: a heap per thread",
    "bump": "none needed: chunks per thread; one counter, which all share, hands these out",
}
