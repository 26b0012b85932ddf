"""Findings about the machine: what holds for every process on it."""

import re

from spanalloc_cli.doctor import options, preload
from spanalloc_cli.doctor.files import cpu_list, kib
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW, Finding, amount, some

THP = "/sys/kernel/mm/transparent_hugepage"
DEFAULT_MAPPINGS = 65530  # what Linux gives a process unless it is told otherwise
# From which part on something counts as nearly used up.
NEARLY = 0.9
_LITTLE_MEMORY = 0.1  # of what the machine has
_STALLED_PERCENT = 1.0  # of the last minute


def look(files, environment):
    """All of them. `environment`: the variables of the process that is asked about; None: they cannot be read."""
    yield from kernel(files)
    yield from huge_pages(files, environment)
    yield from overcommit(files)
    yield from mappings(files)
    yield from memory(files)
    yield from pressure(files)
    yield from swap(files)
    yield from reserved_huge_pages(files)
    yield from nodes(files)
    yield from preload_file(files)


def kernel_version(files):
    """(6, 1) of Linux 6.1.0-28-amd64; None where the kernel does not tell."""
    found = re.match(r"(\d+)\.(\d+)", files.text("/proc/sys/kernel/osrelease") or "")
    return found and (int(found.group(1)), int(found.group(2)))


def kernel(files):
    version = kernel_version(files)
    if version is None:
        return
    seen = f"This is Linux {files.text('/proc/sys/kernel/osrelease')}."
    if version < (4, 14):
        yield Finding("kernel", KNOW, seen,
                      "Before 4.14 it cannot clear a page in a fork's child, so every fork asks for the process's "
                      "number.", "Use Linux 4.14 or newer where programs fork often.")
    else:
        yield Finding("kernel", FINE, seen, "It has all that the libraries ask of a kernel.")


def huge_pages(files, environment):
    """Transparent ones: the kernel's switch against SPANALLOC_THP."""
    if environment is None:
        yield Finding("thp", KNOW,
                      f"Transparent huge pages: the kernel's switch is {files.chosen(f'{THP}/enabled')}; what "
                      "SPANALLOC_THP says in the process cannot be read.",
                      "Both together decide whether the heap gets any.",
                      "Ask as the same user or as root, or look where the process is started.")
        return
    wanted = options.value(environment, "SPANALLOC_THP") or "system"
    enabled = files.chosen(f"{THP}/enabled")
    said = f"SPANALLOC_THP is {wanted}" if environment.get("SPANALLOC_THP") else "SPANALLOC_THP is not set"
    if (environment.get("SPANALLOC_THP") or wanted) != wanted:
        said = "SPANALLOC_THP has a value that is ignored"
    seen = f"Transparent huge pages: the kernel's switch is {enabled}, {said}."
    if enabled is None:
        seen = f"This kernel shows no transparent huge pages ({THP}/enabled), {said}."
    sizes = _sizes_of_their_own(files)
    if sizes:
        seen += f" Sizes with a switch of their own: {', '.join(f'{size} {word}' for size, word in sizes.items())}."
    # What one size is given holds where the general switch gives nothing.
    given = {enabled, *sizes.values()}
    enabled = next((word for word in ("always", "madvise") if word in given), enabled)
    turn_on = f"echo madvise | sudo tee {THP}/enabled"
    if enabled is None or enabled == "never":
        if wanted in ("auto", "always"):
            yield Finding("thp", COSTS, seen, "The library's advice has no effect: all memory is in small pages.",
                          turn_on if enabled else "Unset SPANALLOC_THP, or use a kernel that has them.")
        elif wanted == "never" or enabled is None:
            yield Finding("thp", FINE, seen, "All memory is in small pages.")
        else:
            yield Finding("thp", KNOW, seen,
                          "All memory is in small pages; a program that reads a large heap all over is faster with "
                          "huge ones.", f"For such a program: {turn_on}; then SPANALLOC_THP=auto.")
        return
    if wanted == "never":
        yield Finding("thp", FINE, seen, "The heap gets none, as you asked.")
    elif enabled == "madvise":
        if wanted == "system":
            yield Finding("thp", KNOW, seen,
                          "Only memory for which a program asks gets huge pages, and the library does not ask; a "
                          "program that reads a large heap all over is faster with them.",
                          "For such a program: SPANALLOC_THP=auto (where the heap is large and dense), or always.")
        else:
            yield Finding("thp", FINE, seen, "The heap gets huge pages where the library asks for them.")
    else:
        yield _always(files, seen)
    if wanted != "never" and (wanted != "system" or enabled == "always"):
        yield from _defrag(files, wanted != "system")


