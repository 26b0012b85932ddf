#!/usr/bin/env python3
"""Reads the machine code of a library's hot functions.

usage: check_hot_path.py LIBRARY FUNCTION...
       check_hot_path.py --self-test COMPILER

Walks the straight-line path of each function: falls through conditional branches, follows jumps inside the
function, ends at the first return. The path must not contain a locked or otherwise atomic read-modify-write, a
fence, or a call, and must not leave the function. Prints each path's length; exit code 1 and a line for each
violation. --self-test compiles functions with known faults and demands that each is found. OBJDUMP names
another objdump.
"""
import os
import re
import subprocess
import sys
import tempfile

# By machine: what must not stand on the path, how the path goes on, how it ends.
X86 = {
    "banned": re.compile(r"^(lock|xacquire|xrelease|cmpxchg|xadd|mfence|lfence|sfence|call|syscall)"
                         r"|^xchg.*\("),
    "jump": re.compile(r"^jmpq?\s+([0-9a-f]+)"),
    "indirect": re.compile(r"^jmpq?\s+\*"),
    "return": re.compile(r"^(bnd |rep |repz )?retq?\b"),
}
ARM = {
    "banned": re.compile(r"^(ldx|ldax|stx|stlx|cas|swp|ldadd|ldset|ldclr|ldeor|dmb|dsb|blr?\s|svc)"),
    "jump": re.compile(r"^b\s+([0-9a-f]+)"),
    "indirect": re.compile(r"^br\s"),
    "return": re.compile(r"^ret\b"),
}
MAX_STEPS = 500


def tool(name, *arguments):
    command = [os.environ.get(name.upper()) or name, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def function_ranges(library):
    """name -> (start, end) of the functions that the dynamic or the static symbol table names."""
    ranges = {}
    for table in ("-D", "--defined-only"):
        for line in tool("nm", "-S", table, library).splitlines():
            fields = line.split()
            if len(fields) == 4 and fields[2] in "TtWi":
                start = int(fields[0], 16)
                ranges[fields[3].split("@")[0]] = (start, start + int(fields[1], 16))
    return ranges


def instructions(library, start, end):
    """[(address, text)] of a range, in order."""
    listing = tool("objdump", "-d", "--no-show-raw-insn", f"--start-address={start:#x}", f"--stop-address={end:#x}",
                   library)
    found = []
    for line in listing.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line)
        if match:
            found.append((int(match.group(1), 16), re.sub(r"\s+", " ", match.group(2)).strip()))
    return found, ARM if "aarch64" in listing else X86


def walk(library, name):
    """(number of instructions on the straight-line path, list of violations)."""
    ranges = function_ranges(library)
    if name not in ranges:
        return 0, [f"{name}: no such function"]
    listing, rules = instructions(library, *ranges[name])
    position = {address: index for index, (address, _) in enumerate(listing)}
    index, steps, violations = 0, 0, []
    while steps < MAX_STEPS:
        if index >= len(listing):
            return steps, violations + [f"{name}: the path runs over the function's end"]
        address, text = listing[index]
        steps += 1
        if rules["return"].match(text):
            return steps, violations
        if rules["banned"].match(text):
            violations.append(f"{name}: {address:x}: {text}")
        jump = rules["jump"].match(text)
        if rules["indirect"].match(text) or (jump and int(jump.group(1), 16) not in position):
            return steps, violations + [f"{name}: {address:x}: {text} leaves the function before a return"]
        index = position[int(jump.group(1), 16)] if jump else index + 1
    return steps, violations + [f"{name}: no return within {MAX_STEPS} instructions"]


def check(library, names):
    violations = []
    for name in names:
        steps, found = walk(library, name)
        violations += found
        print(f"{os.path.basename(library)}: {name}: {steps} instructions on the straight-line path")
    for violation in violations:
        print(violation, file=sys.stderr)
    return 1 if violations else 0


FIXTURE = """
extern void other(void);
extern long word;
__attribute__((cold, noinline)) void slow(void) { other(); __sync_fetch_and_add(&word, 2); }
long good(long* p) { if (__builtin_expect(*p == 7, 0)) { slow(); return 0; } return *p + 1; }
long locked(long* p) { return __sync_fetch_and_add(p, 1); }
long exchanged(long* p) { return __atomic_exchange_n(p, 1, __ATOMIC_SEQ_CST); }
void fenced(long* p) { *p = 1; __atomic_thread_fence(__ATOMIC_SEQ_CST); *p = 2; }
long called(long* p) { other(); return *p; }
void left(void) { other(); }
long forever(long* p) { for (;;) __asm__ volatile("" ::: "memory"); return *p; }
"""


def self_test(compiler):
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "fixture.c"), os.path.join(folder, "fixture.so")
        with open(source, "w", encoding="ascii") as file:
            file.write(FIXTURE)
        subprocess.run([compiler, "-O2", "-fPIC", "-shared", source, "-o", library], check=True)
        for name, good in (("good", True), ("locked", False), ("exchanged", False), ("fenced", False),
                           ("called", False), ("left", False), ("forever", False), ("missing", False)):
            _, violations = walk(library, name)
            print(f"{name}: {violations or 'clean'}")
            if good == bool(violations):
                failures.append(name)
    for name in failures:
        print(f"self-test: judged {name} wrongly", file=sys.stderr)
    return 1 if failures else 0


def main(arguments):
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if arguments[0] == "--self-test":
        return self_test(arguments[1])
    return check(arguments[0], arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
