"""What the figures' commands take, run and leave behind: docs/papers.md, JSON, PNG, tables."""

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import sys
import tempfile
import unittest
import unittest.mock
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from figure_shapes import BY_PARAMETERS, CANNOT, FRAGMENTED, SET_ASIDE, SHAPES, data_of, keys, samples_of  # noqa: E402
from papers.shared.figures import codesize, judges, records, verdicts  # noqa: E402
from papers.shared.figures.catalogue import FIGURES, PAPERS  # noqa: E402
from papers.shared.figures.data import Data  # noqa: E402
from papers.shared.figures.figure import Answer  # noqa: E402
from spanalloc_bench import allocators, manycore_rows, store, tree  # noqa: E402


DRAWN = ("scalloc-6a", "scalloc-7b", "scalloc-12a", "scalloc-11", "scalloc-7.4", "supermalloc-5", "supermalloc-12",
         "supermalloc-1", "a2alloc-6", "a2alloc-future", "coalescing-8")


class DocumentTest(unittest.TestCase):
    def test_every_claim_is_listed_also_where_nothing_has_run(self):
        from papers.shared.figures import papers

        text = papers("/nonexistent")
        self.assertEqual(text, papers("/nonexistent"))
        for figure, claim, key in keys():
            self.assertIn(f"`spanalloc bench figure {figure.id}`", text)
        self.assertEqual(len(re.findall(r"^\| \[\d+\]\(#\S+\) \| .* \| \*\*not measured\*\* \| this figure is not in these results \|$", text, re.MULTILINE)), sum(1 for _ in keys()))
        for paper in PAPERS.values():
            for number, what in paper.structural:
                self.assertIn(f"- {number}: {what}", text)

    def test_cells_are_short_and_the_rest_is_at_the_end(self):
        from papers.shared.figures import document

        claim = next(claim for _, claim, _ in keys())
        long = "; ".join(f"time of allocator{n} against {n} times 1.0{n}" for n in range(20))
        row = document._row("figure-1", claim, {"claims": [{
            "name": claim.name, "verdict": "holds", "subject": "scalloc", "evidence": long,
            "beside": {"standard": {"verdict": "undecided", "evidence": "none"}}}]})
        cells = row.line(7).split(" | ")
        self.assertLessEqual(max(map(len, cells)), document.MOST_OF_A_CELL + len(" |"))
        self.assertEqual(cells[0], f"| [7](#figure-1-{claim.name})")
        self.assertEqual(cells[2], "**holds** [scalloc]")
        end = row.at_the_end(7)
        self.assertTrue(end.startswith(f'- <a id="figure-1-{claim.name}"></a>**7.** '))
        self.assertIn(f"*Measured:* {long}.", end)
        self.assertTrue(end.endswith("*standard:* undecided; none."))

    def test_each_number_has_its_end(self):
        from papers.shared.figures import documents

        texts = documents("/nonexistent")
        self.assertEqual(len(texts), 1 + len(PAPERS))
        for name, text in texts.items():
            rows = re.findall(r"^\| \[(\d+)\]\(#(\S+)\)", text, re.MULTILINE)
            ends = re.findall(r'^- <a id="(\S+)"></a>\*\*(\d+)\.\*\*', text, re.MULTILINE)
            self.assertEqual(rows, [(number, anchor) for anchor, number in ends], name)
            self.assertEqual([number for number, _ in rows], [str(n) for n in range(1, len(rows) + 1)], name)
            self.assertEqual(len({anchor for _, anchor in rows}), len(rows), name)
            self.assertEqual(bool(rows), name.endswith("CLAIMS.md"), name)

    def test_the_rules_of_the_judges_are_stated(self):
        from papers.shared.figures import papers

        head = " ".join(papers("/nonexistent").partition("| paper |")[0].split())
        for rule in ("- **by construction**: ", "holds only where more than half of those that it speaks of are there",
                     f"one that is lost by less than {(judges.SLACK - 1) * 100:.0f} % leaves it undecided",
                     "runs under glibc, so what another allocator takes merely to start counts as its heap",
                     "can be refuted by those that there are cores for",
                     "failed in any round of a case has no figures"):
            self.assertIn(rule, head)

    def test_our_own_claims_are_marked_and_not_counted(self):
        from papers.shared.figures import papers

        own = [claim for _, claim, _ in keys() if claim.own]
        beyond = [claim for figure in FIGURES.values() if "future" in figure.id for claim in figure.claims]
        ideas = [claim for name in ("1", "7", "ablations", "calls", "madvise") for claim in FIGURES[f"supermalloc-{name}"].claims if claim.own]
        self.assertEqual(len(own), 4 + len(beyond) + len(ideas))
        self.assertTrue(all(claim.own for claim in beyond))
        text = papers("/nonexistent")
        self.assertEqual(text.count("(**ours**)"), len(own))
        rows = re.findall(r"^\| \[.*?\]\(\.\./papers/\w+/CLAIMS\.md\)((?: \| \d+)+) \|$", text, re.MULTILINE)
        counted = sum(int(n) for row in rows for n in re.findall(r"\d+", row))
        self.assertEqual(counted, sum(1 for _ in keys()) - len(own))


