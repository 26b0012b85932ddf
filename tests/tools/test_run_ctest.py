"""scripts/run_ctest.py: what is run once more and what never, what is counted, and what the end of a log tells."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
SCRIPT = os.path.join(SOURCE, "scripts", "run_ctest.py")

SUITE = """Running main() from gtest_main.cc
[==========] Running 4 tests from 1 test suite.
[ RUN      ] Bags.AreEmptied
[       OK ] Bags.AreEmptied (0 ms)
[ RUN      ] Bags.AreSealed
/w/bags_test.cpp:7: Skipped
no seal here
[  SKIPPED ] Bags.AreSealed (0 ms)
[ RUN      ] Bags.AreFilled
%s
[ RUN      ] Bags.AreCounted
[       OK ] Bags.AreCounted (0 ms)
[==========] 4 tests from 1 test suite ran. (1 ms total)
[  PASSED  ] %d tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Bags.AreSealed
%s"""
PASSED = SUITE % ("[       OK ] Bags.AreFilled (0 ms)", 3, "")
FAILED = SUITE % (
    "/w/bags_test.cpp:9: Failure\nExpected: (a) <= (b), actual: 3 vs 2\n\n[  FAILED  ] Bags.AreFilled (0 ms)", 2,
    "[  FAILED  ] 1 test, listed below:\n[  FAILED  ] Bags.AreFilled\n",
)


class Runs(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="spanalloc-ctest-")
        self.addCleanup(holder.cleanup)
        self.folder = os.path.join(holder.name, "build")
        self.logs = os.path.join(holder.name, "logs")
        os.mkdir(self.folder)
        os.mkdir(self.logs)
        self.tests = []

    def add(self, name, shell, **properties):
        """A test that runs this; `tries` beside it holds a line for each time."""
        self.tests.append(f'add_test([=[{name}]=] "sh" "-c" [=[echo x >>"{self.folder}/{len(self.tests)}.tries"; {shell}]=])')
        for key, value in properties.items():
            self.tests.append(f'set_tests_properties([=[{name}]=] PROPERTIES {key} "{value}")')

    @staticmethod
    def ends_soon_after(text):
        """Properties of a test that runs into its time-out once it has said this, however slowly it came there."""
        return {"TIMEOUT": 600, "TIMEOUT_AFTER_MATCH": f"1;{text}"}

    def say(self, name, text, code=0, **properties):
        path = os.path.join(self.folder, f"{len(self.tests)}.text")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.add(name, f"cat {path}; exit {code}", **properties)

    def tries(self, at):
        with open(os.path.join(self.folder, f"{at}.tries"), encoding="utf-8") as file:
            return len(file.readlines())

    def run_them(self, *options, part="tests", **environment):
        with open(os.path.join(self.folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write("\n".join(self.tests) + "\n")
        done = subprocess.run(
            [sys.executable, SCRIPT, part, self.folder, self.logs, *options], stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, env={**os.environ, **environment},
        )
        self.lines = [line for line in done.stdout.splitlines()
                      if line.startswith(("skipped: ", "flaky: ", "failed: ", "core: ")) or re.match(r"\d+ passed, ", line)]
        return done.returncode

    FIRST_TIME_ONLY = '[ $(wc -l <"{}/{}.tries") -gt 1 ] || {{ echo "AssertionError: 7 is not 5"; {}; }}'

    def once(self, ends, at=0):
        return self.FIRST_TIME_ONLY.format(self.folder, at, ends)


class RunCtestTest(Runs):
    def test_counts(self):
        self.add("a", "true")
        self.add("b", "echo 'skipped: no such program'; exit 77", SKIP_RETURN_CODE=77)
        self.assertEqual(self.run_them(), 0)
        self.assertEqual(self.lines, ["skipped: b: no such program", "1 passed, 0 failed, 1 skipped"])

    def test_a_failure_is_told_and_kept(self):
        self.add("a b/c", "echo before; echo 'AssertionError: 7 is not 5'; exit 1")
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines, ["failed: a b/c: AssertionError: 7 is not 5", "0 passed, 1 failed, 0 skipped"])
        (kept,) = os.listdir(os.path.join(self.logs, "failed", "tests"))
        with open(os.path.join(self.logs, "failed", "tests", kept), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("before\nAssertionError", text)
        repeat = next(line for line in text.splitlines() if line.startswith("repeat: "))
        done = subprocess.run(["sh", "-c", repeat[len("repeat: "):]], stdout=subprocess.PIPE, text=True, check=False)
        self.assertIn("AssertionError: 7 is not 5", done.stdout)

    def test_what_only_time_can_judge_is_run_once_more(self):
        for at, label in enumerate(("timing", "integration;timing", "bench", "tools")):
            self.tests.clear()
            self.add(f"a{at}<x>.y", self.once("exit 1"), LABELS=label)
            self.assertEqual(self.run_them(), 0)
            self.assertEqual(self.lines, [f"flaky: a{at}<x>.y: AssertionError: 7 is not 5", "1 passed, 0 failed, 0 skipped"])
            self.assertEqual(self.tries(0), 2)
            os.remove(os.path.join(self.folder, "0.tries"))

    def test_a_time_out_is_not_run_again(self):
        """Whatever it is labelled."""
        for label in ("stress", "tools"):
            with self.subTest(label):
                self.tests.clear()
                self.add("a", self.once("exec sleep 1000"), LABELS=label, **self.ends_soon_after("7 is not 5"))
                code, tries = self.run_them(), self.tries(0)
                os.remove(os.path.join(self.folder, "0.tries"))
                self.assertEqual((code, tries), (1, 1))
                self.assertEqual(self.lines[0], "failed: a: Timeout: AssertionError: 7 is not 5")

    def test_only_labelled_tests_are_run_again(self):
        self.add("a", self.once("exit 1"))
        self.assertEqual((self.run_them(), self.tries(0)), (1, 1))

    def test_a_failure_that_stays_fails(self):
        self.add("a", "exit 1", LABELS="timing")
        self.assertEqual(self.run_them(), 1)
        self.assertEqual((self.lines, self.tries(0)), (["failed: a", "0 passed, 1 failed, 0 skipped"], 2))

    def test_other_failures_are_not_run_again(self):
        self.add("a", self.once("exit 1"), LABELS="unit")
        self.assertEqual((self.run_them(), self.tries(0)), (1, 1))

    def test_what_no_machine_is_to_blame_for_is_not_run_again(self):
        for end in (
            "kill -SEGV $$", "kill -ABRT $$", "echo 'ERROR: AddressSanitizer: heap-use-after-free'; exit 1",
            "echo 'WARNING: ThreadSanitizer: data race'; exit 1", "echo 'a.cpp:1: runtime error: shift'; exit 1",
            "echo 'spanalloc: free list overwritten'; exit 1", "echo 'died with <Signals.SIGSEGV: 11>'; exit 1",
            "echo 'block 7 is damaged'; exit 1", "echo \"Tuples differ: (-11, '') != (0, '')\"; exit 1",
            "echo \"(1, 'spanalloc: free of no block')\"; exit 1", "echo 'two each  tso  3 executions, failure found'; exit 1",
            "echo 'subprocess.TimeoutExpired: a timed out after 600 seconds'; exit 1", "echo \"'hung' != 'ok'\"; exit 1",
        ):
            with self.subTest(end):
                self.tests.clear()
                self.add("a", self.once(end), LABELS="bench")
                code, tries = self.run_them(), self.tries(0)
                os.remove(os.path.join(self.folder, "0.tries"))
                self.assertEqual((code, tries, self.lines[-1]), (1, 1, "0 passed, 1 failed, 0 skipped"))

    def test_a_test_that_could_not_start_fails(self):
        self.tests.append('add_test(a "/nonexistent/program")')
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_no_tests_is_a_failure(self):
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_tests_of_a_suite_are_counted_one_by_one(self):
        self.say("Bags", PASSED)
        self.assertEqual(self.run_them(), 0)
        self.assertEqual(self.lines, ["skipped: Bags.AreSealed: no seal here", "3 passed, 0 failed, 1 skipped"])

    def test_a_failure_of_a_suite_is_named(self):
        self.say("Bags", FAILED, 1)
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines, [
            "skipped: Bags.AreSealed: no seal here",
            "failed: Bags: Bags.AreFilled: bags_test.cpp:9: Failure Expected: (a) <= (b), actual: 3 vs 2",
            "2 passed, 1 failed, 1 skipped",
        ])

    def test_a_crash_in_a_suite_is_named(self):
        self.say("Bags", PASSED.partition("[       OK ] Bags.AreFilled")[0], 1)
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines, ["skipped: Bags.AreSealed: no seal here", "failed: Bags: in Bags.AreFilled",
                                      "1 passed, 1 failed, 1 skipped"])

    def test_what_may_not_be_skipped(self):
        rules = os.path.join(self.logs, "rules")
        with open(rules, "w", encoding="utf-8") as file:
            file.write("# A comment.\n[tests programs]\na.*  it is installed\nBags\\.AreSealed  wax is there\n[asan]\nb  why\n")
        self.add("a1", "exit 77", SKIP_RETURN_CODE=77)
        self.add("b", "exit 77", SKIP_RETURN_CODE=77)
        self.say("Bags", PASSED)
        self.assertEqual(self.run_them("--never-skipped", rules), 1)
        self.assertEqual(self.lines[-1], "3 passed, 2 failed, 1 skipped")
        self.assertTrue(any(line.startswith("failed: a1: may not be skipped (it is installed)") for line in self.lines))
        self.assertIn("failed: Bags: Bags.AreSealed: may not be skipped (wax is there), but was: no seal here", self.lines)
        self.assertEqual(self.run_them("--never-skipped", rules, part="tests-alone"), 1)
        self.assertEqual(self.run_them("--never-skipped", rules, part="clang"), 0)

    def test_a_suite_that_ends_too_early_fails(self):
        self.say("Bags", PASSED.partition("[       OK ] Bags.AreFilled")[0])
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines[-2:], [
            "failed: Bags: ended with exit code 0, but not after the last of 4 tests: in Bags.AreFilled",
            "1 passed, 1 failed, 1 skipped",
        ])

    def test_a_class_without_tests_fails(self):
        self.say("unittest", "\nRan 0 tests in 0.000s\n\nOK\n", LABELS="tools")
        self.assertEqual((self.run_them(), self.tries(0)), (1, 1))
        self.assertEqual(self.lines[0], "failed: unittest: ran no tests")

    def test_what_ctest_leaves_out_fails(self):
        self.add("a", "exit 1")
        self.add("b", "true")
        self.assertEqual(self.run_them("-j", "1", "--stop-on-failure"), 1)
        self.assertEqual(self.lines, ["failed: a", "failed: b: was not run", "0 passed, 2 failed, 0 skipped"])

    def test_a_filter_that_matches_nothing_fails(self):
        self.say("Bags", "[==========] Running 0 tests from 0 test suites.\n"
                         "[==========] 0 tests from 0 test suites ran. (0 ms total)\n[  PASSED  ] 0 tests.\n")
        self.assertEqual(self.run_them(), 1)

    def test_a_failure_before_a_time_out_is_told(self):
        text = FAILED.partition("[ RUN      ] Bags.AreCounted")[0] + "[ RUN      ] Bags.AreCounted\n"
        path = os.path.join(self.folder, "text")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.add("Bags", f"cat {path}; exec sleep 1000", **self.ends_soon_after("Bags.AreCounted"))
        self.assertEqual(self.run_them(), 1)
        self.assertTrue(any(line.startswith("failed: Bags: Bags.AreFilled: bags_test.cpp:9") for line in self.lines))
        self.assertTrue(any(line.startswith("failed: Bags: Timeout: in Bags.AreCounted") for line in self.lines))

    ONE = """[==========] Running 1 test from 1 test suite.
