"""`spanalloc doctor` as a command, on this machine; how it prints, watches, and reads files."""

import json
import mmap
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from made_up import Tree, elf, program  # noqa: E402
from spanalloc_cli.doctor import elf as elf_reader, heaps, options, report, watch  # noqa: E402
from spanalloc_cli.doctor.files import Files, cpu_list  # noqa: E402
from spanalloc_cli.doctor.findings import COSTS, FINE, HEADINGS, KNOW, TOPICS, Finding, amount  # noqa: E402
from spanalloc_cli.top import heaps as top_heaps, memory  # noqa: E402

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
LIBRARIES = os.path.join(os.path.dirname(os.path.dirname(COMMAND)), "lib")


class ReaderTest(unittest.TestCase):
    """ELF files, options, and the smaller readers."""

    def setUp(self):
        self.tree = Tree(self)

    def read(self, content):
        self.tree.put("/x", content)
        return elf_reader.read(self.tree.files, "/x")

    def test_what_an_elf_file_tells(self):
        found = self.read(elf(interpreter="/lib/ld.so", needed=("a.so", "b.so"), soname="x.so", exported=("malloc",),
                              wanted=("free",), defined=("mi_malloc", "malloc")))
        self.assertEqual((found.interpreter, found.needed, found.soname), ("/lib/ld.so", ("a.so", "b.so"), "x.so"))
        self.assertEqual((found.exported, found.defined), ({"malloc"}, {"malloc", "mi_malloc"}))
        self.assertEqual((found.bits, found.machine, found.is_native), (64, os.uname().machine, True))
        self.assertFalse(found.is_static)
        self.assertTrue(self.read(elf(dynamic=False)).is_static)
        self.assertTrue(self.read(elf()).is_static)  # static-pie: it has a dynamic part, and no loader
        self.assertIsNone(self.read(elf()).defined)

    def test_a_name_that_is_the_end_of_another(self):
        content = elf(exported=("__libc_malloc",))
        # The linker keeps one string for both.
        whole = content.index(b"__libc_malloc\0")
        self.assertEqual(self.read(content).exported, {"__libc_malloc"})
        names = content.index(b"\0__libc_malloc\0")
        place = content.rindex((1).to_bytes(4, "little") + b"\x12")
        shorter = content[:place] + (whole - names + len("__libc_")).to_bytes(4, "little") + content[place + 4:]
        self.assertEqual(self.read(shorter).exported, {"malloc"})

    def test_a_file_that_is_damaged_anywhere_is_refused_or_read_and_nothing_else(self):
        content = program(exported=("malloc",), defined=("malloc",))
        for length in range(0, len(content), 7):
            try:
                self.read(content[:length])
            except elf_reader.NotElf:
                pass
        for place in range(16, len(content), 3):
            try:
                self.read(content[:place] + b"\xff\xff\xff" + content[place + 3:])
            except elf_reader.NotElf:
                pass
        for content in (b"", b"\x7fELF", b"text" * 30):
            with self.assertRaises(elf_reader.NotElf):
                self.read(content)
        with self.assertRaises(elf_reader.NotElf):
            elf_reader.read(self.tree.files, "/gone")

    def test_real_files(self):
        """The reader against a real linker's work: Python itself, and the C library that it runs on."""
        with open("/proc/self/maps", encoding="utf-8") as maps:
            libc = next(line.split()[-1] for line in maps if "/libc.so.6" in line or "/ld-musl" in line)
        with open(libc, "rb") as file:
            self.assertIn("malloc", elf_reader.Elf(file).exported)
        with open(os.path.realpath(sys.executable), "rb") as file:
            self.assertFalse(elf_reader.Elf(file).is_static)

    def test_options_are_those_of_the_manual(self):
        with open(os.path.join(SOURCE, "docs", "man", "spanalloc.7"), encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(sorted(options.OPTIONS), sorted(set(re.findall(r"^\.BR? (SPANALLOC_[A-Z0-9_]+)\s*$", page,
                                                                        re.MULTILINE))))

    def test_bounds_of_options_are_those_of_the_sources(self):
        sources = ""
        for path in (path for folder in ("src", "papers") for path in pathlib.Path(SOURCE, folder).rglob("*.?pp")
                     if not path.name.endswith("_test.cpp")):
            sources += path.read_text(encoding="utf-8")
        for name, low, high in re.findall(r'option_number\("([A-Z_]+)", (\d+), ([\d* ]+),', sources):
            with self.subTest(name):
                most = 1
                for factor in high.split("*"):
                    most *= int(factor)
                self.assertEqual(options.OPTIONS[f"SPANALLOC_{name}"][0], options.Number(int(low), most))
        switches = {name for name, (takes, _) in options.OPTIONS.items() if isinstance(takes, options.Switch)}
        self.assertEqual({f"SPANALLOC_{name}" for name in re.findall(r'option_switch\("([A-Z_]+)"', sources)}, switches)
        words = re.search(r'bool option_switch\([^;{]*{[^{]*{([^}]*)}', sources)[1]
        self.assertEqual(tuple(re.findall('"(.*?)"', words)), options.Switch.OFF + options.Switch.ON)

    def test_sizes_and_places(self):
        limit, place = (options.OPTIONS[f"SPANALLOC_{name}"][0] for name in ("SOFT_LIMIT", "STATS_AT_EXIT"))
        for text in ("0", "1048576", "400M", "2g", "1T", "cgroup"):
            self.assertTrue(limit.takes(text), text)
        for text in ("", "-1", "4 M", "12X", "Cgroup", "1.5G", "M", str(1 << 60), "1048576T"):
            self.assertFalse(limit.takes(text), text)
        self.assertTrue(place.takes("/tmp/heap-%p.json"))
        self.assertFalse(place.takes(""))
        self.assertFalse(place.takes("x" * 4001))

    def test_what_a_name_may_have_meant(self):
        for said, meant in (("SOFTLIMIT", "SOFT_LIMIT"), ("STATS", "STATS_AT_EXIT"), ("Cpu", "CPUS"), ("TPH", "THP"),
                            ("FOO", None), ("FAR", None), ("", None)):
            self.assertEqual(options.meant(f"SPANALLOC_{said}"), meant and f"SPANALLOC_{meant}", said)

    def test_lists_of_cpus(self):
        for text, numbers in (("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), (None, set()), ("x", set()),
                              ("1-", set())):
            self.assertEqual(cpu_list(text), numbers)

    def test_links(self):
        self.tree.put("/a/b/file", "")
        self.tree.link("/a/up", "../a/b")
        self.tree.link("/absolute", "/a/up/file")
        self.tree.link("/loop", "loop")
        files = self.tree.files
        self.assertEqual(files.resolved("/absolute"), "/a/b/file")
        self.assertEqual(files.resolved("/b/../b/./file", "/a"), "/b/file")
        self.assertIsNone(files.resolved("/up/file", "/a"))  # leads out of that root, which nothing does
        self.assertIsNone(files.resolved("/loop"))
        self.assertIsNone(files.resolved("/a/gone"))

    def test_amounts(self):
        self.assertEqual([amount(count) for count in (0, 1023, 1024, 1536 << 10, 1 << 30, 3 << 40, 1 << 52)],
                         ["0 bytes", "1023 bytes", "1.0 KiB", "1.5 MiB", "1.0 GiB", "3.0 TiB", "4096.0 TiB"])


class ReportTest(unittest.TestCase):
    def test_a_finding_says_what_to_do_unless_it_is_fine(self):
        for wrong in (("thp", COSTS, "a", "b"), ("thp", FINE, "a", "b", "c"), ("nonesuch", FINE, "a", "b"),
                      ("thp", "bad", "a", "b", "c")):
            with self.assertRaises(ValueError):
                Finding(*wrong)

    def test_text(self):
        found = [Finding("thp", COSTS, "One.", "Two.", "echo a-very-long-word-" + "x" * 100),
                 Finding("swap", FINE, "Three.", "Four.")]
        lines = list(report.as_text(found, 80))
        self.assertEqual(lines[0], "Costs you something:")
        self.assertIn("a-very-long-word-" + "x" * 100, " ".join(lines))  # to be copied
        self.assertNotIn("Worth knowing:", lines)
        self.assertEqual(lines[-1], "1 costs you something, 0 worth knowing, 1 fine.")

    def test_the_manual_lists_the_topics(self):
        with open(os.path.join(SOURCE, "docs", "man", "spanalloc.1"), encoding="utf-8") as file:
            part = file.read().partition(".SS Topics of doctor\n")[2].partition("\n.S")[0]
        self.assertEqual(re.findall(r"^\.B ([\w\\-]+)$", part, re.MULTILINE),
                         [topic.replace("-", "\\-") for topic in TOPICS])


class WatchTest(unittest.TestCase):
    """Runs that go on until they have been looked at."""

    def watch(self, script, enough=lambda process: True):
        """The run of a shell's script, in which $0 is a file that appears once a process that is `enough` was seen."""
        seen = []
        is_enough = False

        class Door(Files):
            """The program may end only once its process was asked for again, and so was still there."""

            def link(self, path):
                found = super().link(path)
                if is_enough:
                    open(done, "w", encoding="ascii").close()
                return found

        with tempfile.TemporaryDirectory(prefix="spanalloc-doctor-") as folder:
            done = os.path.join(folder, "done")

            def look_at(process):
                nonlocal is_enough
                seen.append(process)
                is_enough = is_enough or enough(process)
                return process

            watched = watch.watch(Door(), ["sh", "-c", script, done], dict(os.environ), look_at, subprocess.DEVNULL)
        self.assertIn(watched.process, seen)
        self.assertIs(watched.seen, watched.process)
        return watched

    UNTIL_DONE = "while [ ! -e $0 ]; do sleep 0.01; done"

    def test_a_program_is_looked_at_while_it_runs(self):
        watched = self.watch(f"{self.UNTIL_DONE}; exit 9")
        self.assertEqual(watched.exit_code, 9)
        self.assertTrue(watched.process.is_loaded)
        self.assertEqual(watched.process.objects.keys() & {watched.process.exe}, {watched.process.exe})

    def test_what_it_starts_is_looked_at_too(self):
        child = "import os, sys, time; [time.sleep(0.01) for _ in iter(lambda: os.path.exists(sys.argv[1]), True)]"
        watched = self.watch(f'"{sys.executable}" -c "{child}" $0; exit 0',
                             lambda process: process.exe == os.path.realpath(sys.executable))
        self.assertEqual(watched.process.exe, os.path.realpath(sys.executable))
        self.assertGreaterEqual(watched.others, 1)

    def test_signals_are_the_programs(self):
        self.assertEqual(self.watch(f"{self.UNTIL_DONE}; kill -KILL $$").exit_code, 128 + signal.SIGKILL)
        before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
        self.watch(f"trap 'exit 5' TERM; {self.UNTIL_DONE}")
        self.assertEqual([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)], before)
        # To this process, which hands it on; the script ends by its own choice.
        watched = self.watch(f"trap 'exit 5' TERM; {self.UNTIL_DONE}; kill -TERM {os.getpid()}; while :; do sleep 0.01; done")
        self.assertEqual(watched.exit_code, 5)

    def test_a_program_that_cannot_be_run(self):
        with self.assertRaises(FileNotFoundError):
            watch.watch(Files(), ["/nonexistent/program"], {}, None)


class HeapsTest(unittest.TestCase):
    """What is said of first-class heaps that were seen."""

    MIB = 1 << 20

    def judge(self, own_bytes, *holdings, kept=0):
        """`holdings`: (name, bytes taken, bytes used)."""
        found = top_heaps.Heaps()
        found.kept_bytes = kept
        for name, taken, used in holdings:
            heap = top_heaps.OwnHeap(taken)
            heap.name, heap.used_bytes, heap.address = name, used, 0xABC0
            found.heaps.append(heap)
        return heaps.judge(found, own_bytes)

    def test_none(self):
        self.assertIsNone(self.judge(100 * self.MIB))

    def test_a_small_part(self):
        found = self.judge(100 * self.MIB, ("query", 50 * self.MIB, 40 * self.MIB), ("", self.MIB, 10), kept=self.MIB)
        self.assertEqual((found.topic, found.severity), ("heaps", FINE))
        for text in ("2 first-class heaps have taken 51.0 MiB of addresses;", "in use are 40.0 MiB", "left 1.0 MiB",
                     "query 50.0 MiB, one without a name (0xabc0) 1.0 MiB."):
            self.assertIn(text, found.seen)

    def test_little(self):
        self.assertEqual(self.judge(10 * self.MIB, ("a", 9 * self.MIB, 9 * self.MIB)).severity, FINE)

    def test_most(self):
        found = self.judge(70 * self.MIB, *((f"heap {n}", 10 * self.MIB, 9 * self.MIB) for n in range(5)))
        self.assertEqual(found.severity, KNOW)
        self.assertIn("The largest, by addresses: heap 0 10.0 MiB, heap 1 10.0 MiB, heap 2 10.0 MiB.", found.seen)
        self.assertIn("most of the 70.0 MiB", found.why)
        self.assertIn("limit", found.do)

    def test_many_of_little_use(self):
        """What they have taken is addresses: each touches a few pages, which together are most of the memory."""
        holdings = [(f"heap {n}", 64 << 10, 600) for n in range(20_000)]
        found = self.judge(400 * self.MIB, *holdings)
        self.assertEqual(found.severity, KNOW)
        pages = 20_000 * (3 * mmap.PAGESIZE + 600)
        self.assertIn(f"20,000 heaps touch two or three pages each, about {amount(pages)} in all.", found.why)
        self.assertIn("share a heap", found.do)
        # No more than the process has.
        self.assertIn("about 160.0 MiB in all", self.judge(160 * self.MIB, *holdings).why)
        # Of a process that has much else they are the lesser part.
        self.assertEqual(self.judge(1000 * self.MIB, *holdings).severity, FINE)
        self.assertEqual(self.judge(10 * self.MIB, *holdings[:500]).severity, FINE)


class DoctorTest(unittest.TestCase):
    """The command itself, on this machine: what does not hang on its settings."""

    def doctor(self, *arguments, **options_):
        options_.setdefault("timeout", 600)
        return subprocess.run([COMMAND, "doctor", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, **options_)

    def findings(self, *arguments, code=0, **options_):
        """{topic: its findings} of a run with --json, and what it was of."""
        run = self.doctor("--json", *arguments, **options_)
        self.assertEqual(run.returncode, code, run.stderr)
        record = json.loads(run.stdout)
        self.assertEqual((set(record), record["format"]), ({"format", "spanalloc", "subject", "findings"}, 1))
        self.assertEqual(set(record["subject"]), {"kind", "process", "command", "exit_code"})
        by_topic = {}
        for finding in record["findings"]:
            self.assertEqual(set(finding), {"topic", "severity", "seen", "why", "do"})
            self.assertIn(finding["topic"], TOPICS)
            self.assertIn(finding["severity"], HEADINGS)
            by_topic.setdefault(finding["topic"], []).append(finding)
        return by_topic, record["subject"]

    def compiled(self, text, *flags):
        """A program of C; the test is skipped where there is no compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            self.skipTest("no C compiler")
        scratch = tempfile.TemporaryDirectory(prefix="spanalloc-doctor-")
        self.addCleanup(scratch.cleanup)
        path = os.path.join(scratch.name, "program")
        subprocess.run([compiler, *flags, "-x", "c", "-", "-o", path], input=text, text=True, check=True)
        return path

    def running(self, *command, **options_):
        """A process that is past its loader, as it says by a line, and waits until the test ends."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options_)
        self.addCleanup(process.communicate)  # closes its input, which ends it
        self.assertEqual(process.stdout.readline(), "here\n")
        return process

    WAITS = """
        #include <stdio.h>
        #include <stdlib.h>
        int main(void) {
          free(malloc(9));
          puts("here");
          fflush(stdout);
          getchar();
          return 0;
        }
        """
    LOOP = ("sh", "-c", "echo here; read line")

    def test_this_machine(self):
        run = self.doctor()
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, r"\d+ costs you something, \d+ worth knowing, \d+ fine\.\n$")
        self.assertNotIn("\033", run.stdout)
        _, subject = self.findings()
        self.assertEqual(subject, {"kind": "machine", "process": None, "command": None, "exit_code": None})

    def test_a_preload_that_does_not_exist_and_options_that_are_wrong(self):
        found, _ = self.findings(env=dict(os.environ, LD_PRELOAD="/nonexistent/libspanalloc.so", SPANALLOC_DECAY="5"))
        self.assertIn("/nonexistent/libspanalloc.so, which is not there", found["preload"][0]["seen"])
        self.assertEqual(found["options"][0]["do"], "Did you mean SPANALLOC_DECAY_MS?")

    def test_a_process_of_ours(self):
        process = self.running(COMMAND, "run", "--", *self.LOOP)
        found, subject = self.findings(str(process.pid))
        self.assertEqual((subject["kind"], subject["process"]), ("process", process.pid))
        self.assertEqual([each["severity"] for each in found["malloc"]], [FINE])
        self.assertIn("libspanalloc.so", found["malloc"][0]["seen"])
        self.assertNotIn("preload", found)
        self.assertIn("SPANALLOC_BACKGROUND", found["idle"][0]["seen"])

    def test_a_process_of_another_config(self):
        process = self.running(COMMAND, "run", "--config", "scalloc", "--", *self.LOOP)
        found, _ = self.findings(str(process.pid))
        self.assertIn("config scalloc", found["malloc"][0]["seen"])
        self.assertNotIn("idle", found)

    def test_a_process_on_glibc(self):
        environment_ = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        found, _ = self.findings(str(self.running(*self.LOOP, env=environment_).pid))
        self.assertEqual([each["severity"] for each in found["malloc"]], [KNOW])
        self.assertIn("spanalloc is not in it", found["malloc"][0]["seen"])

    def test_a_process_whose_preload_did_not_take(self):
        library = os.path.join(LIBRARIES, "libspanalloc.so")
        static = self.running(self.compiled(self.WAITS, "-static"), env=dict(os.environ, LD_PRELOAD=library))
        found, _ = self.findings(str(static.pid))
        self.assertEqual((found["malloc"][0]["severity"], found["preload"][0]["severity"]), (COSTS, COSTS))
        self.assertIn("linked statically", found["preload"][0]["why"])
        gone = self.running(*self.LOOP, env=dict(os.environ, LD_PRELOAD="/nonexistent/libspanalloc.so"),
                            stderr=subprocess.DEVNULL)
        found, _ = self.findings(str(gone.pid))
        self.assertTrue(any("the file is not there" in each["why"] for each in found["preload"]), found["preload"])

    # A library with a malloc of its own, as Redis is linked with jemalloc.
    OTHER = """
        static char room[1 << 20];
        static unsigned long used;
        void* malloc(unsigned long size) { void* p = room + used; used += (size + 15) & ~15ul; return p; }
        void free(void* p) { (void)p; }
        int mallctl(void) { return 0; }
        """
    # Writes over its environment, as Redis, PostgreSQL and nginx do.
    BLANKS = """
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        extern char** environ;
        int mallctl(void);
        int main(void) {
          for (char** each = environ; *each; ++each) memset(*each, 0, strlen(*each));
          free(malloc(9));
          puts("here");
          fflush(stdout);
          getchar();
          return mallctl();
        }
        """

    def test_a_program_that_has_written_over_its_environment(self):
        """Which malloc it uses is known by what is loaded."""
        other = self.compiled(self.OTHER, "-shared", "-fPIC", "-fno-builtin", "-Wl,-soname,libother.so")
        library = os.path.join(os.path.dirname(other), "libother.so")
        os.rename(other, library)
        path = self.compiled(self.BLANKS, "-Wl,--no-as-needed", library, f"-Wl,-rpath,{os.path.dirname(library)}")
        ours = os.path.join(LIBRARIES, "libspanalloc.so")
        for preloaded, severities, uses in ((ours, [FINE, KNOW], "libspanalloc.so"), ("", [KNOW], "libother.so")):
            process = self.running(path, env=dict(os.environ, LD_PRELOAD=preloaded))
            try:
                memory.Memory(process.pid).read(4096, 1)
            except memory.CannotRead as error:
                self.skipTest(str(error))
            found, _ = self.findings(str(process.pid))
            self.assertEqual(sorted(each["severity"] for each in found["malloc"]), sorted(severities), found["malloc"])
            said = "\n".join(each["seen"] for each in found["malloc"])
            self.assertRegex(said, f"malloc is that of .*{re.escape(uses)}")
            self.assertIn("written over its environment", found["unreadable"][0]["seen"])
            self.assertNotIn("preload", found)

    # 20,000 blocks of 1,000 bytes, of which one in `argv[1]` stays.
    FREES = """
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        static char* blocks[20000];
        int main(int argc, char** argv) {
          for (int i = 0; i < 20000; ++i) memset(blocks[i] = malloc(1000), i, 1000);
          for (int i = 0; i < 20000; ++i) {
            if (i % atoi(argv[1]) != 0) free(blocks[i]);
          }
          puts("here");
          fflush(stdout);
          getchar();
          return argc == 9;
        }
        """

    def test_classes_that_are_half_empty(self):
        path = self.compiled(self.FREES)
        for one_in, severity in (("10", COSTS), ("1", FINE)):
            found, _ = self.findings(str(self.running(COMMAND, "run", "--", path, one_in).pid))
            classes, = found["classes"]
            self.assertEqual(classes["severity"], severity, classes)
            self.assertEqual("1024 bytes (2," in classes["seen"], severity == COSTS, classes)
        found, _ = self.findings(str(self.running(COMMAND, "run", "--config", "scalloc", "--", path, "10").pid))
        self.assertNotIn("classes", found)

    def test_heaps_of_the_programs_own(self):
        for config, size, severity in (("standard", 30_000_000, KNOW), ("scalloc", 30_000_000, KNOW),
                                       ("standard", 100, FINE)):
            running = subprocess.Popen(
                [COMMAND, "run", "--config", config, "--", os.environ["SPANALLOC_TEST_OWN_HEAPS"], f"queries={size},1",
                 "many=1000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.addCleanup(running.communicate)
            self.assertEqual(running.stdout.readline(), "ready\n")
            found, _ = self.findings(str(running.pid))
            heaps_, = found["heaps"]
            self.assertEqual(heaps_["severity"], severity, heaps_)
            self.assertIn("1,001 first-class heaps have taken", heaps_["seen"])
            self.assertEqual("The largest, by addresses: queries 28" in heaps_["seen"], severity == KNOW, heaps_)
        found, _ = self.findings(str(self.running(COMMAND, "run", "--", "sh", "-c", "echo here; read x").pid))
        self.assertNotIn("heaps", found)

    def test_no_such_process(self):
        run = self.doctor("999999999")
        self.assertEqual((run.returncode, run.stdout), (125, ""))
        self.assertEqual(run.stderr, "spanalloc: there is no process 999999999, or /proc does not show it\n")

    def test_a_program_whose_name_is_a_number(self):
        for words in (("--", "999999999"), ("--json", "--", "999999999"), ("--", "999999999", "--json")):
            run = self.doctor(*words)
            self.assertEqual((run.returncode, run.stdout), (127, ""), words)
            self.assertEqual(run.stderr, "spanalloc: 999999999: command not found\n")
        with tempfile.TemporaryDirectory(prefix="spanalloc-doctor-") as folder:
            os.symlink(shutil.which("sh"), os.path.join(folder, "1"))
            path = f"{folder}:{os.environ['PATH']}"
            _, subject = self.findings("--", "1", "-c", "exit 5", code=5, env=dict(os.environ, PATH=path))
        self.assertEqual((subject["kind"], subject["command"]), ("program", ["1", "-c", "exit 5"]))

    def test_options_may_stand_behind_a_process_but_not_behind_a_program(self):
        process = self.running(*self.LOOP)
        for words in (("--json",), ("--json", "--config", "scalloc"), ("-c", "scalloc", "--json")):
            run = self.doctor(str(process.pid), *words)
            self.assertEqual((run.returncode, run.stderr), (0, ""), words)
            subject = json.loads(run.stdout)["subject"]
            self.assertEqual((subject["kind"], subject["process"]), ("process", process.pid))
        for words in (("true",), ("--nonesuch",), ("--", "true"), ("--json", "1")):
            run = self.doctor(str(process.pid), *words)
            self.assertEqual((run.returncode, run.stdout), (2, ""), words)
        self.assertIn("behind a process's number there are options alone: 1", run.stderr)
        run = self.doctor("--", str(process.pid), "--json")  # a program of that name
        self.assertEqual((run.returncode, run.stdout), (127, ""))
        run = self.doctor("echo", "--json")
        self.assertEqual((run.returncode, run.stdout), (0, "--json\n"))

    # A program is looked at while it runs: these run until they have been, which their own files tell.
    SEEN = """
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        int main(int argc, char** argv) {
          /* The doctor reads a process within moments; a slow machine only makes it later. */
          struct timespec pause = {0, 1000000};
          for (int i = 0; i < 300; ++i) nanosleep(&pause, NULL);
          free(malloc(9));
          puts("its own words");
          return argc > 1 ? atoi(argv[1]) : 0;
        }
        """

    def test_a_program(self):
        path = self.compiled(self.SEEN)
        run = self.doctor("--", path, "37")
        self.assertEqual((run.returncode, run.stdout), (37, "its own words\n"))
        self.assertIn("fine.", run.stderr)
        found, subject = self.findings("--", path, "7", code=7)
        self.assertEqual((subject["kind"], subject["command"], subject["exit_code"]), ("program", [path, "7"], 7))
        if subject["process"] is not None:  # else the machine was too busy to look in time, and the command says so
            self.assertEqual([each["severity"] for each in found["malloc"]], [FINE])
            self.assertIn("libspanalloc.so", found["malloc"][0]["seen"])

    def test_a_static_program_and_one_with_a_malloc_of_its_own(self):
        found, _ = self.findings("--", self.compiled(self.SEEN, "-static"))
        self.assertEqual(found["malloc"][0]["severity"], COSTS)
        self.assertIn("linked statically", found["malloc"][0]["seen"])
        seen = self.SEEN.replace("#include <stdlib.h>", "int atoi(const char*);")
        found, _ = self.findings("--", self.compiled(self.OTHER + seen, "-fno-builtin"))
        self.assertEqual(found["malloc"][0]["severity"], COSTS)
        self.assertIn("has a malloc of its own", found["malloc"][0]["seen"])

    def test_a_program_that_a_signal_ends(self):
        run = self.doctor("--", "sh", "-c", "kill -TERM $$")
        self.assertEqual(run.returncode, 128 + signal.SIGTERM)

    def test_a_program_that_is_too_short_or_not_is_never_judged_without_its_libraries(self):
        for _ in range(10):
            found, subject = self.findings("--", "true")
            self.assertEqual(subject["exit_code"], 0)
            if subject["process"] is None:
                self.assertTrue(any("ended before" in each["seen"] for each in found["program"]))
            else:
                self.assertEqual([each["severity"] for each in found["malloc"]], [FINE])
            self.assertNotIn("preload", found)

    def test_a_script_is_said_to_be_one(self):
        with tempfile.TemporaryDirectory(prefix="spanalloc-doctor-") as folder:
            script = os.path.join(folder, "script")
            with open(script, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\nexit 3\n")
            os.chmod(script, 0o755)
            found, _ = self.findings("--", script, code=3)
        self.assertTrue(any("is a script for /bin/sh" in each["seen"] for each in found["program"]))

    def test_what_cannot_be_run(self):
        for command, code, text in (("/nonexistent/program", 127, "command not found"),
                                    ("/etc/passwd", 126, "cannot be executed")):
            run = self.doctor("--", command)
            self.assertEqual((run.returncode, run.stdout), (code, ""))
            self.assertIn(f"spanalloc: {command}: {text}", run.stderr)
        self.assertEqual(self.doctor("--config", "nonesuch", "--", "true").returncode, 125)
        self.assertEqual(self.doctor("--nonesuch").returncode, 2)

    def test_help(self):
        run = self.doctor("--help")
        self.assertEqual(run.returncode, 0)
        self.assertIn("Usage: spanalloc doctor", run.stdout)


if __name__ == "__main__":
    unittest.main()
