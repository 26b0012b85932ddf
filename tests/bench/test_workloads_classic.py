"""threadtest, shbench, larson, cache-scratch, cache-thrash and ACDC: their counts, their records, what they find damaged,
what they refuse. Nothing here judges speed."""

import json
import os
import subprocess
import tempfile
import unittest

from spanalloc_bench.cases import acdc, classic

BENCH = os.environ["SPANALLOC_TEST_BENCH"]
STANDARD = os.path.join(os.environ["SPANALLOC_TEST_LIBRARIES"], "libspanalloc.so")
HERE = os.path.dirname(os.path.abspath(__file__))
FIELDS = {"workload", "parameters", "threads", "operations", "elapsed_s", "peak_live_bytes", "metrics", "latency"}


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
        """The records under the C library's malloc and under ours."""
        return [self.record(run(program, *arguments, preload=preload)) for preload in (None, STANDARD)]

    def assert_refused(self, done, exit_code, *words):
        self.assertEqual((done.returncode, done.stdout), (exit_code, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


class ClassicTest(WorkloadTest):
    def test_threadtest(self):
        for threads, size, work in ((1, 64, 0), (3, 256, 2), (2, 5, 0)):
            for record in self.records("threadtest", "--threads", threads, "--objects", 100, "--rounds", 7, "--size", size,
                                       "--work", work):
                each = 100 // threads
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * each * 7))
                self.assertEqual(record["peak_live_bytes"], threads * each * size)

    def test_threadtest_with_more_threads_than_objects(self):
        record = self.record(run("threadtest", "--threads", 64, "--objects", 1, "--rounds", 1))
        self.assertEqual(record["operations"], 64)

    def test_shbench(self):
        for threads in (1, 3):
            for record in self.records("shbench", "--threads", threads, "--rounds", 500, "--lifetime", 100):
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * 500 * 8))
                # One in eight lives 50 rounds in the mean: objects of 4.5 bytes.
                self.assertIn(record["peak_live_bytes"], range(threads * 40 * 4, threads * 110 * 5))

    def test_shbench_in_small_and_large(self):
        for arguments, operations in ((("--objects", 1, "--lifetime", 1, "--rounds", 1), 2),
                                      (("--objects", 3, "--lifetime", 20, "--rounds", 999), 2 * 3 * 999),
                                      (("--objects", 100, "--lifetime", 300, "--rounds", 400, "--high", 500), 80_000)):
            self.assertEqual(self.record(run("shbench", *arguments))["operations"], operations)

    def test_larson(self):
        for threads, generations in ((1, 1), (2, 2), (3, 7)):
            for record in self.records("larson", "--threads", threads, "--generations", generations, "--objects", 20,
                                       "--rounds", 5):
                self.assertEqual((record["threads"], record["operations"]), (threads, threads * generations * 100))
                self.assertEqual(record["peak_live_bytes"], threads * 20 * 7)
                self.assertEqual(record["metrics"]["threads_started"], threads * generations)
                self.assertEqual(record["latency"], {})

    def test_larson_latency(self):
        for record in self.records("larson", "--low", 7, "--high", 500, "--latency", 1, "--objects", 20, "--rounds", 5,
                                   "--generations", 3):
            metrics = record["metrics"]
            for call in ("malloc", "free"):
                latency = record["latency"][call]
                self.assertEqual(latency["count"], record["operations"])
                self.assertLessEqual(latency["p50_ns"], latency["p9999_ns"])
                self.assertEqual(metrics[f"{call}_max_ns"], latency["max_ns"])
                self.assertEqual(metrics[f"{call}_p9999_ns"], latency["p9999_ns"])
                self.assertLessEqual(metrics[f"{call}_mean_ns"], latency["max_ns"])
                self.assertGreater(metrics[f"{call}_stddev_ns"], 0)

    def test_larson_for_a_time(self):
        for seconds in (1, 10, 100):  # a busy machine may take longer to come to a second generation
            record = self.record(run("larson", "--seconds", seconds, "--rounds", 100, "--objects", 10))
            self.assertGreaterEqual(record["elapsed_s"], seconds)
            self.assertGreaterEqual(record["operations"], 1000 * (record["metrics"]["threads_started"] - 2))
            if record["metrics"]["threads_started"] > 2:
                return
        self.fail(f"no thread had a successor within {seconds} s")

    def test_cache_workloads(self):
        for program in ("cache_scratch", "cache_thrash"):
            for threads in (1, 2, 5):
                for record in self.records(program, "--threads", threads, "--iterations", 20, "--repetitions", 100,
                                           "--held", 3):
                    self.assertEqual(record["operations"], threads * 20 * (100 // threads) * 3)
                    self.assertEqual(record["peak_live_bytes"], threads * 3 * 8)
                    self.assertEqual(record["metrics"]["judged_rounds"], 32)
                    if threads == 1:
                        self.assertEqual(record["metrics"]["false_sharing"], 0)

    def test_bad_options(self):
        for program, *arguments in (
            ("threadtest", "--threads", 0), ("threadtest", "--size", "64k"), ("threadtest", "--rounds"),
            ("shbench", "--low", 9), ("shbench", "--colour", "red"), ("larson", "--low", 8, "--high", 8),
            ("larson", "--latency", 2), ("cache_scratch", "--held", 0), ("cache_thrash", "iterations", 3),
            ("acdc", "--low", 15), ("acdc", "--low", 64, "--high", 64), ("acdc", "--lists", 101),
            ("acdc", "--min-lifetime", 3, "--max-lifetime", 2), ("acdc", "--steps", 0),
            ("acdc", "--sets-by", "size", "--low", 17), ("acdc", "--write", 10), ("acdc", "--access-every", 1),
            ("acdc", "--interval", "never"), ("acdc", "--steps", 5, "--warm-up", 5),
        ):
            with self.subTest(program=program, arguments=arguments):
                self.assert_refused(run(program, *arguments), 2, program)


class FalseSharingTest(WorkloadTest):
    """Allocators whose answer is known: blocks in one line for all threads, a line for each block, and so on."""

    SOURCE = """
        #include <stdatomic.h>
        #include <stddef.h>
        #include <stdlib.h>
        #include <string.h>
        static _Alignas(4096) char arena[64 << 20];
        static atomic_size_t used;
        struct block { struct block* next; };
        static __thread struct block* freed __attribute__((tls_model("initial-exec")));
        #define SMALL 8
        #if PITCH == 0 /* each thread cuts small blocks off a page of its own */
        static __thread char* page __attribute__((tls_model("initial-exec")));
        static __thread size_t left __attribute__((tls_model("initial-exec")));
        static void* cut(void) {
          if (left == 0) { page = arena + atomic_fetch_add(&used, 4096); left = 4096; }
          left -= 16;
          return page + left;
        }
        #else
        static void* cut(void) { return arena + atomic_fetch_add(&used, PITCH); }
        #endif
        static _Alignas(64) char rest[64 << 20];
        static atomic_size_t rest_used;
        void* malloc(size_t n) {
          if (n != SMALL) {
            size_t at = atomic_fetch_add(&rest_used, (n + 16 + 15) & ~(size_t)15);
            *(size_t*)(rest + at) = n;
            return rest + at + 16;
          }
          if (REUSE && freed) { struct block* b = freed; freed = b->next; return b; }
          return cut();
        }
        void free(void* p) {
          if (!REUSE || (char*)p < arena || (char*)p >= arena + sizeof arena) return;
          ((struct block*)p)->next = freed;
          freed = p;
        }
        void* calloc(size_t a, size_t b) { return memset(malloc(a * b), 0, a * b); }
        void* realloc(void* p, size_t n) {
          void* q = malloc(n);
          if (p) memcpy(q, p, n); /* may read past p, within the arrays */
          return q;
        }
    """

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)

    def answers(self, pitch, reuse):
        """(active, passive, passive of threads that have allocated) under an allocator with this distance of blocks
        (0: threads have pages of their own), whose free does or does not keep the block for the calling thread."""
        library = os.path.join(self.folder.name, f"pitch{pitch}-{reuse}.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-fno-builtin", f"-DPITCH={pitch}", f"-DREUSE={reuse}", "-x", "c",
                        "-", "-o", library], input=self.SOURCE, text=True, check=True)
        few = ("--iterations", 3, "--repetitions", 10, "--threads", 3)
        thrash = self.record(run("cache_thrash", *few, preload=library))["metrics"]
        scratch = self.record(run("cache_scratch", *few, preload=library))["metrics"]
        for metrics in (thrash, scratch):
            self.assertEqual(metrics["false_sharing"] > 0, metrics["shared_lines"] > 0)
        return thrash["false_sharing"], scratch["false_sharing"], scratch["false_sharing_warm"]

    def test_blocks_side_by_side_are_active_sharing(self):
        self.assertEqual(self.answers(16, 0)[0], 1)
        self.assertEqual(self.answers(32, 1)[0], 1)

    def test_a_line_a_block_is_never_sharing(self):
        self.assertEqual(self.answers(64, 1), (0, 0, 0))

    def test_reusing_what_others_allocated_is_passive_sharing(self):
        self.assertEqual(self.answers(0, 1), (0, 1, 1))

    def test_not_reusing_it_is_none(self):
        self.assertEqual(self.answers(0, 0), (0, 0, 0))


