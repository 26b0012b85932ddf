"""The real programs as cases: their inputs are what they claim to be, each runs under our library, and a driver leaves
no server behind however its run ends. Inputs are tiny here; a program that is not installed is a skip."""

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
import zlib

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import allocators, execute, tree  # noqa: E402
from spanalloc_bench.cases import programs  # noqa: E402
from spanalloc_bench.model import FAILED, HUNG, NOT_PRELOADED, OK, UNAVAILABLE, Allocator, Kind  # noqa: E402
from spanalloc_bench.programs import fixtures, inputs, pdf, servers  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
STANDARD = allocators.named(PLACES, "standard")
GLIBC = allocators.named(PLACES, "glibc")


def bytes_of(pieces):
    return b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)


class InputsTest(unittest.TestCase):
    def test_the_dice_are_splitmix64(self):
        dice = inputs.Dice(1234567)  # the values that the algorithm's authors give for this seed
        self.assertEqual([dice.next() for _ in range(3)],
                         [6457827717110365317, 3203168211198807973, 9817491932198370423])

    def test_inputs_are_the_same_again(self):
        for make in (lambda: inputs.library(60), lambda: inputs.translation_unit(2), lambda: inputs.history(5, 4),
                     lambda: inputs.recursive_trees(3), lambda: inputs.hilbert(4), lambda: pdf.manual(3)):
            self.assertEqual(hashlib.sha256(bytes_of(make())).digest(), hashlib.sha256(bytes_of(make())).digest())

    def test_the_library_is_well_formed_and_complete(self):
        root = xml.etree.ElementTree.fromstring(bytes_of(inputs.library(120)))
        self.assertEqual(len(root.findall("shelf")), 3)
        ids = [article.get("id") for article in root.iter("article")]
        self.assertEqual(len(set(ids)), 120)
        self.assertLessEqual({cited.get("id") for cited in root.iter("cites")}, set(ids))

    def test_the_manual_has_its_pages_where_its_table_says(self):
        data = bytes_of(pdf.manual(5))
        start = int(re.search(rb"startxref\n(\d+)\n%%EOF\n\Z", data)[1])
        offsets = [int(line[:10]) for line in data[start:].splitlines()[3:] if line.endswith(b" 00000 n ")]
        for number, offset in enumerate(offsets, start=1):
            self.assertTrue(data[offset:].startswith(b"%d 0 obj\n" % number), number)
        self.assertEqual(data.count(b"/Type /Page "), 5)
        streams = re.findall(rb"/Length (\d+) >>\nstream\n", data)
        self.assertEqual(len(streams), 5)
        begin = data.index(b"stream\n") + len(b"stream\n")
        self.assertIn(b"Tj", zlib.decompress(data[begin:begin + int(streams[0])]))


class CasesTest(unittest.TestCase):
    def test_ids_inputs_and_scripts_exist(self):
        cases = programs.suite()
        self.assertEqual(len({case.id for case in cases}), len(cases))
        for case in cases:
            self.assertTrue(case.full or case.quick, case.id)
            for name in case.prepare:
                self.assertTrue(callable(getattr(fixtures, name)), name)
            for word in case.argv:
                for path in re.findall(r"\{source\}/(\S+)", word):
                    self.assertTrue(os.path.isfile(os.path.join(SOURCE, path)), path)

    def test_every_program_has_a_package(self):
        with open(os.path.join(SOURCE, "bench", "packages.txt"), encoding="utf-8") as file:
            items = [line.partition("#")[0].split() for line in file]
        commands = {words[0].partition(":")[0] for words in items if words}
        needed = {command for case in programs.suite() for command in case.needs}
        # What scripts/bench installs for itself, and what comes with redis-tools.
        self.assertEqual(needed - commands, {"/usr/bin/python3", "g++", "redis-benchmark", "redis-cli"})


