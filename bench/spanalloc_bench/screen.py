"""What commands show on the terminal."""

from __future__ import annotations

import os
import sys

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 140


def console(width=WIDE) -> Console:
    """On stdout. Not a terminal: no colours, and wide enough that nothing is cut."""
    if sys.stdout.isatty():
        return Console()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else width
    return Console(width=width, no_color=True, highlight=False)


def table(headings, rows=(), title=None, left=None) -> Table:
    """Columns whose places are not in `left` are numbers; without it none are."""
    drawn = Table(box=box.SIMPLE_HEAD, header_style="bold", title=title, title_justify="left", title_style="bold")
    for place, heading in enumerate(headings):
        drawn.add_column(heading, justify="left" if left is None or place in left else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*row)
    return drawn
