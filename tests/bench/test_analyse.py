"""Medians, intervals, verdicts and means of the benchmark suite, on samples whose answers are known."""

import math
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import analyse, ratios  # noqa: E402
from spanalloc_bench.model import CRASHED, HUNG, OK, UNAVAILABLE, Sample  # noqa: E402

SIX = range(1, 7)


def samples(case, allocator, seconds, peak=1000.0, **more):
    """One sample a value of `seconds`; `peak` is one number or as many."""
    peaks = peak if isinstance(peak, (list, tuple)) else [peak] * len(seconds)
    return [
        Sample(case, allocator, number, 1, elapsed_s=time, peak_kib=kib, **more)
        for number, (time, kib) in enumerate(zip(seconds, peaks), start=1)
    ]


def crashed(case, allocator, rounds=6, status=CRASHED, problem="killed by SIGSEGV"):
    return [Sample(case, allocator, number, 1, status=status, problem=problem) for number in range(1, rounds + 1)]


def by_round(values):
    return dict(enumerate(values, start=1))


class IntervalTest(unittest.TestCase):
    def test_known_interval(self):
        # Logarithms of the ratios: -0.3, -0.2, -0.2, -0.1, -0.1, 0.0: mean -0.15, deviation sqrt(0.011).
        logs = [-0.3, -0.2, -0.2, -0.1, -0.1, 0.0]
        mine = by_round([math.exp(v) * 2 for v in logs])
        ratio, low, high, rounds, verdict, _ = analyse.paired(mine, by_round([2.0] * 6))
        half = 2.5705818366 * math.sqrt(0.011) / math.sqrt(6)
        self.assertAlmostEqual(ratio, math.exp(-0.15), 9)
        self.assertAlmostEqual(low, math.exp(-0.15 - half), 9)
        self.assertAlmostEqual(high, math.exp(-0.15 + half), 9)
        self.assertEqual((rounds, verdict), (6, "win"))

    def test_disturbance_of_whole_rounds_is_paired_away(self):
        # Round 3 is ten times as slow for both: unpaired, 10 % would drown.
        noise = [1, 1.2, 10, 0.9, 1.1, 1]
        mine, other = by_round([1.1 * n for n in noise]), by_round(noise)
        ratio, low, high, _, verdict, _ = analyse.paired(mine, other)
        self.assertEqual(verdict, "loss")
        self.assertAlmostEqual(ratio, 1.1)
        self.assertLess(high - low, 1e-9)

    def test_interval_around_one_is_a_tie(self):
        ratio, low, high, _, verdict, _ = analyse.paired(by_round([1.2, 0.9, 1.1, 0.95, 1.0, 1.0]), by_round([1.0] * 6))
        self.assertLess(low, 1)
        self.assertGreater(high, 1)
        self.assertEqual(verdict, "tie")

    def test_fewer_than_six_rounds_have_no_verdict(self):
        result = analyse.paired(by_round([1.0] * 5), by_round([2.0] * 5))
        self.assertAlmostEqual(result[0], 0.5)
        self.assertEqual(result[3:5], (5, ""))
        self.assertEqual(analyse.paired(by_round([1.0] * 6), by_round([2.0] * 6))[4], "win")

    def test_one_round_has_no_interval(self):
        ratio, *rest, _ = analyse.paired({1: 1.0}, {1: 2.0})
        self.assertAlmostEqual(ratio, 0.5)
        self.assertEqual(rest, [None, None, 1, ""])

    def test_only_common_rounds_count(self):
        mine, other = {1: 1.0, 2: 3.0, 9: 100.0}, {1: 2.0, 2: 6.0, 5: 0.001}
        self.assertAlmostEqual(analyse.paired(mine, other)[0], 0.5)
        self.assertEqual(analyse.paired(mine, other)[3], 2)
        self.assertEqual(analyse.paired({1: 1.0}, {2: 1.0}), (None, None, None, 0, "", {}))

    def test_no_variance(self):
        self.assertEqual(analyse.paired(by_round([1001.0] * 6), by_round([1000.0] * 6))[4], "loss")
        self.assertEqual(analyse.paired(by_round([1000.0] * 6), by_round([1000.0] * 6))[:5], (1.0, 1.0, 1.0, 6, "tie"))
        # The same ratio six times, but for rounding: no tie and no division by zero.
        thirds = by_round([n / 3 for n in SIX])
        self.assertEqual(analyse.paired(thirds, {k: v * 1.1 / 1.1 for k, v in thirds.items()})[4], "tie")

    def test_more_is_better(self):
        ratio, *_, verdict, _ = analyse.paired(by_round([200.0] * 6), by_round([100.0] * 6), higher_is_better=True)
        self.assertAlmostEqual(ratio, 0.5)
        self.assertEqual(verdict, "win")

    def test_zeros_have_a_verdict_but_no_ratio(self):
        ratio, low, high, _, verdict, _ = analyse.paired(by_round([0.0] * 6), by_round([3.0] * 6))
        self.assertEqual((ratio, low, high, verdict), (None, None, None, "win"))
        self.assertEqual(analyse.paired(by_round([0.0] * 6), by_round([0.0] * 6))[:5:4], (1.0, "tie"))

    def test_student(self):
        self.assertAlmostEqual(ratios.student_t(5), 2.5706, 4)
        self.assertAlmostEqual(ratios.student_t(40), 2.0211, 3)
        self.assertAlmostEqual(ratios.student_t(1000), 1.9623, 3)
        values = [ratios.student_t(n) for n in range(1, 60)]
        self.assertEqual(values, sorted(values, reverse=True))


