"""The scripts that judge the source tree and count the tests: each must be able to say no."""

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


class CountTestsTest(unittest.TestCase):
    def count(self, *cases):
        with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
            file.write("<testsuite>" + "".join(cases) + "</testsuite>")
            file.flush()
            return script("scripts/count_tests.py", file.name)

    PASSED = '<testcase name="a" status="run"/>'
    FAILED = ('<testcase name="b" status="fail"><failure message=""/>'
              "<system-out>expected 1, got 2</system-out></testcase>")
    SKIPPED = ('<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/>'
               "<system-out>skipped: no such program</system-out></testcase>")
    MISSING = '<testcase name="d" status="notrun"><skipped message="Unable to find executable"/></testcase>'

    def test_counts(self):
        run = self.count(self.PASSED, self.PASSED, self.SKIPPED)
        self.assertEqual(run.returncode, 0)
        self.assertEqual(run.stdout.splitlines(), ["skipped: c: no such program", "2 passed, 0 failed, 1 skipped"])

    def test_failure(self):
        run = self.count(self.PASSED, self.FAILED)
        self.assertEqual(run.returncode, 1)
        self.assertIn("expected 1, got 2", run.stdout)
        self.assertEqual(run.stdout.splitlines()[-2:], ["failed: b", "1 passed, 1 failed, 0 skipped"])

    def test_a_failure_says_why_in_its_line(self):
        for output, reason in (
            ("[ RUN      ] A.b\n/w/a_test.cpp:5: Failure\nExpected: (x) &lt;= (y), actual: 3 vs 2\n\n[  FAILED  ] A.b",
             "a_test.cpp:5: Failure Expected: (x) <= (y), actual: 3 vs 2"),
            ("test_c (m.C) ... FAIL\n\nFAIL: test_c (m.C)\n----\nTraceback (most recent call last):\n  File\n"
             "AssertionError: 7 is not from 1 to 5", "FAIL: test_c (m.C) AssertionError: 7 is not from 1 to 5"),
        ):
            run = self.count(f'<testcase name="b" status="fail"><system-out>{output}</system-out></testcase>')
            self.assertEqual(run.stdout.splitlines()[-2], f"failed: b: {reason}")

    def test_test_that_could_not_start_is_a_failure(self):
        run = self.count(self.PASSED, self.MISSING)
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_no_tests_is_a_failure(self):
        self.assertEqual(self.count().returncode, 1)
        self.assertEqual(script("scripts/count_tests.py", "/nonexistent").returncode, 1)


if __name__ == "__main__":
    unittest.main()
