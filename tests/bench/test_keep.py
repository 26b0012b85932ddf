"""Kept results: tables are read compressed as they are plain, and a run goes on from either."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools"), SOURCE]

from spanalloc_bench import allocators, attacks, keep, manycore, manycore_rows, medians, memory_return, packed, store  # noqa: E402
from papers.shared.figures import commands, records as figures  # noqa: E402,F401
from papers.shared.figures.figure import FORMAT  # noqa: E402
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

    def test_a_record_in_few_lines_is_the_same_record(self):
        record = {"a": 1, "b": {"c": {"d": [1, {"e": None}]}, "f": "\n\u00e9"}, "g": [{"h": 1.5}, [2]], "i": {}, "j": [], "k": ""}
        text = packed.laid_out(record)
        self.assertEqual(json.loads(text), record)
        self.assertEqual(list(json.loads(text)), list(record))
        self.assertEqual(text.count("\n"), 2 + len(record) + 4 + 2)

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


class KeepTest(Folder):
    """`spanalloc bench keep`; its medians need pandas."""

    def setUp(self):
        super().setUp()
        self.run_, self.kept = self.path("run"), self.path("results", "kept")

    def tree(self, folder):
        """{path below the folder: content} of all its files."""
        found = {}
        for below, _, names in os.walk(folder):
            for name in names:
                with open(os.path.join(below, name), "rb") as file:
                    found[os.path.relpath(os.path.join(below, name), folder)] = file.read()
        return found

    def add(self, folder, *rounds):
        with store.Store(folder) as results:
            for round_ in rounds:
                results.append(Sample("case", "glibc", round_, 1, elapsed_s=0.1 * round_, peak_kib=100.0 * round_))
        store.write_meta(folder, {"format": 1, "allocators": [], "git": {"commit": "0123456789"}})

    def put(self, name, content):
        with open(os.path.join(self.run_, name), "w", encoding="utf-8") as file:
            file.write(content)

    def test_what_is_kept_says_the_same_in_less_room(self):
        self.add(self.run_, *range(1, 400))
        for name in ("report.html", "standing.png", "group-x.png", store.SET_ASIDE):
            self.put(name, name)
        medians.write(self.run_)
        before = self.tree(self.run_)
        counted = keep.keep(self.run_, self.kept, ["standing.png"])
        after = self.tree(self.kept)
        self.assertEqual(self.tree(self.run_), before)
        self.assertEqual(set(after), {store.SAMPLES + ".xz", store.META, medians.MEDIANS, "standing.png"})
        self.assertEqual(store.samples(self.kept), store.samples(self.run_))
        self.assertEqual(store.read_meta(self.kept), store.read_meta(self.run_))
        for name in (medians.MEDIANS, "standing.png"):
            self.assertEqual(after[name], before[name], name)
        self.assertLess(len(after[store.SAMPLES + ".xz"]), len(before[store.SAMPLES]) / 3)
        self.assertEqual(counted, keep.Kept(4, sum(c.count(b"\n") for c in after.values()), sum(map(len, after.values()))))

    def test_medians_are_of_the_samples_that_are_kept(self):
        self.add(self.run_, 1)
        medians.write(self.run_)
        self.add(self.run_, 2, 3)
        keep.keep(self.run_, self.kept)
        with open(os.path.join(self.kept, medians.MEDIANS), encoding="utf-8") as file:
            self.assertIn("\ncase,glibc,3,3,0.2,", file.read())

    def test_a_run_goes_on_from_what_is_kept_and_that_can_be_kept_again(self):
        self.add(self.run_, 1)
        keep.keep(self.run_, self.kept)
        keep.keep(self.kept, self.path("again"))
        self.assertEqual(self.tree(self.path("again")), self.tree(self.kept))
        self.add(self.kept, 2)
        self.assertEqual([sample.round for sample in store.samples(self.kept)], [1, 2])

    def test_every_kind_of_results_is_kept(self):
        os.mkdir(self.run_)
        row = manycore_rows.Row("larson", "glibc", 4, "short", "0004", "", "", "", "f", operations=7)
        manycore_rows.append(self.run_, row)
        attacks.write(self.run_, [attacks.Row("double-free", 64, "glibc", "refused", "SIGABRT", 5)], {"attacks": []})
        with records.Folder(self.run_) as soak:
            soak.meta = {"settings": {"seed": 1}}
            soak.keep_only([])
            soak.append([records.Sample("redis", "glibc", 5.0, 0, "rest", 1000, 24, 500, 0.5, 0.0)])
            soak.write_meta()
        self.put(manycore.META, '{"qemu": "7"}')
        returned = {"cases": [{}], "allocators": {"glibc": {}}, "settings": {"seconds": 15}, "started": "2026"}
        memory_return.write(self.run_, [memory_return.Sample("1000:64:small", "glibc", 0.05, 1000, 24)], returned)
        keep.keep(self.run_, self.kept)
        self.assertEqual(set(os.listdir(self.kept)),
                         {f"{name}.xz" for name in (manycore_rows.CSV, attacks.CSV, records.CSV, memory_return.CSV)}
                         | {manycore.META, attacks.META, records.META, memory_return.META})
        for read in (manycore_rows.read, manycore.read_meta, attacks.read, records.read, records.read_meta,
                     memory_return.read):
            self.assertEqual(read(self.kept), read(self.run_))
            self.assertTrue(read(self.kept))

    def test_figures_are_kept_by_what_their_samples_do_not_say(self):
        record = {"format": FORMAT, "cores": 2, "processor": "P", "transparent_hugepages": "never", "absent": {"hoard": "why"},
                  "given": [], "data": [{"row": "standard", "measure": "machine code, bytes", "value": 7}, {"median": 1.0}]}
        os.makedirs(os.path.join(self.run_, "figures"))
        self.put("figures/supermalloc-1.json", json.dumps({**record, "claims": ["judged then"]}))
        self.put("figures/supermalloc-1.png", "a picture")
        self.add(os.path.join(self.run_, figures.VARIANTS), 1)
        keep.keep(self.run_, self.kept)
        self.assertEqual(set(self.tree(self.kept)), {figures.NOTES, *(
            os.path.join(figures.VARIANTS, name) for name in (store.SAMPLES + ".xz", store.META))})
        facts = record.pop("data")[:1]
        del record["format"]
        self.assertEqual(figures.notes(self.kept), {"supermalloc-1": {**record, "facts": facts}})

    def test_the_command_says_what_that_takes_and_refuses_in_one_line(self):
        code = ("import sys; from spanalloc_bench import cli; from spanalloc_cli import libraries; "
                "cli.main(libraries.Places('/nonexistent', '/nonexistent'), sys.argv[1:])")

        def command(*words):
            return subprocess.run([sys.executable, "-c", code, "keep", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}, text=True, timeout=600,
                                  check=False)

        self.add(self.run_, 1)
        self.put("standing.png", "a picture")
        run = command(self.run_, self.kept, "--picture", "standing.png")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, rf"^{self.kept}: 4 files, \d+ lines, 0\.00 MB\n$")
        self.assertEqual(len(self.tree(self.kept)), 4)
        run = command(self.run_, self.kept)
        self.assertEqual((run.returncode, run.stdout), (125, ""))
        self.assertRegex(run.stderr, r"^spanalloc bench: .* holds something already; choose another folder\n$")

    def test_what_cannot_be_kept_is_refused_and_nothing_is_written(self):
        def refused(error, said, *arguments):
            with self.assertRaisesRegex(error, said):
                keep.keep(*arguments)

        os.mkdir(self.run_)
        refused(FileNotFoundError, "holds no results", self.run_, self.kept)
        self.add(self.run_, 1)
        before = self.tree(self.folder)
        refused(allocators.BadChoice, "holds something already", self.run_, self.run_)
        refused(allocators.BadChoice, "holds something already", self.run_, os.path.join(self.run_, store.META))
        for name in ("standing.png", "../run/meta.json", self.run_):
            refused(allocators.BadChoice, "no file of that name", self.run_, self.kept, [name])
        with store.Store(self.run_):
            refused(store.InUse, "another run", self.run_, self.kept)
        self.assertEqual(self.tree(self.folder), before)
        os.mkdir(os.path.join(self.run_, "figures"))
        self.put("figures/scalloc-6a.json", json.dumps({"format": 1}))
        refused(allocators.BadChoice, "another version, scalloc-6a for one", self.run_, self.kept)
        self.assertFalse(os.path.exists(self.kept))


class RecordedTest(unittest.TestCase):
    """The results that the repository keeps."""

    MOST_LINES, MOST_BYTES = 20_000, 5_000_000
    RESULTS = os.path.join(SOURCE, "bench", "results")

    def files(self):
        """What is tracked or will be; outside a repository, all that there is."""
        git = ["git", "-c", f"safe.directory={SOURCE}", "-C", SOURCE, "ls-files", "-z", "--cached", "--others",
               "--exclude-standard", "--", "bench/results"]
        if os.path.exists(os.path.join(SOURCE, ".git")) and shutil.which("git"):
            run = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True)
            found = [os.path.join(SOURCE, name) for name in run.stdout.split("\0") if name]
            return [path for path in found if os.path.isfile(path)]
        return [os.path.join(below, name) for below, _, names in os.walk(self.RESULTS) for name in names]

    def folders(self, name):
        """The folders that hold the table of that name."""
        return sorted(below for below, _, _ in os.walk(self.RESULTS) if packed.path(below, name))

    def test_they_take_little_room(self):
        found = keep.count(self.files())
        self.assertGreater(found.files, 10)
        self.assertLessEqual(found.lines, self.MOST_LINES, "keep newer runs in the place of older ones: bench/results/README.md")
        self.assertLessEqual(found.bytes, self.MOST_BYTES, "keep newer runs in the place of older ones: bench/results/README.md")

    def test_every_table_can_be_read(self):
        for name, read in ((store.SAMPLES, store.samples), (manycore_rows.CSV, manycore_rows.read),
                           (attacks.CSV, attacks.read), (records.CSV, records.read), (memory_return.CSV, memory_return.read)):
            self.assertTrue(self.folders(name), name)
            for folder in self.folders(name):
                self.assertTrue(read(folder), folder)

    def test_the_documents_of_the_papers_are_what_the_samples_say(self):
        from papers.shared.figures import documents

        folders = [folder for folder in self.folders(store.SAMPLES) if figures.notes(folder)]
        self.assertTrue(folders)
        for name, text in documents(*folders).items():
            with open(os.path.join(SOURCE, name), encoding="utf-8") as file:
                self.assertEqual(text, file.read(), f"spanalloc bench papers --results {' '.join(folders)} --write")


if __name__ == "__main__":
    unittest.main()
