"""spanalloc-measure: exit codes, signals, and memory that is known beforehand."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

MEASURE = os.environ["SPANALLOC_TEST_MEASURE"]
PROBE = os.environ["SPANALLOC_TEST_PROBE"]
MIB = 1024


def measure(*command, options=()):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "record")
        run = subprocess.run(
            [MEASURE, "--out", out, *options, "--", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )
        record = None
        if os.path.exists(out):
            with open(out, encoding="utf-8") as file:
                record = json.load(file)
    return run, record


def python(code):
    return (sys.executable, "-S", "-c", code)


class MeasureTest(unittest.TestCase):
    def test_exit_code(self):
        run, record = measure("sh", "-c", "exit 42")
        self.assertEqual((run.returncode, record["exit_code"], record["signal"]), (42, 42, 0))

    def test_signal(self):
        run, record = measure("sh", "-c", "kill -SEGV $$")
        self.assertEqual((run.returncode, record["signal"]), (-signal.SIGSEGV, signal.SIGSEGV))

    def test_missing_and_not_executable(self):
        self.assertEqual(measure("/nonexistent/program")[0].returncode, 127)
        self.assertEqual(measure("/etc/passwd")[0].returncode, 126)

    def test_output_passes_through(self):
        self.assertEqual(measure("echo", "hello")[0].stdout, "hello\n")

    def test_timeout_ends_the_tree(self):
        run, record = measure("sh", "-c", "sleep 50 & sleep 50", options=("--timeout", "0.3"))
        self.assertEqual(run.returncode, 124)
        self.assertTrue(record["timed_out"])
        self.assertLess(record["wall_s"], 20)

    def test_signal_to_it_reaches_the_command(self):
        with subprocess.Popen([MEASURE, "--out", "/dev/null", "--", "sh", "-c", "echo ready; exec sleep 50"],
                              stdout=subprocess.PIPE) as run:
            run.stdout.readline()
            run.terminate()
            self.assertEqual(run.wait(timeout=30), -signal.SIGTERM)

    def test_short_peak_of_a_short_program(self):
        # 64 MiB touched and given back at once: only the kernel's own peak, read at the exit stop, knows.
        base = measure(*python("pass"))[1]
        record = measure(*python("x = bytearray(64 << 20); x[::4096] = b'1' * len(x[::4096]); del x"))[1]
        self.assertEqual(record["exit_readings"], 1)
        more = record["peak_kib"] - base["peak_kib"]
        self.assertGreater(more, 63 * MIB)
        self.assertLess(more, 68 * MIB)

    def test_page_tables_count(self):
        # One byte in each of 256 stretches of 2 MiB: 1 MiB of pages, and a page of page table for each.
        base = measure(*python("pass"))[1]
        code = "import mmap, os\nm = mmap.mmap(-1, 512 << 20)\nm.madvise(15)\nfor i in range(256): m[i << 21] = 1\nos._exit(0)"
        record = measure(*python(code))[1]
        self.assertGreaterEqual(record["peak_page_tables_kib"] - base["peak_page_tables_kib"], 1000)
        self.assertGreaterEqual(record["peak_kib"] - base["peak_kib"], 2000)

    def test_shared_pages_of_a_tree_count_once(self):
        code = (
            "import os, time\nx = bytearray(b'1') * (64 << 20)\n"
            "for _ in range(3):\n    if os.fork() == 0:\n        time.sleep(0.3)\n        os._exit(0)\n"
            "for _ in range(3): os.wait()"
        )
        record = measure(*python(code))[1]
        self.assertEqual((record["processes"], record["most_processes_at_once"]), (4, 4))
        self.assertGreater(record["peak_kib"], 64 * MIB)
        self.assertLess(record["peak_kib"], 110 * MIB)

    def test_memory_of_a_tree_is_summed(self):
        code = (
            "import os, time\n"
            "for _ in range(3):\n    if os.fork() == 0:\n"
            "        x = bytearray(b'1') * (32 << 20)\n        time.sleep(0.5)\n        os._exit(0)\n"
            "for _ in range(3): os.wait()"
        )
        record = measure(*python(code))[1]
        self.assertGreater(record["peak_kib"], 96 * MIB)

    def test_children_of_threads_count(self):
        child = "x = bytearray(b'1') * (64 << 20); import time; time.sleep(0.5)"
        code = (
            "import subprocess, sys, threading\n"
            f"t = threading.Thread(target=lambda: subprocess.run([sys.executable, '-S', '-c', {child!r}]))\n"
            "t.start(); t.join()"
        )
        record = measure(*python(code))[1]
        self.assertGreater(record["peak_kib"], 64 * MIB)

    def test_cpu_and_faults(self):
        record = measure(*python("x = bytearray(b'1') * (32 << 20)\nfor i in range(10**6): pass"))[1]
        self.assertGreater(record["user_s"] + record["system_s"], 0.01)
        self.assertGreater(record["minor_faults"], 1000)

    def test_context_switches(self):
        quiet = measure(*python("pass"))[1]
        record = measure(*python("import time\nfor _ in range(200): time.sleep(0.0005)"))[1]
        self.assertGreaterEqual(record["voluntary_switches"] - quiet["voluntary_switches"], 150)
        # Two processes that never wait, on one CPU: each is made to give way.
        spin = "import os, time\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nchild = os.fork()\n" \
               "end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nif child: os.wait()"
        self.assertGreater(measure(*python(spin))[1]["involuntary_switches"], 10)

    def test_switches_of_children_count(self):
        child = "import time\nfor _ in range(200): time.sleep(0.0005)"
        record = measure(*python(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])"))[1]
        self.assertGreaterEqual(record["voluntary_switches"], 200)

    def test_share_bounds_the_sampling(self):
        busy = python("import os, time\nif os.fork() == 0:\n    time.sleep(0.6)\n    os._exit(0)\nos.wait()")
        often = measure(*busy, options=("--interval", "0.01", "--share", "50"))[1]
        seldom = measure(*busy, options=("--interval", "0.01", "--share", "1"))[1]
        self.assertLess(seldom["samples"] * 5, often["samples"])
        self.assertEqual(measure("true", options=("--share", "0"))[0].returncode, 125)

    def test_stopped_program_goes_on(self):
        code = "import os, signal, subprocess\n" \
               "subprocess.Popen(['sh', '-c', f'sleep 0.3; kill -CONT {os.getpid()}'])\n" \
               "os.kill(os.getpid(), signal.SIGSTOP)\nos.wait()"
        run, record = measure(*python(code))
        self.assertEqual(run.returncode, 0)
        self.assertGreater(record["wall_s"], 0.2)

    def test_expected_object(self):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            libc = next(line.split()[-1] for line in maps if "/libc.so.6" in line)
        self.assertTrue(measure("true", options=("--expect", libc))[1]["expected_mapped"])
        self.assertFalse(measure("true", options=("--expect", "/nonexistent.so"))[1]["expected_mapped"])

    def test_probe_names_the_object_that_defines_malloc(self):
        with tempfile.NamedTemporaryFile() as out:
            measure("sh", "-c", "true; ls / >/dev/null",
                    options=("--preload", PROBE, "--set", f"SPANALLOC_PROBE_OUT={out.name}"))
            lines = [line.split("\t") for line in out.read().decode().splitlines()]
        self.assertEqual(len(lines), 2)
        for _, object_, _ in lines:
            self.assertEqual(os.path.basename(object_), "libc.so.6")


if __name__ == "__main__":
    unittest.main()
