"""Parses and compiles a part of Python's own library and keeps all syntax trees: millions of small objects.

Run with PYTHONMALLOC=malloc (and without -I, which ignores it), so that each of them goes through malloc instead of Python's own pools.
"""

import ast
import os
import sys

PACKAGES = ("asyncio", "collections", "concurrent", "email", "http", "json", "logging", "unittest", "urllib", "xml")


def main():
    library = os.path.dirname(os.__file__)
    trees = []
    for package in PACKAGES:
        for folder, subfolders, files in os.walk(os.path.join(library, package)):
            subfolders[:] = [name for name in subfolders if name not in ("test", "tests", "__pycache__")]
            for name in sorted(files):
                if not name.endswith(".py"):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    tree = ast.parse(file.read())
                compile(tree, name, "exec")
                trees.append(tree)
    nodes = sum(1 for tree in trees for _ in ast.walk(tree))
    print(f"{len(trees)} modules, {nodes} nodes")
    return 0 if nodes > 100_000 else 1


if __name__ == "__main__":
    sys.exit(main())
