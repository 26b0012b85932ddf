"""The simulated machine against programs whose answer is known (bench/manycore/known), and what is made of its counts.

The answers follow from the model: a hit in a core's own cache costs 1 cycle, a line from the shared cache 40, one that
moves between caches 120, an instruction half a cycle. What a program needs to start its threads together adds some lines
that move (GATHER each thread), and hundreds of cycles."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import simulator  # noqa: E402
from spanalloc_bench.model import Allocator, Kind  # noqa: E402

BENCH = os.environ.get("SPANALLOC_TEST_BENCH", "")
PLUGIN = os.path.join(BENCH, simulator.PLUGIN)
XFER, LLC, SHOOTDOWN_INTERRUPT, FAULT, LOCKED, GHZ = 120, 40, 600, 1500, 18, 3
GATHER = 12
TIMEOUT_S = 600  # for hangs; nothing here is judged by real time


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
        self.assertEqual(counts["expired_waits"], 0, "waits for the real kernel were given up")
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
        # What thread 0 uses besides, its stack for one, takes the place of some of them in its cache.
        self.assertWithin(counts["transfers"], cache - 64, cache + GATHER * 2, "transfers")
        self.assertWithin(counts["llc"], lines - cache, lines - cache + 64 + GATHER * 2, "llc")

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

    def test_a_seed_makes_another_run_that_repeats(self):
        def run(seed):
            counts = self.counts("contended_counter", 8, 300, options=[("seed", seed)] if seed else [])
            return counts["cycles"], counts["transfers"], counts["invalidations"]

        runs = {seed: run(seed) for seed in (0, 1, 2, 3)}
        self.assertEqual(runs[2], run(2))
        self.assertGreater(len(set(runs.values())), 2, runs)
        for cycles, *_ in runs.values():  # its answer is the same
            self.assertWithin(cycles, 8 * 300 * XFER * 0.95, 8 * 300 * XFER * 1.05, "cycles")

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
        self.assertWithin(counts["accesses"], lines, lines + 2 * 50 * 2 + 2000, "accesses")

    def test_a_repeated_copy_works_by_lines_on_both_sides(self):
        counts = self.counts("string_copy", 2, 50)
        lines = 2 * 50 * 2 * (64 << 10) // 64
        self.assertWithin(counts["accesses"], lines, lines + 2 * 50 * 4 + 2000, "accesses")


class KernelTest(KnownAnswer):
    """Threads that sleep, pages, mappings, time. A wait for what does not happen ends no simulation: it is cut short."""

    def test_a_sleeper_wakes_at_its_wakers_time(self):
        steps = 200000
        counts = self.counts("blocked", 4, steps)
        self.assertWithin(counts["cycles"], 2 * 2 * steps, 2 * 2 * steps + 30000, "cycles")

    def test_a_thread_that_joins_wakes_at_the_others_end(self):
        counts = self.counts("joined", 1, 40)
        # 40000 cycles, 15000 to start a thread, 6000 to wake up, and what the C library does.
        self.assertWithin(counts["cycles"] / 40, 61000, 75000, "cycles a thread")

    def test_a_wait_with_a_limit_ends_in_simulated_time(self):
        rounds = 50
        counts = self.counts("timed_wait", 3, rounds)
        self.assertEqual(json.loads(self.output)["gave_up"], 0)
        self.assertGreaterEqual(counts["wakes"], rounds - 1)
        # A round: 20000 of computing, 400 for the call that wakes, 6000 from there until the sleeper runs; then moves of
        # the word's line, and the waker looks at it every 200.
        known = 20000 + 400 + 6000
        self.assertWithin((counts["cycles"] - 3_000_000) / rounds, known, known + 4 * XFER + 200 + 200, "cycles a round")

    def test_a_wait_that_is_refused_is_no_sleep(self):
        refusals = 200
        for threads in (1, 3):
            counts = self.counts("refused_wait", threads, refusals)
            # The main thread joins the others one by one: all but the first of these waits may fall into the part.
            self.assertWithin(counts["calls"]["202"], refusals, refusals + threads - 1, "calls")
            self.assertLessEqual(counts["waits"], threads - 1)
            # The call and the C library's part of it; a sleep would take 1200 more, its limit 3,000,000.
            self.assertWithin(counts["cycles"] / refusals, 400, 450, "cycles a refusal")

    def test_a_new_thread_waits_for_a_core(self):
        started, work = 6, 40000
        alone = self.counts("crowded", 1, started, cpus=1)
        self.assertEqual(alone["running"], 1)
        apart = self.counts("crowded", 1, started, cpus=8)
        # Besides its 15000, a start costs the mapping of a stack and its first faults.
        self.assertWithin(apart["cycles"], started * 15000 + work, started * 30000 + work + 10000, "cycles")
        # One after another: each also wakes the one that joins it, 6000, and that goes back to sleep.
        self.assertWithin(alone["cycles"], started * (15000 + work + 6000), apart["cycles"] + started * (work + 10000),
                          "cycles")
        # However long the others compute: a scheduler makes room after 3 ms, or what the option says.
        soon = self.counts("crowded", 1, started, cpus=1, options=[("slice", 0)])
        self.assertWithin(soon["cycles"], apart["cycles"] - 5000, apart["cycles"] + 5000, "cycles")

    def test_the_measured_part_may_begin_with_a_thread(self):
        whole = self.counts("joined", 1, 40)
        late = self.counts("joined", 1, 40, options=[("from_thread", 2 + 31)])  # main, thread 0, and the 31st of 40
        self.assertWithin(late["cycles"] / whole["cycles"], 9.5 / 40, 10 / 40, "share")
        with self.assertRaises(AssertionError):
            self.counts("joined", 1, 40, options=[("from_thread", 2 + 41)])  # there is none

    def test_a_futex_operation_that_is_not_simulated_is_refused(self):
        with self.assertRaisesRegex(simulator.SimulationFailed, "futex operation 4; only waiting and waking"):
            self.counts("requeue", 2, 1)

    def test_populated_pages_are_paid_by_the_call_that_maps_them(self):
        pages = 100
        for threads in (1, 4):
            counts = self.counts("populated", threads, pages)
            self.assertWithin(counts["faults"], threads * pages, threads * pages + 40, "faults")
            times = json.loads(self.output)
            self.assertGreaterEqual(times["mapped_ns"], pages * FAULT / GHZ)
            self.assertLess(times["touched_ns"], pages * 130 / GHZ, "the touches were faults")

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
        counts = self.counts("successors", 4, 200, cpus=64)
        self.assertGreater(counts["threads"], 4 * 200)
        # The main thread and the 4 that wait for the end; of a chain the newest thread and the one that ends: 13. But the
        # end of one that the real kernel is late to tell comes behind the next one's beginning. If no core were free
        # again, all 64 would be taken.
        self.assertLess(counts["cores"], 32)

    def test_another_process_is_refused_with_a_reason(self):
        with self.assertRaisesRegex(simulator.SimulationFailed, "only threads are simulated"):
            self.simulator.run(["/bin/sh", "-c", "/bin/true; /bin/true"], 4, timeout=TIMEOUT_S)

    def test_a_wrong_setting_is_refused(self):
        for option in (("no-such-cost", 1), ("xfer", "many"), ("xfer", -1)):
            with self.assertRaisesRegex(simulator.SimulationFailed, f"{option[0]}={option[1]}: not an argument"):
                self.counts("private_data", 2, 10, options=[option])

    def test_a_run_that_does_not_end_is_cut_short(self):
        program = os.path.join(BENCH, "manycore-known", "contended_counter")
        with self.assertRaises(simulator.TimedOut):
            self.simulator.run([program, "4", "1000000000"], 4, timeout=2)

    def test_sleeping_takes_no_real_time(self):
        counts, _ = self.simulator.run(["/bin/sleep", "1000"], 4, timeout=TIMEOUT_S)
        self.assertWithin(counts["cycles"], 1000e9 * GHZ, 1000e9 * GHZ + 10e6, "cycles")


def row(rows, length, allocator="standard", cores=4, workload="larson", **values):
    counts = dict.fromkeys(rows.DIFFERENCES, 0)
    details = {"calls": values.pop("calls", {}), "sites": values.pop("sites", []), "lines": []}
    turns = "0004" if length == "short" else "0008"
    return rows.Row(workload, allocator, cores, length, turns, "--turns {turns}", "", "", "f", running=cores,
                    **counts | values, details=details)


def pair(rows, cores, operations, cycles, **values):
    """A short and a long run whose difference is so many operations in so many cycles."""
    return [row(rows, "short", cores=cores, operations=10, cycles=10.0, **values),
            row(rows, "long", cores=cores, operations=10 + operations, cycles=10.0 + cycles, **values)]


class PointTest(unittest.TestCase):
    """What is made of two simulations."""

    @classmethod
    def setUpClass(cls):
        from spanalloc_bench import manycore, manycore_report, manycore_rows

        cls.manycore, cls.rows, cls.report = manycore, manycore_rows, manycore_report

    def test_a_point_is_the_difference(self):
        site = {"object": "/lib/a.so", "offset": 16, "address": 1}
        short = row(self.rows, "short", operations=100, cycles=1500, transfers=40, invalidations=2, calls={"24": 5},
                    sites=[site | {"transfers": 30, "invalidations": 2, "cycles": 4000}])
        long = row(self.rows, "long", operations=300, cycles=3500, transfers=90, invalidations=12,
                   calls={"24": 9, "28": 1}, sites=[site | {"transfers": 70, "invalidations": 10, "cycles": 9000}])
        (point,) = self.rows.points([short, long])
        self.assertEqual((point.status, point.problem), ("ok", ""))
        self.assertEqual(point.core_cycles, 2000 * 4 / 200)
        self.assertEqual(point.throughput, 1000 * 200 / 2000)
        self.assertEqual(point.moves, (50 + 10) / 200)
        self.assertEqual(point.calls, {"24": 4, "28": 1})
        self.assertEqual((point.sites[0]["transfers"], point.sites[0]["cycles"]), (40, 5000))

    def test_runs_of_different_programs_make_no_point(self):
        for name in ("fingerprint", "arguments", "machine", "settings"):
            short, long = pair(self.rows, 4, 10, 10.0)
            self.assertEqual(len(self.rows.points([short, long])), 1)
            setattr(short, name, "another")
            self.assertEqual(self.rows.points([short, long]), [], name)

    def test_each_seed_has_points_of_its_own(self):
        rows = [*pair(self.rows, 4, 100, 1000.0), *pair(self.rows, 4, 100, 3000.0)]
        for row_ in rows[2:]:
            row_.machine = "from_thread=5 seed=3"
        self.assertEqual([row_.seed for row_ in rows], [0, 0, 3, 3])
        self.assertEqual([point.cycles for point in self.rows.points(rows)], [1000.0])
        self.assertEqual([point.cycles for point in self.rows.points(rows, 3)], [3000.0])
        self.assertEqual(self.rows.points(rows, 1), [])

    def test_a_start_that_dominates_makes_no_point(self):
        short = row(self.rows, "short", operations=100, cycles=5000.0)
        for cycles, problem in ((10_001.0, ""), (9_999.0, "only 50% of the long run"), (5000.0, "took no longer"),
                                (4000.0, "took no longer")):
            (point,) = self.rows.points([short, row(self.rows, "long", operations=300, cycles=cycles)])
            self.assertEqual(point.status, "rejected" if problem else "ok")
            self.assertIn(problem, point.problem)

    def test_a_count_that_falls_makes_no_point(self):
        for name in ("allocator_moves", "transfers", "faults", "waits"):
            for fallen, status in ((11, "rejected"), (9, "ok")):  # of 1000 operations; up to 10 are noise
                short = row(self.rows, "short", operations=100, cycles=500.0, **{name: 50})
                long = row(self.rows, "long", operations=1100, cycles=5000.0, **{name: 50 - fallen})
                (point,) = self.rows.points([short, long])
                self.assertEqual(point.status, status, name)
                self.assertEqual(name in point.problem, status == "rejected")
                if status == "ok":
                    self.assertEqual(point.each(name), 0)

    def test_speed_is_relative_to_one_run_and_to_ones_own(self):
        rows = self.rows.points([
            *pair(self.rows, 1, 100, 1000.0, allocator="glibc"), *pair(self.rows, 4, 400, 1000.0, allocator="glibc"),
            *pair(self.rows, 1, 100, 2000.0), *pair(self.rows, 4, 500, 1000.0),
            *pair(self.rows, 4, 800, 1000.0, allocator="mimalloc"),  # not with the fewest cores
        ])
        over, own = (dict((name, dict(points)) for name, points in of(rows, "larson").items())
                     for of in (self.report.over_base, self.report.speed_up))
        self.assertEqual(over, {"glibc": {1: 1, 4: 4}, "standard": {1: 0.5, 4: 5}, "mimalloc": {4: 8}})
        self.assertEqual(own, {"glibc": {1: 1, 4: 4}, "standard": {1: 1, 4: 10}})
        self.assertEqual(self.report.above_ideal(rows, "larson"), [("standard", 4, 10)])
        self.assertIn(self.report.ABOVE, self.report.notes(rows, "larson"))
        lines = {line[0]: line[1:4] for line in self.report.table(rows, "larson", 4)}
        self.assertEqual(lines["standard"], ["8", "5.00", "10.0*"])
        self.assertEqual(lines["mimalloc"], ["5", "8.00", "-"])
        self.assertEqual(self.report.over_base([r for r in rows if r.allocator != "glibc"], "larson"), {})

    def test_two_cores_are_the_least_of_malloc_test(self):
        rows = self.rows.points([*pair(self.rows, 2, 100, 1000.0, workload="malloc-test"),
                                 *pair(self.rows, 8, 400, 1000.0, workload="malloc-test")])
        self.assertEqual(self.report.speed_up(rows, "malloc-test"), {"standard": [(2, 1), (8, 4)]})
        self.assertEqual(self.report.above_ideal(rows, "malloc-test"), [])

    def test_what_a_reader_must_know_is_said(self):
        rows = self.rows.points([*pair(self.rows, 4, 1, 1.0), *pair(self.rows, 8, 100, 1000.0)])
        rows[1].running = 10
        notes = "\n".join(self.report.notes(rows, "larson"))
        self.assertIn("No point: standard, 4 cores: rejected: only", notes)
        self.assertIn("standard 10 of 8", notes)
        rows[1].running = 9  # one more is the main thread
        self.assertNotIn("of 8", "\n".join(self.report.notes(rows, "larson")))

    def test_moves_in_the_allocator_are_those_of_all_files_that_it_brings(self):
        objects = [{"object": name, "transfers": 10 ** i, "invalidations": 0} for i, name in enumerate(
            ("/w/larson", "/w/libc.so.6", "/w/libproxy.so", "/w/libtheir.so.2", "[heap]"))]
        own = frozenset(("/w/larson", "/w/libc.so.6"))
        self.assertEqual(self.manycore.moves_in_allocator(objects, "/w/libproxy.so", own), 1100)
        self.assertIsNone(self.manycore.moves_in_allocator(objects, "/w/libc.so.6", own))
        self.assertIsNone(self.manycore.moves_in_allocator(objects, "/w/libproxy.so", None))

    def test_the_files_of_a_program_are_known(self):
        found = self.manycore._libraries_of(os.path.realpath(sys.executable))
        self.assertIn(os.path.realpath(sys.executable), found)
        self.assertTrue(any(os.path.basename(path).startswith("libc.so") for path in found), found)
        self.assertIsNone(self.manycore._libraries_of("/no/such/program"))

    def test_a_run_whose_order_is_in_doubt_has_failed(self):
        manycore = self.manycore

        class Machine:
            def run(self, argv, cpus, **_):
                counts = dict.fromkeys(manycore.COUNTS, 0) | {
                    "measured": True, "cores": 1, "running": 1, "cycles": 5, "objects": [], "calls": {}, "sites": [],
                    "lines": [], "expired_waits": self.expired}
                return counts, '{"operations": 3, "metrics": {}}'

        machine, any_ = Machine(), Allocator("any", "/lib/any.so", Kind.GIVEN)
        cell = manycore.Cell(manycore.WORKLOADS["threadtest"], any_, 1, "short", "0001", ("threadtest",), "f")
        for machine.expired, status in ((0, "ok"), (2, "failed")):
            made = manycore._simulate(machine, cell, "/nowhere", None)
            self.assertEqual((made.status, made.expired_waits), (status, machine.expired))

    def test_a_failed_run_makes_a_point_that_says_so(self):
        short, long = row(self.rows, "short"), row(self.rows, "long")
        long.status, long.problem = "crashed", "signal 11"
        (point,) = self.rows.points([short, long])
        self.assertEqual((point.status, point.problem), ("crashed", "signal 11"))

    def test_names_of_an_older_version_are_read_as_todays(self):
        def told():
            return sorted(line.allocator for line in self.rows.read(folder).values())

        with tempfile.TemporaryDirectory() as folder:
            for name in ("scalloc", "oopsla15"):
                self.rows.append(folder, row(self.rows, "short", name))
            with open(os.path.join(folder, self.rows.META), "w", encoding="utf-8") as file:
                json.dump({"allocators": [{"name": "scalloc", "path": "/usr/lib/libscalloc.so"},
                                          {"name": "oopsla15", "path": "/x/libspanalloc-oopsla15.so"}]}, file)
            self.assertEqual(told(), ["scalloc", "scalloc-original"])
            names = [entry["name"] for entry in self.manycore.read_meta(folder)["allocators"]]
            self.assertEqual(names, ["scalloc-original", "scalloc"])
            with unittest.mock.patch.object(self.manycore.simulator, "Simulator"):  # what goes on has them in its files
                self.manycore.simulate([], folder, "", "")
            self.rows.append(folder, row(self.rows, "long", "scalloc"))
            self.assertEqual(told(), ["scalloc", "scalloc", "scalloc-original"])

    def test_lines_of_the_file_come_back_and_a_torn_one_does_not(self):
        with tempfile.TemporaryDirectory() as folder:
            one = row(self.rows, "short", operations=7, cycles=1.5, calls={"24": 5}, allocator_moves=None)
            self.rows.append(folder, one)
            path = os.path.join(folder, self.rows.CSV)
            with open(path, "a", encoding="utf-8") as file:
                file.write("larson,standard,4,lo")
            self.assertEqual(list(self.rows.read(folder).values()), [one])
            two = row(self.rows, "long", operations=8, cycles=2.5)
            self.rows.append(folder, two)
            self.assertEqual(list(self.rows.read(folder).values()), [one, two])


class CommandCase(unittest.TestCase):
    """`spanalloc bench manycore` as a whole, with very little."""

    COMMAND = os.environ.get("SPANALLOC_TEST_COMMAND", "")

    def setUp(self):
        reason = simulator.why_not(PLUGIN)
        if reason:
            self.skipTest(reason)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def run_command(self, *words):
        return subprocess.run(
            [self.COMMAND, "bench", "manycore", "--quick", "--out", self.folder, *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
        )

    def assert_one_line(self, *mistakes):
        for words, text in mistakes:
            run = self.run_command(*words)
            self.assertNotEqual(run.returncode, 0, words)
            self.assertIn(text, run.stderr)
            self.assertNotIn("Traceback", run.stderr)


class CommandTest(CommandCase):
    def test_it_makes_a_point_and_its_files(self):
        run = self.run_command("--workloads", "threadtest", "--cores", "2", "--allocators", "standard")
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(os.path.join(self.folder, "manycore.json"), encoding="utf-8") as file:
            [point] = json.load(file)["points"]
        self.assertEqual((point["workload"], point["allocator"], point["cores"]), ("threadtest", "standard", 2))
        self.assertEqual((point["status"], point["expired_waits"]), ("ok", 0), point["problem"])
        self.assertLess(point["moves_per_operation"], 0.02)  # its threads share nothing
        self.assertGreater(os.path.getsize(os.path.join(self.folder, "manycore.html")), 1000)
        self.assertEqual(len(rows_of(self.folder)), 2)

    def test_a_mistake_ends_in_one_line(self):
        self.assert_one_line((("--cores", "500"), "from 1 to"))


def rows_of(folder):
    """The simulations that a folder holds."""
    from spanalloc_bench import manycore_rows

    return manycore_rows.read(folder)


class CurvesTest(CommandCase):
    """Every workload under three allocators on one core and on four."""

    def test_it_makes_curves_and_simulates_nothing_twice(self):
        words = ("--cores", "1,4", "--allocators", "standard,glibc,bump")
        run = self.run_command(*words)
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(os.path.join(self.folder, "manycore.json"), encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual([(p["workload"], p["allocator"], p["cores"], p["problem"]) for p in result["points"]
                          if p["status"] != "ok"], [])
        self.assertEqual(len(result["points"]), 3 * (3 * 2 + 1))  # malloc-test needs two cores
        points = {(p["workload"], p["allocator"], p["cores"]): p for p in result["points"]}
        for key, point in points.items():
            self.assertEqual(point["expired_waits"], 0, key)
            for name in ("operations", "cycles", "instructions", "accesses"):
                self.assertGreater(point[name], 0, key)
            for name in ("transfers", "invalidations", "faults", "syscalls", "shootdowns", "waits", "wakes"):
                self.assertGreaterEqual(point[name], -0.01 * point["operations"], (*key, name))
            self.assertEqual(point["allocator_moves"] is None, key[1] == "glibc")
        # Threads that share nothing: ideal speed-up, nearly nothing moves.
        for name in ("standard", "glibc", "bump"):
            speed = dict(map(tuple, result["speed_up"]["threadtest"][name]))
            self.assertEqual(speed[1], 1)
            self.assertTrue(3.8 < speed[4] < 4.1, (name, speed))
            self.assertLess(points["threadtest", name, 4]["moves_per_operation"], 0.02)
        self.assertEqual(dict(map(tuple, result["over_base"]["threadtest"]["glibc"]))[1], 1)
        # bump's malloc moves a pointer of the thread's own and its free does nothing, with any number of cores: what
        # grew with the cores would be the measuring.
        alone, four = (points["producer-consumer", "bump", n]["core_cycles_per_operation"] for n in (1, 4))
        self.assertLess(four, 1.5 * alone)
        # Every object is read by all threads, and each takes a number off its count.
        self.assertGreater(points["producer-consumer", "bump", 4]["moves_per_operation"], 4)
        self.assertGreater(points["malloc-test", "standard", 4]["moves_per_operation"], 0.5)
        meta = result["meta"]
        self.assertEqual({facts["name"] for facts in meta["allocators"]}, {"standard", "glibc", "bump"})
        self.assertTrue(all(len(facts["sha256"]) == 64 for facts in meta["allocators"]))
        self.assertIn("processor", meta["machine"])
        for name in ("manycore-threadtest.png", "manycore-malloc-test.png", "manycore.html"):
            self.assertGreater(os.path.getsize(os.path.join(self.folder, name)), 1000, name)
        with open(os.path.join(self.folder, "manycore.html"), encoding="utf-8") as file:
            self.assertIn(meta["allocators"][0]["sha256"][:12], file.read())
        with open(os.path.join(self.folder, "manycore.csv"), "rb") as file:
            before = file.read()
        again = self.run_command(*words)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("42 of 42 simulations are", again.stderr)
        with open(os.path.join(self.folder, "manycore-meta.json"), encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["runs"]), 1)
        with open(os.path.join(self.folder, "manycore.csv"), "rb") as file:
            self.assertEqual(file.read(), before)

    def test_mistakes_end_in_one_line(self):
        self.assert_one_line(
            (("--workloads", "nothing"), "there are threadtest"), (("--cores", "0"), "from 1 to"),
            (("--allocators", "nobody"), "nobody"), (("--report",), "holds no simulations"))


if __name__ == "__main__":
    unittest.main()
