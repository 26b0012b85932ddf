"""`spanalloc block`, `spanalloc heap` and `spanalloc find` for gdb: (gdb) source scripts/gdb/spanalloc.py

What they do is in the command's package, spanalloc_cli, which is beside this file where it is installed, and in tools/
of the source tree. docs/debugging.md shows them."""

import os
import sys


def _load():
    here = os.path.dirname(os.path.realpath(__file__))
    places = (os.path.dirname(here), os.path.join(here, os.pardir, os.pardir, "tools"))
    package = next((place for place in places if os.path.isdir(os.path.join(place, "spanalloc_cli"))), None)
    if package is None:
        raise ImportError(f"there is no spanalloc_cli beside {here}")
    if sys.version_info < (3, 9):
        raise ImportError(f"spanalloc needs Python 3.9 in gdb; this is {sys.version.split()[0]}")
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.realpath(package))
    from spanalloc_cli import gdb_commands

    gdb_commands.register()


_load()
