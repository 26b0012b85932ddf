"""Leite and Rocha's section 5: page managers instead of allocators (allocators.page_managers).

As in the paper a thread's work does not depend on the number of threads, so equal elapsed times, not equal times per
operation, are perfect scaling. The paper counts allocations; so do we, each with its free. Pages are not touched.
"""

from __future__ import annotations

from ..model import Case, Family
from .classic import _count


def _case(program: str, group: str, title: str, source: str, threads: int, options: dict, name: str = "",
          **more) -> Case:
    argv = [f"{{bin}}/{program}", "--manager", "{manager}", "--threads", str(threads)]
    for option, value in options.items():
        argv += [f"--{option}", str(value)]
    return Case(
        id=f"{name or group}.t{threads}", group=group, title=f"{title}, {_count(threads, 'thread')}",
        source=f"Leite & Rocha 5, {source}", family=Family.PAGES, argv=tuple(argv), threads=threads, **more,
    )


def linux_scalability(threads: int = 2, batches: int = 3, full: bool = False, quick: bool = False) -> Case:
    """Figure 5. The paper: a batch of 10,000 allocations of a page, then as many frees, once. Here: 3 times."""
    group = "pages-linux-scalability"
    return _case("pages_scalability", group, "linux-scalability in pages", "Figure 5", threads,
                 {"batches": batches, "blocks": 10_000}, group + (f"-b{batches}" if batches != 3 else ""),
                 full=full, quick=quick)


def threadtest(threads: int = 2, batches: int = 300, full: bool = False, quick: bool = False) -> Case:
    """Figure 6. The paper: 100 batches of 100 allocations of a page, then as many frees. Here: 300 batches."""
    group = "pages-threadtest"
    return _case("pages_threadtest", group, "threadtest in pages", "Figure 6", threads,
                 {"batches": batches, "blocks": 100}, group + (f"-b{batches}" if batches != 300 else ""),
                 full=full, quick=quick)


def larson(threads: int = 2, lives: int = 400, full: bool = False, quick: bool = False) -> Case:
    """Figure 7: blocks of 1 to 128 pages, 100 slots and 100 allocations a thread's life. The paper: allocations a second
    in 5 s. Here: 400 lives a slice, so fixed work; the record has allocations_per_s too."""
    group = "pages-larson"
    return _case("pages_larson", group, "larson in pages", "Figure 7", threads, {"lives": lives},
                 group + (f"-l{lives}" if lives != 400 else ""), full=full, quick=quick)


def coalescing_failures(threads: int = 2, blocks: int = 1000, runs: int = 100, full: bool = False,
                        quick: bool = False) -> Case:
    """Figure 8: free blocks left, less one, after `threads` have at once freed `blocks` each. The paper: the mean of 1000
    runs. Here: of 100. Unavailable for managers that keep no blocks (mmap, NBBS)."""
    group = "pages-coalescing-failures"
    return _case("pages_coalescing", group, f"coalescing failures, {blocks} blocks a thread", "Figure 8", threads,
                 {"blocks": blocks, "runs": runs}, f"{group}-{blocks}" + (f"-r{runs}" if runs != 100 else ""),
                 parameters=(("blocks", str(blocks)),), metric="failures", full=full, quick=quick)


def suite() -> list[Case]:
    """Longer than the builders' own lengths, which the paper's figures take, as our managers need microseconds for what
    takes the system milliseconds: linux-scalability 20 times the paper's batch, threadtest 2000 batches, larson 1600
    lives a slice."""
    threads = (1, 2, 4)
    cases = [linux_scalability(t, batches=20, full=True) for t in threads]
    cases += [threadtest(t, batches=2000, full=True) for t in threads]
    cases += [larson(t, lives=1600, full=True) for t in threads]
    cases += [coalescing_failures(t, full=True) for t in (2, 4)]
    cases += [
        linux_scalability(2, batches=1, quick=True), threadtest(2, batches=50, quick=True), larson(2, lives=50, quick=True),
        coalescing_failures(2, runs=10, quick=True),
    ]
    return cases
