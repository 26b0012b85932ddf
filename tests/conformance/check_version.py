#!/usr/bin/env python3
"""Compares what names the version with the one in CMakeLists.txt, which is the only place to change it by choice.

usage: check_version.py VERSION SOURCE_TREE

The others cannot take it from there: manual pages, the changelog and the command's package are read where nothing was
built. (The library's and pkg-config's come from the build; other tests look at them.)
"""
import pathlib
import re
import sys


def named(path, pattern):
    """What the first line that fits names; None where none does."""
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return match and match.group(1)


def main(arguments):
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    version, source = arguments[0], pathlib.Path(arguments[1])
    pages = sorted((source / "docs" / "man").glob("*.[1-9]"))
    found = {page: named(page, r'^\.TH .* "spanalloc ([^" ]*)" "') for page in pages}
    command, changes = source / "tools" / "spanalloc_cli" / "__init__.py", source / "CHANGELOG.md"
    found[command] = named(command, r'^VERSION = "(.*)"$')
    found[changes] = named(changes, r"^## ([0-9.]+)")
    wrong = {path: text for path, text in found.items() if text != version}
    for path, text in wrong.items():
        print(f"{path.relative_to(source)} names {text}, CMakeLists.txt {version}", file=sys.stderr)
    print(f"{len(found)} files name version {version}" if not wrong else f"{len(wrong)} of {len(found)} files differ")
    return 1 if wrong or not pages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
