"""Plots in one style: an allocator has the same colour and marker everywhere, ours stand out.

A plot is a `Panel`; `figure` puts panels side by side under one legend; `save` writes a PNG, `inline` returns SVG text
for an HTML page. No display is needed and nothing global is changed.

    left = plots.lines("Speed-up", {"standard": [(1, 1.0), (2, 1.9)], "glibc": [(1, 1.0), (2, 1.2)]}, ideal=True)
    right = plots.lines("Memory", memory, y_label="peak", y_unit="kib", floor=[(1, 900), (2, 1800)])
    drawing = plots.figure([left, right], title="threadtest, 64 bytes")
    plots.save(drawing, "threadtest.png")
    html = plots.inline(drawing)
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import math
import re
import typing
import zlib

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from spanalloc_bench import units
from spanalloc_bench.analyse import PERCENTILES
from spanalloc_cli import libraries

# What an SVG shown in a browser and a PNG made here look alike in: DejaVu's widths are Verdana's.
SETTINGS = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana"], "font.size": 9,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#888888", "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.7, "xtick.color": "#444444",
    "ytick.color": "#444444", "legend.frameon": False, "legend.fontsize": 9, "figure.facecolor": "white",
    "svg.fonttype": "none", "svg.hashsalt": "spanalloc",
}
WIN, TIE, LOSS = "#0072b2", "#999999", "#d55e00"  # told apart by every kind of colour vision


@dataclasses.dataclass(frozen=True)
class Style:
    color: str
    marker: str
    dashes: str = "-"
    ours: bool = False


# Ours that ship, in the order of their list, are warm.
_OURS = (("#d55e00", "o"), ("#e69f00", "s"), ("#b59a00", "h"), ("#8b1a4f", "p"), ("#a0522d", "8"), ("#e75480", "*"))
# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too.
_STYLES = {
    **{name: Style(*look, ours=True) for name, look in zip(libraries.SHIPPED_CONFIGS, itertools.cycle(_OURS))},
    "glibc": Style("#333333", "X"),
    "jemalloc": Style("#0072b2", "^"),
    "tcmalloc": Style("#009e73", "v"),
    "mimalloc": Style("#56b4e9", "D"),
    "tbbmalloc": Style("#cc79a7", "P"),
    "bump": Style("#999999", ".", ":"),
    # The paper's variants of scalloc, which stand beside it in plots of their own.
    "scalloc-no-madvise": Style("#0072b2", "^"),
    "scalloc-no-virtual-spans": Style("#009e73", "v"),
    "scalloc-no-madvise-no-virtual-spans": Style("#cc79a7", "P"),
    "scalloc-single-stack": Style("#332288", "D", "--"),
    "scalloc-lazy-reclaim": Style("#332288", "D", "--"),
    "scalloc-reuse-100": Style("#332288", "D", "--"),
    # Page managers.
    "mmap": Style("#333333", "X"),
    "tree": Style("#d55e00", "o", ours=True),
    "tree-recursive": Style("#e69f00", "s", ours=True),
    "static": Style("#0072b2", "^", ours=True),
    "nbbs": Style("#cc79a7", "P"),
}
_SPARE_COLORS = ("#332288", "#117733", "#882255", "#44aa99", "#aa4499", "#6699cc", "#999933", "#661100")
_SPARE_MARKERS = ("<", ">", "d", "8", "*", "H", "h")


def style(name: str) -> Style:
    """An allocator's colour and marker; one that the table does not know gets its own from its name."""
    if name in _STYLES:
        return _STYLES[name]
    number = zlib.crc32(name.encode())
    return Style(
        _SPARE_COLORS[number % len(_SPARE_COLORS)], _SPARE_MARKERS[number // 8 % len(_SPARE_MARKERS)],
        ("-", "--", "-.")[number // 64 % 3],
    )


@dataclasses.dataclass
class Panel:
    """One plot: what draws it, the names that the legend explains, and its size in inches."""

    title: str
    draw: typing.Callable
    names: tuple[str, ...] = ()
    width: float = 5.0
    height: float = 3.3
    extra_legend: tuple = ()  # (handle, label) of what is no allocator: "ideal", "live bytes"
    margin: float = 0.0       # further inches for long labels at its left
    filled: bool = False      # the legend shows areas, not lines


_UNITS = {
    "s": lambda v: units.seconds(v, 2), "ns": lambda v: units.seconds(v * 1e-9, 2), "kib": lambda v: units.kib(v, 2),
    "bytes": lambda v: units.kib(v / 1024, 2), "ratio": units.ratio, "": units.number,
}


def _scale_axis(axis, log, unit):
    """Labels in the unit's words; on a log axis as many as a short span needs too; memory in whole steps of 1024."""
    low, high = axis.get_view_interval()
    if log and high < 8 * low:
        axis.set_major_locator(MaxNLocator(6))
    elif log:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    elif unit in ("kib", "bytes") and high > 0:
        power = 1024.0 ** max(0, int(math.log(high, 1024)))
        axis.set_major_locator(FixedLocator([t * power for t in MaxNLocator(6).tick_values(0, high / power)]))
        axis.set_view_interval(low, high, ignore=True)
    if log:
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _UNITS[unit](value)))


