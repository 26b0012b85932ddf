"""Kept results: tables are read compressed as they are plain, and a run goes on from either."""

import os
import shutil
import sys
import tempfile
import unittest

SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import attacks, manycore_rows, packed, store  # noqa: E402
from spanalloc_bench.model import Sample  # noqa: E402
from spanalloc_bench.soak import records  # noqa: E402


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def contents(self):
        found = {}
        for name in os.listdir(self.folder):
            with open(self.path(name), "rb") as file:
                found[name] = file.read()
        return found

    def pack(self, name):
        """NAME becomes NAME.xz."""
        with open(self.path(name), "rb") as file:
            content = file.read()
        with open(self.path(name + packed.SUFFIX), "wb") as file:
            file.write(packed.pack(content))
        os.remove(self.path(name))


class PackedTest(Folder):
    def add(self, *rounds):
        with store.Store(self.folder) as results:
            for round_ in rounds:
                results.append(Sample("case", "glibc", round_, 1, elapsed_s=0.1 * round_))

    def rounds(self):
        return [sample.round for sample in store.samples(self.folder)]

    def test_samples_are_read(self):
        self.add(1, 2)
        plain = store.samples(self.folder)
        self.pack(store.SAMPLES)
        self.assertEqual(os.listdir(self.folder), [store.SAMPLES + ".xz"])
        self.assertEqual(store.samples(self.folder), plain)
        self.assertEqual(len(plain), 2)

    def test_a_run_goes_on(self):
        self.add(1, 2)
        self.pack(store.SAMPLES)
        self.add(3)
        self.assertEqual(self.rounds(), [1, 2, 3])
        self.assertEqual(os.listdir(self.folder), [store.SAMPLES])

    def test_samples_are_set_aside(self):
        self.add(1, 2, 3)
        self.pack(store.SAMPLES)
        with store.Store(self.folder) as results:
            results.set_aside(lambda sample: sample.round == 2)
        self.assertEqual(self.rounds(), [1, 3])

    def test_what_a_kill_left_of_unpacking_is_not_read_twice_and_goes_on(self):
        self.add(1)
        self.pack(store.SAMPLES)
        before = self.contents()
        packed.unpack(self.folder, store.SAMPLES)
        for name, content in before.items():
            with open(self.path(name), "wb") as file:
                file.write(content)
        self.add(2)
        self.assertEqual(self.rounds(), [1, 2])

    def test_a_damaged_file_is_named_and_stays(self):
        self.add(1, 2, 3)
        self.pack(store.SAMPLES)
        name = store.SAMPLES + packed.SUFFIX
        with open(self.path(name), "r+b") as file:
            file.truncate(os.path.getsize(self.path(name)) - 5)
        before = self.contents()
        for use in (store.samples, store.Store, lambda folder: packed.unpack(folder, store.SAMPLES)):
            with self.assertRaisesRegex(store.Damaged, "samples.csv.xz: "):
                use(self.folder)
        self.assertEqual(self.contents(), before)

    def test_simulations_are_read_and_go_on(self):
        def row(length):
            return manycore_rows.Row("larson", "glibc", 4, length, "0004", "arguments", "", "", "f", operations=7)

        manycore_rows.append(self.folder, row("short"))
        self.pack(manycore_rows.CSV)
        self.assertEqual(list(manycore_rows.read(self.folder).values()), [row("short")])
        manycore_rows.append(self.folder, row("long"))
        self.assertEqual(list(manycore_rows.read(self.folder).values()), [row("short"), row("long")])
        self.assertEqual(os.listdir(self.folder), [manycore_rows.CSV])

    def test_outcomes_of_attacks_are_read_and_replaced(self):
        row, other = (attacks.Row("double-free", 64, "glibc", outcome, "SIGABRT", 5) for outcome in ("refused", "caught"))
        attacks.write(self.folder, [row], {"attacks": []})
        self.pack(attacks.CSV)
        self.assertEqual(attacks.read(self.folder), ([row], {"attacks": []}))
        attacks.write(self.folder, [other], {"attacks": []})
        self.assertEqual(attacks.read(self.folder)[0], [other])
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([attacks.CSV, attacks.META]))

    def test_samples_of_a_soak_are_read_and_go_on(self):
        def sample(program):
            return records.Sample(program, "glibc", 5.0, 0, "rest", 1000, 24, 500, 0.5, 0.0)

        with records.Folder(self.folder) as soak:
            soak.keep_only([])
            soak.append([sample("redis"), sample("node")])
        self.pack(records.CSV)
        self.assertEqual(records.read(self.folder), [sample("redis"), sample("node")])
        with records.Folder(self.folder) as soak:
            soak.keep_only(["redis"])
            soak.append([sample("mariadb")])
        self.assertEqual(records.read(self.folder), [sample("redis"), sample("mariadb")])
        self.assertEqual(os.listdir(self.folder), [records.CSV])
        self.pack(records.CSV)
        with records.Folder(self.folder) as soak:
            soak.append([sample("node")])
        self.assertEqual([s.program for s in records.read(self.folder)], ["redis", "mariadb", "node"])


if __name__ == "__main__":
    unittest.main()
