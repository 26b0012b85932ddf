"""The workloads of SuperMalloc and of Leite and Rocha: their counts, their records, what they find damaged, what they
refuse. Nothing here judges speed."""

import json
import os
import subprocess
import tempfile
import unittest

from spanalloc_bench.cases import pages, supermalloc
from spanalloc_bench.model import Family

BENCH = os.environ["SPANALLOC_TEST_BENCH"]
STANDARD = os.path.join(os.environ["SPANALLOC_TEST_LIBRARIES"], "libspanalloc.so")
HERE = os.path.dirname(os.path.abspath(__file__))
PAGE_PROGRAMS = ("pages_scalability", "pages_threadtest", "pages_larson", "pages_coalescing")
# The same programs with managers whose answers are known (page_managers.cpp).
KNOWN = "bench_test_pages_"


def run(program, *arguments, preload=None, **variables):
    environment = {**os.environ, **variables}
    if preload:
        environment["LD_PRELOAD"] = preload
    return subprocess.run([os.path.join(BENCH, program), *map(str, arguments)], env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600, check=False)


def built(folder, source, *options):
    """The shared object of a C source in this folder."""
    path = os.path.join(folder, os.path.splitext(source)[0] + ".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", *options, "-o", path, os.path.join(HERE, source)], check=True)
    return path


class WorkloadTest(unittest.TestCase):
    def record(self, done):
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        record = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(set(record), {"workload", "parameters", "threads", "operations", "elapsed_s", "peak_live_bytes",
                                       "metrics", "latency"})
        self.assertGreater(record["elapsed_s"], 0)
        return record

    def records(self, program, *arguments):
        """The records under the C library's malloc and under ours."""
        return [self.record(run(program, *arguments, preload=preload)) for preload in (None, STANDARD)]

    def assert_refused(self, done, exit_code, *words):
        self.assertEqual((done.returncode, done.stdout), (exit_code, ""))
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertRegex(done.stderr, word)


