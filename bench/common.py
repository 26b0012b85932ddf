"""What the measuring scripts here share: the build folder, the allocators, the check of who defines malloc; and what
counts are taken in, and judged by."""

import argparse
import ctypes
import json
import math
import os
import re
import struct
import sys

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from spanalloc_bench import verify  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402


def parser(about, builds=True):
    """Of a script's options; `about`: its docstring. `builds`: it takes the build folder."""
    found = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if builds:
        found.add_argument("--build", default=os.path.join(SOURCE, "build", "release"), metavar="DIR",
                           help="build folder (default: build/release)")
    return found


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

    def defines_malloc(self, path, command):
        """Whether `command` calls the malloc of the library `path` when that is preloaded."""
        objects, _ = verify.malloc_objects(self.places, path, command, os.environ)
        return set(objects.values()) == {os.path.realpath(path)}


def settings(path):
    """What an allocator that was built here needs in its environment (`spanalloc bench peers`)."""
    return {name: value for entry in libraries.built_peers() if entry["path"] == path for name, value in entry["environment"]}


def counted_environment(path):
    """All of the environment of a program under this allocator, of which something is counted: what the caller has set,
    how many cores the machine has and what its kernel does with huge pages must not show. (Address space that is not
    randomised is the process's: fix_addresses().)"""
    return {**found_by(), **COUNTED_ENVIRONMENT, **settings(path), "LD_PRELOAD": path}


def found_by():
    """What programs and libraries are found by, of the caller's environment."""
    return {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


COUNTED_ENVIRONMENT = {
    "LC_ALL": "C", "SPANALLOC_SEED": "1", "SPANALLOC_CPUS": "2", "SPANALLOC_THP": "never",
    # No tick of the decay clock: the first one would come after half of it, and a run is ended long before that. The clock
    # stands still anyway (that of other allocators by workloads/still_clock.h).
    "SPANALLOC_DECAY_MS": "3600000", "SPANALLOC_CLOCK": "still",
    # The memset of SSE2, which each x86-64 has: with AVX2 a calloc of 1000 bytes takes 55 instructions less.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2_Usable,-AVX2,-AVX512VL,-AVX512BW,-ERMS,-FSRM",
}


def fix_addresses():
    """Has the kernel place everything where it always does, in this process and what it starts; says so where it may not."""
    no_randomisation, only_ask = 0x0040000, 0xFFFFFFFF
    personality = ctypes.CDLL(None).personality
    personality.argtypes = [ctypes.c_ulong]
    now = personality(only_ask)
    if now < 0 or personality(now | no_randomisation) < 0:
        print("Addresses are randomised: the kernel does not let them be fixed.")


def toolchain_of(library, libc):
    """Who compiled the library and which C library it runs with, as the baseline's keys say it: "g++ 12.2.0, glibc 2.36,
    x86_64"."""
    with open(library, "rb") as file:
        code = file.read()
    machine = struct.unpack_from("<H", code, 18)[0]  # e_machine
    # What is compiled by Clang has an object of GCC's beside.
    compiled = re.search(rb"clang version (\d[\d.]*)", code), re.search(rb"GCC: \([^)]*\) (\d[\d.]*)", code)
    names = [f"{name} {match[1].decode()}" for name, match in zip(("clang++", "g++"), compiled) if match]
    version = None
    if libc:
        with open(libc, "rb") as file:
            version = re.search(rb"GNU C Library \([^)]*\) [a-z]+ release version (\d+\.\d+)", file.read())
    return ", ".join([
        names[0] if names else "unknown compiler", f"glibc {version[1].decode()}" if version else "unknown C library",
        {62: "x86_64", 183: "aarch64"}.get(machine, f"machine {machine}"),
    ])


class Counts:
    """Judges counts of instructions. Of a toolchain that bench/count_baseline.json knows, a count may be a little above
    the one recorded there. Of any other one, and of what was not recorded, it may be above the design's target by so
    much as compilers differ; no record allows more."""

    PATH = os.path.join(SOURCE, "bench", "count_baseline.json")
    ROOM, TARGET_ROOM = 0.02, 0.1

    def __init__(self, checks, toolchain, writes=False):
        self.checks, self.toolchain, self.writes = checks, toolchain, writes
        self.known = self._read().get(toolchain, {})
        self.counted = {}
        if not writes:
            print(f"Counts of {toolchain}: " + (
                f"recorded ones and {self.ROOM:.0%} are allowed" if self.known else
                f"none are recorded, the design's targets and {self.TARGET_ROOM:.0%} are allowed"))

    def _read(self):
        try:
            with open(self.PATH, encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return {}

    def judge(self, name, count, target, unit="instructions"):
        """`count`: inf where there is none."""
        allowed, why = target * (1 + self.TARGET_ROOM), f"target {target:.1f}"
        baseline = self.known.get(name)
        if baseline is not None and not self.writes and baseline * (1 + self.ROOM) <= allowed:
            allowed, why = baseline * (1 + self.ROOM), f"baseline {baseline:.1f}"
        text = f"{count:.1f} {unit}" if math.isfinite(count) else "nothing"
        self.checks.check(count <= allowed, f"{name}: counted {text}, allowed {allowed:.1f} ({why})")
        if not math.isfinite(count):
            return
        self.counted[name] = round(count, 2)
        if why.startswith("baseline") and count < baseline * (1 - self.ROOM):
            print(f"hint: {name}: counted {text}, baseline {baseline:.1f}: it can be lowered, with --write-baseline")

    def write(self):
        """Puts what was counted, and was within its target, into the file."""
        if not self.writes or self.checks.failed:
            return
        everything = self._read()
        everything[self.toolchain] = dict(sorted({**self.known, **self.counted}.items()))
        with open(self.PATH, "w", encoding="utf-8") as file:
            json.dump(dict(sorted(everything.items())), file, indent=1)
            file.write("\n")
        print(f"wrote {len(self.counted)} counts of {self.toolchain} into {self.PATH}")


def add_baseline_option(parser):
    parser.add_argument(
        "--write-baseline", action="store_true",
        help="record what is counted with this toolchain in bench/count_baseline.json, instead of judging it",
    )


class Checks:
    """Counts what was checked, and ends a script with the line that the test command reads."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, good, text):
        if good:
            self.passed += 1
        else:
            self.failed += 1
        print(f"{'ok' if good else 'failed'}: {text}", flush=True)

    def skip(self, text):
        self.skipped += 1
        print(f"skipped: {text}")

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        sys.exit(1 if self.failed else 0)
