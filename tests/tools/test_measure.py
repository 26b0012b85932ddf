"""spanalloc-measure: exit codes, signals, and memory that is known beforehand.

Nothing hangs on how fast or how busy the machine is: what must be there at one time waits for each other by pipes, and
what is counted by the kernel is compared with what the kernel told the program itself."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

MEASURE = os.environ["SPANALLOC_TEST_MEASURE"]
PROBE = os.environ["SPANALLOC_TEST_PROBE"]
MIB = 1024


def measure(*command, options=()):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "record")
        run = subprocess.run(
            [MEASURE, "--out", out, *options, "--", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, timeout=600, check=False,
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
        # Each holds the pipe of the output: were one left, this would not come back.
        run, record = measure("sh", "-c", "sleep 100000 & sleep 100000", options=("--timeout", "0.3"))
        self.assertEqual(run.returncode, 124)
        self.assertTrue(record["timed_out"])

    def test_wall_time(self):
        self.assertGreaterEqual(measure("sleep", "0.1")[1]["wall_s"], 0.1)

    def test_signal_to_it_reaches_the_command(self):
        with subprocess.Popen([MEASURE, "--out", "/dev/null", "--", "sh", "-c", "echo ready; exec sleep 100000"],
                              stdout=subprocess.PIPE) as run:
            run.stdout.readline()
            run.terminate()
            self.assertEqual(run.wait(timeout=600), -signal.SIGTERM)

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
        # The three end together, when the pipe is closed: at the first one's end all four are there.
        code = (
            "import os\nx = bytearray(b'1') * (64 << 20)\nended, end = os.pipe()\n"
            "for _ in range(3):\n    if os.fork() == 0:\n        os.close(end)\n        os.read(ended, 1)\n"
            "        os._exit(0)\n"
            "os.close(end)\nfor _ in range(3): os.wait()"
        )
        record = measure(*python(code))[1]
        self.assertEqual((record["processes"], record["most_processes_at_once"]), (4, 4))
        self.assertGreater(record["peak_kib"], 64 * MIB)
        self.assertLess(record["peak_kib"], 110 * MIB)

    def test_memory_of_a_tree_is_summed(self):
        # None ends before all have their memory.
        code = (
            "import os\nfilled, fill = os.pipe()\nended, end = os.pipe()\n"
            "for _ in range(3):\n    if os.fork() == 0:\n        os.close(end)\n"
            "        x = bytearray(b'1') * (32 << 20)\n        os.write(fill, b'x')\n        os.read(ended, 1)\n"
            "        os._exit(0)\n"
            "for _ in range(3): os.read(filled, 1)\n"
            "os.close(end)\nfor _ in range(3): os.wait()"
        )
        record = measure(*python(code))[1]
        self.assertGreater(record["peak_kib"], 96 * MIB)

    def test_children_of_threads_count(self):
        # Only samples find such a child. Each ends with a sleep of the sampling thread, which the kernel counts: the
        # child stays for 64 of them, and every eighth looks for children.
        child = (
            "import os, sys\nx = bytearray(b'1') * (64 << 20)\n"
            "[sampler] = [t for t in os.listdir(f'/proc/{sys.argv[1]}/task') if t != sys.argv[1]]\n"
            "def slept():\n"
            "    for line in open(f'/proc/{sys.argv[1]}/task/{sampler}/status'):\n"
            "        if line.startswith('voluntary'): return int(line.split()[1])\n"
            "until = slept() + 64\nwhile slept() < until: pass"
        )
        code = (
            "import os, subprocess, sys, threading\n"
            f"command = [sys.executable, '-S', '-c', {child!r}, str(os.getppid())]\n"
            "t = threading.Thread(target=lambda: subprocess.run(command, check=True))\n"
            "t.start(); t.join()"
        )
        run, record = measure(*python(code))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertGreater(record["peak_kib"], 64 * MIB)

    def test_cpu_and_faults(self):
        code = "import mmap, time\nm = mmap.mmap(-1, 2000 << 12)\nm.madvise(15)\nfor i in range(2000): m[i << 12] = 1\n" \
               "while time.process_time() < 0.05: pass"
        record = measure(*python(code))[1]
        self.assertGreater(record["user_s"] + record["system_s"], 0.049)  # the kernel rounds to microseconds
        self.assertGreaterEqual(record["minor_faults"], 2000)

    SLEEPS = "import resource, time\n" \
             "while resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw < 200: time.sleep(0.0001)\n" \
             "print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw)"

    def test_context_switches(self):
        run, record = measure(*python(self.SLEEPS))
        self.assertIn(record["voluntary_switches"], range(int(run.stdout), int(run.stdout) + 50))
        # Two processes that never wait, on one CPU: each is made to give way.
        spin = "import os, resource, signal\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" \
               "child = os.fork()\nwhile child == 0: pass\n" \
               "while resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw < 11: pass\n" \
               "os.kill(child, signal.SIGKILL)\nos.wait()"
        self.assertGreater(measure(*python(spin))[1]["involuntary_switches"], 10)

    def test_switches_of_children_count(self):
        record = measure(*python(f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {self.SLEEPS!r}])"))[1]
        self.assertGreaterEqual(record["voluntary_switches"], 200)

    # A clock for spanalloc-measure itself: each look at it is a millisecond later than the one before in the same
    # thread, so a sample takes one. And a record of what it sleeps.
    CLOCK = """
        #include <stdio.h>
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        static __thread long looks;
        int clock_gettime(clockid_t id, struct timespec* t) {
          (void)id;
          looks++;
          t->tv_sec = looks / 1000;
          t->tv_nsec = looks % 1000 * 1000000;
          return 0;
        }
        int nanosleep(const struct timespec* t, struct timespec* left) {
          (void)left;
          FILE* out = fopen(getenv("SLEEPS_OUT"), "ae");
          fprintf(out, "%.6f\\n", (double)t->tv_sec + (double)t->tv_nsec * 1e-9);
          fclose(out);
          return (int)syscall(SYS_nanosleep, &(struct timespec){0, 1000000}, NULL);
        }
    """

    def test_share_bounds_the_sampling(self):
        with tempfile.TemporaryDirectory() as folder:
            clock, sleeps = os.path.join(folder, "clock.so"), os.path.join(folder, "sleeps")
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", clock], input=self.CLOCK, text=True,
                           check=True)
            for interval, share, pause in (("0.01", "50", 0.001), ("0.01", "1", 0.099), ("0.01", "100", 0.00001),
                                           ("20", "50", 0.020)):
                open(sleeps, "w", encoding="utf-8").close()
                environment = {**os.environ, "LD_PRELOAD": clock, "SLEEPS_OUT": sleeps}
                # cat waits for the pipe to close, which happens after the first sleeps.
                with subprocess.Popen(
                        [MEASURE, "--out", "/dev/null", "--interval", interval, "--share", share, "--", "env",
                         "LD_PRELOAD=", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment) as run:
                    while os.path.getsize(sleeps) < 100 and run.poll() is None:
                        time.sleep(0.01)
                    run.stdin.close()
                    self.assertEqual(run.wait(timeout=600), 0)
                with open(sleeps, encoding="utf-8") as file:
                    found = [float(line) for line in file]
                self.assertGreater(len(found), 5)
                for seconds in found:
                    self.assertAlmostEqual(seconds, pause, 5)
        self.assertEqual(measure("true", options=("--share", "0"))[0].returncode, 125)

    def test_stopped_program_goes_on(self):
        # A child sees it stopped, and only then lets it go on; ends with 1 where it has not seen it.
        code = (
            "import os, signal, sys, time\ntold, tell = os.pipe()\nended, end = os.pipe()\nparent = os.getpid()\n"
            "if os.fork() == 0:\n"
            "    os.close(end)\n    os.set_blocking(ended, False)\n    os.read(told, 1)\n    stopped = False\n"
            "    while True:\n"
            "        if open(f'/proc/{parent}/stat').read().rpartition(')')[2].split()[0] in 'Tt':\n"
            "            stopped = True\n            os.kill(parent, signal.SIGCONT)\n            time.sleep(0.01)\n"
            "        try:\n            if os.read(ended, 1) == b'': os._exit(not stopped)\n"
            "        except BlockingIOError: pass\n"
            "os.write(tell, b'x')\nos.kill(parent, signal.SIGSTOP)\nos.close(end)\n"
            "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))"
        )
        run, record = measure(*python(code))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(record["processes"], 2)

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
