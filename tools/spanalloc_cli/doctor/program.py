"""Findings about one program: its file before it runs, and its process while it does."""

import os
import stat

from spanalloc_cli.doctor import elf, environment, options, preload
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW, Finding, amount, as_root, some
from spanalloc_cli.doctor.machine import NEARLY

# From so many on threads are counted by whether they sleep: a few are of no weight.
MANY_THREADS = 64
# Page tables of this part of what is in memory, and this size, are more than a heap that lies close together takes.
_MUCH_TABLES, _MUCH_TABLES_BYTES = 1 / 8, 4 << 20
_HALF = 0.5  # of the mappings that a process may have
_SECCOMP_FILTER = "2"
_MOST_INTERPRETERS = 4  # as the kernel


# ---- before it runs ----


def file_findings(files, path):
    """What a program's file tells, and the interpreter's if it is a script. `path` is absolute."""
    for _ in range(_MOST_INTERPRETERS):
        yield from _privileges(files, path)
        interpreter = _interpreter(files, path)
        if interpreter is None:
            break
        yield Finding("program", KNOW, f"{path} is a script for {interpreter}.",
                      "The malloc that counts is that of the interpreter, and of what it starts.",
                      "What is said of a process below names the program that was looked at.")
        path = interpreter
    try:
        read = elf.read(files, path)
    except elf.NotElf:
        return
    yield from _kind_of_program(path, read)


def _interpreter(files, path):
    """The program of a script's first line; None where it is no script."""
    first, _, _ = (files.bytes(path, 256) or b"").partition(b"\n")
    words = first[2:].split() if first.startswith(b"#!") else []
    return os.fsdecode(words[0]) if words else None


def _privileges(files, path):
    status = files.status(path)
    if status is None:
        return
    kinds = []
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        kinds.append("set-user-id")
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid():
        kinds.append("set-group-id")
    if files.attribute(path, "security.capability") is not None and os.geteuid() != 0:
        kinds.append("has file capabilities")
    if kinds:
        yield Finding("program", COSTS, f"{path}: {', '.join(kinds)}.",
                      "With privileges that its caller does not have the loader ignores paths in LD_PRELOAD, and our "
                      "libraries ignore their options.",
                      "Link it with -lspanalloc, or run a copy without these privileges.")


def _kind_of_program(path, read):
    """Of a program that is to run on ours."""
    if not read.is_native:
        yield Finding("program", COSTS, f"{path} is for another processor ({read.bits} bits, {read.machine}).",
                      f"Our libraries are for this one ({elf.native_machine()}) and cannot be preloaded there.",
                      f"Use a program for {elf.native_machine()}.")
    elif read.is_static:
        yield from _static(path, read, COSTS)
    else:
        yield from _own_malloc(path, read, COSTS)


def _static(path, read, severity):
    if read.allocator == "spanalloc":
        yield Finding("malloc", FINE, f"{path} is linked statically with spanalloc.",
                      "Its malloc is ours, without a preload.")
        return
    if read.allocator == "Go's runtime":
        has = "and allocates by Go's runtime"
    elif read.allocator:
        has = f"with {read.allocator}'s malloc"
    elif read.defined is None:
        has = "and stripped, so its malloc has no name"
    else:
        has = "with a malloc that the doctor does not know, or none"
    is_not = ("only its calls of spanalloc.h are on spanalloc" if read.our_note == elf.OUR_CALLS else
              "it is not on spanalloc")
    yield Finding("malloc", severity, f"{path} is linked statically, {has}.",
                  f"No loader runs, so nothing can be preloaded: {is_not}.",
                  "Link it with libspanalloc.a before the C library, or dynamically: man 7 spanalloc.")


def _own_malloc(path, read, severity):
    """Of a dynamic program that brings an allocator."""
    if read.exported and "malloc" in read.exported and read.allocator != "spanalloc":
        known = f" ({read.allocator})" if read.allocator and read.allocator != "glibc" else ""
        yield Finding("malloc", severity, f"{path} has a malloc of its own{known}.",
                      "The program's own one stands before every library's, whatever is preloaded.",
                      "Build it without that allocator, and link with -lspanalloc or preload.")
    elif read.allocator and read.allocator not in ("spanalloc", "glibc"):
        yield Finding("malloc", KNOW, f"{path} has {read.allocator} in it, under names of its own.",
                      "What it allocates by these never comes to malloc.",
                      "Build it without that allocator where spanalloc shall serve all of it.")