class ScoreTest(unittest.TestCase):
    def setUp(self):
        data = []
        # Against glibc: a win by half, a loss by 0.1 %, a tie, a crash of glibc, a crash of ours, a hang of both.
        data += samples("a", "standard", [1.0] * 6, 500.0) + samples("a", "glibc", [2.0] * 6, 1000.0)
        data += samples("b", "standard", [1.001] * 6) + samples("b", "glibc", [1.0] * 6)
        data += samples("c", "standard", [1.2, 0.9, 1.1, 0.95, 1.0, 1.0]) + samples("c", "glibc", [1.0] * 6)
        data += samples("d", "standard", [1.0] * 6) + crashed("d", "glibc")
        data += samples("e", "standard", [1.0] * 5) + crashed("e", "standard")[5:] + samples("e", "glibc", [1.0] * 6)
        data += crashed("f", "standard", status=HUNG, problem="") + crashed("f", "glibc")
        # Not there is no failure; a contender that was not asked is nothing at all.
        data += samples("g", "standard", [1.0] * 6) + crashed("g", "glibc", status=UNAVAILABLE, problem="no xalan")
        data += samples("h", "glibc", [1.0] * 6)
        data += samples("a", "bump", [0.5] * 6) + samples("a", "jemalloc", [0.8] * 6, 400.0)
        self.analysis = analyse.Analysis(data, {})

    def test_tally_and_effect(self):
        score = self.analysis.score("standard", "glibc", analyse.TIME)
        self.assertEqual((score.wins, score.ties, score.losses, score.undecided), (1, 1, 1, 0))
        self.assertEqual((score.notable_wins, score.notable_losses), (1, 0))
        self.assertEqual(score.tally, "1/1/1")

    def test_failures_are_counted_and_named(self):
        score = self.analysis.score("standard", "glibc", analyse.TIME)
        self.assertEqual((score.mine_failed, score.other_failed, score.both_failed), (("e",), ("d",), ("f",)))
        self.assertEqual(self.analysis.score("standard", "glibc", analyse.MEMORY).mine_failed, ("e",))
        self.assertEqual(self.analysis.score("standard", "glibc", ("malloc", "max_ns")).mine_failed, ())

    def test_mean_covers_common_cases_only(self):
        score = self.analysis.score("standard", "glibc", analyse.TIME)
        tie = analyse.geometric_mean([1.2, 0.9, 1.1, 0.95, 1.0, 1.0])
        self.assertEqual(score.cases, 3)
        self.assertAlmostEqual(score.ratio, (0.5 * 1.001 * tie) ** (1 / 3), 12)

    def test_the_other_way_round(self):
        ours = self.analysis.score("standard", "glibc", analyse.TIME)
        theirs = self.analysis.score("glibc", "standard", analyse.TIME)
        self.assertAlmostEqual(ours.ratio * theirs.ratio, 1)
        self.assertEqual((theirs.wins, theirs.losses), (ours.losses, ours.wins))

    def test_problems(self):
        rows = {(p.case, p.allocator): (p.status, p.rounds, p.of) for p in self.analysis.problems()}
        self.assertEqual(rows["d", "glibc"], (CRASHED, 6, 6))
        self.assertEqual(rows["e", "standard"], (CRASHED, 1, 6))
        self.assertEqual(rows["f", "standard"], (HUNG, 6, 6))
        self.assertIn(("g", "glibc"), rows)
        self.assertNotIn(("g", "glibc"), {(p.case, p.allocator) for p in self.analysis.failures()})

    def test_no_figures_where_a_round_failed(self):
        self.assertIsNone(self.analysis.summary("e", "standard", analyse.TIME))
        self.assertIsNone(self.analysis.versus("e", "standard", "glibc", analyse.TIME))

    def test_best_and_floor(self):
        self.assertEqual(self.analysis.best_other("a", "standard", analyse.TIME), ("jemalloc", 0.8))
        self.assertEqual(self.analysis.best_other("a", "jemalloc", analyse.TIME), ("standard", 1.0))
        self.assertEqual(self.analysis.floor("a", "glibc", analyse.TIME), 0.5)
        self.assertIsNone(self.analysis.floor("b", "glibc", analyse.TIME))

    def test_our_libraries_are_no_others_to_each_other(self):
        times = {"standard": 2.0, "scalloc": 1.0, "glibc": 3.0}
        data = [s for name, time in times.items() for s in samples("a", name, [time] * 6)]
        found = analyse.Analysis(data, {})
        self.assertEqual(found.best_other("a", "standard", analyse.TIME), ("glibc", 3.0))
        self.assertEqual(found.best_other("a", "glibc", analyse.TIME), ("scalloc", 1.0))

    def test_extremes_are_against_the_best_rival(self):
        worst = self.analysis.extremes("standard", analyse.TIME, worst=True)
        self.assertEqual([(v.case, v.other) for v in worst], [("a", "jemalloc"), ("b", "glibc")])
        self.assertAlmostEqual(worst[0].ratio, 1.25)
        self.assertEqual(self.analysis.extremes("standard", analyse.TIME, worst=False), [])

    def test_a_certain_loss_is_not_hidden_by_a_larger_ratio_without_a_verdict(self):
        times = {"standard": 1.0, "glibc": 0.2, "jemalloc": 0.8}
        data = [sample for name, time in times.items() for sample in samples("a", name, [time] * 6)]
        for sample in data:
            sample.started = 1e9 + 3600 * sample.round + (601.0 if sample.allocator == "glibc" else 0)
        worst = analyse.Analysis(data, {}).extremes("standard", analyse.TIME, worst=True)
        self.assertEqual([(v.other, v.verdict) for v in worst], [("jemalloc", "loss")])

    def test_cases_that_one_ran_in(self):
        self.assertEqual(self.analysis.run_by("standard"), ["a", "b", "c", "d", "e", "f", "g"])
        self.assertEqual(self.analysis.run_by("glibc"), ["a", "b", "c", "d", "e", "f", "h"])  # in g it was not there
        self.assertEqual(self.analysis.run_by("glibc", ["g", "h"]), ["h"])

    def test_standing(self):
        found, cases = self.analysis.standing(analyse.TIME, ["standard", "glibc", "jemalloc"])
        self.assertEqual(cases, 1)
        self.assertAlmostEqual(found["glibc"], 2.5)
        self.assertEqual(found["jemalloc"], 1.0)

    def test_rivals_and_kinds(self):
        self.assertEqual(self.analysis.rivals(), ["glibc", "jemalloc"])
        self.assertEqual(self.analysis.opponents("standard"), ["glibc", "jemalloc"])
        self.assertEqual(self.analysis.baseline(), "bump")

    def test_the_product_comes_first(self):
        data = [s for name in ("glibc", "scalloc", "standard") for s in samples("a", name, [1.0])]
        self.assertEqual(list(analyse.Analysis(data, {}).allocators), ["standard", "scalloc", "glibc"])


