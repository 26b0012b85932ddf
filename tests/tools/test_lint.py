"""The scripts that judge the source tree must be able to say no."""

import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]


def script(path, *arguments):
    return subprocess.run(
        [sys.executable, os.path.join(SOURCE, path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )


class LayersTest(unittest.TestCase):
    def lint(self, **files):
        """Lints a tree of the files given as folder__name=text."""
        with tempfile.TemporaryDirectory() as tree:
            for name, text in files.items():
                path = os.path.join(tree, name.replace("__", "/") + ".hpp")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return script("tests/integration/lint_layers.py", tree)

    def test_this_tree(self):
        run = script("tests/integration/lint_layers.py", SOURCE)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_downward_include_passes(self):
        run = self.lint(src__base__bits="", src__os__x='#include "base/bits.hpp"\n#include <sys/mman.h>')
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_upward_include_fails(self):
        run = self.lint(src__base__bits='\n#include "os/x.hpp"', src__os__x="")
        self.assertEqual(run.returncode, 1)
        self.assertIn("bits.hpp:2:", run.stdout)

    def test_public_header_may_not_include_internals(self):
        run = self.lint(include__spanalloc__x='#include "base/bits.hpp"', src__base__bits="")
        self.assertEqual(run.returncode, 1)

    def test_unknown_folder_fails(self):
        self.assertEqual(self.lint(src__misc__x="").returncode, 1)

    def test_include_without_folder_fails(self):
        self.assertEqual(self.lint(src__base__a='#include "b.hpp"', src__base__b="").returncode, 1)

    def test_system_call_outside_os_fails(self):
        self.assertEqual(self.lint(src__sync__x="long f() { return syscall(1); }").returncode, 1)
        self.assertEqual(self.lint(src__sync__x="#include <sys/mman.h>").returncode, 1)
        self.assertEqual(self.lint(src__sync__x="// syscall(1) is a comment").returncode, 0)

    def test_atomic_outside_its_door_fails(self):
        self.assertEqual(self.lint(src__sync__x="std::atomic<int> a;").returncode, 1)
        self.assertEqual(self.lint(src__base__atomic="#include <atomic>\nstd::atomic<int> a;").returncode, 0)

    def test_empty_tree_fails(self):
        self.assertEqual(self.lint(other__x="").returncode, 1)


class InterfaceTest(unittest.TestCase):
    HEADER = """
struct sp_thing {
  size_t plain; /* not; a_field */
  char text[16], *next, grid[2][3];
  void (*visit)(int, void*);
};
#define SP_LIMIT 7
SPANALLOC_PUBLIC const char* sp_name(void);
"""
    PROMISES = ["FUNCTION(sp_name, int)", "CONSTANT(SP_LIMIT, 7)", "SIZE(sp_thing, 64)",
                *(f"FIELD(sp_thing, {field}, 0, 8)" for field in ("plain", "text", "next", "grid", "visit"))]

    def judge(self, promises):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, text in (("x.h", self.HEADER), ("x.c", "\n".join(promises)), ("list", "sp_name\n")):
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.write(text)
            return script("tests/conformance/check_interface.py", *paths)

    def test_each_promise_counts(self):
        run = self.judge(self.PROMISES)
        self.assertEqual((run.returncode, run.stdout), (0, "1 functions, 8 promises in all\n"))
        for promise in self.PROMISES:
            run = self.judge([other for other in self.PROMISES if other != promise])
            self.assertEqual(run.returncode, 1, promise)


if __name__ == "__main__":
    unittest.main()