def _sizes_of_their_own(files):
    """{"64kB": "always"} of sizes (Linux 6.8) that do not follow the general switch and are not switched off."""
    sizes = [name[len("hugepages-"):] for name in files.names(THP) if name.startswith("hugepages-")]
    switches = {size: files.chosen(f"{THP}/hugepages-{size}/enabled") for size in sizes}
    return {size: word for size, word in switches.items() if word in ("always", "madvise")}


def _always(files, seen):
    empty = files.number(f"{THP}/khugepaged/max_ptes_none")
    why = "The first touch of a page may take a whole huge one: memory that is touched sparsely takes more than it uses"
    if empty:
        why += f"; khugepaged makes one also with up to {some(empty, 'small page')} of it untouched (max_ptes_none)"
    less = f"Where memory matters more than time: SPANALLOC_THP=never, or echo madvise | sudo tee {THP}/enabled"
    version = kernel_version(files)
    # Its page of zeroes has the size that the general switch is for.
    if files.chosen(f"{THP}/enabled") == "always" and version and (5, 8) <= version <= (6, 12):
        return Finding("thp", COSTS, seen,
                       f"{why}. And on Linux 5.8 to 6.12 libspanalloc.so, which looks whether pages of large freed "
                       "blocks were used, costs some huge ones: they are small pages until khugepaged joins them.",
                       f"{less}. Linux 6.13 and newer put huge pages in their place.")
    return Finding("thp", KNOW, seen, f"{why}.", f"{less}.")


def _defrag(files, is_asked):
    """Whether a first touch waits for a huge page. `is_asked`: the library asks for them."""
    defrag = files.chosen(f"{THP}/defrag")
    seen = f"The kernel's switch for making room for huge pages (defrag) is {defrag}."
    if defrag == "always" or is_asked and defrag in ("madvise", "defer+madvise"):
        yield Finding("thp-defrag", KNOW, seen,
                      "The first touch of a page of the heap may wait while the kernel moves other pages together.",
                      f"Where such waits are too long: echo defer | sudo tee {THP}/defrag")
    elif defrag:
        yield Finding("thp-defrag", FINE, seen, "The first touch of a page of the heap does not wait for a huge one.")


def overcommit(files):
    mode = files.number("/proc/sys/vm/overcommit_memory")
    if mode is None:
        return
    seen = f"vm.overcommit_memory is {mode}"
    if mode != 2:
        how = "a mapping is granted unless it is obviously too much" if mode == 0 else "any mapping is granted"
        yield Finding("overcommit", FINE, f"{seen}: {how}.", "What the heap maps and does not touch costs nothing.")
        return
    table = files.table("/proc/meminfo")
    limit, committed = kib(table.get("CommitLimit")), kib(table.get("Committed_AS"))
    why = "Every writable mapping counts in full, touched or not; beyond the limit malloc returns no memory (ENOMEM)."
    ratio = files.number("/proc/sys/vm/overcommit_ratio")
    do = f"sudo sysctl vm.overcommit_ratio=90 (it is {ratio}), " if ratio and ratio < 90 else ""
    do += "more swap, or sudo sysctl vm.overcommit_memory=0."
    if not limit or committed is None:
        yield Finding("overcommit", KNOW, f"{seen}: memory is granted up to a limit.", why,
                      f"Where that refuses memory: {do}")
        return
    seen += f": {amount(committed)} of {amount(limit)} are promised."
    if committed >= NEARLY * limit:
        yield Finding("overcommit", COSTS, seen, why, do[0].upper() + do[1:])
    else:
        yield Finding("overcommit", KNOW, seen, why, f"Where that refuses memory: {do}")


def mappings(files):
    most = files.number("/proc/sys/vm/max_map_count")
    if most is None:
        return
    seen = f"A process may have {most:,} mappings (vm.max_map_count)."
    if most < DEFAULT_MAPPINGS:
        yield Finding("map-count", KNOW, seen,
                      "With all of them used up no mapping can be made, or be given back in part; the heap may cut up "
                      "to 16,384, and as many may be blocks that realloc has moved.",
                      f"sudo sysctl vm.max_map_count={DEFAULT_MAPPINGS}, the kernel's own figure, or more.")
    else:
        yield Finding("map-count", FINE, seen, "That is no less than the kernel's own figure.")


