"""The report of a run: one HTML file that needs no other, and PNGs of its plots."""

from __future__ import annotations

import base64
import html
import io
import json
import os

from PIL import Image

from spanalloc_bench import analyse, drawings, medians, packed, plots, store, tables, words
from spanalloc_bench.analyse import LOSS, MEMORY, METRIC, MIN_ROUNDS, TIE, TIME, WIN
from papers.shared.figures import draw as draw_figure
from papers.shared.figures import records
from spanalloc_bench.model import Kind

REPORT = "report.html"
FIGURES = "figures"  # folder of the papers' figures inside a run's
MANYCORE = "manycore.html"  # the simulated machine's part, where it has been run into this folder
_escape = html.escape

HERE = os.path.dirname(os.path.abspath(__file__))


# ---- pieces ----


def _part(name) -> str:
    """A file beside this one that goes into the page."""
    with open(os.path.join(HERE, name), encoding="utf-8") as file:
        return file.read()


STYLE, SCRIPT = _part("report.css"), _part("report.js")  # at once: an hour of measuring may follow


def _anchor(case) -> str:
    return "case-" + case


def _cell(cell, column, first) -> str:
    lines = [_escape(line) for line in cell.text.split("\n")]
    text = lines[0] + "".join(f"<small>{line}</small>" for line in lines[1:])
    if sum(cell.shares):
        text += _bar(cell.shares)
    if cell.link:
        text = f'<a href="#{_escape(_anchor(cell.link))}">{text}</a>'
    tone = cell.tone if cell.tone != TIE else ""
    classes = [name for name in (tone, "left" if column.left or cell.span > 1 else "", "first" if first else "",
                                 "wrap" if column.left and len(cell.text) > 60 else "") if name]
    span = f' colspan="{cell.span}"' if cell.span > 1 else ""
    return f'<td{span}{" class=" + chr(34) + " ".join(classes) + chr(34) if classes else ""}>{text}</td>'


def _bar(shares) -> str:
    """Wins, ties and losses as a bar."""
    total, at, parts = sum(shares), 0, []
    for count, color in zip(shares, (plots.WIN, "#c9d1d9", plots.LOSS)):
        parts.append(f"{color} {100 * at / total:.1f}% {100 * (at + count) / total:.1f}%")
        at += count
    return f'<span class="bar" style="background:linear-gradient(90deg,{",".join(parts)})"></span>'


def draw(table: tables.Table) -> str:
    """A table as HTML."""
    columns, rows = table.columns, table.rows
    starts = [i > 0 and column.group != columns[i - 1].group for i, column in enumerate(columns)]
    head = ""
    if any(column.group for column in columns):
        groups = []
        for column, start in zip(columns, starts):
            if start or not groups:
                groups.append([column.group, 0, start])
            groups[-1][1] += 1
        head = "<tr>" + "".join(
            f'<th colspan="{width}" class="group{" first" if start else ""}">{_escape(name)}</th>'
            for name, width, start in groups
        ) + "</tr>"
    head += "<tr>" + "".join(
        f'<th class="{"left " if column.left else ""}{"first" if start else ""}">{_escape(column.text)}</th>'
        for column, start in zip(columns, starts)
    ) + "</tr>"
    body = []
    for row in rows:
        cells, place = [], 0
        for cell in row:
            cells.append(_cell(cell, columns[place], starts[place]))
            place += cell.span
        body.append("<tr>" + "".join(cells) + "</tr>")
    note = f'<p class="note">{_escape(table.note)}</p>' if table.note else ""
    caption = f"<caption>{_escape(table.title)}</caption>" if table.title else ""
    return (f'<div class="scroll"><table>{caption}<thead>{head}</thead>'
            f'<tbody>{"".join(body)}</tbody></table></div>{note}')


def _list(pairs) -> str:
    items = [(_escape(str(key).replace("_", " ")), _escape(_words(value))) for key, value in pairs]
    return "<dl>" + "".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in items) + "</dl>"


def _words(value) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_words, value))
    if value is None:
        return "unknown"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


