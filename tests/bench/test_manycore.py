"""The simulated machine against programs whose answer is known (bench/manycore/known), and what is made of its counts.

The answers follow from the model: a hit in a core's own cache costs 1 cycle, a line from the shared cache 40, one that
moves between caches 120, an instruction half a cycle. What a program needs to start its threads together adds some lines
that move (GATHER each thread), and hundreds of cycles."""

import json
import os
import time
import unittest

from spanalloc_bench import simulator

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
        with self.assertRaises(simulator.TimedOut):
            self.simulator.run(["/bin/sleep", "100"], 4, timeout=2)


if __name__ == "__main__":
    unittest.main()