# ---- while it runs ----


def process_findings(process, wanted_by_us=False):
    """What a process's own files tell. `wanted_by_us`: the doctor itself has preloaded our library."""
    yield _who(process)
    entries = process.preloaded_by_environment()
    is_wanted = wanted_by_us or any(entry.is_ours for entry in entries)
    if process.mappings is not None and process.program is not None:
        yield from _malloc(process, is_wanted)
        yield from _taken(process, entries)
    if process.environment is not None:
        # What is fine of them, or not set, is said by which malloc it uses.
        yield from (found for found in environment.preloads(entries)
                    if found.severity == COSTS or len(entries) > 1 and found.severity == KNOW)
        yield from environment.our_options(process.environment, entries)
        yield from environment.variables_of_others(process.environment, bool(process.ours()))
        yield from _ignored_options(process)
    elif process.has_overwritten_environment:
        yield from _overwritten(process)
    yield from _huge_pages_forbidden(process)
    yield from _memory(process)
    yield from _mappings(process)
    yield from _threads(process)
    yield from _idle(process)
    yield from _filter(process)
    yield from _unreadable(process)  # the last one: those before have tried to read


def _who(process):
    about = [some(process.threads, "thread"), f"{amount(process.memory('VmRSS'))} in memory"]
    if process.memory("RssAnon"):
        about.append(f"of it {amount(process.memory('RssAnon'))} its own (heap, stacks)")
    # (Of one file with several names the process has that by which it was called.)
    name = f" ({process.name})" if process.exe and process.name not in process.exe.rpartition("/")[2] else ""
    return Finding("process", FINE,
                   f"Process {process.number} is {process.exe or process.name}{name}: {', '.join(about)}.",
                   "What is said of a process is said of this one.")


def _unreadable(process):
    """What of a process could not be read, in plain words."""
    refused = {path[len(process.folder) + 1:].split("/")[0]: reason for path, reason in process.files.refused.items()
               if path.startswith(process.folder + "/")}
    if not refused:
        return
    why = "The kernel shows these to the same user, and to root"
    scope = process.files.number("/proc/sys/kernel/yama/ptrace_scope")
    if scope:
        why += f"; kernel.yama.ptrace_scope is {scope}, which may narrow it to a debugger's own children, or to root"
    yield Finding("unreadable", KNOW,
                  f"Not to be read of process {process.number}: {', '.join(sorted(refused))} "
                  f"({', '.join(sorted(set(refused.values())))}).", f"{why}. What depends on them is left out here.",
                  as_root(f"spanalloc doctor {process.number}"))


def _malloc(process, is_wanted):
    """Which one it uses. `is_wanted`: it is to be ours."""
    program, ours = process.program, process.ours()
    otherwise = COSTS if is_wanted else KNOW
    if program.is_static:
        yield from _static(process.exe, program, otherwise)
        return
    path, why_not = process.malloc_object()
    if why_not:
        here = f" (of ours it has {', '.join(ours)})" if ours else ""
        yield Finding("malloc", KNOW, f"Which malloc it uses is unknown: {why_not}{here}.",
                      "The first file in the loader's order that has one serves the program.",
                      "Ask as root, of a program whose files are as they were when it began.")
    elif path is None:
        yield Finding("malloc", KNOW, "None of the files that it was started with has a malloc.",
                      "What it allocates it asks of the kernel itself, or of what it opens later.",
                      "Nothing of ours can serve it.")
    elif preload.is_our_file(path) or process.objects[path].allocator == "spanalloc":
        yield from _ours(process, path)
    elif path == process.exe:
        yield from _own_malloc(path, program, otherwise)
    elif ours:
        yield Finding("malloc", COSTS,
                      f"Its malloc is that of {path}; {', '.join(ours)} is there too, behind it or loaded later.",
                      "The first one in the loader's order is used, so ours serves only who calls it by the names of "
                      "spanalloc.h.",
                      "Preload ours, by spanalloc run or LD_PRELOAD; a library opened by dlopen replaces no malloc.")
    else:
        name = preload.allocator_name(process.objects[path], path)
        has_calls = any(read and read.our_note == elf.OUR_CALLS for read in process.objects.values())
        yield Finding("malloc", KNOW,
                      f"Its malloc is that of {path}{'' if name in path else f' ({name})'}; spanalloc "
                      f"{'serves only its calls of spanalloc.h' if has_calls else 'is not in it'}.",
                      "Nothing of ours serves its malloc.", "Start it by spanalloc run -- PROGRAM, or with LD_PRELOAD.")
    if path != process.exe:
        yield from _own_malloc(process.exe, program, otherwise)
    if (program.interpreter or "").rpartition("/")[2].startswith("ld-musl"):
        yield Finding("malloc", KNOW, f"Its C library is musl ({program.interpreter}).",
                      "Our libraries are made for glibc, and are not tested with another one.",
                      "Use a program that is linked with glibc.")


