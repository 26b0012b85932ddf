"""What the builders of cases share."""

from __future__ import annotations

import dataclasses

from ..model import Case, Family

BEYOND = "beyond the papers"
KIB, MIB = 1 << 10, 1 << 20
LITTLE_FOR_BUMP = (("BUMP_LIMIT_MIB", "2048"),)


def command(program: str, **options) -> tuple[str, ...]:
    """A program of bench/workloads with its options."""
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return (f"{{bin}}/{program}", *words)


def workload(id: str, group: str, title: str, source: str, argv: tuple[str, ...], threads: int = 1,
             family: Family = Family.WORKLOAD, **more) -> Case:
    """A case of a program of bench/workloads; its id ends with the threads."""
    return Case(f"{id}.t{threads}", group, title, source, family, argv, threads, **more)


def unusual(letter: str, value: int, usual: int) -> str:
    """The end of an id where a case has another length than most of its kind."""
    return f"-{letter}{value}" if value != usual else ""


def size_text(n: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if n >= unit and n % unit == 0:
            return f"{n // unit} {name}"
    return f"{n} B"


def short(n: int) -> str:
    """A size in an id."""
    return size_text(n).replace(" ", "").replace("iB", "").replace("B", "").lower()


def count(number: int, noun: str = "thread") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def suites(full, quick) -> list[Case]:
    """The cases of the full suite and those of the quick one."""
    return ([dataclasses.replace(case, full=True) for case in full]
            + [dataclasses.replace(case, quick=True) for case in quick])
