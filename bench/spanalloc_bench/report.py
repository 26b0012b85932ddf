"""The report of a run: one HTML file that needs no other, and PNGs of its plots. Its words are in templates/."""

from __future__ import annotations

import base64
import io
import json
import os

from markupsafe import Markup
from PIL import Image

from spanalloc_bench import analyse, drawings, medians, packed, pages, plots, store, tables, words
from papers.shared.figures import draw as draw_figure
from papers.shared.figures import records

REPORT = "report.html"
FIGURES = "figures"  # folder of the papers' figures inside a run's
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
             "command", "programs", "verified", "runs"}
    run += [(key, value) for key, value in meta.items() if key not in known]
    run += [(f"run {number}", facts) for number, facts in enumerate(meta.get("runs") or [], start=1)]
    other = len(found.cases) - len(found.suite)
    if other:
        run.append(("cases of figures", f"{other} more, which only figures of the papers ask for: in no mean here"))
    return run


# ---- the papers' figures ----


def _paper_figures(folder) -> list[dict]:
    """The papers' figures that were run into this folder, with their verdicts counted and their pictures."""
    path, found = os.path.join(folder, FIGURES), {}
    files = records.files(folder)
    for name in files:
        with open(os.path.join(path, f"{name}.json"), encoding="utf-8") as file:
            found[name] = json.load(file)
    for name, data in records.from_samples(folder).items():
        found[name] = records.outcome(data)
        picture = os.path.join(path, f"{name}.png")
        # One beside an older version's record has the names of then.
        if found[name]["data"] and (name in files or not os.path.isfile(picture)):
            os.makedirs(path, exist_ok=True)
            draw_figure.png(data, picture)
    for figure in found.values():
        answers = [claim.get("verdict", "") for claim in figure.get("claims", [])]
        figure["tally"] = ", ".join(f"{answers.count(answer)} {answer}" for answer in dict.fromkeys(answers))
        picture = os.path.join(path, f"{figure.get('id', '')}.png")
        figure["picture"] = base64.b64encode(_small_png(picture)).decode() if os.path.isfile(picture) else ""
    return [found[name] for name in sorted(found)]


def _small_png(path) -> bytes:
    """A plot's PNG with 64 colours: a quarter of the bytes, and nothing that is seen is lost."""
    out = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


# ---- the page ----


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
        found=found, product=next(iter(found.products()), None), papers=_paper_figures(folder),
        manycore=_manycore(folder), run=_run(found), samples=os.path.basename(packed.path(folder, store.SAMPLES)),
        figure=figure, analyse=analyse, drawings=drawings, tables=tables, words=words)
    path = os.path.join(folder, REPORT)
    packed.replace(path, page.encode())
    return path