class _Page:
    """The report's sections, and the PNGs beside it."""

    def __init__(self, found: analyse.Analysis, folder: str):
        self.found = found
        self.folder = folder
        self.sections: list[tuple[str, str, str]] = []  # (anchor, name in the bar, HTML)
        products = [name for name in found.ours() if found.allocators[name].kind is Kind.OURS]
        self.product = products[0] if products else None
        self.products = products

    def add(self, anchor, name, body):
        self.sections.append((anchor, name, f'<section id="{anchor}">{body}</section>'))

    def figure(self, drawing, name, alt) -> str:
        """The figure for the page, saved as PNG too."""
        if drawing is None:
            return ""
        plots.save(drawing, os.path.join(self.folder, f"{name}.png"))
        return f"<figure>{plots.inline(drawing, alt)}</figure>"

    # -- sections --

    def summary(self):
        found, product = self.found, self.product
        overview = _escape(" · ".join(words.overview(found)))
        body = [f'<h1>spanalloc beside the allocators people use</h1><p class="soft">{overview}</p>']
        if product:
            said = [words.headline(found, product, measure) for measure in (TIME, MEMORY)]
            said.append(words.other_numbers(found, product))
            lines = "".join(f"<p>{_escape(text)}</p>" for text in said if text)
            body.append(f'<div class="headline">{lines}</div>')
        else:
            body.append('<p class="warn">None of our libraries ran: there is nothing to compare.</p>')
        if words.too_few_rounds(found):
            body.append(f'<p class="warn">{words.too_few_rounds(found)}</p>')
        if product and words.measured_apart(found, product):
            body.append(f'<p class="warn">{_escape(words.measured_apart(found, product))}</p>')
        failed = tables.problem_lines(found)
        if failed:
            lines = "".join(f"<p>No figures: {_escape(line)}.</p>" for line in failed)
            body.append(f'<div class="failed">{lines}</div>')
        if product:
            body.append(draw(tables.matrix(found, product)))
            body.append(f'<p class="note">{_escape(tables.LEGEND)}</p>')
            for worst in (True, False):
                body.append(draw(tables.extremes(found, product, worst)))
        self.add("summary", "Summary", "".join(body))

    def overall(self):
        found = self.found
        body = ["<h2>Overall</h2>"]
        if self.product:
            body.append(draw(tables.by_group(found, self.product)))
        for name in self.products[1:]:
            body.append(draw(tables.matrix(found, name)))
            body += [draw(tables.extremes(found, name, worst)) for worst in (True, False)]
        for name in (name for name in found.ours() if found.allocators[name].kind is Kind.ABLATION):
            body.append(draw(tables.matrix(found, name)))
        body.append(draw(tables.standing(found)))
        body.append(self.figure(drawings.standing(found), "standing",
                                "Every allocator's time and memory relative to the best"))
        if self.product:
            body.append("<h3>Every case, against every allocator</h3>")
            body.append(self.figure(drawings.overview(found, self.product, TIME), "overview-time",
                                    f"Ratio of {self.product}'s time to each allocator's in every case"))
        self.add("overall", "Overall", "".join(body))

    def groups(self):
        found = self.found
        body = ["<h2>Groups of cases</h2>",
                f'<p class="note">Medians; below each, how {_escape(self.product or "ours")} stands to it (a minus: '
                "less time or memory). Coloured where that is certain. A case's name leads to everything known about it. "
                "Bars and points that are missing did not finish.</p>"]
        for name in found.groups():
            sources = dict.fromkeys(found.cases[case].source for case in found.cases_of(name))
            source = _escape("; ".join(filter(None, sources)))
            body.append(f'<h3 id="group-{_escape(name)}">{_escape(name)} <span class="soft">· {source}</span></h3>')
            for measure in (TIME, METRIC, MEMORY):
                table = tables.group_table(found, name, measure, self.product)
                body.append(draw(table) if table else "")
            body.append(self.figure(drawings.group(found, name), f"group-{name}", f"Plots of the group {name}"))
        self.add("groups", "Groups", "".join(body))

    def latency(self):
        found = self.found
        if not found.latencies():
            return
        body = ["<h2>Latency</h2><p>Every call of these cases was timed alone; figures are medians over the rounds. "
                "The worst call of a run is one value, so it varies: look at its interval.</p>"]
        if self.product:
            body.append(draw(tables.latency_matrix(found, self.product)))
        for case in found.suite:
            drawing = drawings.latency(found, case)
            if drawing:
                body.append(self.figure(drawing, f"latency-{case}", f"Latency percentiles of {case}"))
                body.append(draw(tables.latency_table(found, case)))
        self.add("latency", "Latency", "".join(body))

    def memory(self):
        if self.product:
            drawing = drawings.overview(self.found, self.product, MEMORY)
            body = ("<h2>Memory</h2><p>Peak of resident memory and page tables of the whole process tree: a control "
                    "group is charged for both. What a workload needs for its own tables is subtracted. The floor is the "
                    "peak of the bytes that the program holds at once, where it knows them. "
                    f"{_escape(words.memory_leaves_out(self.found, self.product))}</p>")
            alt = f"Ratio of {self.product}'s memory to each allocator's in every case"
            self.add("memory", "Memory", body + self.figure(drawing, "overview-memory", alt))

    def failures(self):
        text = ("<h2>Crashed, hung, refused</h2><p>A contender that failed in one round of a case has no figures there, "
                "and the case is in no mean with it. Failures are counted in the table of the summary.</p>")
        self.add("failures", "Failures", text + draw(tables.problems(self.found)))

    def papers(self):
        figures = _paper_figures(self.folder)
        if figures:
            self.add("papers", "Papers", "<h2>Figures of the papers</h2>" + "".join(figures))

    def cases(self):
        body = ["<h2>Every case</h2>"]
        for name in self.found.groups():
            body.append(f"<h3>{_escape(name)}</h3>")
            for case in self.found.cases_of(name):
                facts = self.found.cases[case]
                summary = (f'<code>{_escape(case)}</code> {_escape(facts.title)} '
                           f'<span class="soft">· {_escape(facts.source)}</span>')
                body.append(f'<details id="{_escape(_anchor(case))}"><summary>{summary}</summary>'
                            f"{self.case(case)}</details>")
        self.add("cases", "Every case", "".join(body))

    def case(self, case) -> str:
        """One table a measure: side by side where the window is wide."""
        found, body = self.found, []
        for measure in found.measures(case):
            table = tables.case_table(found, case, measures=[measure], further=False)
            table.title = ""  # its columns' heading names the measure
            body.append(draw(table))
        if not body or any(found.cell(case, name).metrics for name in found.contenders(case)):
            rest = tables.case_table(found, case, ours=[], measures=[])
            rest.title = ""
            body.append(draw(rest))
        return f'<div class="measures">{"".join(body)}</div>'

    def manycore(self):
        path = os.path.join(self.folder, MANYCORE)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                self.add("manycore", "Many cores", file.read())

    def machine(self):
        meta = self.found.meta
        run = [(key, meta[key]) for key in ("started", "finished", "command") if meta.get(key)]
        run += [("commit", words.commit(meta))] if words.commit(meta) else []
        for part in ("suite", "settings"):
            run += list((meta.get(part) or {}).items())
        known = {"format", "machine", "git", "allocators", "cases", "suite", "settings", "started", "finished",
                 "command", "programs", "verified", "runs"}
        run += [(key, value) for key, value in meta.items() if key not in known]
        run += [(f"run {number}", facts) for number, facts in enumerate(meta.get("runs") or [], start=1)]
        other = len(self.found.cases) - len(self.found.suite)
        if other:
            run.append(("cases of figures", f"{other} more, which only figures of the papers ask for: in no mean here"))
        body = "<h2>Machine and allocators</h2>" + draw(tables.allocators(self.found))
        if meta.get("machine"):
            body += "<h3>Machine</h3>" + _list(meta["machine"].items())
        if run:
            body += "<h3>Run</h3>" + _list(run)
        if meta.get("programs"):
            body += f"<details><summary>Programs that were run</summary>{draw(tables.programs(self.found))}</details>"
        self.add("machine", "Machine", body)

    def method(self):
        self.add("method", "How measured", f"""<h2>How this was measured</h2>
<p>A <b>case</b> is one workload with its parameters fixed. In every round each case runs once under every
allocator, preloaded into the process, in balanced orders: over the cases and the rounds each allocator takes every
place, and follows each of the others, about equally often. Before a row is believed, a probe says which object defines
<code>malloc</code>: of a workload in one more start of the same program, of a real program inside the first run that is
measured. At the end of every run the library must have been in the process, and of a workload in every process that it
started.</p>
<p><b>Time</b> is the workload's own clock, per operation where it counts operations; a real program's is the wall
clock's. Where a case is judged by a rate, of which more is better, the ratio is inverted, so that below 1 is better
everywhere. <b>Memory</b> is the peak of RSS + page tables, less the workload's own tables.</p>
<p><b>Ratios</b> are taken round by round, as what disturbs a machine disturbs a whole round. A case's ratio is the
geometric mean over its rounds, with its 95 % interval (Student's t, of the logarithms). A <b>tie</b> is where the
interval contains 1; fewer than {MIN_ROUNDS} rounds give no verdict, and rounds in which the two ran more than
{analyse.APART_S / 60:.0f} minutes apart do not count for one. One verdict in twenty is chance where two
allocators are equal. A certain difference may be too small to matter, so each is shown with its size, and those
beyond {analyse.NOTABLE:.0%} are counted apart.</p>
<p><b>Means</b> are geometric, every case weighing the same, over the cases that both allocators finished; how many
these are stands beside them. The interval of a mean is that of the rounds' own means: it says how far the figure would
move if these cases were measured again, not what other programs would show. Memory is compared where a program holds
{analyse.START_UP_KIB // 1024} MiB or more at its peak; below that it compares what a process has at its start, which
stands apart. Cases judged by another number than their time are in no mean of time or memory: their wins, ties
and losses are counted by themselves, and the lists of losses and wins name the number. <b>Floors</b>: for time
<code>bump</code>, which takes the next bytes of a region and never frees (where others reuse warm memory, they can be
faster: fresh memory costs page faults); for memory the program's own peak of live bytes. <b>Spread</b> is
(largest − smallest) / median over the rounds. <b>Best other</b>, for one of our libraries, is the best of the
allocators people use; for these, the best of all others.</p>""")

    def raw(self):
        samples = os.path.basename(packed.path(self.folder, store.SAMPLES))
        self.add("raw", "Raw data", f"<h2>Raw data</h2><p>Every sample is a line of <code>{samples}</code> "
                 f"beside this page, what it was taken under is in <code>{store.META}</code>, the medians of each case and "
                 f"contender, with user and system time, faults and switches, in <code>{medians.MEDIANS}</code>. "
                 "<code>spanalloc bench run</code> continues this run or makes another. Every plot of this page is a PNG beside it.</p>")

    def text(self) -> str:
        for make in (self.summary, self.overall, self.groups, self.latency, self.memory, self.failures, self.papers,
                     self.manycore, self.machine, self.method, self.cases, self.raw):
            make()
        bar = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in self.sections)
        content = "".join(body for _, _, body in self.sections)
        return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>spanalloc: benchmark report</title>'
                '<meta name="viewport" content="width=device-width, initial-scale=1">'
                f'<style>{STYLE}</style></head>\n<body><nav>{bar}</nav><main>{content}</main>'
                f'<script>{SCRIPT}</script></body></html>\n')


