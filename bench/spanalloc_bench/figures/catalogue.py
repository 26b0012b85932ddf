"""All figures of the four papers, and our own beside them, by id."""

from __future__ import annotations

from spanalloc_bench.figures import (
    a2alloc, a2alloc_future, coalescing, scalloc, supermalloc, supermalloc_ablations,
)
from spanalloc_bench.figures.figure import Figure, Paper

_MODULES = (scalloc, supermalloc, supermalloc_ablations, coalescing, a2alloc, a2alloc_future)
PAPERS: dict[str, Paper] = {module.PAPER.key: module.PAPER for module in _MODULES}
FIGURES: dict[str, Figure] = {figure.id: figure for module in _MODULES for figure in module.FIGURES}
