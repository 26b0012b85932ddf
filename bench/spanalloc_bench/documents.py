"""What commands put into the project's documents: Markdown, between markers."""

from __future__ import annotations

import os
import sys

from spanalloc_bench import tree, words


def table(headings, rows, left=(0,)) -> list[str]:
    """The lines of a table; columns whose places are not in `left` are numbers."""
    rule = "".join("---|" if place in left else "--:|" for place in range(len(headings)))
    return [f"| {' | '.join(headings)} |", f"|{rule}", *(f"| {' | '.join(row)} |" for row in rows)]


def origin(meta, processor=True) -> str:
    """Where and of what a run was made: machine, commit and day, of a command's record."""
    where, commit = meta["machine"], words.commit(meta, 10)
    parts = [where["processor"], f"{where['cores']} cores"] if processor else []
    parts += [where["system"], f"Linux {where['kernel'].split('-')[0]}", where["libc"]]
    return ", ".join([*parts, *([f"commit {commit}"] if commit else []), meta["started"][:10]]) + "."


# ---- markers ----


def between_markers(text, name, content, document="README.md") -> str:
    """`text` with `content` between <!-- NAME:begin --> and <!-- NAME:end -->."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    if begin not in text or end not in text:
        sys.exit(f"{document} has no place for this: it lacks the line {begin.strip()} or {end}")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}{end}{rest.split(end, 1)[1]}"


def write(parts, source=tree.SOURCE):
    """Puts each text, by (document, marker), between its markers in the documents of the source tree."""
    for document in dict.fromkeys(document for document, _ in parts):
        path = os.path.join(source, document)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        for (where, marker), content in parts.items():
            if where == document:
                text = between_markers(text, marker, content, document)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def link(folder, document, source) -> str:
    """A link from a document to a folder of the source tree."""
    beside = os.path.join(source, os.path.dirname(document))
    return f"[{os.path.relpath(folder, source)}]({os.path.relpath(folder, beside)})"
