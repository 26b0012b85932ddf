"""`spanalloc bench peers --originals`: the programs that the papers were measured with, as their authors published them.

They are for the papers' figures: Hoard and DLmalloc, which no system packages, and SuperMalloc's own program beside ours.
No registry carries their sources, so git fetches them from where they are public, each by the name of a commit, which is a
checksum of everything in it; what has another one is not built. (Where a mirror has them, git's own setting
`url.MIRROR.insteadOf` takes them from there.) Each becomes a shared library below build/peers, beside its sources, of which
the figures on code size count the lines. Comparisons that name nobody leave them out.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import typing

from spanalloc_bench import peers
from spanalloc_bench.allocators import BadChoice
from spanalloc_cli import libraries

SOURCES = "sources"  # below a workshop's folder: what was fetched


@dataclasses.dataclass(frozen=True)
class Source:
    """A public repository at one commit, and where in the sources it belongs."""

    address: str
    commit: str
    folder: str = "."


@dataclasses.dataclass(frozen=True)
class Original:
    """A program by the name that the figures know it by. `lines_of`: the folders and files, relative to the sources, that
    it is made of."""

    name: str
    version: str
    sources: tuple[Source, ...]
    build: typing.Callable[[peers.Workshop, str], str]  # (workshop, sources) -> the library
    lines_of: tuple[str, ...]
    note: str = ""

    @property
    def commit(self) -> str:
        return self.sources[0].commit


def _hoard(shop, sources):
    """By the command of its Makefile for x86-64, but for what defines malloc: that uses hooks of a C library of its time. The
    one here is Heap Layers' for systems without them."""
    folders = ("include", "include/util", "include/hoard", "include/superblocks", "Heap-Layers")
    files = ("source/libhoard.cpp", "source/unixtls.cpp", "Heap-Layers/wrappers/wrapper.cpp")
    src = os.path.join(sources, "src")
    return shop.library(
        "libhoard.so", "g++", "-std=gnu++98", "-O3", "-DNDEBUG", "-D_REENTRANT=1", "-w", "-pipe", "-fPIC",
        "-finline-limit=20000", "-finline-functions", "-shared", "-fno-builtin-malloc", "-I", src,
        *(word for name in folders for word in ("-I", os.path.join(src, name))),
        *(os.path.join(src, name) for name in files), "-Wl,-Bsymbolic", _C11, "-ldl", "-lpthread")


def _dlmalloc(shop, sources):
    """With its lock, which it leaves out where nobody asks for it."""
    return shop.library("libdlmalloc.so", "gcc", "-std=gnu11", "-O3", "-DNDEBUG", "-DUSE_LOCKS=1", "-w", "-fPIC", "-shared",
                        "-fno-builtin-malloc", os.path.join(sources, "malloc.c"), _C11, "-lpthread")


# Both are older than C11, whose name for memalign is another, with the same arguments.
_C11 = "-Wl,--defsym=aligned_alloc=memalign"
_SUPERMALLOC = ("malloc", "makechunk", "rng", "huge_malloc", "large_malloc", "small_malloc", "cache", "bassert", "footprint",
                "stats", "futex_mutex", "generated_constants", "has_tsx", "env")
# What it was made of when the paper counted its lines, by hand: in folders beside it lie mutexes that its author has given up.
_PAPERS = "as-counted"  # the folder of these sources
_SUPERMALLOC_LINES = tuple(f"{_PAPERS}/src/{name}" for name in (
    *(f"{name}.cc" for name in ("bassert", "cache", "footprint", "futex_mutex", "huge_malloc", "large_malloc", "makechunk",
                                "malloc", "objsizes", "rng", "small_malloc", "stats")),
    *(f"{name}.h" for name in ("atomically", "bassert", "cpucores", "futex_mutex", "malloc_internal", "rng", "supermalloc",
                               "unit-tests"))))