class SuperMallocTest(WorkloadTest):
    def test_malloc_test(self):
        for record in self.records("malloc_test", "--producers", 3, "--batches", 5, "--batch", 70, "--bound", 2, "--low", 1,
                                   "--high", 20000):
            self.assertEqual((record["threads"], record["operations"]), (6, 3 * 5 * 70))
            # One batch was alive at the least; all of them, at the most.
            self.assertIn(record["peak_live_bytes"], range(70 * 16, 15 * (70 * 20016 + 64)))

    def test_malloc_test_counts_one_batch_exactly(self):
        record = self.record(run("malloc_test", "--batches", 1, "--batch", 10, "--low", 48, "--high", 48))
        self.assertEqual(record["peak_live_bytes"], 10 * 48 + 32 + 10 * 16)

    def test_malloc_test_as_the_authors_is(self):
        for record in self.records("malloc_test", "--producers", 3, "--batches", 5, "--batch", 70, "--bound", 2, "--low", 1024,
                                   "--high", 1024, "--order", "lifo", "--stamps", "off"):
            self.assertEqual(record["operations"], 3 * 5 * 70)

    def test_malloc_test_with_many_threads_and_little_work(self):
        record = self.record(run("malloc_test", "--producers", 32, "--batches", 1, "--batch", 1, "--bound", 1))
        self.assertEqual((record["threads"], record["operations"]), (64, 32))

    def test_superserver(self):
        for threads in (1, 2, 5):
            for record in self.records("superserver", "--threads", threads, "--allocations", 3000, "--latency", "on"):
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * 3000))
                for call in ("malloc", "free"):
                    latency = record["latency"][call]
                    self.assertEqual(latency["count"], threads * 3000)
                    self.assertLessEqual(latency["p9999_ns"], latency["max_ns"])
                    self.assertEqual(record["metrics"][f"{call}_max_ns"], latency["max_ns"])

    def test_superserver_without_clocks_has_no_latency(self):
        record = self.record(run("superserver", "--allocations", 100))
        self.assertEqual((record["latency"], set(record["metrics"])), ({}, {"own_kib"}))

    def test_superserver_that_keeps_the_data_of_what_expires(self):
        for threads in (1, 3):
            record = self.record(run("superserver", "--threads", threads, "--allocations", 5000, "--max-k", 8, "--slots", 4,
                                     "--expired", "kept", "--write", "all", "--latency", "on"))
            # 60 + 4 * 4 places a thread, of less than 512 bytes; all others have expired. A mean size is above 20 bytes.
            self.assertGreater(record["peak_live_bytes"], threads * 4900 * 20)
            self.assertEqual(record["latency"]["free"]["count"], threads * 5000)

    def test_superserver_with_more_threads_than_mail_has_room_for(self):
        # Each receiver gets several times what its inbox holds (4096); nobody may wait for ever.
        record = self.record(run("superserver", "--threads", 8, "--allocations", 20000, "--max-k", 8))
        self.assertEqual(record["operations"], 160000)

    def test_superserver_counts_the_dead_in_the_mail_as_alive(self):
        # 15 objects in 15 places at random: some 10 stand (235 bytes of 23.5 each), the others are on their way.
        record = self.record(run("superserver", "--threads", 1, "--allocations", 15, "--max-k", 4, "--slots", 1))
        self.assertIn(record["peak_live_bytes"], range(300, 15 * 31 + 1))

    def test_superserver_sizes(self):
        # One thread, every object in a place of its own while there are places: the smallest k alone is 16 to 31 bytes.
        record = self.record(run("superserver", "--threads", 1, "--allocations", 1000, "--max-k", 4, "--slots", 100))
        self.assertIn(record["peak_live_bytes"], range(16 * 500, 31 * 1000))

    def test_vyukov(self):
        for threads, write in ((1, "stamps"), (2, "all"), (30, "stamps")):
            for record in self.records("vyukov", "--threads", threads, "--objects", 200, "--write", write):
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * 200))
                # One batch is alive at a time, however long the chain: its mean is 200 x 2048 bytes.
                self.assertIn(record["peak_live_bytes"], range(200 * 1500, 200 * 2800))

    def test_lock_contention(self):
        for threads, lock in ((1, "mutex"), (3, "mutex"), (3, "spin"), (2, "test-and-set")):
            record = self.record(run("lock_contention", "--threads", threads, "--increments", 500, "--lock", lock))
            rows = set(record["metrics"])
            self.assertEqual(rows - {"per_cpu_rseq_ns", "per_cpu_sequence_ns", "per_cpu_sequence_swap_ns"},
                             {"global_ns", "per_cpu_ns", "per_cpu_no_getcpu_ns", "per_thread_ns"})
            self.assertEqual(record["operations"], len(rows) * threads * 500)
            self.assertTrue(all(ns > 0 for ns in record["metrics"].values()))

    def test_lock_contention_leaves_out_what_is_not_there(self):
        record = self.record(run("lock_contention", "--increments", 10, GLIBC_TUNABLES="glibc.pthread.rseq=0"))
        self.assertEqual([name for name in record["metrics"] if "rseq" in name or "sequence" in name], [])

    def test_page_uncommit(self):
        record = self.record(run("page_uncommit", "--rounds", 1000))
        self.assertEqual((record["threads"], record["operations"]), (1, 3 * 1000 + 1024))
        cost = record["metrics"]
        self.assertEqual(set(cost), {"uncommit_and_touch_ns", "uncommitted_ns", "touch_ns", "uncommit_ns"})
        self.assertTrue(all(ns > 0 for ns in cost.values()))

    def test_bad_options(self):
        for program, *arguments in (
            ("malloc_test", "--producers", 0), ("malloc_test", "--low", 9, "--high", 8), ("malloc_test", "--bound", "x"),
            ("superserver", "--max-k", 3), ("superserver", "--latency", "maybe"), ("vyukov", "--objects", 0),
            ("vyukov", "--objects"), ("lock_contention", "--lock", "none"), ("lock_contention", "--rounds", 1),
            ("page_uncommit", "--rounds", 0),
        ):
            with self.subTest(program=program, arguments=arguments):
                self.assert_refused(run(program, *arguments), 2, program)


