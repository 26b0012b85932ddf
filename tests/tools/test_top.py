"""`spanalloc top`: that it shows what is there, what it says where it may not look, and that it believes nothing."""

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import unittest
import unittest.mock

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from spanalloc_cli import maps, terminal  # noqa: E402
from spanalloc_cli.top import heap, heaps, inspection, look, memory, objects, process, screen  # noqa: E402

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
BUILD = os.path.dirname(os.path.dirname(COMMAND))
KNOWN_HEAP = os.environ["SPANALLOC_TEST_KNOWN_HEAP"]
OWN_HEAPS = os.environ["SPANALLOC_TEST_OWN_HEAPS"]
SLICE = 64 << 10
TOTALS = {"live_bytes", "live_blocks", "free_bytes", "free_blocks", "unsure_bytes", "unsure_blocks", "large_bytes",
          "large_objects", "kept_block_bytes", "kept_span_bytes", "pool_bytes", "dirty_bytes", "clean_bytes",
          "purged_part_bytes", "decommitted_bytes"}
CLASS_KEYS = {"block_bytes", "span_bytes", "spans", "blocks", "carved_blocks", "live_blocks", "free_blocks",
              "unsure_blocks", "kept_blocks"}
THREAD_KEYS = {"cache", "tid", "name", "minor_faults", "major_faults", "spans", "span_bytes", "live_bytes",
               "unsure_bytes", "kept_block_bytes", "kept_span_bytes"}
PROCESS_KEYS = {"pid", "command", "name", "uptime_s", "threads", "rss_bytes", "rss_file_bytes", "page_table_bytes",
                "swap_bytes", "minor_faults", "major_faults"}


def library(config="standard"):
    return os.path.join(BUILD, "lib", "libspanalloc.so" if config == "standard" else f"libspanalloc-{config}.so")


@contextlib.contextmanager
def known_heap(*arguments, config="standard", program=KNOWN_HEAP):
    """(process, bytes of a block for each argument) of one that rests."""
    environment = dict(os.environ, SPANALLOC_CLOCK="still")
    environment.pop("LD_PRELOAD", None)
    if config:
        environment["LD_PRELOAD"] = config if "/" in config else library(config)
    with subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          env=environment) as running:
        lines = []
        for line in running.stdout:
            if line == "ready\n":
                break
            numbers = tuple(map(int, line.split()))
            lines.append(numbers if len(numbers) > 1 else numbers[0])
        try:
            yield running, lines
        finally:
            running.stdin.close()


def may_look():
    """Why no process can be read here; empty where it can."""
    with known_heap(config=None) as (child, _):
        try:
            memory.Memory(child.pid).read(process.Process(child.pid).mappings()[0].start, 1)
            return ""
        except memory.CannotRead as error:
            return str(error)


