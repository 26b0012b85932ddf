"""libbump.so, the baseline that never frees: real programs run on it, and it refuses beyond its limit."""

import os
import subprocess
import sys
import tempfile
import unittest

BENCH = os.environ["SPANALLOC_TEST_BENCH"]
BUMP = os.path.join(BENCH, "libbump.so")
ALLOCATE = os.path.join(BENCH, "bench_test_allocate")


def run(*command, preload=BUMP, text=None, **variables):
    """The finished process, its output captured."""
    environment = {**os.environ, **variables}
    if preload:
        environment["LD_PRELOAD"] = preload
    return subprocess.run(command, env=environment, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=600, check=False)


class BumpTest(unittest.TestCase):
    def test_every_call(self):
        done = run(ALLOCATE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_the_check_itself_runs_on_the_c_library(self):
        done = run(ALLOCATE, preload=None)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_programs(self):
        numbers = "".join(f"{i * 7919 % 100003}\n" for i in range(100003))
        code = "import json, threading; print(sum(json.loads(json.dumps(list(range(10**5))))))"
        for command, text in ((("ls", "-l", os.path.dirname(os.path.abspath(__file__))), None), ((sys.executable, "-S", "-c", code), None),
                              (("sort", "-n", "--parallel=2"), numbers)):
            with self.subTest(command[0]):
                expected = run(*command, preload=None, text=text)
                found = run(*command, text=text)
                self.assertEqual((found.returncode, found.stderr), (0, ""))
                self.assertEqual(found.stdout, expected.stdout)

    def test_limit(self):
        done = run(ALLOCATE, "exhaust", BUMP_LIMIT_MIB="64")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(int(done.stdout), range(58, 65))

    def test_its_first_refusal_leaves_a_mark(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "refused")
            self.assertEqual(run("ls", "/", BUMP_LIMIT_MIB="64", BUMP_REFUSED=mark).returncode, 0)
            self.assertFalse(os.path.exists(mark))
            self.assertEqual(run(ALLOCATE, "exhaust", BUMP_LIMIT_MIB="64", BUMP_REFUSED=mark).returncode, 0)
            self.assertTrue(os.path.exists(mark))

    def test_operator_new_throws_beyond_the_limit(self):
        source = "#include <new>\n#include <cstdio>\nint main() {\n" \
                 "  try { for (;;) new char[100000]; } catch (const std::bad_alloc&) { std::puts(\"thrown\"); }\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "throws")
            subprocess.run(["c++", "-x", "c++", "-fno-builtin", "-o", program, "-"], input=source, text=True,
                           check=True)
            done = run(program, BUMP_LIMIT_MIB="32")
        self.assertEqual((done.returncode, done.stdout), (0, "thrown\n"))

    def test_starts_where_little_can_be_reserved(self):
        done = run("sh", "-c", "ulimit -v 400000; exec ls /")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usr", done.stdout)

    def test_never_reuses(self):
        # 200 times 1 MiB allocated and freed: what was touched stays.
        code = "for _ in range(200): x = bytearray(b'1') * (1 << 20); del x\n" \
               "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')))"
        self.assertGreater(int(run(sys.executable, "-S", "-c", code).stdout), 190 << 10)
        self.assertLess(int(run(sys.executable, "-S", "-c", code, preload=None).stdout), 50 << 10)


if __name__ == "__main__":
    unittest.main()