class DamageTest(WorkloadTest):
    """A malloc with a defect that is known (broken_malloc.c), and the same without it."""

    PROGRAMS = (
        ("malloc_test", "--batches", 2, "--batch", 500), ("malloc_test", "--batch", 400, "--batches", 1, "--high", 9000),
        ("superserver", "--allocations", 5000), ("superserver", "--threads", 1, "--allocations", 5000, "--max-k", 4),
        ("malloc_test", "--batches", 2, "--batch", 500, "--order", "lifo"),
        ("vyukov", "--threads", 3, "--objects", 300), ("vyukov", "--threads", 1, "--objects", 300),
    )

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.broken = built(cls.folder.name, "broken_malloc.c")

    def each(self, defect, judge):
        for program, *arguments in self.PROGRAMS:
            with self.subTest(program=program, arguments=arguments, defect=defect):
                judge(program, run(program, *arguments, preload=self.broken, BROKEN_MALLOC=defect))

    def test_control(self):
        self.each("none", lambda program, done: self.record(done))

    def test_damage_is_found(self):
        for defect in ("overlap", "scribble"):
            self.each(defect, lambda program, done: self.assert_refused(
                done, 1, f"^{program}: ", "written into it|owner's number"))

    def test_refusal_is_found(self):
        self.each("refuse", lambda program, done: self.assert_refused(done, 1, f"^{program}: ", "returned null"))


class PagesTest(WorkloadTest):
    def test_mmap(self):
        for program, arguments, operations in (
            ("pages_scalability", ("--batches", 2, "--blocks", 300), 600),
            ("pages_threadtest", ("--batches", 7, "--blocks", 10), 70),
            ("pages_larson", ("--lives", 5, "--requests", 30, "--slots", 10), 150),
        ):
            for threads in (1, 3):
                with self.subTest(program=program, threads=threads):
                    record = self.record(run(program, "--threads", threads, *arguments))
                    self.assertEqual((record["threads"], record["operations"]), (threads, threads * operations))
                    self.assertEqual(record["parameters"]["manager"], "mmap")

    def test_larson_for_a_time(self):
        record = self.record(run("pages_larson", "--threads", 2, "--milliseconds", 30, "--lives", 1, "--requests", 10))
        self.assertGreaterEqual(record["elapsed_s"], 0.030)
        self.assertEqual(record["operations"] % 10, 0)
        self.assertAlmostEqual(record["metrics"]["allocations_per_s"], record["operations"] / record["elapsed_s"], delta=1)

    def test_list(self):
        for program in PAGE_PROGRAMS:
            done = run(program, "--manager", "list")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            names = done.stdout.splitlines()
            self.assertIn("mmap", names)
            self.assertTrue(all(name.replace("-", "").isalnum() for name in names), names)

    def test_a_registered_manager_is_listed(self):
        for program in PAGE_PROGRAMS:
            names = run(program.replace("pages_", KNOWN), "--manager", "list").stdout.split()
            self.assertLess({"mmap", "test-exact", "test-never"}, set(names))

    def test_coalescing_of_mmap_is_no_question(self):
        self.assert_refused(run("pages_coalescing", "--runs", 1), 3, "not applicable")

    def test_coalescing_failures_are_counted(self):
        for threads, blocks, pages_ in ((1, 1, 1), (2, 50, 1), (4, 25, 3)):
            for manager, failures in (("test-exact", 0), ("test-never", threads * blocks - 1)):
                record = self.record(run(KNOWN + "coalescing", "--manager", manager, "--threads", threads, "--blocks", blocks,
                                         "--block-pages", pages_, "--runs", 3))
                self.assertEqual(record["operations"], 3 * threads * blocks)
                self.assertEqual(record["metrics"]["failures"], failures)
                self.assertEqual(record["metrics"]["failures_max"], failures)

    def test_free_blocks_at_rest_are_reported(self):
        for program, arguments in (("scalability", ("--blocks", 50)), ("threadtest", ("--batches", 3)),
                                   ("larson", ("--lives", 3))):
            record = self.record(run(KNOWN + program, "--manager", "test-exact", "--threads", 2, *arguments))
            self.assertEqual(record["metrics"]["free_blocks"], 1)

    def test_wrong_regions_are_found(self):
        coalescing = (KNOWN + "coalescing", "--runs", 1, "--blocks", 20, "--manager")
        self.assert_refused(run(*coalescing, "test-small"), 1, "does not hold all blocks")
        self.assert_refused(run(*coalescing, "test-overlap"), 1, "overlap or leave gaps")
        self.assert_refused(run(KNOWN + "scalability", "--blocks", 20, "--manager", "test-overlap"), 1, "not free")

    def test_bad_options(self):
        for program in PAGE_PROGRAMS:
            for arguments in (("--threads", 0), ("--manager", "none"), ("--manager", "nbbs"), ("--manager", "mmap:x"),
                              ("--manager", "nbbs:/no/such.so"), ("--manager", "nbbs:libm.so.6"), ("--colour", "red"),
                              ("--manager", "list", "--threads", 0)):
                with self.subTest(program=program, arguments=arguments):
                    self.assert_refused(run(program, *arguments), 2, program)
        self.assert_refused(run("pages_larson", "--low", 3, "--high", 2), 2, "--low")


