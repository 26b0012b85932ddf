"""The `spanalloc` command: what it passes through, what it refuses, what it reports."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.environ["SPANALLOC_TEST_SOURCE"], "tools"))

from spanalloc_cli import compare, libraries  # noqa: E402

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
BUILD = os.path.dirname(os.path.dirname(COMMAND))
COMPLETION = os.path.join(os.environ["SPANALLOC_TEST_SOURCE"], "tools", "completion")
STANDARD = os.path.join(BUILD, "lib", "libspanalloc.so")
# Of one run with --json, as docs/man/spanalloc.1 describes it.
RUN_KEYS = {"exit_code", "signal", "timed_out", "wall_s", "user_s", "system_s", "peak_kib", "peak_rss_kib",
            "peak_page_tables_kib", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "processes"}


def spanalloc(*arguments, **options):
    options.setdefault("timeout", 600)
    return subprocess.run(
        [COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        check=False, **options,
    )


def launcher_in(folder):
    """A copy of the launcher that looks for its libraries in the folder."""
    with open(COMMAND, encoding="utf-8") as file:
        launcher = file.read()
    if os.path.join(BUILD, "lib") not in launcher:
        raise AssertionError(f"{COMMAND} does not name its folder of libraries")
    copy = os.path.join(folder, "spanalloc")
    with open(copy, "w", encoding="utf-8") as file:
        file.write(launcher.replace(os.path.join(BUILD, "lib"), folder))
    os.chmod(copy, 0o755)
    return copy


class RunTest(unittest.TestCase):
    def test_exit_code_is_the_programs(self):
        self.assertEqual(spanalloc("run", "--", "sh", "-c", "exit 37").returncode, 37)

    def test_double_dash_is_optional(self):
        self.assertEqual(spanalloc("run", "sh", "-c", "exit 5").returncode, 5)

    def test_signal_is_the_programs(self):
        run = spanalloc("run", "--", "sh", "-c", "kill -TERM $$")
        self.assertEqual(run.returncode, -signal.SIGTERM)

    def test_is_the_same_process(self):
        with subprocess.Popen([COMMAND, "run", "--", "sh", "-c", "echo $$"], stdout=subprocess.PIPE, text=True) as run:
            self.assertEqual(int(run.stdout.read()), run.pid)

    def test_broken_pipe_ends_the_program(self):
        # A program that inherits an ignored SIGPIPE would complain instead of ending quietly.
        run = spanalloc("run", "--", "sh", "-c", "kill -PIPE $$; exit 9")
        self.assertEqual(run.returncode, -signal.SIGPIPE)

    def test_library_is_the_first_preload(self):
        run = spanalloc("run", "--", "sh", "-c", "echo $LD_PRELOAD", env=dict(os.environ, LD_PRELOAD="libm.so.6"))
        self.assertEqual(run.stdout.strip(), f"{STANDARD}:libm.so.6")

    def test_program_is_on_our_malloc(self):
        run = spanalloc("run", "--", "grep", "-c", "libspanalloc.so", "/proc/self/maps")
        self.assertGreater(int(run.stdout), 0)

    def test_chosen_config(self):
        for form in (("--config", "scalloc"), ("--config=scalloc",), ("-c", "scalloc")):
            run = spanalloc("run", *form, "--", "sh", "-c", "echo $LD_PRELOAD")
            self.assertTrue(run.stdout.strip().endswith("/libspanalloc-scalloc.so"), run)

    def test_old_names_of_configs(self):
        for old, new in (("oopsla15", "scalloc"), ("superblock", "a2alloc")):
            run = spanalloc("run", "--config", old, "--", "sh", "-c", "echo $LD_PRELOAD")
            self.assertTrue(run.stdout.strip().endswith(f"/libspanalloc-{new}.so"), run)
            link, library = (os.path.join(BUILD, "lib", f"libspanalloc-{name}.so") for name in (old, new))
            self.assertEqual(os.path.realpath(link), os.path.realpath(library))
            listed = json.loads(spanalloc("list", "--json").stdout)
            self.assertNotIn(old, [entry["name"] for entry in listed["allocators"]])

    def test_what_an_older_version_left_is_not_listed(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("libspanalloc.so", "libspanalloc-scalloc.so", "libspanalloc-oopsla15.so",
                         "libspanalloc-oopsla15-clab.so", "libspanalloc-scalloc-clab.so"):
                open(os.path.join(folder, name), "w", encoding="ascii").close()
            found = libraries.our_configs(libraries.Places(folder, folder))
        self.assertEqual(list(found), ["standard", "scalloc", "scalloc-clab"])

    def test_python_variables_reach_the_program(self):
        run = spanalloc("run", "--", "sh", "-c", "echo $PYTHONMALLOC", env=dict(os.environ, PYTHONMALLOC="malloc"))
        self.assertEqual(run.stdout.strip(), "malloc")

    def test_unknown_config_lists_the_known_ones(self):
        run = spanalloc("run", "--config", "nonesuch", "--", "true")
        self.assertEqual(run.returncode, 125)
        for text in ("nonesuch", "standard", "scalloc"):
            self.assertIn(text, run.stderr)

    def test_config_is_a_name_not_a_path(self):
        self.assertEqual(spanalloc("run", "--config", "../lib/x", "--", "true").returncode, 125)

    def test_missing_program(self):
        run = spanalloc("run", "--", "/nonexistent/program")
        self.assertEqual((run.returncode, run.stderr), (127, "spanalloc: /nonexistent/program: command not found\n"))

    def test_not_executable(self):
        run = spanalloc("run", "--", "/etc/passwd")
        self.assertEqual(run.returncode, 126)
        self.assertIn("/etc/passwd", run.stderr)

    def test_no_program_is_a_usage_error(self):
        run = spanalloc("run")
        self.assertEqual(run.returncode, 2)
        self.assertIn("COMMAND", run.stderr)

    def test_unknown_option_is_a_usage_error(self):
        self.assertEqual(spanalloc("run", "--nonesuch", "--", "true").returncode, 2)

    def test_library_that_is_not_built(self):
        """A launcher in a tree without libraries says how to build them."""
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([launcher_in(folder), "run", "--", "true"], stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(run.returncode, 125)
        self.assertIn("cmake --build --preset release", run.stderr)

    def test_help(self):
        for arguments in ([], ["run"], ["compare"], ["doctor"], ["top"], ["list"]):
            run = spanalloc(*arguments, "--help")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn("Usage: spanalloc", run.stdout)


class CompareTest(unittest.TestCase):
    def test_where_no_terminal_shows_it_a_line_every_ten_seconds_says_how_far_it_is(self):
        now, seconds_a_run = 100.0, 4.0
        with mock.patch.object(compare.time, "monotonic", lambda: now), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            advance = compare.seldom(8)
            for number in range(8):
                advance(f"run {number}")
                now += seconds_a_run
                advance(None)
        # Runs begin after 0, 4, 8, 12, ... seconds.
        self.assertEqual(said.getvalue(), "[3/8] run 3\n[6/8] run 6\n")

    def table(self, *arguments, command=("true",), rounds=3):
        return spanalloc("compare", "-n", str(rounds), *arguments, "--", *command)

    def compare(self, *arguments, command=("true",), rounds=3):
        """The run with --json, and what it printed; None where it printed nothing."""
        run = self.table("--json", *arguments, command=command, rounds=rounds)
        return run, json.loads(run.stdout) if run.stdout else None

    def test_a_short_program_is_called_short(self):
        for seconds, short in ((0, True), (0.2, False)):
            run = self.table("--with", "standard", command=("sleep", str(seconds)), rounds=1)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual("most of that is its start" in run.stdout, short, run.stdout)
            self.assertIn("spanalloc standard: libspanalloc.so", run.stdout)

    def test_json_holds_every_run(self):
        run, record = self.compare("--with", "scalloc")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(set(record), {"format", "spanalloc", "command", "rounds", "machine", "order", "rows"})
        self.assertEqual((record["format"], record["command"], record["rounds"]), (1, ["true"], 3))
        self.assertEqual(f"spanalloc {record['spanalloc']}", spanalloc("--version").stdout.strip())
        self.assertEqual([row["name"] for row in record["rows"]], ["glibc", "standard", "scalloc"])
        for row in record["rows"]:
            self.assertEqual(set(row), {"name", "path", "ours", "problem", "malloc_defined_by", "processes_verified",
                                        "processes_looked_at", "median", "ratio_to_glibc", "runs"})
            self.assertIsNone(row["problem"])
            self.assertEqual(os.path.realpath(row["malloc_defined_by"]), row["path"])
            self.assertEqual(len(row["runs"]), 3)
            self.assertEqual(set(row["median"]), {"wall_s", "cpu_s", "peak_kib", "page_faults"})
            for one in row["runs"]:
                self.assertGreater(set(one), RUN_KEYS)
                self.assertEqual((one["exit_code"], one["signal"]), (0, 0))
                self.assertGreater(one["peak_kib"], 100)
        self.assertEqual(record["rows"][0]["ratio_to_glibc"]["wall_s"], 1)

    def test_a2alloc_takes_part_only_where_it_is_named(self):
        _, record = self.compare(rounds=1)
        names = [row["name"] for row in record["rows"]]
        self.assertEqual(names[:3], ["glibc", "standard", "scalloc"])
        self.assertEqual(names[1:1 + len(libraries.COMPARED_CONFIGS)], list(libraries.COMPARED_CONFIGS))
        self.assertNotIn("a2alloc", names)
        _, record = self.compare("--with", "a2alloc", rounds=1)
        self.assertEqual([row["name"] for row in record["rows"]], ["glibc", "standard", "a2alloc"])
        self.assertIsNone(record["rows"][2]["problem"])

    def test_order_rotates(self):
        _, record = self.compare("--with", "scalloc")
        first = ["glibc", "standard", "scalloc"]
        self.assertEqual(record["order"], [first, first[1:] + first[:1], first[2:] + first[:2]])

    def test_table_without_colours(self):
        run = self.table("--with", "scalloc", rounds=1)
        for text in ("allocator", "glibc", "spanalloc standard", "spanalloc scalloc", "peak memory", "page faults"):
            self.assertIn(text, run.stdout)
        self.assertNotIn("\033", run.stdout + run.stderr)

    def test_a_log_is_not_filled_with_a_line_a_run(self):
        began = time.monotonic()
        run = self.table("--with", "scalloc", rounds=20)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertLessEqual(run.stderr.count("\n"), (time.monotonic() - began) // 10)

    def test_row_of_another_library(self):
        run, record = self.compare("--with", f"mine={STANDARD}", rounds=1)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([row["name"] for row in record["rows"]], ["glibc", "standard", "mine"])

    def test_object_without_malloc_is_not_believed(self):
        libm = next(p for p in ("/lib/x86_64-linux-gnu/libm.so.6", "/lib/aarch64-linux-gnu/libm.so.6", "/lib64/libm.so.6")
                    if os.path.exists(p))
        _, record = self.compare("--with", f"fake={libm}", rounds=1)
        fake = record["rows"][2]
        self.assertIn("malloc is in", fake["problem"])
        self.assertEqual(fake["runs"], [])

    def test_static_program_is_not_believed(self):
        compiler = shutil.which("cc") or shutil.which("gcc")
        if not compiler:
            self.skipTest("no C compiler")
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "program")
            subprocess.run([compiler, "-static", "-x", "c", "-", "-o", program], input=b"int main(void){return 0;}", check=True)
            run, record = self.compare(command=(program,), rounds=1)
        self.assertEqual(run.returncode, 1)
        self.assertIn("not preloaded", run.stderr)
        self.assertIsNone(record)

    def test_crash_under_one_allocator_is_a_row_that_says_so(self):
        command = ("sh", "-c", "case $LD_PRELOAD in *libspanalloc-scalloc*) kill -SEGV $$ ;; esac")
        run, record = self.compare("--with", "scalloc", command=command, rounds=1)
        self.assertEqual(run.returncode, 1)
        crashed = record["rows"][2]
        self.assertEqual([crashed[key] for key in ("problem", "median", "ratio_to_glibc", "runs")],
                         ["killed by SIGSEGV", None, None, []])
        self.assertIsNone(record["rows"][1]["problem"])
        run = self.table("--with", "scalloc", command=command, rounds=1)
        self.assertEqual(run.returncode, 1)
        self.assertIn("killed by SIGSEGV", run.stdout)

    def test_exit_code_under_one_allocator(self):
        command = ("sh", "-c", "case $LD_PRELOAD in *libspanalloc-scalloc*) exit 3 ;; esac")
        _, record = self.compare("--with", "scalloc", command=command, rounds=1)
        self.assertEqual(record["rows"][2]["problem"], "failed with exit code 3")

    def test_timeout(self):
        # The others need some time too: where a busy machine does not give it to them, with a later end.
        command = ("sh", "-c", "case $LD_PRELOAD in *libspanalloc-scalloc*) exec sleep 100000 ;; esac")
        for seconds in ("1", "10", "100"):
            _, record = self.compare("--timeout", seconds, "--with", "scalloc", command=command, rounds=1)
            if record and record["rows"][1]["problem"] is None:
                break
        self.assertEqual([row["problem"] for row in record["rows"]], [None, None, f"timed out after {seconds} s"])

    def test_failure_under_glibc_is_no_comparison(self):
        run, _ = self.compare(command=("sh", "-c", "echo what is wrong >&2; exit 3"))
        self.assertEqual(run.returncode, 1)
        self.assertIn("exit code 3", run.stderr)
        self.assertIn("what is wrong", run.stderr)

    def test_missing_program(self):
        self.assertEqual(self.compare(command=("/nonexistent/program",))[0].returncode, 127)

    def test_unknown_allocator_lists_the_known_ones(self):
        run, _ = self.compare("--with", "nonesuch")
        self.assertEqual(run.returncode, 125)
        self.assertIn("scalloc", run.stderr)

    def test_where_a_file_stands_as_up_to_0_1_it_says_where_the_json_goes(self):
        run = spanalloc("compare", "--json", "figures.json", "--", "true")
        self.assertEqual((run.returncode, run.stdout), (127, ""))
        self.assertRegex(run.stderr, r"^spanalloc: figures.json: command not found; .*takes no file name: .* > figures.json\n$")
        self.assertNotIn("no file name", spanalloc("compare", "--json", "--", "/nonexistent/program").stderr)


class ListTest(unittest.TestCase):
    def test_configs_and_paths(self):
        run = spanalloc("list")
        self.assertEqual(run.returncode, 0, run.stderr)
        others = [f"libspanalloc-{name}.so" for name in libraries.SHIPPED_CONFIGS if name != "standard"]
        for text in (STANDARD, *others, "libc.so.6"):
            self.assertIn(text, run.stdout)

    def test_json(self):
        run = spanalloc("list", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        record = json.loads(run.stdout)
        self.assertEqual(set(record), {"format", "spanalloc", "allocators"})
        self.assertEqual(record["format"], 1)
        found = {row["name"]: (row["kind"], row["path"]) for row in record["allocators"]}
        self.assertEqual(found["standard"], ("spanalloc", STANDARD))
        self.assertEqual(found["glibc"][0], "C library")
        self.assertTrue(found["glibc"][1].endswith("/libc.so.6"))
        self.assertTrue(all(kind == "other" and os.path.isfile(path) for name, (kind, path) in found.items()
                            if kind not in ("spanalloc", "C library")))

    def test_json_of_what_is_not_built(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([launcher_in(folder), "list", "--json"], stdout=subprocess.PIPE, text=True, check=True)
        found = {row["name"]: row["path"] for row in json.loads(run.stdout)["allocators"] if row["kind"] == "spanalloc"}
        self.assertEqual(found, dict.fromkeys(libraries.SHIPPED_CONFIGS))

    def test_version(self):
        self.assertRegex(spanalloc("--version").stdout, r"^spanalloc \d+\.\d+")


class OutputTest(unittest.TestCase):
    """Where it cannot be written the command says so, in one line, and has failed."""

    COMMANDS = (["list"], ["doctor"], ["doctor", "--json"], ["--help"], ["top", "--once", str(os.getpid())])

    def test_a_full_device(self):
        for command in self.COMMANDS:
            with open("/dev/full", "w", encoding="utf-8") as full:
                run = subprocess.run([COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((run.returncode, run.stderr),
                             (125, "spanalloc: cannot write to standard output: No space left on device\n"), command)

    def test_a_closed_output(self):
        for command in self.COMMANDS:
            run = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", COMMAND, *command], stderr=subprocess.PIPE, text=True,
                                 check=False)
            self.assertEqual((run.returncode, run.stderr), (125, "spanalloc: standard output is closed\n"), command)

    def test_a_closed_output_is_the_programs_business(self):
        asks = ["sh", "-c", "test -e /proc/$$/fd/1"]
        run = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", COMMAND, "run", "--", *asks], stderr=subprocess.PIPE,
                             text=True, check=False)
        self.assertEqual((run.returncode, run.stderr), (1, ""))

    def test_a_reader_that_has_gone(self):
        for command in self.COMMANDS:
            ours, its = os.pipe()
            os.close(ours)
            run = subprocess.run([COMMAND, *command], stdout=its, stderr=subprocess.PIPE, text=True, check=False)
            os.close(its)
            self.assertNotIn("Traceback", run.stderr, command)
            self.assertNotEqual(run.returncode, 0, command)

    def test_closed_errors_change_no_exit_code(self):
        for words, code in ((["doctor", "--", "true"], 0), (["doctor", "--", "false"], 1), (["top", "--", "false"], 1)):
            run = subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", COMMAND, *words], stdout=subprocess.PIPE, check=False)
            self.assertEqual(run.returncode, code, words)


class SignalsTest(unittest.TestCase):
    """Of a command that stays beside its program."""

    def test_what_is_ignored_stays_ignored(self):
        shows = "import signal; print(*(signal.getsignal(s) == signal.SIG_IGN for s in (1, 2, 3, 15)))"
        for words in (["doctor", "--"], ["top", "--"]):
            script = 'trap "" HUP INT QUIT; exec "$@"'
            run = subprocess.run(["sh", "-c", script, "sh", COMMAND, *words, sys.executable, "-c", shows],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
            self.assertEqual(run.stdout, "True True True False\n", words)


class CompletionTest(unittest.TestCase):
    """What bash offers for a line's last word. Nothing means names of files, which are bash's own business."""

    def offered(self, *words):
        script = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _spanalloc "$1"; '
                  '((${#COMPREPLY[@]} == 0)) || printf "%s\n" "${COMPREPLY[@]}"')
        run = subprocess.run(["bash", "-c", script, os.path.join(COMPLETION, "spanalloc.bash"), COMMAND, *words],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True, timeout=600)
        self.assertEqual(run.stderr, "")
        return run.stdout.splitlines()

    def test_commands_and_options(self):
        self.assertEqual(self.offered("ru"), ["run"])
        self.assertEqual(self.offered("compare", "--js"), ["--json"])
        self.assertEqual(self.offered("doc"), ["doctor"])
        self.assertEqual(self.offered("doctor", "--js"), ["--json"])
        self.assertEqual(self.offered("doctor", "1234", "--js"), ["--json"])
        self.assertEqual(self.offered("doctor", "sh", "--js"), [])
        self.assertEqual(self.offered("doctor", "--", "1234", "--js"), [])
        self.assertEqual(self.offered("to"), ["top"])
        self.assertEqual(self.offered("top", "--on"), ["--once"])

    def test_names(self):
        configs = self.offered("run", "--config", "sc")  # ablations too, where the build has them
        self.assertEqual(configs[:1], ["scalloc"])
        self.assertEqual(self.offered("doctor", "--config", "sc"), configs)
        self.assertTrue(all(name.startswith("scalloc") for name in configs), configs)
        self.assertIn("a2alloc", self.offered("compare", "--with", ""))

    def test_programs(self):
        self.assertIn("sh", self.offered("run", "--", "sh"))
        self.assertIn("sh", self.offered("doctor", "--", "sh"))
        self.assertEqual(self.offered("run", "--", "/bin/s"), [])
        self.assertEqual(self.offered("run", "--", "sh", "s"), [])

    def test_the_benchmark_suite(self):
        self.assertEqual(self.offered("bench", "fig"), ["figure"])
        self.assertEqual(self.offered("bench", "figure", "scalloc-6"), ["scalloc-6a", "scalloc-6b"])
        self.assertEqual(self.offered("bench", "run", "--allocators", "standard,k"), ["standard,kheap"])
        cases = self.offered("bench", "run", "--only", "startup-")
        self.assertTrue(cases and all(case.startswith("startup-") for case in cases), cases)


class ManualTest(unittest.TestCase):
    """spanalloc(1) against what the commands' --help says."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(os.environ["SPANALLOC_TEST_SOURCE"], "docs", "man", "spanalloc.1"), encoding="utf-8") as file:
            page = file.read().replace("\\-", "-")
        cls.synopsis, _, rest = page.partition(".SH DESCRIPTION\n")
        cls.options = rest.partition(".SH OPTIONS\n")[2].partition("\n.SH ")[0]

    @staticmethod
    def of_help(heading, pattern, *command):
        """What stands in a column of a command's --help."""
        run = spanalloc(*command, "--help")
        return re.findall(pattern, re.split(f"(?im)^{heading}:$", run.stdout)[1], re.MULTILINE)

    def commands(self):
        found = [[name] for name in self.of_help("commands", r"^  ([\w-]+) ") if name != "bench"]
        return found + [["bench", name] for name in self.of_help("commands", r"^  ([\w-]+) ", "bench")]

    @staticmethod
    def names(text):
        """The options that a part of the page speaks of."""
        return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text.replace("\\", "")))

    def test_each_option_stands_in_the_synopsis_and_is_described(self):
        commands = self.commands()
        self.assertIn(["bench", "manycore"], commands)
        parts = re.split(r"^\.SS Options of (.*)$", self.options, flags=re.MULTILINE)
        described = {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}
        self.assertLessEqual(described.keys() - {""}, {" ".join(command) for command in commands})
        for command in commands:
            name = " ".join(command)
            with self.subTest(name):
                options = {long: short.rstrip(", ") for short, long in
                           self.of_help("options", r"^  (-\w, )?(--[a-z-]+)", *command) if long != "--help"}
                line = re.search(rf"^\.B spanalloc {name}\n(.*?)(?=^\.br$|\Z)", self.synopsis, re.MULTILINE | re.DOTALL)
                self.assertIsNotNone(line, "it is not in the synopsis")
                shown = {next((long for long, short in options.items() if short == word), word)
                         for word in self.names(line.group(1))}
                self.assertEqual(shown, set(options))
                # What several share is described with those of bench run.
                text = described.get(name, "") + described["bench run" if command[0] == "bench" else ""]
                self.assertLessEqual(set(options), self.names(text))


