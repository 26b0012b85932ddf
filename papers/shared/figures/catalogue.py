"""All figures of the four papers, and our own beside them, by id; and the claims of their texts."""

from __future__ import annotations

from papers.a2alloc.figures import figures as a2alloc
from papers.a2alloc.figures import future_work
from papers.a2alloc.figures import prose as a2alloc_prose
from papers.leite_rocha.figures import figures as leite_rocha
from papers.leite_rocha.figures import prose as leite_rocha_prose
from papers.scalloc.figures import figures as scalloc
from papers.scalloc.figures import prose as scalloc_prose
from papers.shared.figures.figure import Figure, Paper
from papers.shared.figures.prose import Prose
from papers.supermalloc.figures import ablations
from papers.supermalloc.figures import figures as supermalloc
from papers.supermalloc.figures import prose as supermalloc_prose

_MODULES = (scalloc, supermalloc, ablations, leite_rocha, a2alloc, future_work)
PAPERS: dict[str, Paper] = {module.PAPER.key: module.PAPER for module in _MODULES}
FIGURES: dict[str, Figure] = {figure.id: figure for module in _MODULES for figure in module.FIGURES}
TEXTS: dict[str, tuple[Prose, ...]] = {
    scalloc.PAPER.key: scalloc_prose.ROWS, supermalloc.PAPER.key: supermalloc_prose.ROWS,
    leite_rocha.PAPER.key: leite_rocha_prose.ROWS, a2alloc.PAPER.key: a2alloc_prose.ROWS,
}