class ReportTest(unittest.TestCase):
    """Each paper's REPORT.md is written by hand: what it says held has held by the claims that it links."""

    ANSWERS = {answer.value for answer in Answer}
    PARTS = {"## What held": {"holds"}, "## What did not hold": {"does not hold"},
             "## What could not be told": ANSWERS - {"holds", "does not hold"}}
    MOST_WORDS = 950  # a page

    def test_each_report_says_what_its_claims_say(self):
        linked = 0
        for key, paper in PAPERS.items():
            room = os.path.join(tree.SOURCE, "papers", paper.room or key)
            with open(os.path.join(room, "CLAIMS.md"), encoding="utf-8") as file:
                claims = dict(re.findall(r"^\| \[\d+\]\(#(\S+)\) \| .* \| \*\*([a-z ]+)\*\*", file.read(), re.MULTILINE))
            with open(os.path.join(room, "REPORT.md"), encoding="utf-8") as file:
                text = file.read()
            self.assertLessEqual(len(text.split()), self.MOST_WORDS, room)
            self.assertEqual(text.count("](REPORT.png)"), 1, room)
            self.assertTrue(os.path.isfile(os.path.join(room, "REPORT.png")), room)
            part = None
            for line in text.splitlines():
                part = line if line.startswith("## ") else part
                for anchor in re.findall(r"\(CLAIMS\.md#(\S+?)\)", line):
                    with self.subTest(f"{room}: {anchor}"):
                        self.assertIn(anchor, claims)
                        self.assertIn(claims[anchor], self.PARTS.get(part, self.ANSWERS))
                        linked += 1
        self.assertGreater(linked, 40)

    def test_the_page_of_all_papers_links_claims_that_are_there(self):
        with open(os.path.join(tree.SOURCE, "docs", "report.md"), encoding="utf-8") as file:
            text = file.read()
        links = re.findall(r"\]\(\.\./(papers/\w+/CLAIMS\.md)#(\S+?)\)", text)
        self.assertGreater(len(links), 8)
        for name, anchor in links:
            with open(os.path.join(tree.SOURCE, name), encoding="utf-8") as file:
                self.assertIn(f'<a id="{anchor}"></a>', file.read(), name)
        self.assertLessEqual(len(text.split()), self.MOST_WORDS)


