"""The suite's harness: samples survive what happens to a run, every outcome is a row, the orders are balanced, and results
of different things are not mixed."""

import collections
import ctypes.util
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import allocators, build, execute, progress, schedule, store, tree  # noqa: E402
from spanalloc_bench.model import (  # noqa: E402
    CRASHED, FAILED, HUNG, NOT_PRELOADED, OK, UNAVAILABLE, Allocator, Case, Family, Kind, Sample,
)
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
STANDARD = allocators.named(PLACES, "standard")
GLIBC = allocators.named(PLACES, "glibc")


def program(name, script, **fields):
    """A case of a real program: a shell script. Its timeout is for hangs, unless it is what is tested."""
    fields.setdefault("timeout_s", 600.0)
    return Case(name, "test", name, "test", Family.PROGRAM, ("sh", "-c", script), **fields)


def workload(name, script, **fields):
    """A case that ends with a record, by a program that does nothing when it is asked for --help."""
    fields.setdefault("timeout_s", 600.0)
    return Case(name, "test", name, "test", Family.WORKLOAD, ("/usr/bin/env", "sh", "-c", script), **fields)


def record(**fields):
    return "echo '" + json.dumps({"operations": 10, "elapsed_s": 0.5, "peak_live_bytes": 4096, **fields}) + "'"


def libm():
    """A shared object that defines no malloc."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        folder = os.path.dirname(next(line.split()[-1] for line in maps if "/libc.so.6" in line))
    return os.path.realpath(os.path.join(folder, ctypes.util.find_library("m")))


def processes(mark):
    """Command lines of the living processes that hold a word."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if mark in words:
            found.append(words)
    return found


def mark(number):
    """Seconds to sleep that nobody else on this machine asks for."""
    return f"{1_000_000 + number}.{os.getpid()}"


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)


