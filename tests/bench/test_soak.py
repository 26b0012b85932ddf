"""The soak: slope and level with known answers, the load's schedule, its folder, its complaints, and a short run."""

import contextlib
import io
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import store  # noqa: E402
from spanalloc_bench.allocators import BadChoice  # noqa: E402
from spanalloc_bench.soak import command, levels, phases, programs, records  # noqa: E402
from spanalloc_bench.soak.records import Sample  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
CYCLE_S = 120.0
AN_HOUR = 3600 / CYCLE_S  # cycles


def slope(values):
    return levels.slope(dict(enumerate(values, 10)), CYCLE_S)


class LevelsTest(unittest.TestCase):
    def test_the_second_half_is_judged_in_whole_cycles(self):
        self.assertEqual(list(levels.judged_cycles(40, 120)), list(range(10, 20)))
        self.assertEqual(list(levels.judged_cycles(10, 120)), [3, 4])  # the half of the third does not count
        self.assertEqual(list(levels.judged_cycles(0.1, 4)), [])

    def test_means_are_those_of_the_cycles_asked_for(self):
        points = [(9, 1000), (10, 1), (10, 3), (11, 5), (12, 1000)]
        self.assertEqual(levels.means(points, range(10, 12)), {10: 2, 11: 5})

    def test_a_line_has_its_slope_and_no_doubt(self):
        found = slope([1000 + 7 * i for i in range(10)])
        self.assertAlmostEqual(found.per_hour, 7 * AN_HOUR)
        self.assertAlmostEqual(found.half, 0, places=6)
        self.assertEqual(found.verdict(1000), levels.GROWS)
        self.assertEqual(slope([1000 - 7 * i for i in range(10)]).verdict(1000), levels.FALLS)
        self.assertEqual(slope([1000] * 10).verdict(1000), levels.FLAT)

    def test_the_interval_is_the_textbooks_where_cycles_are_independent(self):
        values = [10, 12, 9, 13, 10, 12, 9, 13]  # neighbours differ, so that nothing is taken off
        found = slope(values)
        self.assertEqual(found.independent, 8)
        # By hand, in cycles: sums of squares and products 42, 20 and 6; 6 degrees of freedom, whose t is 2.4469.
        self.assertAlmostEqual(found.per_hour / AN_HOUR, 6 / 42)
        self.assertAlmostEqual(found.half / AN_HOUR, 2.4469118511 * ((20 - 6 * 6 / 42) / 6 / 42) ** 0.5)
        self.assertEqual(found.verdict(10_000), levels.FLAT)
        self.assertEqual(found.verdict(10), levels.UNCLEAR)  # too wide for such a level to show anything

    def test_means_that_follow_each_other_widen_it(self):
        wandering, shuffled = [0, 2, 4, 5, 4, 2, 0, -2, -1, 1], [0, 4, 2, 5, -2, 4, 0, 2, -1, 1]
        self.assertLess(slope(wandering).independent, 6)
        self.assertGreater(slope(wandering).half, 1.5 * slope(shuffled).half)

    def test_the_interval_holds_the_truth(self):
        # Ten cycles tell too little of their correlation for the full 95 % (a plain line's interval has 84 % there).
        for alike, least in ((0.0, 0.94), (0.4, 0.88)):
            rng, held, runs = random.Random(5), 0, 2000
            for _ in range(runs):
                values, last = [], rng.gauss(0, 1)
                for i in range(10):
                    last = alike * last + rng.gauss(0, 1)
                    values.append(100 + 0.5 * i + last)
                found = slope(values)
                held += abs(found.per_hour - 0.5 * AN_HOUR) <= found.half
            self.assertGreaterEqual(held / runs, least, f"correlation {alike}")

    def test_few_cycles_have_no_verdict(self):
        self.assertIsNone(slope([1.0]))
        self.assertEqual(slope([1.0, 2.0, 3.0]).verdict(1), levels.UNKNOWN)


