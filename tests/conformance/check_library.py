#!/usr/bin/env python3
"""Checks a built library from outside: exports, dependencies, thread-local storage, size, archive members.

usage: check_library.py [--update] shared LIBRARY
       check_library.py [--update] archive ARCHIVE

The folder abi lists what libraries export: shared.txt for all shared ones, NAME.txt for the archive NAME. --update writes
that list anew from the library. needed.txt lists, with a reason each, what shared ones may take from elsewhere.
Prints what is wrong, one line each; exit code 0 when nothing is. Tools are taken from the environment
variables NM, READELF and STRIP when they are set.
"""
import os
import re
import subprocess
import sys
import tempfile

MAX_STRIPPED_BYTES, MAX_STRIPPED_BYTES_BY_CLANG = 346 * 1000, 357 * 1000
MAX_TLS_BYTES = 1024
LISTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "abi")
LIST_HEAD = """\
# What {what} exports, sorted. Names may be added. One that goes, or gets another meaning, breaks programs: that takes a
# new major version, which sonames end with, and an entry in CHANGELOG.md.
# Written by tests/conformance/check_library.py --update; compared by conformance.library.
"""
SONAME = "soname "
# In archives apart from everything else: who uses the page manager alone gets no heap, and who uses malloc alone none of
# his own.
PAGES = "sp_pages_"
HEAPS = "sp_heap_"
# What is defined by another public function is apart, too: who has a malloc of his own gets the former without ours.
C_FORWARDS = {"reallocarray", "free_sized", "free_aligned_sized", "cfree"}
OPERATOR = re.compile(r"_Z(nw|na|dl|da)")
# operator new, delete and their aligned forms; and the nothrow forms of new, which only call where a program has its own.
BASE_OPERATOR = re.compile(r"_Zn.m.*RKSt9nothrow_t|_Znwm(St11align_val_t)?|_ZdlPv(St11align_val_t)?")


def run(tool, *arguments):
    command = [os.environ.get(tool.upper()) or tool, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def listed(path):
    with open(path, encoding="utf-8") as file:
        return {line.strip() for line in file if line.strip() and not line.startswith("#")}


def write_list(path, what, names):
    with open(path, "w", encoding="utf-8") as file:
        file.write(LIST_HEAD.format(what=what))
        file.writelines(f"{name}\n" for name in sorted(names, key=lambda name: (not name.startswith(SONAME), name)))


def compare(found, list_path, update, what):
    if update:
        write_list(list_path, what, found)
    wanted, name = listed(list_path), os.path.basename(list_path)
    problems = [f"exports {symbol}, which {name} does not list" for symbol in sorted(found - wanted)]
    problems += [f"does not export {symbol}, which {name} lists" for symbol in sorted(wanted - found)]
    if problems:
        problems.append(f"if that is meant: check_library.py --update writes {name}; its first lines say what else to do")
    return problems


def exported_symbols(path):
    """What nm shows a shared library to export; versions (A) are no symbols."""
    lines = (line.split() for line in run("nm", "-D", "--defined-only", path).splitlines())
    return {fields[2].split("@")[0] for fields in lines if len(fields) == 3 and fields[1] != "A"}


def needed_symbols(path):
    """What a shared library leaves for others to define."""
    return {line.split()[-1].split("@")[0] for line in run("nm", "-D", "--undefined-only", path).splitlines()}


def reasons(path):
    """{name: reason} of needed.txt."""
    return {fields[0]: " ".join(fields[1:]) for fields in map(str.split, sorted(listed(path)))}


def check_needed(needed, why):
    problems = [f"needs {name}, which needed.txt does not list: see its first lines" for name in sorted(needed - set(why))]
    problems += [f"needed.txt gives no reason for {name}" for name in sorted(why) if not why[name]]
    if "mmap" not in needed:
        problems.append("does not need mmap: this check would find nothing")
    return problems


def soname(path):
    found = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "-dW", path))
    return found.group(1) if found else ""


