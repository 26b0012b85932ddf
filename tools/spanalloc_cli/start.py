"""Entry point for the launcher: start.py LIBRARY_DIR HELPER_DIR ARGUMENTS..."""

import os
import sys

_SYSTEMS = "/usr/bin/python3"


def main():
    if sys.version_info < (3, 9):  # the first one on the PATH need not be the newest one
        if os.path.exists(_SYSTEMS) and sys.executable != _SYSTEMS:
            os.execv(_SYSTEMS, [_SYSTEMS, "-I"] + sys.argv)
        sys.exit("spanalloc: Python 3.9 or newer is needed; %s is %s" % (sys.executable, sys.version.split()[0]))
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from spanalloc_cli import cli, libraries

    library_dir, helper_dir, *words = sys.argv[1:]
    cli.main(libraries.Places(library_dir, helper_dir), words)


if __name__ == "__main__":
    main()
