"""Memory that is returned: the cases, the folder, what the samples say, the picture, the recorded run in the documents."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import allocators, documents, execute, memory_return, packed, readme, store, tree  # noqa: E402
from spanalloc_bench.memory_return import CSV, META, NONE, PICTURE, Case, Sample  # noqa: E402
from spanalloc_bench.soak.memory import Memory  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
PROGRAM = os.path.join(tree.workloads(PLACES), memory_return.PROGRAM)
HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(SOURCE, "bench", "results", "memory-return")
MIB = 1024  # KiB


def meta_of(*names, cases=(Case(1000, 64),), **more):
    return {
        "started": "2026-11-28 01:02:03", "machine": {"processor": "P", "cores": 2, "system": "S", "kernel": "6.1-2", "libc": "L"},
        "source": {"commit": "0123456789abcdef"}, "settings": {"seconds": 15.0, "interval_s": 0.05, "megabytes": 200},
        "allocators": {name: {"version": "", "path": f"/x/lib{name}.so", "ours": name == "standard"} for name in names},
        "cases": [vars(case) for case in cases], "problems": {}, **more,
    }


def samples_of(name, before, soon, last, case=Case(1000, 64)):
    """Samples with these levels in MiB."""
    moments = ((-0.1, before), (0.0, before), (0.5, before), (0.99, soon), (1.01, before), (14.9, soon), (15.0, last))
    return [Sample(case.id, name, moment, mib * MIB - 24, 24) for moment, mib in moments]


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def put(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)


class ChoiceTest(unittest.TestCase):
    def test_cases_are_read_and_named(self):
        self.assertEqual(memory_return.case_of("1000:64"), Case(1000, 64))
        self.assertEqual(memory_return.case_of("65536:0:none"), Case(65536, 0, NONE))
        self.assertEqual(Case(1000, 64).title, "1,000 bytes, 1 of 64 kept, then light work")
        self.assertEqual(Case(65536, 0, NONE).title, "64 KiB, none kept, then sleep")
        self.assertEqual((Case(1000, 64).blocks(200), Case(10**9, 64).blocks(200)), (200_000, 1))
        self.assertEqual(len({case.id for case in memory_return.CASES}), len(memory_return.CASES))

    def test_bad_cases_say_what_is_expected(self):
        for text in ("", "1000", "8:64", "1000:-1", "1000:64:much", "2000000000:1", "1000:64:", "a:b", "1000:64\n"):
            with self.assertRaisesRegex(allocators.BadChoice, "expected SIZE:KEEP", msg=text):
                memory_return.case_of(text)

    def test_by_default_of_ours_only_the_product_takes_part_and_no_floor(self):
        names = [c.name for c in memory_return.contenders(PLACES, None, ())]
        self.assertEqual([name for name in names if name in (*libraries.LIBRARIES, allocators.FLOOR)], ["standard"])
        self.assertIn("glibc", names)

    def test_labels_are_moved_apart_and_no_further(self):
        self.assertEqual(memory_return.spread([5, 100], 10, 200), [5, 100])
        self.assertEqual(memory_return.spread([100, 5, 102], 10, 200), [96, 5, 106])
        self.assertEqual(memory_return.spread([199, 198, 150], 10, 200), [200, 190, 150])
        placed = memory_return.spread([200] * 5 + [16], 10, 210)
        self.assertEqual(sorted(placed), [16, 170, 180, 190, 200, 210])


class SamplesTest(Folder):
    SAMPLES = samples_of("standard", 200, 20, 16) + samples_of("glibc", 200, 195, 195)
    META = meta_of("standard", "glibc")

    def test_they_come_back_as_they_were_also_compressed(self):
        memory_return.write(self.folder, self.SAMPLES, self.META)
        self.assertEqual(memory_return.read(self.folder), (self.SAMPLES, self.META))
        table = packed.content(self.folder, CSV)
        os.remove(os.path.join(self.folder, CSV))
        packed.replace(os.path.join(self.folder, CSV + packed.SUFFIX), packed.pack(table))
        self.assertEqual(memory_return.read(self.folder), (self.SAMPLES, self.META))
        memory_return.write(self.folder, self.SAMPLES[:1], self.META)  # what was there goes
        self.assertEqual((os.listdir(self.folder).count(CSV + packed.SUFFIX), len(memory_return.read(self.folder)[0])), (0, 1))

    def test_names_of_an_older_version_are_read_as_todays(self):
        memory_return.write(self.folder, samples_of("oopsla15", 9, 8, 7), meta_of("oopsla15"))
        samples, meta = memory_return.read(self.folder)
        self.assertEqual(({s.allocator for s in samples}, list(meta["allocators"])), ({"scalloc"}, ["scalloc"]))

    def test_what_is_damaged_is_named(self):
        def refused(error, said):
            with self.assertRaisesRegex(error, said):
                memory_return.read(self.folder)

        refused(FileNotFoundError, "holds no samples: there is no memory-return.csv")
        memory_return.write(self.folder, self.SAMPLES, self.META)
        header = "case,allocator,seconds,rss_kib,page_tables_kib\n"
        self.put(CSV, "")
        refused(FileNotFoundError, "holds no samples: there is no memory-return.csv, or an empty one")
        for text in ("a,b\n1,2\n", "1000:64:small,glibc,1.0,1,2\n"):
            self.put(CSV, text)
            refused(store.Damaged, f"{CSV}: its columns are not those of this version")
        for line in ("1000:64:small,glibc,ten,1,2", "1000:64:small,glibc,1.0", "1000:64:small,glibc,1.0,1,2,3",
                     "1000:64:small,glibc,1.0,,2", ""):
            self.put(CSV, f"{header}1000:64:small,glibc,1.0,1,2\n{line}\n")
            refused(store.Damaged, f"{CSV}, line 3: ")
        memory_return.write(self.folder, self.SAMPLES, self.META)
        for text in ("no JSON", "[]", "{}", json.dumps({**self.META, "cases": []}), json.dumps({**self.META, "settings": {}})):
            self.put(META, text)
            refused(store.Damaged, f"{META}: ")
        os.remove(os.path.join(self.folder, META))
        refused(store.Damaged, f"has {CSV}, but no {META}")

    def test_the_newest_run_is_that_which_started_last(self):
        for name, started in (("b", "2026-01-02"), ("a", "2026-03-04"), ("c", "2026-02-03")):
            memory_return.write(os.path.join(self.folder, name), self.SAMPLES, {**self.META, "started": started})
        self.assertEqual(memory_return.newest(self.folder), os.path.join(self.folder, "a"))
        self.assertIsNone(memory_return.newest(os.path.join(self.folder, "gone")))


class ReportTest(unittest.TestCase):
    TWO = (Case(1000, 64), Case(65536, 8, NONE))

    def found(self):
        meta = meta_of("standard", "glibc", "other", cases=self.TWO, problems={self.TWO[1].id: {"other": "it ended"}})
        return [*samples_of("standard", 200, 20, 16), *samples_of("glibc", 190, 195, 194), *samples_of("other", 201, 200, 9.5),
                *samples_of("standard", 200, 199, 198, self.TWO[1]), *samples_of("glibc", 190, 191, 192, self.TWO[1])], meta

    def test_levels_are_the_last_before_a_moment(self):
        samples, meta = self.found()
        self.assertEqual(dict(memory_return.levels(samples, meta).loc[self.TWO[0].id, "standard"]),
                         {"before": 200 * MIB, "soon": 20 * MIB, "last": 16 * MIB})

    def test_the_table_marks_the_least_and_names_what_failed(self):
        self.assertEqual(memory_return.table(*self.found()), [
            ["1,000 bytes, 1 of 64 kept, then light work", "**20** / 16", "195 / 194", "200 / **9.5**"],
            ["64 KiB, 1 of 8 kept, then sleep", "**199** / **198**", "**191** / **192**", "failed"]])

    def test_losses_are_said(self):
        self.assertEqual(memory_return.losses(*self.found(), "soon"), (2, []))
        self.assertEqual(memory_return.losses(*self.found(), "last"),
                         (2, ["1,000 bytes, 1 of 64 kept, then light work: 16 MiB, other 9.5"]))
        text = memory_return.markdown(*self.found())
        self.assertIn("After 1 s `standard` is within 5 % of the least in 2 of 2 rows.\n", text)
        self.assertIn("After 15 s `standard` is within 5 % of the least in 1 of 2 rows. Another holds less in: 1,000 bytes", text)
        self.assertIn("65536:8:none, other: it ended.", text)
        self.assertIn("P, 2 cores, S, Linux 6.1, L, commit 0123456789, 2026-11-28.", text)

    def test_the_readme_says_what_the_first_case_did(self):
        text = memory_return.brief(*self.found())
        self.assertIn("fills 200 MB with blocks of 1,000 bytes, frees 63 of 64 of them, and goes on with little work. `standard` "
                      "goes from 200 MiB to 20 within 1 s. After 15 s the others hold 9.5 (other) to 194 (glibc): [", text)
        for names in (("glibc", "other"), ("standard",)):
            with self.assertRaisesRegex(allocators.BadChoice, "README.md tells of standard beside others"):
                memory_return.brief(self.found()[0], meta_of(*names))

    def test_the_picture_has_the_curves_of_the_first_case(self):
        samples, meta = self.found()
        lines = {line.get_gid(): list(zip(*line.get_data())) for axes in memory_return.picture(samples, meta).axes
                 for line in axes.get_lines() if line.get_gid()}
        self.assertEqual(list(lines), ["standard", "glibc", "other"])
        for name, points in lines.items():
            self.assertEqual(points, [(s.seconds, s.memory_kib / MIB) for s in samples
                                      if (s.case, s.allocator) == ("1000:64:small", name)])


class RunTest(Folder):
    """One process and its sampler. The clock decides nothing: what the kernel says is made up where a figure is expected."""

    ANY = allocators.named(PLACES, "glibc")

    def program(self, body):
        path = os.path.join(self.folder, "program")
        self.put("program", "#!/bin/sh\n" + body)
        os.chmod(path, 0o755)
        return path

    def run_once(self, body, looks=None):
        said = iter(looks) if looks else None
        with mock.patch.object(memory_return.memory, "of", lambda pid: next(said) if said else Memory(1, 1, 1)), \
                mock.patch.object(memory_return, "INTERVAL_S", 0.01):
            return memory_return.run_once(self.program(body), Case(1000, 64), self.ANY, 0.1, 1)

    def test_a_made_up_program_is_sampled_before_and_after(self):
        count = memory_return.BEFORE + 10
        found = self.run_once("echo full; read -r go; cat >/dev/null\n", [Memory(n, 1, 0) for n in range(count)])
        self.assertEqual([s.memory_kib for s in found], list(range(1, count + 1)))
        self.assertEqual([s.seconds <= 0 for s in found], [True] * memory_return.BEFORE + [False] * 10)
        self.assertEqual([s.seconds for s in found], sorted(s.seconds for s in found))

    def test_the_program_is_given_the_case(self):
        self.run_once(f'echo "$@" > {self.folder}/words; echo full; read -r go; cat >/dev/null\n')
        with open(os.path.join(self.folder, "words"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "--blocks 1000 --size 1000 --keep 64 --work small\n")

    def test_a_program_that_fails_has_no_figures(self):
        for body, said in (("echo wrong >&2; exit 3\n", "the program ended with exit code 3: wrong"),
                           ("kill -ABRT $$\n", "the program was killed by SIGABRT"),
                           ("echo full; read -r go; cat >/dev/null; exit 1\n", "the program ended with exit code 1")):
            with self.assertRaisesRegex(execute.RunFailed, said):
                self.run_once(body)

    def test_a_program_that_ends_before_its_time_has_no_figures(self):
        with self.assertRaisesRegex(execute.RunFailed, "ended with exit code 0"):
            self.run_once("echo full; read -r go; cat >/dev/null\n", [Memory(1, 1, 1)] * 7 + [None])

    def test_one_that_fails_leaves_the_others_their_figures(self):
        def once(program, case, allocator, seconds, megabytes):
            if allocator.name == "standard":
                raise execute.RunFailed("it ended")
            return samples_of(allocator.name, 3, 2, 1, case)

        chosen = [allocators.named(PLACES, name) for name in ("standard", "glibc")]
        with mock.patch.object(memory_return, "run_once", once), mock.patch.object(allocators, "require_used"), \
                mock.patch.object(execute, "prepare_this_process"):
            samples, problems = memory_return.run(PLACES, [Case(1000, 64)], chosen, 1, 1, lambda _: None)
        self.assertEqual(({s.allocator for s in samples}, problems), ({"glibc"}, {"1000:64:small": {"standard": "it ended"}}))


class WorkloadTest(unittest.TestCase):
    def run_program(self, *arguments, go="x", library=None):
        environment = {**execute.clean_environment(), **({"LD_PRELOAD": library} if library else {})}
        return subprocess.run([PROGRAM, *map(str, arguments)], input=go, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=600, check=False)

    def test_it_ends_with_its_input(self):
        for keep in (0, 1, 7, 64):
            for work in memory_return.WORK:
                run = self.run_program("--blocks", 1000, "--size", 16, "--keep", keep, "--work", work)
                self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "full\n", ""))
        self.assertEqual(self.run_program("--blocks", 10, go="").returncode, 0)

    def test_it_notices_a_wrong_malloc(self):
        folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, folder)
        wrong = os.path.join(folder, "broken_malloc.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", wrong, os.path.join(HERE, "broken_malloc.c")], check=True)
        run = self.run_program("--blocks", 10000, "--size", 100, "--keep", 3, library=wrong)
        self.assertEqual((run.returncode, run.stderr.count("\n")), (1, 1), run.stderr)

    def test_bad_options_and_help(self):
        for arguments in (("--size", 15), ("--blocks", 0), ("--work", "hard"), ("--keep",), ("7",)):
            run = self.run_program(*arguments)
            self.assertEqual((run.returncode, run.stderr.count("\n")), (2, 1), run.stderr)
        self.assertIn("beyond the papers", self.run_program("--help").stdout)


class CommandTest(Folder):
    def bench(self, *words, code=0):
        run = subprocess.run([COMMAND, "bench", "memory-return", "--no-build", *words], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600, check=False)
        self.assertEqual(run.returncode, code, run.stderr)
        return run

    def test_a_made_up_peer_beside_glibc(self):
        """The floor never frees, whatever the clock says: at each moment all blocks are resident."""
        floor = os.path.join(tree.workloads(PLACES), "libbump.so")
        if not os.path.isfile(floor):
            self.skipTest("libbump.so is not built")
        run = self.bench("--allocators", "glibc", "--with", f"mine={floor}", "--case", "1000:64", "--case", "5000:0:none",
                         "--seconds", "0.3", "--megabytes", "20", "--out", self.folder)
        samples, meta = memory_return.read(self.folder)
        self.assertEqual((list(meta["allocators"]), meta["problems"]), (["glibc", "mine"], {}))
        self.assertEqual({(s.case, s.allocator) for s in samples},
                         {(case, name) for case in ("1000:64:small", "5000:0:none") for name in ("glibc", "mine")})
        for sample in samples:
            if sample.allocator == "mine" or sample.seconds <= 0:
                self.assertGreaterEqual(sample.memory_kib, 20_000_000 // 1024)
        with open(os.path.join(self.folder, PICTURE), "rb") as file:
            self.assertEqual(file.read(4), b"\x89PNG")
        self.assertIn("1,000 bytes, 1 of 64 kept", run.stdout)
        self.assertEqual(self.bench("--show", "--out", self.folder).stdout, run.stdout)

    def test_bad_choices_are_one_line(self):
        for words, said in ((("--allocators", "nonesuch"), "--allocators nonesuch"), (("--case", "1000"), "expected SIZE:KEEP"),
                            (("--with", "x=/nonexistent"), "no file"), (("--show",), "holds no samples"),
                            (("--write", "--case", "1000:64"), "--write: the documents hold all cases")):
            run = self.bench(*words, "--out", self.folder, code=125)
            self.assertIn(said, run.stderr)
            self.assertEqual(run.stderr.strip().count("\n"), 0, run.stderr)


class RecordedTest(unittest.TestCase):
    """The run that the repository keeps, and what README.md and docs/results.md say of it."""

    def setUp(self):
        self.folder = memory_return.newest(RESULTS)
        self.assertIsNotNone(self.folder)
        self.samples, self.meta = memory_return.read(self.folder)

    def text(self, document):
        with open(os.path.join(SOURCE, document), encoding="utf-8") as file:
            return file.read()

    def test_it_is_a_whole_run(self):
        self.assertEqual(memory_return.cases_of(self.meta), list(memory_return.CASES))
        self.assertEqual((self.meta["settings"]["seconds"], self.meta["settings"]["megabytes"]), (15.0, memory_return.MEGABYTES))
        self.assertGreaterEqual(len(self.meta["allocators"]), 8)
        self.assertFalse(self.meta["source"]["dirty"])

    def test_the_documents_quote_it(self):
        for (document, marker), content in memory_return.quotes(self.folder, SOURCE).items():
            text = self.text(document)
            self.assertEqual(documents.between_markers(text, marker, content, document), text,
                             f"{document}: spanalloc bench memory-return --show --out {self.folder} --write")

    def test_the_document_describes_what_was_run(self):
        section = self.text(readme.RESULTS).partition("## Memory that is returned\n")[2].partition("\n## ")[0]
        settings = self.meta["settings"]
        for said in (f"blocks of {settings['megabytes']} MB in all", f"every {1000 * settings['interval_s']:.0f} ms",
                     f"left {memory_return.SOON_S:.0f} and {settings['seconds']:.0f} seconds after the first free",
                     f"within {100 * memory_return.NOTABLE:.0f} % of the least"):
            self.assertIn(said, section)

    def test_the_figures_of_the_readme_are_in_the_table(self):
        """By another way than the code that wrote them."""
        said = re.search(r"goes from (\d+) MiB to (\d+) within 1 s. After 15 s the others hold (\d+) \((\S+)\) to (\d+) \((\S+)\)",
                         self.text(readme.README))
        self.assertTrue(said)
        rows = [row for row in csv.DictReader(io.StringIO(packed.content(self.folder, CSV).decode()))
                if row["case"] == "1000:64:small"]

        def mib(name, until):
            mine = [row for row in rows if row["allocator"] == name and float(row["seconds"]) <= until]
            return round((int(mine[-1]["rss_kib"]) + int(mine[-1]["page_tables_kib"])) / 1024)

        self.assertEqual([mib("standard", 0), mib("standard", 1)], [int(said[1]), int(said[2])])
        others = {name: mib(name, 1e9) for name in {row["allocator"] for row in rows} - {"standard"}}
        self.assertEqual((others[said[4]], others[said[6]]), (int(said[3]), int(said[5])))
        self.assertEqual((min(others.values()), max(others.values())), (int(said[3]), int(said[5])))

    def test_the_picture_was_drawn_from_it(self):
        from PIL import Image

        path = os.path.join(SOURCE, memory_return.DOCUMENT_PICTURE)
        with Image.open(path) as image:
            self.assertEqual(image.text.get(memory_return.SAMPLES_OF), memory_return.checksum(self.samples))
            size, alpha = image.size, image.convert("RGBA").getextrema()[3]
        self.assertEqual(alpha, (255, 255), "a dark page would show through")
        self.assertGreaterEqual(size[0], 1200)
        with tempfile.TemporaryDirectory() as folder:
            again = os.path.join(folder, "again.png")
            memory_return.save_picture(self.samples, self.meta, again)
            with Image.open(again) as image:
                self.assertEqual(image.text[memory_return.SAMPLES_OF], memory_return.checksum(self.samples))
                self.assertEqual(image.size, size)
        self.assertLess(os.path.getsize(path), 200_000)


if __name__ == "__main__":
    unittest.main()
