"""The workloads beyond the papers: their counts, their records, what they find damaged, what they refuse. Nothing here
judges speed."""

import json
import os
import subprocess
import tempfile
import unittest

from spanalloc_bench.cases import beyond, shapes

BENCH = os.environ["SPANALLOC_TEST_BENCH"]
STANDARD = os.path.join(os.environ["SPANALLOC_TEST_LIBRARIES"], "libspanalloc.so")
BUMP = os.path.join(BENCH, "libbump.so")
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = {"workload", "parameters", "threads", "operations", "elapsed_s", "peak_live_bytes", "metrics", "latency"}
SMALL = ("--size", 100, "--blocks", 30, "--rounds", 20)
SHAPES = (("comb", ()), ("edges", ("--other", 9000)), ("appends", ("--size", 300, "--other", 7)), ("shuffled", ()),
          ("makers", ("--threads", 3, "--blocks", 600)), ("sleepers", ("--threads", 2, "--rounds", 1)),
          ("ring", ("--threads", 3)), ("flip", ("--other", 300)), ("untouched", ()), ("trickle", ()),
          ("aligned", ("--other", 64, "--rounds", 900)), ("replace", ("--other", 1)), ("firsts", ()),
          ("graph", ("--other", 1)), ("asked", ("--other", 1)), ("once", ()), ("crowd", ("--threads", 2)),
          ("handed", ("--threads", 2)), ("halves", ("--size", 300)))
DISTRIBUTIONS = ("compiler", "browser", "keyvalue", "web", "powerlaw")


def run(program, *arguments, preload=None, **variables):
    environment = {**os.environ, **variables}
    environment.pop("LD_PRELOAD", None)
    if preload:
        environment["LD_PRELOAD"] = preload
    return subprocess.run([os.path.join(BENCH, program), *map(str, arguments)], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600, check=False)


