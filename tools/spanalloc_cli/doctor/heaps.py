"""What first-class heaps hold: the program's own, as `spanalloc top` sees them from outside."""

from spanalloc_cli.doctor.findings import FINE, KNOW, Finding, amount, some

LEAST = 16 << 20  # bytes of memory in heaps from which on it matters which these are
SHOWN = 3         # heaps that are named


def judge(found, own_bytes):
    """One finding of all heaps; None where there is none. `found`: top's heaps.Heaps; `own_bytes`: what the process has
    in memory, or in swap, that is no file."""
    if not found.heaps:
        return None
    named = ", ".join(f"{heap.name or f'one without a name ({heap.address:#x})'} {amount(heap.taken_bytes)}"
                      for heap in found.heaps[:SHOWN])
    seen = (f"{some(len(found.heaps), 'first-class heap')} {'has' if len(found.heaps) == 1 else 'have'} taken "
            f"{amount(found.taken_bytes)} of addresses; blocks in use are {amount(found.used_bytes)}. Heaps that ended "
            f"left {amount(found.kept_bytes)} for the next ones. The largest, by addresses: {named}.")
    touched = min(found.touched_bytes, own_bytes)
    if touched < LEAST or touched * 2 <= own_bytes:
        return Finding("heaps", FINE, seen, "Most of the process's memory is elsewhere, or it is little.")
    if found.used_bytes * 2 <= touched:
        return Finding(
            "heaps", KNOW, seen,
            f"{some(len(found.heaps), 'heap')} touch two or three pages each, about {amount(touched)} in all. That is "
            f"most of the {amount(own_bytes)} that the process has of its own; blocks are the lesser part of it.",
            "Let blocks that end together share a heap, and destroy heaps that are not needed (man 3 sp_heap). "
            "spanalloc top lists them.")
    return Finding(
        "heaps", KNOW, seen,
        f"That is most of the {amount(own_bytes)} that the process has of its own. No option of malloc's bounds it: a "
        "heap keeps its blocks until they are freed, or it is reset or destroyed.",
        "spanalloc top shows the largest by name. Reset or destroy what is not needed, or give heaps a limit (man 3 "
        "sp_heap).")
