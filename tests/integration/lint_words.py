#!/usr/bin/env python3
"""Refuses the words that the glossary has replaced: lint_words.py SOURCE_TREE [--write].

The glossary is the table between `words:begin` and `words:end` in docs/architecture.md. Its last column, *not*, names words
that the code of FOLDERS does not use in that meaning. The column before it, *in the code still*, names words that the code of
the engine uses until its design changes: what users read (READERS, and the strings of PRINTS) has neither, and new code has
none of them. Of each COUNTS holds how often the code says it: a higher number is refused, a lower one is written by --write.

A word in parentheses has an ordinary meaning, too, which no script can tell apart: it is there for the reader. All others are
refused in code, comments, file names and prose: in any case, as a part of an identifier, and with the endings of a plural or a
verb. A term of several words is refused where these follow each other.
"""

import ast
import collections
import pathlib
import re
import sys

FOLDERS = ("src/standard", "src/pages")
CODE = "src"
COUNTS = "tests/integration/words_in_code.txt"
# What users read. Documents of the engine's inside have the words of its code.
READERS = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "include", "docs/*.md", "docs/man", "*/README.md", "CHANGELOG.md",
           "papers/*/TOUR.md", "tools/completion")
# Whose strings users read: what the command and the libraries print. A string without a space is a name.
PRINTS = ("tools", "src", "papers/*/engine")
INSIDE = ("docs/architecture.md", "docs/concurrency.md", "docs/hot-path.md", "docs/tuning.md")
SUFFIXES = (".h", ".hpp", ".c", ".cpp", ".in")
# What may stand there all the same.
ALLOWED = (
    (r"\bkName = \"[^\"]*\"", "the name of a library, which users know"),
    (r"\bOwnHeapResource\b", "a class of include/spanalloc/memory_resource.hpp, likewise"),
    (r"\btimer slack\b", "the kernel's word (prctl(2))"),
    (r"\blive_labs\b", "a field of include/spanalloc/spanalloc.h, which programs are compiled against"),
    (r"\bcarved_(bytes|blocks)\b|`carved`|\tcarved\t", "figures of include/spanalloc/spanalloc.h and of statistics, likewise"),
    (r"\bcensus\(|\bcensus\.hpp|\bspan_census\.hpp|\bSpanCensus\b|\bCensus\b|^census$|^span census$",
     "the name under which engine/engine.hpp and the tests ask every engine for its heap walk"),
    (r"\b[Ss]paring\b", "the adjective: of memory that is opened a page at a time"),
    (r"\b[a-z_]+\.[ch]pp\b|\bSPANALLOC_[A-Z_]+|`k[A-Z]\w+`", "in prose, a file, an option, a constant by its name"),
)
TABLE = re.compile(r"<!-- words:begin -->\n(.*?)<!-- words:end -->", re.DOTALL)
# Of C++ a string; in the group what it says.
STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"((?:\\.|[^\"\\\n])*)\"", re.DOTALL)
# The parts of an identifier; LABs is one.
PART = re.compile(r"[A-Z]{2,}s?(?![a-z])|[A-Z]?[a-z]+|[A-Z]")


def words_of(document, column):
    """The words of one of the table's columns, counted from the last, in lower case, without those in parentheses."""
    table = TABLE.search(document)
    words = set()
    for row in table.group(1).splitlines()[2:] if table else ():
        cells = row.strip().strip("|").split("|")
        for word in cells[column].split(",") if len(cells) > 3 else ():
            word = word.strip().lower()
            if word and not word.startswith("("):
                words.add(word)
    return words


def meanings(document):
    """[(line, text)]: of each row of the table what it says of its word, without names of the code."""
    table = TABLE.search(document)
    first = document.count("\n", 0, table.start(1)) + 1 if table else 0
    return [(first + i, re.sub(r"`[^`]*`", "", "|".join(row.strip().strip("|").split("|")[:-2])))
            for i, row in enumerate(table.group(1).splitlines() if table else ()) if i >= 2]


def forms(word):
    """The word, its plural, and what a verb becomes."""
    stem = word[:-1] if word[-1] in "ey" else word
    endings = {"e": ("e", "es", "ed", "ing"), "y": ("y", "ies", "ied", "ying", "ial")}
    return {stem + ending for ending in endings.get(word[-1], ("", "s", "es", "ed", "ing"))}