class MeanTest(unittest.TestCase):
    """The interval and the verdict of a mean over cases."""

    def score(self, *cases, measure=analyse.TIME, **more):
        data = []
        for number, times in enumerate(cases):
            data += samples(f"c{number}", "standard", times) + samples(f"c{number}", "glibc", [1.0] * len(times))
        return analyse.Analysis(data, {}).score("standard", "glibc", measure, **more)

    def test_known_interval(self):
        # A round's mean over both cases: logarithms -0.3, -0.2, -0.2, -0.1, -0.1, 0.0 as in IntervalTest.
        logs, swing = [-0.3, -0.2, -0.2, -0.1, -0.1, 0.0], [0.4, -0.3, 0.2, -0.1, 0.3, -0.5]
        score = self.score(*([math.exp(v + sign * s) for v, s in zip(logs, swing)] for sign in (1, -1)))
        half = 2.5705818366 * math.sqrt(0.011) / math.sqrt(6)
        self.assertEqual((score.ties, score.verdict), (2, "win"))  # neither case is certain by itself
        self.assertAlmostEqual(score.ratio, math.exp(-0.15), 9)
        self.assertAlmostEqual(score.low, math.exp(-0.15 - half), 9)
        self.assertAlmostEqual(score.high, math.exp(-0.15 + half), 9)

    def test_level_where_it_contains_one(self):
        rounds = [1.2, 0.9, 1.1, 0.95, 1.0, 1.0]  # of all cases: no number of them makes it certain
        self.assertEqual(self.score(*[rounds] * 20).verdict, "tie")
        self.assertEqual(self.score([0.999] * 6).verdict, "win")
        self.assertEqual(self.score([1.0] * 6, [1.0] * 6).verdict, "tie")

    def test_too_few_rounds(self):
        score = self.score([0.5] * 5, [0.5] * 5)
        self.assertEqual((score.low, score.high, score.verdict), (None, None, ""))
        self.assertAlmostEqual(score.ratio, 0.5)
        # A round that is missing in one case of many is told by the others; in a quarter of them it is not.
        self.assertEqual(self.score([0.5] * 5, *[[0.5] * 6] * 9).verdict, "win")
        self.assertEqual(self.score([0.5] * 5, *[[0.5] * 6] * 3).verdict, "")

    def test_zeros(self):
        self.assertEqual(self.score([0.0] * 6).verdict, "")