[ RUN      ] Bags.AreSealed
/w/bags_test.cpp:7: Skipped
no seal here
[  SKIPPED ] Bags.AreSealed (0 ms)
[==========] 1 test from 1 test suite ran. (0 ms total)
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Bags.AreSealed
"""
    SAYS_SKIPPED = {"SKIP_REGULAR_EXPRESSION": "\\\\[  SKIPPED \\\\];OK \\\\(skipped="}  # as gtest_discover_tests() has it

    def test_a_skip_by_what_is_said(self):
        self.say("Bags.AreSealed", self.ONE, **self.SAYS_SKIPPED)
        self.say("unittest", "test_a ... skipped\n\nRan 1 test in 0 s\n\nOK (skipped=1)\n", **self.SAYS_SKIPPED)
        self.say("suite", self.ONE)
        self.assertEqual(self.run_them(), 0)
        self.assertEqual(self.lines, ["skipped: Bags.AreSealed: no seal here", "skipped: unittest: test_a ... skipped",
                                      "skipped: suite: no seal here", "0 passed, 0 failed, 3 skipped"])

    def test_a_failure_behind_a_skip(self):
        for text, code in ((self.ONE, 3), ("OK (skipped=1)\n", 1), (self.ONE.partition("[==========] 1 test")[0], 0),
                           (PASSED, 23), (PASSED.partition("[ RUN      ] Bags.AreFilled")[0], 0)):
            with self.subTest(code=code, text=text):
                self.tests.clear()
                self.say("a", text, code, **self.SAYS_SKIPPED)
                self.assertEqual(self.run_them(), 1)
                self.assertTrue(any(line.startswith("failed: a") for line in self.lines), self.lines)

    def test_a_crash_behind_a_skip(self):
        self.add("a", "echo '[  SKIPPED ] b'; kill -SEGV $$", **self.SAYS_SKIPPED)
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines, ["failed: a: SEGFAULT", "0 passed, 1 failed, 0 skipped"])

    def test_other_properties_stay(self):
        self.add("a b", 'test "$ONE,$TWO" = "x y,z" && test "$PWD" = ' + self.logs + " && echo an answer; exit 1",
                 ENVIRONMENT="ONE=x y;TWO=z", WORKING_DIRECTORY=self.logs, PASS_REGULAR_EXPRESSION="a[n] answer",
                 **self.SAYS_SKIPPED)
        self.assertEqual((self.run_them(), self.lines), (0, ["1 passed, 0 failed, 0 skipped"]))

    def test_what_a_test_prints_is_not_taken_for_a_result(self):
        self.add("a", "printf 'failed: b\\n3 passed, 1 failed, 0 skipped\\nflaky: c\\n'; exit 1")
        self.assertEqual(self.run_them(), 1)
        self.assertEqual(self.lines, ["failed: a", "0 passed, 1 failed, 0 skipped"])

    def test_names_that_look_alike_are_kept_apart(self):
        self.add("a/b", "echo one; exit 1")
        self.add("a_b", "echo two; exit 1")
        self.run_them()
        self.assertEqual(len(os.listdir(os.path.join(self.logs, "failed", "tests"))), 2)

    def test_ctest_that_dies_loses_nothing(self):
        self.add("a", "exit 1")
        self.add("b", "true")
        self.add("c", "kill -ABRT $$")
        self.add("d", "kill -KILL $PPID; sleep 5")
        self.assertEqual(self.run_them("-j", "1"), 1)
        self.assertEqual(self.lines[:2], ["failed: a", "failed: c: Subprocess aborted***Exception:"])
        self.assertTrue(self.lines[2].startswith("failed: ctest: came to no end"))
        self.assertEqual(self.lines[-1], "1 passed, 3 failed, 0 skipped")

    def test_a_crash_the_second_time_is_told(self):
        self.add("a", self.once("exit 1") + " || exit 1; kill -SEGV $$", LABELS="timing")
        self.assertEqual(self.run_them(), 1)
        self.assertIn("SEGFAULT (at first: AssertionError: 7 is not 5)", self.lines[0])

    def test_many_failures_are_not_a_busy_machine(self):
        for at in range(11):
            self.add(f"a{at}", "exit 1", LABELS="timing")
        self.assertEqual(self.run_them(), 1)
        self.assertEqual((self.lines[-1], self.tries(0)), ("0 passed, 11 failed, 0 skipped", 1))

    def test_skips_of_a_part_without_ctest(self):
        rules, log = os.path.join(self.logs, "rules"), os.path.join(self.logs, "log")
        with open(rules, "w", encoding="utf-8") as file:
            file.write("[counts]\nshape .*  the peers are installed\n")
        with open(log, "w", encoding="utf-8") as file:
            file.write("skipped: shape 5: no peer\nskipped: start: no such thing\n1 passed, 0 failed, 2 skipped\n")
        for part, code, lines in (
            ("counts", 1, ["failed: shape 5: may not be skipped (the peers are installed), but was: no peer",
                           "0 passed, 1 failed, 0 skipped"]),
            ("bench", 0, ["0 passed, 0 failed, 0 skipped"]),
        ):
            done = subprocess.run(
                [sys.executable, SCRIPT, "--judge-skips", part, rules, log], stdout=subprocess.PIPE, text=True, check=False
            )
            self.assertEqual((done.returncode, done.stdout.splitlines()), (code, lines))


def functions_of_test(*names):
    """Shell functions of scripts/test."""
    with open(os.path.join(SOURCE, "scripts", "test"), encoding="utf-8") as file:
        found = re.findall(rf"^(?:{'|'.join(names)})\(\) \{{.*?\}}$", file.read(), re.MULTILINE | re.DOTALL)
    assert len(found) == len(names), names
    return found


class CountedTest(unittest.TestCase):
    """What scripts/test runs without ctest."""

    def counted(self, name, shell):
        """(exit code, lines) of that."""
        with tempfile.TemporaryDirectory() as logs:
            script = "\n".join(["set -eu", *functions_of_test("counted"), f'counted {name} sh -c "$COMMAND"'])
            done = subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True, check=False,
                                  env={**os.environ, "COMMAND": shell, "root": SOURCE, "logs": logs})
        return done.returncode, done.stdout.splitlines()

    def test_one_that_passes(self):
        lines = ["start-up memory", "1 passed, 0 failed, 0 skipped"]
        self.assertEqual(self.counted("counts", f"printf '{lines[0]}\\n{lines[1]}\\n'"),
                         (0, [*lines, "0 passed, 0 failed, 0 skipped"]))

    def test_one_that_fails(self):
        self.assertEqual(self.counted("counts", "echo 1 passed, 2 failed, 0 skipped; exit 1")[0], 1)

    def test_one_that_comes_to_no_count(self):
        for end in ("exit 0", "exit 3", "kill -SEGV $$"):
            code, lines = self.counted("counts", f"echo begun; {end}")
            self.assertEqual((code, lines[0]), (1, "begun"))
            self.assertIn("0 passed, 1 failed, 0 skipped", lines)

    def test_one_that_fails_behind_its_count(self):
        self.assertEqual(self.counted("counts", "echo 2 passed, 0 failed, 0 skipped; kill -SEGV $$")[0], 1)

    def test_its_skips_are_judged_in_each_part(self):
        for name in ("counts", "bench", "aarch64-counts"):
            code, lines = self.counted(name, "echo skipped: shapes: no emulator; echo 1 passed, 0 failed, 1 skipped")
            self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"), name)
        self.assertEqual(self.counted("counts", "echo skipped: start-up memory: x; echo 0 passed, 0 failed, 1 skipped")[0], 0)

    def test_nothing_counts_without_it(self):
        with open(os.path.join(SOURCE, "scripts", "test"), encoding="utf-8") as file:
            calls = re.findall(r"^.*(?:_count|startup_memory|smoke)\.py.*$", file.read(), re.MULTILINE)
        self.assertEqual(len(calls), 5)
        for call in calls:
            self.assertRegex(call, r"(^|\{) +counted (counts|bench|aarch64-counts) ")


class ConfigureTest(unittest.TestCase):
    """The options that scripts/test configures a build folder with."""

    PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(small NONE)
set(SPANALLOC_UNIT_OPTIMISATION -O1 CACHE STRING "")
file(WRITE ${CMAKE_BINARY_DIR}/optimisation ${SPANALLOC_UNIT_OPTIMISATION})
"""

    def test_what_full_has_set_does_not_stay(self):
        functions = functions_of_test("is_full", "configure_tests")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
                file.write(self.PROJECT)
            script = "\n".join([*functions, f'configure() {{ shift 2; cmake -G Ninja -S {folder} -B {folder}/build "$@"; }}',
                                "configure_tests release ci"])
            for full, wanted in (("", "-O1"), ("yes", "-O2"), ("", "-O1")):
                subprocess.run(["sh", "-c", script], env={**os.environ, "SPANALLOC_TEST_FULL": full}, check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                with open(os.path.join(folder, "build", "optimisation"), encoding="utf-8") as file:
                    self.assertEqual(file.read(), wanted)


class HangTest(Runs):
    """How programs of GoogleTest end that hang. (Each begins its alarm anew: the seconds may be few on any machine.)"""

    PROGRAM = os.environ.get("SPANALLOC_TEST_HANGING")

    def setUp(self):
        super().setUp()
        if not self.PROGRAM:
            self.skipTest("there is no program that hangs in a cross build")

    def ends(self, test, seconds="0.05"):
        """(exit code, output) of the program, and of what it has started: that it ends, too."""
        done = subprocess.run([self.PROGRAM, f"--gtest_filter={test}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, cwd=self.folder,
                              env={**os.environ, "SPANALLOC_TEST_CORES": "yes", "SPANALLOC_TEST_HANG_S": seconds})
        return done.returncode, done.stdout

    def test_each_ends(self):
        for test in ("Hangs.Alone", "Hangs.BehindAnAlarmTakenBack", "Hangs.WithAborts"):
            self.assertEqual(self.ends(test)[0], -signal.SIGABRT, test)

    def test_a_childs_end_is_not_taken_for_what_was_expected(self):
        for test in ("Hangs.InAChild", "HangsDeathTest.HavingSaidWhatWasExpected", "HangsDeathTest.InAFreshProcess"):
            code, output = self.ends(test)
            self.assertEqual(code, -signal.SIGABRT, test)
            self.assertNotIn("[  PASSED  ] 1 test", output)

    def test_nobody_is_ended_unless_asked(self):
        self.assertEqual(self.ends("HangsDeathTest.DiesOnPurpose", "600")[0], 0)

    def test_it_is_a_failure(self):
        self.add("Hangs.Alone", f"exec {self.PROGRAM} --gtest_filter=Hangs.Alone", LABELS="tools",
                 WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.run_them(SPANALLOC_TEST_HANG_S="0.05"), 1)
        self.assertEqual((self.lines[-2:], self.tries(0)),
                         (["failed: Hangs.Alone: Subprocess aborted", "0 passed, 1 failed, 0 skipped"], 1))


class CoreTest(Runs):
    def setUp(self):
        super().setUp()
        with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
            pattern = file.read().strip()
        if pattern != "core":
            self.skipTest(f"core dumps go to {pattern} here")

    def cores(self):
        found = [line[len("core: "):] for line in self.lines if line.startswith("core: ")]
        self.assertEqual(sorted(found), sorted(entry.path for entry in os.scandir(os.path.join(self.logs, "cores"))))
        return found

    def test_each_crash_leaves_its_core(self):
        """Though all have one name."""
        for name in "ab":
            self.add(name, "ulimit -S -c $(ulimit -H -c); kill -SEGV $$", WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.run_them("-j", "1"), 1)
        cores = self.cores()
        self.assertEqual(len(cores), 2)
        self.assertRegex(cores[0], rf"^{self.logs}/cores/tests-build-\d+-\d+-core$")

    def test_what_hangs_leaves_its_core_and_its_childs(self):
        if not HangTest.PROGRAM:
            self.skipTest("there is no program that hangs in a cross build")
        for test in ("Hangs.Alone", "Hangs.InAChild"):
            with self.subTest(test):
                self.setUp()
                self.add(test, f"exec {HangTest.PROGRAM} --gtest_filter={test}", WORKING_DIRECTORY=self.folder)
                self.assertEqual(self.run_them(SPANALLOC_TEST_HANG_S="0.2"), 1)
                with open(os.path.join(self.logs, "failed", "tests", f"{test}.log"), encoding="utf-8") as file:
                    ended = re.findall("^hung: .*", file.read(), re.MULTILINE)
                self.assertGreaterEqual(len(ended), 1)  # a slow machine's process may not have come to its child
                self.assertEqual(len(self.cores()), len(ended))
                self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("hung-")])

    def test_who_dies_on_purpose_leaves_none(self):
        if not HangTest.PROGRAM:
            self.skipTest("there is no program that hangs in a cross build")
        self.add("a", f"exec {HangTest.PROGRAM} --gtest_filter=HangsDeathTest.DiesOnPurpose",
                 WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.run_them(), 0)
        self.assertEqual(self.lines, ["1 passed, 0 failed, 0 skipped"])


if __name__ == "__main__":
    unittest.main()
