"""The a2alloc engine's counts of itself, and the tables that are made of them. Nothing here judges speed."""

import os
import subprocess
import sys
import unittest

SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.abspath(os.path.join(os.path.dirname(__file__), *[".."] * 3))
sys.path[:0] = [SOURCE, os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from papers.a2alloc.figures import future_work, steps, tables  # noqa: E402
from spanalloc_bench import documents  # noqa: E402
from spanalloc_bench.model import Allocator, Kind  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

PROGRAM = os.path.join(os.environ["SPANALLOC_TEST_BENCH"], steps.PROGRAM)
BUILD = os.path.dirname(os.environ["SPANALLOC_TEST_BENCH"])
CLASSES, FULLEST, SHARED = (f"a2alloc-{what}" for what in ("size-classes", "fullest-first", "shared-records"))


def metrics(config, trace):
    return tables.record(PROGRAM, config, trace)["metrics"]


class StepsTest(unittest.TestCase):
    def test_every_run_counts_the_same(self):
        for config in ("a2alloc", "kheap"):
            self.assertEqual(metrics(config, "larson"), metrics(config, "larson"))

    def test_size_classes_look_at_one_free_block(self):
        self.assertEqual(metrics(CLASSES, "larson")["blocks_looked_at"], 1)
        self.assertGreater(metrics("a2alloc", "larson")["blocks_looked_at"], 2)

    def test_k_is_what_an_unused_heap_keeps(self):
        self.assertEqual([metrics(config, "requests")["kept_kib"] for config in ("k-0", "k-4", "a2alloc")],
                         [0, 4 * 64, 8 * 64])
        self.assertGreater(metrics("k-0", "requests")["fetched"], metrics("a2alloc", "requests")["fetched"])

    def test_f_is_what_a_used_heap_keeps(self):
        kept = [metrics(config, "loaded")["kept_kib"] for config in ("f-0", "f-1", "a2alloc", "f-10000")]
        self.assertEqual(kept, sorted(kept, reverse=True))
        self.assertEqual(len(set(kept)), 4)

    def test_records_share_superblocks(self):
        self.assertEqual([metrics(config, "threads")["record_superblocks"] for config in ("a2alloc", SHARED, "kheap")],
                         [64, 1, 0])

    def test_a_choice_that_is_none_is_refused(self):
        run = subprocess.run([PROGRAM, "--config", "nonesuch"], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 2)
        self.assertIn("expected one of", run.stderr)


class FactsTest(unittest.TestCase):
    def test_what_is_no_library_is_counted_too(self):
        places = libraries.Places(os.path.join(BUILD, "lib"), os.path.join(BUILD, "bin"))
        found = steps.facts(places, [Allocator(name, "", Kind.ABLATION, missing="not built: x") for name in (FULLEST, "glibc")])
        self.assertEqual({name for name, _ in found}, {FULLEST})
        self.assertEqual({key for _, key in found}, set(steps._COUNTED))

    def test_configs_are_called_alike(self):
        known = subprocess.run([PROGRAM, "--help"], capture_output=True, text=True, check=True).stdout
        for name in (*future_work.CONFIGS, "kheap", *(config for _, rows in tables.PARAMETERS for config, _ in rows)):
            self.assertRegex(known, rf"[(|]{name}[|)]")


class TablesTest(unittest.TestCase):
    def test_numbers_are_short_and_plain(self):
        self.assertEqual([tables.number(n) for n in (1280.0, 35.6331, 3.640625, 0.00969, 0.0, 1e-5)],
                         ["1,280", "35.6", "3.64", "0.00969", "0", "0"])

    def test_what_ran_in_turn_counts(self):
        entry = {"series": "larson, 1 thread", "measure": "time", "unit": "ns/op"}
        outcome = {"data": [{**entry, "row": "glibc", "median": 1.0},
                            {**entry, "row": "glibc, in turn with its variants", "median": 2.0},
                            {"row": "kheap", "measure": "for records", "value": 3}]}
        self.assertEqual(tables.numbers(outcome), {("glibc", "time, ns/op, larson, 1 thread"): 2.0, ("kheap", "for records"): 3})

    def test_the_document_has_the_places(self):
        with open(os.path.join(SOURCE, tables.DESIGN), encoding="utf-8") as file:
            text = file.read()
        for name in ("parameters", "future"):
            changed = documents.between_markers(text, name, "new\n\n", tables.DESIGN)
            self.assertIn(f"<!-- {name}:begin -->\n\nnew\n\n<!-- {name}:end -->", changed)
        with self.assertRaises(SystemExit):
            documents.between_markers(text, "nonesuch", "new", tables.DESIGN)

    def test_the_document_says_what_the_engine_counts(self):
        """The parameters' tables without times are exact: what stands there is what comes out."""
        with open(os.path.join(SOURCE, tables.DESIGN), encoding="utf-8") as file:
            text = file.read()
        for trace, metric in (("larson", "blocks_looked_at"), ("requests", "fetched"), ("loaded", "kept_kib")):
            column = [(t, m) for _, t, m in tables.COUNTED].index((trace, metric)) + 2
            for label, config in (("**8**", "a2alloc"), ("**32**", CLASSES), ("128 KiB", "size-128k")):
                row = next(line for line in text.splitlines() if line.startswith(f"| {label} |"))
                self.assertEqual(row.split("|")[column].strip(), tables.number(metrics(config, trace)[metric]), row)


if __name__ == "__main__":
    unittest.main()
