"""Experiments that stand outside the suite and take part in it. The suite imports none of them: whoever starts it adds
them (tools/spanalloc_cli/cli.py adds the papers' figures, papers/shared/figures/commands.py). Their commands they add to
cli.app themselves."""

from __future__ import annotations

from typing import Protocol


class Extension(Protocol):
    def pictures(self, folder) -> list[dict]:
        """What of it was run into the folder, for templates/report.html, which says which words it takes."""

    def holds(self, folder) -> bool:
        """Whether the folder has anything of it to be kept. BadChoice where that cannot be kept."""

    def keep(self, folder, target, copy_tables):
        """Keeps in `target` what it has in `folder`. `copy_tables(folder, target)` copies what the suite's tables are,
        compressed."""


joined: list[Extension] = []