class BuiltTest(unittest.TestCase):
    """What is said of an engine that is not there; needs the suite's packages."""

    def test_only_what_is_no_library_of_ours_does_not_exist(self):
        from papers.shared.figures import run
        from spanalloc_cli import libraries

        nowhere = libraries.Places("/nonexistent", "/nonexistent")
        self.assertIn("a2alloc-size-classes", libraries.LIBRARIES)
        for name in libraries.LIBRARIES:
            with self.subTest(name):
                self.assertRegex(run._named(nowhere, name).missing, "^not built: scripts/bench --build-only")
        self.assertEqual(run._named(nowhere, "nonesuch").missing, "not built: there is no library of this name")


class OutcomeTest(unittest.TestCase):
    """What a command leaves behind; needs rich and matplotlib."""

    def test_what_figures_share_runs_once_with_all_whom_they_compare(self):
        from papers.shared.figures import run
        from spanalloc_bench.model import Allocator, Kind

        def contenders(places, figure, with_=(), nbbs=None):
            return [Allocator(name, "/x", Kind.PEER, missing="" if name != "supermalloc" else "not built")
                    for name in figure.allocators]

        with unittest.mock.patch.object(run, "contenders", contenders):
            both = [FIGURES["scalloc-7.4"], FIGURES["a2alloc-1"]]
            beside = run.company(None, both)
            shared = [c for c in run._cases(both[1], run.cores()) if c.id in {c.id for c in run._cases(both[0], run.cores())}]
            self.assertTrue(shared, "these two no longer share a case: take two that do")
            for figure in both:
                for cases, row in run._rows(shared, contenders(None, figure), beside):
                    names = {a.name for a in row if not a.missing}
                    self.assertLessEqual({*both[0].allocators, *both[1].allocators} - {"supermalloc"}, names)
            alone, together = (run.estimate(both[1], run.cores(), 2, 0, beside=company) for company in ({}, beside))
            self.assertGreater(together, alone)
            self.assertEqual([[a.name for a in row] for _, row in run._rows(shared, contenders(None, both[1]), {})],
                             [list(both[1].allocators)])

    def test_many_facts_are_rows(self):
        from papers.shared.figures import draw

        for figure, keys_, wanted in (("supermalloc-1", 3, (1 + 3, 2)), ("supermalloc-14", 20, (1 + 2, 20))):
            facts = {(name, f"fact {i}"): float(i) for name in ("supermalloc", "supermalloc-original") for i in range(keys_)}
            (table,) = draw.tables(Data(FIGURES[figure], 2, [], facts=facts))
            self.assertEqual((len(table.columns), table.row_count), wanted)

    def test_a_papers_name_stands_for_its_figures(self):
        from papers.shared import figures
        from papers.shared.figures import run
        from spanalloc_cli import libraries

        nowhere = libraries.Places("/nonexistent", "/nonexistent")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()), \
                mock.patch.object(run, "measure", lambda places, figure, *_, **__: Data(figure, 2, [])), \
                mock.patch.object(run, "keep", lambda data, folder: {"data": []}):
            empty = figures.command(nowhere, "supermalloc", out=folder)
            self.assertEqual([text.partition(" ")[0] for text in empty],
                             [figure.id for figure in FIGURES.values() if figure.paper == "supermalloc"])
            with self.assertRaises(figures.UnknownFigure):
                figures.command(nowhere, "super", out=folder)

    def test_again_measures_a_shared_case_once_whoever_comes_first(self):
        from papers.shared.figures import run
        from spanalloc_bench.model import Allocator, Kind

        one, two = (Allocator(name, "/x", Kind.PEER) for name in ("one", "two"))
        case = run._cases(FIGURES["a2alloc-1"], 2)[0]
        renewal = run.Renewal(True)
        self.assertEqual(renewal.split("folder", [case], [one, two]), ([case], []))
        self.assertEqual(renewal.split("folder", [case], [two, one]), ([], [case]))
        self.assertEqual(renewal.split("folder", [case], [one]), ([case], []))

    def test_options_are_checked_also_where_they_have_no_use(self):
        from papers.shared import figures
        from papers.shared.figures import run
        from spanalloc_cli import libraries

        nowhere = libraries.Places("/nonexistent", "/nonexistent")
        with mock.patch.object(run, "measure", side_effect=AssertionError("it was run")):
            for figure in ("coalescing-5", "scalloc-6a", "supermalloc-14", "all", "list"):
                for options in ({"with_": ["x=/no/such.so"]}, {"nbbs": "/no/such.so"}):
                    with self.subTest(f"{figure} {options}"):
                        with self.assertRaisesRegex(allocators.BadChoice, "/no/such.so"):
                            figures.command(nowhere, figure, **options)

        class Enough(Exception):
            pass

        def said(figure, **options):
            with mock.patch.object(run, "check"), mock.patch.object(run, "measure", side_effect=Enough), \
                    contextlib.redirect_stderr(io.StringIO()) as errors, self.assertRaises(Enough):
                figures.command(nowhere, figure, **options)
            return errors.getvalue()

        for figure, options, wanted in (
            ("coalescing-5", {"with_": ["x=/x.so"]},
             "--with has no use in coalescing-5: its contenders are page managers\n"),
            ("coalescing-5", {"nbbs": "/x.so"}, ""), ("scalloc-6a", {"with_": ["x=/x.so"]}, ""), ("scalloc-6a", {}, ""),
            ("scalloc-6a", {"nbbs": "/x.so"}, "--nbbs has no use in scalloc-6a: NBBS takes no part in it\n"),
            ("coalescing-8", {"nbbs": "/x.so"}, "--nbbs has no use in coalescing-8: NBBS takes no part in it\n"),
            ("supermalloc-14", {"with_": ["x=/x.so"]},
             "--with has no use in supermalloc-14: it counts lines of sources\n"),
        ):
            self.assertEqual(said(figure, **options), wanted)

    def test_a_figure_that_was_run_is_listed_with_its_verdicts(self):
        from papers.shared.figures import papers, run
        figure = FIGURES["scalloc-7b"]
        missing = {"supermalloc": "not built: not there", "hoard": "absent: not packaged"}
        record = run.outcome(data_of(figure, [SHAPES[figure.id]], missing))
        self.assertEqual([c["verdict"] for c in record["claims"] if f"scalloc-7b/{c['name']}" not in CANNOT],
                         ["holds"] * 3)
        self.assertEqual(record["rounds"], 6)
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "figures"))
            with open(os.path.join(folder, "figures", "scalloc-7b.json"), "w", encoding="utf-8") as file:
                json.dump(record, file)
            text = papers(folder)
        section = text[text.index("## Figure 7b"):text.index("## Figure 8a")]
        self.assertEqual(section.count("**holds**"), 3)
        self.assertIn("absent: hoard", section)
        self.assertNotIn("supermalloc", section)
        self.assertIn("| 3 | 0 | 0 |", text)

    def test_what_is_by_construction_is_not_counted_among_what_holds(self):
        from rich.console import Console
        from papers.shared.figures import papers, run
        figure = FIGURES["scalloc-table1"]
        data = data_of(figure, [SHAPES[figure.id]])
        record = run.outcome(data)
        self.assertEqual({f"{figure.id}/{c['name']}" for c in record["claims"] if c["verdict"] == "by construction"},
                         BY_PARAMETERS | {key for key, answer in SET_ASIDE.items() if answer is Answer.BY_CONSTRUCTION})
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "figures"))
            with open(os.path.join(folder, "figures", f"{figure.id}.json"), "w", encoding="utf-8") as file:
                json.dump(record, file)
            text = papers(folder)
        section = text[text.index("## Table 1"):text.index("## Figure 5")]
        self.assertEqual((section.count("**by construction**"), section.count("**holds**")), (7, 0))
        self.assertIn("| paper | holds | does not hold | undecided | by construction | no power | simulated | not measured |", text)
        self.assertRegex(text, r"papers/scalloc/CLAIMS.md\) \| 0 \| 0 \| 0 \| 7 \| 0 \| 0 \| \d+ \| 3 \|\n")
        shown = io.StringIO()
        run.show(data, record, Console(file=shown, width=200))
        self.assertEqual(shown.getvalue().count("by construction"), 7)


