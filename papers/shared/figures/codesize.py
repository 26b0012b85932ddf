"""Code sizes: machine code of the libraries; bytes and lines of source of ours, and of those that were built here from
their own (`spanalloc bench peers`, with --originals or without)."""

from __future__ import annotations

import os
import re
import struct

from spanalloc_bench import tree
from spanalloc_cli import libraries

TEXT, BYTES, LINES = "machine code, bytes", "source, bytes", "source, lines"
# Of an allocator with a file a module: how many there are, the share of them that have at most 500 lines.
MODULES, SHORT_MODULES = "modules", "modules of at most 500 lines, percent"
SHORT_LINES = 500
_SECTION_HEADERS, _ENTRY = struct.Struct("<QIHHHHHH"), struct.Struct("<IIQQQQIIQQ")
_INCLUDE_FOLDERS = (os.path.join(tree.SOURCE, "src"), tree.SOURCE)
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# Debian's libtbbmalloc_proxy only passes calls on.
_BEHIND = {"libtbbmalloc_proxy.so": "libtbbmalloc.so"}
# What the files of the supermalloc engine hold, by words in their names; the first that fits counts. The paper counts
# constants with the bins, tests with the interface. (Folios hold its medium objects, too, and its lock is everybody's.)
_MODULES = {
    "caches": ("cache", "cpu_slots", "giving_back", "object_list"), "huge objects": ("huge",),
    "medium and large objects": ("large", "big_object"),
    "small objects": ("folio",), "atomicity and locks": ("lock",), "bins": ("bin", "config"),
    "mmap interface": ("chunk_table",), "POSIX interface": ("allocator", "engine", "books", "census"),
}
# Not one of the paper's eight: the engine is judged with locks, and these take their place under another setting only.
SEQUENCES = "restartable sequences"
_SEQUENCES = ("sequence", "rseq")
_SHARED = (os.path.join("sync", "spin_lock.hpp"), os.path.join("os", "rseq.hpp"))
# Of src/api what each library has beside its engine (src/api/CMakeLists.txt); of src/os and src/thread it has all.
_OF_API = ("lib.cpp.in", "new_handler.cpp", "malloc_forwards.cpp", "operator_forwards.cpp", "operators_elsewhere.cpp",
           "dlopen.cpp", "heaps_api.cpp", "pages_api_os.cpp")
SUPERMALLOC = "supermalloc"
SUPERMALLOC_PARTS = tuple(f"lines: {name}" for name in _MODULES)
CHARACTERS = "characters: "  # and what SUPERMALLOC_PARTS have behind "lines: "
# The same of SuperMalloc's own files, those that each module of Figure 14 has most of. What is in none is not part of that
# figure: counters, checks, the random numbers.
_ORIGINAL_MODULES = {
    "caches": ("cache.cc",), "huge objects": ("huge_malloc.cc",), "medium and large objects": ("large_malloc.cc",),
    "small objects": ("small_malloc.cc",), "atomicity and locks": ("atomically.h",),
    "bins": ("objsizes.cc",), "mmap interface": ("makechunk.cc",), "POSIX interface": ("malloc.cc",),
}
ORIGINAL = "supermalloc-original"
_SOURCE = (".c", ".cc", ".cpp", ".h", ".hpp")
# Of a peer that comes as a crate: its files that are the allocator, in the sources that the crate carries.
_CRATE_FOLDERS = {"jemalloc": ("src", os.path.join("include", "jemalloc"))}


def text_bytes(path) -> int | None:
    """Size of .text of a 64-bit little-endian ELF file; None for anything else."""
    try:
        with open(path, "rb") as file:
            head = file.read(64)
            if head[:6] != b"\x7fELF\x02\x01":
                return None
            offset, _, _, _, _, size, count, names = _SECTION_HEADERS.unpack_from(head, 0x28)
            file.seek(offset)
            entries = [_ENTRY.unpack_from(file.read(size)) for _ in range(count)]
            file.seek(entries[names][4])
            strings = file.read(entries[names][5])
    except (OSError, struct.error, IndexError):
        return None
    for entry in entries:
        if strings[entry[0]:strings.index(b"\0", entry[0])] == b".text":
            return entry[5]
    return None


def _implementation(path):
    folder, name = os.path.split(path)
    for proxy, behind in _BEHIND.items():
        if name.startswith(proxy):
            found = sorted(f for f in os.listdir(folder) if f.startswith(behind))
            return os.path.join(folder, found[0]) if found else path
    return path


