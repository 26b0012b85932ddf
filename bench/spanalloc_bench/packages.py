"""The suite's Python packages, where a command finds that one is missing: scripts/bench installs them, the command goes on.

That is done only where Python runs from the environment that the scripts made for this tree (build/venv). Any other one
belongs to its user, who is told the command.
"""

from __future__ import annotations

import os
import subprocess
import sys

from spanalloc_bench import tree

REQUIREMENTS = os.path.join(tree.SOURCE, "bench", "requirements.txt")
_TRIED = "SPANALLOC_BENCH_PACKAGES"  # in the environment of a command that is started for the second time


def of_the_scripts(prefix: str) -> bool:
    """Whether the environment at `prefix` is one that scripts/lib.sh's make_venv made."""
    return os.path.isfile(os.path.join(prefix, ".made-from"))


def install_and_restart(missing: ImportError, building: bool) -> str:
    """Installs the packages and starts this process's command again, once. Returns only where that is not done, with
    what the user is to be told. `building` is false where the command is to leave everything as it is."""
    if building and of_the_scripts(sys.prefix) and _TRIED not in os.environ:
        script = os.path.join(tree.SOURCE, "scripts", "bench")
        environment = {**os.environ, "SPANALLOC_BUILD": os.path.dirname(os.path.realpath(sys.prefix))}
        # What the script says is progress, not a result.
        if subprocess.run(["sh", script, "--packages-only"], stdout=sys.stderr, env=environment, check=False).returncode == 0:
            os.environ[_TRIED] = "1"
            isolated = ["-I"] if sys.flags.isolated else []
            os.execv(sys.executable, [sys.executable, *isolated, *sys.argv])
    return (f"{missing}. scripts/bench --build-only sets everything up; or:\n"
            f"  {sys.executable} -m pip install -r {REQUIREMENTS}")