def _paper_figures(folder) -> list[str]:
    """The papers' figures that were run into this folder, one folded part each."""
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
    return [_paper_figure(found[name], path) for name in sorted(found)]


_ANSWERS = {"holds": WIN, "does not hold": LOSS}


def _claim(claim) -> str:
    """A claim with its verdict, and below it the verdicts on those that the figure shows beside its subject."""
    def verdict(of):
        answer = of.get("verdict", "")
        return f'<b class="{_ANSWERS.get(answer, "dim")}">{_escape(answer)}</b>'

    place = f' <span class="soft">({_escape(claim["place"])})</span>' if claim.get("place") else ""
    evidence = _escape(f"{claim.get('subject', '')} {claim.get('evidence', '')}".strip())
    lines = [f'{verdict(claim)} {_escape(claim.get("text", ""))}{place}<br><span class="soft">{evidence}</span>']
    for name, other in (claim.get("beside") or {}).items():
        evidence = _escape(f"{name}: {other.get('evidence', '')}")
        lines.append(f'{verdict(other)} <span class="soft">{evidence}</span>')
    return "".join(f'<div class="claim">{line}</div>' for line in lines)


def _small_png(path) -> bytes:
    """A plot's PNG with 64 colours: a quarter of the bytes, and nothing that is seen is lost."""
    out = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(out, "PNG", optimize=True)
    return out.getvalue()


