"""The papers' figures as a part of `spanalloc bench`: their two commands, their part of a run's report, what is kept of
them. Whoever imports this has joined them to the suite, which knows no paper."""

from __future__ import annotations

import os
from typing import List, Optional

import typer

from spanalloc_bench import allocators, cli, extensions, screen, tree


def _complete_figure():
    from papers.shared.figures.catalogue import FIGURES, PAPERS

    return [*((figure.id, f"{figure.number}: {figure.title}") for figure in FIGURES.values()),
            *((paper.key, f"all of {paper.title}") for paper in PAPERS.values()), ("all", "all of them"), ("list", "their titles and times")]


@cli.app.command("figure", short_help="Reproduce a figure or table of one of the papers.", context_settings=cli.HELP_SETTINGS)
@cli.guarded()
def figure_command(
    figure: str = typer.Argument(
        ..., metavar="ID|PAPER|all|list", autocompletion=_complete_figure,
        help="A figure's name, or a paper's for all of its figures; `list` prints them with their times.",
    ),
    rounds: Optional[int] = typer.Option(None, "--rounds", "-n", min=1, metavar="N", help="Rounds. Default: the figure's."),
    with_: Optional[List[str]] = cli.WITH,
    out: Optional[str] = cli.out_option(
        "Where the results are kept. Default: out/bench of the source tree, where the suite's are too."),
    again: bool = cli.AGAIN,
    nbbs: Optional[str] = cli.NBBS,
    no_build: bool = cli.NO_BUILD,
):
    """Reproduce a figure or table of one of the papers, scaled to this machine, with what the paper claims and whether
    it holds here.

    `figure list` says how long each takes, from seconds to some minutes. Figures share their runs with each other and
    with the suite where they measure the same; an interrupted one goes on with the same command. The figure is also
    kept as a PNG and as JSON below DIR/figures. What a figure needs and is not built yet, its paper's variants too, is
    built first, unless --no-build is given.

    Exit code: 0; 1 when there is a figure of which nothing could be measured; 125 when what it needs cannot be built or
    the command cannot be understood; 130 when interrupted.

    \b
    Examples:  spanalloc bench figure list
               spanalloc bench figure scalloc-6a
    """

    from papers.shared import figures

    if figure != "list":
        import psutil  # noqa: F401  # before anything is built or measured
    try:
        empty = figures.command(cli.places(), figure, rounds=rounds, with_=with_ or [], out=out, again=again, nbbs=nbbs,
                                console=screen.console(), building=not no_build)
    except figures.UnknownFigure as error:
        raise allocators.BadChoice(str(error)) from None
    if empty:
        cli.fail(f"nothing could be measured of {', '.join(empty)}", 1)


@cli.app.command("papers", short_help="List every claim of the papers with its verdict.", context_settings=cli.HELP_SETTINGS)
@cli.guarded()
def papers_command(
    results: Optional[str] = typer.Option(
        None, "--results", metavar="DIR", help="Folder that the figures were run into. Default: out/bench."
    ),
    more: Optional[List[str]] = typer.Argument(
        None, metavar="[DIR...]", help="Further folders; of a figure that is in several the last one counts."
    ),
    write: bool = typer.Option(
        False, "--write",
        help="Write docs/papers.md and, in each paper's room, CLAIMS.md and the picture of REPORT.md, instead of printing."),
):
    """Every claim of the papers with its command and its verdict, from the figures that have been run. Runs nothing. In
    a fresh clone no figure has been run: what was recorded is below bench/results/figures.

    \b
    Examples:  spanalloc bench papers --results bench/results/figures/*
               spanalloc bench figure all
               spanalloc bench papers --write
    """

    from papers.shared import figures

    first = os.path.abspath(results) if results else tree.DEFAULT_OUT
    folders = (first, *map(os.path.abspath, more or []))
    if not write:
        print(figures.papers(*folders), end="")
        return
    texts = {name: text.encode() for name, text in figures.documents(*folders).items()}
    for name, content in {**texts, **figures.pictures(*folders)}.items():
        with open(os.path.join(tree.SOURCE, name), "wb") as file:
            file.write(content)
        print(f"wrote {name}")


class _Figures:
    """An Extension. Its work is imported when it is needed, as that of commands is."""

    def pictures(self, folder):
        from papers.shared.figures import report

        return report.pictures(folder)

    def holds(self, folder):
        from papers.shared.figures import records

        return records.can_be_kept(folder)

    def keep(self, folder, target, copy_tables):
        from papers.shared.figures import records

        records.keep(folder, target, copy_tables)


extensions.joined.append(_Figures())