class PhasesTest(unittest.TestCase):
    THREE = [phases.Phase("a", 3), phases.Phase("b", 0.5), phases.Phase("c", 10)]

    def test_ticks_follow_the_cycle(self):
        schedule = phases.Schedule("redis", self.THREE, 6, 1)  # phases of 2 s, 4 ticks
        ticks = [schedule.tick(i) for i in range(24)]
        self.assertEqual("".join(tick.phase.name for tick in ticks), "aaaabbbbcccc" * 2)
        self.assertEqual([tick.number for tick in ticks if tick.first], [0, 4, 8, 12, 16, 20])
        self.assertEqual([sum(t.count for t in ticks[i:i + 4]) for i in (0, 4, 8)], [6, 1, 20])
        self.assertEqual(schedule.at(6.1), (1, "a"))

    def test_a_load_follows_from_its_seed_and_place_alone(self):
        def drawn(seed, program, number):
            return phases.Schedule(program, self.THREE, 6, seed).tick(number).rng.random()

        self.assertEqual(drawn(1, "redis", 7), drawn(1, "redis", 7))
        self.assertEqual(len({drawn(1, "redis", 7), drawn(2, "redis", 7), drawn(1, "node", 7), drawn(1, "redis", 8)}), 4)

    def test_all_programs_have_the_same_number_of_phases_and_a_load_for_each(self):
        sent = {"send": [], "ask": []}

        class Everything(mock.MagicMock):
            def send(self, commands):
                sent["send"].append(commands)

        for name, module in programs.PROGRAMS.items():
            self.assertEqual(len(module.PHASES), command.PHASES, name)
            schedule = phases.Schedule(name, module.PHASES, 16, 1)
            for number in range(32):
                module.load([Everything()], schedule.tick(number))
        self.assertGreater(sum(map(len, sent["send"])), 1000)

    def test_sizes_keep_their_bounds_and_most_are_small(self):
        rng = random.Random(1)
        sizes = [phases.skewed(rng, 10, 10_000) for _ in range(2000)]
        self.assertTrue(10 <= min(sizes) and max(sizes) <= 10_000)
        self.assertTrue(200 < statistics.median(sizes) < 500)


SETTINGS = {"minutes": 40.0, "cycle_s": 120.0, "seed": 1, "allocators": {
    "standard": {"sha256": "a", "ours": True}, "glibc": {"sha256": "b", "ours": False},
    "other": {"sha256": "c", "ours": False}}}


def sample(program="redis", allocator="standard", cycle=0, rss=1000):
    return Sample(program, allocator, 5.0 + 120 * cycle, cycle, "small values", rss, 24, 500, 0.5, 0.0)


class FolderTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.path = os.path.join(scratch.name, "soak")
        self.csv = os.path.join(self.path, records.CSV)

    def folder(self):
        return records.Folder(self.path)

    def test_samples_come_back_as_they_were(self):
        with self.folder() as folder:
            folder.keep_only([])
            folder.append([sample(), sample(allocator="glibc")])
            folder.append([sample(cycle=1)])
        self.assertEqual(records.read(self.path), [sample(), sample(allocator="glibc"), sample(cycle=1)])

    def test_names_of_an_older_version_are_read_as_todays(self):
        known = {"oopsla15": "/x/libspanalloc-oopsla15.so", "scalloc": "/usr/lib/libscalloc.so"}
        with self.folder() as folder:
            folder.keep_only([])
            folder.append([sample(allocator=name) for name in known])
            folder.meta = {"settings": {"allocators": {name: {"path": path} for name, path in known.items()}},
                           "programs": {"redis": {"problems": {"scalloc": "it ended"}}}}
            folder.write_meta()
        today = ["scalloc", "scalloc-original"]
        self.assertEqual([s.allocator for s in records.read(self.path)], today)
        with self.folder() as folder:  # one that goes on has them in its files
            folder.keep_only(["redis"])
            folder.append([sample(allocator="scalloc")])
            self.assertEqual(folder.meta["programs"]["redis"]["problems"], {"scalloc-original": "it ended"})
        self.assertEqual([s.allocator for s in records.read(self.path)], [*today, "scalloc"])
        self.assertEqual(list(records.read_meta(self.path)["settings"]["allocators"]), today)

    def test_a_line_that_was_cut_off_does_not_count(self):
        with self.folder() as folder:
            folder.keep_only([])
            folder.append([sample()])
        with open(self.csv, "a", encoding="utf-8") as file:
            file.write("redis,standard,10.0,0,small")
        self.assertEqual(records.read(self.path), [sample()])

    def test_a_damaged_line_is_named(self):
        with self.folder() as folder:
            folder.keep_only([])
            folder.append([sample()])
        with open(self.csv, "a", encoding="utf-8") as file:
            file.write("redis,standard,ten\n")
        with self.assertRaisesRegex(store.Damaged, "line 3"):
            records.read(self.path)

    def test_what_was_interrupted_begins_anew_and_what_was_finished_stays(self):
        with self.folder() as folder:
            self.assertEqual(command.left_to_do(folder, ["redis", "node"], SETTINGS, False), ["redis", "node"])
            folder.meta["programs"]["redis"] = {}
            folder.write_meta()
            folder.keep_only([])
            folder.append([sample(), sample("node")])
        with self.folder() as folder:
            self.assertEqual(command.left_to_do(folder, ["redis", "node"], SETTINGS, False), ["node"])
            folder.keep_only(folder.meta["programs"])
        self.assertEqual(records.read(self.path), [sample()])

    def test_another_soak_is_not_mixed_in(self):
        with self.folder() as folder:
            command.left_to_do(folder, ["redis"], SETTINGS, False)
            for other, said in (({"minutes": 20.0}, "--minutes 40"), ({"seed": 2}, "--seed 1"), ({"cycle_s": 4.0}, "--cycle 120"),
                                ({"allocators": {"glibc": {"sha256": "b"}}}, "--allocators standard,glibc,other"),
                                ({"allocators": {**SETTINGS["allocators"], "standard": {"sha256": "x"}}}, "another build")):
                with self.assertRaisesRegex(BadChoice, said):
                    command.left_to_do(folder, ["redis"], {**SETTINGS, **other}, False)
            self.assertEqual(command.left_to_do(folder, ["redis"], {**SETTINGS, "seed": 2}, True), ["redis"])

    def test_two_runs_do_not_share_it(self):
        with self.folder(), self.assertRaisesRegex(store.InUse, "another run"):
            self.folder()


