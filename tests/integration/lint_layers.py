#!/usr/bin/env python3
"""Checks the order of the folders: lint_layers.py SOURCE_TREE.

A file in src/ may include only from its own folder and from those above it in the list below, and no file that
includes it. Besides: system calls are made in os/ only, and std::atomic stands behind base/atomic.hpp only.
"""

import pathlib
import re
import sys

ORDER = ("include", "base", "os", "sync", "thread", "pages", "heaps", "engines", "api")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)
ATOMIC_DOOR = "base/atomic.hpp"
# Headers that stand for talking to the kernel directly.
KERNEL_HEADERS = re.compile(r"^(sys/(mman|syscall|resource|prctl|auxv|rseq)\.h|linux/.*|asm/.*)$")
PUBLIC = "spanalloc/"


def without_comments(text):
    """The text with comments blanked out, every line where it was."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))  # noqa: E731
    return re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)


def layer_of(path):
    return "include" if path.startswith(PUBLIC) else path.split("/", 1)[0]


def check_include(layer, name, bracket, target, source):
    """What is wrong with one include, or None."""
    if bracket == "<":
        if target == "atomic" and name != ATOMIC_DOOR:
            return "atomics go through base/atomic.hpp"
        if KERNEL_HEADERS.match(target) and layer != "os":
            return "talking to the kernel is for os/"
        return None
    if "/" not in target:
        return "includes are written from src/, with their folder"
    other = layer_of(target)
    if other not in ORDER:
        return f"folder {other}/ has no place in the order {' '.join(ORDER)}"
    if ORDER.index(other) > ORDER.index(layer):
        return f"{layer}/ stands above {other}/ and may not include from it"
    root = "include" if other == "include" else "src"
    if not (source / root / target).is_file():
        return "there is no such file"
    return None


def check_file(source, layer, path):
    """[(line, text)] of what is wrong in a file."""
    name = path.relative_to(source / ("include" if layer == "include" else "src")).as_posix()
    text = without_comments(path.read_text(encoding="utf-8"))
    found = []
    for match in INCLUDE.finditer(text):
        problem = check_include(layer, name, match.group(1), match.group(2), source)
        if problem:
            found.append((text.count("\n", 0, match.start(2)) + 1, f"includes {match.group(2)}: {problem}"))
    for pattern, allowed, problem in (
        (r"\bsyscall\s*\(", layer == "os", "a system call outside os/"),
        (r"\bstd::atomic\b|\b__atomic_\w+|\b__sync_\w+", name == ATOMIC_DOOR, "an atomic outside base/atomic.hpp"),
    ):
        if not allowed:
            found += [(text.count("\n", 0, m.start()) + 1, problem) for m in re.finditer(pattern, text)]
    return found


def circles(source):
    """[(path, line, text)] of the includes that lead back to their own file."""
    root = source / "src"
    includes = {}  # file: {included file: line}
    for path in root.rglob("*.hpp"):
        text = without_comments(path.read_text(encoding="utf-8"))
        includes[path.relative_to(root).as_posix()] = {
            match.group(2): text.count("\n", 0, match.start(2)) + 1
            for match in INCLUDE.finditer(text) if match.group(1) == '"'
        }
    behind = {}  # file: all that it includes, and what that includes
    for name in includes:
        behind[name], due = set(), [name]
        while due:
            new = set(includes.get(due.pop(), ())) - behind[name]
            behind[name] |= new
            due += new
    return [
        (root / name, line, f"includes {other}, which includes it")
        for name in sorted(includes) for other, line in includes[name].items()
        if name == other or name in behind.get(other, ())
    ]


def main():
    source = pathlib.Path(sys.argv[1])
    failures = files = 0
    for folder in (source / "include", source / "src"):
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".hpp", ".c", ".cpp")):
            relative = path.relative_to(folder).as_posix()
            layer = "include" if folder.name == "include" else layer_of(relative)
            files += 1
            if layer not in ORDER:
                problems = [(1, f"folder {layer}/ has no place in the order {' '.join(ORDER)}")]
            else:
                problems = check_file(source, layer, path)
            for line, text in problems:
                print(f"{path}:{line}: {text}")
                failures += 1
    for path, line, text in circles(source):
        print(f"{path}:{line}: {text}")
        failures += 1
    print(f"{files} files, {failures} violations")
    return 1 if failures or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