class Refused:
    """Terms, and where they are in a text."""

    def __init__(self, terms):
        self._by_first = collections.defaultdict(list)
        for term in terms:
            words = [forms(word) for word in PART.findall(term)]
            for first in words[0]:
                self._by_first[first].append((term, words))

    def __bool__(self):
        return bool(self._by_first)

    def found(self, text, allowed):
        """[(line, term, as it stands there)], in order."""
        for pattern in allowed:
            text = re.sub(pattern, lambda match: "\0" * len(match[0]), text, flags=re.MULTILINE)
        parts = list(PART.finditer(text))
        out = []
        for i, part in enumerate(parts):
            for term, words in self._by_first.get(part[0].lower(), ()):
                here = parts[i:i + len(words)]
                if len(here) == len(words) and all(p[0].lower() in w for p, w in zip(here, words)):
                    between = text[here[0].start():here[-1].end()]
                    if not re.search(r"[.,;:()|\0]|\n\s*\n", between):
                        out.append((text.count("\n", 0, part.start()) + 1, term, " ".join(p[0] for p in here)))
        return out


def code(tree, folder):
    return [path for path in sorted((tree / folder).rglob("*")) if path.suffix in SUFFIXES]


def readers(tree):
    found = [path for name in READERS for place in sorted(tree.glob(name))
             for path in ([place] if place.is_file() else sorted(p for p in place.rglob("*") if p.is_file()))]
    return [path for path in found if path.relative_to(tree).as_posix() not in INSIDE]


def strings_of_python(text):
    """[(line, string)]; of an f-string what stands between its values. Of docstrings, only those of gdb's commands are printed."""
    tree = ast.parse(text)
    passed = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    passed |= {id(node.body[0].value) for node in ast.walk(tree)
               if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance((node.body or [0])[0], ast.Expr)
               and not any(ast.unparse(base) == "gdb.Command" for base in getattr(node, "bases", ()))}
    for node in ast.walk(tree):
        if id(node) not in passed and isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
        elif id(node) not in passed and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def printed(tree):
    """(path, [(line, string)]) of each source whose strings users read."""
    for path in (path for name in PRINTS for place in sorted(tree.glob(name)) for path in sorted(place.rglob("*"))):
        if path.suffix == ".py":
            found = strings_of_python(path.read_text(encoding="utf-8"))
        elif path.suffix in SUFFIXES:
            text = path.read_text(encoding="utf-8")
            found = ((text.count("\n", 0, match.start()) + 1, match[1]) for match in STRING.finditer(text) if match[1])
        else:
            continue
        yield path, [(line, string) for line, string in found if " " in string]


def counts_in_code(tree, terms):
    """{term: how often the code says it}."""
    refused = Refused(terms)
    counts = collections.Counter()
    for path in code(tree, CODE):
        counts.update(term for _, term, _ in refused.found(path.read_text(encoding="utf-8"), ()))
    return {term: counts[term] for term in sorted(terms)}


def main():
    tree = pathlib.Path(sys.argv[1])
    document = (tree / "docs/architecture.md").read_text(encoding="utf-8")
    gone, still = words_of(document, -1), words_of(document, -2)
    allowed = [pattern for pattern, _ in ALLOWED]
    violations = files = 0

    def judge(path, refused, say, patterns=allowed, strings=None):
        nonlocal violations, files
        name = path.relative_to(tree)
        if strings is None:
            files += 1
            found = refused.found(path.read_text(encoding="utf-8"), patterns)
            found += [(0, term, word) for _, term, word in refused.found(path.stem.replace("_", " "), patterns)]
        else:
            found = [(at + line - 1, term, word) for at, string in strings for line, term, word in refused.found(string, patterns)]
        for line, _, word in sorted(found, key=lambda each: each[0]):
            print(f"{name}:{line}: {word}: {say}")
            violations += 1

    for folder in FOLDERS:
        for path in code(tree, folder):
            judge(path, Refused(gone), "docs/architecture.md, Words, has the word of today", allowed[:-1])
    of_users = "what users read has the field's word (docs/architecture.md, Words)"
    for path in readers(tree):
        judge(path, Refused(still), of_users)
    judge(tree / "docs/architecture.md", Refused(still), "the glossary explains by the words of today",
          strings=meanings(document))
    for path, strings in printed(tree):
        judge(path, Refused(still), of_users, strings=strings)

    counts, file = counts_in_code(tree, still), tree / COUNTS
    known = {line.split(None, 1)[1]: int(line.split()[0]) for line in
             (file.read_text(encoding="utf-8").splitlines() if file.exists() else ())}
    if "--write" in sys.argv:
        known = {term: min(count, known.get(term, count)) for term, count in counts.items()}
        file.write_text("".join(f"{count:5} {term}\n" for term, count in known.items()), encoding="utf-8")
    for term, count in counts.items():
        if count != known.get(term, 0):
            more = "new code has the field's word" if count > known.get(term, 0) else "lint_words.py --write lowers it"
            print(f"{COUNTS}: {term}: {count} in {CODE}/, {known.get(term, 0)} here: {more} (docs/architecture.md, Words)")
            violations += 1
    print(f"{files} files, {len(gone | still)} words, {violations} violations")
    return 1 if violations or not files or not gone else 0


if __name__ == "__main__":
    sys.exit(main())
