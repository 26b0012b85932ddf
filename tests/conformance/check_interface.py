#!/usr/bin/env python3
"""Sees that the test of what spanalloc.h promises leaves nothing out, and that the libraries export its functions.

usage: check_interface.py HEADER PROGRAM LIST

PROGRAM (abi/interface.c) must name each function, structure, field and constant of the header; LIST (abi/shared.txt)
must have each of its functions, and no other one that begins with sp_.
"""
import pathlib
import re
import sys


def declared(header):
    """What the program has to say of the header, as patterns: {what: pattern}."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    wanted = {name: rf"\bFUNCTION\({name}," for name in functions(header)}
    for structure, body in re.findall(r"\bstruct (\w+) \{(.*?)\};", text, re.DOTALL):
        wanted[f"size of {structure}"] = rf"\bSIZE\({structure},"
        wanted.update({f"{structure}.{field}": rf"\bFIELD\({structure}, {field},"
                       for field in fields(body)})
    wanted.update({name: rf"\bCONSTANT\({name}," for name in re.findall(r"\bSP_[A-Z_]+\b", text)})
    return wanted


def fields(body):
    """Names of a structure's fields: `size_t a, *b[4]; void (*c)(int, int);` has a, b and c."""
    found = []
    for member in body.split(";"):
        member = re.sub(r"\(\s*\*\s*(\w+)\s*\)\s*\([^)]*\)", r"\1", member)
        for declarator in member.split(",") if member.strip() else ():
            found += re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$", declarator)
    return found


def functions(header):
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    return set(re.findall(r"\bSPANALLOC_PUBLIC\s+[\w ]+\*? ?\b(sp_\w+)\(", text))


def main(arguments):
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    header, program, list_text = (pathlib.Path(path).read_text(encoding="utf-8") for path in arguments)
    wanted = declared(header)
    problems = [f"{arguments[1]} does not check {what}" for what, pattern in sorted(wanted.items())
                if not re.search(pattern, program)]
    exported = set(re.findall(r"^sp_\w+", list_text, re.MULTILINE))
    problems += [f"{arguments[2]} has {name}, which the header does not declare" for name in exported - functions(header)]
    problems += [f"{arguments[2]} lacks {name}, which the header declares" for name in functions(header) - exported]
    for problem in sorted(problems):
        print(problem, file=sys.stderr)
    print(f"{len(functions(header))} functions, {len(wanted)} promises in all")
    return 1 if problems or not exported else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
