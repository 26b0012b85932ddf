"""Findings about what a process may have: limits, control groups, CPUs."""

import re

from spanalloc_cli.doctor import cgroups, options
from spanalloc_cli.doctor.files import cpu_list, kib
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW, Finding, amount, some
from spanalloc_cli.doctor.machine import NEARLY


def look(files, process, environment, configs=()):
    """All of them. `process`: its name below /proc, `self` or a number; `environment`: its variables, None
    where they cannot be read; `configs`: those of our libraries that it has, or is to have."""
    yield from limits(files, process, configs)
    yield from memory_group(files, process, environment)
    yield from soft_limit(files, process, environment)
    yield from cpus(files, process, environment)


def read_limits(files, process):
    """{name: the limit in bytes, or whatever it counts; None: there is none} of its soft limits."""
    found = {}
    for line in (files.text(f"/proc/{process}/limits") or "").splitlines()[1:]:
        match = re.match(r"Max (.+?) {2,}(\d+|unlimited) ", line)
        if match:
            found[match.group(1)] = None if match.group(2) == "unlimited" else int(match.group(2))
    return found


def limits(files, process, configs=()):
    found = read_limits(files, process)
    if not found:
        return
    spoken = False
    for name, option, why in (
        ("address space", "v", "libspanalloc.so shares it with the rest of the program; the other libraries reserve "
         "nothing and grow within it. Beyond it malloc returns no memory (ENOMEM)."),
        ("data size", "d", "What the heap maps counts, touched or not. Beyond it malloc returns no memory (ENOMEM)."),
    ):
        if found.get(name) is not None:
            spoken = True
            yield Finding("limits", KNOW, f"The {name} is limited to {amount(found[name])}.", why,
                          f"Unless it is meant so: ulimit -{option} unlimited, in the shell that starts the program.")
    reserving = [config for config in configs if config != "standard"]
    if reserving and found.get("locked memory") is not None:
        spoken = True
        yield Finding("limits", KNOW,
                      f"Locked memory is limited to {amount(found['locked memory'])}, and the library ({reserving[0]}) "
                      "reserves address space.", "An mlockall without privileges counts what is reserved, and fails.",
                      "Where the program calls it: SPANALLOC_ARENA_BITS=30, or libspanalloc.so, which reserves "
                      "nothing.")
    if found.get("core file size") == 0 and not (files.text("/proc/sys/kernel/core_pattern") or "").startswith("|"):
        spoken = True
        yield Finding("limits", KNOW, "No core files are written (their size is limited to 0).",
                      "Where an invalid free or a damaged heap ends a program, by abort, one line on standard error "
                      "is all that is left of it.", "To have a core file: ulimit -c unlimited, in the shell that starts the program.")
    if not spoken:
        yield Finding("limits", FINE, "Neither address space, nor data, nor core files are limited.",
                      "The heap may grow as far as memory goes.")


def memory_group(files, process, environment=None):
    group = cgroups.Memory(files, process)
    if not group.folders:
        return
    total = kib(files.table("/proc/meminfo").get("MemTotal"))
    limit, high, swap = group.limit(), group.high(), group.swap()
    if limit and total and limit.bytes >= total:
        limit = None  # the machine ends first
    killed = group.killed()
    slowed = group.slowed(high)
    if killed:
        yield Finding("cgroup", COSTS,
                      f"For want of memory the kernel has killed {some(killed, 'process', 'processes')} of the control "
                      f"group {group.folders[0]}.", "The group's memory had run out, or the machine's.",
                      "Give it more memory, or have its programs take less.")
    if high and (slowed or (high.used or 0) >= high.bytes):
        yield Finding("cgroup", COSTS,
                      f"memory.high of {high.group} is {amount(high.bytes)}, {_used(high)}; so far it was passed "
                      f"{some(slowed, 'time')}.",
                      "Beyond it the kernel holds up whoever allocates, and takes pages away.",
                      f"Raise it (echo max | sudo tee {high.group}/memory.high), or have the program take less.")
    elif high and (not limit or high.bytes < limit.bytes):
        yield Finding("cgroup", KNOW, f"memory.high of {high.group} is {amount(high.bytes)}, {_used(high)}.",
                      "Beyond it the kernel holds up whoever allocates.", "Keep the heap below it, or raise it.")
    if limit:
        nearly = limit.used is not None and limit.used >= NEARLY * limit.bytes
        no_swap = ", without swap" if swap and swap.bytes == 0 else ""
        yield Finding("cgroup", COSTS if nearly else KNOW,
                      f"The control group {limit.group} is limited to {amount(limit.bytes)}{no_swap}, {_used(limit)}.",
                      "The heap's page tables and the cache of files count, too; where it is reached the kernel kills "
                      "a process, and malloc gets no warning.",
                      "Raise the limit, or have the program take less: SPANALLOC_SOFT_LIMIT=cgroup is set, by which "
                      "free memory goes back at once when an eighth is left." if _keeps_to_group(environment) else
                      "Raise the limit, or have free memory go back at once when an eighth of it is left "
                      "(SPANALLOC_SOFT_LIMIT=cgroup), or always sooner (SPANALLOC_BACKGROUND=1, "
                      "SPANALLOC_DECAY_MS=100).")
    elif not killed and not high:
        yield Finding("cgroup", FINE,
                      f"No control group that is seen from here limits memory (version {group.version}, "
                      f"{group.folders[0]} and above).", "The machine's memory is the bound.")


