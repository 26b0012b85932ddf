"""The servers that can be soaked, by name, and what this machine lacks for one."""

from __future__ import annotations

import subprocess

from spanalloc_bench import machine
from spanalloc_bench.execute import find_program
from spanalloc_bench.soak import mariadb, node, redis

PROGRAMS = {"redis": redis, "mariadb": mariadb, "node": node}
TITLES = {"redis": "Redis", "mariadb": "MariaDB", "node": "Node"}


def missing(name) -> str:
    """What the program lacks here and how to get it; empty when it lacks nothing."""
    lacking = [(what, package) for what, package in PROGRAMS[name].NEEDS if not find_program(what)]
    if not lacking:
        return ""
    return (f"{' and '.join(what for what, _ in lacking)} {'is' if len(lacking) == 1 else 'are'} not installed: "
            f"apt install {' '.join(dict.fromkeys(package for _, package in lacking))}")


def version(name) -> str:
    """Debian's package and version, else what the program says of itself."""
    path = find_program(PROGRAMS[name].NEEDS[0][0])
    packaged = machine.package_of(path)
    if packaged:
        return packaged
    run = subprocess.run([path, "--version"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return run.stdout.strip().partition("\n")[0]
