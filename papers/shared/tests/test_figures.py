"""The figures of the papers: every claim judged on data shaped like the paper's, on the reverse, on noise, and without
its engine; every figure has an id, claims and cases."""

import dataclasses
import itertools
import os
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from figure_shapes import (  # noqa: E402
    BY_PARAMETERS, CANNOT, CORES, LEFT_OUT, MIB, REVERSES, ROUNDS, SET_ASIDE, SHAPES, data_of, inverted, keys, measured, noise, sample,
    samples_of, threadtest, times, virtual_spans,
)
from papers.a2alloc.figures import steps  # noqa: E402
from papers.shared.figures import calls, codesize, document, judges, prose, records, simulated, verdicts  # noqa: E402
from papers.shared.figures.catalogue import FIGURES, PAPERS, TEXTS  # noqa: E402
from papers.shared.figures.data import Data, NoData  # noqa: E402
from papers.shared.figures.figure import MEMORY, NET_MEMORY, PROCESS, TIME, Answer  # noqa: E402
from papers.scalloc.figures.figures import FALSE_SHARING, LONGEST  # noqa: E402
from papers.scalloc.figures.table_1 import (  # noqa: E402
    REMOTE_FREES, _default_sizes, _ends_threads, _few_remote, _same_sizes,
)
from spanalloc_bench import allocators, manycore_rows, originals, tree  # noqa: E402
from spanalloc_bench.cases import acdc, catalogue, classic  # noqa: E402
from spanalloc_bench.model import CRASHED, Allocator, Kind, Sample  # noqa: E402


class CatalogueTest(unittest.TestCase):
    def test_every_figure_of_the_papers_is_there(self):
        wanted = {"scalloc-table1", "scalloc-5", "scalloc-7.4", "scalloc-11"}
        wanted |= {f"scalloc-{n}{letter}" for n in (6, 7, 8, 9, 10, 12, 13, 14) for letter in "ab"}
        wanted |= {f"supermalloc-{n}" for n in (1, *range(5, 15), "madvise")}
        wanted |= {f"coalescing-{n}" for n in range(5, 9)} | {f"a2alloc-{n}" for n in range(1, 12)}
        wanted |= {"supermalloc-ablations", "supermalloc-calls", "a2alloc-future", "a2alloc-future-counts"}  # our own
        self.assertEqual(set(FIGURES), wanted)

    def test_figures_are_complete(self):
        for figure in FIGURES.values():
            with self.subTest(figure.id):
                self.assertRegex(figure.id, r"^[a-z0-9.-]+$")
                self.assertTrue(figure.claims)
                self.assertIn(figure.paper, PAPERS)
                self.assertTrue(figure.points(2) if figure.rounds else figure.facts)
                names = [claim.name for claim in figure.claims]
                self.assertEqual(len(names), len(set(names)))
                for claim in figure.claims:
                    self.assertRegex(claim.name, r"^[a-z0-9-]+$")
                    self.assertTrue(claim.text and claim.place)

    def test_each_claim_that_numbers_decide_names_its_rule(self):
        for figure, claim, key in keys():
            with self.subTest(key):
                if key in CANNOT | LEFT_OUT:
                    self.assertEqual(verdicts.rule(claim), "")
                elif figure.paper == "supermalloc":  # (Few of the others' judges say by what in their evidence only.)
                    self.assertRegex(verdicts.rule(claim), r"\w")
                    self.assertEqual(claim.cores > 1, f"; from {claim.cores} cores on" in verdicts.rule(claim))

        def rule(key):
            return next(verdicts.rule(claim) for _, claim, k in keys() if k == key)

        self.assertEqual(rule("supermalloc-6/prefetching"),
                         "time of supermalloc-no-prefetch 1.005 to 1.1 times that of supermalloc")
        self.assertEqual(rule("supermalloc-12/slower"), "elapsed of tbbmalloc below that of supermalloc")
        self.assertEqual(rule("scalloc-6a/scales"), "time of scalloc: from half the cores, or the next smaller count, to all of them "
                         "throughput grows at least 1.25 times a doubling; from 32 cores on")
        self.assertEqual(rule("supermalloc-14/hoard-modules"), "modules of hoard at least 50; modules of at most 500 lines, "
                         "percent of hoard at least 90")

    def test_points_fit_the_machine(self):
        for figure in FIGURES.values():
            for cores in (1, 2, 3, 8, 80):
                cases = [point.case for point in figure.points(cores)]
                cases += [row.case for row in figure.stand_ins(cores)] if figure.stand_ins else []
                self.assertEqual(len(cases), len({case.id for case in cases}), f"{figure.id} on {cores} cores")

    def test_one_id_is_one_command(self):
        argv = {case.id: case.argv for case in catalogue()}
        for figure in FIGURES.values():
            rows = figure.stand_ins(2) if figure.stand_ins else []
            for case in [*(point.case for point in figure.points(2)), *(row.case for row in rows)]:
                self.assertEqual(argv.setdefault(case.id, case.argv), case.argv, case.id)

    def test_page_managers_are_called_as_they_register(self):
        self.assertLessEqual({"tree", "tree-recursive", "static", "mmap", "nbbs"}, {*allocators.PAGE_MANAGERS, allocators.NBBS})
        for figure in FIGURES.values():
            if figure.pages:
                self.assertLessEqual(set(figure.allocators), {*allocators.PAGE_MANAGERS, allocators.NBBS})

    def test_two_cores_see_up_to_eight_threads(self):
        self.assertEqual([p.x for p in FIGURES["scalloc-6a"].points(2)], [1, 2, 4, 8])
        self.assertEqual([p.x for p in FIGURES["scalloc-6a"].points(12)], [1, 2, 4, 8, 12])


