"""The terminal's summary, the HTML report and what documents quote, of a small made-up run."""

import contextlib
import csv
import html.parser
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools"), SOURCE]

import before_after  # noqa: E402
from spanalloc_bench import analyse, documents, readme, store, tables, units, words  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402
from spanalloc_bench.model import CRASHED, HUNG, UNAVAILABLE, Sample  # noqa: E402

# Seconds per case and allocator; memory is ten times the time in MiB, the other way round.
TIMES = {
    "mill.t1": {"standard": 1.0, "scalloc": 1.2, "glibc": 2.0, "jemalloc": 1.5, "bump": 0.5},
    "mill.t2": {"standard": 0.6, "scalloc": 0.7, "glibc": 1.1, "jemalloc": 0.5, "bump": 0.3},
    "program": {"standard": 3.0, "scalloc": 3.3, "glibc": 3.003, "jemalloc": 3.3, "bump": 2.9},
    "timed": {"standard": 1.0, "scalloc": 1.0, "glibc": 1.0, "jemalloc": 1.0, "bump": 1.0},
}
KINDS = {"standard": "ours", "scalloc": "ours", "glibc": "system", "jemalloc": "peer", "tbbmalloc": "peer",
         "bump": "baseline"}
META = {
    "started": "2025-03-01T10:00:00+00:00", "command": "spanalloc bench",
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "machine": {"cpu": "Test CPU <model>", "cores": 2, "caches": {"L1d": "32K"}}, "suite": {"rounds": 6},
    "allocators": [{"name": name, "kind": kind, "path": f"/lib/{name}.so", "version": "1.0", "sha256": "c0ffee" * 8,
                    "environment": {"OPTION": "a<b"} if name == "jemalloc" else {}} for name, kind in KINDS.items()]
    + [{"name": "absent", "kind": "peer", "missing": "not installed"}],
    "cases": {
        "mill.t1": {"group": "mill", "title": "mill, 1 thread", "source": "scalloc 7.2", "threads": 1},
        "mill.t2": {"group": "mill", "title": "mill, 2 threads", "source": "scalloc 7.2", "threads": 2},
        "program": {"group": "programs", "title": "a program & more", "source": "beyond", "family": "program"},
        "timed": {"group": "timed", "title": "every call timed", "source": "SuperMalloc 9"},
        "nobody": {"group": "nobody", "title": "nobody can", "source": "beyond"},
    },
}


def latency(factor):
    values = {"p50_ns": 20, "p99_ns": 40, "p999_ns": 80, "p9999_ns": 1000 * factor, "max_ns": 90000}
    return {"malloc": {"count": 9, **values}}


def make_run(folder, rounds=6, started=None):
    """A run in which tbbmalloc hangs in mill.t1 and crashes in one round of mill.t2."""
    store.write_meta(folder, {**META, **({"started": started} if started else {})})
    out = store.Store(folder)
    for case, times in TIMES.items():
        for number in range(1, rounds + 1):
            disturbance = 1 + 0.1 * (number % 3)
            for position, (name, time) in enumerate(times.items(), start=1):
                jitter = 1 + 0.002 * ((number * 7 + position * 3) % 5)
                out.append(Sample(
                    case, name, number, position, elapsed_s=time * disturbance * jitter,
                    operations=None if case == "program" else 1_000_000, peak_kib=10240.0 / time,
                    peak_live_bytes=1024 * 1024, metrics={"false_sharing": 1} if case == "mill.t2" else {},
                    latency=latency(time) if case == "timed" else {},
                ))
            if case == "mill.t1":
                out.append(Sample(case, "tbbmalloc", number, 9, status=HUNG, problem="no end after <60 s>"))
            if case == "mill.t2":
                what = {"elapsed_s": 1.0, "peak_kib": 5000.0}
                if number == rounds:
                    what = {"status": CRASHED, "problem": "killed by SIGSEGV"}
                out.append(Sample(case, "tbbmalloc", number, 9, **what))
    for name in ("standard", "glibc"):
        out.append(Sample("nobody", name, 1, 1, status=UNAVAILABLE, problem="xalan: command not found"))
    out.close()


# Cases judged by another number than time: its value by allocator.
NUMBERS = {
    "idle": {"standard": 6.0, "glibc": 1.0, "jemalloc": 12.0},
    "tail": {"standard": 100.0, "glibc": 200.0, "jemalloc": 300.0},
    "lost": {"standard": 3.0, "glibc": 0.0, "jemalloc": 3.0},
}
NUMBERS_CASES = {
    "idle": {"group": "idle", "title": "1000 idle threads", "metric": "idle_over_live"},
    "tail": {"group": "tail", "title": "every call timed", "metric": "malloc_p9999_ns"},
    "lost": {"group": "lost", "title": "blocks | lost", "metric": "failures"},
    "large": {"group": "large", "title": "a large program"},
    "tiny": {"group": "tiny", "title": "a tiny program"},
    "pages": {"group": "pages", "title": "pages lost", "metric": "failures", "family": "pages"},
    "lock": {"group": "lock", "title": "a lock", "metric": "global_ns"},
}


