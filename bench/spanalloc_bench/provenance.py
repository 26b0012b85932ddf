"""Of which commit recorded results are, and what is wrong with what a record says of it.

A record (meta.json and the like) names the commit of the source tree that its samples were taken of. That can be looked up
only if the commit is in the repository's history, and it is true only of samples younger than the commit. A record of which
that is not so says what is known instead, in its "commit_note"."""

from __future__ import annotations

import datetime
import glob
import json
import os
import shutil
import subprocess

from spanalloc_bench import store

NOTE = "commit_note"


def note(meta) -> str:
    """What is to be said beside the commit; nothing where it is what it seems."""
    return meta.get(NOTE, "")


def _seconds(started) -> float | None:
    """Seconds since 1970 of a record's time; times without a zone are UTC, as containers have it."""
    if not started:
        return None
    for form in ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S"):
        try:
            time = datetime.datetime.strptime(started, form)
        except ValueError:
            continue
        return (time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)).timestamp()
    raise ValueError(f"no time: {started}")


def sources(meta) -> list[tuple[dict, str | None]]:
    """What a record says of the source trees that it is of, and when what was taken of each began. Runs that name their own
    count instead of the record's, which is the last one's."""
    runs = [run for run in meta.get("runs", []) if run.get("git", {}).get("commit")]
    if runs:
        return [(run["git"], run.get("started")) for run in runs]
    source = meta.get("git") or meta.get("source") or {"commit": meta.get("commit")}
    parts = [part["started"] for part in meta.get("programs", {}).values() if "started" in part]
    return [(source, meta.get("started") or min(parts, default=None))] if source.get("commit") else []


class History:
    """The commits of a repository. `missing`: why it has none to look up; empty if it has."""

    def __init__(self, source):
        self._source, self._known = source, {}
        self.missing = "git is not installed" if not shutil.which("git") else ""
        if not self.missing and self._git("rev-parse", "--is-shallow-repository") != "false":
            self.missing = "this tree has no whole history"

    def _git(self, *arguments) -> str:
        run = subprocess.run(["git", "-c", f"safe.directory={self._source}", "-C", self._source, *arguments],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return run.stdout.strip() if run.returncode == 0 else ""

    def seconds(self, commit) -> float | None:
        """When the commit was made, in seconds since 1970; None where it is in no history of what is checked out."""
        if commit not in self._known:
            is_here = self._git("merge-base", commit, "HEAD") == self._git("rev-parse", f"{commit}^{{commit}}") != ""
            self._known[commit] = float(self._git("log", "-1", "--format=%ct", commit)) if is_here else None
        return self._known[commit]


def problem(history, meta, first_sample=None) -> str:
    """What is not so of what a record says of its commits; nothing where all is. `first_sample`: when the first of the
    samples that the record's own commit stands for was taken, in seconds since 1970."""
    found = sources(meta)
    if not found:
        return "names no commit"
    for source, started in found:
        commit = source["commit"]
        made = history.seconds(commit)
        if made is None:
            return f"{commit[:10]} is not in the history"
        times = [_seconds(started), first_sample if len(found) == 1 else None]
        if any(time is not None and time < made for time in times):
            return f"samples are older than {commit[:10]}"
    return ""


def records(folder) -> list[str]:
    """The records of a folder and of those below it."""
    return sorted(path for path in glob.glob(os.path.join(folder, "**", "*.json"), recursive=True)
                  if path.endswith("meta.json") or os.path.basename(os.path.dirname(path)) == "reports")


def problems(history, folder) -> dict[str, str]:
    """What is wrong with the records below a folder, by record. A note that stands where nothing is wrong is wrong, too."""
    found = {}
    for path in records(folder):
        with open(path, encoding="utf-8") as file:
            meta = json.load(file)
        starts = []
        if os.path.basename(path) == store.META:
            starts = [sample.started for sample in store.samples(os.path.dirname(path)) if sample.started]
        wrong = problem(history, meta, min(starts, default=None))
        if wrong and not note(meta):
            found[path] = wrong
        elif note(meta) and not wrong:
            found[path] = f"nothing is wrong with the commit, but its {NOTE} says: {note(meta)}"
    return found
