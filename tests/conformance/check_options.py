#!/usr/bin/env python3
"""Compares the environment options that the sources read with those that the man page documents.

usage: check_options.py MAN_PAGE SOURCE_FOLDER...
"""
import pathlib
import re
import sys


def main(arguments):
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    read = set()
    for path in (path for folder in arguments[1:] for path in pathlib.Path(folder).rglob("*")):
        if path.suffix in (".hpp", ".cpp") and not path.name.endswith("_test.cpp"):
            calls = r'\boption(?:_number|_size|_choice|_switch|_text)?\("([A-Z0-9_]+)"'
            read |= set(re.findall(calls, path.read_text(encoding="utf-8")))
    page = pathlib.Path(arguments[0]).read_text(encoding="utf-8")
    documented = set(re.findall(r"^\.(?:B|BR) SPANALLOC_([A-Z0-9_]+)\s*$", page, re.MULTILINE))
    for name in sorted(read - documented):
        print(f"SPANALLOC_{name} is read but not documented", file=sys.stderr)
    for name in sorted(documented - read):
        print(f"SPANALLOC_{name} is documented but not read", file=sys.stderr)
    print(f"{len(read)} options read, {len(documented)} documented")
    return 0 if read and read == documented else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
