"""What `cmake --install` puts down works: the command, pkg-config, the CMake package, the archive."""

import os
import shutil
import subprocess
import tempfile
import unittest

BUILD = os.path.dirname(os.path.dirname(os.environ["SPANALLOC_TEST_COMMAND"]))

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

    def test_command(self):
        command = os.path.join(self.prefix, "bin", "spanalloc")
        output = call(command, "run", "--", "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(output.strip(), os.path.join(self.lib, "libspanalloc.so"))

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

    def test_archive(self):
        program = os.path.join(self.folder, "by-archive")
        call("cc", self.source, f"-I{self.prefix}/include", "-rdynamic", "-o", program,
             os.path.join(self.lib, "libspanalloc.a"), "-pthread")
        call(program, "by-archive")


if __name__ == "__main__":
    unittest.main()