def archived_symbols(path):
    """{name: members that define it} of what an archive shows a program: not hidden; and weak only what a program may
    have itself, else inline functions of the standard library are (builds that do not optimise have some). Of these
    the weak ones, too."""
    definers, weak, member = {}, set(), None
    for line in run("readelf", "-sW", path).splitlines():
        if line.startswith("File: "):
            member = line.rpartition("(")[2].rstrip(")")
        fields = line.split()
        if len(fields) != 8 or fields[5] != "DEFAULT" or fields[6] == "UND":
            continue
        if fields[4] == "GLOBAL" or (fields[4] == "WEAK" and may_be_the_programs(fields[7])):
            definers.setdefault(fields[7], []).append(member)
        if fields[4] == "WEAK":
            weak.add(fields[7])
    return definers, weak & set(definers)


def may_be_the_programs(symbol):
    return symbol in C_FORWARDS or OPERATOR.match(symbol) is not None


def part_of(symbol):
    if symbol.startswith(PAGES):
        return "page manager"
    if symbol.startswith(HEAPS):
        return "heaps of a program's own"
    if symbol in C_FORWARDS:
        return "family by other functions"
    if OPERATOR.match(symbol) and not BASE_OPERATOR.fullmatch(symbol):
        return "operators by other operators"
    return "heap"


def padding_of_large_pages(path):
    """Bytes between what is loaded, which only bring each segment to a page of its own where pages may have 64 KiB, as
    on 64-bit Arm: nearly such a page, that nobody reads. 0 where segments are aligned to 4 KiB: there all counts."""
    loaded = [line.split() for line in run("readelf", "-lW", path).splitlines() if line.split()[:1] == ["LOAD"]]
    if max(int(fields[-1], 16) for fields in loaded) < 0x10000:
        return 0
    places = [(int(fields[1], 16), int(fields[4], 16)) for fields in loaded]  # offset and size in the file
    return sum(max(0, behind[0] - sum(before)) for before, behind in zip(places, places[1:]))


def check_shared(path, update):
    exported, name = exported_symbols(path), soname(path)
    promised = exported | {f"{SONAME}*.so{name.partition('.so')[2]}"}
    problems = compare(promised, os.path.join(LISTS, "shared.txt"), update, "every shared library")
    if not os.path.basename(os.path.realpath(path)).startswith(f"{name}."):
        problems.append(f"has soname {name}, which is not its file's name without the version")

    problems += check_needed(needed_symbols(path), reasons(os.path.join(LISTS, "needed.txt")))
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
    by_clang = "clang" in run("readelf", "-p", ".comment", path)
    limit = MAX_STRIPPED_BYTES_BY_CLANG if by_clang else MAX_STRIPPED_BYTES
    if size > limit:
        problems.append(f"has {size} bytes stripped, limit {limit}")
    print(f"{os.path.basename(path)}: {len(exported)} exports, needs {' '.join(needed)}, "
          f"{sum(tls)} bytes of TLS, {size} bytes stripped")
    return problems


def check_archive(path, update):
    """One member defines the heap's functions, another the page manager's: a static link takes all of either or nothing.
    What calls another public function stands apart from both; what a program may have itself gives way to its own."""
    (definers, weak), name = archived_symbols(path), os.path.basename(path)
    problems = compare(set(definers), os.path.join(LISTS, f"{name}.txt"), update, name)
    homes = {}
    for symbol, members in definers.items():
        homes.setdefault(part_of(symbol), set()).add(tuple(members))
    problems += [f"defines {symbol} so that a program cannot have its own" for symbol in sorted(definers)
                 if may_be_the_programs(symbol) and symbol not in weak]
    problems += [f"the {part} is spread over members: {sorted(found)}" for part, found in homes.items()
                 if len(found) != 1 or any(len(home) != 1 for home in found)]
    if len(set().union(*homes.values())) < len(homes):
        problems.append("parts that stand apart share a member")
    print(f"{name}: {len(definers)} exports, "
          + ", ".join(f"{part} in {sorted(found)}" for part, found in homes.items()))
    return problems


def main(arguments):
    checks = {"shared": check_shared, "archive": check_archive}
    update = arguments[:1] == ["--update"]
    rest = arguments[update:]
    if len(rest) != 2 or rest[0] not in checks:
        print(__doc__, file=sys.stderr)
        return 2
    kind, path = rest
    problems = checks[kind](path, update)
    for problem in problems:
        print(f"{path}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