class ProgramCase(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="spanalloc-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        real = tree.fixtures
        tree.fixtures = lambda places: str(self.folder)
        self.addCleanup(setattr, tree, "fixtures", real)

    def need(self, case):
        for command in case.needs:
            if not shutil.which(command):
                self.skipTest(f"{command} is not installed")

    def run_case(self, case, allocator=STANDARD, timeout=600.0):
        """With a timeout for hangs alone, as it does not matter here how long the program takes."""
        self.need(case)
        return execute.Runner(PLACES).run(dataclasses.replace(case, timeout_s=timeout), allocator, 1, 1)

    def assert_runs(self, case):
        """Under our library and, where the program brings a malloc of its own, also under the C library's."""
        for allocator in (STANDARD, GLIBC):
            sample = self.run_case(case, allocator)
            self.assertEqual((sample.status, sample.problem), (OK, ""), allocator.name)
            self.assertGreater(sample.elapsed_s, 0)
            self.assertGreater(sample.peak_kib, 1000)
        return sample


class CommandCase(ProgramCase):
    def write(self, name, pieces):
        (self.folder / name).write_bytes(bytes_of(pieces))

    def replaced(self, case, last):
        return dataclasses.replace(case, argv=(*case.argv[:-1], last))


class XalanTest(CommandCase):
    def test_xalan(self):
        self.write("library-quick.xml", inputs.library(60))
        self.assert_runs(programs.xalan(quick=True))

    def test_xalan_makes_a_page_of_every_article(self):
        case = programs.xalan(quick=True)
        self.need(case)
        self.write("library-quick.xml", inputs.library(60))
        words = [word.replace("{fixtures}", str(self.folder)).replace("{source}", SOURCE) for word in case.argv]
        page = subprocess.run(words[:-2], stdout=subprocess.PIPE, check=True, text=True, timeout=600).stdout
        self.assertEqual(len(re.findall(r'<div id="a\d+">', page)), 60)
        self.assertIn("<h1>60 articles</h1>", page)


class GhostscriptTest(CommandCase):
    def test_ghostscript(self):
        self.write("manual-quick.pdf", pdf.manual(2))
        self.assert_runs(programs.ghostscript(quick=True))

    def test_ghostscript_finds_the_pages_without_repair(self):
        self.need(programs.ghostscript())
        self.write("manual.pdf", pdf.manual(3))
        argv = ["gs", "-dBATCH", "-dNODISPLAY", "-dNOPAUSE", str(self.folder / "manual.pdf")]
        said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, text=True,
                              timeout=600).stdout
        self.assertIn("Processing pages 1 through 3.", said)
        self.assertNotIn("rror", said)
        self.assertNotIn("repair", said)


class PythonTest(CommandCase):
    def test_python(self):
        self.assert_runs(programs.python())


class SqliteTest(CommandCase):
    def test_sqlite(self):
        self.assert_runs(programs.sqlite())

    def test_sqlite_notices_a_wrong_result(self):
        case = programs.sqlite()
        self.need(case)
        with open(os.path.join(SOURCE, "bench", "workloads", "orders.sql"), encoding="utf-8") as file:
            (self.folder / "orders.sql").write_text(file.read().replace("2399993", "2399994"))
        sample = self.run_case(self.replaced(case, ".read {fixtures}/orders.sql"))
        self.assertEqual(sample.status, FAILED)


class GccTest(CommandCase):
    def test_gcc(self):
        self.write("unit.cpp", ["#include <vector>\nint f(std::vector<int> v) { v.push_back(1); return v[0]; }\n"])
        self.assert_runs(programs.gcc())

    def test_gcc_accepts_the_unit(self):
        self.need(programs.gcc())
        self.write("unit.cpp", inputs.translation_unit(1))
        subprocess.run(["g++", "-std=c++20", "-fsyntax-only", str(self.folder / "unit.cpp")], check=True, timeout=600)


class NodeTest(CommandCase):
    def test_node(self):
        case = programs.node()
        self.assert_runs(dataclasses.replace(case, argv=(*case.argv, "2")))


class LuaTest(CommandCase):
    def test_lua(self):
        self.assert_runs(self.replaced(programs.lua(quick=True), "1"))


class Z3Test(CommandCase):
    def test_z3(self):
        self.write("proofs.smt2", [*inputs.recursive_trees(5), "(reset)\n", *inputs.hilbert(8)])
        self.assert_runs(programs.z3())

    def test_z3_notices_a_wrong_answer(self):
        self.write("proofs.smt2", [piece.replace("unsat", "sat") for piece in inputs.recursive_trees(3)])
        self.assertEqual(self.run_case(programs.z3()).status, FAILED)


class GitTest(CommandCase):
    def test_git(self):
        self.need(programs.git_log())
        real = inputs.history
        inputs.history = lambda commits, files: real(10, 8)
        self.addCleanup(setattr, inputs, "history", real)
        fixtures.git(self.folder)
        for case in (programs.git_log(), programs.git_pack()):
            self.assert_runs(case)