def _named_ticks(axes, values, labels, slanted=False):
    axes.set_xticks(values, labels)
    axes.xaxis.set_minor_locator(NullLocator())
    if slanted:
        for label in axes.get_xticklabels():
            label.set(rotation=25, ha="right", rotation_mode="anchor")


def _crowded(names, width) -> bool:
    """Whether names side by side under an axis of that many inches would touch."""
    return any(0.085 * len(str(name)) > (width - 0.8) / len(names) for name in names)


def _points(points):
    """Columns x, y, low, high of (x, y) or (x, y, low, high), those without y left out."""
    rows = [(*p, None, None)[:4] for p in points if not units.missing(p[1])]
    return tuple(zip(*sorted(rows))) if rows else ((), (), (), ())


def lines(title, series, *, x_label="threads", y_label="", y_unit="", log_x=False, log_y=False, ideal=False,
          floor=None, floor_label="peak live bytes", x_names=None, from_zero=True, width=5.0, height=3.3) -> Panel:
    """Curves, one an allocator.

    `series`: name -> [(x, y)] or [(x, y, low, high)]; a y of None is a point left out, low and high are drawn as a
    bar. `y_unit`: "s", "ns", "kib", "bytes", "ratio" or "". `ideal` draws y = x. `floor`: [(x, y)] of what no
    allocator can beat. `x_names`: names of the ticks at the given x, {x: "p99"}; without it there is a tick at each x.
    `from_zero`: a linear y axis starts at 0, so that heights compare.
    """
    handles = []
    crowded = bool(x_names) and _crowded(x_names.values(), width)
    if ideal:
        handles.append((Line2D([], [], color="#bbbbbb", dashes=(4, 3), lw=1.2), "ideal"))
    if floor:
        handles.append((Line2D([], [], color="#555555", dashes=(1, 2), lw=1.4), floor_label))

    def draw(axes):
        if log_x:
            axes.set_xscale("log", base=2)
        if log_y:
            axes.set_yscale("log")
        seen = set()
        for name, points in sorted(series.items(), key=lambda item: style(item[0]).ours):  # ours lie on top
            x, y, low, high = _points(points)
            seen.update(x)
            look = style(name)
            axes.plot(x, y, look.dashes, color=look.color, marker=look.marker, lw=2.4 if look.ours else 1.3,
                      markersize=6.5 if look.ours else 5, markeredgecolor="white", markeredgewidth=0.6,
                      zorder=3 if look.ours else 2)
            bars_ = [row for row in zip(x, low, high) if row[1] is not None]
            if bars_:
                axes.vlines(*zip(*bars_), color=look.color, lw=1, zorder=2)
        if ideal and seen:
            axes.plot(sorted(seen), sorted(seen), color="#bbbbbb", dashes=(4, 3), lw=1.2, zorder=1)
        if floor:
            axes.plot(*zip(*sorted(floor)), color="#555555", dashes=(1, 2), lw=1.4, zorder=1)
            seen.update(x for x, _ in floor)
        if x_names:
            _named_ticks(axes, list(x_names), list(x_names.values()), crowded)
        elif len(seen) <= 12:
            _named_ticks(axes, sorted(seen), [units.number(x) for x in sorted(seen)])
        if from_zero and not log_y:
            axes.set_ylim(bottom=0)
        _scale_axis(axes.yaxis, log_y, y_unit)
        axes.set(xlabel=x_label, ylabel=y_label)

    return Panel(title, draw, tuple(series), width, height + 0.4 * crowded, tuple(handles))