def top(*arguments, **options):
    options.setdefault("timeout", 600)
    return subprocess.run([COMMAND, "top", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, **options)


class Looking(unittest.TestCase):
    def setUp(self):
        why_not = may_look()
        if why_not:
            self.skipTest(why_not)

    def look(self, pid):
        run = top("--json", pid)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        return json.loads(run.stdout)


class TopTest(Looking):
    def test_it_shows_what_is_live(self):
        holdings = [(16, 10_000, 3_000), (100, 500, 500), (352, 7_000, 1), (3_000, 900, 450), (20_000, 100, 30),
                    (100_000, 20, 5)]
        with known_heap(*(",".join(map(str, each)) for each in holdings)) as (running, usable):
            found = self.look(running.pid)
        self.assertEqual(found["torn_records"], 0)
        self.assertIsNone(found["note"])
        classes = {figures["block_bytes"]: figures for figures in found["classes"]}
        for (size, count, freed), block in zip(holdings, usable):
            if size > 32 << 10:  # aligned within: less can be used than there is
                block = min(each for each in classes if each >= block)
            figures = classes.get(block, {"live_blocks": 0, "unsure_blocks": 0})
            # (The C library may have some of these sizes, too: its streams, its threads' records. They are few.)
            self.assertGreaterEqual(figures["live_blocks"], count - freed, size)
            self.assertLessEqual(figures["live_blocks"], count - freed + 4, size)
            self.assertEqual(figures["unsure_blocks"], 0, size)
        for figures in found["classes"]:
            self.assertEqual(set(figures), CLASS_KEYS)
            self.assertEqual(figures["blocks"],
                             figures["live_blocks"] + figures["free_blocks"] + figures["unsure_blocks"])
            self.assertLessEqual(figures["carved_blocks"], figures["blocks"])
        totals = found["totals"]
        self.assertEqual(set(totals), TOTALS)
        self.assertEqual(totals["live_bytes"], sum(f["live_blocks"] * f["block_bytes"] for f in found["classes"]))
        self.assertEqual(totals["unsure_blocks"], 0)

    def test_large_blocks_and_what_comes_of_them(self):
        size = 3 << 20
        with known_heap(f"{size},10,4") as (running, _):
            totals = self.look(running.pid)["totals"]
        self.assertEqual(totals["large_objects"], 6)
        self.assertGreaterEqual(totals["large_bytes"], 6 * size)
        self.assertLess(totals["large_bytes"], 6 * (size + 2 * SLICE))
        # What was freed was written to, no time has passed since: all of it is still in memory.
        self.assertGreaterEqual(totals["dirty_bytes"] + totals["pool_bytes"], 4 * size)

    def test_threads_by_their_numbers_and_names(self):
        with known_heap("3:1000,200,100") as (running, _):
            found = self.look(running.pid)
            tids = set(map(int, os.listdir(f"/proc/{running.pid}/task")))
        threads = found["threads"]
        self.assertEqual({key for thread in threads for key in thread}, THREAD_KEYS)
        holders = [thread for thread in threads if thread["name"] == "holder"]
        self.assertEqual(len(holders), 3, threads)
        self.assertEqual({thread["tid"] for thread in holders}, tids - {running.pid})
        for thread in holders:
            self.assertGreater(thread["minor_faults"], 0)
            self.assertLessEqual(thread["live_bytes"], thread["span_bytes"])
            self.assertGreater(thread["spans"], 0)
        live = {f["block_bytes"]: f["live_blocks"] for f in found["classes"]}
        self.assertEqual(sum(blocks for block, blocks in live.items() if 1000 <= block < 1100), 300)

    def test_blocks_that_threads_free_for_each_other(self):
        """Some of them wait in batches and on lists: none of these is taken for a live one."""
        with known_heap(program=os.environ["SPANALLOC_TEST_EXCHANGED_HEAP"]) as (running, standing):
            found = self.look(running.pid)
        self.assertEqual((found["torn_records"], found["totals"]["unsure_blocks"]), (0, 0))
        self.assertGreater(found["totals"]["kept_block_bytes"], 0)
        live = {f["block_bytes"]: f["live_blocks"] for f in found["classes"]}
        large = 32 << 10  # from here on a block is aligned within its own: less can be used than there is
        for block, count in standing:
            if block <= large and block > 64:  # (the C library has some of the smallest)
                self.assertEqual(live[block], count, block)
        self.assertEqual(sum(blocks for block, blocks in live.items() if block > large),
                         sum(count for block, count in standing if block > large))

    def test_what_json_has(self):
        with known_heap("64,10,0") as (running, _):
            found = self.look(running.pid)
        self.assertEqual(set(found), {"format", "spanalloc", "process", "library", "note", "torn_records", "totals",
                                      "classes", "threads", "program_heaps"})
        self.assertEqual(found["program_heaps"], {"heaps": 0, "taken_bytes": 0, "used_bytes": 0, "used_blocks": 0,
                                                  "kept_bytes": 0, "list": []})
        self.assertEqual(found["format"], 1)
        self.assertEqual(set(found["process"]), PROCESS_KEYS)
        self.assertEqual(found["process"]["command"], [KNOWN_HEAP, "64,10,0"])
        self.assertEqual(found["library"]["engine"], "standard")
        self.assertEqual(found["library"]["version"], found["spanalloc"])
        self.assertEqual(os.path.realpath(found["library"]["path"]), os.path.realpath(library()))

    def test_the_table(self):
        with known_heap("1024,5000,1000", "2000000,3,0") as (running, _):
            run = top("--once", running.pid)
            piped = top(running.pid)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, rf"known_heap +PID {running.pid} .* spanalloc [\d.]+ \(standard\)")
        # What takes most comes first, with its part of what is live.
        self.assertRegex(run.stdout, r"live▾.*\n─+\n *1\.0 KiB +\d+ +4,00\d +\S+ MiB +\d\d %.*█")
        self.assertRegex(run.stdout, r"(?m)^ *larger +3 ")
        self.assertNotIn("\x1b", run.stdout)
        for heading in ("live", "cached", "purgeable", "RSS", "page tables", "faults", "fullness", "TID"):
            self.assertIn(heading, run.stdout)
        self.assertEqual(piped.returncode, 0)
        self.assertIn("no terminal", piped.stderr)
        self.assertIn("fullness", piped.stdout)

    def test_another_engine_shows_what_proc_knows(self):
        for config in ("scalloc", "supermalloc", "a2alloc"):
            with known_heap("64,10,0", config=config) as (running, _):
                found = self.look(running.pid)
                run = top("--once", running.pid)
            self.assertEqual(found["library"]["engine"], config)
            self.assertIsNone(found["totals"])
            self.assertIn(f"the library {config} does not tell", found["note"])
            self.assertGreater(found["process"]["rss_bytes"], 0)
            self.assertIn(f"library {config} does not tell", re.sub(r"\s+", " ", run.stdout))

    def test_a_process_without_our_library(self):
        with known_heap("64,10,0", config=None) as (running, _):
            found = self.look(running.pid)
        self.assertIsNone(found["library"])
        self.assertIn("does not run on a spanalloc library", found["note"])

    def test_a_static_program(self):
        """A note leads to its heap, which stays where the symbols are stripped."""
        program = os.environ.get("SPANALLOC_TEST_STATIC_HEAP")
        if not program:
            self.skipTest("this build has no static library")
        with tempfile.TemporaryDirectory() as folder:
            stripped = shutil.copy(program, folder)
            subprocess.run([os.environ.get("STRIP") or "strip", stripped], check=True)
            for path in (program, stripped):
                with known_heap("1024,3000,1000", config=None, program=path) as (running, _):
                    found = self.look(running.pid)
                    judged = subprocess.run([COMMAND, "doctor", "--json", str(running.pid)], stdout=subprocess.PIPE,
                                            check=True)
                self.assertEqual(found["library"]["engine"], "standard")
                live = {f["block_bytes"]: f["live_blocks"] for f in found["classes"]}
                self.assertGreaterEqual(live[1024], 2000)
                said = [each["seen"] for each in json.loads(judged.stdout)["findings"] if each["topic"] == "malloc"]
                self.assertEqual(said, [f"{path} is linked statically with spanalloc."])

    def test_a_program_that_loads_the_library_itself(self):
        """By dlopen, as a plugin would."""
        program = (f"import ctypes, sys; lib = ctypes.CDLL({library()!r}); lib.sp_malloc.restype = ctypes.c_void_p\n"
                   "held = [lib.sp_malloc(ctypes.c_size_t(5000)) for _ in range(300)]\n"
                   "print('ready', flush=True); sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as running:
            self.assertEqual(running.stdout.readline(), "ready\n")
            found = self.look(running.pid)
            running.stdin.close()
        live = {f["block_bytes"]: f["live_blocks"] for f in found["classes"]}
        self.assertEqual(live[5120], 300)

    def test_a_forks_child(self):
        """Its parent's other threads are not its own."""
        with known_heap("2:1000,200,100", "fork") as (_, (*_, child)):
            found = self.look(child)
        self.assertEqual([thread["tid"] for thread in found["threads"]], [child])
        live = {f["block_bytes"]: f["live_blocks"] + f["unsure_blocks"] for f in found["classes"]}
        self.assertGreaterEqual(sum(blocks for block, blocks in live.items() if 1000 <= block < 1100), 200)

    def test_no_such_process(self):
        with open("/proc/sys/kernel/pid_max", encoding="ascii") as file:
            none = int(file.read())  # numbers are smaller
        run = top(none)
        self.assertEqual((run.returncode, run.stdout), (125, ""))
        self.assertIn(f"there is no process {none}", run.stderr)

    def test_one_that_has_ended_and_was_not_asked(self):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
            child.stdin.close()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            run = top("--once", child.pid)
        self.assertEqual(run.returncode, 125)
        self.assertIn("has ended", run.stderr)

    def test_options(self):
        self.assertEqual(top().returncode, 2)
        self.assertEqual(top("--interval", "0", "1").returncode, 2)
        self.assertEqual(top("--nonesuch", "1").returncode, 2)


class OwnHeapsTest(Looking):
    """First-class heaps of a program that runs."""

    ENGINES = ("standard", "scalloc", "supermalloc", "a2alloc")

    def test_names_and_figures_in_every_engine(self):
        for config in self.ENGINES:
            with known_heap("query=1000,500,10000000", "=300000,3", "plug\u00efn\x1b[2J=10,1", program=OWN_HEAPS,
                            config=config) as (running, _):
                found = self.look(running.pid)
                run = top("--once", running.pid)
            self.assertEqual((found["library"]["engine"], found["torn_records"]), (config, 0))
            own = found["program_heaps"]
            self.assertEqual([each["name"] for each in own["list"]], ["", "query", "plug\u00efn\ufffd[2J"], own)
            unnamed, query, plugin = own["list"]
            self.assertEqual((query["used_blocks"], query["limit_bytes"]), (500, 10000000))
            self.assertTrue(500 * 1000 <= query["used_bytes"] <= 500 * 1040 <= query["taken_bytes"], query)
            self.assertEqual((unnamed["used_blocks"], unnamed["used_bytes"], unnamed["limit_bytes"]),
                             (3, 3 * 5 * SLICE, 0))
            self.assertEqual((unnamed["taken_bytes"], plugin["taken_bytes"]), (16 * SLICE, SLICE))
            self.assertRegex(unnamed["address"], "^0x[0-9a-f]+$")
            self.assertEqual(own["taken_bytes"], sum(each["taken_bytes"] for each in own["list"]))
            self.assertEqual((own["heaps"], own["used_blocks"]), (3, 504))
            self.assertIn("first-class heaps", run.stdout)
            self.assertRegex(run.stdout, r"(?m)^ *heap +blocks +live +taken +share +limit +fullness\n")
            self.assertRegex(run.stdout, r"\n0x[0-9a-f]+ +3 .*\nquery +500 .* 9\.5 MiB .*\nplug.*\nall 3 +504 ")
            self.assertNotIn("\x1b", run.stdout)
            self.assertEqual("in all" in run.stdout, config == "standard")
            if config != "standard":
                self.assertIn("first-class heaps", re.sub(r"\s+", " ", run.stdout))

    def test_a_thousand(self):
        with known_heap("large=1000000,9", "many=1000", program=OWN_HEAPS) as (running, _):
            found = self.look(running.pid)
            run = top("--once", running.pid)
        own = found["program_heaps"]
        self.assertEqual((own["heaps"], own["list"][0]["name"], found["torn_records"]), (1001, "large", 0))
        self.assertEqual({each["name"] for each in own["list"]}, {"large", *(f"heap {n}" for n in range(1000))})
        self.assertEqual({each["used_blocks"] for each in own["list"][1:]}, {1})
        # The table has an end, and what it leaves out is counted.
        self.assertRegex(run.stdout, r"\u2026 9\d\d more +9\d\d .*\nall 1,001 +1,009 ")
        self.assertLess(run.stdout.count("heap "), 60)

    def test_heaps_that_come_and_go(self):
        with known_heap("stays=1000,50", "churn=2", program=OWN_HEAPS) as (running, _):
            for _ in range(20):
                own = self.look(running.pid)["program_heaps"]
                self.assertEqual([each["used_blocks"] for each in own["list"] if each["name"] == "stays"], [50], own)
                # (One that goes while it is looked at may have lost its name, or its memory.)
                self.assertLess(own["heaps"], 10)

    def test_a_forks_child(self):
        with known_heap("both=1000,50", "churn=1", "fork", program=OWN_HEAPS) as (_, (child,)):
            own = self.look(child)["program_heaps"]
        self.assertEqual([each["used_blocks"] for each in own["list"] if each["name"] == "both"], [50], own)

    def test_a_small_screen(self):
        """The tables share what lines there are."""
        with known_heap("a=1000,50", "many=100", program=OWN_HEAPS) as (running, _):
            looked = look.Watcher(running.pid).look()
        drawn = screen.Screen(running.pid)
        for width, height in ((40, 10), (50, 12), (79, 24), (80, 24), (100, 40), (200, 60)):
            lines = drawn.draw(looked, width, height, keys=True)
            self.assertLessEqual(len(lines), height, (width, height))
            if height >= 24:
                self.assertTrue(any("all 101" in line for line in lines), lines)
        # A long name leaves the figures their place.
        for each in looked.heaps.heaps:
            each.name = "n" * 63
        for width in (64, 79, 80, 100):
            lines = [terminal.plain(line).rstrip() for line in drawn.draw(looked, width, 40)]
            self.assertTrue(any(re.match("n+\u2026.*%$", line) for line in lines), lines)


class RunTest(Looking):
    """With a program."""

    def test_exit_code_and_output_are_the_programs(self):
        run = top("--", "sh", "-c", "echo out; echo err >&2; exit 7")
        self.assertEqual((run.returncode, run.stdout), (7, "out\n"))
        self.assertIn("err\n", run.stderr)

    def test_signal(self):
        self.assertEqual(top("--", "sh", "-c", "kill -TERM $$").returncode, 128 + signal.SIGTERM)

    def test_a_program_that_ends_at_once(self):
        """Nothing is said of what the process was before its libraries were there."""
        for _ in range(10):
            run = top("--", "false")
            self.assertEqual(run.returncode, 1)
            self.assertNotIn("does not run on a spanalloc library", run.stderr)
            self.assertNotIn("python", run.stderr)

    def test_no_such_program(self):
        run = top("--", "/nonexistent/program")
        self.assertEqual((run.returncode, run.stderr.splitlines()[-1]),
                         (127, "spanalloc: /nonexistent/program: command not found"))

    def test_a_program_whose_name_is_a_number(self):
        for words in (("--", "999999999"), ("--once", "--", "999999999"), ("--", "999999999", "1", "2")):
            run = top(*words)
            self.assertEqual((run.returncode, run.stderr.splitlines()[-1]),
                             (127, "spanalloc: 999999999: command not found"), words)

    def test_double_dashes_of_the_programs_own(self):
        run = top("--", "sh", "-c", 'echo "$*"', "sh", "--", "--once", "--")
        self.assertEqual((run.returncode, run.stdout), (0, "-- --once --\n"))

    def test_it_shows_the_program_at_its_fullest(self):
        """It waits for its input, which ends when it was looked at."""
        command = [COMMAND, "top", "--json", "--interval", "0.1", "--", KNOWN_HEAP, "1024,4000,0"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as running:
            lines = [running.stderr.readline() for _ in range(2)]
            self._wait_for_looks(running)
            out, _ = running.communicate("")
        self.assertEqual(lines[1], "ready\n")
        found = json.loads(out)
        self.assertEqual(found["exit_code"], 0)
        self.assertEqual(found["process"]["command"], [KNOWN_HEAP, "1024,4000,0"])
        live = {f["block_bytes"]: f["live_blocks"] for f in found["classes"]}
        self.assertGreaterEqual(live[1024], 4000)
        self.assertGreaterEqual(found["after_s"], 0)

    @staticmethod
    def _wait_for_looks(running):
        """Until the command has read the program's memory a few times more: by what it counts as read itself."""
        def calls():
            with open(f"/proc/{running.pid}/io", encoding="ascii") as file:
                return int(next(line for line in file if line.startswith("syscr")).split()[1])

        # (Each look opens and reads several files of /proc.)
        target = calls() + 200
        while running.poll() is None and calls() < target:
            select.select([], [], [], 0.01)


class TerminalTest(Looking):
    """In a terminal of its own."""

    def setUp(self):
        super().setUp()
        self.ours, self.its = pty.openpty()
        self.addCleanup(os.close, self.ours)
        self.resize(40, 120)

    def resize(self, lines, columns):
        fcntl.ioctl(self.its, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def start(self, *arguments, **more):
        environment = dict(os.environ, TERM="xterm", **more)
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        running = subprocess.Popen(
            [COMMAND, "top", *map(str, arguments)], stdin=self.its, stdout=self.its, stderr=subprocess.PIPE,
            env=environment, text=True, start_new_session=True, preexec_fn=self._take_terminal)
        self.addCleanup(running.stderr.close)
        self.addCleanup(running.wait)
        self.addCleanup(running.kill)
        return running

    @staticmethod
    def _take_terminal():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored by what a shell runs in its background
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def read_until(self, shown, pattern):
        """What the terminal shows, until there is such text in it."""
        text = ""
        while not re.search(pattern, text):
            if select.select([self.ours], [], [], 0.1)[0]:
                text += os.read(self.ours, 1 << 16).decode("utf-8", "replace")
            elif shown.poll() is not None:
                self.fail(f"it ended, without {pattern}: {text}")
        return text

    def finish(self, running):
        """The exit code; what the terminal shows meanwhile is read."""
        text = ""
        while running.poll() is None:
            if select.select([self.ours], [], [], 0.05)[0]:
                text += os.read(self.ours, 1 << 16).decode("utf-8", "replace")
        while select.select([self.ours], [], [], 0)[0]:
            text += os.read(self.ours, 1 << 16).decode("utf-8", "replace")
        return running.returncode, text, running.stderr.read()

    def modes(self):
        return termios.tcgetattr(self.its)[3] & (termios.ICANON | termios.ECHO)

    def test_keys_and_what_it_leaves_behind(self):
        before = self.modes()
        with known_heap("1024,4000,0") as (running, _):
            shown = self.start(running.pid, "--interval", "0.1")
            self.read_until(shown, r"live▾")
            self.assertNotEqual(self.modes(), before)
            os.write(self.ours, b"s")
            self.read_until(shown, r"free▾")
            os.write(self.ours, b"q")
            code, text, errors = self.finish(shown)
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("\x1b[?1049l", text)  # the screen as it was
        self.assertEqual(self.modes(), before)

    def test_an_interrupt_ends_it_cleanly(self):
        before = self.modes()
        with known_heap("1024,4000,0") as (running, _):
            shown = self.start(running.pid)
            self.read_until(shown, r"fullness")
            os.write(self.ours, b"\x03")
            code, text, errors = self.finish(shown)
            self.assertIsNone(running.poll())
        self.assertEqual((code, errors), (0, ""))
        self.assertIn("\x1b[?1049l", text)
        self.assertEqual(self.modes(), before)

    def test_the_process_ends(self):
        with known_heap("1024,4000,0") as (running, _):
            shown = self.start(running.pid, "--interval", "0.1")
            self.read_until(shown, r"fullness")
        code, _, errors = self.finish(shown)
        self.assertEqual((code, errors), (0, f"spanalloc: process {running.pid} has ended\n"))

    def test_without_colours(self):
        with known_heap("1024,4000,0") as (running, _):
            shown = self.start(running.pid, NO_COLOR="1")
            text = self.read_until(shown, r"fullness(.|\n)*%")
            os.write(self.ours, b"q")
            self.finish(shown)
        self.assertIsNone(re.search(r"\x1b\[(?:\d+;)*3\d(?:;\d+)*m", text), "a colour")

    def test_a_small_terminal_and_a_change_of_its_size(self):
        self.resize(12, 50)
        sizes = [f"{size},100,0" for size in range(16, 512, 16)]
        with known_heap(*sizes) as (running, _):
            shown = self.start(running.pid, "--interval", "0.1")
            self.read_until(shown, r"more classes")
            self.resize(60, 100)
            shown.send_signal(signal.SIGWINCH)
            self.read_until(shown, r"(?<!\d)16 B")
            os.write(self.ours, b"q")
            self.assertEqual(self.finish(shown)[0], 0)

    def test_a_programs_output_comes_after_the_table(self):
        with tempfile.TemporaryDirectory() as folder:
            go_on = pathlib.Path(folder, "go_on")
            shown = self.start("--interval", "0.1", "--", "sh", "-c",
                               f"echo from the program; test ! -t 0; echo $?; until test -e {go_on}; do sleep 0.1; done")
            self.read_until(shown, "fullness")
            go_on.touch()
            code, text, errors = self.finish(shown)
        self.assertEqual(code, 0)
        self.assertIn("\x1b[?1049l", text)
        self.assertRegex(text.rpartition("\x1b[?1049l")[2], r"from the program\r?\n0\r?\n")
        self.assertIn("At its fullest", errors)

    def test_a_program_that_goes_on_when_the_table_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            go_on = pathlib.Path(folder, "go_on")
            shown = self.start("--interval", "0.1", "--", "sh", "-c",
                               f"until test -e {go_on}; do sleep 0.1; done; exit 3")
            self.read_until(shown, "fullness")
            os.write(self.ours, b"q")
            self.read_until(shown, r"\x1b\[\?1049l")
            go_on.touch()
            code, _, errors = self.finish(shown)
        self.assertEqual(code, 3)
        self.assertRegex(errors, r"^spanalloc: sh goes on, as process \d+; here comes what it writes")


class Words:
    """A made-up process: {address: bytes}."""

    def __init__(self, **words):
        self.pieces = {}
        self.calls = 0
        self.bytes_read = 0

    def put(self, address, data):
        self.pieces[address] = data

    def read(self, address, size):
        self.calls += 1
        if self.calls > 100_000:
            raise AssertionError("it does not end")
        for start, data in self.pieces.items():
            if start <= address and address + size <= start + len(data):
                self.bytes_read += size
                return memoryview(data)[address - start:address - start + size]
        return None

    def read_each(self, ranges):
        if len(ranges) > 1 << 20:
            raise AssertionError("too much at once")
        return [self.read(*each) for each in ranges]

    def number(self, address, size=8):
        data = self.read(address, size)
        return None if data is None else int.from_bytes(data, "little")


def record(later=None, **changes):
    """The bytes of a record that makes sense, but for the changes; `later`: with what later libraries have behind it.
    """
    values = {name: 0x10000 * (n + 1) for n, name in enumerate(inspection.PLACES)}
    values.update(
        class_stride=64, class_count=121, class_first_large=81,
        class_block_size=0, class_span=8, class_blocks=12, class_lead=16,
        slice_bits=16, row_units=64, row_words=86, row_dirty=0, row_unmapped=2, row_lost=3, row_blocks=22,
        block_size_shift=8, block_state_mask=7, block_used=1,
        span_stride=128, span_word=64, span_class=82, span_carved=42, span_list=24,
        span_purged=56, span_retired=50,
        word_owner_shift=40, word_state_shift=38, word_cached_bit=36, word_nobody=(1 << 24) - 2,
        cache_stride=16384, cache_thread=64, cache_forks_of=72,
        cache_batches=8192, batch_count=64, batch_stride=64,
        batch_span=48, batch_quota=52, batch_left=32)
    head = {"magic": inspection.MAGIC, "version": 1, "library": b"1.2.3", "engine": b"standard"}
    for name, value in changes.items():
        (head if name in head else values)[name] = value
    rest = b"".join(values[name].to_bytes(8, "little") for name in inspection.PLACES)
    rest += b"".join(values[name].to_bytes(4, "little") for name in inspection.NUMBERS)
    rest += bytes(len(rest) % 8)
    if later is not None:
        rest += later.to_bytes(8, "little")
    return (head["magic"].ljust(16, b"\0") + struct.pack("<II", head["version"], 72 + len(rest))
            + head["library"].ljust(16, b"\0") + head["engine"].ljust(32, b"\0") + rest)


class ForgedTest(unittest.TestCase):
    """What a process says of itself is not believed: nothing runs away, whatever stands there."""

    def heap(self, words, **changes):
        data = record(**changes)
        words.put(0x100, data)
        return heap.Heap(words, inspection.read_at(words, 0x100))

    @staticmethod
    def places(words, **values):
        for n, name in enumerate(inspection.PLACES):
            words.put(0x10000 * (n + 1), values.get(name, 0).to_bytes(8, "little"))

    def test_a_record_of_another_version(self):
        with self.assertRaisesRegex(inspection.BadRecord, "version 7.*knows version 1"):
            inspection.Inspection(record(version=7))

    def test_something_else_under_that_name(self):
        for data in (b"", b"x" * 72, b"\0" * 400, record(magic=b"other")):
            with self.assertRaises(inspection.BadRecord):
                inspection.Inspection(data)

    def test_a_bad_record_beside_a_good_one(self):
        mapped = [maps.Mapping(0x1000, 0x2000, "r--p", 0, "/lib/a"), maps.Mapping(0x3000, 0x4000, "r--p", 0, "/lib/b")]
        words = Words()
        words.put(0x1000, record(version=7))
        words.put(0x3000, record())
        self.places(words, arena_base=0x7000, arena_limit=5)
        with unittest.mock.patch.object(objects, "heap_records", lambda *_: [(0x1000, "/lib/a"), (0x3000, "/lib/b")]):
            self.assertEqual(inspection.find(words, mapped).path, "/lib/b")
            # Then it may be that one that the process uses.
            self.places(words)
            with self.assertRaisesRegex(inspection.BadRecord, "version 7"):
                inspection.find(words, mapped)

    def test_notes_that_lead_nowhere(self):
        ours = struct.pack("<3I", 10, 8, 1) + b"spanalloc\0\0\0"
        for note, found in (
            (ours + struct.pack("<q", 100), [(0x1000 + 176 + 24 + 100, "/lib/a")]),
            (ours + struct.pack("<q", -1 << 63), []), (b"", []), (ours, []), (ours[:20], []),
            (ours.replace(b"span", b"spam") + bytes(8), []),
            (struct.pack("<3I", 1 << 31, 8, 1) + bytes(40), []), (struct.pack("<3I", 10, 1 << 31, 1) + bytes(40), []),
        ):
            for head in (b"\x7fELF\x02\x01", b"\x7fELF\x02\x03", b"\x7fELF\x01\x01", b"#!/x"):
                words = Words()
                rows = (1, 4, 0, 0, 0, 4096, 4096, 4096), (4, 4, 176, 176, 176, len(note), len(note), 4)
                words.put(0x1000, head.ljust(32, b"\0") + struct.pack("<Q14x2H6x", 64, 56, 2)
                          + b"".join(struct.pack("<2I6Q", *row) for row in rows) + note)
                mapped = [maps.Mapping(0x1000, 0x2000, "r--p", 0, "/lib/a")]
                self.assertEqual(objects.heap_records(words, mapped), found if head.endswith(b"\x02\x01") else [], note)
                self.assertIsNone(objects.link_order(words, mapped, "/lib/a"))
        self.assertIsNone(objects.link_order(Words(), mapped, "/another"))

    def test_a_file_that_is_also_read(self):
        """Where its bytes are mapped whole, below the library, its note leads astray."""
        mapped = [maps.Mapping(0x1000, 0x2000, "r--p", 0, "/lib/a"), maps.Mapping(0x3000, 0x4000, "r--p", 0, "/lib/a")]
        note = struct.pack("<3I", 10, 8, 2) + b"spanalloc\0\0\0" + struct.pack("<q", 0x5000 - 200)
        file = (b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<Q14x2H6x", 64, 56, 2)
                + b"".join(struct.pack("<2I6Q", *row) for row in (
                    (1, 4, 0, 0, 0, 4096, 4096, 4096), (4, 4, 176, 176, 176, len(note), len(note), 4))) + note)
        for engine in ({}, {"engine": b"scalloc", "class_count": 0}):
            words = Words()
            words.put(0x1000, file)
            words.put(0x3000, file)
            words.put(0x6000, bytes(1024))
            words.put(0x8000, record(**engine))
            found = objects.heap_records(words, mapped)
            self.assertEqual([address for address, _ in found], [0x6000, 0x8000])
            self.assertEqual(inspection.find(words, mapped).path, "/lib/a")

    def test_a_record_that_is_cut_off(self):
        with self.assertRaises(inspection.BadRecord):
            inspection.Inspection(record()[:-1])

    def test_absurd_numbers_in_the_record(self):
        inspection.Inspection(record())
        for name in inspection.NUMBERS:
            if name in ("row_dirty", "row_unmapped", "row_lost"):
                continue  # tried below
            if name in ("block_state_mask", "block_used", "word_nobody"):
                continue  # any number will do
            with self.assertRaises(inspection.BadRecord, msg=name):
                inspection.Inspection(record(**{name: 0xFFFFFFFF}))
        for name in ("row_dirty", "row_unmapped", "row_lost"):
            with self.assertRaises(inspection.BadRecord):
                inspection.Inspection(record(**{name: 22}))

    def test_no_control_characters_reach_the_terminal(self):
        self.assertEqual(inspection.Inspection(record(engine=b"a\x1b[2Jb", class_count=0)).engine, "a[2Jb")

    def test_nothing_has_begun(self):
        words = Words()
        self.places(words)
        with self.assertRaises(heap.NotStarted):
            self.heap(words)

    def test_addresses_where_nothing_is(self):
        words = Words()
        self.places(words, arena_base=1 << 46, arena_rows=1 << 45, arena_limit=1 << 60, span_records=1 << 44,
                    span_end=1 << 60, cache_records=1 << 43, cache_end=1000,
                    outside_objects=1 << 63, outside_bytes=1 << 63)
        with self.assertRaises(heap.NoConstants):
            self.heap(words)
        words.put(0x10000, bytes(64 * 121))
        walked = self.heap(words)
        self.assertEqual(walked.classes, [])
        self.assertGreater(walked.torn, 0)
        self.assertEqual(walked.totals.large_bytes, 0)

    def test_ranges_that_lead_nowhere(self):
        for word in (0, 1, 1 << 8, 0xFF << 8 | 1, (1 << 63) | 1, (1 << 64) - 1):
            words = Words()
            self.places(words, arena_base=1 << 46, arena_rows=0x100000, arena_limit=128, span_records=0x200000,
                        span_end=128)
            words.put(0x100000, struct.pack("<172Q", *[word] * 172))
            words.put(0x200000, b"\xff" * 128 * 128)
            words.put(0x10000, bytes(64 * 121))
            walked = self.heap(words)
            self.assertLessEqual(walked.totals.dirty_bytes + walked.totals.clean_bytes, 128 * SLICE)

    def one_span(self, list_address=0x8, carved=10, key=0, blocks=b"", **fields):
        """A made-up heap with one owned span of 64-byte blocks at slice 1, whose list begins at that address."""
        base = 1 << 40
        words = Words()
        self.places(words, arena_base=base, arena_rows=0x100000, arena_limit=64, span_records=0x200000, span_end=64,
                    link_key=key)
        words.put(0x10000, b"\0" * 64 + struct.pack("<IIIII", 64, 65536, 65536, 1000, 0).ljust(64, b"\0") * 120)
        row = [0] * 86
        row[22], row[23], row[24] = 1 << 8 | 1, 1 << 8 | 1, 62 << 8 | 2
        words.put(0x100000, struct.pack("<86Q", *row))
        span = bytearray(128)
        struct.pack_into("<Q", span, 64, 5 << 40 | 1 << 38 | 1000)
        struct.pack_into("<H", span, 42, carved)
        struct.pack_into("<Q", span, 24, list_address)
        struct.pack_into("<Q", span, 48, 8)
        span[82], span[50], span[84] = fields.get("size_class", 4), 0, 0
        words.put(0x200000, bytes(128) + bytes(span) + bytes(128 * 62))
        words.put(base + 65536, blocks.ljust(65536, b"\0"))
        return self.heap(words), base + 65536

    def test_a_list_is_followed(self):
        start = (1 << 40) + 65536
        key = 0x1234567890
        # Block 0 leads to block 2, that one to the end.
        blocks = bytearray(65536)
        struct.pack_into("<Q", blocks, 0, start ^ (start + 128) ^ key)
        struct.pack_into("<Q", blocks, 128, (start + 128) ^ 0x7008 ^ key)
        walked, _ = self.one_span(start, 10, key, bytes(blocks))
        figures, = walked.classes
        self.assertEqual((figures.live_blocks, figures.free_blocks, figures.unsure_blocks), (8, 992, 0))

    def test_a_list_that_leads_astray_is_unsure(self):
        start = (1 << 40) + 65536
        loop = struct.pack("<Q", 0)  # leads to itself
        for first, blocks in ((start, loop), (start + 65536, b""), (0x10, b""), (start + 1, b""), (start, b"\x30" * 8)):
            walked, _ = self.one_span(first, 10, 0, blocks)
            figures, = walked.classes
            self.assertEqual((figures.live_blocks, figures.free_blocks, figures.unsure_blocks), (0, 990, 10))

    def test_a_class_that_there_is_not(self):
        walked, _ = self.one_span(size_class=200)
        self.assertEqual((walked.classes, walked.torn), ([], 1))

    def test_purged_blocks(self):
        size_class = heap.SizeClass(3072, 65536, 21, 64)
        for mask in (0, 1, 2, 0b1010, 0xFFFF, 0x8001, 1 << 15):
            for carved in (0, 1, 5, 21):
                wanted = 0
                for block in range(carved):
                    first, last = 64 + block * 3072 >> 12, 64 + block * 3072 + 3071 >> 12
                    wanted += any(mask >> page & 1 for page in range(first, last + 1))
                self.assertEqual(heap.count_purged(mask, size_class, carved), wanted, (mask, carved))


class ManyHeaps(Words):
    """A made-up process with a heap in each slice, with 33 shards of one block of 1,000 bytes: the addresses of all are
    that of the first."""

    def __init__(self, words):
        super().__init__()
        self.pieces = words.pieces
        self.most_at_once = 0

    def read_each(self, ranges):
        self.most_at_once = max(self.most_at_once, len(ranges))
        return [self.of_heap(*each) for each in ranges]

    def of_heap(self, address, size):
        start, offset = address // SLICE * SLICE, address % SLICE
        if offset == 0:
            return (start + 7).to_bytes(8, "little")
        if offset == 16:
            return b"\xff" * 8
        if offset == 128:
            return (start + 512).to_bytes(8, "little") * 32
        return (1 if offset == 512 + 64 else 1000 if offset == 512 + 72 else 0).to_bytes(size, "little")


class ForgedHeapsTest(unittest.TestCase):
    """The same of first-class heaps."""

    BASE, RECORDS, END = 1 << 40, 1 << 30, 64

    def layout(self, **changes):
        """The bytes of a record that makes sense, but for the changes."""
        values = {name: 0x1000 * (n + 1) for n, name in enumerate(heaps.PLACES)}
        values.update(slice_bits=16, run_stride=32, run_owner=0, run_first=8, run_count=12, run_heap=16, heap_handle=0,
                      heap_limit=16, heap_name=32, name_bytes=64, heap_first_shard=512, heap_shards=128, shard_count=32,
                      shard_blocks=64, shard_bytes=72, unused=0)
        head = {"version": 1, "size": 8 + 8 * len(heaps.PLACES) + 4 * len(heaps.NUMBERS)}
        for name, value in changes.items():
            (head if name in head else values)[name] = value
        return (struct.pack("<II", head["version"], head["size"])
                + b"".join(values[name].to_bytes(8, "little") for name in heaps.PLACES)
                + b"".join(values[name].to_bytes(4, "little") for name in heaps.NUMBERS))

    @staticmethod
    def a_run(number, count, home, owner=16, first=None):
        return number, struct.pack("<QIIIII4x", owner, number if first is None else first, count, home, 0, 0)

    def words(self, *runs, layout=None, held=64, **heap):
        """A process with these runs, and one heap at slice 1."""
        words = Words()
        words.put(0x100, (0x200).to_bytes(8, "little"))
        words.put(0x200, self.layout() if layout is None else layout)
        for n, value in enumerate((self.BASE, self.RECORDS, heap.get("end", self.END), held, 0, 0)):
            words.put(0x1000 * (n + 1), value.to_bytes(8, "little"))
        records = bytearray(32 * self.END)
        for number, data in runs:
            records[32 * number:32 * number + 32] = data
        words.put(self.RECORDS, bytes(records))
        page = bytearray(4096)
        struct.pack_into("<Q", page, 0, heap.get("handle", self.BASE + SLICE + 7))
        struct.pack_into("<Q", page, 16, heap.get("limit", (1 << 64) - 1))
        page[32:96] = heap.get("name", b"made up").ljust(64, b"\0")
        struct.pack_into("<32Q", page, 128, *heap.get("shards", [0] * 32))
        struct.pack_into("<2Q", page, 512 + 64, heap.get("blocks", 3), heap.get("bytes", 3000))
        words.put(self.BASE + SLICE, bytes(page))
        return words

    def read(self, *runs, **options):
        return heaps.read(self.words(*runs, **options), 0x100)

    def test_one_that_makes_sense(self):
        found = self.read(self.a_run(1, 1, 1), self.a_run(2, 5, 1), held=20)
        own, = found.heaps
        self.assertEqual((own.name, own.taken_bytes, own.used_blocks, own.used_bytes, own.limit_bytes),
                         ("made up", 6 * SLICE, 3, 3000, 0))
        self.assertEqual((own.address, found.kept_bytes, found.torn), (self.BASE + SLICE + 7, 13 * SLICE, 0))

    def test_another_library(self):
        """One that has no such record, has not made a heap, or describes heaps in another way."""
        self.assertIsNone(heaps.read(Words(), 0))
        self.assertIsNone(heaps.read(Words(), 0x100))
        none_yet = Words()
        none_yet.put(0x100, bytes(8))
        self.assertEqual(heaps.read(none_yet, 0x100).heaps, [])
        self.assertIsNone(self.read(layout=self.layout(version=2)))
        self.assertIsNone(self.read(layout=self.layout(size=16)))
        self.assertIsNone(self.read(layout=self.layout()[:-1]))
        self.assertEqual(len(self.read(self.a_run(1, 1, 1), layout=self.layout(size=200) + bytes(80)).heaps), 1)

    def test_libraries_of_before_and_after(self):
        self.assertEqual(inspection.Inspection(record()).program_heaps, 0)
        self.assertEqual(inspection.Inspection(record(later=0x1234)).program_heaps, 0x1234)
        self.assertEqual(inspection.Inspection(record(later=0x1234) + bytes(100)).program_heaps, 0x1234)
        for later in (None, 0x1234):
            words = Words()
            words.put(0x100, record(later))
            self.assertEqual(inspection.read_at(words, 0x100).program_heaps, later or 0)

    def test_what_many_touch(self):
        """What they have taken is addresses, of which each touches a few pages."""
        pages = 3 * mmap.PAGESIZE
        found = heaps.Heaps()
        self.assertEqual(found.touched_bytes, 0)
        for _ in range(1000):
            own = heaps.OwnHeap(SLICE)
            own.used_bytes = 600
            found.heaps.append(own)
        self.assertEqual(found.touched_bytes, min(1000 * SLICE, 1000 * (pages + 600)))
        looked = look.Look(None)
        looked.totals, looked.heaps = heap.Totals(), found
        found.kept_bytes = 5
        self.assertEqual(looked.in_use_bytes, found.touched_bytes + 5)
        for own in found.heaps:
            own.used_bytes = SLICE - 600
        self.assertEqual(found.touched_bytes, 1000 * SLICE)

    def test_a_record_at_its_bounds(self):
        for name, most in (("shard_count", 64), ("name_bytes", 256), ("run_stride", 256)):
            layout = {"heap_first_shard": 2048, name: most}
            self.assertIsNotNone(self.read(layout=self.layout(**layout)), name)
            layout[name] += 1
            self.assertIsNone(self.read(layout=self.layout(**layout)), name)

    def test_more_shards_than_are_looked_at(self):
        """Of each heap the first shard counts, of the largest the others, too; and no list of all is made."""
        count = 5000
        words = ManyHeaps(self.words(end=count + 1))
        words.put(self.RECORDS, b"".join(self.a_run(n, 1, n)[1] for n in range(count + 1)))
        found = heaps.read(words, 0x100)
        self.assertEqual((len(found.heaps), found.torn, found.is_cut), (count, 0, True))
        self.assertEqual((found.heaps[0].used_blocks, found.heaps[-1].used_blocks), (33, 1))
        self.assertEqual(found.used_blocks, 1 << 17)
        # 1,024 heaps, each with 33 shards of two counts.
        self.assertLessEqual(words.most_at_once, 1024 * 33 * 2)

    def test_more_heaps_than_are_known(self):
        """Slices of further ones are in use all the same."""
        runs = [self.a_run(n, 1, n) for n in range(1, 11)]
        for known in (10, 4):
            with unittest.mock.patch.object(heaps, "_MOST_KNOWN", known):
                found = self.read(*runs, self.a_run(11, 5, 1), held=20)
            self.assertEqual((len(found.heaps), found.is_cut), (known, known == 4))
            self.assertEqual((found.heaps[0].taken_bytes, found.kept_bytes), (6 * SLICE, 4 * SLICE))

    def test_absurd_numbers_in_the_record(self):
        for name in heaps.NUMBERS:
            if name != "unused":
                self.assertIsNone(self.read(self.a_run(1, 1, 1), layout=self.layout(**{name: 0xFFFFFFFF})), name)
        for place in heaps.PLACES:
            found = self.read(self.a_run(1, 1, 1), layout=self.layout(**{place: (1 << 64) - 8}))
            self.assertLessEqual(len(found.heaps), 1, place)

    def test_runs_that_cannot_be(self):
        whole = self.a_run(1, 1, 1)
        for torn, bad in ((1, self.a_run(2, 0, 1)), (1, self.a_run(2, 63, 1)), (1, self.a_run(2, 0xFFFFFFFF, 1)),
                          (1, self.a_run(2, 1, 1, first=9)), (1, self.a_run(2, 1, 0)), (1, self.a_run(2, 1, 64)),
                          (1, self.a_run(2, 1, 30)), (0, self.a_run(2, 1, 1, owner=0))):
            found = self.read(whole, bad)
            self.assertEqual(([own.taken_bytes for own in found.heaps], found.torn), ([SLICE], torn), bad)
        for end in (0, 1, 1 << 20, 1 << 40, (1 << 64) - 1):
            found = self.read(whole, end=end)
            self.assertEqual((len(found.heaps), found.is_cut), (0, end >= 1 << 40), end)

    def test_heaps_that_cannot_be(self):
        run = self.a_run(1, 1, 1)
        own, = self.read(run, handle=0x123456789).heaps
        self.assertEqual((own.address, own.name), (0, "made up"))
        self.assertEqual(self.read(run, handle=0).heaps, [])  # it is being destroyed
        for blocks, size in ((3, SLICE + 1), (1 << 63, 3000), (3, (1 << 64) - 1)):
            found = self.read(run, blocks=blocks, bytes=size)
            self.assertEqual((found.heaps[0].used_blocks, found.heaps[0].used_bytes, found.torn), (0, 0, 1))
        for shard in (1, 8, self.BASE - 8, self.BASE + 64 * SLICE, self.BASE + 5 * SLICE, (1 << 64) - 8):
            found = self.read(run, shards=[shard] * 32)
            self.assertEqual((found.heaps[0].used_blocks, found.torn), (3, 32), hex(shard))
        # A shard that is the heap's own first one, again and again: no more is in use than was taken.
        found = self.read(run, shards=[self.BASE + SLICE + 512] * 32, bytes=30_000)
        self.assertLessEqual(found.heaps[0].used_bytes, SLICE)
        own, = self.read(run, name=b"\x1b[2J\xff" + b"x" * 59).heaps
        self.assertEqual(own.name, "\ufffd[2J\ufffd" + "x" * 59)
        # Of a home that cannot be read the records tell all the same.
        found = self.read(self.a_run(2, 3, 2))
        self.assertEqual(([own.taken_bytes for own in found.heaps], found.torn), ([3 * SLICE], 1))


class EndingTest(unittest.TestCase):
    """A process that ends, or becomes another program, between two questions of one look."""

    def look(self, texts, programs):
        """The look at a process whose file `maps` has one text after the other, as the program that it runs changes. No
        memory of it can be read."""
        texts, programs = iter(texts), iter(programs)

        class Made(process.Process):
            def text(self, name):
                return next(texts) if name == "maps" else "Name:\tx\nState:\tR\nVmSize:\t8 kB\n"

            def stat(self, task=None):
                return [str(next(programs))] * 52

            def open_program(self):
                return open("/bin/true", "rb")

        watcher = look.Watcher(1)
        watcher.process = Made(1)
        with unittest.mock.patch.object(memory.Memory, "read_each", lambda _, ranges: [None] * len(ranges)), \
                unittest.mock.patch.object(process.Process, "uptime_s", lambda _: 0):
            return watcher.look()

    LOADED = "1000-2000 r--p 00000000 00:00 0 /bin/true\n3000-4000 r--p 00000000 00:00 0 /lib/libc.so.6\n"

    def test_one_that_stays(self):
        looked = self.look([self.LOADED] * 2, [1] * 4)
        self.assertTrue(looked.is_loaded)
        self.assertIn("does not run on a spanalloc library", looked.note)

    def test_one_that_has_ended_meanwhile(self):
        """Its memory went first, and its maps are empty."""
        with self.assertRaisesRegex(memory.Ended, "process 1 has ended"):
            self.look([self.LOADED, ""], [1] * 4)

    def test_another_program_by_now(self):
        for programs in ((1, 1, 2, 2), (1, 1, 1, 2)):
            looked = self.look([self.LOADED, self.LOADED.partition("\n")[0]], programs)
            self.assertFalse(looked.is_loaded)


class RefusalTest(unittest.TestCase):
    class Libc:
        def __init__(self, error):
            self.error = error

        def process_vm_readv(self, *_):
            ctypes.set_errno(self.error)
            return -1

    def refusal(self, scope, owner=None, user=1000):
        with tempfile.TemporaryDirectory() as proc, unittest.mock.patch.object(memory.os, "getuid", lambda: user):
            os.makedirs(f"{proc}/sys/kernel/yama")
            os.makedirs(f"{proc}/12")
            if scope is not None:
                with open(f"{proc}/sys/kernel/yama/ptrace_scope", "w", encoding="ascii") as file:
                    file.write(f"{scope}\n")
            with open(f"{proc}/12/status", "w", encoding="ascii") as file:
                uid = os.getuid() if owner is None else owner
                file.write(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
            return memory.why_refused(12, proc)

    def test_what_is_said(self):
        self.assertIn("ptrace_scope is 1", self.refusal(1))
        for remedy in ("spanalloc top -- PROGRAM", "sudo spanalloc top 12", "sysctl kernel.yama.ptrace_scope=0"):
            self.assertIn(remedy, self.refusal(1))
        self.assertIn("ptrace_scope is 2", self.refusal(2))
        self.assertIn("until the next boot", self.refusal(3))
        self.assertIn("privileges", self.refusal(0))
        self.assertIn("privileges", self.refusal(None))
        self.assertIn("belongs to another user", self.refusal(1, 1001))
        for scope in (None, 0, 1, 2):
            said = self.refusal(scope, user=0)
            self.assertIn("though you are root", said)
            self.assertNotIn("sudo", said)
        self.assertIn("until the next boot", self.refusal(3, user=0))

    def test_who_says_it(self):
        with self.assertRaisesRegex(memory.CannotRead, "the kernel does not let you"):
            memory.Memory(1, self.Libc(errno.EPERM)).read(4096, 8)
        with self.assertRaisesRegex(memory.Ended, "process 1 has ended"):
            memory.Memory(1, self.Libc(errno.ESRCH)).read(4096, 8)
        with self.assertRaisesRegex(memory.CannotRead, "not implemented"):
            memory.Memory(1, self.Libc(errno.ENOSYS)).read(4096, 8)
        self.assertIsNone(memory.Memory(1, self.Libc(errno.EFAULT)).read(4096, 8))

    def test_a_process_that_may_not_be_read(self):
        """The program itself forbids it (prctl PR_SET_DUMPABLE). Root may look all the same: so somebody else asks."""
        program = ("import ctypes, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
                   "print('ready', flush=True); sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as running:
            self.assertEqual(running.stdout.readline(), "ready\n")
            ours, its = os.pipe()
            asker = os.fork()
            if asker == 0:
                said = b"it was read"
                try:
                    if os.getuid() == 0:
                        os.setgroups([])
                        os.setgid(65534)
                        os.setuid(65534)
                    memory.Memory(running.pid).read(4096, 8)
                except memory.CannotRead as error:
                    said = str(error).encode()
                finally:
                    os.write(its, said)
                    os._exit(0)
            os.close(its)
            with open(ours, encoding="utf-8") as answer:
                said = answer.read()
            os.waitpid(asker, 0)
            running.stdin.close()
        self.assertIn(f"the kernel does not let you read the memory of process {running.pid}", said)

class ThisProcessTest(Looking):
    """Reading memory, with a child of which everything is known."""

    def test_pieces_of_which_some_cannot_be_read(self):
        with known_heap(config=None) as (child, _):
            maps = process.Process(child.pid).mappings()
            good = next(m for m in maps if m.path == KNOWN_HEAP and m.offset == 0).start
            found = memory.Memory(child.pid).read_each([(good, 4), (16, 8), (good, 2), (1 << 70, 8), (good, 0)] * 700)
        self.assertEqual([None if each is None else bytes(each) for each in found[:5]],
                         [b"\x7fELF", None, b"\x7fE", None, b""])
        self.assertEqual(len(found), 3500)
        self.assertEqual([each is None for each in found], [False, True, False, True, False] * 700)

    def test_the_loaders_order(self):
        with known_heap() as (child, _):
            order = objects.link_order(memory.Memory(child.pid), process.Process(child.pid).mappings(), KNOWN_HEAP)
        names = [os.path.basename(path) for path in order]
        self.assertEqual(names[:2], ["known_heap", os.path.basename(os.path.realpath(library()))])
        self.assertIn("libc.so.6", names[2:])

    def test_which_thread_is_which(self):
        marks, records = [0x1000, 0x9000, 0x20000], {7: 0x1540, 8: 0x9540, 9: 0x20540, 10: 0x50540}
        self.assertEqual(process.threads_by_mark(marks, records), {0x1000: 7, 0x9000: 8, 0x20000: 9})
        self.assertEqual(process.threads_by_mark(marks, {}), {})
        self.assertEqual(process.threads_by_mark([], records), {})


class FormatTest(unittest.TestCase):
    def test_the_fields_are_those_of_the_header(self):
        with open(os.path.join(SOURCE, "src", "engine", "inspection.hpp"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(tuple(re.findall(r"const void\* (\w+) = nullptr;", text)),
                         inspection.PLACES + inspection.LATER)
        numbers = re.findall(r"^  std::uint32_t (\w+) = 0;", text, re.MULTILINE)
        self.assertEqual(tuple(numbers), inspection.NUMBERS + inspection.LATER_NUMBERS)
        self.assertIn(f"kVersion = {inspection.VERSION};", text)
        self.assertIn(f'kMagic[] = "{inspection.MAGIC.decode()}";', text)

    def test_the_fields_of_heaps_are_those_of_their_header(self):
        with open(os.path.join(SOURCE, "src", "pages", "heaps_inspection.hpp"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(tuple(re.findall(r"const void\* (\w+) = nullptr;", text)), heaps.PLACES)
        numbers = re.findall(r"^  std::uint32_t (\w+) = 0;", text, re.MULTILINE)
        self.assertEqual(tuple(numbers), heaps.NUMBERS)
        self.assertIn(f"kVersion = {heaps.VERSION};", text)


if __name__ == "__main__":
    unittest.main()
