"""What a finding is, and which topics there are."""

import collections
import os

# What a finding says of itself, in the order in which they are shown.
COSTS, KNOW, FINE = "costs", "know", "fine"
HEADINGS = {COSTS: "Costs you something", KNOW: "Worth knowing", FINE: "Fine"}

# Names of topics stay what they are: scripts look for them in --json. spanalloc(1) lists them.
TOPICS = (
    "program", "process", "malloc", "preload", "preload-file", "options", "malloc-variables", "unreadable",
    "limits", "cgroup", "soft-limit", "cpus", "map-count", "thp", "thp-defrag", "overcommit", "resident", "classes",
    "heaps", "page-tables",
    "swapped", "locked", "threads", "idle", "seccomp", "memory", "pressure", "swap", "hugetlb", "numa", "kernel",
)


class Finding(collections.namedtuple("Finding", "topic severity seen why do")):
    """What is seen, with its figure; why it matters; what to do, None where that is nothing. A sentence or two each."""

    def __new__(cls, topic, severity, seen, why, do=None):
        if topic not in TOPICS or severity not in HEADINGS or (severity == FINE) != (do is None):
            raise ValueError(f"no finding: {topic}, {severity}, {do}")
        return super().__new__(cls, topic, severity, seen, why, do)


def ordered(findings):
    """What costs something first; within that by topic."""
    severities = list(HEADINGS)
    return sorted(findings, key=lambda found: (severities.index(found.severity), TOPICS.index(found.topic)))


def amount(count):
    """Bytes, to be read."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
    else:
        unit = "TiB"
    return f"{count:.0f} bytes" if unit == "bytes" else f"{count:.1f} {unit}"


def some(count, thing, things=None):
    """`1 thread`, `2 threads`."""
    return f"{count:,} {thing if count == 1 else things or thing + 's'}"


def as_root(command):
    """What to do where the kernel shows something to root only."""
    if os.getuid() == 0:
        return f"You are root here, and it is refused all the same: ask from outside of this container ({command})."
    return f"Run it as root: sudo {command}"
