#!/usr/bin/env python3
"""Checks the lists of packages and of tests that may never be skipped, which nobody would miss a line of.

    check_lists.py SOURCE_FOLDER BUILD_FOLDER CTEST

Each line must be as the list's head says. A package that a test of real programs names must be in tests/packages.txt, and
the scripts install nothing. Each expression of tests/never_skipped.txt must match a test of the build folder, or the part
has no tests of ctest's.
"""

import json
import pathlib
import re
import subprocess
import sys

CTEST_PARTS = {"tests", "programs", "clang", "asan", "tsan", "aarch64", "ablations"}
PARTS = CTEST_PARTS | {"build", "counts", "bench", "aarch64-counts"}


def packages(path, complain):
    """Packages by part."""
    found = {part: set() for part in PARTS}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 3 or words[2] not in ("daily", "full") or not set(words[1].split(",")) <= PARTS:
            complain(f"{path}:{number}: not a package, its parts, and daily or full: {line}")
            continue
        for part in words[1].split(","):
            found[part].add(words[0].rpartition(":")[2].replace("@python@", "$version"))
    return found


def check_programs(folder, listed, complain):
    """What the scripts with real programs say that they need."""
    any_need = False
    for path in sorted(folder.glob("*.sh")):
        text = path.read_text(encoding="utf-8")
        needs = re.findall(r"^need \S+ (\S+)$", text, re.MULTILINE)
        needs += re.findall(r"\(Debian: ([\w.$+-]+)\)", text) + re.findall(r"\w+:(php-\w+)", text)
        for package in set(needs) - {"$2"}:
            any_need = True
            if package not in listed:
                complain(f"{path}: {package} is not in tests/packages.txt for the part programs")
        if re.search(r"\bapt(-get)?\b", text):
            complain(f"{path}: a test that installs something")
    if not any_need:
        complain(f"{folder}: no script names a package")


def expressions(path, complain):
    """(line number, parts, expression) of each line."""
    parts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            parts = line.strip("[]").split()
            if not parts or not set(parts) <= PARTS:
                complain(f"{path}:{number}: unknown parts: {line}")
            continue
        expression, _, why = line.partition("  # ")
        if not parts or not why:
            complain(f"{path}:{number}: no part above it, or no reason: {line}")
        yield number, parts, expression.strip()


def main(source, build, ctest):
    troubles = []
    tests = pathlib.Path(source, "tests")
    listed = packages(tests / "packages.txt", troubles.append)
    check_programs(tests / "integration" / "programs", listed["programs"], troubles.append)
    shown = subprocess.run([ctest, "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, check=True, text=True)
    names = [test["name"] for test in json.loads(shown.stdout)["tests"]]
    for number, parts, expression in expressions(tests / "never_skipped.txt", troubles.append):
        pattern = re.compile(expression)
        if set(parts) & CTEST_PARTS and not any(pattern.fullmatch(name) for name in names):
            troubles.append(f"{tests / 'never_skipped.txt'}:{number}: no test has such a name: {expression}")
    print("\n".join(troubles) or "the lists are in order")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