def make_run_of_numbers(folder, rounds=6):
    """A run whose cases are judged by other numbers than time, two of them without standard; and one that compares, in
    memory, only what a process has at its start."""
    kinds = {"standard": "ours", "glibc": "system", "jemalloc": "peer", "mmap": "pages"}
    store.write_meta(folder, {**META, "cases": NUMBERS_CASES,
                              "allocators": [{"name": name, "kind": kind} for name, kind in kinds.items()]})
    out = store.Store(folder)
    for number in range(1, rounds + 1):
        for name, peak in (("standard", 3000.0), ("glibc", 2000.0), ("jemalloc", 3000.0)):
            same = {"elapsed_s": 1.0, "peak_kib": 9000.0, "peak_live_bytes": 8 << 20}
            for case, values in NUMBERS.items():
                metrics = {NUMBERS_CASES[case]["metric"]: values[name]}
                out.append(Sample(case, name, number, 1, metrics=metrics, **same))
            out.append(Sample("large", name, number, 1, **same))
            out.append(Sample("tiny", name, number, 1, elapsed_s=1.0, peak_kib=peak, peak_live_bytes=99))
        out.append(Sample("pages", "mmap", number, 1, elapsed_s=1.0, metrics={"failures": 1.0}))
        out.append(Sample("lock", "glibc", number, 1, elapsed_s=1.0, metrics={"global_ns": 5.0}))
    out.close()


class Run(unittest.TestCase):
    """A class of tests over one made-up run."""

    rounds = 6
    make = staticmethod(make_run)

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory(prefix="spanalloc-report-")
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = os.path.join(scratch.name, "run")
        cls.make(cls.folder, cls.rounds)
        cls.found = analyse.load(cls.folder)


