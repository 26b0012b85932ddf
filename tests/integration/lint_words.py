#!/usr/bin/env python3
"""Refuses the words that the glossary has replaced: lint_words.py SOURCE_TREE.

The glossary is the table between `words:begin` and `words:end` in docs/architecture.md. Its last column names words that the
code of FOLDERS does not use in that meaning. A word in parentheses has an ordinary meaning, too, which no script can tell
apart: it is there for the reader. All others are refused in code, comments and file names: in any case, as a part of an
identifier, and with the endings of a plural or a verb.
"""

import pathlib
import re
import sys

FOLDERS = ("src/standard", "src/pages")
SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".in")
# What may stand in a line all the same.
ALLOWED = (
    (r"\bkName = \"[^\"]*\"", "the name of a library, which users know"),
    (r"\blive_labs\b", "a field of include/spanalloc/spanalloc.h, which programs are compiled against"),
    (r"\bcensus\(|\bcensus\.hpp|\bspan_census\.hpp|\bSpanCensus\b|\bCensus\b|^census$|^span census$",
     "the name under which engine/engine.hpp and the tests ask every engine for its heap walk"),
    (r"\b[Ss]paring\b", "the adjective: of memory that is opened a page at a time"),
)
TABLE = re.compile(r"<!-- words:begin -->\n(.*?)<!-- words:end -->", re.DOTALL)
# The parts of an identifier; LABs is one.
PART = re.compile(r"[A-Z]{2,}s?(?![a-z])|[A-Z]?[a-z]+|[A-Z]")


def refused_words(document):
    """The words of the table's last column, in lower case, without those in parentheses."""
    table = TABLE.search(document)
    words = set()
    for row in table.group(1).splitlines()[2:] if table else ():
        for word in row.strip().strip("|").rsplit("|", 1)[-1].split(","):
            word = word.strip().lower()
            if word and not word.startswith("("):
                words.add(word)
    return words


def forms(word):
    """The word, its plural, and what a verb becomes."""
    stem = word[:-1] if word[-1] in "ey" else word
    endings = {"e": ("e", "es", "ed", "ing"), "y": ("y", "ies", "ied", "ying", "ial")}
    return {stem + ending for ending in endings.get(word[-1], ("", "s", "es", "ed", "ing"))}


def found_in(text, refused):
    """The refused words in a line, as they stand there."""
    for pattern, _ in ALLOWED:
        text = re.sub(pattern, "", text)
    return [part for part in PART.findall(text) if part.lower() in refused]


def main():
    tree = pathlib.Path(sys.argv[1])
    words = refused_words((tree / "docs/architecture.md").read_text(encoding="utf-8"))
    refused = {form for word in words for form in forms(word)}
    violations = files = 0
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("*")):
            name = path.relative_to(tree)
            if path.suffix not in SUFFIXES:
                continue
            files += 1
            lines = [(0, path.stem.replace("_", " "))]
            lines += enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            for number, line in lines:
                for word in found_in(line, refused):
                    print(f"{name}:{number}: {word}: docs/architecture.md, Words, has the word of today")
                    violations += 1
    print(f"{files} files, {len(words)} words, {violations} violations")
    return 1 if violations or not files or not words else 0


if __name__ == "__main__":
    sys.exit(main())
