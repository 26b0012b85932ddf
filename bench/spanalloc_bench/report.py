"""The report of a run: one HTML file that needs no other, and PNGs of its plots. Its words are in templates/."""

from __future__ import annotations

import os

from markupsafe import Markup

from spanalloc_bench import analyse, drawings, extensions, medians, packed, pages, plots, provenance, store, tables, words

REPORT = "report.html"
MANYCORE = "manycore.html"  # the simulated machine's part, where it has been run into this folder


def _manycore(folder) -> Markup:
    try:
        with open(os.path.join(folder, MANYCORE), encoding="utf-8") as file:
            return Markup(file.read())
    except FileNotFoundError:
        return Markup()


def _run(found) -> list[tuple]:
    """What the record says of the run itself, below the machine."""
    meta = found.meta
    run = [(key, meta[key]) for key in ("started", "finished", "command") if meta.get(key)]
    run += [("commit", words.commit(meta))] if words.commit(meta) else []
    for part in ("suite", "settings"):
        run += list((meta.get(part) or {}).items())
    known = {"format", "machine", "git", "allocators", "cases", "suite", "settings", "started", "finished",
             "command", "programs", "verified", "runs", provenance.NOTE}
    run += [(key, value) for key, value in meta.items() if key not in known]
    run += [(f"run {number}", facts) for number, facts in enumerate(meta.get("runs") or [], start=1)]
    other = len(found.cases) - len(found.suite)
    if other:
        run.append(("cases of figures", f"{other} more, which only figures of the papers ask for: in no mean here"))
    return run


def write(folder) -> str:
    """Writes report.html, the PNGs and medians.csv into the run's folder; returns the report's path."""
    folder = os.fspath(folder)
    medians.write(folder)
    found = analyse.load(folder)

    def figure(drawing, name, alt):
        """The figure for the page, saved as PNG too."""
        if drawing is None:
            return ""
        plots.save(drawing, os.path.join(folder, f"{name}.png"))
        return Markup(f"<figure>{plots.inline(drawing, alt)}</figure>")

    page = pages.TEMPLATES.get_template(REPORT).render(
        found=found, product=next(iter(found.products()), None),
        papers=[picture for extension in extensions.joined for picture in extension.pictures(folder)],
        manycore=_manycore(folder), run=_run(found), samples=os.path.basename(packed.path(folder, store.SAMPLES)),
        figure=figure, analyse=analyse, drawings=drawings, tables=tables, words=words)
    path = os.path.join(folder, REPORT)
    packed.replace(path, page.encode())
    return path