class TablesTest(Run):
    def row(self, table, name):
        return [cell.text for cell in next(row for row in table.rows if row[0].text == name)]

    def test_every_row_fills_its_columns(self):
        for case in self.found.cases:
            for measures in (None, [analyse.MEMORY]):
                table = tables.case_table(self.found, case, measures=measures)
                for row in table.rows:
                    self.assertEqual(sum(cell.span for cell in row), len(table.columns), f"{case}, {row[0].text}")
                    self.assertTrue(all(cell.span > 0 for cell in row), case)
        for make in (tables.standing, tables.problems, tables.allocators):
            self.check_filled(make(self.found))
        for make in (tables.matrix, tables.by_group, tables.latency_matrix):
            self.check_filled(make(self.found, "standard"))
        self.check_filled(tables.extremes(self.found, "standard", True))

    def check_filled(self, table):
        self.assertTrue(table.rows, table.title)
        for row in table.rows:
            self.assertEqual(len(row), len(table.columns), table.title)

    def test_matrix(self):
        matrix = tables.matrix(self.found, "standard")
        glibc = self.row(matrix, "glibc")
        # Time: mill.t1 and mill.t2 won by far, program and timed tied (0.1 % of 3 s drowns in the jitter).
        self.assertEqual(glibc[1:3], ["2/2/0", "2 : 0"])
        self.assertEqual(glibc[-3:], ["4/4", "0", "0"])
        self.assertEqual(self.row(matrix, "tbbmalloc")[-3:], ["0/0", "0", "2"])
        floor = self.row(matrix, "bump (floor)")
        self.assertEqual(floor[3], units.ratio(analyse.geometric_mean([1 / 0.5, 0.6 / 0.3, 3 / 2.9, 1])))

    def test_memory_loses_by_its_exact_ratio(self):
        memory = [row for row in tables.extremes(self.found, "standard", True).rows if row[0].text == "memory"]
        self.assertEqual([cell.text for cell in memory[0]][1:], [
            "mill.t1", "mill, 1 thread", "glibc", "10.0 MiB", "5.00 MiB", "×2.0", "2.0000 to 2.0000"])

    def test_standing_leaves_out_who_hardly_finished(self):
        standing = tables.standing(self.found)
        self.assertEqual({row[0].text for row in standing.rows}, {"standard", "scalloc", "glibc", "jemalloc"})
        self.assertIn("tbbmalloc", standing.note)
        self.assertIn("time / best (4 cases)", [column.text for column in standing.columns])

    def test_headline_orders_by_how_much(self):
        text = words.headline(self.found, "standard", analyse.TIME)
        self.assertRegex(text, r"^In time, standard is ahead of glibc \(−\d+ %, −\d+ % to −\d+ %\), jemalloc")

    def test_headline_of_a_tie_and_of_too_few_rounds(self):
        def sentence(rounds, ratios):
            data = []
            for number, ratio in zip(range(1, rounds + 1), ratios):
                data += [Sample("a", "standard", number, 1, elapsed_s=ratio),
                         Sample("a", "glibc", number, 2, elapsed_s=1.0)]
            return words.headline(analyse.Analysis(data, {}), "standard", analyse.TIME)

        swinging = [0.5, 1.2, 0.9, 0.8, 1.3, 0.7]
        self.assertRegex(sentence(6, swinging),
                         r"^In time, standard is level with glibc \(−\d+ %, −\d+ % to \+\d+ %\)\.$")
        self.assertEqual(sentence(5, [0.5] * 5), "In time, standard is not yet told from glibc (−50 %).")

    def test_what_is_left_out_of_memory_is_told(self):
        self.assertEqual(words.memory_leaves_out(self.found, "standard"), "")
        data = []
        for name, peak in (("standard", 3000.0), ("glibc", 2000.0)):
            for number in range(1, 7):
                data += [Sample("tiny", name, number, 1, elapsed_s=1.0, peak_kib=peak, peak_live_bytes=99),
                         Sample("count", name, number, 1, elapsed_s=1.0, peak_kib=peak, metrics={"failures": 1})]
        found = analyse.Analysis(data, {"cases": {"count": {"group": "count", "title": "x", "metric": "failures"},
                                                  "tiny": {"group": "tiny", "title": "x"}}})
        note = words.memory_leaves_out(found, "standard")
        self.assertRegex(note, r"^Memory leaves out 1 case that .*1.00 MiB.*glibc 1.50\) and 1 that is judged")
        self.assertEqual(tables.matrix(found, "standard").note, note)
        by_group = tables.by_group(found, "standard")
        self.assertEqual([cell.text for cell in by_group.rows[-1]], ["below 1.00 MiB live", "1", "-", "1.50"])
        self.assertIn("start-up memory / best (1 cases)", [column.text for column in tables.standing(found).columns])

    def test_runs_far_apart_are_told(self):
        self.assertEqual(words.measured_apart(self.found, "standard"), "")
        data = [Sample("a", name, number, 1, elapsed_s=1.0, started=started) for number in range(1, 7)
                for name, started in (("standard", 0.0), ("glibc", 1e4), ("jemalloc", 1.0))]
        text = words.measured_apart(analyse.Analysis(data, {}), "standard")
        self.assertRegex(text, "^Run more than 10 minutes before or after standard .*: glibc in 1 case[.]")
        facts = {"cases": {"a": {"group": "a", "title": "a", "metric": "failures"}}}
        for sample in data:
            sample.metrics["failures"] = 1.0
        text = words.measured_apart(analyse.Analysis(data, facts), "standard")
        self.assertIn(": glibc in 1 case.", text)

    def test_groups_for_the_screen(self):
        table = tables.group_brief(self.found, "mill", analyse.TIME)
        cell = next(cell.text for cell, column in zip(table.rows[0], table.columns) if column.text == "jemalloc")
        self.assertRegex(cell, r"^1\.\d+ µs\n1\.[45]\d (2\.9|3\.0)\d$")  # beside standard, and beside bump
        self.assertIn("hung", [cell.text for cell in table.rows[0]])
        self.assertIsNone(tables.group_brief(self.found, "mill", analyse.METRIC))

    def test_problems_tell_rounds_and_join_what_is_missing(self):
        rows = [[cell.text for cell in row] for row in tables.problems(self.found).rows]
        self.assertIn(["tbbmalloc", "crashed", "killed by SIGSEGV", "1: mill.t2 (1 of 6 rounds)"], rows)
        self.assertIn(["tbbmalloc", "hung", "no end after <60 s>", "1: mill.t1"], rows)
        self.assertIn(["standard, glibc", "not available", "xalan: command not found", "1: nobody"], rows)
        self.assertEqual(len(tables.problem_lines(self.found)), 1)