class AcdcTest(WorkloadTest):
    METRICS = {"allocator_s", "build_s", "allocator_build_s", "access_s", "mean_rss_kib", "base_rss_kib",
               "mean_page_tables_kib", "base_page_tables_kib",
               "remote_frees_percent", "own_kib"}

    # Of a thread of its own each: a microsecond passes from one look at it to the next, and between them nothing.
    CLOCK = """
        #include <time.h>
        static __thread long looks __attribute__((tls_model("initial-exec")));
        int clock_gettime(clockid_t id, struct timespec* t) {
          (void)id;
          looks++;
          t->tv_sec = looks / 1000000;
          t->tv_nsec = looks % 1000000 * 1000;
          return 0;
        }
    """

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.clock = os.path.join(folder.name, "clock.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", cls.clock], input=cls.CLOCK, text=True,
                       check=True)

    def acdc(self, *arguments):
        records = self.records("acdc", *arguments)
        for record in records:
            self.assertEqual(set(record["metrics"]), self.METRICS)
            parts = sum(record["metrics"][name] for name in ("allocator_s", "build_s", "access_s"))
            self.assertLess(parts, record["elapsed_s"] + 1e-6)
        # Sizes, lifetimes and sets are drawn by the workload: no allocator changes what it asks for.
        first, second = records
        self.assertEqual(first["operations"], second["operations"])
        return first

    def test_objects_of_one_size(self):
        for lists in (0, 37, 100):
            record = self.acdc("--threads", 2, "--steps", 6, "--step-kib", 16, "--low", 64, "--high", 65, "--lists", lists)
            self.assertEqual(record["operations"], 2 * 6 * 16 * 1024 // 64)
            # A step's objects are accessed in it and in the next, then freed.
            self.assertEqual(record["peak_live_bytes"], 2 * 2 * 16 * 1024)
            self.assertEqual(record["metrics"]["remote_frees_percent"], 0)

    def test_objects_that_die_in_their_step(self):
        record = self.acdc("--threads", 1, "--steps", 3, "--step-kib", 4, "--low", 32, "--high", 33, "--min-lifetime", 0,
                           "--max-lifetime", 0)
        self.assertEqual((record["operations"], record["peak_live_bytes"]), (3 * 4 * 32, 4096))

    def test_a_step_smaller_than_an_object(self):
        record = self.acdc("--threads", 1, "--steps", 64, "--step-kib", 1, "--low", 32768, "--high", 32769)
        self.assertEqual(record["operations"], 2)

    def test_smallest_objects(self):
        for high in (17, 24, 33):
            self.acdc("--steps", 3, "--step-kib", 8, "--low", 16, "--high", high, "--lists", 50, "--max-lifetime", 3,
                      "--passes", 2)

    def test_intervals_and_warm_up_change_only_what_is_timed(self):
        threads, steps, sets, lifetime = 2, 40, 16, 3
        arguments = ("--threads", threads, "--steps", steps, "--step-kib", 64, "--low", 16, "--high", 65, "--lists", 50,
                     "--shared", 100, "--max-lifetime", lifetime, "--sets", sets)

        def intervals(*more):
            """How many a thread has timed of malloc, free and first writes, with a clock that counts its readings."""
            record = self.acdc(*arguments, *more)
            for name in ("operations", "peak_live_bytes"):
                self.assertEqual(record[name], by_set[name], more)
            counted = self.record(run("acdc", *arguments, *more, preload=self.clock))
            self.assertEqual(counted["operations"], by_set["operations"])
            return round(counted["metrics"]["allocator_build_s"] * 1e6)

        by_set = self.acdc(*arguments)
        # A set: malloc, the first writes; then each thread's frees of it.
        made, buried = 2 * sets * steps, threads * sets * steps
        self.assertEqual(intervals(), made + buried)
        # All that dies in a step in one, and none where nothing does.
        by_step = intervals("--interval", "step")
        self.assertIn(by_step, range(made + 1, made + steps + lifetime + 1))
        # The last 4 steps' sets, and what dies from there on: at least those, at most those of 3 steps before as well.
        last = 4
        late = intervals("--warm-up", steps - last)
        self.assertIn(late, range((2 + threads) * sets * last, (2 + threads) * sets * last + threads * sets * lifetime + 1))
        self.assertIn(intervals("--interval", "step", "--warm-up", steps - last),
                      range(2 * sets * last + 1, 2 * sets * last + last + lifetime + 1))

    def test_compact_asks_the_allocator_for_nothing(self):
        arguments = ("acdc", "--threads", 1, "--steps", 5, "--step-kib", 64, "--low", 16, "--high", 33, "--lists", 50)
        through, compact = (self.record(run(*arguments, "--compact", flag)) for flag in (0, 1))
        self.assertEqual(through["operations"], compact["operations"])
        self.assertEqual(through["peak_live_bytes"], compact["peak_live_bytes"])

    def test_sharing(self):
        for threads in (1, 2, 4):
            for _ in range(100):
                record = self.acdc("--threads", threads, "--steps", 12, "--step-kib", 16, "--low", 16, "--high", 513,
                                   "--shared", 100, "--lists", 50, "--max-lifetime", 4)
                # 1 - 1/threads where the last visitor is arbitrary. Who is last is the scheduler's: until it is not
                # always the same one.
                remote = record["metrics"]["remote_frees_percent"]
                if threads == 1 or 0 < remote < 100:
                    break
            self.assertTrue(remote == 0 if threads == 1 else 0 < remote < 100, remote)

    def test_some_sharing(self):
        self.acdc("--threads", 3, "--steps", 9, "--step-kib", 16, "--shared", 40, "--lists", 50, "--max-lifetime", 2)

    def test_sets_by_size(self):
        common = ("--sets-by", "size", "--steps", 9, "--step-bytes", 20000, "--min-lifetime", 0)
        for arguments in (
            ("--threads", 3, "--low", 16, "--high", 512, "--max-lifetime", 4, "--shared", 100, "--write", 10, "--access-every", 1),
            ("--threads", 1, "--low", 16, "--high", 32, "--max-lifetime", 9, "--lists", 30, "--write", 0, "--access-every", 5),
            ("--threads", 1, "--low", 16, "--high", 32, "--max-lifetime", 9, "--lists", 30, "--compact", 1),
            ("--threads", 2, "--low", 1024, "--high", 4096, "--max-lifetime", 0, "--write", 50),
        ):
            record = self.acdc(*common, *arguments)
            threads = arguments[1]
            self.assertEqual(record["threads"], threads)
            # A step makes whole sets: at least its bytes, of objects of less than the largest size.
            self.assertGreater(record["operations"] * arguments[5], threads * 9 * 20000)

    def test_a_set_has_objects_by_its_size_and_lifetime(self):
        # One class, one lifetime: 2^2 x 1^2 objects of 64 to 127 bytes a set, and a step of one byte makes one set.
        record = self.acdc("--sets-by", "size", "--threads", 1, "--steps", 7, "--step-bytes", 1, "--low", 64, "--high", 128,
                           "--min-lifetime", 0, "--max-lifetime", 0)
        self.assertEqual(record["operations"], 7 * 4)
        self.assertIn(record["peak_live_bytes"], range(4 * 64, 4 * 128))

    def test_the_mean_memory_grows_with_what_lives(self):
        small, large = (self.record(run("acdc", "--threads", 1, "--steps", 8, "--step-kib", kib, "--low", 4096, "--high", 8192))
                        for kib in (64, 8192))
        grown = [r["metrics"]["mean_rss_kib"] - r["metrics"]["base_rss_kib"] for r in (small, large)]
        self.assertGreater(grown[1] - grown[0], 8192 * 0.8)


class DamageTest(WorkloadTest):
    """Under a malloc that is wrong on purpose each workload ends with 1 and one line that says what it found."""

    RUNS = (
        ("threadtest", "--objects", 100, "--rounds", 2),
        ("shbench", "--rounds", 300),
        ("larson", "--low", 7, "--high", 60, "--objects", 50, "--rounds", 5, "--generations", 2),
        ("cache_scratch", "--iterations", 20, "--repetitions", 10),
        ("cache_thrash", "--iterations", 20, "--repetitions", 10),
        ("acdc", "--steps", 4, "--step-kib", 16, "--lists", 100),
        ("acdc", "--steps", 4, "--step-kib", 16, "--low", 16, "--high", 33, "--lists", 0),
        ("acdc", "--steps", 4, "--step-kib", 16, "--shared", 100, "--lists", 50),
        ("acdc", "--steps", 4, "--step-kib", 16, "--shared", 100, "--lists", 50, "--interval", "step"),
        ("acdc", "--steps", 4, "--step-kib", 16, "--lists", 50, "--sets-by", "size"),
    )

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.broken = os.path.join(folder.name, "broken_malloc.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", cls.broken, os.path.join(HERE, "broken_malloc.c")], check=True)

    def test_control(self):
        for arguments in self.RUNS:
            with self.subTest(arguments):
                self.record(run(*arguments, preload=self.broken, BROKEN_MALLOC="none"))

    def test_found(self):
        for defect, words in (("overlap", ("overwritten", "lost objects", "gained objects")),
                              ("scribble", ("overwritten",)), ("refuse", ("returned null",))):
            for arguments in self.RUNS:
                with self.subTest(defect, arguments=arguments):
                    done = run(*arguments, preload=self.broken, BROKEN_MALLOC=defect)
                    self.assert_refused(done, 1)
                    self.assertTrue(any(word in done.stderr for word in words), done.stderr)


