"""What a command builds before it starts: which parts it needs, that only what is missing is built, and what is said where
that cannot be."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools"), SOURCE]

from spanalloc_bench import allocators, build, packages, progress, tree  # noqa: E402
from spanalloc_bench.cases import catalogue  # noqa: E402
from spanalloc_cli import VERSION, libraries  # noqa: E402

BUILD = os.path.dirname(os.path.dirname(COMMAND))
PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
NOWHERE = libraries.Places("/nonexistent/lib", "/nonexistent/bin")


def targets(parts):
    """{target: whether it takes SPANALLOC_ABLATIONS}"""
    return {part.target: part.optional for part in parts}


def command_line(process):
    """That of a process; empty when it has ended."""
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


class PackagesTest(unittest.TestCase):
    """Python's environment lacks a package of the suite."""

    MISSING = ModuleNotFoundError("No module named 'psutil'", name="psutil")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = os.path.realpath(folder.name)
        self.prefix = os.path.join(self.build, "venv")
        os.mkdir(self.prefix)
        self.patch(mock.patch.object(sys, "prefix", self.prefix))
        self.patch(mock.patch.dict(os.environ))
        self.run = self.patch(mock.patch.object(subprocess, "run", return_value=mock.Mock(returncode=0)))
        self.restart = self.patch(mock.patch.object(os, "execv"))

    def patch(self, patch):
        self.addCleanup(patch.stop)
        return patch.start()

    def made_by_the_scripts(self):
        with open(os.path.join(self.prefix, ".made-from"), "w", encoding="utf-8"):
            pass

    def test_the_scripts_environment_gets_it_and_the_command_starts_again_once(self):
        self.made_by_the_scripts()
        packages.install_and_restart(self.MISSING, building=True)
        argv, options = self.run.call_args.args[0], self.run.call_args.kwargs
        self.assertEqual(argv[1:], [os.path.join(SOURCE, "scripts", "bench"), "--packages-only"])
        self.assertEqual(options["env"]["SPANALLOC_BUILD"], self.build)
        self.assertEqual(self.restart.call_args.args[1][-len(sys.argv):], sys.argv)
        said = packages.install_and_restart(self.MISSING, building=True)  # what the restarted command would do
        self.assertEqual((self.run.call_count, self.restart.call_count), (1, 1))
        self.assertIn("No module named 'psutil'. scripts/bench --build-only", said)

    def test_where_it_cannot_be_installed_the_command_ends(self):
        self.made_by_the_scripts()
        self.run.return_value = mock.Mock(returncode=1)
        self.assertIn("psutil", packages.install_and_restart(self.MISSING, building=True))
        self.assertFalse(self.restart.called)

    def test_an_environment_of_its_users_is_left_alone(self):
        self.assertIn("psutil", packages.install_and_restart(self.MISSING, building=True))
        self.assertFalse(self.run.called or self.restart.called)

    def test_without_building_nothing_is_installed(self):
        self.made_by_the_scripts()
        self.assertIn("psutil", packages.install_and_restart(self.MISSING, building=False))
        self.assertFalse(self.run.called or self.restart.called)


