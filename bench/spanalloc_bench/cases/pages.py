"""Leite and Rocha's section 5: page managers instead of allocators (allocators.page_managers).

As in the paper a thread's work does not depend on the number of threads, so equal elapsed times, not equal times per
operation, are perfect scaling. The paper counts allocations; so do we, each with its free. Pages are not touched.
"""

from __future__ import annotations

from ..model import Case, Family
from .builders import command, count, suites, unusual, workload


def _case(program: str, group: str, title: str, figure: str, threads: int, options: dict, variant: str = "",
          **more) -> Case:
    return workload(group + variant, group, f"{title}, {count(threads)}", f"Leite & Rocha 5, {figure}",
                    command(program, manager="{manager}", threads=threads, **options), threads, Family.PAGES, **more)


def linux_scalability(threads: int = 2, batches: int = 3) -> Case:
    """Figure 5. The paper: a batch of 10,000 allocations of a page, then as many frees, once. Here: 3 times."""
    return _case("pages_scalability", "pages-linux-scalability", "linux-scalability in pages", "Figure 5", threads,
                 {"batches": batches, "blocks": 10_000}, unusual("b", batches, 3))


def threadtest(threads: int = 2, batches: int = 300) -> Case:
    """Figure 6. The paper: 100 batches of 100 allocations of a page, then as many frees. Here: 300 batches."""
    return _case("pages_threadtest", "pages-threadtest", "threadtest in pages", "Figure 6", threads,
                 {"batches": batches, "blocks": 100}, unusual("b", batches, 300))


def larson(threads: int = 2, lives: int = 400) -> Case:
    """Figure 7: blocks of 1 to 128 pages, 100 slots and 100 allocations a thread's life. The paper: allocations a second
    in 5 s. Here: 400 lives a slice, so fixed work; the record has allocations_per_s too."""
    return _case("pages_larson", "pages-larson", "larson in pages", "Figure 7", threads, {"lives": lives},
                 unusual("l", lives, 400))


def coalescing_failures(threads: int = 2, blocks: int = 1000, runs: int = 100) -> Case:
    """Figure 8: free blocks left, less one, after `threads` have at once freed `blocks` each. The paper: the mean of 1000
    runs. Here: of 100. Unavailable for managers that keep no blocks (mmap, NBBS)."""
    return _case("pages_coalescing", "pages-coalescing-failures", f"coalescing failures, {blocks} blocks a thread",
                 "Figure 8", threads, {"blocks": blocks, "runs": runs}, f"-{blocks}" + unusual("r", runs, 100),
                 parameters=(("blocks", str(blocks)),), metric="failures")


def suite() -> list[Case]:
    """Longer than the builders' own lengths, which the paper's figures take, as our managers need microseconds for what
    takes the system milliseconds: linux-scalability 20 times the paper's batch, threadtest 2000 batches, larson 1600
    lives a slice."""
    threads = (1, 2, 4)
    return suites(
        full=[
            *(linux_scalability(t, batches=20) for t in threads), *(threadtest(t, batches=2000) for t in threads),
            *(larson(t, lives=1600) for t in threads), *(coalescing_failures(t) for t in (2, 4)),
        ],
        quick=[
            linux_scalability(2, batches=1), threadtest(2, batches=50), larson(2, lives=50),
            coalescing_failures(2, runs=10),
        ],
    )
