"""`spanalloc bench peers`: builds today's allocators from the sources that crates carry.

Distributions package allocators that are years old. bench/peers/Cargo.toml names crates that carry newer ones' sources,
Cargo.lock their versions and checksums, and cargo fetches and checks them. Each is built as a shared library below
build/peers, with the options of its own release build; build/peers/peers.json then says what there is
(spanalloc_cli/libraries.py reads it), and every command that compares allocators takes them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import typing

from spanalloc_bench import tree, verify
from spanalloc_bench.allocators import BadChoice
from spanalloc_cli import libraries

MANIFEST = os.path.join(tree.SOURCE, "bench", "peers", "Cargo.toml")
OLDEST_CARGO = (1, 78)  # reads this lock file
# What every preloaded malloc is built with: the short way to its thread's data, and no call of malloc made of malloc.
SHARED = ("-fPIC", "-shared", "-fvisibility=hidden", "-ftls-model=initial-exec", "-fno-builtin-malloc")


class Failed(Exception):
    """A peer could not be built; the text says why and where its log is."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """One allocator to build. `version` reads it from the sources, `build` makes a shared library of them."""

    family: str  # its name without the version
    crate: str
    folder: str  # of the sources, in the crate
    version: typing.Callable[[str, str], str]       # (crate's version, sources) -> its own version
    build: typing.Callable[["Workshop", str], str]    # (workshop, sources) -> the library
    replaces: str = ""  # what the system's package of the same allocator is called
    environment: tuple[tuple[str, str], ...] = ()   # settings that it needs to run as it is meant to
    note: str = ""


class Workshop:
    """A folder in which one peer is built; everything that its commands print goes to one log."""

    def __init__(self, folder):
        self.folder = folder
        self.log = os.path.join(folder, "build.log")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)

    def run(self, *command, cwd=None, env=None):
        with open(self.log, "a", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            try:
                ended = subprocess.run(
                    command, cwd=cwd or self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
                )
            except FileNotFoundError:
                raise Failed(f"{command[0]} is not installed") from None
        if ended.returncode:
            raise Failed(f"{os.path.basename(command[0])} failed; its output is in {self.log}")

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def library(self, name, *command):
        """What a compiler makes of its command, as NAME here; returns where that is."""
        self.run(*command, "-o", self.path(name))
        return self.path(name)


# ---- how each is built ----


def _match(pattern, *path):
    with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
        found = re.search(pattern, file.read())
    if not found:
        raise Failed(f"{os.path.join(*path)} does not tell the version")
    return found.group(1)


def _mimalloc_version(_, sources):
    number = _match(r"define MI_MALLOC_VERSION\s+(\d+)", sources, "include", "mimalloc.h")
    return f"{int(number[:-4])}.{int(number[-4:-2])}.{int(number[-2:])}"


def _mimalloc(shop, sources):
    return shop.library(
        "libmimalloc.so", "gcc", "-std=gnu11", "-O3", "-DNDEBUG", "-DMI_BUILD_RELEASE", "-DMI_MALLOC_OVERRIDE",
        "-DMI_SHARED_LIB", "-DMI_SHARED_LIB_EXPORT", *SHARED, "-I", os.path.join(sources, "include"),
        os.path.join(sources, "src", "static.c"), "-lpthread")


def _rpmalloc(shop, sources):
    return shop.library(
        "librpmalloc.so", "gcc", "-std=gnu11", "-O3", "-DNDEBUG", "-D_GNU_SOURCE=1", "-DENABLE_OVERRIDE=1",
        "-DENABLE_PRELOAD=1", *SHARED, os.path.join(sources, "rpmalloc", "rpmalloc.c"), "-lpthread", "-ldl")


def _snmalloc(shop, sources):
    shop.run("cmake", "-S", sources, "-B", shop.path("cmake"), "-DCMAKE_BUILD_TYPE=Release", "-DSNMALLOC_BUILD_TESTING=OFF")
    shop.run("cmake", "--build", shop.path("cmake"), "--target", "snmallocshim", "--parallel")
    return shop.path("cmake", "libsnmallocshim.so")


def _jemalloc_version(crate_version, _):
    return re.search(r"\+(\d+\.\d+\.\d+)", crate_version).group(1)


def _jemalloc(shop, sources):
    crate = os.path.dirname(sources)
    shutil.copytree(sources, shop.path("src"))
    shutil.copy(os.path.join(crate, "configure", "configure"), shop.path("src", "configure"))
    version = os.path.basename(crate).partition("+")[2]
    shop.run("sh", "./configure", f"--with-version={version}", "--disable-doc", cwd=shop.path("src"))
    shop.run("make", f"-j{len(os.sched_getaffinity(0))}", "build_lib_shared", cwd=shop.path("src"))
    return shop.path("src", "lib", "libjemalloc.so.2")


def _rpmalloc_version(_, sources):
    return _match(r"^(\d+\.\d+\.\d+)", sources, "CHANGELOG")


# What programs call, and what it is called in the archive (TCMallocInternal...).
_TCMALLOC_NAMES = {
    "malloc": "Malloc", "free": "Free", "calloc": "Calloc", "realloc": "Realloc", "reallocarray": "ReallocArray",
    "memalign": "Memalign", "aligned_alloc": "AlignedAlloc", "posix_memalign": "PosixMemalign", "valloc": "Valloc",
    "pvalloc": "Pvalloc", "malloc_usable_size": "MallocSize", "malloc_trim": "MallocTrim", "free_sized": "FreeSized",
    "free_aligned_sized": "FreeAlignedSized",
    "_Znwm": "New", "_Znam": "NewArray", "_ZnwmRKSt9nothrow_t": "NewNothrow", "_ZnamRKSt9nothrow_t": "NewArrayNothrow",
    "_ZnwmSt11align_val_t": "NewAligned", "_ZnamSt11align_val_t": "NewArrayAligned",
    "_ZnwmSt11align_val_tRKSt9nothrow_t": "NewAlignedNothrow",
    "_ZnamSt11align_val_tRKSt9nothrow_t": "NewArrayAlignedNothrow",
    "_ZdlPv": "Delete", "_ZdaPv": "DeleteArray", "_ZdlPvm": "DeleteSized", "_ZdaPvm": "DeleteArraySized",
    "_ZdlPvRKSt9nothrow_t": "DeleteNothrow", "_ZdaPvRKSt9nothrow_t": "DeleteArrayNothrow",
    "_ZdlPvSt11align_val_t": "DeleteAligned", "_ZdaPvSt11align_val_t": "DeleteArrayAligned",
    "_ZdlPvmSt11align_val_t": "DeleteSizedAligned", "_ZdaPvmSt11align_val_t": "DeleteArraySizedAligned",
    "_ZdlPvSt11align_val_tRKSt9nothrow_t": "DeleteAlignedNothrow",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t": "DeleteArrayAlignedNothrow",
}


def _tcmalloc(shop, _):
    """Cargo builds Google's sources into an archive of functions with names of their own; the linker gives these the
    names that programs call."""
    shop.run(
        "cargo", "build", "--release", "--locked", "--package", "libtcmalloc-sys", "--manifest-path", MANIFEST,
        "--target-dir", shop.path("cargo"),
    )
    archives = [
        os.path.join(folder, name) for folder, _, names in os.walk(shop.path("cargo", "release", "build")) for name in names
        if name.startswith("lib") and name.endswith(".a") and "tcmalloc" in folder
    ]
    if not archives:
        raise Failed(f"cargo left no archive; its output is in {shop.log}")
    names = [f"-Wl,--defsym={name}=TCMallocInternal{theirs}" for name, theirs in _TCMALLOC_NAMES.items()]
    return shop.library("libtcmalloc-google.so", "g++", "-shared", "-Wl,--whole-archive", *archives,
                        "-Wl,--no-whole-archive", *names, "-lpthread")


PEERS = (
    Peer("mimalloc", "libmimalloc-sys", "c_src/mimalloc/v2", _mimalloc_version, _mimalloc, replaces="mimalloc"),
    Peer("mimalloc", "libmimalloc-sys", "c_src/mimalloc/v3", _mimalloc_version, _mimalloc, replaces="mimalloc"),
    Peer("snmalloc", "snmalloc-sys", "upstream", lambda crate, _: crate, _snmalloc, replaces="snmalloc"),
    Peer("jemalloc", "tikv-jemalloc-sys", "jemalloc", _jemalloc_version, _jemalloc, replaces="jemalloc"),
    Peer("rpmalloc", "rpmalloc-sys", "rpmalloc", _rpmalloc_version, _rpmalloc, replaces="rpmalloc"),
    # (The system's tcmalloc is gperftools', another allocator.)
    Peer("tcmalloc-google", "libtcmalloc-sys", "c_src/tcmalloc", lambda crate, _: crate, _tcmalloc,
         environment=(("GLIBC_TUNABLES", "glibc.pthread.rseq=0"),),
         note="per CPU only where the C library leaves it rseq: GLIBC_TUNABLES=glibc.pthread.rseq=0 is set for it"),
)
FAMILIES = tuple(dict.fromkeys(peer.family for peer in PEERS))


# ---- sources ----


def _cargo():
    """The cargo client's path. BadChoice when there is none that reads the lock file."""
    path = shutil.which("cargo")
    if path is None:
        raise BadChoice(
            "peers are fetched by cargo, which is not on the PATH; with one of version "
            f"{'.'.join(map(str, OLDEST_CARGO))} or newer they can be built. Without them the suite takes what is installed."
        )
    text = subprocess.run([path, "--version"], stdout=subprocess.PIPE, text=True, check=False).stdout
    found = re.match(r"cargo (\d+)\.(\d+)", text)
    if not found or tuple(map(int, found.groups())) < OLDEST_CARGO:
        raise BadChoice(f"{path} is {text.strip() or 'not cargo'}; {'.'.join(map(str, OLDEST_CARGO))} or newer is needed")
    return path