def bars(title, values, *, y_label="", y_unit="", log_y=False, line_at=None, limit=None, width=None,
         height=3.3) -> Panel:
    """Groups of bars, one bar an allocator.

    `values`: group -> {name: y} or {name: (y, low, high)}; a y of None (crashed, hung, not built) is drawn as a cross on
    the axis, a name that is not there leaves no gap; low and high are drawn as a line. `line_at` draws a level, for instance 1 for ratios. Bars beyond `limit` are cut there
    and say how high they are.
    """
    names = tuple(dict.fromkeys(itertools.chain.from_iterable(values.values())))

    def draw(axes):
        place, centres = 0.0, []
        if log_y:
            axes.set_yscale("log")
        for group in values.values():
            centres.append(place + (len(group) - 1) / 2)
            for name, bar in group.items():
                y, low, high = bar if isinstance(bar, tuple) else (bar, None, None)
                look = style(name)
                if units.missing(y):
                    axes.plot([place], [0.02], marker="x", color=look.color, markersize=6, mew=1.8, clip_on=False,
                              transform=axes.get_xaxis_transform())
                else:
                    cut = limit is not None and y > limit
                    if cut:
                        axes.annotate(_UNITS[y_unit](y), (place, limit), xytext=(0, -3), textcoords="offset points",
                                      rotation=90, ha="center", va="top", fontsize=7, color="white", zorder=4)
                    axes.bar(place, limit if cut else y, 0.92, color=look.color,
                             edgecolor="black" if look.ours else "none", linewidth=0.9)
                    if low is not None and not cut:
                        axes.vlines(place, low, high, color="#333333", lw=1, zorder=4)
                place += 1
            place += 1
        if limit is not None:
            axes.set_ylim(top=min(limit, axes.get_ylim()[1]))
        if line_at is not None:
            axes.axhline(line_at, color="#555555", lw=1, dashes=(3, 2))
        _named_ticks(axes, centres, list(values), crowded)
        axes.tick_params(axis="x", length=0)
        axes.grid(False, axis="x")
        _scale_axis(axes.yaxis, log_y, y_unit)
        axes.set(ylabel=y_label)

    bars_in_all = sum(len(group) + 1 for group in values.values())
    width = width or min(11.0, max(3.6, 0.17 * bars_in_all + 1.2))
    crowded = _crowded(values, width)
    return Panel(title, draw, names, width, height + 0.5 * crowded, filled=True)


def percentiles(title, series, *, height=3.3, width=5.0) -> Panel:
    """Latencies on a log axis. `series`: name -> {"p50_ns": 30, ..., "max_ns": 12000}, as samples hold them."""
    points = {
        name: [
            (place, max(values[key], 1)) for place, key in enumerate(PERCENTILES) if not units.missing(values.get(key))
        ]
        for name, values in series.items()
    }
    return lines(title, points, x_label="", y_label="time of one call", y_unit="ns", log_y=True,
                 x_names=dict(enumerate(PERCENTILES.values())), width=width, height=height)