class KeptTest(unittest.TestCase):
    """Where only samples and notes are kept, the verdicts are made of these."""

    RUN = ("scalloc-7b", "supermalloc-12")
    MISSING = {"supermalloc": "not built: not there", "hoard": "absent: not packaged"}
    FACTS = {("standard", codesize.TEXT): 80716, ("jemalloc", codesize.TEXT): 675212.5}

    def setUp(self):
        from papers.shared.figures import run
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder, self.outcomes = scratch.name, run
        self.missing, self.facts = dict(self.MISSING), dict(self.FACTS)
        self.keep_all()

    def keep_all(self, given=()):
        """Figures, with samples of those that are given too."""
        machine = {"processor": "Some processor", "transparent_hugepages": "madvise"}
        for name in self.RUN:
            figure = FIGURES[name]
            samples, apart = map(self.whole, samples_of(figure, [SHAPES[name]], cores=2))
            samples += [dataclasses.replace(sample, allocator=who) for who in given for sample in samples
                        if sample.allocator == "glibc"]
            self.add("", samples)
            self.add(records.VARIANTS, apart)
            self.outcomes.keep(records.data_of(figure, 2, machine, self.missing, {}, given, samples, apart), self.folder)
        self.outcomes.keep(records.data_of(FIGURES["supermalloc-1"], 2, machine, self.missing, self.facts, (), [], []), self.folder)

    @staticmethod
    def whole(samples):
        """A program counts in whole numbers."""
        return [dataclasses.replace(sample, operations=round(1000 * sample.operations),
                                    peak_live_bytes=round(sample.peak_live_bytes)) for sample in samples]

    def add(self, below, samples):
        with store.Store(os.path.join(self.folder, below)) as results:
            for sample in samples:
                results.append(sample)

    def strip(self):
        """What is kept of the folder."""
        records.write_notes(self.folder, records.notes(self.folder))
        shutil.rmtree(os.path.join(self.folder, "figures"))

    def test_the_document_is_the_same(self):
        from papers.shared.figures import papers

        before = papers(self.folder)
        self.strip()
        self.assertEqual(papers(self.folder), before)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "figures")))
        self.assertIn("Measured on: Some processor, 2 cores.", before)
        self.assertIn("absent: hoard", before)
        self.assertIn("machine code, bytes of standard 80,716", before)

    def test_records_are_the_same_and_hold_what_is_in_no_sample(self):
        before = records.of_folder(self.folder)
        self.assertEqual(set(before), {*self.RUN, "supermalloc-1"})
        self.strip()
        after = records.of_folder(self.folder)
        for name, record in before.items():
            self.assertEqual(after[name], json.loads(json.dumps(record)), name)
        facts = {(entry["row"], entry["measure"]): entry["value"] for entry in after["supermalloc-1"]["data"]}
        self.assertEqual(facts, self.FACTS)

    def test_a_figure_that_is_run_again_counts_instead(self):
        from papers.shared.figures import run

        self.strip()
        run.keep(Data(FIGURES["supermalloc-1"], 4, [], facts={("standard", codesize.TEXT): 7}), self.folder)
        after = records.of_folder(self.folder)
        self.assertEqual((after["supermalloc-1"]["cores"], after["scalloc-7b"]["cores"]), (4, 2))
        self.assertEqual(records.notes(self.folder)["supermalloc-1"]["facts"][0]["value"], 7)

    def test_of_a_figure_in_two_folders_the_last_counts(self):
        from papers.shared.figures import papers

        self.strip()
        with tempfile.TemporaryDirectory() as newer:
            self.outcomes.keep(Data(FIGURES["supermalloc-1"], 4, [], facts={("standard", codesize.TEXT): 7.0,
                                                                            ("jemalloc", codesize.TEXT): 9.0}), newer)
            both = papers(self.folder, newer)
        self.assertIn("machine code, bytes of standard 7; jemalloc 9", both)
        self.assertNotIn("80,716", both)
        self.assertIn("## Figure 12: SuperServer", both)
        self.assertNotEqual(both, papers(self.folder))

    def test_places_of_unequal_rounds_are_said(self):
        from papers.shared.figures import papers

        figure = FIGURES["supermalloc-7"]
        samples, apart = samples_of(figure, [SHAPES[figure.id]], cores=2, rounds=range(1, 9))
        eight = next(point.case.id for point in figure.points(2) if point.x == 8)  # Figure 8 asks for as many there

        def said(rounds):
            found = [sample for sample in samples if sample.case == eight or sample.round <= rounds]
            self.outcomes.keep(records.data_of(figure, 2, {"processor": "", "transparent_hugepages": ""}, {}, {}, (), found, []),
                               self.folder)
            return papers(self.folder)

        self.assertIn("Taken with 6 to 8 rounds; 2 cores.", said(6))
        self.assertNotIn("6 to 8 rounds", said(8))

    def test_simulations_that_are_kept_are_read_anew(self):
        line = {"row": "supermalloc", "cores": 8, "cycles": 4.0}  # as older notes have it
        self.outcomes.keep(records.data_of(FIGURES["supermalloc-7"], 2, {"processor": "", "transparent_hugepages": ""}, {}, {},
                                           (), [], [], [line]), self.folder)
        self.strip()
        for length, cycles in (("short", 1000.0), ("long", 9000.0)):
            manycore_rows.append(self.folder, manycore_rows.Row(
                "malloc-test-1k", "supermalloc", 8, length, "1", "", "", "", "f", operations=int(cycles), cycles=cycles,
                **{name: int(cycles) for name in manycore_rows.DIFFERENCES[2:]}, details={"calls": {}, "sites": []}))
        self.assertEqual(records.of_folder(self.folder)["supermalloc-7"]["simulated"],
                         [{"row": "supermalloc", "cores": 8, "cycles": 1.0, "moves": 2.0}])

    def test_what_was_simulated_is_kept(self):
        lines = [{"row": "supermalloc", "cores": 8, "cycles": 4.0}]
        data = records.data_of(FIGURES["supermalloc-7"], 2, {"processor": "", "transparent_hugepages": ""}, {}, {}, (), [], [],
                               lines)
        self.outcomes.keep(data, self.folder)
        self.strip()
        self.assertEqual(records.notes(self.folder)["supermalloc-7"]["simulated"], lines)
        self.assertEqual(records.of_folder(self.folder)["supermalloc-7"]["simulated"], lines)
        self.assertNotIn("simulated", records.notes(self.folder)["supermalloc-12"])

    def test_an_engine_that_did_not_exist_then_is_not_measured(self):
        from papers.shared.figures import papers

        self.missing["supermalloc"] = "not built: this engine does not exist yet"
        self.keep_all()
        self.strip()
        found = records.of_folder(self.folder)["supermalloc-12"]
        self.assertEqual(found["absent"]["supermalloc"], verdicts.NOT_MEASURED)
        self.assertEqual({claim["verdict"] for claim in found["claims"] if claim["subject"] == "supermalloc"}, {"not measured"})
        self.assertNotIn("does not exist yet", papers(self.folder))

    def test_without_the_samples_there_are_no_verdicts(self):
        self.strip()
        os.remove(os.path.join(self.folder, store.SAMPLES))
        found = {claim["verdict"] for claim in records.of_folder(self.folder)["supermalloc-12"]["claims"]}
        self.assertNotIn("holds", found)

    def test_notes_of_another_version_count_as_not_run(self):
        self.strip()
        path = os.path.join(self.folder, records.NOTES)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**found, "format": found["format"] - 1}, file)
        self.assertEqual(records.of_folder(self.folder), {})

    def test_records_of_an_older_version_are_judged_anew(self):
        """Those of 0.1 lack whether the kernel gives huge pages and who was given, and have the names of then."""
        then = {"supermalloc": "folio", "scalloc": "oopsla15", "supermalloc-original": "supermalloc"}
        self.facts[("supermalloc", codesize.TEXT)] = 5.0
        self.missing["supermalloc-original"] = "absent: not packaged"
        self.keep_all(given=("mine",))
        store.write_meta(self.folder, {"machine": {"transparent_hugepages": "madvise"}, "allocators": [
            {"name": "mine", "kind": "given", "path": "/x/libmine.so"}]})
        before = records.of_folder(self.folder)
        for name in before:
            path = os.path.join(self.folder, "figures", f"{name}.json")
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            for key in ("transparent_hugepages", "given"):
                del record[key]
            record["absent"] = {then.get(row, row): why for row, why in record["absent"].items()}
            record["data"] = [{**entry, "row": then.get(entry["row"], entry["row"])} for entry in record["data"]]
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**record, "format": 2}, file)
        self.assertEqual(records.written(self.folder), {})
        after = records.of_folder(self.folder)
        self.assertEqual(set(after), set(before))
        for name, record in before.items():
            self.assertEqual(after[name], json.loads(json.dumps(record)), name)
        self.assertEqual(after["scalloc-7b"]["given"], ["mine"])

    def test_the_report_draws_them(self):
        from papers.shared.figures import commands  # noqa: F401
        from spanalloc_bench import report

        self.strip()
        with open(report.write(self.folder), encoding="utf-8") as file:
            page = file.read()
        for name, said in (*((name, "holds") for name in self.RUN), ("supermalloc-1", "80,716")):
            part = page[page.index(f'id="figure-{name}"'):].partition("</details>")[0]
            self.assertIn("data:image/png;base64", part, name)
            self.assertIn(said, part)
        self.assertFalse(any(name.endswith(".json") for name in os.listdir(os.path.join(self.folder, "figures"))))