class CasesTest(WorkloadTest):
    def test_identifiers(self):
        cases = classic.suite() + acdc.suite()
        self.assertEqual(len({case.id for case in cases}), len(cases))
        for case in cases:
            self.assertRegex(case.id, r"^[a-z0-9.-]+$")
            self.assertNotEqual(case.full, case.quick, case.id)

    def test_every_parameter_is_in_the_identifier(self):
        same, built = {}, 0
        for build, variants in (
            (classic.threadtest, ({}, {"size": 256}, {"threads": 8}, {"work": 9}, {"rounds": 9})),
            (classic.shbench, ({}, {"threads": 8}, {"rounds": 9})),
            (classic.larson, ({}, {"threads": 8}, {"low": 3}, {"high": 99}, {"latency": True}, {"rounds": 9})),
            (classic.cache_scratch, ({}, {"threads": 8}, {"repetitions": 9})),
            (classic.cache_thrash, ({}, {"threads": 8}, {"repetitions": 9})),
            (acdc.authors_producer_consumer, ({}, {"threads": 8})),
            (acdc.authors_object_size, ({"exponent": 4}, {"exponent": 20}, {"exponent": 4, "threads": 8})),
            (acdc.authors_locality, ({"percent_lists": 0}, {"percent_lists": 100}, {"percent_lists": 0, "compact": True})),
            (acdc.producer_consumer, ({}, {"threads": 8}, {"steps": 9})),
            (acdc.object_size, ({"exponent": 4}, {"exponent": 20}, {"exponent": 4, "threads": 8},
                                {"exponent": 10, "total_kib": 9000})),
            (acdc.locality, ({"percent_lists": 0}, {"percent_lists": 100}, {"percent_lists": 0, "steps": 9}, {"percent_lists": 0, "threads": 2})),
        ):
            for variant in variants:
                case = build(**variant)
                built += 1
                self.assertEqual(same.setdefault(case.id, case.argv), case.argv)
        self.assertEqual(len(same), built)

    def test_object_size_allocates_little_enough_for_an_allocator_that_never_frees(self):
        for threads in (1, 2, 4, 8):
            for exponent in range(4, 21, 2):
                argv = acdc.object_size(exponent, threads).argv
                option = {argv[i]: int(argv[i + 1]) for i in range(1, len(argv), 2)}
                self.assertGreaterEqual(option["--steps"], 30)
                self.assertLessEqual(option["--steps"] * option["--step-kib"] * threads, 2 << 20)
        for case in acdc.suite():
            if case.group == "object-size":
                option = {case.argv[i]: int(case.argv[i + 1]) for i in range(1, len(case.argv), 2)}
                self.assertLessEqual(option["--steps"] * option["--step-kib"] * case.threads, 6 << 20)

    def test_quick_cases_run(self):
        for case in classic.suite() + acdc.suite():
            if not case.quick:
                continue
            with self.subTest(case.id):
                record = self.record(run(*(word.replace("{bin}/", "") for word in case.argv)))
                self.assertEqual(record["threads"], case.threads)
                if case.metric != "time":
                    self.assertIn(case.metric, record["metrics"])


if __name__ == "__main__":
    unittest.main()