def _supermalloc(shop, sources):
    """As its Makefile for releases does: first the program that makes the constants. One library for machines with
    hardware transactions and without."""
    src, out = os.path.join(sources, "src"), shop.path("objects")
    os.makedirs(out, exist_ok=True)
    common = ("g++", "-std=c++11", "-O3", "-w", "-pthread", "-fPIC", "-mrtm", "-I", src, "-I", out)
    maker = os.path.join(out, "objsizes")
    shop.run(*common, os.path.join(src, "objsizes.cc"), os.path.join(src, "bassert.cc"), "-o", maker)
    constants = os.path.join(out, "generated_constants")
    with open(f"{constants}.h", "w", encoding="utf-8") as header:
        if subprocess.run([maker, f"{constants}.cc"], stdout=header, check=False).returncode:
            raise peers.Failed("objsizes, the program that makes its constants, failed")
    files = (f"{constants}.cc" if name == "generated_constants" else os.path.join(src, f"{name}.cc") for name in _SUPERMALLOC)
    return shop.library("libsupermalloc.so", *common, "-flto", "-shared", *files, "-ldl")


ORIGINALS = (
    Original(
        "hoard", "3.10",
        (Source("https://github.com/emeryberger/Hoard", "3b847a3bf14f396a8198a6643c49a63a6fdd06b3"),
         Source("https://github.com/emeryberger/Heap-Layers", "32cf7c4b1ebf6241628ea6b46efcf72985086e9b", "src/Heap-Layers")),
        _hoard, ("src/include", "src/source", "src/Heap-Layers"), "the version that SuperMalloc's paper measured",
    ),
    Original(
        "dlmalloc", "2.8.6",
        (Source("https://github.com/DenizThatMenace/dlmalloc", "c48293b68aa8d883d1fa8c285f1e8dab23ca8a2a"),),
        _dlmalloc, ("malloc.c",), "the version that SuperMalloc's paper measured; with one lock",
    ),
    Original(
        "supermalloc-original", "2017-10-25",
        (Source("https://github.com/kuszmaul/SuperMalloc", "709663fb81ba091b0a78058869a644a272f4163d"),
         Source("https://github.com/kuszmaul/SuperMalloc", "c0fd59d1d7d75c07bb4bab8ca5770d0f0437fdc5", _PAPERS)),
        _supermalloc, _SUPERMALLOC_LINES, "its last commit, two years after the paper; without hardware transactions on most machines; its "
        "lines are counted at the commit of November 2014 whose lines the paper gives",
    ),
)
NAMES = tuple(original.name for original in ORIGINALS)


def _git():
    path = shutil.which("git")
    if path is None:
        raise BadChoice("the originals are fetched by git, which is not on the PATH")
    return path


def _fetch(shop, git, original) -> str:
    """The folder of its sources, each repository at its commit."""
    root = shop.path(SOURCES)
    for source in original.sources:
        folder = os.path.join(root, source.folder)
        os.makedirs(folder, exist_ok=True)
        shop.run(git, "init", "--quiet", cwd=folder)
        shop.run(git, "fetch", "--quiet", "--depth", "1", source.address, source.commit, cwd=folder)
        shop.run(git, "checkout", "--quiet", "--detach", source.commit, cwd=folder)
        said = subprocess.run([git, "rev-parse", "HEAD"], cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        if said.stdout.strip() != source.commit:
            raise peers.Failed(f"{source.address} gave {said.stdout.strip()}, not {source.commit}")
    return root


def command(places, only, say):
    """Builds the originals in `only` (all, if empty). Returns how many could not be built."""
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise BadChoice(f"no original is called {unknown[0]}; there are {', '.join(NAMES)}")
    git = _git()

    def entry_of(original, said):
        say(f"{said} {original.name} {original.version}")
        shop = peers.workshop(original.name)
        sources = _fetch(shop, git, original)
        path = peers.install(places, original.name, original.build(shop, sources))
        return {
            "name": original.name, "family": original.name, "replaces": "", "path": path, "original": True,
            "version": original.version, "commit": original.commit, "sources": sources, "lines_of": list(original.lines_of),
            "environment": [], "note": original.note,
        }

    chosen = {original: original.name for original in ORIGINALS if not only or original.name in only}
    return peers.build_each(chosen, entry_of, libraries.built_peers(), say)