class PartsTest(unittest.TestCase):
    def test_contenders(self):
        names = ["standard", "scalloc", "kheap", "scalloc-reuse-100", "standard-thp-never", "bump", "tree", "glibc",
                 "jemalloc", "supermalloc-original", "nobody"]
        self.assertEqual(targets(build.of_contenders(PLACES, names)), {
            "spanalloc": False, "spanalloc_scalloc": False, "spanalloc_kheap": False, "spanalloc_scalloc_reuse_100": True,
            "bump": False, "pages_scalability": False})

    def test_every_ablation_has_a_target(self):
        self.assertEqual(set(targets(build.of_contenders(PLACES, allocators.ABLATIONS)).values()), {True})
        self.assertEqual(len(build.of_contenders(PLACES, allocators.ABLATIONS)), len(allocators.ABLATIONS))

    def test_what_the_cases_and_the_contenders_need_is_where_the_build_puts_it(self):
        # The build that is tested has everything but the ablations.
        needed = [*build.helpers(PLACES), *build.of_cases(PLACES, catalogue()),
                  *build.of_contenders(PLACES, ["standard", "scalloc", "a2alloc", "kheap", "bump", "mmap"])]
        self.assertIn("startup_child", targets(needed))
        self.assertIn("pages_larson", targets(needed))
        self.assertEqual([part for part in needed if not part.there], [])

    def test_figures(self):
        from papers.shared.figures import run
        from papers.shared.figures.catalogue import FIGURES

        helpers = {"spanalloc_measure": False, "spanalloc_probe": False}
        self.assertEqual(targets(run.parts(PLACES, [FIGURES["coalescing-5"]])), {**helpers, "pages_scalability": False})
        self.assertEqual(targets(run.parts(PLACES, [FIGURES["scalloc-14a"]]))["spanalloc_scalloc_lazy_reclaim"], True)
        self.assertLessEqual({"a2alloc_steps", "larson", "threadtest", "spanalloc_a2alloc_classes"},
                             set(targets(run.parts(PLACES, [FIGURES["a2alloc-future-counts"]]))))


def wait(condition):
    """Whether it comes to hold, in ten minutes."""
    for _ in range(60_000):
        if condition():
            return True
        time.sleep(0.01)
    return False


# A build of nothing but files, at the places of the real one.
PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(small NONE)
option(SPANALLOC_ABLATIONS "" OFF)
function(small target file)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/${file}
                     COMMAND ${CMAKE_COMMAND} -E echo made >> ${CMAKE_BINARY_DIR}/${file} VERBATIM)
  add_custom_target(${target} DEPENDS ${CMAKE_BINARY_DIR}/${file})
endfunction()
file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/lib ${CMAKE_BINARY_DIR}/bin ${CMAKE_BINARY_DIR}/bench)
function(library target file)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/lib/${file}
                     COMMAND ${CMAKE_COMMAND} -E echo made >> ${CMAKE_BINARY_DIR}/lib/${file}.@VERSION@
                     COMMAND ${CMAKE_COMMAND} -E create_symlink ${file}.@VERSION@ ${CMAKE_BINARY_DIR}/lib/${file} VERBATIM)
  add_custom_target(${target} DEPENDS ${CMAKE_BINARY_DIR}/lib/${file})
endfunction()
library(spanalloc libspanalloc.so)
small(spanalloc_measure bin/spanalloc-measure)
if(SPANALLOC_ABLATIONS)
  library(spanalloc_scalloc_clab libspanalloc-scalloc-clab.so)
