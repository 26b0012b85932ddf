"""What `spanalloc top` sees of the heap from outside: how full the spans of small blocks are."""

from spanalloc_cli.doctor import heaps
from spanalloc_cli.doctor.findings import COSTS, FINE, Finding, amount, some
from spanalloc_cli.top.look import Watcher
from spanalloc_cli.top.memory import CannotRead, Ended

LEAST = 4 << 20  # bytes that half empty classes must leave idle
SHOWN = 3        # classes that are named


def findings(number):
    """Of a process that runs on ours; none where its records cannot be read, which other findings say."""
    try:
        look = Watcher(number).look()
    except (CannotRead, Ended):
        return
    if look.classes:
        yield judge(look.classes, look.totals)
    facts = look.facts
    own = look.heaps and heaps.judge(look.heaps, facts.rss_bytes - facts.rss_file_bytes + facts.swap_bytes)
    if own:
        yield own


def idle(figures):
    """Bytes of blocks that were handed out before, and are free. What may be in use counts as in use."""
    return (figures.carved_blocks - figures.live_blocks - figures.unsure_blocks) * figures.block_bytes


def judge(classes, totals):
    """One finding of all classes."""
    taken = sum(figures.carved_blocks * figures.block_bytes for figures in classes)
    used = sum(figures.live_blocks * figures.block_bytes for figures in classes)
    empty = sorted((figures for figures in classes if idle(figures) * 2 > figures.carved_blocks * figures.block_bytes),
                   key=idle, reverse=True)
    # Pages that went back to the kernel cost nothing.
    lost = sum(map(idle, empty)) - totals.purged_part_bytes
    seen = f"Of {amount(taken)} that small blocks have taken in spans {amount(used)} are in use."
    if lost < LEAST or lost * 8 < taken:
        return Finding("classes", FINE, seen, "What is free there serves the next blocks of its size.")
    named = ", ".join(f"{figures.block_bytes} bytes ({figures.live_blocks:,} of {figures.carved_blocks:,} blocks in "
                      "use)" for figures in empty[:SHOWN])
    return Finding(
        "classes", COSTS,
        f"{seen} {some(len(empty), 'size', 'sizes')} of blocks left more than half of theirs idle: {named}.",
        "A page goes back to the kernel when no block on it is in use, a span serves other sizes when none of its "
        "blocks is: a few that stay keep much.",
        "malloc_trim(0) gives back what can go. Make what lives long before what lives short, or give one of them a "
        "first-class heap (man 3 sp_heap). spanalloc top shows all sizes.")