class ApartTest(unittest.TestCase):
    """Runs of one round that lie far apart in time."""

    def against(self, rounds, apart, by=601.0):
        data = samples("a", "standard", [1.0] * rounds) + samples("a", "glibc", [2.0] * rounds)
        for sample in data:
            late = sample.round in apart and sample.allocator == "glibc"
            sample.started = 1e9 + 3600 * sample.round + (by if late else 0)
        found = analyse.Analysis(data, {})
        return found.versus("a", "standard", "glibc", analyse.TIME), found.score("standard", "glibc", analyse.TIME)

    def test_a_ratio_but_no_verdict(self):
        versus, score = self.against(6, SIX)
        self.assertEqual((versus.ratio, versus.low, versus.verdict, versus.apart), (0.5, None, "", True))
        self.assertEqual((score.undecided, score.apart, score.verdict, score.tally), (1, 1, "", "apart"))
        self.assertTrue(self.against(6, [3])[0].apart)

    def test_near_enough(self):
        versus, score = self.against(6, SIX, by=599.0)
        self.assertEqual((versus.verdict, versus.apart, score.verdict), ("win", False, "win"))

    def test_the_other_rounds_suffice(self):
        versus, _ = self.against(7, [2])
        self.assertEqual((versus.verdict, versus.rounds, versus.apart), ("win", 6, False))

    def test_too_few_rounds_near_together_are_too_few(self):
        self.assertEqual(self.against(5, [])[1].tally, "too few rounds")


