#!/usr/bin/env python3
"""Refuses paths that lead nowhere: lint_paths.py SOURCE_TREE.

Documents, and the comments of sources, name files of the tree by folder and name: base/bits.hpp. Each such path must exist,
read from the root, from a folder of ROOTS, or from the folder of the file that names it. What belongs to a paper's room may
read it from the room and from the room's engine/, too. Below a folder of the root, folders must exist likewise. A C++ file
that is named without its folder must exist somewhere. A star stands for any characters. A path with a part in capitals,
papers/ROOM/tests, is a pattern and not judged. Links of Markdown are judged by tests/tools/test_docs.py.
"""

import ast
import fnmatch
import glob
import io
import os
import pathlib
import re
import sys
import tokenize

# Headers and modules are named as code includes and imports them.
ROOTS = ("", "src", "include", "tools", "bench", "bench/workloads")
# What a file may name although it is not there: (the file, the path, whose it is).
OTHERS = (
    (r"docs/features\.md", r".*", "files of the allocators that it compares"),
    (r"docs/tuning\.md", r"src/engines.*", "where the code stood"),
    (r"docs/adding\.md", r"papers/mine/.*|bench/workloads/fifo\.cpp", "what its reader adds"),
    (r".*", r"(sys|linux|asm|bits)/.*", "headers of the system"),
    (r".*", r"(build|out)/.*", "what a build writes"),
    (r"src/api/CMakeLists\.txt", r"lib_standard\.cpp", "likewise"),
    (r"bench/spanalloc_bench/(build|cli)\.py", r"bench/(larson|results/2030.*)", "examples of what is printed or asked for"),
    (r"bench/spanalloc_bench/originals\.py", r"(source|Heap-Layers)/.*", "files of Hoard"),
)
FILE = re.compile(r"(?<![\w./~$\-{}<>+:@*])((?:[\w.*-]+/)+[\w*-]+(?:\.[\w*-]+)*"
                  r"\.(?:hpp|cpp|h|c|py|md|sh|txt|json|cmake|toml|css|csv|png|svg|in))\b(?![\w/*{(-]|\.\w)")
FOLDER = r"(?<![\w./~$\-{{}}<>+:@*])((?:{})/[\w.*-]+(?:/[\w.*-]+)*)(?![\w/*{{(-])"
ALONE = re.compile(r"(?<![\w./~$\-{}<>+:@*])([\w*-]+\.[ch]pp)\b(?![\w/*{(-]|\.\w)")
COMMENT = {
    "//": re.compile(r"//([^\n]*)|/\*(.*?)\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\d)'(?:\\.|[^'\\\n])*'", re.DOTALL),
    "#": re.compile(r"(?:^|(?<=\s))#([^\n]*)|\"(?:\\.|[^\"\\])*\"|'[^'\n]*'"),
}
STYLE = {".h": "//", ".c": "//", ".hpp": "//", ".cpp": "//", ".cmake": "#", ".sh": "#", ".txt": "#", "": "#"}


def kept(text, spans):
    """The text with all but these spans blanked out, every line where it was."""
    out, at = [], 0
    for begin, end in sorted(spans):
        out += [re.sub(r"[^\n]", " ", text[at:begin]), text[begin:end]]
        at = max(at, end)
    return "".join(out)


def python_comments(text):
    """The comments and the docstrings, every line where it was."""
    starts, at = [0], 0
    for line in text.splitlines(keepends=True):
        at += len(line)
        starts.append(at)
    docs = {node.body[0].lineno for node in ast.walk(ast.parse(text))
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node)}
    return kept(text, [
        (starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in docs)
    ])


def prose(name, text):
    """What a file says to its readers, every line where it was."""
    if name == "CHANGELOG.md":
        # What is released is history; a row of a table begins with what was.
        text = "\n".join(re.sub(r"^ *\|[^|]*\|", "", line) for line in text.split("\n"))
        return "\n## ".join(text.split("\n## ")[:2])
    if name.endswith(".md"):
        blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))  # noqa: E731
        text = re.sub(r"^ *(```|~~~)\w.*?^ *\1 *$", blank, text, flags=re.DOTALL | re.MULTILINE)
        # Only the text of a link that shortens its target.
        return re.sub(r"\[`?([^\]`]*)`?\]\(([^)\s#]*)[^)]*\)",
                      lambda m: blank(m) if m[2].endswith(m[1]) else m[1], text)
    if name.endswith(".py"):
        return python_comments(text)
    style = STYLE.get(pathlib.PurePath(name).suffix)
    if name.startswith("docs/man/"):
        return text
    return kept(text, [match.span(i) for match in COMMENT[style].finditer(text) for i in (1, 2)
                       if i <= match.re.groups and match[i] is not None])


def places(name):
    """The folders from which the file may name a path."""
    parts = pathlib.PurePath(name).parts
    found = [*ROOTS, os.path.dirname(name)]
    if parts[0] == "papers" and len(parts) > 2:
        found += ["/".join(parts[:2]), "/".join(parts[:2]) + "/engine"]
    return found


def sources(tree):
    """(name, path) of each file of the tree, without what builds and measures leave there."""
    for folder, folders, files in os.walk(tree):
        if pathlib.Path(folder) == tree:
            folders[:] = [each for each in folders if not re.match(r"build|out$", each)]
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each != "__pycache__")
        for file in sorted(files):
            path = pathlib.Path(folder, file)
            yield path.relative_to(tree).as_posix(), path


def is_judged(name, path):
    if path.suffix:
        return name.startswith("docs/man/") or path.suffix in (*STYLE, ".md", ".py")
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def is_pattern(path):
    """Whether a part of it stands for a name; documents' names are in capitals themselves."""
    return re.search(r"(?<![A-Za-z\d])[A-Z]{2,}(?![a-z\d])", re.sub(r"[^/]*\.md$|CMakeLists\.txt$", "", path))


def main():
    tree = pathlib.Path(sys.argv[1])
    every = list(sources(tree))
    names = {path.name for _, path in every}
    tops = sorted({re.escape(name.split("/")[0]) for name, _ in every if "/" in name})
    patterns = [FILE, ALONE] + ([re.compile(FOLDER.format("|".join(tops)))] if tops else [])
    failures = paths = 0
    for name, file in every:
        if not is_judged(name, file):
            continue
        text = prose(name, file.read_text(encoding="utf-8"))
        found = {match.span(1): match[1].rstrip(".") for pattern in patterns for match in pattern.finditer(text)}
        for (at, _), path in sorted(found.items()):
            if is_pattern(path) or any(re.fullmatch(who, name) and re.fullmatch(what, path) for who, what, _ in OTHERS):
                continue
            paths += 1
            if not (any(glob.glob(os.path.join(glob.escape(str(tree)), place, path)) for place in places(name))
                    if "/" in path else fnmatch.filter(names, path)):
                print(f"{name}:{text.count(chr(10), 0, at) + 1}: {path}: there is no such file")
                failures += 1
    print(f"{paths} paths, {failures} violations")
    return 1 if failures or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
