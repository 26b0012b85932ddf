"""The simulated machine against programs whose answer is known (bench/manycore/known), and what is made of its counts.

The answers follow from the model: a hit in a core's own cache costs 1 cycle, a line from the shared cache 40, one that
moves between caches 120, an instruction half a cycle. What a program needs to start its threads together adds some lines
that move (GATHER each thread), and hundreds of cycles."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import simulator  # noqa: E402

BENCH = os.environ.get("SPANALLOC_TEST_BENCH", "")
PLUGIN = os.path.join(BENCH, simulator.PLUGIN)
XFER, LLC, SHOOTDOWN_INTERRUPT, FAULT, LOCKED, GHZ = 120, 40, 600, 1500, 18, 3
GATHER = 12
TIMEOUT_S = 60


class KnownAnswer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        reason = simulator.why_not(PLUGIN)
        if reason:
            raise unittest.SkipTest(reason)
        cls.simulator = simulator.Simulator(PLUGIN)
        cls.addClassCleanup(cls.simulator.__exit__)

    def counts(self, program, threads, operations, cpus=8, options=(), pin=None):
        counts, self.output = self.simulator.run(
            [os.path.join(BENCH, "manycore-known", program), str(threads), str(operations)], cpus, options=options,
            timeout=TIMEOUT_S, pin=pin,
        )
        self.assertTrue(counts["measured"], "the marks of the measured part were not seen")
        return counts

    def assertWithin(self, value, low, high, what):
        self.assertTrue(low <= value <= high, f"{what}: {value} is not from {low} to {high}")


class SharingTest(KnownAnswer):
    """Lines that move, and what they cost."""

    def test_nothing_shared_moves_nothing_and_takes_as_long_as_alone(self):
        alone = self.counts("private_data", 1, 5000)
        for threads in (4, 8):
            counts = self.counts("private_data", threads, 5000)
            self.assertLessEqual(counts["transfers"] + counts["invalidations"], GATHER * threads)
            self.assertWithin(counts["cycles"], alone["cycles"], alone["cycles"] + 3000, "cycles")

    def test_a_contended_counter_moves_once_an_operation(self):
        for threads in (2, 4, 8):
            counts = self.counts("contended_counter", threads, 1000)
            moves = counts["transfers"] + counts["invalidations"]
            # Before the others come the first one may have a window of 2000 cycles for itself.
            self.assertWithin(moves, threads * 1000 - 120, threads * 1000 + GATHER * threads, "moves")
            self.assertWithin(counts["cycles"], threads * 1000 * XFER * 0.98, threads * 1000 * XFER * 1.02, "cycles")

    def test_one_thread_alone_on_the_counter_moves_nothing(self):
        counts = self.counts("contended_counter", 1, 1000)
        self.assertLessEqual(counts["transfers"] + counts["invalidations"], GATHER)

    def test_false_sharing_is_as_bad_as_sharing(self):
        for threads in (2, 4, 8):
            counts = self.counts("false_sharing", threads, 1000)
            moves = counts["transfers"] + counts["invalidations"]
            self.assertWithin(moves, threads * 1000 - 250, threads * 1000 + GATHER * threads, "moves")
            self.assertWithin(counts["cycles"], threads * 1000 * XFER * 0.97, threads * 1000 * XFER * 1.02, "cycles")

    def test_a_hand_over_is_a_transfer_and_an_invalidation(self):
        counts = self.counts("ping_pong", 2, 500)
        hand_overs = 2 * 500
        self.assertWithin(counts["transfers"], hand_overs - 5, hand_overs + 2 * GATHER, "transfers")
        self.assertWithin(counts["invalidations"], hand_overs - 5, hand_overs + 2 * GATHER, "invalidations")
        self.assertWithin(counts["cycles"] / hand_overs, 2 * XFER, 2 * XFER + 12, "cycles a hand-over")

    def test_readers_cost_the_writer_one_invalidation_and_each_other_nothing(self):
        writes = 100
        for threads in (2, 4):
            counts = self.counts("read_mostly", threads, writes)
            self.assertWithin(counts["invalidations"], writes - 2, writes + GATHER * threads, "invalidations")
            self.assertWithin(counts["transfers"], writes - 2, writes + GATHER * threads, "transfers")
            self.assertWithin(counts["llc"], writes * (threads - 2) - 5, writes * (threads - 2) + GATHER * threads, "llc")

    def test_what_fell_out_of_a_cache_comes_from_the_shared_one(self):
        counts = self.counts("written_back", 2, 1)
        lines, cache = (4 << 20) // 64, (512 << 10) // 64
        self.assertWithin(counts["transfers"], cache * 0.95, cache + 200, "transfers")
        self.assertWithin(counts["llc"], lines - cache - 200, lines - cache * 0.95 + 200, "llc")

    def test_what_a_line_costs_is_told_by_instruction(self):
        counts = self.counts("contended_counter", 4, 500)
        worst = counts["sites"][0]
        self.assertEqual(os.path.basename(worst["object"]), "contended_counter")
        self.assertGreater(worst["transfers"], 0.9 * 4 * 500)
        self.assertGreater(counts["lines"][0]["moves"], 0.9 * 4 * 500)

    def test_a_second_run_counts_the_same(self):
        runs = [self.counts("contended_counter", 8, 300) for _ in range(2)]
        for counts in runs:
            counts.pop("sites"), counts.pop("lines")
        self.assertEqual(*runs)

    def test_the_window_does_not_change_the_answer(self):
        for window in (200, 2000, 10000):
            counts = self.counts("contended_counter", 4, 2000, options=[("window", window)])
            moves = counts["transfers"] + counts["invalidations"]
            self.assertWithin(moves / 8000, 0.93, 1.01, f"moves an operation, window {window}")


class InstructionTest(KnownAnswer):
    """What a core does by itself."""

    def test_a_locked_instruction_costs_also_on_an_owned_line(self):
        atomic = self.counts("owned_atomic", 4, 5000)
        plain = self.counts("private_data", 4, 5000)
        self.assertGreaterEqual(atomic["locked"], 4 * 5000)
        self.assertLessEqual(atomic["transfers"] + atomic["invalidations"], GATHER * 4)
        # The plain increment is a load and a store in 6 instructions, the atomic one access in 4.
        self.assertWithin((atomic["cycles"] - plain["cycles"]) / 5000, LOCKED - 3, LOCKED, "cycles more an operation")

    def test_a_repeated_store_works_by_lines(self):
        counts = self.counts("string_store", 2, 50)
        lines = 2 * 50 * (64 << 10) // 64
        self.assertWithin(counts["accesses"], lines, lines * 1.2 + 2000, "accesses")


class KernelTest(KnownAnswer):
    """Threads that sleep, pages, mappings, time."""

    def test_a_sleeper_wakes_at_its_wakers_time(self):
        steps = 200000
        counts = self.counts("blocked", 4, steps)
        self.assertWithin(counts["cycles"], 2 * 2 * steps, 2 * 2 * steps + 30000, "cycles")

    def test_a_thread_that_joins_wakes_at_the_others_end(self):
        began = time.monotonic()
        counts = self.counts("joined", 1, 40)
        real = time.monotonic() - began
        # 40000 cycles, 15000 to start a thread, 6000 to wake up, and what the C library does.
        self.assertWithin(counts["cycles"] / 40, 61000, 75000, "cycles a thread")
        self.assertLess(real, 5, "the simulation waits for something that does not happen")

    def test_a_wait_with_a_limit_ends_in_simulated_time(self):
        rounds = 50
        counts = self.counts("timed_wait", 3, rounds)
        self.assertEqual(json.loads(self.output)["gave_up"], 0)
        self.assertGreaterEqual(counts["wakes"], rounds - 1)
        self.assertWithin(counts["cycles"] - 3_000_000, rounds * 20000, rounds * 60000, "cycles")

    def test_a_fresh_page_is_a_fault_and_so_is_one_given_back(self):
        counts = self.counts("fresh_memory", 4, 200)
        self.assertWithin(counts["faults"], 2 * 200 * 4, 2 * 200 * 4 + 40, "faults")
        self.assertGreater(counts["cycles"], 2 * 200 * FAULT)

    def test_pages_taken_away_interrupt_all_others(self):
        for threads in (2, 4):
            counts = self.counts("shootdown", threads, 100)
            self.assertEqual(counts["shootdowns"], 100)
            self.assertEqual(counts["interrupts"], 100 * (threads - 1))
            self.assertEqual(counts["calls"]["28"], 100)  # madvise

    def test_the_program_sees_the_machines_time_and_cpus(self):
        for cpus in (4, 64):
            self.counts("simulated_time", 4, 100000, cpus=cpus)
            seen = json.loads(self.output)
            self.assertWithin(seen["computing_ns"], 200000 / GHZ, 200000 / GHZ + 1000, "nanoseconds of computing")
            self.assertWithin(seen["sleeping_ns"], 1_000_000, 1_010_000, "nanoseconds of sleeping")
            # Answered without the kernel, as by a real machine's vDSO: 70 cycles, the system call's 400 not.
            self.assertWithin(seen["1000_readings_ns"] / 1000, 70 / GHZ, 120 / GHZ, "nanoseconds of a reading")
            self.assertEqual(seen["apart"], 1, "two threads were on one CPU")
            self.assertEqual({seen["online"], seen["configured"], seen["affinity"]}, {cpus})

    def test_a_free_core_takes_the_next_thread(self):
        counts = self.counts("successors", 4, 200)
        self.assertGreater(counts["threads"], 4 * 200)
        self.assertLessEqual(counts["cores"], 4 * 6)

    def test_another_process_is_refused_with_a_reason(self):
        with self.assertRaisesRegex(simulator.SimulationFailed, "only threads are simulated"):
            self.simulator.run(["/bin/sh", "-c", "/bin/true; /bin/true"], 4, timeout=TIMEOUT_S)

    def test_a_wrong_setting_is_refused(self):
        with self.assertRaisesRegex(simulator.SimulationFailed, "."):
            self.counts("private_data", 2, 10, options=[("no-such-cost", 1)])

    def test_a_run_that_does_not_end_is_cut_short(self):
        program = os.path.join(BENCH, "manycore-known", "contended_counter")
        with self.assertRaises(simulator.TimedOut):
            self.simulator.run([program, "4", "1000000000"], 4, timeout=2)

    def test_sleeping_takes_no_real_time(self):
        counts, _ = self.simulator.run(["/bin/sleep", "1000"], 4, timeout=20)
        self.assertWithin(counts["cycles"], 1000e9 * GHZ, 1000e9 * GHZ + 10e6, "cycles")


def row(manycore, length, **values):
    counts = dict.fromkeys(manycore.DIFFERENCES, 0)
    details = {"calls": values.pop("calls", {}), "sites": values.pop("sites", []), "lines": []}
    return manycore.Row("larson", "standard", 4, length, "", "", "f", **counts | values, details=details)


class PointTest(unittest.TestCase):
    """What is made of two simulations."""

    @classmethod
    def setUpClass(cls):
        if importlib.util.find_spec("typer") is None:
            raise unittest.SkipTest("the suite's Python packages are not installed")
        from spanalloc_bench import manycore

        cls.manycore = manycore

    def test_a_point_is_the_difference(self):
        site = {"object": "/lib/a.so", "offset": 16, "address": 1}
        short = row(self.manycore, "short", operations=100, cycles=5000, transfers=40, invalidations=2, calls={"24": 5},
                    sites=[site | {"transfers": 30, "invalidations": 2, "cycles": 4000}])
        long = row(self.manycore, "long", operations=300, cycles=7000, transfers=90, invalidations=12,
                   calls={"24": 9, "28": 1}, sites=[site | {"transfers": 70, "invalidations": 10, "cycles": 9000}])
        (point,) = self.manycore.points([short, long])
        self.assertEqual(point.core_cycles, 2000 * 4 / 200)
        self.assertEqual(point.throughput, 1000 * 200 / 2000)
        self.assertEqual(point.moves, (50 + 10) / 200)
        self.assertEqual(point.calls, {"24": 4, "28": 1})
        self.assertEqual((point.sites[0]["transfers"], point.sites[0]["cycles"]), (40, 5000))

    def test_runs_of_different_programs_make_no_point(self):
        short, long = row(self.manycore, "short"), row(self.manycore, "long", operations=10, cycles=10.0)
        short.fingerprint = "another"
        self.assertEqual(self.manycore.points([short, long]), [])

    def test_a_failed_run_makes_a_point_that_says_so(self):
        short, long = row(self.manycore, "short"), row(self.manycore, "long")
        long.status, long.problem = "crashed", "signal 11"
        (point,) = self.manycore.points([short, long])
        self.assertEqual((point.status, point.problem), ("crashed", "signal 11"))

    def test_lines_of_the_file_come_back_and_a_torn_one_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            one = row(self.manycore, "short", operations=7, cycles=1.5, calls={"24": 5})
            self.manycore._append(folder, one)
            path = os.path.join(folder, self.manycore.CSV)
            with open(path, "a", encoding="utf-8") as file:
                file.write("larson,standard,4,lo")
            self.assertEqual(list(self.manycore.read(folder).values()), [one])
            two = row(self.manycore, "long", operations=8, cycles=2.5)
            self.manycore._append(folder, two)
            self.assertEqual(list(self.manycore.read(folder).values()), [one, two])


class CommandTest(unittest.TestCase):
    """`spanalloc bench manycore` as a whole, with very little."""

    COMMAND = os.environ.get("SPANALLOC_TEST_COMMAND", "")

    def setUp(self):
        reason = simulator.why_not(PLUGIN)
        if not reason and importlib.util.find_spec("matplotlib") is None:
            reason = "the suite's Python packages are not installed"
        if reason:
            self.skipTest(reason)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def run_command(self, *words):
        return subprocess.run(
            [self.COMMAND, "bench", "manycore", "--quick", "--out", self.folder, *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=100, check=False,
        )

    def test_it_makes_curves_and_simulates_nothing_twice(self):
        words = ("--cores", "1,4", "--workloads", "threadtest,malloc-test", "--allocators", "standard,glibc,bump")
        run = self.run_command(*words)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(os.path.join(self.folder, "manycore.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual({p["status"] for p in result["points"]}, {"ok"})
        self.assertEqual(len(result["points"]), 3 * (2 + 1))  # malloc-test needs two cores
        # Threads that share nothing: ideal speed-up, nearly nothing moves.
        speed = {name: dict(map(tuple, points)) for name, points in result["speed_up"]["threadtest"].items()}
        for name in ("standard", "glibc"):
            self.assertGreater(speed[name][4], 3.8, name)
        for name in ("manycore-threadtest.png", "manycore-malloc-test.png", "manycore.html"):
            self.assertGreater(os.path.getsize(os.path.join(self.folder, name)), 1000, name)
        with open(os.path.join(self.folder, "manycore.csv"), "rb") as file:
            before = file.read()
        again = self.run_command(*words)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("18 of 18 simulations are", again.stderr)
        with open(os.path.join(self.folder, "manycore.csv"), "rb") as file:
            self.assertEqual(file.read(), before)

    def test_mistakes_end_in_one_line(self):
        for words, text in ((("--workloads", "nothing"), "there are threadtest"), (("--cores", "0"), "from 1 to"),
                            (("--cores", "500"), "from 1 to"), (("--allocators", "nobody"), "nobody"),
                            (("--report",), "holds no simulations")):
            run = self.run_command(*words)
            self.assertNotEqual(run.returncode, 0, words)
            self.assertIn(text, run.stderr)
            self.assertNotIn("Traceback", run.stderr)


if __name__ == "__main__":
    unittest.main()
