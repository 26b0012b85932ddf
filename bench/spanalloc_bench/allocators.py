"""The contenders: our libraries, the C library's malloc, the peers of this machine, the floor, and what a user names.

What is not there is a contender too: it says in `missing` why it cannot run, and its rows say the same.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess

from spanalloc_bench import execute, tree, verify
from spanalloc_bench.model import Allocator, Kind
from spanalloc_cli import libraries

BUILT_ONLY = ("snmalloc", "rpmalloc")  # Debian has none
# What --ablations adds.
ABLATIONS = tuple(name for name, library in libraries.LIBRARIES.items()
                  if "compared" in library.traits and name not in libraries.SHIPPED_CONFIGS)
# Libraries under another setting, by name only.
SETTINGS = {
    **{f"standard-thp-{use}": ("standard", (("SPANALLOC_THP", use),)) for use in ("always", "never")},
    "standard-background": ("standard", (("SPANALLOC_BACKGROUND", "1"),)),
    "supermalloc-rseq": ("supermalloc", (("SPANALLOC_RSEQ", "1"),)),
}
FLOOR = "bump"
PAGE_MANAGERS = ("mmap", "tree", "tree-recursive", "static")
PAGES_PROGRAM = "pages_scalability"  # a workload, asked for the page managers that are built into all of them
NBBS = "nbbs"

_BUILD = "scripts/bench --build-only"
_BUILD_ABLATIONS = "scripts/bench --build-only --ablations"


class BadChoice(Exception):
    """What a user named cannot be taken; the text says why and what there is instead."""


# ---- single contenders ----


def _ours(places, name) -> Allocator:
    if name in SETTINGS:
        base, environment = SETTINGS[name]
        return dataclasses.replace(_ours(places, base), name=name, kind=Kind.ABLATION, environment=environment)
    path = libraries.config_path(places, name)
    # What does not ship is built for comparison: a paper's ablation, another paper's baseline.
    kind = Kind.OURS if name in libraries.SHIPPED_CONFIGS else Kind.ABLATION
    if os.path.isfile(path):
        return Allocator(name, os.path.realpath(path), kind)
    if name not in libraries.LIBRARIES:
        return Allocator(name, path, kind, missing="not built: there is no library of this name")
    build = _BUILD if libraries.LIBRARIES[name].in_every_build else _BUILD_ABLATIONS
    return Allocator(name, path, kind, missing=f"not built: {build}")


def _glibc() -> Allocator:
    path = libraries.glibc()
    if path is None:
        return Allocator("glibc", "", Kind.SYSTEM, missing="this system's C library is not glibc")
    return Allocator("glibc", os.path.realpath(path), Kind.SYSTEM)


def _peer(name) -> Allocator:
    """One that was built (spanalloc bench peers), or one that is installed."""
    for entry in libraries.built_peers():
        if entry["name"] == name:
            environment = tuple((key, value) for key, value in entry["environment"])
            return Allocator(name, os.path.realpath(entry["path"]), Kind.PEER, environment=environment)
    path = libraries.packaged_allocators().get(name)
    if path:
        return Allocator(name, os.path.realpath(path), Kind.PEER)
    if name in BUILT_ONLY:
        return Allocator(name, "", Kind.PEER, missing="not here: spanalloc bench peers builds it")
    package = libraries.PACKAGES.get(name)
    return Allocator(name, "", Kind.PEER, missing="not installed" + (f": apt install {package}" if package else ""))


def _bump(places) -> Allocator:
    path = os.path.join(tree.workloads(places), "libbump.so")
    if os.path.isfile(path):
        return Allocator(FLOOR, os.path.realpath(path), Kind.BASELINE)
    return Allocator(FLOOR, path, Kind.BASELINE, missing=f"not built: {_BUILD}")


def named(places, name) -> Allocator:
    """The contender of this name. One that is not there, be it a future library of ours, says so in `missing`. Of
    ours it takes a name of an older version too."""
    name = libraries.current_name(name)
    if name == "glibc":
        return _glibc()
    if name == FLOOR:
        return _bump(places)
    built = [entry["name"] for entry in libraries.built_peers()]
    if name in libraries.OTHER_ALLOCATORS or name in libraries.other_allocators() or name in built:
        return _peer(name)
    return _ours(places, name)


# ---- all of them ----


def discover(places, with_=(), ablations=False) -> list[Allocator]:
    """Our libraries that are compared, glibc, the peers, bump, and what `with_` names (NAME=PATH). BadChoice for a --with
    that is none.

    They are listed also where they are missing; ablations only when asked for."""
    found = [_ours(places, name) for name in libraries.COMPARED_CONFIGS]
    if ablations:
        found += [_ours(places, name) for name in ABLATIONS]
    found.append(_glibc())
    others = libraries.other_allocators()
    replaced = {entry["replaces"] for entry in libraries.built_peers()}
    found += [_peer(name) for name in dict.fromkeys([*libraries.PACKAGES, *BUILT_ONLY, *others]) if name not in replaced]
    found.append(_bump(places))
    for text in with_:
        found.append(given(places, text, [allocator.name for allocator in found]))
    return found


def by_name_only(places) -> list[Allocator]:
    """Ours that take part only where somebody names them: what is there to be read, and whatever else is built."""
    known = (*libraries.COMPARED_CONFIGS, *ABLATIONS)
    names = dict.fromkeys([*libraries.LIBRARIES, *libraries.our_configs(places), *SETTINGS])
    return [_ours(places, name) for name in names if name not in known]


def given(places, text, taken=()) -> Allocator:
    """The contender of an argument --with NAME=PATH."""
    name, equals, path = text.partition("=")
    if not equals or not path:
        raise BadChoice(f"--with {text}: expected NAME=PATH, for example --with mine=./libmine.so")
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
        raise BadChoice(f"--with {text}: a name is made of letters, digits and . _ + -")
    today = libraries.current_name(name, libraries.RECORDED_NAMES)  # by which its samples would be read
    if today in (*libraries.LIBRARIES, *SETTINGS):
        raise BadChoice(f"--with {text}: {name} is the name of a library of ours; what others have made can be called "
                        f"{today}-original")
    if name in taken:
        raise BadChoice(f"--with {text}: there is an allocator called {name} already; choose another name")
    if not os.path.isfile(path):
        raise BadChoice(f"--with {text}: there is no file {path}")
    real = os.path.realpath(path)
    if " " in real or ":" in real:
        raise BadChoice(f"--with {text}: LD_PRELOAD cannot hold a path with a space or a colon: {real}")
    if not os.path.isfile(places.probe):
        raise BadChoice(f"--with {text}: what would check it is not built: {_BUILD}")
    problem = verify.why_no_malloc(places, real)
    if problem:
        raise BadChoice(f"--with {text}: {problem}")
    return Allocator(name, real, Kind.GIVEN)


# ---- those that somebody names ----


def wanted(names, default=()) -> list[str]:
    """The names of an option --allocators, "A,B", once each and by those of today; `default` where it is not given."""
    if not names:
        return list(default)
    return list(dict.fromkeys(libraries.current_name(name.strip()) for name in names.split(",")))


def chosen(places, names, found, there=lambda contender: not contender.missing) -> list[Allocator]:
    """Those that --allocators names, among `found` or by name only, and of `found` what --with has given. BadChoice
    where one is not `there`."""
    known = {contender.name: contender for contender in found}
    taken = []
    for name in wanted(names):
        contender = known.get(name) or named(places, name)
        if not there(contender):
            all_names = ", ".join(c.name for c in [*found, *by_name_only(places)] if there(c))
            raise BadChoice(f"--allocators {name}: {contender.missing}. There are: {all_names}")
        taken.append(contender)
    return list(dict.fromkeys(taken + [c for c in found if c.kind is Kind.GIVEN]))


def present(places, names, default, with_, say, find=None) -> list[Allocator]:
    """Those that --allocators names, else those of `default` that are there, and what --with gives."""
    taken = [(find or named)(places, name) for name in wanted(names, default)]
    for allocator in taken:
        if allocator.missing and names:
            raise BadChoice(f"--allocators {allocator.name}: {allocator.missing}")
        if allocator.missing:
            say(f"{allocator.name} is left out: {allocator.missing}")
    taken = [allocator for allocator in taken if not allocator.missing]
    taken += [given(places, text, [a.name for a in taken]) for text in with_]
    if not taken:
        raise BadChoice("no allocator is left")
    return list({allocator.name: allocator for allocator in taken}.values())


def require_used(places, chosen, program):
    """BadChoice where the program does not use an allocator's malloc when it is preloaded."""
    for allocator in chosen:
        environment = {**execute.clean_environment(), **dict(allocator.environment)}
        objects, ending = verify.malloc_objects(places, allocator.path, [program, "--help"], environment)
        if ending or set(objects.values()) != {allocator.path}:
            raise BadChoice(f"{allocator.name}: its malloc is not what {os.path.basename(program)} uses when it is preloaded"
                            + f": it {ending}" * bool(ending))


