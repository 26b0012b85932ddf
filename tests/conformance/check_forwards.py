#!/usr/bin/env python3
"""Reads the machine code of the functions that are defined by another public function (x86-64).

usage: check_forwards.py LIBRARY

Each must be one jump, through the slot that the loader fills in with the exported function of that name, whoever's it is;
what has to move an argument does so before, by one instruction. (Clang calls operators through the procedure linkage table,
which is one jump more.) A nothrow operator new has at most NOTHROW instructions more than the form that throws. Prints what
is not so, one line each; exit code 0 when all is. NM, OBJDUMP and READELF name other tools.
"""
import re
import subprocess
import sys

from check_hot_path import function_ranges, instructions, tool, walk

# What calls what: operators without their first letters.
C = {"free_sized": "free", "free_aligned_sized": "free", "cfree": "free"}
OPERATORS = {"nam": "nwm", "namSt11align_val_t": "nwmSt11align_val_t",
             "daPv": "dlPv", "dlPvm": "dlPv", "daPvm": "daPv",
             "dlPvRKSt9nothrow_t": "dlPv", "daPvRKSt9nothrow_t": "daPv",
             "daPvSt11align_val_t": "dlPvSt11align_val_t", "dlPvmSt11align_val_t": "dlPvSt11align_val_t",
             "daPvmSt11align_val_t": "daPvSt11align_val_t",
             "dlPvSt11align_val_tRKSt9nothrow_t": "dlPvSt11align_val_t",
             "daPvSt11align_val_tRKSt9nothrow_t": "daPvSt11align_val_t"}
FORWARDS = {**C, **{f"_Z{name}": f"_Z{target}" for name, target in OPERATORS.items()}}
MOVES = {"_ZdlPvmSt11align_val_t", "_ZdaPvmSt11align_val_t"}  # the alignment, from the third place to the second
NOTHROW = 5
CLANG_JUMP = re.compile(r"jmpq? (?:0x)?[0-9a-f]+ <(\w+)@plt>")
JUMP = re.compile(r"jmpq? \*[-0-9a-fx]+\(%rip\) +# (?:0x)?([0-9a-f]+)")  # GNU's objdump, and LLVM's


def slots(library):
    """{address: symbol} of what the loader fills in before anything runs."""
    found = {}
    for line in tool("readelf", "-rW", library).splitlines():
        fields = line.split()
        if len(fields) >= 5 and fields[2] == "R_X86_64_GLOB_DAT":
            found[int(fields[0], 16)] = fields[4].split("@")[0]
    return found


def check(library):
    ranges, filled_in, problems = function_ranges(library), slots(library), []
    by_clang = "clang" in tool("readelf", "-p", ".comment", library)
    for name, target in FORWARDS.items():
        code = [text for _, text in instructions(library, *ranges[name])[0]]
        jump = JUMP.match(code[-1])
        linked = CLANG_JUMP.match(code[-1]) if by_clang else None
        if linked and linked.group(1) == target and len(code) == (2 if name in MOVES else 1):
            continue
        if len(code) != (2 if name in MOVES else 1) or jump is None:
            problems.append(f"{name} is no single jump, but {len(code)} instructions: {'; '.join(code[:3])}")
        elif filled_in.get(int(jump.group(1), 16)) != target:
            problems.append(f"{name} jumps to {filled_in.get(int(jump.group(1), 16))}, not to {target}")
    if "realloc" not in filled_in.values():
        problems.append("reallocarray does not call realloc by its exported name")
    throwing, _ = walk(library, "_Znwm")  # whether it is a straight line conformance.hot_path asks
    for name in ("_ZnwmRKSt9nothrow_t", "_ZnamRKSt9nothrow_t"):
        steps, _ = walk(library, name)
        print(f"{name}: {steps} instructions on the straight-line path, _Znwm {throwing}")
        if steps > throwing + NOTHROW:
            problems.append(f"{name} takes {steps} instructions, _Znwm {throwing}")
    return problems


def main(arguments):
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        problems = check(arguments[0])
    except (subprocess.CalledProcessError, KeyError) as error:
        problems = [f"cannot be read: {error!r}"]
    for problem in problems:
        print(f"{arguments[0]}: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
