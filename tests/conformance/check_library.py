#!/usr/bin/env python3
"""Checks a built library from outside: exports, dependencies, thread-local storage, size, archive members.

usage: check_library.py shared LIBRARY
       check_library.py archive ARCHIVE

Prints what is wrong, one line each; exit code 0 when nothing is. Tools are taken from the environment
variables NM, READELF, STRIP and AR when they are set.
"""
import os
import re
import subprocess
import sys
import tempfile

MAX_STRIPPED_BYTES = 216 * 1000
MAX_TLS_BYTES = 1024

FAMILY = """
malloc calloc realloc reallocarray free free_sized free_aligned_sized cfree posix_memalign aligned_alloc memalign
valloc pvalloc malloc_usable_size malloc_trim mallinfo mallinfo2 mallopt malloc_info malloc_stats
__libc_malloc __libc_calloc __libc_realloc __libc_free __libc_memalign __libc_valloc __libc_pvalloc __posix_memalign
""".split()
SP = """
sp_malloc sp_calloc sp_realloc sp_free sp_aligned_alloc sp_posix_memalign sp_usable_size sp_owns sp_trim sp_stats
sp_version sp_engine_name
""".split()
# In an archive apart from the family: who uses them alone gets no malloc.
SP_PAGES = """
sp_pages_create sp_pages_create_over sp_pages_metadata_bytes sp_pages_destroy sp_pages_status_text sp_pages_allocate
sp_pages_allocate_aligned sp_pages_free sp_pages_grow sp_pages_shrink sp_pages_size_of sp_pages_region sp_pages_extend
sp_pages_purge sp_pages_walk sp_pages_stats sp_pages_after_fork
""".split()


def operators():
    """Mangled names of every replaceable operator new and delete (Itanium C++ ABI, 64-bit size_t)."""
    nothrow, align, size = "RKSt9nothrow_t", "St11align_val_t", "m"
    names = []
    for new in ("_Znw", "_Zna"):
        names += [new + size + rest for rest in ("", nothrow, align, align + nothrow)]
    for delete in ("_ZdlPv", "_ZdaPv"):
        names += [delete + rest for rest in ("", size, nothrow, align, size + align, align + nothrow)]
    return names


TOGETHER = set(FAMILY + SP + operators())
ARCHIVED = TOGETHER | set(SP_PAGES)
# A static program has libc's dlopen: the archive must not have another.
SHARED_ONLY = {"dlopen"}
EXPORTS = ARCHIVED | SHARED_ONLY


def run(tool, *arguments):
    command = [os.environ.get(tool.upper()) or tool, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def defined_symbols(path, *flags):
    """(name, type letter) of each symbol that nm shows as defined."""
    lines = (line.split() for line in run("nm", "--defined-only", *flags, path).splitlines())
    return {(fields[2].split("@")[0], fields[1]) for fields in lines if len(fields) == 3}


def padding_of_large_pages(path):
    """Bytes between what is loaded, which only bring each segment to a page of its own where pages may have 64 KiB, as
    on 64-bit Arm: nearly such a page, that nobody reads. 0 where segments are aligned to 4 KiB: there all counts."""
    loaded = [line.split() for line in run("readelf", "-lW", path).splitlines() if line.split()[:1] == ["LOAD"]]
    if max(int(fields[-1], 16) for fields in loaded) < 0x10000:
        return 0
    places = [(int(fields[1], 16), int(fields[4], 16)) for fields in loaded]  # offset and size in the file
    return sum(max(0, behind[0] - sum(before)) for before, behind in zip(places, places[1:]))


def check_shared(path):
    problems = []
    exported = {name for name, letter in defined_symbols(path, "-D") if letter != "A"}
    problems += [f"exports {name}, which is not part of the interface" for name in sorted(exported - EXPORTS)]
    problems += [f"does not export {name}" for name in sorted(EXPORTS - exported)]

    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", path))
    allowed = re.compile(r"libc\.so\.6|ld-linux-.*\.so\.\d")
    problems += [f"needs {name}: only the C library is allowed" for name in needed if not allowed.fullmatch(name)]
    if "libc.so.6" not in needed:
        problems.append("does not name libc.so.6: this check would find no dependency")

    tls = [int(line.split()[5], 16) for line in run("readelf", "-lW", path).splitlines()
           if line.split()[:1] == ["TLS"]]
    if sum(tls) > MAX_TLS_BYTES:
        problems.append(f"has {sum(tls)} bytes of thread-local storage, limit {MAX_TLS_BYTES}")
    if tls and re.search(r"DTPMOD|TLSDESC", run("readelf", "-rW", path)):
        problems.append("reaches its thread-local storage by calls, not by the initial-exec model")

    with tempfile.TemporaryDirectory() as folder:
        stripped = os.path.join(folder, "stripped.so")
        run("strip", "-o", stripped, path)
        size = os.path.getsize(stripped) - padding_of_large_pages(stripped)
    if size > MAX_STRIPPED_BYTES:
        problems.append(f"has {size} bytes stripped, limit {MAX_STRIPPED_BYTES}")
    print(f"{os.path.basename(path)}: {len(exported)} exports, needs {' '.join(needed)}, "
          f"{sum(tls)} bytes of TLS, {size} bytes stripped")
    return problems


def check_archive(path):
    """One member defines the family, another the page manager: a static link takes all of either or nothing."""
    definers = {}
    with tempfile.TemporaryDirectory() as folder:
        archive = os.path.abspath(path)
        members = run("ar", "t", archive).split()
        subprocess.run([os.environ.get("AR") or "ar", "x", archive], check=True, cwd=folder)
        for member in members:
            for name, letter in defined_symbols(os.path.join(folder, member)):
                if letter in "TWV" and name in EXPORTS:
                    definers.setdefault(name, []).append(member)
    problems = [f"no member defines {name}" for name in sorted(ARCHIVED - set(definers))]
    problems += [f"{member} defines {name}, which is for shared libraries only"
                 for name in sorted(SHARED_ONLY) for member in definers.get(name, ())]
    homes = {part: {tuple(definers.get(name, ())) for name in names}
             for part, names in (("family", TOGETHER), ("page manager", SP_PAGES))}
    problems += [f"the {part} is spread over members: {sorted(found)}" for part, found in homes.items()
                 if len(found) != 1 or any(len(home) != 1 for home in found)]
    if homes["family"] & homes["page manager"]:
        problems.append("the page manager comes with the family")
    print(f"{os.path.basename(path)}: {len(members)} members, "
          + ", ".join(f"{part} in {sorted(found)}" for part, found in homes.items()))
    return problems


def main(arguments):
    checks = {"shared": check_shared, "archive": check_archive}
    if len(arguments) != 2 or arguments[0] not in checks:
        print(__doc__, file=sys.stderr)
        return 2
    problems = checks[arguments[0]](arguments[1])
    for problem in problems:
        print(f"{arguments[1]}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