class DrawCase(unittest.TestCase):
    """Figures as JSON, as PNG and on the terminal; needs rich and matplotlib."""

    def draw(self, names):
        from rich.console import Console
        from papers.shared.figures import run
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nothing:
            for figure in (FIGURES[name] for name in names):
                with self.subTest(figure.id):
                    FRAGMENTED[0] = figure.id == "a2alloc-7"
                    facts = {("supermalloc", "lines: caches"): 841.0, ("supermalloc", codesize.TEXT): 127.0}
                    data = (data_of(figure, [SHAPES[figure.id]], {"hoard": "absent: not packaged"}, cores=2)
                            if figure.id in SHAPES else Data(figure, 2, [], facts=facts))
                    record = run.keep(data, folder)
                    run.show(data, record, Console(file=nothing, width=120))
                    self.assertTrue(record["data"])
                    self.assertGreater(os.path.getsize(os.path.join(folder, "figures", f"{figure.id}.png")), 1000)


class DrawTest(DrawCase):
    def test_a_figure_is_drawn_and_printed(self):
        self.draw(DRAWN[:1])

    def test_a_figure_without_data_is_not_drawn(self):
        from papers.shared.figures import run
        with tempfile.TemporaryDirectory() as folder:
            run.keep(Data(FIGURES["supermalloc-14"], 2, []), folder)
            self.assertFalse(os.path.exists(os.path.join(folder, "figures", "supermalloc-14.png")))


class EveryKindTest(DrawCase):
    def test_every_kind_of_figure_is_drawn_and_printed(self):
        self.draw(DRAWN[1:])


if __name__ == "__main__":
    unittest.main()