endif()
add_custom_target(broken COMMAND ${CMAKE_COMMAND} -E echo "the reason" COMMAND ${CMAKE_COMMAND} -E false)
add_custom_target(quick COMMAND ${CMAKE_COMMAND} -E echo begun)
add_custom_target(endless COMMAND sh ${CMAKE_SOURCE_DIR}/endless ${CMAKE_BINARY_DIR}/pid DEPENDS quick)
"""
ENDLESS = 'echo $$ > "$1.new"; mv "$1.new" "$1"; exec sleep 1000000'


class MakeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spanalloc-build-")
        self.addCleanup(folder.cleanup)
        self.source, self.build = os.path.join(folder.name, "source"), os.path.join(folder.name, "build")
        os.mkdir(self.source)
        with open(os.path.join(self.source, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT.replace("@VERSION@", VERSION))
        subprocess.run(["cmake", "-G", "Ninja", "-S", self.source, "-B", self.build], stdout=subprocess.DEVNULL, check=True)
        self.places = libraries.Places(os.path.join(self.build, "lib"), os.path.join(self.build, "bin"))
        self.said = []

    def make(self, *parts):
        with mock.patch.object(tree, "SOURCE", self.source):
            build.make(self.places, parts, self.said.append)

    def part(self, name):
        return build.of_contenders(self.places, [name])[0]

    def refused(self, *parts):
        with self.assertRaises(build.Failed) as caught:
            self.make(*parts)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def cached(self, entry, value):
        """Puts another value into CMake's cache."""
        path = os.path.join(self.build, "CMakeCache.txt")
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file if not line.startswith(f"{entry}:")]
        with open(path, "w", encoding="utf-8") as file:
            file.writelines([*lines, f"{entry}:FILEPATH={value}\n"])

    def test_what_is_missing_is_built_and_nothing_twice(self):
        standard = self.part("standard")
        self.make(standard, *build.helpers(self.places)[:1])
        self.assertTrue(standard.there)
        self.assertIn("building spanalloc, spanalloc_measure in", self.said[0])
        self.said.clear()
        with mock.patch.object(subprocess, "Popen", side_effect=AssertionError("something was started")):
            self.make(standard)
        self.assertEqual(self.said, [])
        with open(standard.path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "made\n")

    def test_what_an_older_version_left_is_said(self):
        standard = self.part("standard")
        for version in ("", ".0.1.0"):
            self.said.clear()
            path = standard.path + version
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if version:
                os.replace(standard.path, path)
                os.symlink(os.path.basename(path), standard.path)
            else:
                open(path, "w", encoding="ascii").close()
            self.make(standard, standard)
            self.assertEqual(len(self.said), 1, self.said)
            self.assertIn(f"{standard.path}: not of version {VERSION}", self.said[0])
            self.assertIn("--target spanalloc", self.said[0])
            self.assertEqual(os.path.getsize(path), 0)

    def test_an_ablation_configures_the_folder_for_it(self):
        clab = self.part("scalloc-clab")
        self.make(self.part("standard"))
        self.assertFalse(build._is_on(build._cache(self.build)[build.OPTION]))
        self.make(clab)
        self.assertTrue(clab.there)
        self.assertTrue(build._is_on(build._cache(self.build)[build.OPTION]))
        self.assertTrue(any("-DSPANALLOC_ABLATIONS=ON, which stays so" in line for line in self.said), self.said)

    def test_a_build_that_fails_is_shown(self):
        said = self.refused(build.program(self.places, "broken"))
        self.assertIn(os.path.join(self.build, build.LOG), said)
        self.assertTrue(any("the reason" in line for line in self.said), self.said)
        with open(os.path.join(self.build, build.LOG), encoding="utf-8") as file:
            self.assertIn("the reason", file.read())

    def test_a_target_that_makes_something_else_is_noticed(self):
        self.assertIn("quick is not there", self.refused(build.program(self.places, "quick")))

    def test_a_folder_that_is_not_configured(self):
        with self.assertRaisesRegex(build.Failed, "^cannot build spanalloc: .*configured.*scripts/bench --build-only"):
            build.make(NOWHERE, build.of_contenders(NOWHERE, ["standard"]), self.said.append)

    def test_what_builds_is_missing(self):
        for entry, gone, package in (("CMAKE_MAKE_PROGRAM", "/gone/ninja", "ninja-build"),
                                     ("CMAKE_CXX_COMPILER", "/gone/g++-12", "g++"),
                                     ("CMAKE_C_COMPILER", "/gone/clang-19", "clang-19")):
            with self.subTest(entry):
                before = build._cache(self.build).get(entry, "")
                self.cached(entry, gone)
                said = self.refused(self.part("standard"))
                for text in ("cannot build spanalloc", gone, f"apt install {package})", "scripts/bench --build-only"):
                    self.assertIn(text, said)
                self.cached(entry, before)
        self.cached("CMAKE_COMMAND", "/gone/cmake")
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            self.assertIn("cmake is not installed (apt install cmake)", self.refused(self.part("standard")))
        self.assertEqual(self.said, [])

    def test_two_commands_do_not_build_at_once(self):
        standard = self.part("standard")
        with open(os.path.join(self.build, build.LOG), "a", encoding="utf-8") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            waits = threading.Event()
            says = threading.Thread(target=build.make, args=(self.places, [standard], lambda text: (
                self.said.append(text), waits.set())))
            says.start()
            self.assertTrue(waits.wait(600))
            with open(standard.path, "w", encoding="utf-8") as file:
                file.write("by the other one\n")
        says.join(600)
        self.assertEqual([line.partition(" for ")[0] for line in self.said], ["waiting"])
        with open(standard.path, encoding="utf-8") as file:
            self.assertEqual(file.read(), "by the other one\n")

    def test_an_interrupt_ends_the_whole_build(self):
        with open(os.path.join(self.source, "endless"), "w", encoding="utf-8") as file:
            file.write(ENDLESS)
        begun = os.path.join(self.build, "pid")

        def interrupt(text):
            if text.lstrip().startswith("[1/"):
                self.assertTrue(wait(lambda: os.path.exists(begun)))
                raise KeyboardInterrupt

        with mock.patch.object(progress, "EVERY_S", 0), mock.patch.object(tree, "SOURCE", self.source), \
                self.assertRaises(KeyboardInterrupt):
            build.make(self.places, [build.program(self.places, "endless")], interrupt)
        with open(begun, encoding="utf-8") as file:
            process = file.read().strip()
        self.assertTrue(wait(lambda: not command_line(process)))


    def test_a_build_keeps_its_folder_where_its_command_is_killed(self):
        with open(os.path.join(self.source, "endless"), "w", encoding="utf-8") as file:
            file.write(ENDLESS)
        code = (f"import sys; sys.path[:0] = {sys.path!r}\n"
                "from spanalloc_bench import build, tree\nfrom spanalloc_cli import libraries\n"
                f"tree.SOURCE = {self.source!r}\n"
                f"places = libraries.Places({self.places.library_dir!r}, {self.places.helper_dir!r})\n"
                "build.make(places, [build.program(places, 'endless')], lambda text: None)\n")
        begun = os.path.join(self.build, "pid")
        with subprocess.Popen([sys.executable, "-c", code]) as command:
            self.assertTrue(wait(lambda: os.path.exists(begun)))
            command.kill()

        def is_free():
            with open(os.path.join(self.build, build.LOG), "a", encoding="utf-8") as log:
                try:
                    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
            return True

        was_free = is_free()
        with open(begun, encoding="utf-8") as file:
            os.kill(int(file.read()), signal.SIGKILL)
        self.assertFalse(was_free)
        self.assertTrue(wait(is_free))