def _paper_figure(figure, path) -> str:
    picture, file = "", os.path.join(path, f"{figure.get('id', '')}.png")
    if os.path.isfile(file):
        content = base64.b64encode(_small_png(file)).decode()
        alt = _escape(figure.get("title", ""))
        picture = f'<figure><img alt="{alt}" loading="lazy" src="data:image/png;base64,{content}"></figure>'
    claims = figure.get("claims", [])
    answers = [claim.get("verdict", "") for claim in claims]
    tally = ", ".join(f"{answers.count(answer)} {answer}" for answer in dict.fromkeys(answers))
    number = " ".join(str(figure[key]) for key in ("paper", "number") if figure.get(key))
    title = _escape(f"{number}: {figure.get('title', '')}")
    command = f'<p class="note">Command: <code>{_escape(figure["command"])}</code></p>' if figure.get("command") else ""
    summary = f'{title} <span class="soft">· {_escape(tally)}</span>'
    return (f'<details id="figure-{_escape(figure.get("id", ""))}"><summary>{summary}</summary>'
            f'{"".join(map(_claim, claims))}{picture}{command}</details>')


def write(folder) -> str:
    """Writes report.html, the PNGs and medians.csv into the run's folder; returns the report's path."""
    folder = os.fspath(folder)
    medians.write(folder)
    text = _Page(analyse.load(folder), folder).text()
    path = os.path.join(folder, REPORT)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
    return path
