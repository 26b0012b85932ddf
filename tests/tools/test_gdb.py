"""The commands of gdb (scripts/gdb/spanalloc.py), on a process and on a core file, with libraries that have no symbols
but those that are exported; and that they are installed where gdb finds them."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
BUILD = os.path.dirname(os.path.dirname(os.environ["SPANALLOC_TEST_COMMAND"]))
PROGRAM = os.environ["SPANALLOC_TEST_DEBUGGED_HEAP"]
STATIC = os.environ.get("SPANALLOC_TEST_STATIC_DEBUGGED_HEAP")
SCRIPT = os.path.join(SOURCE, "scripts", "gdb", "spanalloc.py")
HELD, FREED = 0x0123456789ABCDEF, 0x0FEDCBA987654321
BLOCKS = ("kept", "newest", "before", "remote", "others", "ended", "large", "outside", "freed_large")
IN_VAIN = re.compile(r"ptrace|not permitted|Couldn't get registers|Python scripting is not supported", re.IGNORECASE)


def gdb(*commands, program=(), script=SCRIPT, options=()):
    """What gdb prints; a mark before what each command does."""
    words = ["gdb", "-nx", "-batch", *options]
    for command in ("set pagination off", "set width 0", *([f"source {script}"] if script else ()), *commands):
        words += ["-ex", f"echo \\n<{command.split('(')[0]}>\\n", "-ex", command]
    environment = dict(os.environ, SPANALLOC_CLOCK="still", DEBUGINFOD_URLS="", PYTHONDONTWRITEBYTECODE="1")
    environment.pop("LD_PRELOAD", None)
    run = subprocess.run([*words, *program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, check=False, env=environment, timeout=600)
    return run.stdout


def answers(text):
    """[(command, what it printed)] of gdb's output."""
    pieces = re.split(r"\n<(.*)>\n", text)
    return list(zip(pieces[1::2], pieces[2::2]))


class Session:
    """One run of the program under gdb, to where its heap stands. `at`: {name: address}; `of`: {name: what is said of
    its block}; `says`: {command: its answer}."""

    def __init__(self, *commands, library="libspanalloc.so", program=PROGRAM, arguments="", options=()):
        wrapper = f"env LD_PRELOAD={os.path.join(BUILD, 'lib', library)}" if library else "env"
        asked = [f"spanalloc block *(char**)&{name}" for name in BLOCKS]
        self.text = gdb(f"set exec-wrapper {wrapper}", "break stands", f"run {arguments}", *asked, *commands, "kill",
                        program=(program,), options=options)
        self.at = {name: int(address, 16) for name, address in re.findall(r"^(\w+) (0x[0-9a-f]+)$", self.text, re.M)}
        found = answers(self.text)
        first = next((n for n, (command, _) in enumerate(found) if command.startswith("run")), 0) + 1
        self.of = {name: answer for name, (_, answer) in zip(BLOCKS, found[first:])}
        self.says = {command: answer for command, (_, answer) in zip(commands, found[first + len(BLOCKS):])}