def forest(title, rows, *, x_label="", labels=True, limits=None, width=2.0) -> Panel:
    """Ratios with their intervals, one line a case, on a log axis around 1; left is better.

    `rows`: [(label, ratio, low, high, verdict)], drawn from top to bottom; a ratio of None leaves the line empty, a
    label that starts with "#" is a heading. verdict: "win", "tie", "loss" or "". Beyond `limits` a mark stands at the
    edge and points outward.
    """
    low_limit, high_limit = limits or (0.25, 4.0)
    colors = {"win": WIN, "loss": LOSS, "tie": TIE}

    def draw(axes):
        axes.set_xscale("log")
        axes.set_xlim(low_limit, high_limit)
        axes.axvline(1, color="#555555", lw=1)
        for place, (_, ratio, low, high, verdict) in enumerate(rows):
            if units.missing(ratio):
                continue
            color = colors.get(verdict, "#555555")
            inside = min(max(ratio, low_limit), high_limit)
            marker = "<" if ratio < low_limit else ">" if ratio > high_limit else "o"
            if low is not None:
                axes.plot([min(max(low, low_limit), high_limit), max(min(high, high_limit), low_limit)], [place] * 2,
                          color=color, lw=1.4, zorder=2)
            axes.plot([inside], [place], marker=marker, color=color, markersize=4.5, zorder=3, clip_on=False,
                      markerfacecolor="white" if verdict not in colors else color)
        axes.set_ylim(len(rows) - 0.3, -0.7)
        axes.set_yticks(range(len(rows)), [row[0].lstrip("#") for row in rows] if labels else [""] * len(rows))
        if labels:
            for text, row in zip(axes.get_yticklabels(), rows):
                text.set_fontsize(8)
                if row[0].startswith("#"):
                    text.set_fontweight("bold")
        axes.tick_params(axis="y", length=0)
        ticks = [t for t in (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 10, 100) if low_limit <= t <= high_limit]
        _named_ticks(axes, ticks, [f"{t:g}" for t in ticks])
        axes.set(xlabel=x_label)

    return Panel(title, draw, (), width, 0.17 * len(rows) + 0.9, margin=2.0 if labels else 0.0)


def scatter(title, points, *, x_label, y_label, unit="ratio", labels=None, least=None, width=6.4, height=4.2) -> Panel:
    """One labelled mark an allocator on two log axes. `points`: name -> (x, y). `labels`: what stands beside a mark in
    the place of its name. `least`: where both axes begin, if no point lies below."""

    def draw(axes):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for name, (x, y) in points.items():
            look = style(name)
            axes.plot([x], [y], marker=look.marker, color=look.color, markersize=12 if look.ours else 9, linestyle="",
                      markeredgecolor="white", zorder=3)
            axes.annotate((labels or {}).get(name, name), (x, y), xytext=(8, 5), textcoords="offset points",
                          fontweight="bold" if look.ours else "normal", color=look.color)
        axes.margins(0.18)
        if least is not None and all(min(point) >= least for point in points.values()):
            axes.set_xlim(left=least)
            axes.set_ylim(bottom=least)
        for axis in (axes.xaxis, axes.yaxis):
            _scale_axis(axis, True, unit)
        axes.set(xlabel=x_label, ylabel=y_label)

    return Panel(title, draw, (), width, height)


def _legend(panels):
    found = {}
    for panel in panels:
        for name in panel.names:
            look = style(name)
            if panel.filled:
                found.setdefault(name, Patch(facecolor=look.color, edgecolor="black" if look.ours else "none"))
                continue
            found[name] = Line2D([], [], linestyle=look.dashes, color=look.color, marker=look.marker,
                                 markeredgecolor="white", lw=2.4 if look.ours else 1.3,
                                 markersize=7 if look.ours else 5.5)
        found.update({label: handle for handle, label in panel.extra_legend})
    return found


