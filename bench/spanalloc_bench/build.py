"""Builds what a command needs and its build folder has not got: libraries, workloads, the command's helpers.

    contenders, cases  ->  Parts  ->  make(): cmake builds the targets of those that are not there

What is there is left as it is, whatever has become of its sources: results belong to one library, and when that becomes
another one is for its user to say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time

from spanalloc_bench import allocators, progress, tree
from spanalloc_bench.model import Family
from spanalloc_cli import VERSION, libraries

LOG = "bench-build.log"  # in the build folder; locked by the command that builds
OPTION = "SPANALLOC_ABLATIONS"
LAST_WORDS = 20  # lines of a failed build that are shown
SCRIPT = "scripts/bench --build-only"


class Failed(Exception):
    """Something is missing and cannot be built. The text says what, why, and what to do."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A file of the build folder and the target that makes it; an `optional` one is there only where OPTION is on."""

    path: str
    target: str
    optional: bool = False

    @property
    def there(self) -> bool:
        return os.path.isfile(self.path)

    @property
    def stale(self) -> bool:
        """Whether it is a library that an older version has left there: this version's is NAME.so.VERSION behind a link."""
        name = os.path.basename(self.path)
        return (self.there and name.startswith("libspanalloc")
                and os.path.basename(os.path.realpath(self.path)) != f"{name}.{VERSION}")


# ---- what there is to build ----


def helpers(places) -> list[Part]:
    """What every run is measured and checked with."""
    return [Part(places.measure, "spanalloc_measure"), Part(places.probe, "spanalloc_probe")]


def program(places, name) -> Part:
    """A workload, or another program of bench/ whose target has its name."""
    return Part(os.path.join(tree.workloads(places), name), name)


def module(places, name) -> Part:
    """A plugin or a library of bench/."""
    return Part(os.path.join(tree.workloads(places), f"{name}.so"), f"spanalloc_{name}")


def of_contenders(places, names) -> list[Part]:
    """What contenders of these names are made of, as far as this source tree has it."""
    found = []
    for name in map(libraries.current_name, names):
        name = allocators.SETTINGS.get(name, (name,))[0]
        if name == allocators.FLOOR:
            found.append(Part(os.path.join(tree.workloads(places), "libbump.so"), "bump"))
        elif name in allocators.PAGE_MANAGERS:
            found.append(program(places, allocators.PAGES_PROGRAM))
        elif name in libraries.LIBRARIES:
            target = "spanalloc" if name == libraries.DEFAULT_CONFIG else f"spanalloc_{name.replace('-', '_')}"
            optional = not libraries.LIBRARIES[name].in_every_build
            found.append(Part(libraries.config_path(places, name), target, optional))
    return found


def of_cases(places, cases) -> list[Part]:
    """The workloads that the cases run, and what these start."""
    found = []
    for case in cases:
        if case.argv and case.argv[0].startswith("{bin}/"):
            name = case.argv[0].removeprefix("{bin}/")
            names = [name, f"{name}_child"] if _has_child(name) else [name]
            found += [program(places, name) for name in names]
        if case.family is Family.PAGES:  # it says which page managers there are
            found.append(program(places, allocators.PAGES_PROGRAM))
    return found


def _has_child(name) -> bool:
    folder = os.path.join(tree.SOURCE, "bench", "workloads")
    return any(os.path.isfile(os.path.join(folder, f"{name}_child.{ending}")) for ending in ("c", "cpp"))


# ---- building it ----


def make(places, parts, say):
    """Builds those of the parts that are not there, and says which are an older version's. Failed where that cannot be
    done."""
    stale = [part for part in dict.fromkeys(parts) if part.stale]
    if stale:
        say(f"{', '.join(part.path for part in stale)}: not of version {VERSION}, and left as it is; today's: cmake --build "
            f"{tree.build_folder(places)} --target {' '.join(part.target for part in stale)}")
    missing = _missing(parts)
    if not missing:
        return
    folder = tree.build_folder(places)
    cache = _cache(folder)
    problem = _why_not(folder, cache)
    if problem:
        raise Failed(f"cannot build {_listed(missing)}: {problem}")
    with _alone(folder, say) as log:
        missing = _missing(missing)  # another command may have built them meanwhile
        if not missing:
            return
        say(f"building {_listed(missing)} in {folder}")
        began, cmake = time.monotonic(), _cmake(cache)
        if any(part.optional for part in missing) and not _is_on(cache.get(OPTION, "")):
            say(f"configuring {folder} with -D{OPTION}=ON, which stays so: whatever builds all of it builds ablations too")
            _run([cmake, "-S", tree.SOURCE, "-B", folder, f"-D{OPTION}=ON"], "configuring", log, say)
        targets = list(dict.fromkeys(part.target for part in missing))
        _run([cmake, "--build", folder, "-j", _jobs(), "--target", *targets], "the build", log, say)
        left = [part.path for part in missing if not part.there]
        if left:
            raise Failed(f"the build went well, but {left[0]} is not there: another build folder's command?")
        say(f"built; it took {progress.duration(time.monotonic() - began)}")