class ReportTest(unittest.TestCase):
    META = {"settings": SETTINGS, "machine": {"processor": "P", "cores": 2, "system": "S", "kernel": "6.1-2", "libc": "L"},
            "source": {"commit": "0123456789abcdef"},
            "programs": {"redis": {"version": "redis-tools 7", "started": "2026-11-25 01:02:03", "problems": {}, "late_s": 0}}}

    def samples(self, ours=lambda cycle: 1100):
        found = []
        for cycle in range(20):
            wobble = 10 * (cycle % 3)
            found += [sample(cycle=cycle, rss=ours(cycle) + wobble), sample(allocator="glibc", cycle=cycle, rss=1500 + wobble),
                      sample(allocator="other", cycle=cycle, rss=1000 + wobble)]
        return found

    def rows(self, samples, meta=None):
        from spanalloc_bench.soak import report

        meta = meta or self.META
        found = report.rows(samples, meta)
        return found, report.findings(found, meta)

    def test_levels_are_over_the_least_of_the_others(self):
        found, said = self.rows(self.samples())
        self.assertEqual([row.allocator for row in found], ["standard", "glibc", "other"])
        self.assertAlmostEqual(found[0].over_least, 1133 / 1033, 3)
        self.assertAlmostEqual(found[2].over_least, 1033 / 1533, 3)  # ours is no yardstick
        self.assertEqual([row.slope.verdict(row.level) for row in found], [levels.FLAT] * 3)
        self.assertIn("no growth, and at most 1.1 times", said[0])

    def test_growth_and_too_high_a_level_are_said(self):
        _, said = self.rows(self.samples(lambda cycle: 1100 + 40 * cycle))
        self.assertRegex(" ".join(said), r"standard under Redis grows: .* an hour\. standard under Redis takes 1\.6")

    def test_a_server_that_ended_is_a_row_that_says_so(self):
        meta = {**self.META, "programs": {"redis": {**self.META["programs"]["redis"], "problems": {"standard": "it ended"}}}}
        found, said = self.rows(self.samples(), meta)
        self.assertEqual((found[0].level, found[0].problem), (None, "it ended"))
        self.assertIn("standard under Redis: it ended.", said)

    def test_a_program_that_is_not_finished_says_so(self):
        found, said = self.rows(self.samples(), {**self.META, "programs": {}})
        self.assertEqual({(row.level, row.problem) for row in found}, {(None, "not finished")})
        self.assertEqual(said, [])

    def test_the_document_has_the_table_and_the_picture(self):
        from spanalloc_bench.soak import report

        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "docs"))
            path = os.path.join(folder, report.DOCUMENT)
            with open(path, "w", encoding="utf-8") as file:
                file.write("# Before\n\n<!-- soak:begin -->\nold\n<!-- soak:end -->\n\nafter\n")
            report.write_document(self.samples(), self.META, folder, lambda _: None)
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertIn("# Before", text)
            self.assertIn("after", text)
            self.assertNotIn("old", text)
            self.assertIn("| Redis (redis-tools 7) | level |", text)
            self.assertIn("commit 0123456789", text)
            self.assertLess(os.path.getsize(os.path.join(folder, "docs", report.PICTURE)), 200_000)