def figure(panels, *, title="", columns=None, note="") -> Figure:
    """Panels in rows of `columns` (default: as many as fit in 11 inches) under one title, with one legend below."""
    panels = list(panels)
    if columns is None:
        columns = max(1, min(len(panels), int(11.01 // max(panel.width for panel in panels))))
    rows = [panels[i:i + columns] for i in range(0, len(panels), columns)]
    legend = _legend(panels)
    with matplotlib.rc_context(SETTINGS):
        widths = [max(row[i].width for row in rows if i < len(row)) for i in range(columns)]
        heights = [max(panel.height for panel in row) for row in rows]
        margins = sum(max(row[i].margin for row in rows if i < len(row)) for i in range(columns))
        across = max(1, int(sum(widths) // 1.35))
        below = 0.22 * -(-len(legend) // across) + (0.2 if note else 0)
        size = (sum(widths) + margins, sum(heights) + below + (0.3 if title else 0))
        result = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(result)
        grid = result.add_gridspec(len(rows), columns, width_ratios=widths, height_ratios=heights)
        for i, row in enumerate(rows):
            for j, panel in enumerate(row):
                axes = result.add_subplot(grid[i, j])
                panel.draw(axes)
                axes.set_title(panel.title)
        if title:
            result.suptitle(title, fontsize=12, fontweight="bold", x=0.01, ha="left")
        if legend:
            box = result.legend(legend.values(), legend.keys(), loc="lower center", ncols=min(across, len(legend)),
                                handlelength=2.4, columnspacing=1.4, title=note or None, title_fontsize=8)
            # As loc="outside lower center" does, which Debian's matplotlib (3.6) does not know yet.
            used = box.get_window_extent(result.canvas.get_renderer()).height / result.bbox.height + 0.05 / size[1]
            result.get_layout_engine().set(rect=(0, used, 1, 1 - used))
        elif note:
            result.supxlabel(note, fontsize=8, color="#555555", x=0.01, ha="left")
        result.get_layout_engine().execute(result)
        result.set_layout_engine("none")  # drawn later, outside these settings: keep what was laid out with them
    return result


def save(drawing: Figure, path, dpi=130):
    """Writes a PNG."""
    with matplotlib.rc_context(SETTINGS):
        drawing.savefig(path, format="png", dpi=dpi, metadata={"Software": None})


def save_small(drawing: Figure, path, dpi=130, notes=None):
    """Writes a PNG of few colours: a quarter of the size, which a repository keeps for good. `notes`: text for its own
    fields, by their names."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    save(drawing, path, dpi)
    with Image.open(path) as image:
        few = image.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    fields = PngInfo()
    for name, text in (notes or {}).items():
        fields.add_text(name, text)
    few.save(path, optimize=True, pnginfo=fields)


def _short(match):
    """A number of a path to a hundredth of a point."""
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")


# Names of groups that nothing refers to: a third of a small plot's text, and not unique on a page of many plots.
_PLAIN_IDS = re.compile(r' id="(?:figure|axes|patch|line2d|text|legend|xtick|ytick|matplotlib\.axis|PathCollection|'
                        r'LineCollection)_\d+"')


def inline(drawing: Figure, alt="") -> str:
    """The figure as SVG text for an HTML page; `alt` says in words what it shows."""
    out = io.StringIO()
    with matplotlib.rc_context(SETTINGS):
        drawing.savefig(out, format="svg")
    text = out.getvalue()
    text = _PLAIN_IDS.sub("", text[text.index("<svg"):])
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*", "\n", text)
    text = re.sub(r"-?\d+\.\d{3,}", _short, text)
    label = alt.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    # Width in CSS follows the page; the view box keeps the proportions.
    def sized(match):
        return f'<svg role="img" aria-label="{label}"{match[1]} style="width:{float(match[2]):.0f}pt;max-width:100%"'

    text = re.sub(r'<svg([^>]*?) width="([\d.]+)pt" height="[\d.]+pt"', sized, text, count=1)
    return text.strip()
