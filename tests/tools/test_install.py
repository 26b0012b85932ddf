"""What `cmake --install` puts down works: the command, pkg-config, the CMake package, the archive."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.dirname(os.path.dirname(os.environ["SPANALLOC_TEST_COMMAND"]))
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]

# Exits with 0 when its malloc is in an object whose name holds the argument.
PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spanalloc/spanalloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  void* volatile p = malloc(100);
  Dl_info info;
  if (argc != 2 || p == NULL || dladdr(dlsym(RTLD_DEFAULT, "malloc"), &info) == 0) return 2;
  free(p);
  printf("%s\n", info.dli_fname);
  return strstr(info.dli_fname, argv[1]) == NULL;
}
"""

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(spanalloc REQUIRED)
add_executable(user main.c)
target_link_libraries(user PRIVATE spanalloc::spanalloc)
"""


def call(*command, **options):
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)
    if run.returncode:
        raise AssertionError(f"{' '.join(command)}: exit code {run.returncode}\n{run.stdout}")
    return run.stdout


def installed_files(script):
    """What an installing script, and those that it includes, install from the source tree and the build folder."""
    with open(script, encoding="utf-8") as file:
        text = file.read()
    for block in re.findall(r'^ *file\(INSTALL [^)]* FILES((?:\s+"[^"]*")+)', text, re.MULTILINE):
        yield from re.findall(r'"([^"]*)"', block)
    for included in re.findall(r'include\("([^"]*/cmake_install\.cmake)"\)', text):
        yield from installed_files(included)


def needed_for(targets):
    """All that ninja makes or reads for the targets, and these."""
    found, new = set(), set(targets)
    while new:
        found |= new
        queried = call("ninja", "-C", BUILD, "-t", "query", *sorted(new))
        inputs = re.findall(r"^  input: .*\n((?:    .*\n)*)", queried, re.MULTILINE)
        new = {line.strip("| ") for block in inputs for line in block.splitlines()} - found
    return found


class InstallTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = os.path.join(cls.folder, "prefix")
        call("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.source = os.path.join(cls.folder, "main.c")
        with open(cls.source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        for folder, _, files in os.walk(cls.prefix):
            if "libspanalloc.so" in files:
                cls.lib = folder

    def test_try_builds_what_is_installed(self):
        if not shutil.which("ninja") or not os.path.exists(os.path.join(BUILD, "build.ninja")):
            self.skipTest("not built by ninja")
        with open(os.path.join(SOURCE, "scripts", "try"), encoding="utf-8") as file:
            targets = re.search(r"--target ([\w ]+)", file.read())[1].split()
        every_target = call("ninja", "-C", BUILD, "-t", "targets", "all")
        files = {os.path.relpath(path, BUILD) for path in installed_files(os.path.join(BUILD, "cmake_install.cmake"))}
        built = files & {line.split(":")[0] for line in every_target.splitlines()}
        built = {re.sub(r"\.so\..*", ".so", path) for path in built}  # a library and the links to it are made together
        for name in ("lib/libspanalloc.a", "lib/libspanalloc_sp.a", "lib/libspanalloc_pages.a", "bin/spanalloc-measure"):
            self.assertIn(name, built)
        self.assertEqual(built - needed_for(targets), set())

    def test_nothing_is_installed_unless_all_is_built(self):
        build = os.path.join(self.folder, "unbuilt")
        prefix = os.path.join(self.folder, "unbuilt-prefix")
        call("cmake", "-G", "Ninja", "-S", SOURCE, "-B", build, "-DSPANALLOC_TESTS=OFF")
        run = subprocess.run(["cmake", "--install", build, "--prefix", prefix], stderr=subprocess.PIPE, text=True, check=False)
        self.assertNotEqual(run.returncode, 0)
        said = " ".join(run.stderr.split())
        self.assertIn("nothing is installed", said)
        self.assertIn(f"cmake --build {build} --target spanalloc_installed", said)
        self.assertFalse(os.path.exists(prefix))

    def test_command(self):
        command = os.path.join(self.prefix, "bin", "spanalloc")
        output = call(command, "run", "--", "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(output.strip(), os.path.join(self.lib, "libspanalloc.so"))

    def test_completion(self):
        for path in ("bash-completion/completions/spanalloc", "zsh/site-functions/_spanalloc",
                     "fish/vendor_completions.d/spanalloc.fish"):
            self.assertTrue(os.path.isfile(os.path.join(self.prefix, "share", path)), path)
        script = os.path.join(self.prefix, "share", "bash-completion", "completions", "spanalloc")
        words = [os.path.join(self.prefix, "bin", "spanalloc"), "ru"]
        asked = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=1; _spanalloc "$1"; printf "%s\n" "${COMPREPLY[@]}"'
        environment = dict(os.environ, **self.python())
        self.assertEqual(call("bash", "-c", asked, script, *words, env=environment), "run\n")

    def python(self):
        """The environment in which the installed command finds Python packages: those of the build's command."""
        with open(os.environ["SPANALLOC_TEST_COMMAND"], encoding="utf-8") as file:
            found = re.search(r"'([^']*/venv/bin/python3)'", file.read())
        return {"SPANALLOC_PYTHON": found[1]} if found and os.path.exists(found[1]) else {}

    def test_list(self):
        listed = call(os.path.join(self.prefix, "bin", "spanalloc"), "list", env=dict(os.environ, **self.python()))
        self.assertIn(os.path.join(self.lib, "libspanalloc.so"), listed)

    def without_packages(self, *words):
        """The installed command, by a Python that has nothing but its own library."""
        start = os.path.join(self.prefix, "libexec", "spanalloc", "spanalloc_cli", "start.py")
        helpers = os.path.join(self.prefix, "libexec", "spanalloc")
        # -S: none of the packages that this Python has; -I -B: as the launcher starts it.
        return subprocess.run(
            [sys.executable, "-I", "-S", "-B", start, self.lib, helpers, *words], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)

    def test_the_command_needs_no_python_packages(self):
        for words, text in ((["--version"], r"^spanalloc \d"), (["--help"], "Commands:"), (["list"], "libspanalloc.so"),
                            (["run", "--", "sh", "-c", "echo $LD_PRELOAD"], "libspanalloc.so"),
                            (["doctor"], "Worth knowing:"), (["doctor", "--", "echo", "out"], "^out$"),
                            (["compare", "-n", "1", "-w", "standard", "--", "true"], "spanalloc standard"),
                            (["top", "--", "sh", "-c", "echo out"], "^out$")):
            run = self.without_packages(*words)
            self.assertEqual(run.returncode, 0, (words, run.stderr))
            self.assertRegex(run.stdout, text)
            self.assertNotIn("Traceback", run.stderr)

    def test_the_command_says_what_the_suite_needs(self):
        """Where there is a source tree."""
        start = os.path.join(SOURCE, "tools", "spanalloc_cli", "start.py")
        run = subprocess.run([sys.executable, "-I", "-S", "-B", start, self.lib, self.lib, "bench", "list"],
                             stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(run.returncode, 125, run.stderr)
        self.assertRegex(run.stderr, "typer|needs Python 3.10")

    def test_another_python_where_the_first_one_is_too_old_or_there_is_none_on_the_path(self):
        command = os.path.join(self.prefix, "bin", "spanalloc")
        if not os.path.exists("/usr/bin/python3"):
            self.skipTest("the system has no Python")
        tools = os.path.join(self.folder, "tools")
        os.makedirs(tools)
        for name in ("dirname", "readlink"):
            os.symlink(shutil.which(name), os.path.join(tools, name))
        self.assertRegex(call(command, "--version", env={"PATH": tools}), r"^spanalloc \d")
        old = os.path.join(tools, "python3")
        with open(old, "w", encoding="ascii") as file:
            file.write(f"""#!/bin/sh
exec {sys.executable} -I -c 'import runpy, sys
sys.version_info, sys.executable = (3, 6, 9), "{old}"
del sys.argv[:3]
runpy.run_path(sys.argv[0], run_name="__main__")' - "$@"
""")
        os.chmod(old, 0o755)
        self.assertRegex(call(command, "--version", env={"PATH": tools}), r"^spanalloc \d")

    def test_manual_page(self):
        self.assertTrue(os.path.exists(os.path.join(self.prefix, "share", "man", "man1", "spanalloc.1")))

    def test_pkg_config(self):
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config")
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.lib, "pkgconfig"))
        flags = call("pkg-config", "--cflags", "--libs", "spanalloc", env=environment).split()
        program = os.path.join(self.folder, "by-pkg-config")
        call("cc", self.source, "-o", program, *flags, f"-Wl,-rpath,{self.lib}")
        self.assertIn("libspanalloc.so", call(program, "libspanalloc.so"))

    def test_cmake_package(self):
        project = os.path.join(self.folder, "project")
        os.makedirs(project)
        shutil.copy(self.source, project)
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(PROJECT)
        build = os.path.join(project, "build")
        # Ninja, which built what is installed: CMake's own choice, make, need not be there.
        call("cmake", "-G", "Ninja", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        call("cmake", "--build", build)
        self.assertIn("libspanalloc.so", call(os.path.join(build, "user"), "libspanalloc.so"))

    def by_pkg_config(self, program, *words):
        """Links a program by the words that docs/using.md has, in a shell, and those given."""
        if not shutil.which("pkg-config"):
            self.skipTest("no pkg-config")
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.lib, "pkgconfig"))
        call("sh", "-ec", " ".join(["exec cc", "-o", program, *words]), env=environment, cwd=self.folder)

    def test_archive(self):
        with open(os.path.join(SOURCE, "docs", "using.md"), encoding="utf-8") as file:
            line = re.search(r"^\| link statically \| `cc (main\.c .*?)`", file.read(), re.MULTILINE)[1]
        program = os.path.join(self.folder, "by-archive")
        self.by_pkg_config(program, line, "-rdynamic")
        call(program, "by-archive")

    def test_a_static_program_with_the_calls_alone(self):
        """Its malloc is not ours, stripped or not; what it has of us is looked into all the same."""
        with open(os.path.join(self.folder, "calls.c"), "w", encoding="ascii") as file:
            file.write("#include <spanalloc/spanalloc.h>\n#include <unistd.h>\n"
                       "int main(void) {\n"
                       "  return !sp_malloc(5000) || write(1, \".\", 1) != 1 || read(0, &(char){0}, 1);\n}\n")
        program = os.path.join(self.folder, "calls")
        self.by_pkg_config(program, "-static calls.c $(pkg-config --cflags spanalloc-sp)",
                           os.path.join(self.lib, "libspanalloc_sp.a"), "-pthread")
        stripped = shutil.copy(program, os.path.join(self.folder, "calls-stripped"))
        call(os.environ.get("STRIP") or "strip", stripped)
        for path in (program, stripped):
            with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
                running.stdout.read(1)
                said = " ".join(call(os.path.join(self.prefix, "bin", "spanalloc"), "doctor", str(running.pid)).split())
                running.stdin.close()
            self.assertIn("only its calls of spanalloc.h are on spanalloc", said)

    def test_tools_that_have_a_malloc_of_their_own_find_what_they_find_elsewhere(self):
        with open(os.path.join(self.folder, "freed.c"), "w", encoding="ascii") as file:
            file.write("#include <stdlib.h>\n"
                       "int main(void) { volatile char* p = malloc(99); free((void*)p); return p[5]; }\n")
        linked = f"freed.c $(pkg-config --libs spanalloc) -Wl,-rpath,{self.lib}"
        program = os.path.join(self.folder, "freed")
        self.by_pkg_config(program, "-g", linked)
        for name, words, flags, found in (
            ("valgrind", ["valgrind", "-q", "--error-exitcode=9"], [], "inside a block of size 99 free'd"),
            ("AddressSanitizer", [], ["-fsanitize=address"], "heap-use-after-free"),
        ):
            with self.subTest(name):
                if words and not shutil.which(words[0]):
                    self.skipTest(f"no {name}")
                try:
                    self.by_pkg_config(program, "-g", *flags, linked)
                except AssertionError as error:
                    self.skipTest(f"no {name}: {error}")
                run = subprocess.run([*words, program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     check=False)
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(found, run.stdout)


if __name__ == "__main__":
    unittest.main()