class VerdictTest(unittest.TestCase):
    """Every claim of every figure, on data that are known."""

    def check(self, wanted, shapes_of, **more):
        for figure, claim, key in measured():
            shapes = shapes_of(figure, key)
            if shapes is None:
                continue
            with self.subTest(key):
                verdict = verdicts.verdict(claim, data_of(figure, shapes, **more))
                self.assertEqual(verdict.answer, SET_ASIDE.get(key, wanted), verdict.evidence)
                if key in SET_ASIDE:
                    self.assertIn(f"seen here: {wanted.value}; ", verdict.evidence)
                self.assertTrue(verdict.evidence)

    @staticmethod
    def reverse(figure, key):
        change = REVERSES.get(key, inverted)
        if change is None:
            return None
        shape = SHAPES[figure.id]
        return lambda name, point: change(shape(name, point), name, point)

    def test_holds_on_the_papers_data(self):
        self.check(Answer.HOLDS, lambda figure, key: None if "variance" in key else [SHAPES[figure.id]])

    def test_what_stands_beside_is_judged_by_itself(self):
        for figure, claim, key in measured():
            data = data_of(figure, [SHAPES[figure.id]])
            for name in (claim.subject, *claim.beside):
                if name and "variance" not in key:
                    with self.subTest(f"{key} for {name}"):
                        self.assertIn(name, verdicts.verdict(claim, data, name).evidence)

    def test_does_not_hold_on_the_reverse(self):
        self.check(Answer.DOES_NOT_HOLD, lambda figure, key: (lambda r: r and [r])(self.reverse(figure, key)))

    def test_undecided_where_rounds_disagree(self):
        self.check(Answer.UNDECIDED, lambda figure, key: (lambda r: r and [SHAPES[figure.id], r])(self.reverse(figure, key)))

    def test_undecided_on_two_rounds(self):
        self.check(Answer.UNDECIDED, lambda figure, key: [SHAPES[figure.id]], rounds=(1, 2))

    def test_not_built_without_the_engine(self):
        for figure, claim, key in keys():
            for name in {claim.subject, *claim.needs} - {""}:
                with self.subTest(f"{key} without {name}"):
                    data = Data(figure, CORES, [], {name: "not built: not there"})
                    verdict = verdicts.verdict(claim, data)
                    self.assertEqual(verdict.answer, Answer.NOT_BUILT)
                    self.assertIn(name, verdict.evidence)
                    data = Data(figure, CORES, [], {name: "absent: not packaged"})
                    self.assertEqual(verdicts.verdict(claim, data).answer, Answer.CANNOT_BE_SHOWN_HERE)

    def test_not_measured_where_the_results_are_older_than_the_engine(self):
        found = set()
        for figure, claim, key in keys():
            if claim.subject != "supermalloc":
                continue
            with self.subTest(key):
                data = Data(figure, CORES, [], {claim.subject: verdicts.NOT_MEASURED})
                verdict = verdicts.verdict(claim, data)
                # What no numbers could change is said all the same.
                wanted = Answer.CANNOT_BE_SHOWN_HERE if key in CANNOT else Answer.NOT_MEASURED
                self.assertEqual(verdict.answer, wanted)
                found.add(wanted)
                if wanted is Answer.NOT_MEASURED:
                    self.assertEqual(verdict.evidence, f"{claim.subject}: {verdicts.NOT_MEASURED}")
        self.assertEqual(len(found), 2)

    def test_no_scaling_is_shown_on_two_cores(self):
        told = set()
        for figure, claim, key in measured():
            verdict = verdicts.verdict(claim, data_of(figure, [SHAPES[figure.id]], cores=2))
            with self.subTest(key):
                if claim.cores > 2:
                    self.assertEqual(verdict.answer, Answer.CANNOT_BE_SHOWN_HERE)
                    groups = {p.case.group for p in figure.points(2) if claim.series in (None, p.series)}
                    known = r"larson-\d+-\d+|malloc-test|threadtest-(64|8)"
                    there = any(re.fullmatch(known, group) for group in groups)
                    # (Memory is not simulated, nor are more threads than cores.)
                    if "manycore --workloads" in verdict.evidence:
                        self.assertTrue(there and not claim.judge.about_rounds)
                        told.add(key)
                else:
                    self.assertEqual(verdict.answer is Answer.CANNOT_BE_SHOWN_HERE,
                                     SET_ASIDE.get(key) is Answer.CANNOT_BE_SHOWN_HERE)
        self.assertGreater(len(told), 20)
        self.assertFalse(told & {"scalloc-6b/out-of-step", "supermalloc-6/faster-with-eight"})

    def test_no_data_is_undecided(self):
        for figure, claim, key in measured():
            with self.subTest(key):
                if claim.cores == 1:
                    verdict = verdicts.verdict(claim, Data(figure, CORES, [], variants=Data(figure, CORES, [])))
                    self.assertEqual(verdict.answer, Answer.UNDECIDED)

    def test_huge_pages_switched_off(self):
        figure = FIGURES["scalloc-12b"]
        claims = [claim for claim in figure.claims if claim.huge_pages]
        self.assertTrue(claims)
        for claim in claims:
            data = data_of(figure, [virtual_spans], machine={"transparent_hugepages": "never"})
            self.assertEqual(verdicts.verdict(claim, data).answer, Answer.CANNOT_BE_SHOWN_HERE)

    def test_variants_are_compared_with_what_ran_beside_them(self):
        figure = FIGURES["scalloc-14b"]
        data = data_of(figure, [SHAPES[figure.id]])
        slow = [sample(p.case, "scalloc", r, {"memory": 1e9}) for p in figure.points(CORES) for r in ROUNDS]
        other = Data(figure, CORES, slow, variants=data.variants)
        self.assertEqual(verdicts.verdict(figure.claims[0], other).answer, Answer.HOLDS)

    def test_a_crash_is_said(self):
        figure = FIGURES["scalloc-5"]
        crashed = [sample(p.case, "glibc", r, {}) for p in figure.points(2) for r in ROUNDS]
        crashed += [Sample(p.case.id, "scalloc",
                                      r, 1, CRASHED, "killed by SIGSEGV") for p in figure.points(2) for r in ROUNDS]
        verdict = verdicts.verdict(figure.claims[0], Data(figure, 2, crashed))
        self.assertEqual(verdict.answer, Answer.UNDECIDED)
        self.assertIn("SIGSEGV", verdict.evidence)


