"""What a figure depends on besides the programs: the machine, its kernel, its settings, who else is using it."""

from __future__ import annotations

import glob
import os
import platform
import shutil
import subprocess

from spanalloc_bench import tree
from spanalloc_bench.model import Kind
from spanalloc_cli import VERSION, libraries

BUSY_LOAD = 0.5  # load average above which figures are not to be trusted


def _read(path, otherwise=""):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return otherwise


def _field(text, name):
    """Value of the first line "name : value"."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return ""


def _cpu_model():
    text = _read("/proc/cpuinfo")
    return _field(text, "model name") or _field(text, "CPU part") or platform.processor() or "unknown"


def _caches():
    """{"L1d": "32K", ...} of the first CPU; empty where the kernel does not say."""
    found = {}
    for folder in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        level, kind, size = (_read(os.path.join(folder, name)) for name in ("level", "type", "size"))
        if level and size:
            found[f"L{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")] = size
    return found


def _chosen(text):
    """The word in brackets of "always [madvise] never"."""
    return text.partition("[")[2].partition("]")[0] or text


def _virtual():
    if shutil.which("systemd-detect-virt"):
        run = subprocess.run(["systemd-detect-virt"], stdout=subprocess.PIPE, text=True, check=False)
        return "" if run.stdout.strip() == "none" else run.stdout.strip()
    return "yes" if " hypervisor " in _field(_read("/proc/cpuinfo"), "flags") + " " else ""


def describe() -> dict:
    """Plain data for meta.json; keys in the order in which a reader wants them."""
    import psutil

    thp = "/sys/kernel/mm/transparent_hugepage"
    return {
        "processor": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_online": os.cpu_count(),
        "caches": _caches(),
        "virtualization": _virtual(),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "swap_mib": psutil.swap_memory().total >> 20,
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "system": _field(_read("/etc/os-release").replace("=", ":"), "PRETTY_NAME").strip('"'),
        "libc": " ".join(platform.libc_ver()),
        "transparent_hugepages": _chosen(_read(f"{thp}/enabled", "unknown")),
        "thp_defrag": _chosen(_read(f"{thp}/defrag", "unknown")),
        "overcommit_memory": _read("/proc/sys/vm/overcommit_memory", "unknown"),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "unknown"),
        "python": platform.python_version(),
    }


# What must be equal for two samples to be comparable.
IDENTITY = ("processor", "cores", "architecture", "kernel", "libc", "transparent_hugepages")


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def package_of(path) -> str:
    """"libjemalloc2 5.3.0-1" where Debian installed the file; empty elsewhere."""
    if not path or not shutil.which("dpkg-query"):
        return ""
    for candidate in dict.fromkeys([path, path.removeprefix("/usr"), os.path.realpath(path)]):
        found = subprocess.run(["dpkg-query", "-S", candidate], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True, check=False)
        if found.returncode == 0:
            package = found.stdout.splitlines()[0].partition(": ")[0].partition(",")[0]
            shown = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}", package],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
            return shown.stdout.strip()
    return ""


def version_of(allocator) -> str:
    """Debian's package and version of a peer; our own release; empty where nothing says it."""
    if allocator.ours or allocator.kind is Kind.BASELINE:
        return f"spanalloc {VERSION}"
    for entry in libraries.built_peers():
        if entry.get("original") and os.path.realpath(entry["path"]) == allocator.path:
            return f"{entry['version']}, commit {entry['commit'][:12]}"
    return package_of(allocator.path)


def facts_of(allocator) -> dict:
    """What a command's record says of a contender."""
    return {
        "version": version_of(allocator), "path": tree.relative(allocator.path), "sha256": tree.sha256(allocator.path),
        "environment": [list(pair) for pair in allocator.environment], "ours": allocator.ours,
    }


def git_commit(source) -> dict:
    """The source tree's commit and whether files differ from it; empty outside a repository."""
    def git(*arguments):
        # Somebody else's clone is still the tree that is asked about.
        run = subprocess.run(["git", "-c", f"safe.directory={source}", "-C", source, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""

    if not shutil.which("git"):
        return {}
    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))} if commit else {}