def _ours(process, path):
    if path == process.exe:
        yield Finding("malloc", FINE, f"Its malloc is spanalloc's, which is linked into {path}.",
                      "It needs no preload.")
        return
    yield Finding("malloc", FINE, f"Its malloc is that of {path} (config {preload.engine_of(path)}).",
                  "By the loader's order it is the first one.")
    others = [other for other, read in process.objects.items()
              if other != process.exe and read and read.allocator not in (None, "spanalloc", "glibc")]
    if others:
        yield Finding("malloc", KNOW, f"{', '.join(others)} is loaded too.",
                      "What a program asks it by names of its own concerns the heap of that library, which is empty: so Redis' "
                      "INFO memory goes on to name jemalloc, and its figures of the allocator are none of ours.",
                      f"For the program's heap: spanalloc top {process.number}")
    if path.endswith(" (deleted)"):
        yield Finding("malloc", KNOW, f"{path}: that file was replaced or removed since the process began.",
                      "It goes on with the old one.", "Start it anew to have the one that is there now.")


def _taken(process, entries):
    """Whether what its environment has preloaded of ours is there, and if not, why."""
    wanted = [entry for entry in entries if entry.is_ours]
    if not wanted or process.ours():
        return
    seen = f"LD_PRELOAD of process {process.number} names {wanted[0].text}, but the library is not in it."
    program = process.program
    if program.is_static:
        why, do = "The program is linked statically.", "Link it with libspanalloc.a: man 7 spanalloc."
    elif process.is_secure:
        why = "It runs with privileges that its caller does not have (AT_SECURE), where the loader ignores it."
        do = "Link it with -lspanalloc, or run it without these privileges."
    elif not program.is_native:
        why = f"The program is for another processor ({program.bits} bits, {program.machine})."
        do = "Use one for this processor."
    elif wanted[0].problem:
        why = f"As the process sees it, the file {wanted[0].problem}."
        do = "Put the library where the process can read it: services may not see /home and /tmp, containers less."
    elif not process.is_loaded:
        why, do = "It has only just begun: the loader may not have come to it.", "Ask again."
    else:
        why = "Nothing speaks against it now; file or variable may have been another one when the process began."
        do = "Start the program anew and look at the loader's messages: LD_DEBUG=files PROGRAM"
    yield Finding("preload", COSTS if process.is_loaded else KNOW, seen, why, do)


def _overwritten(process):
    yield Finding("unreadable", KNOW,
                  f"Process {process.number} has written over its environment, as Redis, PostgreSQL and nginx do for "
                  "their titles.",
                  "The options and the LD_PRELOAD that it was started with cannot be read there. The malloc that it "
                  "uses is known by what is loaded.",
                  "Look where it is started: systemctl show -p Environment UNIT")


def _ignored_options(process):
    given = options.given(process.environment)
    if given and process.is_secure:
        yield Finding("options", COSTS,
                      f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} set in process {process.number}.",
                      "It runs with privileges that its caller does not have (AT_SECURE), where our libraries ignore "
                      "their options.", "Run it without these privileges, or without the options.")


def _huge_pages_forbidden(process):
    if process.status.get("THP_enabled") == "0":
        yield Finding("thp", KNOW, f"Process {process.number} has forbidden itself huge pages (PR_SET_THP_DISABLE).",
                      "Neither the kernel's switch nor SPANALLOC_THP has it get any; what it starts inherits that.",
                      "Start it from something that has not set it, if huge pages are wanted.")


