"""What the measuring scripts here share: the build folder, the allocators, the check of who defines malloc."""

import os
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from spanalloc_cli import libraries  # noqa: E402


def add_build_option(parser):
    parser.add_argument(
        "--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR",
        help="build folder (default: build/release)",
    )


class Build:
    """The parts of a build folder that the scripts use."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        self.places = libraries.Places(os.path.join(self.folder, "lib"), os.path.join(self.folder, "bin"))

    def program(self, name):
        path = os.path.join(self.folder, "bench", name)
        if not os.path.exists(path):
            sys.exit(f"{path} is missing: build first (cmake --build --preset release)")
        return path

    def allocators(self):
        """[(name, path, ours)], glibc first."""
        base = libraries.glibc()
        rows = [("glibc", base, False)] if base else []
        rows += [(name, path, True) for name, path in libraries.our_configs(self.places).items()]
        return rows + [(name, path, False) for name, path in libraries.other_allocators().items()]

    def malloc_object(self, path, command):
        """Real path of the object that defines malloc when `command` runs with `path` preloaded."""
        with tempfile.NamedTemporaryFile(prefix="spanalloc-probe-") as out:
            environment = dict(os.environ, LD_PRELOAD=f"{self.places.probe}:{path}", SPANALLOC_PROBE_OUT=out.name)
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
            lines = out.read().decode().splitlines()
        return os.path.realpath(lines[-1].split("\t")[1]) if lines else None

    def defines_malloc(self, path, command):
        return self.malloc_object(path, command) == os.path.realpath(path)


def settings(path):
    """What an allocator that was built here needs in its environment (`spanalloc bench peers`)."""
    return {name: value for entry in libraries.built_peers() if entry["path"] == path for name, value in entry["environment"]}


class Checks:
    """Counts what was checked, and ends a script with the line that the test command reads."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, good, text):
        if good:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok' if good else 'FAILED'}: {text}")

    def skip(self, text):
        self.skipped += 1
        print(f"skipped: {text}")

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 0)