class MemoryTest(unittest.TestCase):
    MIB = 1 << 20

    def found(self):
        data, cases = [], {}
        for case, live, metric, mine in (
            ("small", self.MIB - 1, "time", 4000.0), ("large", self.MIB, "time", 500.0), ("unknown", None, "time", 500.0),
            ("view", 8 * self.MIB, "malloc_p9999_ns", 9000.0),
        ):
            cases[case] = {"group": case, "title": case, "metric": metric}
            for name, peak in (("standard", mine), ("glibc", 1000.0), ("jemalloc", 2000.0)):
                data += samples(case, name, [1.0] * 6, peak, peak_live_bytes=live)
        data += samples("large", "crasher", [1.0] * 6) + crashed("small", "crasher")
        return analyse.Analysis(data, {"cases": cases})

    def test_own_tables_are_no_memory_of_the_allocator(self):
        data = samples("a", "standard", [1.0] * 6, 1500.0, metrics={"own_kib": 1000})
        data += samples("a", "glibc", [1.0] * 6, 2000.0, metrics={"own_kib": 1000})
        found = analyse.Analysis(data, {})
        self.assertEqual(found.median("a", "standard", analyse.MEMORY), 500)
        self.assertAlmostEqual(found.versus("a", "standard", "glibc", analyse.MEMORY).ratio, 0.5)

    def test_start_up_and_further_views_are_in_no_mean(self):
        found = self.found()
        self.assertEqual((found.memory_cases, found.start_up), (["large", "unknown"], ["small"]))
        score = found.score("standard", "glibc", analyse.MEMORY)
        self.assertEqual((score.wins, score.losses, score.cases), (2, 0, 2))
        self.assertAlmostEqual(score.ratio, 0.5)
        self.assertEqual(found.extremes("standard", analyse.MEMORY, worst=True), [])
        self.assertEqual(found.standing(analyse.MEMORY, ["standard", "glibc"]), ({"standard": 1.0, "glibc": 2.0}, 2))
        self.assertEqual(found.above_floor(analyse.MEMORY, ["standard"])[1], 1)

    def test_start_up_has_a_mean_of_its_own(self):
        score = self.found().score("standard", "glibc", analyse.MEMORY, start_up=True)
        self.assertEqual((score.losses, score.cases, score.verdict), (1, 1, "loss"))
        self.assertAlmostEqual(score.ratio, 4.0)
        worst = self.found().extremes("standard", analyse.MEMORY, worst=True, start_up=True)
        self.assertEqual([(v.case, v.other) for v in worst], [("small", "glibc")])

    def test_failures_count_wherever_they_are(self):
        self.assertEqual(self.found().score("standard", "crasher", analyse.MEMORY).other_failed, ("small",))