class ChoiceTest(unittest.TestCase):
    """What can be refused before anything is started."""

    def test_a_program_that_is_not_here_is_said_and_the_rest_goes_on(self):
        said = []
        with mock.patch.object(programs, "find_program", lambda name: name != "node"):
            self.assertEqual(command.chosen_programs(None, said.append), ["redis", "mariadb"])
            self.assertEqual(said, ["node is left out: node is not installed: apt install nodejs"])
            with self.assertRaisesRegex(BadChoice, "none of these programs"):
                command.chosen_programs("node", said.append)

    def test_the_newest_built_release_stands_for_its_family(self):
        built = [{"name": f"mimalloc-{v}", "family": "mimalloc", "replaces": "mimalloc", "path": "/x", "environment": []} for v in ("2.10.1", "2.9.3")]
        with mock.patch.object(libraries, "built_peers", lambda: built):
            self.assertEqual(command.newest(PLACES, "mimalloc").name, "mimalloc-2.10.1")

    def refused(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([COMMAND, "bench", "soak", "--out", folder, *words], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
        self.assertEqual(run.returncode, 125, run.stderr)
        self.assertEqual(run.stderr.strip().count("\n"), 0, run.stderr)
        return run.stderr

    def test_bad_choices_are_one_line(self):
        self.assertIn("there are redis, mariadb, node", self.refused("--programs", "postgres"))
        self.assertIn("--allocators nonesuch", self.refused("--allocators", "nonesuch"))
        self.assertIn("a multiple of 4 seconds", self.refused("--cycle", "10"))
        self.assertIn("holds no soak", self.refused("--report"))


class RunCase(unittest.TestCase):
    """The command with the servers that are installed, for seconds."""

    def setUp(self):
        self.names = [name for name in programs.PROGRAMS if not programs.missing(name)]
        if not self.names:
            self.skipTest("; ".join(programs.missing(name) for name in programs.PROGRAMS))
        scratch = tempfile.TemporaryDirectory(prefix="soak-test-")
        self.addCleanup(scratch.cleanup)
        self.out, self.temporary = os.path.join(scratch.name, "out"), os.path.join(scratch.name, "tmp")
        os.mkdir(self.temporary)

    def start(self, *words):
        return subprocess.Popen(
            [COMMAND, "bench", "soak", "--minutes", "0.2", "--cycle", "4", "--allocators", "standard,glibc", "--programs",
             ",".join(self.names), "--out", self.out, *words], env={**os.environ, "TMPDIR": self.temporary},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def assert_nothing_is_left(self):
        self.assertEqual(os.listdir(self.temporary), [])
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                self.assertNotIn(self.temporary, file.read())

    def await_samples(self, process):
        while not records.read(self.out) and process.poll() is None:
            time.sleep(0.1)


class RunTest(RunCase):
    def test_an_interrupted_soak_leaves_nothing_and_begins_anew(self):
        self.names = self.names[:1]
        process = self.start("--minutes", "1000")
        self.await_samples(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", errors)
        self.assertEqual(records.read_meta(self.out)["programs"], {})
        self.assert_nothing_is_left()

    def test_a_library_that_does_not_serve_is_a_row_that_says_so(self):
        """Checked in the server's own process: an object without malloc is loaded and serves nothing."""
        from spanalloc_bench.model import Allocator, Kind
        from spanalloc_bench.soak import run

        useless = Allocator("useless", os.path.realpath(PLACES.probe), Kind.GIVEN)
        with mock.patch.dict(os.environ, {"TMPDIR": self.temporary}), contextlib.redirect_stderr(io.StringIO()):
            tempfile.tempdir = None
            self.addCleanup(setattr, tempfile, "tempdir", None)
            ended = run.soak(PLACES, self.names[:1], [useless], 4, 4, 1, lambda _: None)
        self.assertIn("malloc is in", ended[self.names[0]]["problems"]["useless"])
        self.assert_nothing_is_left()


class TimingTest(RunCase):
    """How many samples a soak of twelve seconds has, and of which phases, only time can tell."""

    def test_a_short_soak(self):
        process = self.start()
        output, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 0, errors)
        samples, meta = records.read(self.out), records.read_meta(self.out)
        for name in self.names:
            self.assertEqual(meta["programs"][name]["problems"], {})
            self.assertIn(programs.TITLES[name], output)
            for allocator in ("standard", "glibc"):
                mine = [s for s in samples if (s.program, s.allocator) == (name, allocator)]
                self.assertGreater(len(mine), 5)
                self.assertGreaterEqual(len({s.phase for s in mine}), 6)
                self.assertTrue(all(s.rss_kib > 5000 and s.page_tables_kib > 0 for s in mine))
                self.assertLess(mine[0].memory_kib, max(s.memory_kib for s in mine))
        self.assertTrue(os.path.isfile(os.path.join(self.out, "soak.png")))
        self.assert_nothing_is_left()
        again = self.start()
        _, errors = again.communicate(timeout=600)
        self.assertIn("has all of it already", errors)
        self.assertEqual(records.read(self.out), samples)

    def server_of(self, allocator):
        """Process of the first program's server under the allocator; None while there is none."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read()
                if self.temporary in words and f"{self.names[0]}-{allocator}/" in words:
                    return int(pid)
        return None

    def test_a_server_that_ends_leaves_the_others_their_figures(self):
        self.names = self.names[:1]
        process = self.start()
        self.await_samples(process)
        os.kill(self.server_of("glibc"), signal.SIGKILL)
        output, errors = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 0, errors)
        self.assertRegex(errors, f"{self.names[0]}, glibc: the server ended in")
        problems = records.read_meta(self.out)["programs"][self.names[0]]["problems"]
        self.assertEqual(list(problems), ["glibc"])
        last = max(s.seconds for s in records.read(self.out) if s.allocator == "standard")
        self.assertGreater(last, 10)
        self.assertIn("the server ended", " ".join(output.split()))
        self.assert_nothing_is_left()


if __name__ == "__main__":
    unittest.main()