def memory(files):
    table = files.table("/proc/meminfo")
    total, available = kib(table.get("MemTotal")), kib(table.get("MemAvailable"))
    if not total or available is None:
        return
    seen = f"{amount(available)} of {amount(total)} are available to programs."
    if available < _LITTLE_MEMORY * total:
        yield Finding("memory", COSTS, seen, "When memory is short the kernel searches for pages, and programs wait.",
                      "See who has it: ps -eo rss,pid,comm --sort=-rss | head. Of our libraries, "
                      "SPANALLOC_BACKGROUND=1 and a smaller SPANALLOC_DECAY_MS have free memory go back sooner.")
    else:
        yield Finding("memory", FINE, seen, "Memory is not short.")


def pressure(files):
    """By the kernel's own measure, pressure stall information."""
    found = re.search(r"^some .*avg60=([0-9.]+)", files.text("/proc/pressure/memory") or "", re.MULTILINE)
    if not found:
        return
    seen = f"In the last minute some program waited for memory {found.group(1)} % of the time."
    if float(found.group(1)) >= _STALLED_PERCENT:
        yield Finding("pressure", COSTS, seen, "That is time in which the kernel looks for pages or reads them back.",
                      "Give the machine or the container more memory, or run less beside each other.")
    else:
        yield Finding("pressure", FINE, seen, "Nobody waits for memory to speak of.")


def swap(files):
    table = files.table("/proc/meminfo")
    total, free = kib(table.get("SwapTotal")), kib(table.get("SwapFree"))
    if total is None or free is None:
        return
    if total == 0:
        yield Finding("swap", FINE, "There is no swap.",
                      "Memory is never read back from a disk; when it runs out a process is killed.")
        return
    compressed = files.text("/sys/module/zswap/parameters/enabled") in ("Y", "1")
    first = ", compressed in memory first (zswap)" if compressed else ""
    seen = f"{amount(total - free)} of {amount(total)} swap are used{first}."
    if total > free:
        yield Finding("swap", KNOW, seen,
                      "A page of the heap that is there must be read back before it is used, by free and malloc, too.",
                      "spanalloc doctor PID says how much of a process is there.")
    else:
        yield Finding("swap", FINE, seen, "All of the heap is in memory.")


def reserved_huge_pages(files):
    table = files.table("/proc/meminfo")
    free, size = table.get("HugePages_Free", ""), kib(table.get("Hugepagesize"))
    if not free.isdecimal() or not size or int(free) == 0:
        return
    yield Finding("hugetlb", KNOW,
                  f"{amount(int(free) * size)} are reserved as huge pages (vm.nr_hugepages) and used by nobody.",
                  "No malloc of ours takes these, and no other program can have that memory.",
                  "Unless a program waits for them: sudo sysctl vm.nr_hugepages=0")


def nodes(files):
    count = len(cpu_list(files.text("/sys/devices/system/node/online")))
    if count < 2:
        return
    yield Finding("numa", KNOW, f"The machine has {count} NUMA nodes.",
                  "A page lies on the node of the thread that touched it first, and free memory serves threads of any "
                  "node: some reach over to another one, which takes longer.",
                  "Where the program fits on one: numactl --cpunodebind=0 --membind=0 PROGRAM; else one process a "
                  "node.")


def preload_file(files):
    loader = preload.Loader(files, {})
    allocators = []
    for name in preload.names_of_file(files.text(preload.SYSTEM_FILE)):
        entry = loader.entry(name)
        if entry.problem:
            yield Finding("preload-file", COSTS, f"{preload.SYSTEM_FILE} names {name}, which {entry.problem}.",
                          "Each program says so at its start, and goes on without it.",
                          f"Correct the line, or take it out of {preload.SYSTEM_FILE}.")
        elif entry.is_ours or entry.gives_malloc:
            allocators.append(name)
    if allocators:
        yield Finding("preload-file", KNOW, f"{preload.SYSTEM_FILE} names {', '.join(allocators)}.",
                      "It is the malloc of every dynamic program of the machine, unless LD_PRELOAD names another one, "
                      "and of those with privileges of their own.",
                      "Better preload where it is wanted: LD_PRELOAD in a service's unit.")