class CommandTest(unittest.TestCase):
    """The command in a build folder with nothing in it."""

    def setUp(self):
        import matplotlib, psutil  # noqa: F401, E401  # without them the command would install them
        folder = tempfile.TemporaryDirectory(prefix="spanalloc-build-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        os.mkdir(os.path.join(self.folder, "bin"))
        with open(COMMAND, encoding="utf-8") as file:
            launcher = file.read().replace(f"'{BUILD}/", f"'{self.folder}/")
        self.command = os.path.join(self.folder, "bin", "spanalloc")
        with open(self.command, "w", encoding="utf-8") as file:
            file.write(launcher)
        os.chmod(self.command, 0o755)

    def bench(self, *arguments):
        return subprocess.run([self.command, "bench", *arguments, "--out", os.path.join(self.folder, "out")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False, timeout=600)

    def test_what_cannot_be_built_ends_it_in_one_line(self):
        for arguments in (("figure", "coalescing-5"), ("run", "--quick", "--only", "pages")):
            run = self.bench(*arguments)
            self.assertEqual((run.returncode, run.stdout), (125, ""), run.stderr)
            self.assertRegex(run.stderr, r"^spanalloc bench: cannot build .*scripts/bench --build-only.*\n$")

    def test_a_figure_of_which_nothing_runs_is_a_failure(self):
        run = self.bench("figure", "coalescing-5", "--no-build")
        self.assertEqual((run.returncode, run.stdout), (1, ""), run.stderr)
        self.assertRegex(run.stderr, r"^spanalloc bench: nothing could be measured of coalescing-5 \(.*not built.*\)\n$")


if __name__ == "__main__":
    unittest.main()
