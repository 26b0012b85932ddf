"""Whose malloc a program really uses, asked inside its processes by spanalloc-probe (tools/probe.c)."""

from __future__ import annotations

import os
import subprocess
import tempfile


def probe_lines(text) -> dict[int, str]:
    """{process id: real path of the object that defines malloc} from what the probe wrote. A process that became
    another program wrote more than one line: the last one counts."""
    objects = {}
    for line in text.splitlines():
        process, object_, _ = line.split("\t", 2)
        objects[int(process)] = os.path.realpath(object_)
    return objects


def why_no_malloc(places, path) -> str:
    """Why a shared object does not take malloc's place when it is preloaded; empty when it does."""
    with tempfile.NamedTemporaryFile(prefix="spanalloc-probe-") as out:
        environment = dict(os.environ, LD_PRELOAD=f"{places.probe}:{path}", SPANALLOC_PROBE_OUT=out.name)
        try:
            run = subprocess.run(
                ["true"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                timeout=30, check=False,
            )
        except subprocess.TimeoutExpired:
            return "a program that preloads it does not come to an end"
        objects = probe_lines(out.read().decode(errors="replace"))
    errors = run.stderr.decode(errors="replace").strip()
    if "cannot be preloaded" in errors:
        reason = errors.partition("cannot be preloaded")[2].partition("\n")[0].removesuffix(": ignored.").strip()
        return f"the dynamic linker cannot load it {reason}"
    if run.returncode:
        ending = f"signal {-run.returncode}" if run.returncode < 0 else f"exit code {run.returncode}"
        return f"a program that preloads it ends with {ending}" + (f": {errors.splitlines()[-1]}" if errors else "")
    if set(objects.values()) != {os.path.realpath(path)}:
        return "it defines no malloc"
    return ""