def living(word):
    """Command lines of living processes that have the word in them."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = pathlib.Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


class ServerCase(ProgramCase):
    def setUp(self):
        super().setUp()
        # Runs work in a folder that only this test knows, so that what it leaves behind can be told from other servers.
        scratch = self.folder / "scratch"
        scratch.mkdir()
        real, tempfile.tempdir = tempfile.tempdir, str(scratch)
        self.addCleanup(setattr, tempfile, "tempdir", real)

    def assert_nothing_left(self):
        self.assertEqual(living(str(self.folder)), [])
        self.assertEqual(os.listdir(self.folder / "scratch"), [])

    def check_driver(self, case, long_case, rate):
        """It measures; it leaves no server when its time is up; a server on another malloc is no row."""
        sample = self.assert_runs(case)
        self.assertGreater(sample.operations, 0)
        self.assertGreater(sample.metrics[rate], 0)
        self.assertLess(sample.elapsed_s, sample.wall_s)
        self.assert_nothing_left()
        sample = self.run_case(long_case, timeout=3.0)
        self.assertEqual(sample.status, HUNG, sample.problem)
        self.assert_nothing_left()
        missing = Allocator("missing", "/no/such/malloc.so", Kind.GIVEN)  # the linker goes on without it
        self.assertEqual(self.run_case(case, missing).status, NOT_PRELOADED)
        self.assert_nothing_left()


class RedisTest(ServerCase):
    def test_driver(self):
        self.check_driver(programs.redis(100), programs.redis(10_000_000), "requests_per_s")


class DatabaseTest(ServerCase):
    def test_driver(self):
        self.need(programs.database())
        try:
            fixtures.database(self.folder)
        except execute.RunFailed as failure:
            if failure.status == UNAVAILABLE:
                self.skipTest(str(failure))
            raise
        self.check_driver(programs.database(events=200), programs.database(events=100_000_000), "queries_per_s")
        sample = self.run_case(programs.database("no_such_test", events=10))
        self.assertEqual(sample.status, FAILED)
        self.assertIn("sysbench", sample.problem)
        self.assert_nothing_left()


class ServersTest(unittest.TestCase):
    """What the drivers share, with shells in the place of servers."""

    def setUp(self):
        # As who starts servers does: what is left of them is asked for its end here. Process 1 may ask for none.
        execute.prepare_this_process()
        self.folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def server(self, script):
        return servers.Server(["sh", "-c", script], self.folder, os.environ, os.path.join(self.folder, "log"))

    def test_one_that_ends_at_its_start_is_named(self):
        with self.server("echo no memory; exit 3") as server:
            with self.assertRaisesRegex(execute.RunFailed, r"ended at its start \(exit code 3\): no memory"):
                server.wait_until(lambda: False)

    def test_one_that_ends_badly_is_named(self):
        ready = os.path.join(self.folder, "ready")
        with self.server(f"trap 'echo damaged; exit 4' TERM; : > {ready}; while :; do sleep 0.05; done") as server:
            server.wait_until(lambda: os.path.exists(ready))
            with self.assertRaisesRegex(execute.RunFailed, r"ended badly \(exit code 4\): damaged"):
                server.stop()

    def test_one_that_ends_under_load_is_named(self):
        # The load lasts until the server is dead to whoever waits for it, not only until its files are closed.
        with self.server("kill -SEGV $$") as server:
            dead = f"until grep -q '^State:.Z' /proc/{server.process.pid}/status; do sleep 0.01; done"
            with self.assertRaisesRegex(execute.RunFailed, r"ended under load \(signal 11\)"):
                servers.load(server, ["sh", "-c", dead], self.folder, os.environ)

    def test_a_load_that_fails_is_named(self):
        with self.server("sleep 100000") as server:
            with self.assertRaisesRegex(execute.RunFailed, "sh failed: refused"):
                servers.load(server, ["sh", "-c", "echo refused; exit 1"], self.folder, os.environ)

    def test_none_outlives_its_block(self):
        with self.assertRaises(KeyError):
            with self.server("trap '' TERM; sleep 100000 & wait") as server:
                pid = server.process.pid
                raise KeyError
        self.assertIsNotNone(server.process.returncode)
        self.assertRaises(ProcessLookupError, os.killpg, pid, 0)


if __name__ == "__main__":
    unittest.main()
