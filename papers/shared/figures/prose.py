"""Claims of a paper's text that none of its experiments decides: what shows them here, or why nothing does. No number in
them is a measurement: those are the figures'."""

from __future__ import annotations

import collections
import dataclasses
import enum
import os


class Shown(enum.Enum):
    """By what a claim of the text is decided."""

    TEST = "shown by a test"
    SOURCE = "by the source"                # it follows from the code that is named
    AGAINST = "does not hold"               # so do a test, or the code, say
    COUNT = "not counted"                   # a count would decide it that nobody has made
    CANNOT = "cannot be shown here"
    NOT_BUILT = "not built"


@dataclasses.dataclass(frozen=True)
class Prose:
    """`refs`: tests by their names, Suite.Name, and files by their paths in the tree, path or path:symbol."""

    name: str
    text: str
    place: str
    shown: Shown
    said: str
    refs: tuple[str, ...] = ()


def is_file(ref) -> bool:
    return "/" in ref


def counts(rows) -> collections.Counter:
    return collections.Counter(row.shown.value for row in rows)


def _ref(ref, room) -> str:
    if not is_file(ref):
        return f"`{ref}`"
    path, _, symbol = ref.partition(":")
    return f"[{symbol or os.path.basename(path)}]({os.path.relpath(path, room)})"


def _line(row, room, cell) -> str:
    refs = ", ".join(_ref(ref, room) for ref in row.refs)
    said = f"{row.said} ({refs})" if refs else row.said
    return f'| <a id="text-{row.name}"></a>{cell(row.text)} ({row.place}) | **{row.shown.value}** | {said} |'


def lines(rows, room, cell) -> list[str]:
    """The parts of a room's CLAIMS.md; `cell` makes a text fit into a table."""
    judged = [row for row in rows if row.shown is not Shown.NOT_BUILT]
    wanting = [row for row in rows if row.shown is Shown.NOT_BUILT]
    out = []
    if judged:
        out += ["", "## Claims of the text", "", "What the paper says outside of its experiments. No verdict here counts among "
                "those above.", "", "| claim | | by what |", "|---|---|---|", *(_line(row, room, cell) for row in judged)]
    if wanting:
        out += ["", "## Not built, and why", "", "| claim | | why |", "|---|---|---|",
                *(_line(row, room, cell) for row in wanting)]
    return out