def _keeps_to_group(environment):
    return options.value(environment or {}, "SPANALLOC_SOFT_LIMIT") == "cgroup"


def soft_limit(files, process, environment):
    """What SPANALLOC_SOFT_LIMIT asks for, against what there is."""
    wanted = options.value(environment or {}, "SPANALLOC_SOFT_LIMIT")
    if wanted is None:
        return
    if wanted == "cgroup":
        group = cgroups.Memory(files, process)
        if not group.limit() and not group.high():
            yield Finding("soft-limit", KNOW, "SPANALLOC_SOFT_LIMIT=cgroup is set, and no control group limits memory.",
                          "The heap goes by no limit until one does.",
                          "Unset it, or name a number of bytes, if there is to be a limit.")
        return
    limit = options.OPTIONS["SPANALLOC_SOFT_LIMIT"][0].bytes(wanted)
    if not limit:
        return
    status = files.table(f"/proc/{process}/status")
    held = (kib(status.get("RssAnon")) or 0) + (kib(status.get("VmSwap")) or 0) if process != "self" else 0
    if held >= limit:
        yield Finding("soft-limit", COSTS,
                      f"The soft limit is {amount(limit)} (SPANALLOC_SOFT_LIMIT), and the process has {amount(held)} of "
                      "memory of its own.",
                      "Near the limit the heap keeps nothing that is free: it gives pages back and takes them again "
                      "all the time, which costs system calls and page faults.",
                      "Raise it above what the program needs, or unset it.")
    else:
        yield Finding("soft-limit", FINE, f"The soft limit is {amount(limit)} (SPANALLOC_SOFT_LIMIT).",
                      "From seven eighths of it on the heap keeps nothing that is free.")


def _used(limit):
    return "how much of it is used is unknown" if limit.used is None else f"{amount(limit.used)} are used"


def cpus(files, process, environment):
    """What the library counts: the CPUs that the process may run on, or as many as its groups' quota pays for."""
    allowed = cpu_list(files.table(f"/proc/{process}/status").get("Cpus_allowed_list"))
    online = cpu_list(files.text("/sys/devices/system/cpu/online"))
    allowed = allowed & online if online else allowed
    if not allowed:
        return
    believed = len(allowed)
    option = options.value(environment or {}, "SPANALLOC_CPUS")
    unless = " (unless SPANALLOC_CPUS, which cannot be read there, says otherwise)" if environment is None else ""
    seen = f"The process may run on {len(allowed)} of {some(len(online) or len(allowed), 'CPU')}"
    if option and int(option) != believed:
        yield Finding("cpus", KNOW, f"{seen}; the library believes in {option} (SPANALLOC_CPUS).",
                      "It decides how much free memory is kept, and how threads are spread; the option is there to "
                      "simulate other machines.", "Unset SPANALLOC_CPUS, unless it is meant so.")
        believed = int(option)
    quota = cgroups.Cpu(files, process).quota()
    if quota is None:
        if not option or int(option) == len(allowed):
            yield Finding("cpus", FINE, f"{seen}, and that is what the library counts{unless}.",
                          "No quota takes CPU time away.")
        return
    counted = min(believed, cgroups.whole_cpus(quota))
    seen = f"{seen}; {quota.group} has a quota of {quota.cpus:.4g} CPUs"
    if quota.throttled:
        yield Finding("cpus", COSTS,
                      f"{seen}, and was stopped in {quota.throttled:,} of {quota.periods:,} periods so far.",
                      "All threads of the group stand still until the period's end, also those that hold a lock.",
                      "Raise the quota, or run fewer threads.")
    elif not option:
        yield Finding("cpus", FINE, f"{seen}: the library counts {counted}{unless}.",
                      "It was not stopped for its quota. (A program that is linked statically counts without it.)")
