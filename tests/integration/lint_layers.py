#!/usr/bin/env python3
"""Checks the order of the folders: lint_layers.py SOURCE_TREE.

A file in src/ may include only from its own folder and from those above it in the list below, and no file that
includes it. The code of a paper, papers/ROOM/, may include from its own room, from papers/shared/, and from the folders of
src/ that the engines share; nothing in src/ includes it. Tests and figures in the rooms may include anything. The benchmark
suite, bench/, neither includes nor imports anything of papers/.

Besides: system calls are made in os/ only, std::atomic stands behind base/atomic.hpp only, and what can be chosen about an
engine is read from its config, whichever that is, and not from the product's.
"""

import ast
import pathlib
import re
import sys

ORDER = ("include", "base", "os", "sync", "thread", "pages", "heaps", "engine", "standard", "api")
# What the papers' code may include of the folders after `engine`.
PAPERS_MAY = ("standard/span_pool.hpp",)
# Folders of a paper's room that may include anything.
FREE = ("tests", "figures")
SUITE_KNOWS = "the suite knows no paper; what papers/ adds to it joins by bench/spanalloc_bench/extensions.py"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
CODE = (".h", ".hpp", ".c", ".cpp")
ATOMIC_DOOR = "base/atomic.hpp"
# A constant of one config, by the config's name.
OF_ONE_CONFIG = r"\b(?:Standard|Scalloc|Supermalloc|A2alloc)\w*::k[A-Z]\w*"
# Headers that stand for talking to the kernel directly.
KERNEL_HEADERS = re.compile(r"^(sys/(mman|syscall|resource|prctl|auxv|rseq)\.h|linux/.*|asm/.*)$")
PUBLIC = "spanalloc/"


def without_comments(text):
    """The text with comments blanked out, every line where it was."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))  # noqa: E731
    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def layer_of(path):
    """A folder of src/, `include`, or papers/ROOM."""
    if path.startswith(PUBLIC):
        return "include"
    parts = path.split("/")
    return "/".join(parts[:2]) if parts[0] == "papers" and len(parts) > 2 else parts[0]


def may_include(layer, other, target):
    """Why a file of the layer may not include this file of the other, or None."""
    of_paper = layer.startswith("papers/")
    if other.startswith("papers/"):
        if layer == other or (of_paper and other == "papers/shared"):
            return None
        if of_paper:
            return "a paper's code includes of papers/ its own room and papers/shared/ only"
        return "src/ is the product and knows no paper; what both need has its place in src/"
    if other not in ORDER:
        return f"what is included stands in one of {' '.join(ORDER)}, or in papers/"
    if of_paper:
        if ORDER.index(other) > ORDER.index("engine") and target not in PAPERS_MAY:
            return f"a paper's code includes from src/base/ to src/engine/, and {', '.join(PAPERS_MAY)}"
    elif ORDER.index(other) > ORDER.index(layer):
        return f"{layer}/ comes before {other}/ in {' '.join(ORDER)}; a file includes from its own folder and those before it"
    return None


def check_include(layer, name, bracket, target, source):
    """What is wrong with one include, or None."""
    if bracket == "<":
        if target == "atomic" and name != ATOMIC_DOOR:
            return "atomics go through base/atomic.hpp"
        if KERNEL_HEADERS.match(target) and layer != "os":
            return "talking to the kernel is for os/"
        return None
    if "/" not in target:
        return "an include is written with its folder, from src/ or from the root: base/bits.hpp, papers/shared/bump_arena.hpp"
    other = layer_of(target)
    problem = may_include(layer, other, target)
    if problem:
        return problem
    root = {"include": "include", "papers": "."}.get(other.split("/")[0], "src")
    if not (source / root / target).is_file():
        return "there is no such file"
    return None


def check_file(source, layer, name, path):
    """[(line, text)] of what is wrong in a file."""
    text = without_comments(path.read_text(encoding="utf-8"))
    found = []
    for match in INCLUDE.finditer(text):
        problem = check_include(layer, name, match.group(1), match.group(2), source)
        if problem:
            found.append((text.count("\n", 0, match.start(2)) + 1, f"includes {match.group(2)}: {problem}"))
    for pattern, allowed, problem in (
        (r"\bsyscall\s*\(", layer == "os", "a system call outside os/"),
        (r"\bstd::atomic\b|\b__atomic_\w+|\b__sync_\w+", name == ATOMIC_DOOR, "an atomic outside base/atomic.hpp"),
        (OF_ONE_CONFIG, name.endswith("/config.hpp"),
         "a constant of one config: read it from the parameter Config, or a variant has the product's"),
    ):
        if not allowed:
            found += [(text.count("\n", 0, m.start()) + 1, problem) for m in re.finditer(pattern, text)]
    return found


def sources(source):
    """(name, path) of each file that is judged; the name is how an #include would write it."""
    for root, folder in (("include", "include"), ("src", "src"), (".", "papers")):
        for path in sorted((source / folder).rglob("*")):
            name = path.relative_to(source / root).as_posix()
            if path.suffix in CODE and not (folder == "papers" and name.split("/")[2] in FREE):
                yield name, path


def circles(source):
    """[(path, line, text)] of the includes that lead back to their own file."""
    includes, paths = {}, {}  # file: {included file: line}
    for name, path in sources(source):
        text = without_comments(path.read_text(encoding="utf-8"))
        paths[name] = path
        includes[name] = {
            match.group(2): text.count("\n", 0, match.start(2)) + 1
            for match in INCLUDE.finditer(text)
            # What is refused already would close many circles, which end with it.
            if match.group(1) == '"' and not check_include(layer_of(name), name, '"', match.group(2), source)
        }
    behind = {}  # file: all that it includes, and what that includes
    for name in includes:
        behind[name], due = set(), [name]
        while due:
            new = set(includes.get(due.pop(), ())) - behind[name]
            behind[name] |= new
            due += new
    return [
        (paths[name], line, f"includes {other}, which includes it")
        for name in sorted(includes) for other, line in includes[name].items()
        if name == other or name in behind.get(other, ())
    ]


def imports(path):
    """(line, module) of each import of a Python file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)


def check_suite(source):
    """[(path, line, text)] of what bench/ takes from papers/."""
    found = []
    for path in sorted((source / "bench").rglob("*")):
        if path.suffix == ".py":
            found += [(path, line, f"imports {module}: {SUITE_KNOWS}") for line, module in imports(path)
                      if module.split(".")[0] == "papers"]
        elif path.suffix in CODE:
            text = without_comments(path.read_text(encoding="utf-8"))
            found += [(path, text.count("\n", 0, match.start(2)) + 1, f"includes {match.group(2)}: {SUITE_KNOWS}")
                      for match in INCLUDE.finditer(text) if match.group(2).startswith("papers/")]
    return found


def main():
    source = pathlib.Path(sys.argv[1])
    failures = files = 0
    for name, path in sources(source):
        layer = layer_of(name)
        files += 1
        if layer not in ORDER and not layer.startswith("papers/"):
            problems = [(1, f"folder {layer}/ has no place in the order {' '.join(ORDER)}")]
        else:
            problems = check_file(source, layer, name, path)
        for line, text in problems:
            print(f"{path}:{line}: {text}")
            failures += 1
    for path, line, text in [*circles(source), *check_suite(source)]:
        print(f"{path}:{line}: {text}")
        failures += 1
    print(f"{files} files, {failures} violations")
    return 1 if failures or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