def _fetch(cargo, say):
    """{crate: (version, folder, checksum)} of what the lock file names, fetched and checked by cargo."""
    say("fetching the sources with cargo")
    for command in (["fetch", "--locked"], ["metadata", "--locked", "--offline", "--format-version", "1"]):
        run = subprocess.run(
            [cargo, *command, "--manifest-path", MANIFEST], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, check=False,
        )
        if run.returncode:
            why = (run.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise BadChoice(f"cargo could not fetch the sources ({why.strip()}); what was built before stays")
    checksums = _checksums()
    return {
        package["name"]: (package["version"], os.path.dirname(package["manifest_path"]), checksums.get(package["name"], ""))
        for package in json.loads(run.stdout)["packages"]
    }


def _checksums():
    with open(os.path.join(os.path.dirname(MANIFEST), "Cargo.lock"), encoding="utf-8") as file:
        blocks = file.read().split("[[package]]")
    found = {}
    for block in blocks:
        fields = dict(re.findall(r'^(name|checksum) = "([^"]*)"', block, re.MULTILINE))
        if "checksum" in fields:
            found[fields["name"]] = fields["checksum"]
    return found


# ---- the command ----


def install(places, name, library) -> str:
    """Puts a library that was built into its place; returns that. Failed where it does not take malloc's place."""
    path = os.path.join(libraries.PEERS_FOLDER, f"lib{name}.so")
    shutil.copy(library, path)
    problem = verify.why_no_malloc(places, path)
    if problem:
        os.remove(path)
        raise Failed(problem)
    return path


def workshop(name) -> Workshop:
    return Workshop(os.path.join(libraries.PEERS_FOLDER, "work", name))


def build_each(chosen, entry_of, entries, say) -> int:
    """Builds what is chosen, {it: its name}, and puts `entry_of(it, how far that is)` beside the `entries` there are. Returns
    how many could not be built."""
    failed = 0
    for number, (each, name) in enumerate(chosen.items(), 1):
        try:
            entry = entry_of(each, f"[{number}/{len(chosen)}]")
        except (Failed, OSError) as error:
            say(f"    {name}: not built: {error}")
            failed += 1
            continue
        entries = sorted([*(e for e in entries if e["name"] != entry["name"]), entry], key=lambda e: e["name"])
        libraries.write_peers(entries)  # after each: an interrupted build keeps what is there
    return failed


def command(places, only, say):
    """Builds the peers whose family or name is in `only` (all, if empty). Returns how many could not be built."""
    unknown = [name for name in only if name not in FAMILIES]
    if unknown:
        raise BadChoice(f"no peer is called {unknown[0]}; there are {', '.join(FAMILIES)}")
    crates = _fetch(_cargo(), say)
    chosen = [peer for peer in PEERS if not only or peer.family in only]
    kept = [entry for entry in libraries.built_peers()
            if entry.get("original") or (only and entry["family"] not in only)]

    def entry_of(peer, said):
        crate_version, folder, checksum = crates[peer.crate]
        sources = os.path.join(folder, *peer.folder.split("/"))
        name = f"{peer.family}-{peer.version(crate_version, sources)}"
        say(f"{said} {name}")
        library = peer.build(workshop(name), sources)
        return {
            "name": name, "family": peer.family, "replaces": peer.replaces, "path": install(places, name, library),
            "crate": peer.crate, "crate_version": crate_version, "checksum": checksum, "sources": sources,
            "environment": [list(pair) for pair in peer.environment], "note": peer.note,
        }

    return build_each({peer: peer.family for peer in chosen}, entry_of, kept, say)