class OtherShellsTest(unittest.TestCase):
    """The same of shells that most machines lack."""

    def setUp(self):
        """What zsh is to show, asked of the command itself: zsh would wait for it without end."""
        words = {"COMP_WORDS": "spanalloc bench figure scalloc-tab", "COMP_CWORD": "3", "_SPANALLOC_COMPLETE": "complete_zsh"}
        answer = subprocess.run([COMMAND], env=dict(os.environ, **words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=200)
        self.assertIn("scalloc-table1", answer.stdout, "the command does not complete its own words here")

    def shell(self, name, no_settings, script):
        if not shutil.which(name):
            self.skipTest(f"{name} is not installed")
        path = f"{os.path.dirname(COMMAND)}:{os.environ['PATH']}"
        return subprocess.run([name, no_settings, "-c", script, COMPLETION], env=dict(os.environ, PATH=path, TERM="dumb"),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True, timeout=200).stdout

    def test_fish(self):
        script = f'source {COMPLETION}/spanalloc.fish; complete -C "spanalloc bench figure coalescing-5"'
        self.assertEqual(self.shell("fish", "--no-config", script).split("\t")[0], "coalescing-5")

    def test_zsh(self):
        """In a terminal of its own, as only zsh's line editor completes; it would wait for ever for another answer."""
        script = """
            zmodload zsh/zpty
            zpty line zsh -f -i
            zpty -w line 'fpath=('$0' $fpath); autoload -Uz compinit; compinit -u -D; echo RE""ADY'
            zpty -r -m line answer '*READY*'
            zpty -w -n line $'spanalloc bench figure scalloc-tab\\t'
            zpty -r -m line answer '*scalloc-table1*'
            zpty -d line
            print found
            """
        self.assertEqual(self.shell("zsh", "-f", script), "found\n")


if __name__ == "__main__":
    unittest.main()
