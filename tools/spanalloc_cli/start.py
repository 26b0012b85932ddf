"""Entry point for the launcher: start.py LIBRARY_DIR HELPER_DIR ARGUMENTS...

`run` with plain arguments is done here, without loading the command-line framework: it should cost no more
than starting Python does. Everything else, also every mistake in the arguments, goes to cli.py.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from spanalloc_cli import libraries, run  # noqa: E402


def plain_run_arguments(arguments):
    """(config, command) of `run [--config NAME] [--] COMMAND...`; None for any other form."""
    if arguments[:1] != ["run"]:
        return None
    config, rest = libraries.DEFAULT_CONFIG, arguments[1:]
    if len(rest) >= 2 and rest[0] in ("--config", "-c"):
        config, rest = rest[1], rest[2:]
    elif rest and rest[0].startswith("--config="):
        config, rest = rest[0][len("--config="):], rest[1:]
    if rest[:1] == ["--"]:
        rest = rest[1:]
    elif rest and rest[0].startswith("-"):
        return None
    return (config, rest) if rest else None


def main():
    library_dir, helper_dir, *arguments = sys.argv[1:]
    places = libraries.Places(library_dir, helper_dir)
    plain = plain_run_arguments(arguments)
    if plain:
        sys.exit(run.run(places, *plain))
    try:
        from spanalloc_cli import cli
    except ImportError as error:
        print(
            f"spanalloc: {error}. Only `spanalloc run` does without the Python packages typer and rich:\n"
            "  apt install python3-typer python3-rich\n"
            "or, in a source tree, run scripts/try, which sets up build/venv; or name a Python that has them:\n"
            f"  SPANALLOC_PYTHON=/a/venv/bin/python3 (this one is {sys.executable})",
            file=sys.stderr,
        )
        sys.exit(run.OWN_FAILURE)
    cli.main(places, arguments)


if __name__ == "__main__":
    main()