def _missing(parts):
    return [part for part in dict.fromkeys(parts) if not part.there]


@contextlib.contextmanager
def _alone(folder, say):
    """The log, while no other command builds in the folder: two at once would write the same files."""
    with open(os.path.join(folder, LOG), "a", encoding="utf-8", errors="replace") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that builds in {folder}")
            fcntl.flock(log, fcntl.LOCK_EX)
        log.truncate(0)
        yield log


def _listed(parts):
    names = list(dict.fromkeys(part.target for part in parts))
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _cache(folder) -> dict[str, str]:
    """The entries of CMake's cache; none where the folder is not configured."""
    found = {}
    try:
        with open(os.path.join(folder, "CMakeCache.txt"), encoding="utf-8", errors="replace") as file:
            for line in file:
                entry = re.match(r"([\w.+-]+):\w+=(.*)", line)
                if entry:
                    found[entry[1]] = entry[2]
    except FileNotFoundError:
        pass
    return found


def _is_on(value) -> bool:
    return value.upper() in ("1", "ON", "YES", "TRUE", "Y")


def _cmake(cache):
    return shutil.which(cache.get("CMAKE_COMMAND", "cmake")) or shutil.which("cmake")


def _why_not(folder, cache) -> str:
    """Why nothing can be built in the folder, and what mends that; empty where it can."""
    mends = f"{SCRIPT} installs what is missing and builds it"
    if not cache:
        return f"{folder} is no folder that CMake has configured. In {tree.SOURCE}, {mends}"
    lacking = {}  # program: package
    if not _cmake(cache):
        lacking["cmake"] = "cmake"
    for entry in ("CMAKE_MAKE_PROGRAM", "CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER"):
        name = cache.get(entry, "")
        if name and not shutil.which(name):
            lacking[name] = _package_of(os.path.basename(name))
    if not lacking:
        return ""
    return (f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed "
            f"(apt install {' '.join(dict.fromkeys(lacking.values()))}). In {tree.SOURCE}, {mends}")


def _package_of(program_name) -> str:
    """Debian's package of what builds."""
    if "clang" in program_name:
        return "clang" + "".join(re.findall(r"-\d+$", program_name))
    return "ninja-build" if program_name.startswith("ninja") else "make" if "make" in program_name else "g++"


def _jobs() -> str:
    return os.environ.get("SPANALLOC_JOBS") or str(len(os.sched_getaffinity(0)))


def _run(command, what, log, say):
    """One of CMake's commands, its output in the log. Failed, with its last words on the screen, where it fails."""
    print("$", *command, file=log, flush=True)
    last = []
    # A session of its own: an interrupt comes to this process first, which then ends the whole build. With the log, whose
    # lock so lasts as long as the build even where this process is killed.
    with subprocess.Popen(command, env={**os.environ, "NINJA_STATUS": "[%f/%t] "}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          start_new_session=True, pass_fds=(log.fileno(),)) as process, progress.Bar(say) as bar:
        try:
            for line in process.stdout:
                log.write(line)
                last = [*last[-LAST_WORDS + 1:], line.rstrip()]
                # "[3/12] Linking CXX executable bench/larson"
                step = re.match(r"\[(\d+)/(\d+)\] .*?([^\s/]+)$", last[-1])
                if step:
                    bar.show(int(step[1]), int(step[2]), step[3])
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
            raise
    log.flush()
    if process.returncode:
        say("\n".join(last))
        raise Failed(f"{what} failed; all of its output is in {log.name}")