class WorkloadTest(unittest.TestCase):
    def record(self, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        record = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(set(record), FIELDS)
        self.assertGreater(record["elapsed_s"], 0)
        return record

    def records(self, program, *arguments):
        """The record under the C library's malloc, ours and bump. What is asked for depends on none of them."""
        records = [self.record(run(program, *arguments, preload=preload)) for preload in (None, STANDARD, BUMP)]
        self.assertEqual(len({(r["operations"], r["threads"]) for r in records}), 1)
        return records

    def assert_refused(self, done, exit_code, *words):
        self.assertEqual((done.returncode, done.stdout), (exit_code, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class BeyondTest(WorkloadTest):
    def test_mixed(self):
        for distribution in DISTRIBUTIONS:
            for threads in (1, 3):
                with self.subTest(distribution, threads=threads):
                    records = self.records("mixed", "--distribution", distribution, "--threads", threads,
                                           "--operations", 3000)
                    for record in records:
                        self.assertEqual((record["operations"], record["threads"]), (3000 * threads, threads))
                        self.assertEqual(record["parameters"]["distribution"], distribution)
                        self.assertEqual(record["latency"], {})
                    self.assertEqual(len({r["peak_live_bytes"] for r in records}), 1)

    def test_mixed_over_more_than_a_turn_of_the_wheel(self):
        for distribution in DISTRIBUTIONS:
            runs = (run("mixed", "--distribution", distribution, "--operations", n, preload=STANDARD)
                    for n in (100_000, 500_000))
            short, long = (self.record(done) for done in runs)
            # Objects die: five times as many do not live five times as much.
            self.assertLess(long["peak_live_bytes"], 3 * short["peak_live_bytes"])
            self.assertGreater(long["peak_live_bytes"], 100_000)

    def test_mixed_seed(self):
        one, same, other = (self.record(run("mixed", "--operations", 5000, "--seed", seed))["peak_live_bytes"]
                            for seed in (1, 1, 2))
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)

    def test_mixed_latency(self):
        for record in self.records("mixed", "--latency", 1, "--threads", 2, "--operations", 2000):
            for call in ("malloc", "free"):
                latency = record["latency"][call]
                self.assertEqual(latency["count"], 4000)
                self.assertLessEqual(latency["p50_ns"], latency["p9999_ns"])
                self.assertLessEqual(latency["p9999_ns"], latency["max_ns"])
                self.assertEqual(record["metrics"][f"{call}_p9999_ns"], latency["p9999_ns"])

    def test_realloc_growth(self):
        for policy, growths in (("x2", 13), ("x1.5", 22), ("step", 64)):
            # One vector at a time of one size: the number of its growths is known.
            arguments = ("--low", 65536, "--high", 65536, "--vectors", 1, "--total", 5, "--step", 1024)
            for record in self.records("realloc_growth", "--policy", policy, *arguments):
                self.assertEqual(record["operations"], 5 * growths)
                self.assertIn(record["peak_live_bytes"], range(65536, 98304))
            self.records("realloc_growth", "--policy", policy, "--low", 16, "--high", 100000, "--vectors", 7,
                         "--total", 50, "--threads", 2, "--step", 777)

    def test_calloc_churn(self):
        for touch in ("all", "lines", "ends"):
            for low, high in ((1, 40), (1000, 100000), (300000, 3000000)):
                for record in self.records("calloc_churn", "--low", low, "--high", high, "--live", 10,
                                           "--operations", 100, "--touch", touch, "--threads", 2):
                    self.assertEqual(record["operations"], 200)
                    self.assertIn(record["peak_live_bytes"], range(2 * 5 * low, 2 * 10 * high + 1))

    def test_aligned(self):
        for low_align, high_align, high in ((8, 64, 100), (32, 4096, 5000), (4096, 2 << 20, 300000)):
            for record in self.records("aligned", "--low-align", low_align, "--high-align", high_align, "--high", high,
                                       "--live", 20, "--operations", 300, "--threads", 2):
                self.assertEqual(record["operations"], 600)

    def test_heaps(self):
        for kind, end in (("malloc", "destroy"), ("monotonic", "destroy"), ("monotonic", "reset")):
            for record in self.records("heaps", "--kind", kind, "--end", end, "--queries", 10, "--blocks", 30,
                                       "--largest", 5000, "--freed", 40, "--threads", 2):
                self.assertEqual(record["operations"], 600)
        for end in ("destroy", "reset"):
            done = run("heaps", "--kind", "spanalloc", "--library", STANDARD, "--end", end, "--queries", 10,
                       "--blocks", 30, "--largest", 500000, "--freed", 40, "--threads", 2)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(json.loads(done.stdout)["operations"], 600)
        self.assertEqual(run("heaps", "--kind", "mimalloc").returncode, 3)

    def test_large_objects(self):
        for touch in ("ends", "page", "all"):
            for record in self.records("large_objects", "--low", 128 << 10, "--high", 8 << 20, "--live", 3,
                                       "--operations", 12, "--touch", touch, "--threads", 2):
                self.assertEqual(record["operations"], 24)
                self.assertEqual(record["peak_live_bytes"] is None, touch == "ends")

    def test_huge_object(self):
        size = 256 << 20
        for record in self.records("large_objects", "--low", size, "--high", size, "--live", 1, "--operations", 3):
            self.assertEqual(record["operations"], 3)

    def test_idle_threads(self):
        for record in self.records("idle_threads", "--threads", 50, "--rounds", 3, "--burst", 40, "--keep", 5,
                                   "--active", 3):
            self.assertEqual((record["operations"], record["threads"]), (50 * 3 * 40, 50))
            self.assertEqual(set(record["metrics"]),
                             {"idle_over_live", "idle_kib_per_thread", "burst_ns_per_operation", "own_kib"})
        self.assertGreater(record["metrics"]["idle_over_live"], 5)  # bump keeps all 120 objects of a thread, 5 live

    def test_idle_threads_that_keep_nothing(self):
        record = self.record(run("idle_threads", "--threads", 1, "--rounds", 2, "--keep", 0, "--active", 5))
        self.assertNotIn("idle_over_live", record["metrics"])

    def test_fragmentation(self):
        ratios = []
        for record in self.records("fragmentation", "--live-mib", 2):
            self.assertLessEqual(record["peak_live_bytes"], 2 << 20)
            self.assertGreater(record["peak_live_bytes"], 15 << 17)
            metrics = record["metrics"]
            phases = [metrics[f"rss_over_live_phase{p}"] for p in range(1, 7)]
            self.assertAlmostEqual(sum(phases) / 6, metrics["rss_over_live_mean"], places=4)
            self.assertGreater(min(phases), 0.9)
            # Own tables: 16 bytes an object, of which at least 2 MiB / 128 and at most 2 MiB / 32 stand in phase 1.
            self.assertIn(metrics["own_kib"], range(256, 1024 + 6 * 32 + 64 + 1))
            ratios.append((phases[-1], metrics["rss_over_live_freed90"]))
        # bump keeps all: 3 times the live bytes a phase, ten times that over what is left at the end.
        last, freed = ratios[-1]
        self.assertGreater(last, 15)
        self.assertGreater(freed, 150)

    def test_peak_and_rest(self):
        for rest in ("sleep", "passing"):
            for record in self.records("peak_and_rest", "--mib", 8, "--size", 5000, "--keep", 4, "--rest", rest,
                                       "--rest-ms", 20, "--trim", 1, "--again-mib", 4):
                self.assertEqual(record["operations"], -(-(8 << 20) // 5000))
                self.assertEqual(set(record["metrics"]), {"peak_mib", "freed_mib", "rested_mib", "trimmed_mib",
                                                          "rested_over_live", "again_over_live", "own_kib"})
                self.assertGreater(record["metrics"]["peak_mib"], 7.5)
                self.assertGreater(record["metrics"]["trimmed_mib"], 1.5)
            # bump keeps all: 8 MiB over the two that live.
            self.assertIn(round(record["metrics"]["rested_over_live"]), (4, 5))
        record = self.record(run("peak_and_rest", "--mib", 1, "--keep", 0, "--rest-ms", 0))
        self.assertEqual(set(record["metrics"]), {"peak_mib", "freed_mib", "rested_mib", "own_kib"})

    def test_resting_threads(self):
        for keep in (0, 1):
            for record in self.records("resting_threads", "--threads", 9, "--sizes", 7, "--high", 10000, "--burst-kib",
                                       70, "--keep", keep, "--rest-ms", 20):
                self.assertEqual(record["threads"], 9)
                self.assertEqual("rested_over_live" in record["metrics"], keep == 1)
                self.assertEqual(record["metrics"]["live_mib"] > 0, keep == 1)
            self.assertGreater(record["metrics"]["trimmed_mib"], 0.5)  # bump keeps nine times 70 KiB
        self.record(run("resting_threads", "--threads", 1, "--sizes", 1, "--burst-kib", 0, "--rest-ms", 0))

    def test_sparse_objects(self):
        for call in ("malloc", "calloc"):
            for places in ("same", "other"):
                for record in self.records("sparse_objects", "--call", call, "--mib", 4, "--every-kib", 64, "--places",
                                           places, "--repeats", 7, "--live", 3):
                    self.assertEqual((record["operations"], record["peak_live_bytes"]), (7, 3 * 64 * 4096))
                    self.assertGreater(record["metrics"]["worst_call_ns"], 0)
        self.record(run("sparse_objects", "--mib", 1, "--repeats", 1, "--live", 5))

    def test_first_words(self):
        for size, objects in ((8, 1), (40, 1000), (70000, 50)):
            for record in self.records("first_words", "--size", size, "--objects", objects, "--reads", 1234):
                self.assertEqual((record["operations"], record["peak_live_bytes"]), (1234, None))

    def test_exchange(self):
        for threads, objects, exchanges in ((2, 1, 64), (3, 500, 20000), (5, 1000, 5000)):
            takers = threads - 1
            lots = -(-exchanges // (64 * takers))
            for record in self.records("exchange", "--threads", threads, "--objects", objects, "--size", 48,
                                       "--exchanges", exchanges):
                self.assertEqual((record["threads"], record["operations"]), (threads, lots * 64 * takers))
                self.assertEqual(record["peak_live_bytes"], -(-objects // takers) * takers * 48)

    def test_shared_slots(self):
        for threads, seed, operations in ((1, 0, 500), (3, 0, 2000), (2, 7, 3000)):
            for record in self.records("shared_slots", "--threads", threads, "--operations", operations, "--seed", seed,
                                       "--slots", 50, "--shared", 20):
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * operations))
                self.assertGreater(record["peak_live_bytes"], 50 * 16)

    def test_attack_shapes(self):
        for shape, arguments, operations in (
            ("edges", ("--size", 5000, "--other", 70000, "--blocks", 7, "--rounds", 3), 42),
            ("appends", ("--size", 100, "--other", 3, "--blocks", 5, "--rounds", 2), 2 * 5 * 29),
            ("shuffled", ("--size", 100, "--blocks", 500, "--rounds", 2), 1000),
            ("makers", ("--threads", 3, "--blocks", 50, "--rounds", 4), 600),
            ("ring", ("--threads", 3, "--blocks", 50, "--rounds", 4), 600),
            ("flip", ("--size", 3000, "--other", 70000, "--rounds", 2), (1 << 20) // 3000 + (1 << 20) // 70000),
            ("untouched", ("--size", 3000000, "--blocks", 3, "--rounds", 10), 10),
            ("trickle", ("--size", 100, "--rounds", 20), (1 << 20) // 100),
            ("aligned", ("--size", 100, "--other", 4096, "--blocks", 9, "--rounds", 50), 50),
            ("replace", ("--size", 5000, "--other", 1, "--blocks", 30, "--rounds", 70, "--threads", 2), 140),
            ("replace", ("--size", 16, "--other", 32768, "--blocks", 30, "--rounds", 70), 70),
            ("firsts", ("--size", 16, "--other", 48, "--blocks", 25, "--rounds", 80), 2000),
            ("graph", ("--size", 32, "--other", 3, "--blocks", 5000, "--rounds", 4), 10000),
            ("asked", ("--size", 16, "--other", 30000, "--blocks", 70, "--rounds", 3), 210),
            ("once", ("--size", 200, "--blocks", 9000), 9000),
            ("handed", ("--threads", 3, "--size", 5000, "--blocks", 40, "--rounds", 20), 120),
            ("halves", ("--size", 200000, "--blocks", 2, "--rounds", 3), 2 * 3 * 20),
        ):
            for record in self.records("attack_shapes", "--shape", shape, *arguments):
                self.assertEqual(record["operations"], operations, shape)
                self.assertLessEqual({"held_mib", "own_kib"}, set(record["metrics"]))
            self.assertGreater(record["metrics"]["held_mib"], 0, shape)  # bump keeps all
        # bump keeps whatever was allocated, of all sizes; who gives back what is free holds less.
        for record in self.records("attack_shapes", "--shape", "comb", "--other", 65536):
            self.assertGreater(record["operations"], 60 * (1 << 20) // 32768)
        self.assertGreater(record["metrics"]["held_mib"], 30)
        for record in self.records("attack_shapes", "--shape", "sleepers", "--threads", 2, "--rounds", 1):
            self.assertEqual(record["threads"], 2)
        for record in self.records("attack_shapes", "--shape", "crowd", "--threads", 5, "--rounds", 20):
            self.assertEqual(record["operations"] % 5, 0)
            self.assertLessEqual({"held_mib", "trimmed_mib", "own_kib"}, set(record["metrics"]))
        self.assertGreater(record["metrics"]["trimmed_mib"], 1)

    def test_startup(self):
        for record in self.records("startup", "--starts", 3):
            self.assertEqual((record["operations"], record["peak_live_bytes"]), (3, 100))

    def test_bad_options(self):
        for program, *arguments in (
            ("mixed", "--distribution", "gaussian"), ("mixed", "--threads", 0), ("mixed", "--latency", 2),
            ("mixed", "7"),
            ("realloc_growth", "--policy", "x3"), ("realloc_growth", "--low", 9000, "--high", 100),
            ("calloc_churn", "--touch", "some"), ("calloc_churn", "--low", 2, "--high", 1),
            ("calloc_churn", "--live", 0),
            ("aligned", "--low-align", 48), ("aligned", "--low-align", 64, "--high-align", 32),
            ("aligned", "--plain", 101), ("heaps", "--kind", "tcmalloc"), ("heaps", "--freed", 101),
            ("large_objects", "--low", 9000, "--high", 8000), ("large_objects", "--touch"),
            ("idle_threads", "--keep", 11, "--burst", 10), ("idle_threads", "--burst", 5000),
            ("fragmentation", "--phases", 7), ("fragmentation", "--live-mib", "-1"), ("startup", "--starts", "many"),
            ("peak_and_rest", "--rest", "work"), ("peak_and_rest", "--size", 7), ("resting_threads", "--keep", 2),
            ("sparse_objects", "--every-kib", 6), ("sparse_objects", "--mib", 1, "--every-kib", 2048),
            ("sparse_objects", "--call", "realloc"), ("first_words", "--objects", 0),
            ("exchange", "--threads", 1), ("exchange", "--size", 7),
            ("shared_slots", "--low", 15), ("shared_slots", "--low", 200, "--high", 100), ("shared_slots", "--share", 51),
            ("attack_shapes", "--shape", "brute"), ("attack_shapes", "--size", 15), ("attack_shapes", "--rounds", 0),
        ):
            with self.subTest(program=program, arguments=arguments):
                self.assert_refused(run(program, *arguments), 2, program)

    def test_help(self):
        for program in ("mixed", "realloc_growth", "calloc_churn", "aligned", "large_objects", "idle_threads",
                        "fragmentation", "peak_and_rest", "resting_threads", "sparse_objects", "first_words", "exchange", "shared_slots",
                        "attack_shapes", "startup", "heaps"):
            done = run(program, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertIn("beyond the papers", done.stdout)


class DamageTest(WorkloadTest):
    """Under a malloc that is wrong on purpose each workload ends with 1 and one line that says what it found."""

    RUNS = (
        *(("mixed", "--distribution", distribution, "--operations", 3000) for distribution in DISTRIBUTIONS),
        ("realloc_growth", "--low", 256, "--high", 20000, "--vectors", 8, "--total", 60),
        ("calloc_churn", "--operations", 2000, "--live", 100),
        ("calloc_churn", "--operations", 2000, "--live", 100, "--low", 100, "--high", 9000, "--touch", "ends"),
        ("aligned", "--operations", 2000, "--live", 100, "--plain", 80),
        ("heaps", "--kind", "malloc", "--queries", 50, "--freed", 30),
        ("large_objects", "--low", 1000, "--high", 50000, "--operations", 500),
        ("idle_threads", "--threads", 5, "--rounds", 3),
        ("fragmentation", "--live-mib", 1),
        ("peak_and_rest", "--mib", 1, "--size", 100, "--keep", 3, "--rest-ms", 0),
        ("resting_threads", "--threads", 5, "--rest-ms", 20),
        ("sparse_objects", "--mib", 1, "--every-kib", 4, "--repeats", 40, "--live", 9),
        ("exchange", "--objects", 300, "--exchanges", 3000),
        ("shared_slots", "--operations", 3000, "--slots", 100, "--shared", 100),
        ("first_words", "--size", 100),
        *(("attack_shapes", "--shape", shape, *SMALL, *more) for shape, more in SHAPES),
    )

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.broken = os.path.join(folder.name, "broken_malloc.so")
        source = os.path.join(HERE, "broken_malloc.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.broken, source], check=True)

    def test_control(self):
        for arguments in self.RUNS:
            with self.subTest(arguments):
                self.record(run(*arguments, preload=self.broken, BROKEN_MALLOC="none"))

    def test_found(self):
        damage = ("overwritten", "lost contents")
        for defect, words in (("overlap", damage), ("scribble", damage), ("refuse", ("returned null",))):
            for arguments in self.RUNS:
                with self.subTest(defect, arguments=arguments):
                    done = run(*arguments, preload=self.broken, BROKEN_MALLOC=defect)
                    self.assert_refused(done, 1)
                    self.assertTrue(any(word in done.stderr for word in words), done.stderr)

    def library(self, name, source):
        path = os.path.join(self.folder, name)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fno-builtin", "-x", "c", "-", "-o", path], input=source,
                       text=True, check=True)
        return path

    def test_dirty_calloc(self):
        source = "#include <stddef.h>\nvoid* malloc(size_t);\nvoid* calloc(size_t n, size_t m) { " \
                 "char* p = malloc(n * m); if (p) { for (size_t i = 0; i < n * m; i++) p[i] = 0; " \
                 "if (n * m > 150) p[128] = 1; } return p; }\n"
        dirty = self.library("dirty_calloc.so", source)
        for touch in ("all", "lines"):
            self.assert_refused(run("calloc_churn", "--touch", touch, preload=dirty), 1, "not zero")
        dirty = self.library("dirty_pages.so", "#include <stddef.h>\n#include <string.h>\nvoid* malloc(size_t);\n"
                             "void* calloc(size_t n, size_t m) { void* p = malloc(n * m); "
                             "return p ? memset(p, n * m >= 1 << 20, n * m) : p; }\n")
        self.assert_refused(run("sparse_objects", "--call", "calloc", "--mib", 1, preload=dirty), 1, "not zero")

    def test_bad_alignment(self):
        skewed = self.library("skewed.so", "#include <stddef.h>\nvoid* malloc(size_t);\n"
                              "void* aligned_alloc(size_t a, size_t n) { return malloc(n + a); }\n")
        self.assert_refused(run("aligned", "--low-align", 512, "--high-align", 4096, preload=skewed), 1,
                            "not aligned: aligned_alloc of ", " bytes, alignment ")

    def test_bump_beyond_its_limit(self):
        self.assert_refused(run("mixed", preload=BUMP, BUMP_LIMIT_MIB="32"), 1, "returned null")

    def test_failing_child(self):
        # The child finds no memory; its parent, by LD_PRELOAD the same allocator, does.
        refuses = self.library("refuses.so", "#include <stddef.h>\nextern void* __libc_malloc(size_t);\n"
                               "void* malloc(size_t n) { return n == 100 ? NULL : __libc_malloc(n); }\n")
        self.assert_refused(run("startup", "--starts", 1, preload=refuses), 1, "child failed")


class CasesTest(WorkloadTest):
    def test_identifiers(self):
        cases = beyond.suite() + shapes.suite()
        self.assertEqual(len({case.id for case in cases}), len(cases))
        for case in cases:
            self.assertRegex(case.id, r"^[a-z0-9.-]+$")
            self.assertNotEqual(case.full, case.quick, case.id)

    def test_each_program_is_tried_with_damage(self):
        programs = {case.argv[0].replace("{bin}/", "") for case in beyond.suite() + shapes.suite()}
        self.assertEqual(programs - {run[0] for run in DamageTest.RUNS}, {"startup"})  # its child: test_failing_child

    def test_options_are_known(self):
        # Options are looked at in order, what is unknown last: so all of the case's own are good.
        for case in beyond.suite() + shapes.suite():
            with self.subTest(case.id):
                done = run(*(word.replace("{bin}/", "") for word in case.argv), "--no-such-option", 1)
                self.assert_refused(done, 2, "unknown option --no-such-option")

    def test_quick_cases_run(self):
        for case in beyond.suite() + shapes.suite():
            if not case.quick:
                continue
            with self.subTest(case.id):
                record = self.record(run(*(word.replace("{bin}/", "") for word in case.argv), preload=STANDARD))
                self.assertEqual(record["threads"], case.threads)
                if case.metric != "time":
                    self.assertIn(case.metric, record["metrics"])


if __name__ == "__main__":
    unittest.main()