def _memory(process):
    resident = process.memory("VmRSS")
    anonymous, huge = process.rollup.get("Anonymous"), process.rollup.get("AnonHugePages")
    if anonymous is not None:
        seen = f"In memory: {amount(anonymous)} of its own, {amount(huge or 0)} of that in huge pages."
        if process.arena and process.ours():
            seen += (f" Where libspanalloc.so has its heap: {amount(process.arena.resident)}, in huge pages "
                     f"{amount(process.arena.huge)}, in swap {amount(process.arena.swapped)}.")
        yield Finding("resident", FINE, seen,
                      "With the heap's blocks that includes what is free and waits for its next use.")
    tables = process.memory("VmPTE")
    if tables:
        seen = f"Its page tables take {amount(tables)}, besides {amount(resident)} in memory."
        if tables >= _MUCH_TABLES_BYTES and tables >= _MUCH_TABLES * resident:
            yield Finding("page-tables", COSTS, seen,
                          "That is memory, too, and counts in a control group: what it uses lies far apart.",
                          "Of ours, libspanalloc.so packs closest; a library that spaces spans 2 MiB apart (scalloc) "
                          "takes more.")
        else:
            yield Finding("page-tables", FINE, seen, "What it uses lies close enough together.")
    if process.memory("VmSwap"):
        yield Finding("swapped", COSTS, f"{amount(process.memory('VmSwap'))} of it are in swap.",
                      "Each page must be read back before it is used, by free and malloc, too.",
                      "Give it more memory, or have free memory go back sooner: SPANALLOC_BACKGROUND=1, "
                      "SPANALLOC_DECAY_MS=100.")
    if process.memory("VmLck"):
        yield Finding("locked", COSTS,
                      f"{amount(process.memory('VmLck'))} of its address space are locked in memory (mlock).",
                      "The kernel takes no locked page back: what is freed there stays in memory.",
                      "Lock only what must be: mlock of single pieces in the place of mlockall.")


def _mappings(process):
    most = process.files.number("/proc/sys/vm/max_map_count")
    if process.mappings is None or not most:
        return
    count = len(process.mappings)
    seen = f"It has {count:,} of {most:,} mappings."
    if count >= _HALF * most:
        yield Finding("map-count", COSTS if count >= NEARLY * most else KNOW, seen,
                      "With all of them used up no mapping can be made, or be given back in part.",
                      f"sudo sysctl vm.max_map_count={2 * most}")
    else:
        yield Finding("map-count", FINE, seen, "It is far from the bound.")


def _threads(process):
    if process.threads < MANY_THREADS or not process.ours():
        return
    yield Finding("threads", KNOW,
                  f"It has {process.threads:,} threads, of which {process.threads_asleep:,} sleep at this moment.",
                  "For each size class that a thread uses it has a span of 64 to 256 KiB, and one that sleeps keeps "
                  "it: that can be 10 MiB a thread.",
                  "Fewer sleeping threads (a pool), or malloc_trim(0) by the thread itself before it sleeps: "
                  "docs/using.md.")


def _idle(process):
    standard = any(preload.engine_of(path) == "standard" for path in process.ours())
    if standard and process.environment is not None and not options.is_on(process.environment, "SPANALLOC_BACKGROUND"):
        yield Finding("idle", KNOW, "SPANALLOC_BACKGROUND is not on.",
                      "The threads that allocate and free give memory back in passing: a process that falls idle "
                      "keeps what was free at that time.",
                      "Where it rests for long: SPANALLOC_BACKGROUND=1, or malloc_trim(0) before it does.")


def _filter(process):
    variables = process.environment or {}
    named = ["SPANALLOC_THP"] * (options.value(variables, "SPANALLOC_THP") not in (None, "system"))
    named += ["SPANALLOC_BACKGROUND"] * options.is_on(variables, "SPANALLOC_BACKGROUND")
    if process.status.get("Seccomp") == _SECCOMP_FILTER and named and process.ours():
        yield Finding("seccomp", KNOW, f"A filter of system calls stands (seccomp), and {', '.join(named)} is set.",
                      "With it the library makes calls that glibc's malloc does not make; a filter that kills ends "
                      "the process for one.", "See that the filter lets them through: man 7 spanalloc, System calls.")