class NbbsTest(WorkloadTest):
    """The way to NBBS, with a stand-in that exports the same two functions (fake_nbbs.c)."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.manager = "nbbs:" + built(cls.folder.name, "fake_nbbs.c")

    def test_runs(self):
        for program, arguments in (("pages_scalability", ("--blocks", 50)), ("pages_threadtest", ("--batches", 3)),
                                   ("pages_larson", ("--lives", 2))):
            record = self.record(run(program, "--manager", self.manager, "--threads", 2, *arguments))
            self.assertGreater(record["operations"], 0)

    def test_keeps_no_blocks(self):
        self.assert_refused(run("pages_coalescing", "--manager", self.manager), 3, "not applicable")

    def test_damage_and_refusal_are_found(self):
        # Of two threads, one could meet a scribble already in a page that it is handed.
        for defect, threads, words in (("twice", 2, "not free"), ("scribble", 1, "does not hold"), ("odd", 2, "odd address"),
                                       ("small", 2, "refused 1 pages; the experiment needs a region of 40")):
            with self.subTest(defect):
                done = run("pages_scalability", "--threads", threads, "--blocks", 20, "--manager", self.manager,
                           FAKE_NBBS=defect)
                self.assert_refused(done, 1, words)


class CasesTest(unittest.TestCase):
    def test_identifiers(self):
        cases = supermalloc.suite() + pages.suite()
        self.assertEqual(len({case.id for case in cases}), len(cases))
        for case in cases:
            self.assertRegex(case.id, r"^[a-z0-9.-]+$")
            self.assertNotEqual(case.full, case.quick, case.id)

    def test_every_parameter_is_in_the_identifier(self):
        same, built_cases = {}, 0
        for build, variants in (
            (supermalloc.malloc_test, ({}, {"producers": 2}, {"batches": 7})),
            (supermalloc.superserver, ({}, {"threads": 1}, {"latency": True}, {"allocations": 9})),
            (supermalloc.vyukov, ({}, {"threads": 3}, {"objects": 3})),
            (supermalloc.lock_contention, ({}, {"threads": 3}, {"increments": 3})),
            (supermalloc.page_uncommit, ({}, {"rounds": 3})),
            (supermalloc.author_malloc_test, ({}, {"producers": 2})),
            (supermalloc.author_superserver, ({}, {"threads": 1})), (supermalloc.author_vyukov, ({},)),
            (supermalloc.author_lock_contention, ({}, {"threads": 3}, {"increments": 3})),
            (pages.linux_scalability, ({}, {"threads": 3}, {"batches": 9})),
            (pages.threadtest, ({}, {"threads": 3}, {"batches": 9})),
            (pages.larson, ({}, {"threads": 3}, {"lives": 9})),
            (pages.coalescing_failures, ({}, {"threads": 3}, {"blocks": 9}, {"runs": 9})),
        ):
            for variant in variants:
                case = build(**variant)
                built_cases += 1
                self.assertEqual(same.setdefault(case.id, case.argv), case.argv)
        self.assertEqual(len(same), built_cases)

    def test_quick_cases_run(self):
        for case in supermalloc.suite() + pages.suite():
            if not case.quick:
                continue
            with self.subTest(case.id):
                argv = [word.replace("{bin}/", "").replace("{manager}", "mmap") for word in case.argv]
                done = run(*argv)
                if case.group == "pages-coalescing-failures":
                    self.assertEqual(done.returncode, 3)
                    continue
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                record = json.loads(done.stdout)
                self.assertEqual(record["threads"], case.threads)
                if case.metric != "time":
                    self.assertIn(case.metric, record["metrics"])

    def test_families(self):
        self.assertTrue(all(case.family is Family.PAGES for case in pages.suite()))
        self.assertEqual(supermalloc.lock_contention().allocators, ("glibc",))


if __name__ == "__main__":
    unittest.main()