class MeasuresTest(unittest.TestCase):
    def test_time_is_per_operation(self):
        data = samples("a", "standard", [2.0, 4.0, 3.0], operations=100)
        summary = analyse.Analysis(data, {}).summary("a", "standard", analyse.TIME)
        self.assertEqual((summary.median, summary.low, summary.high, summary.rounds), (0.03, 0.02, 0.04, 3))
        self.assertAlmostEqual(summary.spread, 2 / 3)

    def test_memory_floor(self):
        data = samples("a", "standard", [1.0], 3000.0, peak_live_bytes=2048 * 1024)
        found = analyse.Analysis(data, {})
        self.assertEqual(found.floor("a", "standard", analyse.MEMORY), 2048)

    def test_metric_of_a_case(self):
        facts = {"metric": "requests_per_s", "better": "higher", "group": "redis", "title": "Redis"}
        data = samples("r", "standard", [1.0] * 6, metrics={"requests_per_s": 300.0, "hits": 7})
        data += samples("r", "glibc", [1.0] * 6, metrics={"requests_per_s": 150.0, "hits": 7})
        data += samples("r", "jemalloc", [1.0] * 6, metrics={"requests_per_s": 200.0})
        found = analyse.Analysis(data, {"cases": {"r": facts}})
        self.assertEqual(found.median("r", "standard", analyse.TIME), 300)
        self.assertAlmostEqual(found.versus("r", "standard", "glibc", analyse.TIME).ratio, 0.5)
        self.assertEqual(found.best_other("r", "standard", analyse.TIME), ("jemalloc", 200))
        self.assertEqual(found.cell("r", "standard").metrics, {"hits": [7] * 6})

    def test_what_counts_as_time(self):
        def judged(metric):
            return analyse.Case("a", "a", "a", metric=metric).judged_by

        for name in ("time", "allocator_s", "allocator_build_s", "requests_per_s", "step_ns"):
            self.assertEqual(judged(name), analyse.TIME, name)
        for name in ("failures", "false_sharing", "malloc_p9999_ns", "malloc_max_ns", "frees"):
            self.assertEqual(judged(name), analyse.METRIC, name)

    def test_other_metrics_are_in_no_mean_of_times(self):
        data = samples("p", "standard", [1.0] * 6, metrics={"failures": 4})
        data += samples("p", "glibc", [1.0] * 6, metrics={"failures": 2})
        found = analyse.Analysis(data, {"cases": {"p": {"metric": "failures", "group": "p", "title": "p"}}})
        self.assertEqual(found.score("standard", "glibc", analyse.TIME).cases, 0)
        self.assertEqual(found.score("standard", "glibc", analyse.METRIC).losses, 1)
        self.assertEqual(found.measures("p"), [analyse.METRIC, analyse.MEMORY])

    def test_zeros_are_among_the_extremes(self):
        def versus(mine, other, worst, rounds=6):
            data = [sample for name, count in (("standard", mine), ("glibc", other))
                    for sample in samples("p", name, [1.0] * rounds, metrics={"failures": count})]
            found = analyse.Analysis(data, {"cases": {"p": {"metric": "failures", "group": "p", "title": "p"}}})
            return [(v.ratio, v.verdict) for v in found.extremes("standard", analyse.METRIC, worst)]

        self.assertEqual(versus(3, 0, worst=True), [(None, "loss")])
        self.assertEqual(versus(3, 0, worst=False), [])
        self.assertEqual(versus(0, 3, worst=False), [(None, "win")])
        self.assertEqual(versus(0, 0, worst=True) + versus(0, 0, worst=False), [])
        self.assertEqual(versus(3, 0, worst=True, rounds=5), [])  # neither a ratio nor a verdict

    def test_latency(self):
        def latency(p, worst):
            return {"malloc": {"count": 10, "p50_ns": 20, "p9999_ns": p, "max_ns": worst}}

        data = samples("a", "standard", [1.0] * 6, latency=latency(100, 5000))
        data += samples("a", "glibc", [1.0] * 6, latency=latency(200, 1000))
        found = analyse.Analysis(data, {})
        self.assertEqual(found.latencies(), [("malloc", "p9999_ns"), ("malloc", "max_ns")])
        self.assertEqual(found.score("standard", "glibc", ("malloc", "p9999_ns")).wins, 1)
        self.assertAlmostEqual(found.versus("a", "standard", "glibc", ("malloc", "max_ns")).ratio, 5)

    def test_order_and_facts_come_from_meta(self):
        data = [sample for case in ("z.t2", "a", "unknown") for sample in samples(case, "mine", [1.0])]
        meta = {
            "cases": {"never-run": {"group": "n", "title": "n"},
                      "a": {"group": "first", "title": "A", "new": 1},
                      "z.t2": {"group": "second", "title": "Z", "threads": 2}},
            "allocators": [{"name": "mine", "kind": "given", "environment": {"X": "1"}},
                           {"name": "absent", "kind": "peer", "missing": "not installed"}],
        }
        found = analyse.Analysis(data, meta)
        self.assertEqual(list(found.cases), ["a", "z.t2", "unknown"])
        self.assertEqual(found.groups(), ["first", "second", "unknown"])
        self.assertEqual(found.cases["z.t2"].series, "z")
        self.assertEqual(found.allocators["mine"].environment, (("X", "1"),))
        self.assertEqual(found.rivals(), ["mine"])
        self.assertEqual(found.allocators["absent"].missing, "not installed")

    def test_cases_of_figures_are_in_no_mean(self):
        data = []
        for case in ("a", "only-figure"):
            data += samples(case, "standard", [1.0] * 6) + samples(case, "glibc", [2.0] * 6)
        apart = {"only-figure": {"group": "f", "title": "f", "full": False, "quick": False}}
        found = analyse.Analysis(data, {"cases": {"a": {"group": "a", "title": "a", "full": True}, **apart}})
        self.assertEqual((found.suite, found.groups()), (["a"], ["a"]))
        self.assertEqual(found.score("standard", "glibc", analyse.TIME).cases, 1)
        self.assertEqual(found.median("only-figure", "glibc", analyse.TIME), 2.0)
        alone = analyse.Analysis([s for s in data if s.case == "only-figure"], {"cases": apart})
        self.assertEqual(alone.suite, ["only-figure"])

    def test_rounds_are_those_that_every_case_of_the_suite_has(self):
        data = samples("a", "standard", [1.0] * 4) + samples("a", "glibc", [1.0]) + samples("b", "standard", [1.0] * 3)
        data += samples("figure", "standard", [1.0] * 8) + crashed("nobody", "standard")
        names = ("a", "b", "figure", "nobody")
        facts = {case: {"group": case, "title": case, "full": case != "figure"} for case in names}
        self.assertEqual(analyse.Analysis(data, {"cases": facts}).rounds, 3)
        self.assertEqual(analyse.Analysis(crashed("a", "standard"), {}).rounds, 0)

    def test_status_of_good_rows(self):
        self.assertEqual(analyse.Analysis(samples("a", "standard", [1.0]), {}).cell("a", "standard").status, OK)


if __name__ == "__main__":
    unittest.main()