class SummaryTest(Run):
    def text(self, printer, *arguments, width=110):
        from rich.console import Console

        out = io.StringIO()
        printer(self.found, *arguments, Console(file=out, width=width, no_color=True, highlight=False))
        return out.getvalue()

    def test_first_screen(self):
        from spanalloc_bench import summary

        text = self.text(summary.print_summary)
        for wanted in ("Test CPU <model>, 2 cores", "6 rounds", "commit 0123456789", "absent: not installed", "2/2/0",
                       "Worst losses", "tbbmalloc hung in 1 case (mill.t1)", "crashed in 1 case (mill.t2)",
                       "scalloc in time and memory", "malloc p99.99"):
            self.assertIn(wanted, text)
        first = text.splitlines()
        self.assertTrue(any("2/2/0" in line for line in first[:26]), "the matrix is not on the first screen")
        self.assertTrue(all(len(line.rstrip()) <= 110 for line in first))

    def test_groups(self):
        from spanalloc_bench import summary

        text = self.text(summary.print_groups)
        for wanted in ("mill: time; below, the ratio to the best other and to bump", "programs: memory", "mill.t2"):
            self.assertIn(wanted, text)

    def test_narrow_console_cuts_nothing(self):
        from spanalloc_bench import summary

        self.assertNotIn("…", self.text(summary.print_summary, width=40))
        self.assertNotIn("…", self.text(summary.print_case_table, "mill.t1", width=40))

    def test_case_table(self):
        from spanalloc_bench import summary

        text = self.text(summary.print_case_table, "mill.t2")
        self.assertRegex(text, r"jemalloc +\d+ ns .* loss \+\d+ %")
        self.assertIn("tbbmalloc crashed: killed by SIGSEGV", text)
        self.assertIn("false_sharing", text)

    def test_without_a_terminal_it_is_plain_and_wide(self):
        from spanalloc_bench import screen, summary

        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            console = screen.console()
            summary.print_summary(self.found, console)
        self.assertEqual(console.width, int(os.environ.get("COLUMNS") or screen.WIDE))
        self.assertNotIn("\x1b", out.getvalue())


