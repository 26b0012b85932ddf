"""The catalogue: every case of the suite and of the figures, one module a group of workloads.

A module of this folder holds builder functions (`threadtest(size=64, threads=2) -> Case`) that figures call too, and
`suite() -> list[Case]`: those of the full and the quick run.
"""

import importlib

MODULES = ("classic", "acdc", "supermalloc", "pages", "beyond", "shapes", "programs")


def catalogue():
    """Every case of the full and the quick run, in the order of the report; ids are unique."""
    cases = {}
    for name in MODULES:
        for case in importlib.import_module(f"{__name__}.{name}").suite():
            if case.id in cases:
                raise ValueError(f"two cases are called {case.id}")
            cases[case.id] = case
    return list(cases.values())
