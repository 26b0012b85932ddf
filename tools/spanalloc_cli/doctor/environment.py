"""Findings about a program's environment variables."""

from spanalloc_cli.doctor import options, preload
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW, Finding

# Variables that other allocators read, by what they begin with.
_OF_OTHERS = (
    ("MALLOC_CONF", "jemalloc"), ("_RJEM_MALLOC_CONF", "jemalloc"), ("MIMALLOC_", "mimalloc"),
    ("TCMALLOC_", "tcmalloc"), ("TBB_MALLOC_", "tbbmalloc"), ("MALLOC_", "glibc"),
)


def look(environment, entries):
    """All of them. `entries`: what its LD_PRELOAD names (preload.Entry)."""
    yield from preloads(entries)
    yield from our_options(environment, entries)
    yield from variables_of_others(environment, any(entry.is_ours for entry in entries))


def preloads(entries):
    """What can be told of LD_PRELOAD before a program is started."""
    givers = [entry for entry in entries if not entry.problem and entry.gives_malloc]
    for entry in entries:
        if entry.problem:
            yield Finding("preload", COSTS, f"LD_PRELOAD names {entry.text}, which {entry.problem}.",
                          "The loader says so at each program's start and goes on without it.",
                          "Correct LD_PRELOAD; spanalloc list shows where our libraries are.")
        elif entry.is_ours and entry.elf and not entry.gives_malloc:
            yield Finding("preload", COSTS, f"LD_PRELOAD names {entry.text}, which has no malloc for others.",
                          "It is none of the libraries that replace malloc.", "spanalloc list shows which ones do.")
    if len(givers) > 1:
        others = ", ".join(entry.text for entry in givers[1:])
        if any(entry.is_ours for entry in givers[1:]) and not givers[0].is_ours:
            yield Finding("preload", COSTS, f"In LD_PRELOAD {givers[0].text} stands before {others}.",
                          f"The first one that has a malloc is used: {givers[0].allocator}.",
                          "Put ours first, or take the other one out.")
        else:
            yield Finding("preload", KNOW,
                          f"LD_PRELOAD names several allocators: {givers[0].text} is used, {others} is not.",
                          "The others are loaded for nothing, and functions that only they have reach another heap.",
                          "Name one only.")
    elif givers and givers[0].is_ours:
        yield Finding("preload", FINE, f"LD_PRELOAD names {givers[0].text}.",
                      "Programs that are started from here use its malloc.")
    elif givers:
        yield Finding("preload", KNOW, f"LD_PRELOAD names {givers[0].text}, another allocator ({givers[0].allocator}).",
                      "Programs that are started from here use its malloc.", "For ours: spanalloc run -- PROGRAM")
    elif not entries:
        yield Finding("preload", FINE, "LD_PRELOAD is not set.",
                      "Programs that are started from here use the malloc that they are linked with; spanalloc run -- "
                      "PROGRAM has one use ours.")
    for entry in entries:
        if "$" in entry.text:
            yield Finding("preload", KNOW, f"LD_PRELOAD names {entry.text}.",
                          "Only the loader knows which file that is.",
                          "Start the program and ask spanalloc doctor PID.")


def our_options(environment, entries):
    ours = next((entry for entry in entries if entry.is_ours and not entry.problem), None)
    engine = preload.engine_of(ours.path or ours.text) if ours else None
    base = engine.partition("-")[0] if engine else None
    for name, text in options.given(environment).items():
        if name not in options.OPTIONS:
            meant = options.meant(name)
            yield Finding("options", COSTS, f"{name}={text} is set, but no library has an option of this name.",
                          "It has no effect.",
                          f"Did you mean {meant}?" if meant else "man 7 spanalloc has the options; unset this one.")
            continue
        takes, engines = options.OPTIONS[name]
        if not takes.takes(text):
            yield Finding("options", COSTS, f"{name}={text} is set, but the libraries want {takes}.",
                          "The value is ignored, and a line on standard error says so.",
                          f"Give {name} such a value, or unset it.")
        elif base in options.EVERY_ENGINE and base not in engines:
            yield Finding("options", COSTS,
                          f"{name}={text} is set, but the library that is preloaded ({engine}) does not read it.",
                          "It has no effect.", f"Unset it, or use a library that reads it: {', '.join(engines)}.")
        elif name == "SPANALLOC_CLOCK" and text == "still":
            yield Finding("options", COSTS, f"{name}={text} is set.",
                          "No time passes, so no memory is given back by time.", f"unset {name}")
        elif name == "SPANALLOC_SEED":
            yield Finding("options", KNOW, f"{name} is set.",
                          "Addresses and secrets follow from it: who knows it knows these. It is for repeating runs.",
                          f"In production: unset {name}")
        else:
            yield Finding("options", FINE, f"{name}={text} is set.", "The libraries that read it take the value.")


def variables_of_others(environment, ours_is_used):
    """Those by which other allocators are told what to do."""
    found = {}
    for name in sorted(environment):
        of = next((of for start, of in _OF_OTHERS if name.startswith(start)), None)
        if of and (ours_is_used or of != "glibc"):
            found.setdefault(of, []).append(name)
    tunables = environment.get("GLIBC_TUNABLES", "").split(":")
    if ours_is_used and any(tunable.startswith("glibc.malloc.") for tunable in tunables):
        found.setdefault("glibc", []).append("GLIBC_TUNABLES (glibc.malloc)")
    for of, names in found.items():
        if ours_is_used:
            yield Finding("malloc-variables", KNOW, f"{', '.join(names)}: for {of}.", "Our libraries do not read it.",
                          "Unset what is not for other programs; man 7 spanalloc has the options of ours.")
        else:
            yield Finding("malloc-variables", KNOW, f"{', '.join(names)}: for {of}.", "No other malloc reads it.",
                          f"Unset it where programs do not run on {of}.")
    if ours_is_used and "glibc.pthread.rseq=0" in tunables and options.is_on(environment, "SPANALLOC_RSEQ"):
        yield Finding("options", COSTS, "SPANALLOC_RSEQ=1 is set, and GLIBC_TUNABLES has glibc.pthread.rseq=0.",
                      "Without threads registered for restartable sequences CPUs' caches are changed under locks.",
                      "Take glibc.pthread.rseq=0 out of GLIBC_TUNABLES.")