class StoreTest(Folder):
    def sample(self, round_=1, **fields):
        return Sample("case", "contender", round_, 1, **fields)

    def test_a_sample_comes_back_as_it_was(self):
        sample = self.sample(elapsed_s=0.1 + 0.2, operations=7, peak_kib=12.0, metrics={"a": 1.5},
                             latency={"malloc": {"max_ns": 3}})
        with store.Store(self.folder) as results:
            results.append(sample)
        self.assertEqual(store.samples(self.folder), [sample])

    def test_text_of_several_lines_stays_in_one(self):
        with store.Store(self.folder) as results:
            results.append(self.sample(status=FAILED, problem='a\n"b", c\r\n  d'))
            results.append(self.sample(2))
        self.assertEqual([s.problem for s in store.samples(self.folder)], ['a "b", c d', ""])
        with open(self.path(store.SAMPLES), encoding="utf-8") as file:
            self.assertEqual(len(file.readlines()), 3)

    def test_torn_line_is_passed_over_and_cut_off(self):
        with store.Store(self.folder) as results:
            results.append(self.sample(1))
        with open(self.path(store.SAMPLES), "ab") as file:
            file.write(b'case,contender,2,1,ok,"torn, ')
        self.assertEqual([s.round for s in store.samples(self.folder)], [1])
        with store.Store(self.folder) as results:
            self.assertFalse(results.has("case", "contender", 2))
            results.append(self.sample(2))
        self.assertEqual([s.round for s in store.samples(self.folder)], [1, 2])

    def test_a_torn_header_is_no_result(self):
        with open(self.path(store.SAMPLES), "wb") as file:
            file.write(b"case,allo")
        self.assertEqual(store.samples(self.folder), [])
        with store.Store(self.folder) as results:
            results.append(self.sample())
        self.assertEqual(len(store.samples(self.folder)), 1)

    def test_whole_lines_survive_a_kill(self):
        code = (
            "import sys, itertools\nfrom spanalloc_bench import store\nfrom spanalloc_bench.model import Sample\n"
            "results = store.Store(sys.argv[1])\n"
            "for i in itertools.count(1):\n    results.append(Sample('case', 'contender', i, 1, problem='x' * 3000))\n"
        )
        with subprocess.Popen([sys.executable, "-c", code, self.folder],
                              env=dict(os.environ, PYTHONPATH=":".join(sys.path[:2]))) as writer:
            while len(store.samples(self.folder)) < 50 and writer.poll() is None:
                time.sleep(0.01)
            writer.kill()
        rounds = [s.round for s in store.samples(self.folder)]
        self.assertGreaterEqual(len(rounds), 50)
        self.assertEqual(rounds, list(range(1, len(rounds) + 1)))

    def test_a_later_sample_replaces_an_earlier_one(self):
        with store.Store(self.folder) as results:
            results.append(self.sample(status=UNAVAILABLE, problem="not installed"))
            self.assertFalse(results.has("case", "contender", 1))
            results.append(self.sample(elapsed_s=1.0))
            self.assertTrue(results.has("case", "contender", 1))
        self.assertEqual([s.elapsed_s for s in store.samples(self.folder)], [1.0])

    def test_one_writer_at_a_time(self):
        with store.Store(self.folder):
            with self.assertRaisesRegex(store.InUse, "another run"):
                store.Store(self.folder)
        store.Store(self.folder).close()

    def test_columns_of_another_version_are_refused(self):
        with open(self.path(store.SAMPLES), "w", encoding="utf-8") as file:
            file.write("case,allocator\n")
        with self.assertRaisesRegex(store.Damaged, "columns"):
            store.samples(self.folder)

    def test_a_file_without_the_newest_column_is_read_and_goes_on(self):
        columns = store.FIELDS[:-1]
        with open(self.path(store.SAMPLES), "w", encoding="utf-8") as file:
            file.write(",".join(columns) + "\ncase,contender,1,1,ok" + "," * (len(columns) - 5) + "\n")
        self.assertEqual(store.samples(self.folder), [self.sample(1)])
        with store.Store(self.folder) as results:
            results.append(self.sample(2, started=5.25))
        self.assertEqual([s.started for s in store.samples(self.folder)], [None, 5.25])

    def test_old_names_of_configs_are_read_as_todays(self):
        recorded = {"oopsla15": "scalloc", "oopsla15-reuse-100": "scalloc-reuse-100", "superblock": "a2alloc",
                    "superblocks": "superblocks", "glibc": "glibc"}
        with store.Store(self.folder) as results:
            for number, name in enumerate(recorded):
                results.append(Sample("case", name, number, 1))
        self.assertEqual([s.allocator for s in store.samples(self.folder)], list(recorded.values()))
        with store.Store(self.folder) as results:  # so a run goes on where it was
            self.assertTrue(results.has("case", "scalloc", 0))
        store.write_meta(self.folder, {"allocators": [{"name": "superblock", "path": "/x/libspanalloc-superblock.so"}],
                                       "verified": {"oopsla15": {}}})
        self.assertEqual(store.read_meta(self.folder),
                         {"allocators": [{"name": "a2alloc", "path": "/x/libspanalloc-superblock.so"}], "verified": {"scalloc": {}}})

    def test_ours_and_the_authors_programs_that_had_its_name_are_told_apart(self):
        """In 0.1 ours were oopsla15 and folio, and scalloc and supermalloc the programs of the papers' authors."""
        meta = {"allocators": [{"name": "scalloc", "kind": "peer", "path": "/usr/lib/libscalloc.so"},
                               {"name": "oopsla15", "kind": "ours", "path": "/x/libspanalloc-oopsla15.so"},
                               {"name": "supermalloc", "kind": "given", "path": "/x/libsupermalloc.so"}],
                "verified": {"scalloc": {"larson": "/usr/lib/libscalloc.so"}}, "cases": {"a": {"group": "scalloc"}}}
        with store.Store(self.folder) as results:
            for number, name in enumerate(("scalloc", "oopsla15", "supermalloc"), start=1):
                results.append(Sample("case", name, 1, number))
        store.write_meta(self.folder, meta)

        def told():
            return {s.allocator: s.position for s in store.samples(self.folder)}

        today = {"scalloc-original": 1, "scalloc": 2, "supermalloc-original": 3}
        self.assertEqual(told(), today)
        known = store.read_meta(self.folder)
        self.assertEqual([entry["name"] for entry in known["allocators"]], list(today))
        self.assertEqual((list(known["verified"]), known["cases"]), (["scalloc-original"], meta["cases"]))
        with open(self.path(store.META), encoding="utf-8") as file:
            self.assertEqual(json.load(file), meta)  # reading changes nothing
        # What goes on adds lines of ours by its name of today; a kill between the two steps changes nothing either.
        with unittest.mock.patch.object(json, "dumps", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            store.Store(self.folder)
        self.assertEqual(told(), today)
        with store.Store(self.folder) as results:
            results.append(Sample("case", "scalloc", 1, 4))
        self.assertEqual(told(), {**today, "scalloc": 4})
        self.assertEqual(store.read_meta(self.folder), known)

    def test_set_aside(self):
        with store.Store(self.folder) as results:
            for round_ in (1, 2, 3):
                results.append(self.sample(round_))
            self.assertEqual(results.set_aside(lambda s: s.round == 2), 1)
            self.assertFalse(results.has("case", "contender", 2))
            results.append(self.sample(4))
        self.assertEqual([s.round for s in store.samples(self.folder)], [1, 3, 4])
        with open(self.path(store.SET_ASIDE), encoding="utf-8") as file:
            self.assertEqual([line.split(",")[2] for line in file], ["round", "2"])

    def test_as_a_table(self):
        with store.Store(self.folder) as results:
            results.append(self.sample(1, elapsed_s=2.0, operations=4, metrics={"a": 1.0}))
            results.append(self.sample(2, status=CRASHED, problem="SIGSEGV"))
        table = store.read(self.folder)
        self.assertEqual(tuple(table.columns), store.FIELDS)
        self.assertEqual(table.elapsed_s.max(), 2.0)
        self.assertEqual(list(table.operations.isna()), [False, True])
        self.assertEqual(table.metrics[0], {"a": 1.0})


class OrderTest(unittest.TestCase):
    ROW = [Allocator(name, "/x", Kind.PEER) for name in "abcd"]
    CASES = [program(name, "true") for name in ("one", "two", "three")]

    def test_every_run_once(self):
        cells = schedule.balanced_cells(self.CASES, self.ROW, 5)
        keys = {(c.round, c.case.id, c.allocator.name) for c in cells}
        self.assertEqual((len(cells), len(keys)), (60, 60))

    def test_contenders_of_a_case_run_back_to_back(self):
        cells = schedule.balanced_cells(self.CASES, self.ROW, 3)
        groups = [(c.round, c.case.id) for c in cells]
        changes = sum(a != b for a, b in zip(groups, groups[1:]))
        self.assertEqual(changes, 3 * 3 - 1)

    def test_each_round_begins_with_another_one(self):
        cells = schedule.balanced_cells(self.CASES, self.ROW, 4)
        for case in self.CASES:
            firsts = [c.allocator.name for c in cells if c.case is case and c.position == 1]
            self.assertEqual(sorted(firsts), list("abcd"))
        first_round = {c.allocator.name for c in cells if c.round == 1 and c.position == 1}
        self.assertGreater(len(first_round), 1)

    def test_each_follows_each_other_one_equally_often(self):
        for count in range(2, 10):
            orders = schedule.balanced_orders(count)
            pairs = collections.Counter(pair for order in orders for pair in zip(order, order[1:]))
            self.assertEqual(len(pairs), count * (count - 1))
            self.assertEqual(len(set(pairs.values())), 1)
            for place in zip(*orders):
                self.assertEqual(len(set(collections.Counter(place).values())), 1)

    def test_page_managers_run_in_their_cases_only(self):
        pages = Case("pages", "pages", "", "", Family.PAGES, ("x",))
        manager = Allocator("mmap", "mmap", Kind.PAGES)
        row = [*self.ROW, manager]
        self.assertEqual(schedule.contenders(pages, row), [manager])
        self.assertEqual(schedule.contenders(self.CASES[0], row), self.ROW)

    def test_a_case_names_its_contenders(self):
        only = program("only", "true", allocators=("c",))
        self.assertEqual([a.name for a in schedule.contenders(only, self.ROW)], ["c"])

    def test_estimate_learns(self):
        cells = schedule.balanced_cells(self.CASES, self.ROW, 1)
        estimate = progress.Estimate(cells, [])
        for cell in cells[:4]:
            estimate.done(cell, 10.0)
        # The first case is done; the other two are taken to be as much slower than guessed.
        self.assertAlmostEqual(estimate.seconds(), 80.0)
        for cell in cells[4:8]:
            estimate.done(cell, 1.0)
        self.assertLess(estimate.seconds(), 30.0)
        for cell in cells[8:]:
            estimate.done(cell)
        self.assertEqual(estimate.seconds(), 0.0)


class OutcomeTest(unittest.TestCase):
    """Every way in which a run can end is a sample."""

    def run_case(self, case, allocator=STANDARD):
        execute.prepare_this_process()
        return execute.Runner(PLACES).run(case, allocator, 3, 2)

    def expect(self, case, status, problem, allocator=STANDARD):
        sample = self.run_case(case, allocator)
        self.assertEqual((sample.status, sample.round, sample.position), (status, 3, 2), sample)
        self.assertRegex(sample.problem, problem)
        self.assertIsNone(sample.elapsed_s)
        self.assertIsNone(sample.value())
        return sample

    def test_workload(self):
        sample = self.run_case(workload("good", record(metrics={"a": 2}, latency={"malloc": {"max_ns": 5}})))
        self.assertEqual((sample.status, sample.problem), (OK, ""))
        self.assertEqual((sample.elapsed_s, sample.operations, sample.peak_live_bytes), (0.5, 10, 4096))
        self.assertEqual((sample.metrics, sample.latency), ({"a": 2.0}, {"malloc": {"max_ns": 5}}))
        self.assertAlmostEqual(sample.value(), 0.05)
        for name in ("wall_s", "user_s", "system_s", "peak_kib", "minor_faults", "voluntary_switches"):
            self.assertIsNotNone(getattr(sample, name), name)

    def test_program(self):
        sample = self.run_case(program("sleeps", "sleep 0.2; echo not a record"))
        self.assertEqual(sample.status, OK)
        self.assertGreater(sample.elapsed_s, 0.19)
        self.assertIsNone(sample.operations)

    def test_crashed(self):
        self.expect(program("crash", "kill -SEGV $$"), CRASHED, "SIGSEGV")
        self.expect(workload("crash", "kill -ABRT $$"), CRASHED, "SIGABRT")

    def test_failed_with_its_last_words(self):
        self.expect(program("fail", "echo first >&2; echo the last line >&2; exit 7"), FAILED, "exit code 7: the last line$")

    def test_no_answer_is_unavailable(self):
        self.expect(workload("none", "echo no such thing here >&2; exit 3"), UNAVAILABLE, "^no such thing here$")

    def test_no_record(self):
        self.expect(workload("text", "echo hello"), FAILED, "no record: hello")
        self.expect(workload("nothing", "true"), FAILED, "no record")
        self.expect(workload("list", "echo [1]"), FAILED, "no record")
        self.expect(workload("words", record(operations="many")), FAILED, "cannot be read")
        self.expect(workload("zero", record(elapsed_s=0)), FAILED, "it took 0")

    def test_hung_ends_with_its_daemons(self):
        # Longer than any test may take: what is not there any more was ended.
        sleep = f"sleep {mark(1)}"
        self.expect(program("hang", f"setsid {sleep} & (setsid {sleep} &); {sleep}", timeout_s=0.5), HUNG, "0.5 s")
        self.assertEqual(processes(mark(1)), [])

    def test_what_a_good_run_leaves_behind_is_ended(self):
        self.assertEqual(self.run_case(program("daemon", f"setsid sleep {mark(2)} & true")).status, OK)
        self.assertEqual(processes(mark(2)), [])

    def test_not_preloaded(self):
        fake = Allocator("fake", libm(), Kind.GIVEN)
        self.expect(program("sh", "true"), NOT_PRELOADED, "malloc is in .*libc", fake)
        self.expect(workload("sh", record()), NOT_PRELOADED, "malloc is in .*libc", fake)

    def test_a_library_that_is_dropped_on_the_way_is_noticed(self):
        self.expect(program("drops", "LD_PRELOAD= exec sh -c 'sleep 0.1'"), NOT_PRELOADED, "not loaded")

    def test_a_process_of_a_workload_that_drops_the_library_is_noticed(self):
        script = "LD_PRELOAD= sh -c 'sleep 0.05'; "
        self.expect(workload("child", script + record()), NOT_PRELOADED, "^[12] of its processes")
        self.assertEqual(self.run_case(program("child", script)).status, OK)

    def test_the_floor_may_refuse(self):
        floor = Allocator("bump", STANDARD.path, Kind.BASELINE)
        refuses = ': > "$BUMP_REFUSED"; '
        self.expect(program("x", refuses + "echo no memory >&2; exit 1"), UNAVAILABLE,
                    "limit of memory.*exit code 1: no memory", floor)
        self.expect(program("x", refuses + "kill -SEGV $$"), UNAVAILABLE, "limit of memory.*SIGSEGV", floor)
        self.expect(workload("x", refuses + "echo hello"), UNAVAILABLE, "limit of memory", floor)

    def test_what_the_floor_did_not_refuse_is_a_failure(self):
        floor = Allocator("bump", STANDARD.path, Kind.BASELINE)
        self.expect(program("x", "echo out of memory >&2; exit 1"), FAILED, "exit code 1: out of memory", floor)
        self.expect(program("x", "kill -SEGV $$"), CRASHED, "SIGSEGV", floor)
        self.expect(workload("x", "echo hello"), FAILED, "no record", floor)

    def test_a_machine_that_hides_exits_is_told(self):
        self.assertTrue(execute.exits_are_seen(PLACES))
        with tempfile.TemporaryDirectory() as folder:
            blind = os.path.join(folder, "measure")
            with open(blind, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\necho \'{"exit_readings": 0}\' > "$2"\n')
            os.chmod(blind, 0o755)
            self.assertFalse(execute.exits_are_seen(types.SimpleNamespace(measure=blind)))

    def test_unavailable(self):
        self.expect(program("needs", "true", needs=("no-such-command",)), UNAVAILABLE, "no-such-command is not installed")
        self.expect(Case("x", "x", "x", "x", Family.WORKLOAD, ("{bin}/no-such",)), UNAVAILABLE, "no program .*/no-such$")
        self.expect(program("x", "true"), UNAVAILABLE, "^not built", Allocator("supermalloc", "", Kind.OURS, missing="not built: x"))

    def test_settings(self):
        setting = Allocator("standard", STANDARD.path, Kind.OURS, (("SPANALLOC_ARENA_BITS", "40"),))
        case = program("env", 'test "$SPANALLOC_ARENA_BITS$OF_CASE" = 40yes', environment=(("OF_CASE", "yes"),))
        self.assertEqual(self.run_case(case, setting).status, OK)

    def test_settings_of_the_user_do_not_get_in(self):
        os.environ["MALLOC_ARENA_MAX"] = "1"
        self.addCleanup(os.environ.pop, "MALLOC_ARENA_MAX")
        self.assertEqual(self.run_case(program("env", 'test -z "$MALLOC_ARENA_MAX"')).status, OK)

    def test_page_manager(self):
        manager = Allocator("mmap", "mmap", Kind.PAGES)
        case = Case("p", "p", "p", "p", Family.PAGES,
                    ("sh", "-c", 'test -z "$LD_PRELOAD" && test "$0" = mmap && ' + record(), "{manager}"))
        self.assertEqual(self.run_case(case, manager).status, OK)


class DriverTest(unittest.TestCase):
    """A driver is our own code beside a server: its faults, and the server's, are rows too."""

    def drive(self, run, **fields):
        execute.prepare_this_process()
        module = types.ModuleType("spanalloc_bench.programs.of_a_test")
        module.run = run
        sys.modules[module.__name__] = module
        self.addCleanup(sys.modules.pop, module.__name__)
        case = Case("server", "test", "", "", Family.DRIVER, (), driver="of_a_test:run", **fields)
        return execute.Runner(PLACES).run(case, STANDARD, 1, 1)

    @staticmethod
    def start(context, script):
        return subprocess.Popen(context.measured_command(["sh", "-c", script]), env=context.environment, cwd=context.scratch)

    def test_result(self):
        def run(context):
            self.start(context, "sleep 0.1").wait()
            return {"elapsed_s": 0.25, "operations": 5}

        sample = self.drive(run)
        self.assertEqual((sample.status, sample.elapsed_s, sample.operations), (OK, 0.25, 5), sample)
        self.assertGreater(sample.wall_s, 0.09)

    def test_hung(self):
        def run(context):
            self.start(context, f"exec sleep {mark(3)}")
            try:
                time.sleep(100_000)
            except Exception:  # as a careless driver might
                time.sleep(100_000)

        sample = self.drive(run, timeout_s=0.5)
        self.assertEqual(sample.status, HUNG)
        self.assertEqual(processes(mark(3)), [])

    def test_fault_of_the_driver(self):
        def run(context):
            return {}["nothing"]

        sample = self.drive(run)
        self.assertEqual((sample.status, sample.problem), (FAILED, "KeyError: 'nothing'"))

    def test_crash_of_the_server(self):
        def run(context):
            self.start(context, "kill -SEGV $$").wait()
            raise RuntimeError("the server does not answer")

        sample = self.drive(run)
        self.assertEqual((sample.status, sample.problem), (CRASHED, "killed by SIGSEGV"))

    def test_nothing_measured(self):
        self.assertEqual(self.drive(lambda context: {}).problem, "the driver measured nothing")


class RunTest(Folder):
    def run_cells(self, cases, row=(STANDARD, GLIBC), rounds=1, again=False):
        said = []
        schedule.run_cells(PLACES, cases, list(row), rounds, self.path("out"), said.append, again=again)
        return said

    def counted(self, name="counted"):
        """A case that leaves a line for each of its runs."""
        return program(name, f"echo run >> {self.path(name)}")

    def count(self, name="counted"):
        with open(self.path(name), encoding="utf-8") as file:
            return len(file.readlines())

    def test_goes_on_where_it_left_off(self):
        self.run_cells([self.counted()])
        self.assertEqual(self.count(), 2)
        with open(self.path("out", store.SAMPLES), "ab") as file:
            file.write(b"counted,standard,2,1,o")
        said = self.run_cells([self.counted()], rounds=3)
        self.assertEqual(self.count(), 6)
        self.assertTrue(any("2 of 6" in text for text in said), said)
        self.run_cells([self.counted()], rounds=3)
        self.assertEqual(self.count(), 6)
        self.assertEqual(len(store.samples(self.path("out"))), 6)

    def test_troubles_do_not_stop_the_run(self):
        cases = [program("crash", "kill -SEGV $$"), program("hang", "sleep 100000", timeout_s=0.3),
                 program("fail", "exit 9"), program("needs", "true", needs=("no-such-command",)), self.counted()]
        said = self.run_cells(cases, rounds=2)
        rows = {}
        for sample in store.samples(self.path("out")):
            rows.setdefault(sample.case, []).append(sample.status)
        # What hung, or cannot be run, is stated once; a crash may be a matter of luck.
        self.assertEqual(rows, {"crash": [CRASHED] * 4, "hang": [HUNG] * 2, "fail": [FAILED] * 4,
                                "needs": [UNAVAILABLE] * 2, "counted": [OK] * 4})
        self.assertEqual(sum("crash, standard: crashed" in text for text in said), 1)

    def test_again(self):
        self.run_cells([self.counted(), self.counted("other")])
        self.run_cells([self.counted()], again=True)
        self.assertEqual((self.count(), self.count("other")), (4, 2))
        with open(self.path("out", store.SET_ASIDE), encoding="utf-8") as file:
            self.assertEqual(sum(line.startswith("counted,") for line in file), 2)
        self.assertEqual(len(store.samples(self.path("out"))), 4)

    def test_another_library_of_the_same_name_is_refused(self):
        library = self.path("libmine.so")
        shutil.copy(STANDARD.path, library)
        mine = allocators.given(PLACES, f"mine={library}")
        self.run_cells([self.counted()], (mine, GLIBC))
        with open(library, "ab") as file:
            file.write(b"\0")
        with self.assertRaisesRegex(schedule.Mixed, "allocator mine.*--again.*--out"):
            self.run_cells([self.counted()], (mine, GLIBC), rounds=2)
        self.assertEqual(self.count(), 2)
        self.run_cells([self.counted()], (GLIBC,), rounds=2)  # the others are not touched by that
        self.run_cells([self.counted()], (mine, GLIBC), again=True)
        self.assertEqual({s.round for s in store.samples(self.path("out"))}, {1})

    def test_another_program_is_refused(self):
        tool = self.path("tool")
        with open(tool, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\ntrue\n")
        os.chmod(tool, 0o755)
        case = Case("tool", "x", "x", "x", Family.PROGRAM, (tool,))
        self.run_cells([case])
        with open(tool, "a", encoding="utf-8") as file:
            file.write("sleep 0\n")
        with self.assertRaisesRegex(schedule.Mixed, "program tool"):
            self.run_cells([case])
        self.run_cells([self.counted()])  # which does not use it

    def test_another_case_of_the_same_name_is_refused(self):
        case = self.counted()
        self.run_cells([case])
        self.run_cells([dataclasses.replace(case, title="other words", timeout_s=9.0)])
        for other in (dataclasses.replace(case, argv=(*case.argv, "more")),
                      dataclasses.replace(case, environment=(("A", "b"),))):
            with self.assertRaisesRegex(schedule.Mixed, "case counted.*--again"):
                self.run_cells([other])
        self.assertEqual(self.count(), 2)
        self.run_cells([self.counted("another")])  # of which there is no sample
        self.run_cells([dataclasses.replace(case, argv=(*case.argv, "more"))], again=True)
        self.assertEqual(self.count(), 4)

    def test_another_script_of_a_case_is_refused(self):
        case = Case("scripted", "x", "x", "x", Family.PROGRAM, ("sh", "{source}/script"))
        with unittest.mock.patch.object(tree, "SOURCE", self.folder):
            for words in ("true\n", "true again\n"):
                with open(self.path("script"), "w", encoding="utf-8") as file:
                    file.write(words)
                if "again" not in words:
                    self.run_cells([case])
            with self.assertRaisesRegex(schedule.Mixed, "case scripted"):
                self.run_cells([case])

    def test_samples_of_unknown_origin_are_refused(self):
        self.run_cells([self.counted()])
        os.remove(self.path("out", store.META))
        with self.assertRaisesRegex(schedule.Mixed, store.META):
            self.run_cells([self.counted()])

    def test_meta(self):
        self.run_cells([self.counted()])
        meta = store.read_meta(self.path("out"))
        known = {facts["name"]: facts for facts in meta["allocators"]}
        self.assertEqual(known["standard"]["path"], tree.relative(STANDARD.path))
        self.assertRegex(known["glibc"]["sha256"], "^[0-9a-f]{64}$")
        self.assertEqual(meta["verified"]["standard"], {"counted": tree.relative(STANDARD.path)})
        self.assertEqual(meta["machine"]["cores"], len(os.sched_getaffinity(0)))
        self.assertIn("counted", meta["cases"])

    def test_results_say_the_same_in_every_checkout(self):
        for checkout in ("first", "second"):
            os.makedirs(self.path(checkout, "build"))
            shutil.copy(STANDARD.path, self.path(checkout, "build", "libmine.so"))
            with open(self.path(checkout, "build", "tool"), "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\ntrue\n")
            os.chmod(self.path(checkout, "build", "tool"), 0o755)
        for rounds, checkout in ((1, "first"), (2, "second")):
            with unittest.mock.patch.object(tree, "SOURCE", self.path(checkout)):
                case = Case("tool", "x", "x", "x", Family.PROGRAM, ("{source}/build/tool",))
                mine = allocators.given(PLACES, f"mine={self.path(checkout, 'build', 'libmine.so')}")
                self.run_cells([case], (mine, GLIBC), rounds=rounds)
            meta = store.read_meta(self.path("out"))
            self.assertEqual({facts["name"]: facts["path"] for facts in meta["allocators"]},
                             {"mine": "build/libmine.so", "glibc": GLIBC.path})
            self.assertEqual(meta["programs"]["tool"]["path"], "build/tool")
            self.assertEqual(meta["verified"], {"mine": {"tool": "build/libmine.so"}, "glibc": {"tool": GLIBC.path}})
        self.assertEqual([(s.status, s.round) for s in store.samples(self.path("out"))], [(OK, 1)] * 2 + [(OK, 2)] * 2)
        with open(self.path("second", "build", "libmine.so"), "ab") as file:
            file.write(b"\0")
        with unittest.mock.patch.object(tree, "SOURCE", self.path("second")), \
                self.assertRaisesRegex(schedule.Mixed, "allocator mine"):
            mine = allocators.given(PLACES, f"mine={self.path('second', 'build', 'libmine.so')}")
            self.run_cells([case], (mine, GLIBC), rounds=2)

    def test_a_path_beside_the_tree_stays_as_it_is(self):
        with unittest.mock.patch.object(tree, "SOURCE", "/a/tree"):
            self.assertEqual(tree.relative("/a/tree/build/x"), "build/x")
            for path in ("/a/tree-too/x", "/usr/lib/x", "mmap", ""):
                self.assertEqual(tree.relative(path), path)


class ContendersTest(Folder):
    def test_what_is_not_there_says_so(self):
        self.assertRegex(allocators.named(PLACES, "nobody").missing, "^not built")
        nbbs = next(m for m in allocators.page_managers(PLACES) if m.name == "nbbs")
        self.assertIn("--nbbs", nbbs.missing)

    def test_shipped_ones_and_the_c_library(self):
        found = {a.name: a for a in allocators.discover(PLACES)}
        self.assertEqual((found["standard"].missing, found["glibc"].missing), ("", ""))
        self.assertIn("libc.so.6", found["glibc"].path)
        self.assertFalse(any(a.kind is Kind.ABLATION for a in found.values()))
        ablations = [a for a in allocators.discover(PLACES, ablations=True) if a.kind is Kind.ABLATION]
        self.assertGreaterEqual({a.name for a in ablations}, set(allocators.ABLATIONS))
        self.assertTrue(all(a.missing or os.path.isfile(a.path) for a in ablations))

    def test_what_searches_lists_takes_part_only_by_name(self):
        for ablations in (False, True):
            names = {a.name for a in allocators.discover(PLACES, ablations=ablations)}
            self.assertFalse(names & {"a2alloc", "kheap", "a2alloc-classes"})
        named = {a.name: a for a in allocators.by_name_only(PLACES)}
        self.assertEqual([named[name].missing for name in ("a2alloc", "kheap")], ["", ""])
        self.assertEqual([named[name].kind for name in ("a2alloc", "kheap")], [Kind.OURS, Kind.ABLATION])
        self.assertEqual(allocators.named(PLACES, "a2alloc"), named["a2alloc"])

    def test_a_name_of_an_older_version_is_the_same_contender(self):
        from spanalloc_bench import attacks, cli

        for old, new in (("oopsla15", "scalloc"), ("superblock", "a2alloc"), ("oopsla15-clab", "scalloc-clab")):
            with self.subTest(old), unittest.mock.patch.object(cli, "_places", PLACES):
                self.assertEqual(allocators.named(PLACES, old), allocators.named(PLACES, new))
                self.assertEqual(build.of_contenders(PLACES, [old]), build.of_contenders(PLACES, [new]))
                planned = cli._contenders(f" {old},{new}", None, False, None, planned=True)
                self.assertEqual([a.name for a in planned], [new])
                self.assertEqual(allocators.wanted(f"{old}, {new}"), [new])
        chosen = attacks.contenders(PLACES, "oopsla15,superblock,glibc", ())
        self.assertEqual([(a.name, a.kind) for a in chosen],
                         [("scalloc", Kind.OURS), ("a2alloc", Kind.OURS), ("glibc", Kind.SYSTEM)])

    def test_a_run_by_an_older_name_goes_on_where_it_was(self):
        counted = program("counted", f"echo >>{os.path.join(self.folder, 'runs')}")
        for name in ("oopsla15", "scalloc", "oopsla15"):
            schedule.run_cells(PLACES, [counted], [allocators.named(PLACES, name)], 1, self.folder, lambda text: None)
            self.assertEqual([s.allocator for s in store.samples(self.folder)], ["scalloc"])
            with open(self.path("runs"), encoding="utf-8") as file:
                self.assertEqual(len(file.readlines()), 1)

    def test_settings_of_the_product_are_contenders_by_name(self):
        for use in ("always", "never"):
            found = allocators.named(PLACES, f"standard-thp-{use}")
            self.assertEqual(found.environment, (("SPANALLOC_THP", use),))
            self.assertEqual((found.path, found.missing), (allocators.named(PLACES, "standard").path, ""))
            self.assertIn(found, allocators.by_name_only(PLACES))

    def test_ablations_join_those_that_are_named(self):
        from spanalloc_bench import cli

        with unittest.mock.patch.object(cli, "_places", PLACES):
            for ablations, added in ((False, ()), (True, allocators.ABLATIONS)):
                names = [a.name for a in cli._contenders("glibc,standard", None, ablations, None)]
                self.assertEqual(names, ["glibc", "standard", *added])

    def refuse(self, text, why):
        with self.assertRaisesRegex(allocators.BadChoice, why):
            allocators.discover(PLACES, with_=[text])

    def test_broken_with(self):
        text = self.path("text.so")
        with open(text, "w", encoding="utf-8") as file:
            file.write("no library")
        self.refuse("mine", "expected NAME=PATH")
        self.refuse("mine=", "expected NAME=PATH")
        self.refuse("mine=/no/such/file.so", "no file /no/such/file.so")
        self.refuse(f"mine={text}", "cannot load")
        self.refuse(f"mine={libm()}", "defines no malloc")
        self.refuse(f"glibc={STANDARD.path}", "glibc already")
        for name, other in (("supermalloc", "supermalloc"), ("scalloc", "scalloc"), ("oopsla15", "scalloc"),
                            ("kheap", "kheap"), ("standard-thp-never", "standard-thp-never")):
            with self.assertRaisesRegex(allocators.BadChoice, f"library of ours; .* {other}-original"):
                allocators.given(PLACES, f"{name}={STANDARD.path}")
        self.assertEqual(allocators.given(PLACES, f"supermalloc-original={STANDARD.path}").kind, Kind.GIVEN)
        self.refuse(f"a b={STANDARD.path}", "made of letters")
        with self.assertRaisesRegex(allocators.BadChoice, "mine already"):
            allocators.discover(PLACES, with_=[f"mine={STANDARD.path}"] * 2)


def bench(*arguments, **options):
    return subprocess.run(
        [COMMAND, "bench", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, check=False, timeout=600, **options,
    )


class CommandCase(Folder):
    RUN = ("run", "--quick", "--rounds", "1", "--only", "threadtest", "--allocators", "standard,glibc")

    def mistakes(self):
        """The command's words, and what it says of them."""
        return (
            (("run", "--with", "mine=/no/such.so"), "no file /no/such.so"),
            (("report", self.path("nowhere")), "holds no results"),
            (("run", "--only", "no-such-case"), "no case"),
            (("run", "--allocators", "standard,nobody"), "nobody: not built: there is no library of this name. There are: "),
            (("run", "--nbbs", "/no/such.so"), "no such file"),
            (("figure", "no-such-figure"), "no figure"),
        )

    def assert_one_line(self, mistakes):
        for arguments, text in mistakes:
            run = bench(*arguments, *(("--out", self.folder) if arguments[0] == "run" else ()))
            self.assertEqual(run.returncode, 125, arguments)
            self.assertIn(text, run.stderr)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)


class CommandTest(CommandCase):
    """A start of the command takes a second of CPU: few, of each kind."""

    def test_run(self):
        run = bench(*self.RUN, "--out", self.folder)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("glibc", run.stdout)
        self.assertTrue(os.path.isfile(self.path("report.html")))
        self.assertEqual({s.status for s in store.samples(self.folder)}, {OK})
        self.assertEqual({s.allocator for s in store.samples(self.folder)}, {"standard", "glibc"})
        report = bench("report", self.folder)
        self.assertEqual(report.returncode, 0, report.stderr)
        groups, summary, hint = run.stdout.partition(report.stdout)  # the same summary, after each workload's table
        self.assertEqual(summary, report.stdout, run.stdout)
        self.assertRegex(groups, r"threadtest-64: time; below, the ratio to\s+the best other\s(?s:.*)threadtest-64: memory")
        self.assertIn(f"spanalloc bench report {self.folder} --only", hint)

    def test_mistakes_end_in_one_line(self):
        self.assert_one_line(self.mistakes()[:2])

    def test_lists(self):
        listed = bench("list", "--quick")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        for word in ("threadtest", "standard", "glibc", "bump"):
            self.assertIn(word, listed.stdout)
        planned = bench(*self.RUN, "--list", "--out", self.path("new"))
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertIn("2 runs", planned.stdout)
        self.assertFalse(os.path.exists(self.path("new")))


class RareCommandTest(CommandCase):
    """What takes many starts, or a run that is interrupted."""

    def test_mistakes_end_in_one_line(self):
        self.assert_one_line(self.mistakes()[2:])

    def test_interrupted(self):
        command = (*self.RUN, "--rounds", "1000", "--out", self.folder)
        with subprocess.Popen([COMMAND, "bench", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as run:
            while len(store.samples(self.folder)) < 3 and run.poll() is None:
                time.sleep(0.02)
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 130, errors)
        self.assertIn("the same command goes on", errors)
        self.assertNotIn("Traceback", errors)
        self.assertGreaterEqual(len(store.samples(self.folder)), 3)
        again = bench(*self.RUN, "--out", self.folder)
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_list_looks_in_both_suites(self):
        # startup-n600 is in the full suite, startup-n50 in the quick one.
        for pattern, there, not_there in (("startup-n50.", ["startup-n50."], ["startup-n600."]),
                                          ("startup", ["startup-n50.", "startup-n600."], ["threadtest"])):
            listed = bench("list", "--only", pattern)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            self.assertEqual([name for name in [*there, *not_there] if name in listed.stdout], there)
        listed = bench("list", "--only", "no-such-case")
        self.assertEqual(listed.returncode, 125)
        self.assertIn("no case of the full or the quick suite", listed.stderr)

    def test_what_cannot_be_reported_is_not_measured(self):
        for part in ("report", "summary", "plots"):
            code = (
                "import sys\nfrom spanalloc_bench import cli, schedule\nfrom spanalloc_cli import libraries\n"
                f"sys.modules['spanalloc_bench.{part}'] = None\n"
                "schedule.run_cells = lambda *arguments, **options: print('measured')\n"
                "cli.main(libraries.Places(*sys.argv[1:3]), sys.argv[3:])\n"
            )
            run = subprocess.run(
                [sys.executable, "-c", code, PLACES.library_dir, PLACES.helper_dir, *self.RUN, "--out", self.path(part)],
                env=dict(os.environ, PYTHONPATH=":".join(sys.path[:2])), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, check=False, timeout=600)
            self.assertEqual((run.returncode, run.stdout), (125, ""), run.stderr)
            self.assertIn(f"lacks a part of the suite: import of spanalloc_bench.{part}", run.stderr)

    def test_a_program_without_the_suite_says_where_it_is(self):
        shutil.copytree(os.path.join(SOURCE, "tools", "spanalloc_cli"), self.path("lib", "spanalloc_cli"))
        shutil.copy(os.path.join(SOURCE, "src", "libraries.txt"), self.path("lib", "spanalloc_cli"))
        run = subprocess.run(
            [sys.executable, "-I", self.path("lib", "spanalloc_cli", "start.py"), PLACES.library_dir, PLACES.helper_dir,
             "bench", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=600)
        self.assertEqual(run.returncode, 125)
        self.assertIn("scripts/bench", run.stderr)


if __name__ == "__main__":
    unittest.main()