class GuardTest(unittest.TestCase):
    """What keeps a judge from a verdict that its numbers do not carry."""

    @staticmethod
    def claim(key):
        return next((figure, claim) for figure, claim, k in keys() if k == key)

    @staticmethod
    def of(figure, names, shape, cores=CORES):
        """The figure's data with these contenders only."""
        full = data_of(figure, [shape], cores=cores)
        full._cells = {key: cells for key, cells in full._cells.items() if key[0] in (*names, PROCESS)}
        return full

    def test_best_of_few_is_not_best_of_all(self):
        figure, claim = self.claim("scalloc-6a/fastest-backend")
        few = verdicts.verdict(claim, self.of(figure, ("scalloc", "glibc"), threadtest))
        self.assertEqual(few.answer, Answer.UNDECIDED)
        self.assertIn("absent: jemalloc, tcmalloc, tbbmalloc, supermalloc, hoard, llalloc, streamflow", few.evidence)
        four = ("scalloc", "glibc", "jemalloc", "tcmalloc", "supermalloc-original")  # of eight: SuperMalloc is there as itself
        half = verdicts.verdict(claim, self.of(figure, four, threadtest))
        self.assertEqual(half.answer, Answer.UNDECIDED)
        self.assertIn("absent: tbbmalloc, hoard, llalloc, streamflow: no more than half are there", half.evidence)
        most = verdicts.verdict(claim, self.of(figure, (*four, "tbbmalloc"), threadtest))
        self.assertEqual(most.answer, Answer.HOLDS)
        self.assertTrue(most.evidence.endswith("absent: hoard, llalloc, streamflow"))
        # One of two is half of them, too.
        judge = judges.less(TIME, ("glibc", "jemalloc"), at=judges.fewest)
        self.assertEqual(judge(self.of(figure, ("scalloc", "glibc"), threadtest), "scalloc").answer, Answer.UNDECIDED)

    def test_what_gives_all_the_same_has_no_power(self):
        figure = FIGURES["scalloc-6a"]
        judge = judges.told_apart(judges.less(TIME, "glibc"), TIME, 1.05)
        for slower, answer in ((1.04, Answer.NO_POWER), (1.06, Answer.HOLDS)):
            data = self.of(figure, ("scalloc", "glibc"), lambda name, point: {"elapsed": slower if name == "glibc" else 1.0})  # noqa: B023
            found = judge(data, "scalloc")
            self.assertEqual(found.answer, answer, found.evidence)
            self.assertEqual("lies within 4.0%, from scalloc to glibc; seen here: holds" in found.evidence,
                             answer is Answer.NO_POWER)

    def test_factors_in_proportion(self):
        figure = FIGURES["scalloc-6a"]
        judge = judges.in_proportion(MEMORY, TIME, "glibc", 2.0)

        def data(most):
            # From place to place `scalloc` saves 2 to 2 * most times the memory, at the same price.
            places = [point.case.id for point in figure.points(CORES)]
            return self.of(figure, ("scalloc", "glibc"), lambda name, point: {
                "elapsed": 1.0 if name == "glibc" else 3.0,
                "memory": 9e6 / (1 if name == "glibc" else 2 * most ** (places.index(point.case.id) / (len(places) - 1)))})

        self.assertEqual(judge(data(1.9), "scalloc").answer, Answer.HOLDS)
        self.assertEqual(judge(data(2.2), "scalloc").answer, Answer.DOES_NOT_HOLD)

    def test_one_who_is_faster_is_enough_against(self):
        figure, claim = self.claim("scalloc-6a/fastest-backend")
        slow = lambda name, point: {"elapsed": 2.0 if name == "scalloc" else 1.0}  # noqa: E731
        self.assertEqual(verdicts.verdict(claim, self.of(figure, ("scalloc", "glibc"), slow)).answer, Answer.DOES_NOT_HOLD)

    def test_judges_of_others_need_half_of_them(self):
        figure = FIGURES["scalloc-6a"]
        everyone = ("glibc", "jemalloc", "tcmalloc", "tbbmalloc", "hoard")
        data = self.of(figure, ("scalloc", "glibc", "jemalloc"), threadtest)
        slow = self.of(figure, ("scalloc", "glibc", "jemalloc"), lambda name, point: {
            "elapsed": 2.0 if name == "scalloc" else 1.0})
        at = lambda d: d.at(x=1)  # noqa: E731
        for judge, of_fast, of_slow in (
            (judges.less(TIME, everyone, at=at), Answer.UNDECIDED, Answer.DOES_NOT_HOLD),
            (judges.close_to_best(TIME, everyone, 1.0, at=at), Answer.UNDECIDED, Answer.DOES_NOT_HOLD),
            (judges.not_best(TIME, everyone, at), Answer.UNDECIDED, Answer.HOLDS),
            (judges.not_below_best(TIME, everyone, 0.9, at=at), Answer.UNDECIDED, Answer.HOLDS),
            (judges.best_at_each(TIME, everyone, at), Answer.UNDECIDED, Answer.DOES_NOT_HOLD),
            (judges.each(everyone, judges.less(TIME, "scalloc", at=at)), Answer.DOES_NOT_HOLD, Answer.UNDECIDED),
            (judges.majority(everyone, judges.less(TIME, "scalloc", at=at)), Answer.UNDECIDED, Answer.UNDECIDED),
        ):
            self.assertEqual((judge(data, "scalloc").answer, judge(slow, "scalloc").answer), (of_fast, of_slow))
            self.assertIn("absent: tcmalloc, tbbmalloc, hoard", judge(data, "scalloc").evidence)

    def test_a_weak_correlation_decides_nothing(self):
        figure, claim = self.claim("scalloc-8b/speed-costs-memory")
        names = ["scalloc", "standard", "glibc", "jemalloc", "tcmalloc", "tbbmalloc", "supermalloc", "hoard"]

        def data(memories, present=8):
            shape = lambda name, point: {"elapsed": 1.0 + names.index(name), "memory": memories[names.index(name)] * MIB} \
                if name in names else {}  # noqa: E731
            return self.of(figure, names[:present], shape)

        falling = [80, 70, 60, 50, 40, 30, 20, 10]
        weak = [10, 80, 70, 20, 60, 50, 30, 40]  # about -0.1 in every round
        self.assertEqual(verdicts.verdict(claim, data(falling)).answer, Answer.HOLDS)
        self.assertEqual(verdicts.verdict(claim, data(falling[::-1])).answer, Answer.DOES_NOT_HOLD)
        found = verdicts.verdict(claim, data(weak))
        self.assertEqual(found.answer, Answer.UNDECIDED)
        self.assertIn("0.74", found.evidence)
        self.assertEqual(verdicts.verdict(claim, data(falling, present=4)).answer, Answer.UNDECIDED)

    def test_memory_is_what_the_process_needs_beyond_itself(self):
        figure = FIGURES["a2alloc-9"]
        point = figure.points(2)[0]
        row = figure.stand_ins(2)[0]
        own = sample(point.case, "a2alloc", 1, {"memory": 5000.0, "metrics": {"own_kib": 500}})
        later = sample(point.case, "a2alloc", 7, {"memory": 4500.0})
        alone = [sample(row.case, "glibc", r, {"memory": 3000.0 + r}) for r in (1, 2, 3)]
        data = Data(figure, 2, [own, later, *alone])
        self.assertEqual(data.values("a2alloc", MEMORY, point), {1: 4500.0, 7: 4500.0})
        # Beyond the process of its own round; the median's where the round has none.
        self.assertEqual(data.values("a2alloc", NET_MEMORY, point), {1: 4500.0 - 3001.0, 7: 4500.0 - 3002.0})
        self.assertEqual(data.values(PROCESS, NET_MEMORY, point), {})
        self.assertNotIn(PROCESS, data.contenders())
        without = Data(figure, 2, [own])
        self.assertEqual(without.values("a2alloc", NET_MEMORY, point), {})
        self.assertEqual(without.why_not("a2alloc", NET_MEMORY, [point]), f"{PROCESS} has not been measured")
        little = Data(figure, 2, [sample(point.case, "a2alloc", 1, {"memory": 2900.0}), *alone])
        self.assertEqual(little.values("a2alloc", NET_MEMORY, point), {1: 4.0})

    def test_what_disturbs_a_round_disturbs_the_process_too(self):
        """A machine that takes 40 % more memory in every other round moves nothing."""
        figure, claim = self.claim("a2alloc-9/more-than-libc")
        points = figure.points(CORES)
        found = []
        for round_ in ROUNDS:
            more = 4000.0 * (round_ % 2)
            for point, row in zip(points, figure.stand_ins(CORES)):
                found += [sample(point.case, name, round_, {"memory": noise(3000.0 + beyond, round_) + more})
                          for name, beyond in (("a2alloc", 1200.0), ("glibc", 400.0))]
                found.append(sample(row.case, "glibc", round_, {"memory": noise(3000.0, round_) + more}))
        verdict = verdicts.verdict(claim, Data(figure, CORES, found))
        self.assertEqual(verdict.answer, Answer.HOLDS, verdict.evidence)

    def test_a_process_that_failed_in_a_round_is_no_measure(self):
        figure = FIGURES["a2alloc-9"]
        point, row = figure.points(2)[0], figure.stand_ins(2)[0]
        alone = [sample(row.case, "glibc", r, {"memory": 3000.0}) for r in (1, 2)]
        alone.append(Sample(row.case.id, "glibc", 3, 1, CRASHED, "killed by SIGSEGV"))
        data = Data(figure, 2, [sample(point.case, "a2alloc", 1, {}), *alone])
        self.assertEqual(data.values("a2alloc", NET_MEMORY, point), {})
        self.assertRegex(data.why_not("a2alloc", NET_MEMORY, [point]),
                         f"^{PROCESS} crashed in 1 of 3 rounds of .*: killed by SIGSEGV$")

    def test_a_process_that_doubles_does_not_hold_for_a_small_allocator(self):
        """Twice the memory is twice the memory also where the process is most of it."""
        figure, claim = self.claim("scalloc-9b/no-blowup")
        grows = lambda name, point: {"metrics": {"allocator_s": 1.0, "mean_rss_kib": 100.0 * (2 if point.series == LONGEST else 1)}}  # noqa: E731
        self.assertEqual(verdicts.verdict(claim, data_of(figure, [grows])).answer, Answer.DOES_NOT_HOLD)

    def test_what_may_have_been_another_is_so_with_either(self):
        figure, claim = self.claim("supermalloc-13/smallest")

        def verdict(dlmalloc, glibc):
            def shape(name, point):
                kib = {"dlmalloc": dlmalloc, "glibc": glibc, "supermalloc": 2.0}.get(name, 9.0) * 10 * MIB
                return {"memory": kib}

            return verdicts.verdict(claim, data_of(figure, [shape]))

        self.assertEqual(verdict(3.0, 3.0).answer, Answer.HOLDS)
        self.assertEqual(verdict(1.0, 1.0).answer, Answer.DOES_NOT_HOLD)
        found = verdict(1.0, 3.0)
        self.assertEqual(found.answer, Answer.UNDECIDED)
        self.assertRegex(found.evidence, "^with dlmalloc itself: does not hold, .*; with glibc in its place: holds, ")

    def test_either_answer_to_false_sharing_counts(self):
        for metrics, shares in (({"false_sharing": 0}, 0), ({"false_sharing": 1}, 1), ({}, None),
                                ({"false_sharing": 0, "false_sharing_warm": 1}, 1)):
            self.assertEqual(FALSE_SHARING.of(Sample("c", "a", 1, 1, metrics=metrics)), shares)

    def test_scores_take_every_count_that_there_are_cores_for(self):
        figure = FIGURES["a2alloc-6"]
        self.assertEqual(sorted({p.x for p in figure.points(8)}), list(range(1, 9)))
        self.assertEqual(sorted({p.x for p in figure.points(2)}), [1, 2, 4, 8])
        speed_ups = {1: 1.0, 2: 0.976, 3: 1.111, 4: 0.975, 5: 0.759, 6: 0.743, 7: 0.760}
        claim = next(c for c in figure.claims if c.name == "threadtest-glibc-above-a2alloc")

        def report(name, point):
            return {"elapsed": 1 / speed_ups.get(point.x, 0.76) if name == "a2alloc" else 1 / point.x**0.9}

        found = verdicts.verdict(claim, data_of(figure, [report], cores=7)).evidence
        self.assertIn("a2alloc 0.248", found)  # the report's own number

    def test_what_cannot_be_shown_says_what_was_seen(self):
        figure, claim = self.claim("scalloc-6a/fastest-backend")
        found = verdicts.verdict(claim, data_of(figure, [threadtest], cores=2))
        self.assertEqual(found.answer, Answer.CANNOT_BE_SHOWN_HERE)
        self.assertIn("seen with 2: holds; time of scalloc", found.evidence)

    def test_a_failed_round_leaves_no_figures(self):
        figure = FIGURES["scalloc-5"]
        faster, close = (next(c for c in figure.claims if c.name == name) for name in ("beats-ptmalloc2",
                                                                                       "small-differences"))
        point, = figure.points(2)
        others = ("glibc", "jemalloc", "tcmalloc", "tbbmalloc", "supermalloc", "hoard")

        def data(failing, rounds):
            found = []
            for name, round_ in itertools.product(("scalloc", *others), ROUNDS):
                run = {"elapsed": noise(1.0 if name == "scalloc" else 2.0, round_)}
                crash = Sample(point.case.id, name, round_, 1, CRASHED, "killed by SIGSEGV")
                found.append(crash if name == failing and round_ in rounds else sample(point.case, name, round_, run))
            return Data(figure, 2, found)

        whole = data("scalloc", ())
        self.assertEqual([verdicts.verdict(claim, whole).answer for claim in (faster, close)], [Answer.HOLDS] * 2)
        self.assertEqual(whole.failed(), {})
        some = data("scalloc", (2, 4, 6))
        for claim in (faster, close):
            verdict = verdicts.verdict(claim, some)
            self.assertEqual(verdict.answer, Answer.UNDECIDED)
            self.assertRegex(verdict.evidence, "no numbers: scalloc crashed in 3 of 6 rounds of .*: killed by SIGSEGV")
        self.assertEqual(some.values("scalloc", TIME, point), {})
        self.assertNotIn("scalloc", some.measured())
        self.assertEqual(list(some.failed()), ["scalloc"])
        # Of the others it is named as one that is not there.
        verdict = verdicts.verdict(close, data("tcmalloc", (6,)))
        self.assertEqual(verdict.answer, Answer.HOLDS)
        self.assertIn("absent: tcmalloc (crashed), llalloc", verdict.evidence)

    def test_who_failed_at_a_point_is_not_passed_over(self):
        figure = FIGURES["scalloc-6a"]
        full = data_of(figure, [threadtest], cores=2)
        judge = judges.best_at_each(TIME, ("glibc", "jemalloc"), judges.to_cores)
        self.assertEqual(judge(full, "scalloc").answer, Answer.HOLDS)
        two = next(p for p in figure.points(2) if p.x == 2)
        full._cells["jemalloc", two.case.id][3] = Sample(two.case.id, "jemalloc", 3, 1, CRASHED, "killed by SIGSEGV")
        with self.assertRaisesRegex(NoData, "jemalloc crashed in 1 of 6 rounds"):
            judge(full, "scalloc")

    def test_the_absent_are_named_once(self):
        figure, claim = self.claim("supermalloc-9/same-speed")
        found = verdicts.verdict(claim, self.of(figure, ("jemalloc", "tbbmalloc", "hoard", "dlmalloc"), SHAPES[figure.id]))
        self.assertEqual(found.answer, Answer.HOLDS)
        self.assertEqual(found.evidence.count("supermalloc"), 1)
        self.assertEqual(found.evidence.count("time of"), 4)
        self.assertTrue(found.evidence.endswith("; absent: supermalloc"))
        both = judges.all_of(judges.less(TIME, ("glibc", "jemalloc", "supermalloc")),
                             judges.not_best(TIME, ("supermalloc", "glibc", "jemalloc"), judges.everywhere))
        self.assertEqual(both(self.of(figure, ("glibc", "jemalloc", "tbbmalloc"), SHAPES[figure.id]),
                              "tbbmalloc").evidence.count("absent"), 1)

    def test_one_comparison_of_several_may_be_lost_by_chance(self):
        figure = FIGURES["scalloc-6a"]

        def judged(factor, *others):
            times = {"scalloc": factor, "jemalloc": 2.0}
            data = self.of(figure, ("scalloc", *others), lambda name, point: {"elapsed": times.get(name, 1.0)})
            return judges.less(TIME, others, at=judges.fewest)(data, "scalloc").answer

        self.assertEqual(judged((1 + judges.SLACK) / 2, "glibc", "jemalloc"), Answer.UNDECIDED)
        self.assertEqual(judged(judges.SLACK + 0.01, "glibc", "jemalloc"), Answer.DOES_NOT_HOLD)
        self.assertEqual(judged((1 + judges.SLACK) / 2, "glibc"), Answer.DOES_NOT_HOLD)

    def test_what_is_said_of_each_count_is_refuted_by_few(self):
        each = [key for _, claim, key in keys() if claim.each_count]
        self.assertEqual(each, [
            "scalloc-9a/best-until-30", "a2alloc-5/consistent", "a2alloc-8/no-speed-up"])
        figure, claim = self.claim("a2alloc-2/beats-kheap")
        claim = dataclasses.replace(claim, judge=judges.best_at_each(TIME, ("kheap",), judges.everywhere), cores=8,
                                    each_count=True)

        def verdict(slow_at, factor=1.5, rounds=ROUNDS):
            def shape(name, point):
                mine = factor if point.x in slow_at else 0.5
                return {"elapsed": mine if name == "a2alloc" else 1.0}

            return verdicts.verdict(claim, data_of(figure, [shape], cores=2, rounds=rounds))

        found = verdict((1,))
        self.assertEqual(found.answer, Answer.DOES_NOT_HOLD)
        self.assertIn("2 cores are enough against it: time of a2alloc is below the best other's at 1 of 2 threads",
                      found.evidence)
        self.assertNotIn("8:", found.evidence)
        # More threads than cores, a difference that chance may make, and too few rounds refute nothing.
        for open_ in (verdict(()), verdict((4, 8)), verdict((1,), 1.01), verdict((1,), rounds=(1, 2))):
            self.assertEqual(open_.answer, Answer.CANNOT_BE_SHOWN_HERE)
            self.assertIn("seen with 2", open_.evidence)
        # Nor does what two threads do refute a claim about the shape of a curve.
        for key in ("scalloc-6a/scales", "a2alloc-2/on-par-with-libc", "supermalloc-7/locks-fast-too"):
            figure, claim = self.claim(key)
            slower = lambda name, point: {"elapsed": 1.0 + point.x * (name == claim.subject)}  # noqa: E731
            found = verdicts.verdict(claim, data_of(figure, [slower], cores=2))
            self.assertEqual(found.answer, Answer.CANNOT_BE_SHOWN_HERE)
            self.assertIn("seen with 2: does not hold", found.evidence)

    def test_a_few_percent_has_two_ends(self):
        for key, who, what in (("supermalloc-9/dlmalloc-uses-less", "dlmalloc", "memory"),
                               ("supermalloc-9/tbb-uses-more", "tbbmalloc", "memory"),
                               ("supermalloc-10/slightly-slower", "supermalloc", "elapsed")):
            figure, claim = self.claim(key)
            for factor in (0.5, 2):
                change = times(factor, who, key=what)
                found = verdicts.verdict(claim, data_of(
                    figure, [lambda name, point: change(SHAPES[figure.id](name, point), name, point)]))
                with self.subTest(key, factor=factor):
                    self.assertEqual(found.answer, Answer.DOES_NOT_HOLD, found.evidence)

    def test_up_to_thirty_threads_is_refuted_by_two(self):
        figure, claim = self.claim("scalloc-9a/best-until-30")
        time = {"scalloc": 2.0, "standard": 0.5}

        def shape(name, point):
            return {"metrics": {"allocator_s": time.get(name, 1.0) if point.x == 2 else 1.0}}

        found = verdicts.verdict(claim, data_of(figure, [shape], cores=2))
        self.assertEqual(found.answer, Answer.DOES_NOT_HOLD)
        self.assertIn("allocator time of scalloc [2 threads] against", found.evidence)
        self.assertEqual(verdicts.verdict(claim, data_of(figure, [shape], cores=2), "standard").answer,
                         Answer.CANNOT_BE_SHOWN_HERE)

    def test_what_was_simulated_stands_beside_a_claim_about_many_cores(self):
        figure, claim = self.claim("supermalloc-7/locks-fast-too")
        names = ("supermalloc", "jemalloc", "tbbmalloc", "hoard", "dlmalloc")
        lines = [{"row": name, "cores": cores, "cycles": 100.0 * (1 + names.index(name)) / cores}
                 for name in names for cores in (2, 4, 8, 16)]
        samples, _ = samples_of(figure, [SHAPES[figure.id]], 2)
        data = Data(figure, 2, samples, simulations=lines)
        found = verdicts.verdict(claim, data)
        self.assertEqual(found.answer, Answer.CANNOT_BE_SHOWN_HERE)  # a curve is no verdict
        self.assertIn("; simulated (ours by its locks): 8 cores: time of supermalloc [1, 2, 4 producers] against jemalloc 0.5, "
                      "tbbmalloc 0.333, hoard 0.25, dlmalloc 0.2; the last alone: ", found.evidence)
        self.assertIn("; 16 cores: ", found.evidence)
        self.assertNotIn("40 cores:", found.evidence)
        self.assertNotIn("1 round", found.evidence)
        self.assertNotIn("simulated (ours", verdicts.verdict(claim, Data(figure, 2, samples)).evidence)
        # So is a variant, which is judged where it ran in turn.
        figure, claim = self.claim("supermalloc-7/cpu-caches")
        samples, apart = samples_of(figure, [SHAPES[figure.id]], 2)
        lines += [{"row": "supermalloc-no-cpu-caches", "cores": cores, "cycles": 800.0 / cores} for cores in (2, 4, 8)]
        data = records.data_of(figure, 2, {}, {}, {}, (), samples, apart, lines)
        self.assertIn("; simulated (ours by its locks): 8 cores: time of supermalloc [1, 2, 4 producers] against "
                      "supermalloc-no-cpu-caches 0.125", verdicts.verdict(claim, data).evidence)
        # A mean over all counts may hide what is so at the most of them.
        slower = [line if line["cores"] < 8 or line["row"] != "supermalloc" else {**line, "cycles": 200.0} for line in lines]
        data = records.data_of(figure, 2, {}, {}, {}, (), samples, apart, slower)
        self.assertIn("[1, 2, 4 producers] against supermalloc-no-cpu-caches 0.315; the last alone: time of supermalloc "
                      "[4 producers] against supermalloc-no-cpu-caches 2", verdicts.verdict(claim, data).evidence)
        for key in ("supermalloc-6/scales", "supermalloc-6/dlmalloc-slows-down"):  # of one count there is no such thing
            figure, claim = self.claim(key)
            data = Data(figure, 2, samples_of(figure, [SHAPES[figure.id]], 2)[0], simulations=lines)
            self.assertIn("simulated (ours", verdicts.verdict(claim, data).evidence)
            self.assertNotIn("alone", verdicts.verdict(claim, data).evidence)
        # Of how runs differ one simulation says nothing; on enough cores nobody asks it.
        for key, cores in (("supermalloc-8/similar-variance", 2), ("supermalloc-8/mean-below-dlmallocs-variance", 2),
                           ("supermalloc-7/locks-fast-too", CORES)):
            figure, claim = self.claim(key)
            data = Data(figure, cores, samples_of(figure, [SHAPES[figure.id]], cores)[0], simulations=lines)
            self.assertNotIn("simulated (ours", verdicts.verdict(claim, data).evidence, key)

    def test_five_seeds_are_a_verdict_of_the_simulator(self):
        def verdict(key, cycles_of, seeds=simulated.SEEDS, counts=(2, 4, 8, 16), names=None):
            figure, claim = self.claim(key)
            names = names or ("scalloc", "glibc", "jemalloc", "tcmalloc", "tbbmalloc", "supermalloc", "hoard")
            series = "larson" if key.startswith("a2alloc-6") else ""
            lines = [{"row": name, "cores": cores, "cycles": cycles_of(name, cores, seed), **({"seed": seed} if seed else {}),
                      **({"series": series} if series else {})}
                     for name in names for cores in counts for seed in range(seeds)]
            samples, _ = samples_of(figure, [SHAPES[figure.id]], 2)
            return verdicts.verdict(claim, Data(figure, 2, samples, simulations=lines))

        def faster(name, cores, seed):
            return (100.0 if name == "scalloc" else 200.0) * (1 + seed / 100) / cores

        found = verdict("scalloc-8a/competitive", faster)
        self.assertEqual(found.answer, Answer.SIMULATED)
        self.assertRegex(found.evidence, "^holds on simulated machines of up to 8 cores, a core a thread, 5 seeds; time of scalloc.*; larson: 7 to 499 bytes, 200 objects")
        found = verdict("scalloc-6a/fastest-backend", lambda *place: 1 / faster(*place))
        self.assertIn("does not hold on simulated machines", found.evidence)
        self.assertEqual(found.answer, Answer.SIMULATED)
        # The spread is in it: where the seeds disagree nothing is decided.
        found = verdict("scalloc-8a/competitive", lambda name, cores, seed: (6.0 if name == "scalloc" and seed % 2 else 1.0) / cores)
        self.assertIn("undecided on simulated machines", found.evidence)
        # Also of one series of several.
        self.assertEqual(verdict("a2alloc-6/larson-glibc-above-a2alloc", faster, names=("glibc", "a2alloc")).answer,
                         Answer.SIMULATED)
        # Fewer seeds, or fewer cores than it speaks of, are none; nor is what no simulation measures.
        for key, more in (("scalloc-8a/competitive", {"seeds": 4}), ("scalloc-9a/best-beyond-30", {}),
                          ("scalloc-8b/no-reuse-memory", {}), ("scalloc-13a/single-stack-degrades", {})):
            self.assertEqual(verdict(key, faster, **more).answer, Answer.CANNOT_BE_SHOWN_HERE, key)

    def test_traffic_is_counted_where_it_was_simulated(self):
        figure, claim = self.claim("supermalloc-7/cpu-caches-traffic")

        def said(mine, theirs):
            lines = [{"row": name, "cores": cores, "cycles": 1.0, simulated.MOVES: value}
                     for name, values in (("supermalloc", mine), ("supermalloc-no-cpu-caches", theirs))
                     for cores, value in zip((2, 8, 40), values)]
            return verdicts.verdict(claim, records.data_of(figure, 2, {}, {}, {}, (), [], [], lines))

        found = said((9.0, 1.0, 2.0), (3.0, 3.0, 4.0))  # with two cores the claim has no say
        self.assertEqual(found.answer, Answer.SIMULATED)
        self.assertTrue(found.evidence.startswith("holds; "), found.evidence)
        self.assertTrue(found.evidence.endswith(": 8 cores 1 against 3 (1 seed), 40 cores 2 against 4 (1 seed)"), found.evidence)
        self.assertTrue(said((1.0, 3.0, 4.0), (9.0, 1.0, 4.0)).evidence.startswith("does not hold; "))
        self.assertTrue(said((1.0, 1.0, 5.0), (9.0, 2.0, 4.0)).evidence.startswith("undecided; "))
        lines = [{"row": name, "cores": 8, "cycles": 1.0, simulated.MOVES: value + seed, **({"seed": seed} if seed else {})}
                 for name, value in (("supermalloc", 1.0), ("supermalloc-no-cpu-caches", 9.0)) for seed in range(5)]
        found = verdicts.verdict(claim, records.data_of(figure, 2, {}, {}, {}, (), [], [], lines))
        self.assertTrue(found.evidence.endswith(": 8 cores 1 to 5 against 9 to 13 (5 seeds)"), found.evidence)
        without = [{"row": name, "cores": 8, "cycles": 1.0} for name in ("supermalloc", "supermalloc-no-cpu-caches")]
        found = verdicts.verdict(claim, records.data_of(figure, 2, {}, {}, {}, (), [], [], without))
        self.assertEqual(found.answer, Answer.CANNOT_BE_SHOWN_HERE)
        self.assertIn("manycore", found.evidence)

    def test_simulations_are_read_from_the_figures_folder(self):
        def row(allocator, cores, length, cycles, operations=1000):
            return manycore_rows.Row("malloc-test-1k", allocator, cores, length, "1", "", "", "", "f", operations=operations,
                                     cycles=cycles, **{name: operations for name in manycore_rows.DIFFERENCES[2:]},
                                     details={"calls": {}, "sites": []})

        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(simulated.lines(FIGURES["supermalloc-7"], [folder], {"supermalloc"}), [])
            for made in (row("supermalloc", 8, "short", 1000.0), row("supermalloc", 8, "long", 9000.0, 3000),
                         row("nobody", 8, "short", 1000.0), row("nobody", 8, "long", 9000.0, 3000)):
                manycore_rows.append(folder, made)
            found = simulated.lines(FIGURES["supermalloc-7"], [folder], {"supermalloc"})
            self.assertEqual(found, [{"row": "supermalloc", "cores": 8, "cycles": 4.0, simulated.MOVES: 2.0}])
            self.assertEqual(simulated.lines(FIGURES["supermalloc-12"], [folder], {"supermalloc"}), [])
            self.assertEqual(simulated.lines(FIGURES["supermalloc-1"], [folder], {"supermalloc"}), [])
        there = simulated.data(FIGURES["supermalloc-7"], found)
        self.assertEqual(list(there), [8])
        self.assertEqual(there[8].numbers(), [4])  # producers

    def test_the_simulated_workload_is_the_claims_own(self):
        larson = "`spanalloc bench manycore --workloads larson --seeds 5` simulates them: larson: 7 to 499 bytes, 200 objects"
        for key, wanted in (
            ("a2alloc-6/cache-scratch-a2alloc-above-glibc", None),
            ("a2alloc-6/cache-thrash-glibc-above-a2alloc", None),
            ("a2alloc-6/larson-glibc-above-a2alloc", larson.replace(" --seeds", " --allocators glibc,a2alloc --seeds")),
            ("supermalloc-8/relative-variance-less", None), ("supermalloc-8/variance-below-dlmallocs", None),
            ("supermalloc-8/three-times-faster", None), ("scalloc-8b/no-reuse-memory", None),
            ("scalloc-13a/single-stack-degrades", None),
            ("scalloc-13a/small-need-one-stack", None),
            ("scalloc-14a/same-speed",
             "--workloads threadtest-2500 --allocators scalloc,scalloc-lazy-reclaim --seeds 5` simulates them"),
            ("supermalloc-6/scales", "--workloads malloc-test-1k --seeds 5` simulates them: malloc-test: half of the cores"),
            ("a2alloc-6/threadtest-glibc-above-a2alloc", "--workloads threadtest-420 --allocators glibc,a2alloc --seeds 5` simulates them"),
            ("scalloc-8a/competitive", larson),
            ("coalescing-7/throughput-grows", None),
        ):
            figure, claim = self.claim(key)
            with self.subTest(key):
                found = verdicts.verdict(claim, data_of(figure, [SHAPES[figure.id]], cores=2)).evidence
                self.assertIn(wanted or f"judged from {claim.cores} on)", found)
                self.assertEqual("manycore" in found, wanted is not None)


