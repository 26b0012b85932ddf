#!/usr/bin/env python3
"""Checks that the page manager's library stands alone.

usage: check_freestanding.py ARCHIVE PROGRAM SOURCE_TREE

The archive may leave nothing undefined but the four mem functions and defines every sp_pages_ function but
sp_pages_create, and nothing else that a program could clash with; the program that is linked with it, none at
all; and its source reaches no header that a freestanding C++ does not have. Prints what is wrong; exit code 0
when nothing is. The environment variable NM names another nm.
"""
import os
import pathlib
import re
import subprocess
import sys

MEM_FUNCTIONS = {"memcpy", "memmove", "memset", "memcmp"}
HEADERS = {"atomic", "bit", "concepts", "cstddef", "cstdint", "limits", "new", "type_traits", "stddef.h"}
START = "src/api/pages_api_freestanding.cpp"
NEEDS_SYSTEM = {"sp_pages_create"}


def symbols(path, *flags):
    """Names of the symbols that nm shows."""
    command = [os.environ.get("NM") or "nm", "--format=posix", *flags, path]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return {(line.split()[0], line.split()[1]) for line in lines if len(line.split()) >= 2}


def headers(tree):
    """(file, header) of each <header> that START reaches."""
    found, seen, todo = set(), set(), [tree / START]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for bracket, name in re.findall(r'^\s*#\s*include\s*([<"])([^">]+)', path.read_text(encoding="utf-8"),
                                        re.MULTILINE):
            inside = [root / name for root in (tree / "src", tree / "include") if (root / name).is_file()]
            if inside:
                todo += inside
            elif bracket == "<":
                found.add((path.relative_to(tree).as_posix(), name))
    return found


def main(arguments):
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    archive, program, tree = arguments[0], arguments[1], pathlib.Path(arguments[2])
    public = set(re.findall(r"\b(sp_pages_\w+)\(", (tree / "include/spanalloc/spanalloc.h").read_text()))
    undefined = {name for name, _ in symbols(archive, "--undefined-only")}
    # Global and neither weak nor local: those that can clash.
    defined = {name for name, kind in symbols(archive, "--defined-only") if kind in "TDBRC"}
    reached = headers(tree)

    problems = [f"{archive}: needs {name}" for name in sorted(undefined - MEM_FUNCTIONS)]
    problems += [f"{archive}: does not define {name}" for name in sorted(public - NEEDS_SYSTEM - defined)]
    problems += [f"{archive}: defines {name}" for name in sorted(defined - public)]
    problems += [f"{program}: needs {name}" for name, _ in sorted(symbols(program, "--undefined-only"))]
    problems += [f"{path}: includes <{name}>, which is for hosted programs" for path, name in sorted(reached)
                 if name not in HEADERS]
    if not public or not reached:
        problems.append("nothing was found to check")
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(defined)} functions, needs {' '.join(sorted(undefined)) or 'nothing'}, "
          f"headers {' '.join(sorted({name for _, name in reached}))}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