class Links(html.parser.HTMLParser):
    """What a page refers to, what it defines, and whether its tags close."""

    VOID = {"meta", "img", "br", "link", "input", "hr", "path", "use", "rect", "circle", "line"}

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.references, self.ids, self.open, self.bad = [], [], [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.references += [found[key] for key in ("href", "src", "xlink:href") if key in found]
        self.ids += [found["id"]] if "id" in found else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in self.VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.bad.append(tag)


class ReportTest(Run):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from papers.shared.figures import commands, figure  # noqa: F401
        from spanalloc_bench import report

        figures = os.path.join(cls.folder, figure.FOLDER)
        os.mkdir(figures)
        with open(os.path.join(figures, "x-1.json"), "w", encoding="utf-8") as file:
            claim = {"name": "a", "text": "it scales", "place": "7.2", "subject": "scalloc", "verdict": "holds",
                     "evidence": "1.9 of 2", "beside": {"standard": {"verdict": "does not hold", "evidence": "1 < 2"}}}
            json.dump({"id": "x-1", "title": "A <figure>", "paper": "scalloc", "number": "Figure 1", "command": "x",
                       "claims": [claim]}, file)
        from spanalloc_bench import plots

        plots.save(plots.figure([plots.lines("a", {"standard": [(1, 1.0)]})]), os.path.join(figures, "x-1.png"))
        with open(os.path.join(cls.folder, report.MANYCORE), "w", encoding="utf-8") as file:
            file.write("<h2>Many cores</h2><p>from one core to many</p>")
        with open(report.write(cls.folder), encoding="utf-8") as file:
            cls.page = file.read()
        cls.links = Links()
        cls.links.feed(cls.page)

    def test_needs_nothing_else(self):
        outside = [ref for ref in self.links.references if not ref.startswith(("#", "data:"))]
        self.assertEqual(outside, [])
        self.assertNotRegex(re.sub(r'xmlns(:\w+)?="[^"]*"', "", self.page), r"url\((?!#)|@import|https?://")

    def test_links_lead_somewhere(self):
        inside = {ref[1:] for ref in self.links.references if ref.startswith("#")}
        self.assertGreater(len(inside), 8)
        self.assertEqual(inside - set(self.links.ids), set())

    def test_is_well_formed_and_escapes(self):
        self.assertEqual((self.links.bad, self.links.open), ([], []))
        for raw in ("<model>", "a<b", "<60 s>", "A <figure>", "a program & more"):
            self.assertNotIn(raw, self.page)
        self.assertIn("Test CPU &lt;model&gt;", self.page)

    def test_has_every_section_and_case(self):
        for section in ("summary", "overall", "groups", "latency", "memory", "failures", "papers", "manycore", "machine",
                        "method", "cases", "raw"):
            self.assertIn(section, self.links.ids)
        for case in TIMES:
            self.assertIn(f"case-{case}", self.links.ids)
        for wanted in ("2/2/0", "c0ffeec0ffee", "OPTION=a&lt;b", "not installed", "killed by SIGSEGV", "it scales",
                       ">holds<", ">does not hold<", "1 &lt; 2", "from one core to many",
                       "data:image/png;base64,"):
            self.assertIn(wanted, self.page)

    def test_plots(self):
        for name in ("overview-time", "overview-memory", "standing", "group-mill", "group-programs", "latency-timed"):
            with open(os.path.join(self.folder, f"{name}.png"), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG", name)
        self.assertEqual(self.page.count("<svg"), len([n for n in os.listdir(self.folder) if n.endswith(".png")]))

    def test_medians(self):
        from spanalloc_bench import medians

        with open(os.path.join(self.folder, medians.MEDIANS), encoding="utf-8", newline="") as file:
            rows = {(row["case"], row["allocator"]): row for row in csv.DictReader(file)}
        row = rows["mill.t2", "tbbmalloc"]  # crashed in the last round
        self.assertEqual((row["rounds"], row["finished"], row["elapsed_s"], row["peak_kib"]), ("6", "5", "1", "5000"))
        self.assertEqual((row["elapsed_spread"], row["user_s"]), ("0", ""))
        hung = rows["mill.t1", "tbbmalloc"]
        self.assertEqual((hung["finished"], hung["elapsed_s"]), ("0", ""))
        self.assertEqual(len(rows), len({(s.case, s.allocator) for s in store.samples(self.folder)}))

    def test_is_small(self):
        self.assertLess(len(self.page), 600_000)  # 4 cases; 60 must stay below 3 MB


class FewRoundsTest(Run):
    rounds = 1

    def test_no_verdicts_but_ratios(self):
        from spanalloc_bench import report

        with open(report.write(self.folder), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("1 of the 6 rounds", page)
        self.assertIn("too few rounds", page)
        self.assertNotIn(">win ", page)
        self.assertIn("×2.0", page)
        for quoted in (readme.losses(self.found), readme.brief(self.found)):
            self.assertIn("1 of the 6 rounds", quoted)

    def test_only_peers(self):
        from spanalloc_bench import report

        with tempfile.TemporaryDirectory() as folder:
            out = store.Store(folder)
            out.append(Sample("a", "glibc", 1, 1, elapsed_s=1.0, peak_kib=1.0))
            out.close()
            with open(report.write(folder), encoding="utf-8") as file:
                self.assertIn("nothing to compare", file.read())


class PlotsTest(unittest.TestCase):
    def test_the_documents_and_their_picture_are_written(self):
        newest = os.path.relpath(readme.newest(os.path.join(SOURCE, "bench", "results")), SOURCE)
        with tempfile.TemporaryDirectory() as tree:
            for path in ("bench/common.py", "bench/spanalloc_bench", "tools/spanalloc_cli", "src/libraries.txt",
                         newest):
                os.makedirs(os.path.dirname(os.path.join(tree, path)), exist_ok=True)
                os.symlink(os.path.join(SOURCE, path), os.path.join(tree, path))
            os.mkdir(os.path.join(tree, "docs"))
            for path in ("bench/readme_figures.py", readme.README, readme.RESULTS):  # no links: it writes beside itself
                shutil.copy(os.path.join(SOURCE, path), os.path.join(tree, path))
            written = {}
            for document in (readme.README, readme.RESULTS):
                with open(os.path.join(tree, document), encoding="utf-8") as file:
                    written[document] = file.read()
                before = documents.between_markers(written[document], readme.SUITE, "", document)
                with open(os.path.join(tree, document), "w", encoding="utf-8") as file:
                    file.write(before)
            subprocess.run([sys.executable, os.path.join(tree, "bench", "readme_figures.py"), "--suite"], check=True,
                           env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
            for document, text in written.items():
                with open(os.path.join(tree, document), encoding="utf-8") as file:
                    self.assertEqual(file.read(), text)
            with open(os.path.join(tree, "docs", "standing.png"), "rb") as file:
                self.assertEqual(file.read(4), b"\x89PNG")

    def test_looks_are_stable_and_told_apart(self):
        from spanalloc_bench import plots

        names = ["standard", "scalloc", "glibc", "jemalloc", "tcmalloc", "mimalloc", "tbbmalloc", "bump"]
        looks = [plots.style(name) for name in names]
        self.assertEqual(len({look.color for look in looks}), len(names))
        self.assertEqual(len({look.marker for look in looks}), len(names))
        self.assertEqual([name for name, look in zip(names, looks) if look.ours], ["standard", "scalloc"])
        self.assertEqual(plots.style("never-seen"), plots.style("never-seen"))

    def test_gaps_and_extremes_draw(self):
        from spanalloc_bench import plots

        panels = [
            plots.lines("a", {"standard": [(1, 1.0), (2, None)], "glibc": []}, ideal=True, floor=[(1, 0.5)],
                        log_x=True),
            plots.lines("b", {"standard": [(1, 1e-9, 1e-10, 1e-8)]}, y_unit="s", log_y=True),
            plots.bars("c", {"one": {"standard": 7.0, "glibc": None}, "a very long name of a case": {"glibc": 1.0}},
                       limit=3, line_at=1),
            plots.percentiles("d", {"standard": {"p50_ns": 0, "max_ns": 5}}),
            plots.forest("e", [("#head", None, None, None, ""), ("x", 9.0, 8.0, 10.0, "loss"),
                               ("y", 0.01, None, None, "")]),
        ]
        text = plots.inline(plots.figure(panels, title="T", note="N"), 'says "so" <here>')
        self.assertTrue(text.startswith("<svg") and text.endswith("</svg>"))
        self.assertIn('aria-label="says &quot;so&quot; &lt;here&gt;"', text[:200])

    def test_scatter_begins_at_the_best_and_tells_labels(self):
        from spanalloc_bench import plots

        def axes(least_x):
            points = {"standard": (least_x, 1.2), "glibc": (2.0, 1.1)}
            return plots.figure([plots.scatter("s", points, x_label="x", y_label="y", labels={"standard": "ours"},
                                               least=1.0)]).axes[0]

        self.assertEqual((axes(1.1).get_xlim()[0], axes(1.1).get_ylim()[0]), (1.0, 1.0))
        self.assertLess(axes(0.9).get_xlim()[0], 0.9)  # nothing is cut off
        self.assertEqual([text.get_text() for text in axes(1.1).texts], ["ours", "glibc"])

    def test_same_data_same_bytes(self):
        from spanalloc_bench import plots

        texts = {plots.inline(plots.figure([plots.lines("a", {"standard": [(1, 1.0), (2, 2.0)]})])) for _ in range(2)}
        self.assertEqual(len(texts), 1)


class NumbersTest(Run):
    """Cases judged by another number than time, on the first screen and in documents."""

    make = staticmethod(make_run_of_numbers)
    SENTENCE = ("In the 3 cases judged by another number than time (1 by idle_over_live, 1 by malloc_p9999_ns, "
                "1 by failures), standard wins/ties/loses 1/0/2 against glibc, 2/1/0 against jemalloc.")

    def test_sentence(self):
        self.assertEqual(words.other_numbers(self.found, "standard"), self.SENTENCE)
        with tempfile.TemporaryDirectory() as folder:
            make_run_of_numbers(folder, rounds=1)
            self.assertRegex(words.other_numbers(analyse.load(folder), "standard"), r"standard has no verdicts\.$")

    def test_worst_and_best(self):
        def rows(worst):
            table = tables.extremes(self.found, "standard", worst)
            return [[cell.text for cell in row][:-1] for row in table.rows]

        self.assertEqual(rows(True), [
            ["failures", "lost", "blocks | lost", "glibc", "3", "0", "3 against 0"],
            ["idle_over_live", "idle", "1000 idle threads", "glibc", "6", "1", "×6.0"],
        ])
        self.assertEqual(rows(False), [
            ["malloc_p9999_ns", "tail", "every call timed", "glibc", "100 ns", "200 ns", "−50 %"]])

    def test_cases_are_counted_where_the_product_ran(self):
        self.assertIn("5 cases", words.overview(self.found))  # of 7
        self.assertRegex(words.memory_leaves_out(self.found, "standard"), "^Memory leaves out 1 case .* and 3 that are")

    def test_first_screen_and_page(self):
        from rich.console import Console
        from spanalloc_bench import report, summary

        out = io.StringIO()
        summary.print_summary(self.found, Console(file=out, width=300, no_color=True, highlight=False))
        self.assertIn(self.SENTENCE, out.getvalue())
        self.assertRegex(out.getvalue(), r"idle_over_live +idle .*×6\.0")
        with open(report.write(self.folder), encoding="utf-8") as file:
            self.assertIn(self.SENTENCE, file.read())

    def test_documents(self):
        text = readme.suite_table(self.found) + readme.losses(self.found)
        self.assertIn("6 rounds, 5 cases, commit", text)
        self.assertIn(self.SENTENCE, text)
        lines = text.splitlines()
        for line in (
            "| glibc | 1.00 | 0/2/0 | 1.00 | 0/1/0 | 1/0/2 | 2 / 1 | 0 / 0 |",
            "| jemalloc | 1.00 | 0/2/0 | 1.00 | 0/1/0 | 2/1/0 | 2 / 1 | 0 / 0 |",
            "| case | `standard` time | `standard` memory | `standard` other number |",
            "| 1000 idle threads: `idle_over_live` |  |  | ×6.0 (glibc) |",
            "| blocks \\| lost: `failures` |  |  | 3 against 0 (glibc) |",
            "| a tiny program |  | +50 % (glibc, at start) |  |",
        ):
            self.assertIn(line, lines)
        places = [text.index(title) for title in ("| blocks", "| 1000 idle threads", "| a tiny program")]
        self.assertEqual(places, sorted(places))  # the largest loss first
        self.assertRegex(text, "at start: the case holds less than 1.00 MiB.*; other number: what the case is judged by")
        self.assertNotIn("every call timed", text)  # which is won
        self.assertIn("`standard` loses by more than 5 %, to one of them at least, in 3 of the 5 cases (1 in memory, 2 in "
                      "another number): [", readme.brief(self.found))
        self.assertIn("In the mean of the cases `standard`, the engine of `libspanalloc.so`, takes less time than none of the "
                      "2 others, as much as glibc and jemalloc; less memory than none of the 2 others, as much as glibc and "
                      "jemalloc. ", readme.brief(self.found))
        self.assertIn("lost; time leaves out 3 that are judged by another number; memory leaves out these and 1 that holds "
                      "less than 1.00 MiB; a row", readme.brief(self.found))


class ReadmeTest(Run):
    def test_failures_of_all(self):
        text = readme.suite_table(self.found)
        self.assertIn("`tbbmalloc` has no figures of 2 cases: mill.t1 hung in 6 of 6 rounds (`no end after <60 s>`); mill.t2 "
                      "crashed in 1 of 6 rounds (`killed by SIGSEGV`).", text.splitlines())
        self.assertIn("| tbbmalloc | - | - | - | - | - | 0 / 0 | 0 / 2 |", text.splitlines())
        self.assertNotIn("xalan", text)  # what is missing on the machine is nobody's failure

    def test_no_column_of_what_no_case_is_judged_by(self):
        text = readme.losses(self.found)
        self.assertIn("` memory |", text)
        self.assertNotIn("` other number |", text)
        self.assertNotIn("at start", text)

    def test_table(self):
        text = readme.suite_table(self.found) + readme.losses(self.found)
        self.assertRegex(text, r"\| glibc \| 0\.\d+ \| 2/2/0 \|")
        self.assertIn("`standard` memory", text)
        # mill.t2 is lost to jemalloc in time; program's 0.1 % and memory's ties are no loss to speak of.
        loss = next(line for line in text.splitlines() if line.startswith("| mill, 2 threads"))
        self.assertRegex(loss, r"\| \+\d+ % \(jemalloc\) \|")
        self.assertNotIn("every call timed", text)

    def test_brief(self):
        lines = readme.brief(self.found).splitlines()
        self.assertIn("6 rounds, 4 cases, commit 0123456789, 2025-03-01. What has changed", lines[0])
        self.assertIn("takes less time than all of the 2 others; less memory than none of the 2 others, more than glibc and ",
                      lines[2])
        self.assertIn("lost; a row leaves out", lines[2])
        rows = [line.split(" | ") for line in lines if line.startswith("| ")]
        self.assertEqual([row[0] for row in rows], ["| `standard` against", "| glibc (1.0)", "| jemalloc (1.0)",
                                                    "| tbbmalloc (1.0)"])
        self.assertEqual(rows[1][2], "2/2/0")
        self.assertRegex(lines[-1], r"^`standard` loses by more than 5 %.* of the 4 cases \(1 in time, \d in memory\): "
                                    r"\[.*\]\(docs/results\.md#where-it-loses\)\.$")

    def test_brief_without_losses(self):
        data = [Sample("a", name, number, 1, elapsed_s=time) for number in range(1, 7)
                for name, time in (("standard", 1.0), ("glibc", 2.0))]
        self.assertIn("No case is lost by more than 5 %.", readme.brief(analyse.Analysis(data, {})))

    def test_libraries_side_by_side(self):
        text = readme.libraries_table(self.found)
        rows = {line.split(" | ")[0]: line.split(" | ") for line in text.splitlines() if line.startswith("| ")}
        self.assertEqual(rows["| library"], ["| library", "time", "memory", "takes most time at", "take it for |"])
        self.assertEqual(rows["| `standard`"][1:3], ["1", "1"])
        self.assertRegex(rows["| `standard`"][3], r"^mill, 2 threads \(\+\d+ %\) against jemalloc$")
        self.assertEqual(rows["| `standard`"][4], f"{readme.TAKE_IT_FOR['standard']} |")
        self.assertRegex(rows["| jemalloc"][1], r"^1\.\d\d$")
        self.assertRegex(rows["| jemalloc"][3], r"^mill, 1 thread \(\+\d+ %\)$")
        self.assertRegex(rows["| jemalloc"][4], r"^less time than `standard` in 1 of 4 cases, most in mill, 2 threads \(−\d+ %\) \|$")
        self.assertRegex(rows["| `scalloc`"][4], r"^research: .*; less time than `standard` in 0 of 4 cases \|$")
        # What no run has says so.
        self.assertEqual(rows["| `supermalloc`"][1:4], ["-", "-", "not in this run"])
        self.assertNotIn("| bump", text)

    def test_libraries_need_the_product(self):
        data = [Sample("a", "glibc", number, 1, elapsed_s=1.0) for number in range(1, 7)]
        with self.assertRaisesRegex(SystemExit, "no samples of standard"):
            readme.libraries_table(analyse.Analysis(data, {}))

    def test_every_library_says_what_it_is_for(self):
        self.assertEqual(set(readme.TAKE_IT_FOR), set(libraries.SHIPPED_CONFIGS))

    def test_the_document_has_the_place_of_the_libraries(self):
        with open(os.path.join(SOURCE, readme.RESULTS), encoding="utf-8") as file:
            place = file.read().partition(f"<!-- {readme.LIBRARIES}:begin -->")[2]
        self.assertIn("| `supermalloc` |", place.partition(f"<!-- {readme.LIBRARIES}:end -->")[0])

    def test_documents_quote_the_newest_run(self):
        """Whoever records a run lets `bench/readme_figures.py --suite` write it into them."""
        newest = readme.newest(os.path.join(SOURCE, "bench", "results"))
        self.assertIsNotNone(newest)
        parts = readme.quotes(newest, SOURCE)
        self.assertEqual({document for document, _ in parts}, {readme.README, readme.RESULTS})
        for (document, marker), content in parts.items():
            with open(os.path.join(SOURCE, document), encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(documents.between_markers(text, marker, content, document), text, f"{document}, {marker}")

    def test_the_command_prints_what_it_would_write(self):
        command = [sys.executable, os.path.join(SOURCE, "bench", "readme_figures.py"), "--suite", "--print"]
        printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        with open(os.path.join(SOURCE, readme.README), encoding="utf-8") as file:
            quoted = file.read().split("<!-- bench:begin -->")[1].split("<!-- bench:end -->")[0].strip()
        self.assertIn("| memory |", quoted)
        self.assertIn(quoted, printed)

    def test_the_picture(self):
        import readme_figures

        with tempfile.TemporaryDirectory() as folder:
            picture = os.path.join(folder, "standing.png")
            with unittest.mock.patch.object(readme_figures, "PICTURE", picture):
                readme_figures.draw(self.folder)
            self.assertGreater(os.path.getsize(picture), 1000)

    def test_the_document_has_the_place_of_what_is_measured(self):
        with open(os.path.join(SOURCE, readme.RESULTS), encoding="utf-8") as file:
            documents.between_markers(file.read(), "figures", "", readme.RESULTS)

    def test_before_and_after(self):
        lines = before_after.table(self.folder, "jemalloc").splitlines()
        self.assertIn("| case | before | after | best other | memory before | after | best other |", lines)
        row = next(line for line in lines if line.startswith("| mill, 2 threads"))
        # The older build is no other; neither are ours and the floor.
        self.assertRegex(row, r"^\| mill, 2 threads \| [^*|]+ \| \*\*[^|]+\*\* \| [^|]+ glibc \| .*\|$")
        self.assertEqual(sum(line.startswith("| every call timed") for line in lines), 1)
        with self.assertRaisesRegex(SystemExit, "no samples of before"):
            before_after.table(self.folder)

    def test_between_markers(self):
        text = "before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter <!-- figures:begin -->"
        once = documents.between_markers(text, "bench", "new\n")
        self.assertEqual(once, "before\n<!-- bench:begin -->\n\nnew\n<!-- bench:end -->\nafter <!-- figures:begin -->")
        self.assertEqual(documents.between_markers(once, "bench", "new\n"), once)
        with self.assertRaisesRegex(SystemExit, "lacks the line"):
            documents.between_markers(text, "absent", "")

    def test_newest(self):
        with tempfile.TemporaryDirectory() as results:
            self.assertIsNone(readme.newest(results))
            make_run(os.path.join(results, "z-older"), 1, "2025-01-01T00:00:00+00:00")
            make_run(os.path.join(results, "a-newer"), 1, "2025-02-01T00:00:00+00:00")
            os.mkdir(os.path.join(results, "no-run"))
            self.assertEqual(readme.newest(results), os.path.join(results, "a-newer"))
        self.assertIsNone(readme.newest(os.path.join(results, "gone")))


class UnitsTest(unittest.TestCase):
    def test_numbers(self):
        found = [units.seconds(v) for v in (1.234, 0.0123, 4.5e-8, 0, None)]
        self.assertEqual(found, ["1.23 s", "12.3 ms", "45.0 ns", "0 s", "-"])
        self.assertEqual([units.kib(v) for v in (512, 2048, 3.5 * 2**20)], ["512 KiB", "2.00 MiB", "3.50 GiB"])
        found = [units.ratio(v) for v in (0.995, 1.234, 0.0123, 12.34, None)]
        self.assertEqual(found, ["0.99", "1.23", "0.012", "12.3", "-"])

    def test_change(self):
        found = [units.change(v) for v in (1.0, 1.001, 0.999, 1.05, 0.5, 2.0, 40.0, 1.00001, None)]
        self.assertEqual(found, ["±0 %", "+0.10 %", "−0.10 %", "+5.0 %", "−50 %", "×2.0", "×40", "+<0.01 %", "-"])

    def test_measured(self):
        self.assertEqual(units.measured(5e-9, "time"), "5.00 ns")
        self.assertEqual(units.measured(1500, "step_ns"), "1.50 µs")
        self.assertEqual(units.measured(1234.5, "requests_per_s"), "1,234/s")
        self.assertEqual(units.measured(2048, "arena_kib"), "2.00 MiB")
        self.assertEqual(units.measured(3, "failures"), "3")


if __name__ == "__main__":
    unittest.main()