def decided(figure):
    """The figure's claims without those that cannot be measured."""
    return [claim for claim in figure.claims if f"{figure.id}/{claim.name}" not in CANNOT | LEFT_OUT]


class TextTest(unittest.TestCase):
    """The claims of the papers' texts."""

    @classmethod
    def setUpClass(cls):
        sources = [os.path.join(folder, name) for top in ("src", "papers", "tests") for folder, _, names in
                   os.walk(os.path.join(tree.SOURCE, top)) for name in names if name.endswith((".cpp", ".txt"))]
        text = "".join(pathlib.Path(path).read_text(encoding="utf-8") for path in sources)
        found = re.findall(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\((\w+),\s*(\w+)\)", text, re.MULTILINE)
        cls.tests = {f"{suite}.{name}" for suite, name in found}
        cls.added = set(re.findall(r"(?:add_test\(NAME |_test\()(\w+(?:\.\w+)+)", text))  # by CMake

    def test_each_paper_has_some(self):
        self.assertEqual(set(TEXTS), set(PAPERS))
        for rows in TEXTS.values():
            self.assertGreater(len(rows), 3)
            names = [row.name for row in rows]
            self.assertEqual(len(names), len(set(names)))

    def test_what_shows_a_claim_is_there(self):
        for paper, rows in TEXTS.items():
            for row in rows:
                with self.subTest(f"{paper}/{row.name}"):
                    self.assertLessEqual(len(row.text), 300)
                    self.assertLessEqual(len(row.said), 300)
                    if row.shown in (prose.Shown.TEST, prose.Shown.SOURCE):
                        self.assertTrue(row.refs)
                    if row.shown is prose.Shown.TEST:
                        self.assertTrue(any(not prose.is_file(ref) for ref in row.refs))
                    for ref in row.refs:
                        self.check(ref)

    def check(self, ref):
        if not prose.is_file(ref):  # also a test that CMake names
            named = ref in self.tests or ref.endswith(".*") and any(test.startswith(ref[:-1]) for test in self.tests)
            self.assertTrue(named or ref in self.added, ref)
            return
        path, _, symbol = ref.partition(":")
        self.assertIn(symbol, pathlib.Path(tree.SOURCE, path).read_text(encoding="utf-8"), ref)

    def test_they_stand_in_the_rooms_document(self):
        texts = document.documents()
        for paper, rows in TEXTS.items():
            text = texts[f"papers/{PAPERS[paper].room or paper}/CLAIMS.md"]
            for row in rows:
                self.assertIn(f'<a id="text-{row.name}"></a>', text)
            wanting = any(row.shown is prose.Shown.NOT_BUILT for row in rows)
            self.assertEqual("## Not built, and why" in text, wanting)
        self.assertIn("| paper | shown by a test | by the source |", texts["docs/papers.md"])


class NoRunTest(unittest.TestCase):
    """Claims that parameters and files decide."""

    def test_table_1(self):
        figure = FIGURES["scalloc-table1"]
        data = Data(figure, 2, [])
        for claim in figure.claims:
            if f"{figure.id}/{claim.name}" in BY_PARAMETERS:
                with self.subTest(claim.name):
                    self.assertEqual(verdicts.verdict(claim, data).answer, Answer.BY_CONSTRUCTION)
        self.assertEqual(_default_sizes("shbench", classic.shbench(), 1, 16)(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_default_sizes("shbench", classic.larson(), 1, 8)(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_ends_threads(classic.shbench(), ())(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_ends_threads(classic.larson(), (classic.larson(4),))(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_same_sizes({"threadtest": (classic.threadtest(128), 64, 64)})(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_same_sizes({"locality": (acdc.locality(0), 16, 64)})(data, "").answer, Answer.DOES_NOT_HOLD)
        self.assertEqual(_few_remote(classic.larson(2, rounds=20), 0.01)(data, "").answer, Answer.DOES_NOT_HOLD)

    def test_what_is_so_by_construction_does_not_make_a_claim_hold(self):
        figure = FIGURES["scalloc-table1"]
        said = next(claim for claim in figure.claims if f"{figure.id}/{claim.name}" in BY_PARAMETERS)
        measured_ = judges.value_within(REMOTE_FREES, None, 0.0, "glibc", judges.series("locality"))
        data = data_of(figure, [SHAPES[figure.id]])
        self.assertEqual(measured_(data, "").answer, Answer.HOLDS)
        for both in itertools.permutations((said.judge, measured_)):
            self.assertEqual(judges.all_of(*both)(data, "").answer, Answer.BY_CONSTRUCTION)

    # Figure 1's, in KB; Hoard's is not said to be at either end.
    CODE = {"supermalloc-original": 127.0, "dlmalloc": 221.0, "tbbmalloc": 350.0, "hoard": 400.0, "jemalloc": 624.0}

    @staticmethod
    def code(sizes):
        kinds = (codesize.TEXT, codesize.BYTES, codesize.LINES)
        return Data(FIGURES["supermalloc-1"], 2, [], facts={(name, kind): n for name, n in sizes.items() for kind in kinds})

    def test_code_sizes(self):
        figure = FIGURES["supermalloc-1"]
        half = {**self.CODE, "supermalloc-original": 100.0}  # by the paper's own numbers it is more than half of DLmalloc's
        reverse = {name: 1e6 / size for name, size in half.items()}
        ours = {**{name: size for name, size in self.CODE.items() if name != "supermalloc-original"}, "supermalloc": 1.0}
        for claim in decided(figure):
            with self.subTest(claim.name):
                paper = Answer.DOES_NOT_HOLD if claim.name.startswith("half-") else Answer.HOLDS
                of_source = claim.name in ("half-the-lines", "fewest-lines", "fewest-bytes", "jemalloc-largest")
                self.assertEqual(verdicts.verdict(claim, self.code(self.CODE)).answer, paper)
                self.assertEqual(verdicts.verdict(claim, self.code(half)).answer, Answer.HOLDS)
                self.assertEqual(verdicts.verdict(claim, self.code(reverse)).answer, Answer.DOES_NOT_HOLD)
                if claim.name != "jemalloc-largest":  # how large ours is says nothing of theirs
                    self.assertNotEqual(verdicts.verdict(claim, self.code(ours)).answer, Answer.HOLDS)
                self.assertEqual(verdicts.verdict(claim, self.code({})).answer,
                                 Answer.CANNOT_BE_SHOWN_HERE if of_source else Answer.UNDECIDED)

    def test_code_sizes_of_few_are_not_those_of_all(self):
        claims = {claim.name: claim for claim in FIGURES["supermalloc-1"].claims}
        two = self.code({"jemalloc": 624.0, "hoard": 350.0})
        found = verdicts.verdict(claims["jemalloc-largest"], two)
        self.assertEqual(found.answer, Answer.UNDECIDED)
        self.assertTrue(found.evidence.endswith("absent: dlmalloc, supermalloc: no more than half are there"))
        turned = self.code({"jemalloc": 350.0, "hoard": 624.0})
        self.assertEqual(verdicts.verdict(claims["jemalloc-largest"], turned).answer, Answer.DOES_NOT_HOLD)
        for name in ("smallest", "half-the-code"):
            found = verdicts.verdict(claims[name], self.code({"supermalloc-original": 127.0, "jemalloc": 624.0, "tbbmalloc": 350.0}))
            self.assertEqual(found.answer, Answer.UNDECIDED)
            self.assertIn("absent: hoard, dlmalloc", found.evidence)
            self.assertEqual(verdicts.verdict(claims[name], self.code({"supermalloc-original": 127.0, "tbbmalloc": 90.0})).answer,
                             Answer.DOES_NOT_HOLD)

    def test_modules(self):
        figure = FIGURES["supermalloc-14"]
        lines = {"caches": 841, "huge objects": 189, "medium and large objects": 302, "small objects": 461, "bins": 332,
                 "POSIX interface": 536, "atomicity and locks": 357, "mmap interface": 123}
        others = {("hoard", codesize.MODULES): 120.0, ("hoard", codesize.SHORT_MODULES): 98.0}
        paper = {**{("supermalloc-original", f"lines: {part}"): float(n) for part, n in lines.items()}, **others}
        small = {**paper, ("supermalloc-original", "lines: caches"): 100.0, ("supermalloc-original", "lines: bins"): 50.0,
                 ("hoard", codesize.SHORT_MODULES): 60.0}
        for claim in decided(figure):
            with self.subTest(claim.name):
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=paper)).answer, Answer.HOLDS)
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=small)).answer, Answer.DOES_NOT_HOLD)
                found = verdicts.verdict(claim, Data(figure, 2, []))  # without their sources
                self.assertEqual(found.answer, Answer.CANNOT_BE_SHOWN_HERE)
                self.assertIn("spanalloc bench peers --originals", found.evidence)
        # "About 350 lines" is a number, not only a likeness of two.
        claim = next(claim for claim in figure.claims if claim.name == "locks-as-large-as-bins")
        large = {**paper, ("supermalloc-original", "lines: bins"): 3320.0, ("supermalloc-original", "lines: atomicity and locks"): 3570.0}
        self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=large)).answer, Answer.DOES_NOT_HOLD)

    def test_each_file_of_the_engine_is_in_a_module(self):
        files = codesize.supermalloc_files()
        self.assertNotIn(None, files)
        parts = {*codesize.SUPERMALLOC_PARTS, f"lines: {codesize.SEQUENCES}"}
        self.assertEqual({f"lines: {part}" for part in files}, parts)
        locks = {os.path.basename(path) for path in files["atomicity and locks"]}
        self.assertEqual(locks, {"spin_lock.hpp"})  # what the engine is judged with
        with mock.patch.object(codesize.libraries, "built_peers", list):
            facts = codesize.supermalloc_modules(None, ())
        lines = {measure for row, measure in facts if row == "supermalloc" and measure.startswith("lines: ")}
        characters = {measure.removeprefix(codesize.CHARACTERS) for row, measure in facts
                      if row == "supermalloc" and measure.startswith(codesize.CHARACTERS)}
        self.assertEqual(lines, parts)
        self.assertEqual(characters, set(files))
        self.assertGreater(min(facts.values()), 10)

    def test_a_library_is_all_its_sources(self):
        # What stands in a source file of its own is in every library, but for these two.
        source = os.path.join(tree.SOURCE, "src")
        others = {"lib_standard_sp.cpp", "pages_api_freestanding.cpp"}
        wanted = {os.path.join(source, folder, name) for folder in ("api", "os", "thread")
                  for name in os.listdir(os.path.join(source, folder)) if name.endswith(".cpp") and name not in others}
        for name, engine in (("standard", "src/standard"), ("a2alloc", "papers/a2alloc/engine")):
            files = codesize.library_files(name)
            self.assertEqual({file for file in files if file.endswith(".cpp")}, wanted)
            self.assertIn(os.path.join(tree.SOURCE, engine, "engine.hpp"), files)

    def test_code_of_what_was_built_from_its_own_sources(self):
        with tempfile.TemporaryDirectory(prefix="spanalloc-sources-") as folder:
            def write(name, lines):
                path = os.path.join(folder, *name.split("/"))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write("int x;\n" * lines)

            for module, names in codesize._ORIGINAL_MODULES.items():
                for name in names:
                    write(f"sm/as-counted/src/{name}", 10 + len(module))
            write("sm/as-counted/src/old/cache.cc", 1000)  # of the same name, no module, and no part of the program
            write("hoard/src/include/a.h", 400)
            write("hoard/src/include/b.h", 600)
            write("hoard/src/include/README", 5)
            write("hoard/test/c.cpp", 7)
            write("je/src/arena.c", 30)
            write("je/src/ctl.c", 20)
            write("je/include/jemalloc/x.h", 3)
            entries = [
                {"name": "supermalloc-original", "family": "supermalloc-original", "sources": f"{folder}/sm",
                 "lines_of": list(next(one.lines_of for one in originals.ORIGINALS if one.name == "supermalloc-original"))},
                {"name": "hoard", "family": "hoard", "sources": f"{folder}/hoard", "lines_of": ["src"]},
                {"name": "jemalloc-5", "family": "jemalloc", "sources": f"{folder}/je"},
            ]
            with mock.patch.object(codesize.libraries, "built_peers", lambda: entries):
                modules = codesize.supermalloc_modules(None, ())
                sizes = codesize.sizes(None, [Allocator(name, "", Kind.PEER, missing="nowhere")
                                              for name in ("supermalloc-original", "hoard", "jemalloc", "tbbmalloc")])
        self.assertEqual(modules["supermalloc-original", "lines: caches"], 16)
        self.assertEqual(modules["supermalloc-original", "characters: caches"], 16 * len("int x;\n"))
        self.assertEqual({part for row, part in modules if row == "supermalloc-original" and part.startswith("lines: ")},
                         set(codesize.SUPERMALLOC_PARTS))
        self.assertEqual((modules["hoard", codesize.MODULES], modules["hoard", codesize.SHORT_MODULES]), (2, 50.0))
        self.assertEqual(sizes["supermalloc-original", codesize.LINES],
                         sum(modules["supermalloc-original", part] for part in codesize.SUPERMALLOC_PARTS))
        self.assertEqual(sizes["hoard", codesize.LINES], 1000)
        self.assertEqual(sizes["jemalloc", codesize.LINES], 53)
        self.assertEqual(sizes["jemalloc", codesize.BYTES], 53 * len("int x;\n"))
        self.assertNotIn("tbbmalloc", {row for row, _ in sizes})

    def test_steps_of_the_a2alloc_engine(self):
        figure = FIGURES["a2alloc-future-counts"]
        good = {
            **{(name, steps.BLOCKS): n for name, n in (("a2alloc", 21.0), ("a2alloc-size-classes", 1.0),
                                                       ("a2alloc-fullest-first", 25.0))},
            ("a2alloc", steps.LEFT): 36.0, ("a2alloc-fullest-first", steps.LEFT): 34.0,
            ("a2alloc", steps.RECORDS): 64.0, ("a2alloc-shared-records", steps.RECORDS): 1.0,
            **{(name, steps.LARSON_INSTRUCTIONS): n for name, n in (
                ("a2alloc", 1100.0), ("a2alloc-classes", 500.0), ("a2alloc-size-classes", 440.0),
                ("a2alloc-fullest-first", 1200.0))},
        }
        bad = {key: 1 / value for key, value in good.items()}
        for claim in figure.claims:
            with self.subTest(claim.name):
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=good)).answer, Answer.HOLDS)
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=bad)).answer, Answer.DOES_NOT_HOLD)
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [])).answer, Answer.UNDECIDED)

    def test_single_calls(self):
        figure = FIGURES["supermalloc-calls"]
        names = ("supermalloc", "standard", "scalloc", "glibc", "jemalloc", "tbbmalloc", "hoard", "dlmalloc")
        good, bad = {}, {}
        for name in names:
            slow = 2000.0 if name == "tbbmalloc" else 1000.0
            good.update({(name, calls.SPREAD): 0.01 if name in ("jemalloc", "tbbmalloc") else 0.002,
                         (name, calls.mean_of("larson", "malloc")): 100.0, (name, calls.deviation_of("larson", "malloc")): 4000.0,
                         (name, calls.worst_of("larson", "malloc")): 1e6, (name, calls.worst_of("superserver", "malloc")): slow,
                         (name, calls.worst_of("superserver", "free")): 10.0})
            bad.update({(name, calls.SPREAD): 0.01 if name == "tbbmalloc" else 0.2,
                        (name, calls.mean_of("larson", "malloc")): 100.0, (name, calls.deviation_of("larson", "malloc")): 40.0,
                        (name, calls.worst_of("larson", "malloc")): 10.0 if name == "hoard" else 1e6,
                        (name, calls.worst_of("superserver", "malloc")): 1000.0,
                        (name, calls.worst_of("superserver", "free")): 900.0})
        for claim in figure.claims:
            with self.subTest(claim.name):
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=good)).answer, Answer.HOLDS)
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [], facts=bad)).answer, Answer.DOES_NOT_HOLD)
                self.assertEqual(verdicts.verdict(claim, Data(figure, 2, [])).answer, Answer.UNDECIDED)

    def test_ranges_of_few_runs_differ_by_chance(self):
        figure, claim = GuardTest.claim("supermalloc-calls/similar-variance")
        for mine, answer in ((0.9, Answer.HOLDS), (1.1, Answer.UNDECIDED), (9.5, Answer.UNDECIDED), (9.7, Answer.DOES_NOT_HOLD)):
            facts = {("supermalloc", calls.SPREAD): mine, ("jemalloc", calls.SPREAD): 3.0, ("tbbmalloc", calls.SPREAD): 3.0}
            found = verdicts.verdict(claim, Data(figure, 2, [], facts=facts))
            self.assertEqual(found.answer, answer, found.evidence)

    def test_numbers_of_single_calls(self):
        found = calls.of_counts("larson", {"malloc": {10: 3, 50: 1}, "free": {7: 2}})
        self.assertEqual(found[calls.mean_of("larson", "malloc")], 20.0)
        self.assertAlmostEqual(found[calls.deviation_of("larson", "malloc")], 300**0.5)
        self.assertEqual(found[calls.worst_of("larson", "malloc")], 50)
        self.assertEqual(found[calls.deviation_of("larson", "free")], 0.0)
        runs = calls.of_runs([{"malloc": {10: 1}, "free": {30: 1}}, {"malloc": {40: 1}, "free": {40: 1}}])
        self.assertEqual(runs, {calls.MEAN_OF_RUNS: 30.0, calls.SPREAD: 20.0 / 30.0})

    def test_text_of_a_library(self):
        self.assertGreater(codesize.text_bytes("/proc/self/exe"), 1000)
        self.assertIsNone(codesize.text_bytes(__file__))
        self.assertIsNone(codesize.text_bytes("/nonexistent"))

    def test_what_cannot_be_measured(self):
        for figure, claim, key in keys():
            if key in CANNOT:
                with self.subTest(key):
                    self.assertEqual(verdicts.verdict(claim, Data(figure, CORES, [])).answer, Answer.CANNOT_BE_SHOWN_HERE)
            if key in LEFT_OUT:
                self.assertEqual(verdicts.verdict(claim, Data(figure, CORES, [])).answer, Answer.NOT_MEASURED)


if __name__ == "__main__":
    unittest.main()