def _closure(roots):
    """The files that `roots` are made of: includes in quotes, relative to src/, to the tree or to the including file."""
    seen, wanted = set(), [os.path.join(folder, root) for root in roots for folder in _INCLUDE_FOLDERS]
    while wanted:
        path = os.path.realpath(wanted.pop())
        if path in seen or not os.path.isfile(path):
            continue
        seen.add(path)
        with open(path, encoding="utf-8") as file:
            for name in _INCLUDE.findall(file.read()):
                wanted += [os.path.join(folder, name) for folder in (*_INCLUDE_FOLDERS, os.path.dirname(path))]
    return seen


def library_files(name) -> set[str]:
    """The source files that a library of ours is made of."""
    roots = [os.path.join("api", file) for file in _OF_API]
    for folder in ("os", "thread"):
        roots += [os.path.join(folder, file) for file in os.listdir(os.path.join(_INCLUDE_FOLDERS[0], folder))
                  if file.endswith(".cpp")]
    return _closure([*roots, os.path.join(libraries.LIBRARIES[name].folder, "engine.hpp")])


def _count_lines(paths):
    total = 0
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            total += sum(1 for _ in file)
    return total


def _count_bytes(paths):
    return sum(os.path.getsize(path) for path in paths)


def _below(folder):
    """Source files in the folder and what is below it, or the one file that it is."""
    if os.path.isfile(folder):
        return [folder]
    found = (os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.endswith(_SOURCE) and os.sep + ".git" + os.sep not in path)


def fetched_sources(name):
    """The source files of an allocator that was built here from its own; [] where it was not."""
    for entry in libraries.built_peers():
        folders = entry.get("lines_of") or _CRATE_FOLDERS.get(entry["family"])
        if entry["family"] == name and entry.get("sources") and folders:
            found = [path for folder in folders for path in _below(os.path.join(entry["sources"], folder))]
            if found:
                return found
    return []


def sizes(places, allocators):
    """{(allocator, TEXT, BYTES or LINES): number}; glibc is left out, its library holds the whole C library."""
    found = {}
    for allocator in allocators:
        files = fetched_sources(allocator.name)
        if files:
            found[allocator.name, BYTES], found[allocator.name, LINES] = _count_bytes(files), _count_lines(files)
        if allocator.missing or allocator.name == "glibc":
            continue
        size = text_bytes(_implementation(allocator.path))
        if size:
            found[allocator.name, TEXT] = size
        if allocator.name in libraries.SHIPPED_CONFIGS:
            files = library_files(allocator.name)
            found[allocator.name, BYTES], found[allocator.name, LINES] = _count_bytes(files), _count_lines(files)
    return found


def supermalloc_files():
    """{PART: paths} of the engine's sources; under None what is in no part."""
    folder = os.path.join(tree.SOURCE, "papers", "supermalloc", "engine")
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".hpp")]
    found = {}
    for path in (*paths, *(os.path.join(tree.SOURCE, "src", name) for name in _SHARED)):
        name = os.path.basename(path)
        parts = {**_MODULES, SEQUENCES: _SEQUENCES}
        part = next((part for part, words in parts.items() if any(word in name for word in words)), None)
        found.setdefault(part, []).append(path)
    return found


def _original_files():
    """{PART: paths} of SuperMalloc's own program, if it was built here."""
    by_name = {os.path.basename(path): path for path in fetched_sources(ORIGINAL)
               if os.path.basename(os.path.dirname(path)) == "src"}
    return {part: [by_name[name] for name in names] for part, names in _ORIGINAL_MODULES.items()
            if all(name in by_name for name in names)}


def supermalloc_modules(places, allocators):
    """{("supermalloc" or its original, "lines: PART" or "characters: PART"): number}; of Hoard, where its sources were
    fetched, what is said of its modules, which are files."""
    found = {}
    for name, parts in ((SUPERMALLOC, supermalloc_files()), (ORIGINAL, _original_files())):
        for part, paths in parts.items():
            if part:
                found[name, f"lines: {part}"] = _count_lines(paths)
                found[name, CHARACTERS + part] = _count_bytes(paths)
    modules = fetched_sources("hoard")
    if modules:
        short = sum(_count_lines([path]) <= SHORT_LINES for path in modules)
        found["hoard", MODULES], found["hoard", SHORT_MODULES] = len(modules), 100 * short / len(modules)
    return found
