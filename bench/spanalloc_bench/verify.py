"""Whose malloc a program really uses, asked inside its processes by spanalloc-probe (tools/probe.c)."""

from __future__ import annotations

import os
import subprocess
import tempfile

TIMEOUT_S = 600  # for what hangs


def probe_lines(text) -> dict[int, str]:
    """{process id: real path of the object that defines malloc} from what the probe wrote. A process that became
    another program wrote more than one line: the last one counts."""
    objects = {}
    for line in text.splitlines():
        process, object_, _ = line.split("\t", 2)
        objects[int(process)] = os.path.realpath(object_)
    return objects


def malloc_objects(places, path, command, environment) -> tuple[dict[int, str], str]:
    """({process id: object that defines malloc}, how it ended) of a command with `path` preloaded. The second is empty
    where it ended well."""
    with tempfile.NamedTemporaryFile(prefix="spanalloc-probe-") as out:
        environment = dict(environment, LD_PRELOAD=f"{places.probe}:{path}", SPANALLOC_PROBE_OUT=out.name)
        try:
            run = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                timeout=TIMEOUT_S, check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"comes to no end within {TIMEOUT_S} s"
        objects = probe_lines(out.read().decode(errors="replace"))
    errors = run.stderr.decode(errors="replace").strip()
    if "cannot be preloaded" in errors:
        reason = errors.partition("cannot be preloaded")[2].partition("\n")[0].removesuffix(": ignored.").strip()
        return objects, f"runs without it: the dynamic linker cannot load it {reason}"
    if run.returncode:
        ending = f"is killed by signal {-run.returncode}" if run.returncode < 0 else f"ends with exit code {run.returncode}"
        return objects, ending + (f": {errors.splitlines()[-1]}" if errors else "")
    return objects, ""


def why_no_malloc(places, path) -> str:
    """Why a shared object does not take malloc's place when it is preloaded; empty when it does."""
    objects, ending = malloc_objects(places, path, ["true"], os.environ)
    if ending:
        return f"a program that preloads it {ending}"
    if set(objects.values()) != {os.path.realpath(path)}:
        return "it defines no malloc"
    return ""
