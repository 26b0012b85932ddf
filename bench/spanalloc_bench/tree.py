"""Where the suite's files are: the source tree, the built workloads, the generated inputs, a run's results."""

from __future__ import annotations

import hashlib
import os

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_OUT = os.path.join(SOURCE, "out", "bench")


def relative(path: str) -> str:
    """The path as results keep it: of what lies in the source tree, from there, so that they say the same in every
    checkout; of anything else, as it is."""
    for source in dict.fromkeys((SOURCE, os.path.realpath(SOURCE))):
        if path.startswith(source + os.sep):
            return os.path.relpath(path, source)
    return path


def sha256(path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def build_folder(places) -> str:
    """The build folder that the command was started from, normally build/release."""
    return os.path.dirname(places.helper_dir)


def workloads(places) -> str:
    """Folder of the built programs of bench/workloads: {bin} in a case's argv."""
    return os.path.join(build_folder(places), "bench")


def fixtures(places) -> str:
    """Folder of the generated inputs: {fixtures} in a case's argv. Shared by all runs of this build."""
    return os.path.join(build_folder(places), "bench", "fixtures")
