"""What the figures' verdicts rest on: intervals, and comparisons of what was measured together."""

import itertools
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from figure_shapes import CORES, NEGATIVE, ROUNDS, noise, sample  # noqa: E402
from papers.shared.figures import judges, verdicts  # noqa: E402
from papers.shared.figures.catalogue import FIGURES  # noqa: E402
from papers.shared.figures.data import Data, interval  # noqa: E402
from papers.shared.figures.figure import PROCESS, TIME, Answer  # noqa: E402
from spanalloc_bench.analyse import APART_S  # noqa: E402


class IntervalTest(unittest.TestCase):
    def test_too_few_rounds_are_not_sure(self):
        self.assertFalse(interval([2.0]).sure)
        self.assertFalse(interval([2.0, 2.0]).sure)
        self.assertTrue(interval([2.0, 2.0, 2.0]).sure)

    def test_equal_values_have_no_width(self):
        found = interval([1.0] * 6)
        self.assertEqual((found.low, found.middle, found.high), (1.0, 1.0, 1.0))

    def test_equality_is_no_order(self):
        self.assertEqual(judges._against_band(interval([1.0] * 6), None, 1.0), Answer.DOES_NOT_HOLD)

    def test_the_interval_widens_with_the_spread(self):
        narrow, wide = interval([0.9, 1.1] * 3), interval([0.5, 2.0] * 3)
        self.assertLess(narrow.high / narrow.low, wide.high / wide.low)
        self.assertLess(wide.low, 1)
        self.assertGreater(wide.high, 1)

    def test_variances_need_many_rounds(self):
        figure = FIGURES["supermalloc-8"]
        claim = next(c for c in figure.claims if c.name == "similar-variance")
        point = figure.points(2)[0]

        def data(spread, rounds):
            return Data(figure, CORES, [
                sample(point.case, name, r, {"elapsed": 1 + (spread if name == "jemalloc" else 0.01) * (r * 5 % 7 - 3)})
                for name in ("jemalloc", "tbbmalloc") for r in range(1, rounds + 1)])

        self.assertEqual(verdicts.verdict(claim, data(0.01, 5)).answer, Answer.UNDECIDED)
        self.assertEqual(verdicts.verdict(claim, data(0.01, 8)).answer, Answer.HOLDS)
        self.assertEqual(verdicts.verdict(claim, data(0.2, 8)).answer, Answer.DOES_NOT_HOLD)
        for relative in (False, True):
            steadier = judges.steadier(TIME, "tbbmalloc", of="jemalloc", relative=relative)
            for spread, rounds, answer in ((0.0005, 8, Answer.HOLDS), (0.0005, 5, Answer.UNDECIDED),
                                           (0.01, 8, Answer.UNDECIDED), (0.2, 8, Answer.DOES_NOT_HOLD)):
                self.assertEqual(steadier(data(spread, rounds), "").answer, answer)
        for worst in (False, True):
            below = judges.below_range(TIME, "jemalloc", of="tbbmalloc", worst=worst)
            for spread, rounds, answer in ((0.2, 8, Answer.HOLDS), (0.2, 2, Answer.UNDECIDED),
                                           (0.01, 8, Answer.DOES_NOT_HOLD)):
                self.assertEqual(below(data(spread, rounds), "").answer, answer)


