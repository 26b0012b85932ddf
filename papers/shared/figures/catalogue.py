"""All figures of the four papers, and our own beside them, by id."""

from __future__ import annotations

from papers.a2alloc.figures import figures as a2alloc
from papers.a2alloc.figures import future_work
from papers.leite_rocha.figures import figures as leite_rocha
from papers.scalloc.figures import figures as scalloc
from papers.shared.figures.figure import Figure, Paper
from papers.supermalloc.figures import ablations
from papers.supermalloc.figures import figures as supermalloc

_MODULES = (scalloc, supermalloc, ablations, leite_rocha, a2alloc, future_work)
PAPERS: dict[str, Paper] = {module.PAPER.key: module.PAPER for module in _MODULES}
FIGURES: dict[str, Figure] = {figure.id: figure for module in _MODULES for figure in module.FIGURES}