class Debugging(unittest.TestCase):
    def setUp(self):
        if not shutil.which("gdb"):
            self.skipTest("gdb is not installed")

    def session(self, *commands, **options):
        session = Session(*commands, **options)
        if set(session.at) != set(BLOCKS) and IN_VAIN.search(session.text):
            self.skipTest(f"gdb can run no program here: {IN_VAIN.search(session.text)[0]}")
        self.assertEqual(set(session.at), set(BLOCKS), session.text)
        return session

    def stripped(self, program):
        """The program without symbols, but for its own variables and stands()."""
        folder = tempfile.mkdtemp(prefix="spanalloc-gdb-")
        self.addCleanup(shutil.rmtree, folder)
        path = shutil.copy(program, folder)
        keep = [word for name in (*BLOCKS, "stands") for word in ("-K", name)]
        subprocess.run([os.environ.get("STRIP") or "strip", *keep, path], check=True)
        return path

    def assert_knows_each_block(self, session, stops=True):
        at, of = session.at, session.of
        start = r"block   {:#x}, 336 bytes \(class 21\), block \d+ of 194\n"
        for name in ("kept", "others", "newest", "before", "remote"):
            self.assertRegex(of[name], start.format(at[name]))
        self.assertIn("\nstate   live\n", of["kept"])
        self.assertRegex(of["kept"], r"\nholds .*\nspan    \d+ at 0x[0-9a-f]+, 64\.0 KiB, owned, thread \d+")
        self.assertRegex(of["newest"], r"\nstate   free: on the span's free list, 1 of \d+\n")
        self.assertIn(f"\nlink    valid: to {at['before']:#x}\n", of["newest"])
        self.assertRegex(of["before"], r"\nstate   free: on the span's free list, 2 of \d+\nlink    valid: ")
        self.assertIn("\nstate   free: on the span's remote list (freed by other threads), 1 of 1\n"
                      "link    valid: the last one of its list\n", of["remote"])
        before, after = at["newest"] - 336, at["newest"] + 336
        self.assertRegex(of["newest"], rf"\nbefore  {before:#x}  live\nafter   {after:#x}  live\n")
        self.assertIn("\nstate   live\n", of["others"])
        threads = [re.search(r"owned, thread (\d+)", of[name])[1] for name in ("kept", "others")]
        self.assertNotEqual(*threads)
        if stops:
            self.assertRegex(of["others"], rf"owned, thread {threads[1]} \(other\)")
        self.assertRegex(of["ended"], r"704 bytes .*\nstate   live\nholds .*\n.*, abandoned; of its \d+ blocks \d+ are free")
        self.assertRegex(of["large"], rf"block   {at['large']:#x}, 2\d{{5}} bytes .*\nstate   live: it is the only "
                                      r"block of its span\nholds .*\nspan    \d+ at 0x[0-9a-f]+, 256 KiB, in use")
        self.assertRegex(of["outside"], rf"block   {at['outside']:#x}, \d+ bytes\nstate   live: it has a mapping of ")
        self.assertIn("lies in a span that is free: no block is there", of["freed_large"])


