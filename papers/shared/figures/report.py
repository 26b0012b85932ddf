"""The papers' figures in the report of a run."""

from __future__ import annotations

import base64
import io
import json
import os

from PIL import Image

from papers.shared.figures import draw, records
from papers.shared.figures.figure import FOLDER


def pictures(folder) -> list[dict]:
    """The papers' figures that were run into this folder, with their verdicts counted and their pictures."""
    path, found = os.path.join(folder, FOLDER), {}
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
            draw.png(data, picture)
    for figure in found.values():
        answers = [claim.get("verdict", "") for claim in figure.get("claims", [])]
        figure["tally"] = ", ".join(f"{answers.count(answer)} {answer}" for answer in dict.fromkeys(answers))
        picture = os.path.join(path, f"{figure.get('id', '')}.png")
        figure["picture"] = base64.b64encode(small_png(picture)).decode() if os.path.isfile(picture) else ""
    return [found[name] for name in sorted(found)]


def small_png(path) -> bytes:
    """A plot's PNG with 64 colours: a quarter of the bytes, and nothing that is seen is lost."""
    out = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()
