"""The figures and tables of the four papers, one command each: `spanalloc bench figure ID`.

`command` is what the command line calls; `papers` makes docs/papers.md. Everything else of this folder is loaded by
them only, so that the rest of the suite starts without it.
"""

from __future__ import annotations

import os
import sys


class UnknownFigure(Exception):
    """There is no figure of that name; the text says which there are."""


def ids() -> list[str]:
    from papers.shared.figures.catalogue import FIGURES

    return list(FIGURES)


def papers(*folders) -> str:
    """Every claim with its verdict, as markdown, from the figures that have been run into the folders; of a figure that is
    in several of them the last one's."""
    from papers.shared.figures import document

    return document.papers(*folders)


def documents(*folders) -> dict[str, str]:
    """The same, by the files of the source tree that hold it."""
    from papers.shared.figures import document

    return document.documents(*folders)


def pictures(*folders) -> dict[str, bytes]:
    """The pictures of the papers' reports, by their files."""
    from papers.shared.figures import document

    return document.pictures(*folders)


def command(places, id, *, rounds=None, out=None, with_=(), nbbs=None, again=False, console=None,
            building=False) -> list[str]:
    """`figure ID`: measures what `out` has not got yet, prints the figure and its claims' verdicts, writes
    OUT/figures/ID.json and ID.png. `list` lists all figures with their times, `all` runs them all, a paper's name those of
    the paper. `building`: what is not there is built first. Returns of each figure in which nothing could be measured its
    id and why.

    Raises UnknownFigure, BadChoice for options that cannot be taken, what build.make and schedule.run_cells raise."""
    from rich.console import Console

    from spanalloc_bench import build
    from papers.shared.figures.catalogue import FIGURES, PAPERS

    console = console or Console()
    if id not in ("all", "list", *PAPERS) and id not in FIGURES:
        near = [name for name in FIGURES if name.startswith(id)]
        raise UnknownFigure(f"there is no figure {id}. " + (f"Did you mean {', '.join(near)}?" if near else
                                                           "`spanalloc bench figure list` shows them"))
    from papers.shared.figures import run

    def say(text):
        print(text, file=sys.stderr, flush=True)

    building = building and id != "list"
    if building:
        build.make(places, build.helpers(places), say)  # which check what --with names
    run.check(places, with_, nbbs)
    if id == "list":
        _list(places, console, rounds)
        return []
    folder = run.default_folder(out)
    renewal = run.Renewal(again)
    chosen = [FIGURES[id]] if id in FIGURES else [figure for figure in FIGURES.values() if id in ("all", figure.paper)]
    if len(chosen) == 1:  # each option has its use in one of them all
        for text in run.useless(chosen[0], with_, nbbs):
            say(text)
    if building:
        build.make(places, run.parts(places, chosen), say)
    empty = []
    beside = run.company(places, chosen, with_, nbbs) if len(chosen) > 1 else {}
    for number, figure in enumerate(chosen, start=1):
        if len(chosen) > 1:
            say(f"{figure.id} ({number} of {len(chosen)})")
        data = run.measure(places, figure, rounds, folder, say, with_=with_, nbbs=nbbs, renewal=renewal,
                           beside=beside)
        record = run.keep(data, folder)
        if run.numbers_there(record):
            run.show(data, record, console)
        else:
            empty.append(f"{figure.id} ({run.why_empty(data)})")
    if len(empty) == len(chosen):
        return empty
    where = os.path.join(folder, run.FOLDER)
    console.print(f"kept in {where}{os.sep}{id if id in FIGURES else 'ID'}.json and .png; "
                  f"`spanalloc bench papers --results {folder}` lists all verdicts", style="dim", highlight=False)
    return empty


def _list(places, console, rounds):
    from rich import box
    from rich.table import Table

    from papers.shared.figures import run
    from papers.shared.figures.catalogue import FIGURES, PAPERS

    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for heading in ("id", "paper's", "what"):
        table.add_column(heading)
    for heading in ("claims", "rounds", "minutes"):
        table.add_column(heading, justify="right")
    cores, total, paper = run.cores(), 0.0, None
    seen, beside = set(), run.company(places, FIGURES.values(), planned=True)
    for figure in FIGURES.values():
        if figure.paper != paper:
            paper = figure.paper
            table.add_section()
            table.add_row("", "", f"[bold]{PAPERS[paper].title}[/]")
        main, variants = run.counts(places, figure)
        minutes = run.estimate(run.with_rounds(figure, rounds), cores, main, variants)
        # Halves of one figure share their runs, and so do others: the total counts each case once.
        fresh = run.estimate(run.with_rounds(figure, rounds), cores, main, variants, seen, beside)
        total += fresh
        taken = run.with_rounds(figure, rounds).rounds
        table.add_row(figure.id, figure.number, figure.title, str(len(figure.claims)), str(taken) if taken else "-",
                      f"{minutes:.1f}" if minutes >= 0.05 else "-")
    console.print(table)
    console.print(f"Minutes on this machine ({cores} cores) when nothing is in the folder yet; what figures share is "
                  f"run once: `spanalloc bench figure all` takes about {total:.0f} minutes, less what --out holds "
                  f"already.",
                  highlight=False)