class ProcessTest(Debugging):
    def test_a_library_that_is_preloaded(self):
        inside, around = "spanalloc block *(char**)&kept + 20", "spanalloc block &kept"
        held, freed, none = (f"spanalloc find {value:#x}" for value in (HELD, FREED, 0x1122334455667788))
        odd = ("spanalloc block", "spanalloc find", "spanalloc block nonesuch", "spanalloc", "spanalloc block 0",
               "spanalloc block -1", "spanalloc blck 1", "spanalloc heap 1")
        session = self.session(inside, around, held, freed, none, "spanalloc heap", *odd)
        self.assert_knows_each_block(session)
        at, says = session.at, session.says
        self.assertIn(f"; {at['kept'] + 20:#x} is 20 bytes behind its start\nstate   live\n", says[inside])
        self.assertIn("is no address of this heap", says[around])
        self.assertEqual(re.findall(r"0x[0-9a-f]+: at byte (\d+) of the block (0x[0-9a-f]+)", says[held]),
                         [("32", hex(at["kept"])), ("100000", hex(at["large"])), ("4096", hex(at["outside"]))])
        self.assertEqual(says[freed].strip(), "(and 1 times in free blocks)")
        self.assertEqual(says[none].strip(), "no live block holds 0x1122334455667788")
        self.assertRegex(says["spanalloc heap"], r"debugged_heap +PID \d+ +2 threads +spanalloc [\d.]+ \(standard\)")
        self.assertRegex(says["spanalloc heap"], r"block +spans +live blocks +live(.*\n)+ *336 B +2 +98 ")
        for command in odd[:2]:
            self.assertIn("Which one?", says[command])
        self.assertIn('No symbol "nonesuch"', says["spanalloc block nonesuch"])
        self.assertIn("spanalloc find VALUE", says["spanalloc"])
        self.assertEqual(says["spanalloc blck 1"].strip(), 'There is no "spanalloc blck". Try "help spanalloc".')
        self.assertEqual(says["spanalloc heap 1"].strip(), "spanalloc heap takes no arguments")
        for command in odd[4:6]:
            self.assertIn("is no address of this heap", says[command])

    def test_programs_of_other_languages(self):
        """The address is the same whatever language gdb takes the expression for."""
        languages = ("c", "c++", "rust", "ada", "go", "fortran", "d", "pascal", "modula-2", "objective-c")
        asked = [command for language in languages
                 for command in (f"set language {language}", "spanalloc block $k", "spanalloc find $h")]
        # Without debug information of the C library, whose types gdb would find.
        text = self.session("set var $k = *(char**)&kept", f"set var $h = {HELD:#x}", *asked,
                            options=("-iex", "set debug-file-directory /nonexistent")).text
        found = [answer for command, answer in answers(text) if command == "spanalloc block $k"]
        self.assertEqual(len(found), len(languages))
        for language, answer in zip(languages, found):
            self.assertRegex(answer, r"^block   0x[0-9a-f]+, 336 bytes.*\nstate   live\n", language)
        held = [answer for command, answer in answers(text) if command == "spanalloc find $h"]
        for language, answer in zip(languages, held):
            self.assertEqual(answer.count("of the block"), 3, (language, answer))

    def test_values_of_every_kind(self):
        asked = ("*(char(*)[336])$k", "(char*)$k", "(long&)*(long*)&kept", "*(long*)&kept", "(unsigned long)$k")
        session = self.session("set language c++", "set var $k = *(char**)&kept",
                               *(f"spanalloc block {expression}" for expression in asked), "spanalloc block stands",
                               "spanalloc block (float)1", "spanalloc block $_siginfo", "spanalloc block $nothing")
        found = [answer for command, answer in answers(session.text) if command.startswith("spanalloc block")]
        for expression, answer in zip(asked, found[len(BLOCKS):]):
            self.assertRegex(answer, r"^block   0x[0-9a-f]+, 336 bytes", expression)
        for answer in found[len(BLOCKS) + len(asked):]:
            self.assertNotIn("Python Exception", answer)
            self.assertNotIn("Traceback", answer)

    def test_a_thread_that_runs(self):
        """Its number is not known; all else is."""
        session = self.session("spanalloc heap", "info threads", options=("-iex", "set non-stop on"))
        self.assertIn("(running)", session.says["info threads"])
        self.assertRegex(session.of["kept"], r"\nstate   live\n(.*\n)*span .* owned, thread \d+")
        self.assertRegex(session.of["others"], r"\nstate   live\n(.*\n)*span .* owned, a thread without a number")
        self.assertIn("(standard)", session.says["spanalloc heap"])
        self.assertNotIn("Python Exception", session.text)

    def test_a_static_program(self):
        if not STATIC:
            self.skipTest("this build has no static library")
        self.assert_knows_each_block(self.session(library=None, program=self.stripped(STATIC)), stops=False)

    def test_a_free_list_that_is_damaged(self):
        session = self.session(arguments="damage")
        at, of = session.at, session.of
        self.assertRegex(of["newest"], r"\nlink    DAMAGED: the first word, 0x206e657474697277, is no link")
        for name in ("newest", "kept", "before"):
            self.assertIn(f"\ndamage  the span's free list ends at {at['newest']:#x}, whose first word is no link\n",
                          of[name])
        # What is behind the damage is told by its first word.
        self.assertIn("\nstate   free, by its first word: the lists of its span are damaged\n", of["before"])
        self.assertIn("\nstate   live, by its first word: the lists of its span are damaged\n", of["kept"])

    def test_what_a_block_holds(self):
        session = self.session(arguments="damage")
        self.assertIn("|written after its free..|", session.of["newest"])

    def test_another_engine(self):
        session = self.session("spanalloc heap", "spanalloc find 1", library="libspanalloc-scalloc.so")
        for answer in (session.of["kept"], session.says["spanalloc find 1"]):
            self.assertIn("the library scalloc does not tell where its records are", answer)
        self.assertIn("(scalloc)", session.says["spanalloc heap"])
        self.assertNotIn("/proc", session.says["spanalloc heap"])

    def test_without_our_library_and_without_a_process(self):
        session = self.session("spanalloc heap", library=None)
        self.assertIn("does not run on a spanalloc library", session.of["kept"])
        self.assertIn("does not run on a spanalloc library", session.says["spanalloc heap"])
        self.assertIn("There is no process, and no core file", gdb("spanalloc heap"))