# ---- page managers ----


def page_managers(places, nbbs=None) -> list[Allocator]:
    """The contenders of the cases of the family "pages": what the programs built from bench/workloads/pages offer.

    `nbbs` is the path of a shared object built from NBBS's public code; without it the row states its absence."""
    program = os.path.join(tree.workloads(places), PAGES_PROGRAM)
    offered = _offered(program)
    managers = []
    for name in PAGE_MANAGERS:
        missing = ""
        if offered is None:
            missing = f"not built: {_BUILD}"
        elif name not in offered:
            missing = "not built: this page manager does not exist yet"
        managers.append(Allocator(name, name, Kind.PAGES, missing=missing))
    if nbbs is None:
        managers.append(Allocator(NBBS, "", Kind.PAGES, missing="not here: build its public code (of January 2019, the paper's) and give --nbbs PATH"))
    elif not os.path.isfile(nbbs):
        raise BadChoice(f"--nbbs {nbbs}: there is no such file")
    else:
        managers.append(Allocator(NBBS, f"nbbs:{os.path.realpath(nbbs)}", Kind.PAGES))
    return managers


def _offered(program):
    """Names of the page managers that the program has; None when it is not built or does not say."""
    try:
        run = subprocess.run(
            [program, "--manager", "list"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, timeout=600, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.split() if run.returncode == 0 else None