class ApartTest(unittest.TestCase):
    """What lay apart in time decides nothing, by the rule of the suite's tables."""

    FIGURE = FIGURES["scalloc-6a"]
    FASTER = staticmethod(judges.less(TIME, "glibc", of="standard"))

    def data(self, begins, time=lambda name, point, round_: 1.0 if name == "standard" else 2.0,
             names=("standard", "glibc"), figure=FIGURE):
        """begins(name, point, round) -> seconds after the round's start, or None where it is not known."""
        found = []
        for name, point, round_ in itertools.product(names, figure.points(8), ROUNDS):
            begun = begins(name, point, round_)
            run = sample(point.case, name, round_, {"elapsed": noise(time(name, point, round_), round_)})
            run.started = None if begun is None else 1e9 + 5000 * round_ + begun
            found.append(run)
        return Data(figure, 8, found)

    def judged(self, judge, *arguments, **fields):
        return judge(self.data(*arguments, **fields), "")

    def later(self, seconds, rounds=ROUNDS):
        return lambda name, point, round_: seconds if name == "glibc" and round_ in rounds else 0.0

    def test_what_ran_together_or_at_times_unknown_counts(self):
        for begins in (self.later(APART_S - 1), lambda *_: None, lambda name, *_: 0.0 if name == "glibc" else None):
            self.assertEqual(self.judged(self.FASTER, begins).answer, Answer.HOLDS)

    def test_what_lay_apart_is_undecided_and_says_so(self):
        found = self.judged(self.FASTER, self.later(APART_S + 1))
        self.assertEqual(found.answer, Answer.UNDECIDED)
        self.assertIn("0.5 (runs more than 10 minutes apart", found.evidence)

    def test_rounds_that_lay_apart_do_not_count(self):
        def reverse(name, point, round_):
            return 1.0 if name == "standard" else 0.5 if round_ <= 3 else 2.0

        begins = self.later(APART_S + 1, rounds=(1, 2, 3))
        self.assertEqual(self.judged(self.FASTER, self.later(0), reverse).answer, Answer.UNDECIDED)
        self.assertEqual(self.judged(self.FASTER, begins, reverse).answer, Answer.HOLDS)
        # Two rounds are too few to judge by.
        self.assertEqual(self.judged(self.FASTER, self.later(APART_S + 1, rounds=(1, 2, 3, 4)), reverse).answer,
                         Answer.UNDECIDED)

    def test_one_point_apart_makes_the_round_apart(self):
        begins = lambda name, point, _: APART_S + 1 if name == "glibc" and point.x == 4 else 0.0  # noqa: E731
        self.assertEqual(self.judged(self.FASTER, begins).answer, Answer.UNDECIDED)
        at_two = judges.less(TIME, "glibc", of="standard", at=judges.only(2))
        self.assertEqual(self.judged(at_two, begins).answer, Answer.HOLDS)

    def test_two_places_of_one_contender(self):
        grows = lambda name, point, round_: float(point.x)  # noqa: E731
        judge = judges.changes(TIME, judges.only(1), judges.only(8), low=2.0, of="standard")
        for gap, answer in ((APART_S / 16, Answer.HOLDS), (APART_S, Answer.UNDECIDED)):
            begins = lambda name, point, _: gap * point.x  # noqa: E731
            self.assertEqual(self.judged(judge, begins, grows).answer, answer)
        # A ratio of ratios compares within each place only.
        ratio = lambda name, point, _: point.x if name == "glibc" else 1.0  # noqa: E731
        narrows = judges.narrows(TIME, "standard", "glibc", judges.only(1), judges.only(8))
        self.assertEqual(self.judged(narrows, lambda name, point, _: 2 * APART_S * point.x, ratio).answer, Answer.HOLDS)
        self.assertEqual(self.judged(narrows, self.later(APART_S + 1), ratio).answer, Answer.UNDECIDED)

    def test_scores_over_thread_counts(self):
        judge = judges.scalability_above(TIME, "standard", "glibc", judges.to_cores)
        scales = lambda name, point, _: 1.0 / point.x if name == "standard" else 1.0  # noqa: E731
        self.assertEqual(self.judged(judge, self.later(0), scales).answer, Answer.HOLDS)
        self.assertEqual(self.judged(judge, self.later(APART_S + 1), scales).answer, Answer.UNDECIDED)

    def test_a_correlation_takes_all_at_one_time(self):
        names = [name for name in self.FIGURE.allocators if name != PROCESS][:7]
        time = lambda name, point, _: 1.0 + names.index(name)  # noqa: E731
        judge = judges.trade_off(TIME, NEGATIVE, judges.full)
        for gap, answer in ((1.0, Answer.HOLDS), (APART_S, Answer.UNDECIDED)):
            begins = lambda name, point, _: gap * names.index(name)  # noqa: E731
            self.assertEqual(self.judged(judge, begins, time, names).answer, answer)


# A line a thread count, variants, named sizes, a stand-in, bars by place, by measure, of facts, parts, nothing measured.


if __name__ == "__main__":
    unittest.main()