class CoreFileTest(Debugging):
    def test_a_core_file_by_gdb(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "core")
            session = self.session(f"generate-core-file {path}", "info threads")
            asked = [f"spanalloc block {session.at[name]:#x}" for name in BLOCKS]
            for program in ((PROGRAM, path), ("-c", path)):  # also where gdb has no program
                text = gdb(*asked, f"spanalloc find {HELD:#x}", program=program)
                found = Session.__new__(Session)
                found.at = session.at
                found.of = {name: answer for name, (_, answer) in zip(BLOCKS, answers(text)[-len(BLOCKS) - 1:])}
                self.assert_knows_each_block(found, stops=False)
                self.assertEqual(text.count("of the block"), 3)
            command = [os.environ["SPANALLOC_TEST_COMMAND"], "top", "--core", path]
            table = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            of_core = json.loads(subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True).stdout)
            if os.uname().machine == "x86_64":
                tids = set(map(int, re.findall(r"\(LWP (\d+)\)", session.says["info threads"])))
                self.assertEqual({thread["tid"] for thread in of_core["threads"]}, tids)
                self.assertEqual(len(tids), 2)
            self.assertRegex(table, r"debugged_heap +PID \d+ +2 threads(.*\n)+ *336 B +2 +98 ")


def installed(folder):
    """(the prefix, the folder of the libraries in it, the name of the library's file)."""
    prefix = os.path.join(folder, "prefix")
    subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], stdout=subprocess.DEVNULL, check=True)
    lib = next(where for where, _, files in os.walk(prefix) if "libspanalloc.so" in files)
    return prefix, lib, os.path.basename(os.path.realpath(os.path.join(lib, "libspanalloc.so")))


class InstalledTest(unittest.TestCase):
    def test_each_library_has_it_beside_it(self):
        with tempfile.TemporaryDirectory() as folder:
            _, lib, real = installed(folder)
            scripts = [name for name in os.listdir(lib) if name.endswith("-gdb.py")]
            self.assertIn(f"{real}-gdb.py", scripts)
            for name in scripts:
                self.assertTrue(os.path.exists(os.path.join(lib, name[:-len("-gdb.py")])), name)


class LoadedTest(Debugging):
    def test_gdb_loads_it_with_the_library(self):
        """Where its path is safe by the user's word; `source` does without. No source tree is needed."""
        with tempfile.TemporaryDirectory() as folder:
            prefix, lib, real = installed(folder)
            wrapper = f"set exec-wrapper env LD_PRELOAD={os.path.join(lib, 'libspanalloc.so')}"
            asked = (wrapper, "break stands", "run", "spanalloc block *(char**)&kept", "kill")
            text = gdb(*asked, program=(PROGRAM,), script=None, options=("-iex", f"add-auto-load-safe-path {lib}"))
            if IN_VAIN.search(text) and "state   live" not in text:
                self.skipTest("gdb can run no program here")
            self.assertIn("\nstate   live\n", text)
            text = gdb(*asked, program=(PROGRAM,), script=os.path.join(lib, f"{real}-gdb.py"))
            self.assertIn("\nstate   live\n", text)
            self.assertEqual([name for _, _, names in os.walk(prefix) for name in names if name.endswith(".pyc")], [])


if __name__ == "__main__":
    sys.exit(unittest.main())
