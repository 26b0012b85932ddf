"""The attacks: how a process's end becomes an outcome, outcomes a table, and the table a part of docs/security.md."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import allocators, attacks, documents, tree  # noqa: E402
from spanalloc_bench.attacks import (  # noqa: E402
    CAUGHT, CRASH, FAILED, HANG, HARM, NO_ANSWER, REFUSED, UNNOTICED, Attack, End, Row,
)
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
PROGRAM = os.path.join(tree.workloads(PLACES), attacks.PROGRAM)
HANG_S = 500  # less than what the whole command is given
BEGUN, RETURNED = ("attacking",), ("attacking", "returned")

META = {
    "started": "2026-11-23 01:02:03",
    "machine": {"system": "A system", "kernel": "6.1.0-9", "libc": "glibc 2.36"},
    "source": {"commit": "0123456789abcdef"},
    "allocators": {"standard": {"version": "spanalloc 1.2"}, "other": {"version": "libother2 3.4-5"}, "mine": {"version": ""}},
    "attacks": [
        {"name": "first", "group": "freed twice", "sizes": [64, 400, 30000], "repeat": 5, "title": "a, a"},
        {"name": "tells", "group": "what memory tells", "sizes": [64], "repeat": 5, "title": "addresses"},
    ],
}


class ClassifyTest(unittest.TestCase):
    def outcome(self, lines, **end):
        return attacks.classify(End(tuple(lines), **end))[0]

    def test_an_abort_is_refused_only_at_the_call_itself(self):
        self.assertEqual(self.outcome(BEGUN, signal=signal.SIGABRT), REFUSED)
        self.assertEqual(self.outcome(RETURNED, signal=signal.SIGABRT), CAUGHT)

    def test_an_allocator_may_end_the_process_without_a_signal(self):
        self.assertEqual(self.outcome(BEGUN, code=1), REFUSED)
        self.assertEqual(self.outcome(RETURNED, code=99), CAUGHT)

    def test_other_signals_are_crashes(self):
        for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE):
            for lines in (BEGUN, RETURNED):
                self.assertEqual(attacks.classify(End(lines, signal=number)), (CRASH, signal.Signals(number).name))

    def test_what_was_observed_counts(self):
        for word in attacks.HARMFUL:
            self.assertEqual(attacks.classify(End((*RETURNED, word))), (HARM, word))
        for word in attacks.HARMLESS:
            self.assertEqual(attacks.classify(End((*RETURNED, word))), (UNNOTICED, word))

    def test_a_hang_is_one_wherever_it_hangs(self):
        for lines in ((), BEGUN, RETURNED):
            self.assertEqual(self.outcome(lines, hung=True, signal=signal.SIGKILL), HANG)

    def test_what_was_not_attacked_says_nothing(self):
        self.assertEqual(self.outcome(("cannot-tell",)), NO_ANSWER)
        self.assertEqual(self.outcome((), signal=signal.SIGABRT), FAILED)
        self.assertEqual(attacks.classify(End((), code=2, said="no thread")), (FAILED, "no thread"))
        self.assertEqual(self.outcome((*RETURNED, "a word that nobody knows")), FAILED)

    def test_distances(self):
        pairs = [(0x5000_0000_0000, 0x7000_0000_0000), (0x5000_0000_1000, 0x7000_0000_0000),
                 (0x5000_0001_0000, 0x7000_0001_0000)]
        self.assertEqual(attacks.spread(pairs), (1, 2))
        self.assertEqual(attacks.spread([(1 << 46, 5)] * 3), (0, 1))


class TableTest(unittest.TestCase):
    def test_names_of_an_older_version_are_read_as_todays(self):
        rows = [Row("first", 64, name, HARM, "", 1) for name in ("oopsla15", "scalloc", "superblock")]
        known = {"oopsla15": "/x/libspanalloc-oopsla15.so", "scalloc": "/usr/lib/libscalloc.so",
                 "superblock": "/x/libspanalloc-superblock.so"}
        with tempfile.TemporaryDirectory() as folder:
            attacks.write(folder, rows, {"allocators": {name: {"version": "", "path": path} for name, path in known.items()}})
            read, meta = attacks.read(folder)
        self.assertEqual([row.allocator for row in read], ["scalloc", "scalloc-original", "a2alloc"])
        self.assertEqual(list(meta["allocators"]), ["scalloc", "scalloc-original", "a2alloc"])

    def rows(self, name, *ends):
        return [Row("first", size, name, outcome, "", runs) for size, outcome, runs in ends]

    def test_the_worst_is_shown_and_marked_where_not_all_ended_so(self):
        rows = self.rows("other", (64, CAUGHT, 3), (64, HARM, 1), (64, UNNOTICED, 1))
        self.assertEqual(attacks.worst(rows), "harm*")
        self.assertEqual(attacks.worst(rows[:1]), "caught")
        self.assertEqual(attacks.worst([]), "")

    def test_a_run_that_says_nothing_hides_none_that_does(self):
        for nothing in (FAILED, NO_ANSWER):
            for outcome in (REFUSED, CAUGHT, UNNOTICED, HANG, CRASH, HARM):
                rows = self.rows("other", (64, outcome, 4), (64, nothing, 1))
                self.assertEqual(attacks.worst(rows), outcome + "*")
        self.assertEqual(attacks.worst(self.rows("other", (64, FAILED, 4), (64, NO_ANSWER, 1))), "failed*")

    def test_harms_of_two_kinds_are_one_outcome(self):
        rows = [Row("first", 64, "other", HARM, word, 2) for word in ("twice", "overlapping")]
        self.assertEqual(attacks.worst(rows), "harm")

    def test_sizes_are_named_where_they_differ(self):
        same = self.rows("other", (64, REFUSED, 5), (400, REFUSED, 5), (30000, REFUSED, 5))
        self.assertEqual(attacks.cell(same, (64, 400, 30000)), "refused")
        apart = self.rows("other", (64, REFUSED, 5), (400, HARM, 5), (30000, REFUSED, 5))
        self.assertEqual(attacks.cell(apart, (64, 400, 30000)), "refused (64, 30k); harm (400)")
        self.assertEqual(attacks.sizes_text([64, 400, 2000, 100000], [64, 400, 2000, 30000, 100000]), "64 to 2k, 100k")
        self.assertEqual([attacks.size_text(size) for size in (64, 2000, 4_000_000, 2500)], ["64", "2k", "4M", "2500"])

    def test_form(self):
        rows = [*self.rows("standard", (64, REFUSED, 5), (400, REFUSED, 5), (30000, REFUSED, 5)),
                *self.rows("other", (64, HARM, 4), (64, CRASH, 1), (400, CAUGHT, 5), (30000, CAUGHT, 5)),
                *self.rows("mine", (64, HANG, 1), (400, HANG, 1), (30000, HANG, 1)),
                Row("tells", 64, "standard", UNNOTICED, "tells-nothing", 5),
                Row("tells", 64, "other", HARM, "tells-library-address", 5)]
        headings, groups = attacks.table(rows, META)
        self.assertEqual(headings, ["attack", "standard", "other", "mine"])
        self.assertEqual(groups, [
            ("freed twice", [["a, a", "refused", "harm* (64); caught (400, 30k)", "hang"]]),
            ("what memory tells", [["addresses", "none", "library", ""]]),
        ])
        text = attacks.markdown(rows, META)
        self.assertIn("| freed twice | standard<br>1.2 | other<br>3.4-5 | mine |\n|---|---|---|---|\n"
                      "| a, a | refused | **harm**\\* (64)<br>caught (400, 30k) | hang |\n", text)
        self.assertIn("A system, Linux 6.1.0, glibc 2.36, commit 0123456789, 2026-11-23.", text)
        for line in text.splitlines():
            if line.startswith("|"):
                self.assertIn(line.count("|"), (3, 5), line)

    def test_each_attack_is_counted_once_by_its_worst_end(self):
        rows = [*self.rows("standard", (64, REFUSED, 4), (64, CAUGHT, 1), (400, REFUSED, 5), (30000, NO_ANSWER, 5)),
                *self.rows("other", (64, HARM, 1), (64, CRASH, 4), (400, CRASH, 5), (30000, CAUGHT, 4), (30000, CRASH, 1)),
                *self.rows("mine", (64, HARM, 4), (64, FAILED, 1), (400, UNNOTICED, 4), (400, NO_ANSWER, 1), (30000, FAILED, 5)),
                Row("tells", 64, "other", HARM, "tells-library-address", 5)]
        counted = attacks.tally(rows, META)
        self.assertEqual([line[1:] for line in counted],
                         [["2", "0", "0"], ["0", "2", "0"], ["0", "0", "0"], ["0", "0", "1"], ["0", "1", "1"],
                          ["1", "0", "0"], ["0", "0", "1"]])
        self.assertIn("noticed", counted[0][0])
        self.assertIn("other than SIGABRT", counted[1][0])
        self.assertIn("| of 3 attacks (each size is one) |", attacks.markdown(rows, META))

    def test_a_record_with_an_attack_missing_is_not_counted(self):
        rows = [row for name in META["allocators"] for row in self.rows(name, (64, HARM, 5), (400, HARM, 5), (30000, HARM, 5))]
        self.assertEqual(attacks.tally(rows, META)[4][1:], ["3", "3", "3"])
        for gone in range(len(rows)):
            with self.assertRaisesRegex(ValueError, "no outcome of first"):
                attacks.tally(rows[:gone] + rows[gone + 1:], META)

    def test_it_takes_its_place_in_a_document_once(self):
        text = "before\n<!-- attacks:begin -->\nold\n<!-- attacks:end -->\nbehind\n"
        once = documents.between_markers(text, "attacks", "new\n")
        self.assertEqual(once, "before\n<!-- attacks:begin -->\n\nnew\n<!-- attacks:end -->\nbehind\n")
        self.assertEqual(documents.between_markers(once, "attacks", "new\n"), once)

    def test_the_document_has_the_place(self):
        with open(os.path.join(SOURCE, attacks.DOCUMENT), encoding="utf-8") as file:
            documents.between_markers(file.read(), "attacks", "", "docs/security.md")

    def test_rows_come_back_as_they_were(self):
        folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, folder)
        rows = [Row("first", 64, "other", FAILED, 'a "word", and another', 5)]
        attacks.write(folder, rows, META)
        self.assertEqual(attacks.read(folder), (rows, META))
        with self.assertRaisesRegex(FileNotFoundError, "holds no outcomes"):
            attacks.read(os.path.join(folder, "none"))


class AttackTest(unittest.TestCase):
    def bench(self, *arguments):
        return subprocess.run([COMMAND, "bench", "attacks", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=600)

    def test_the_program_says_what_it_can(self):
        known = attacks.catalogue(PLACES)
        self.assertEqual(len({attack.name for attack in known}), len(known))
        self.assertIn(Attack("double-free", "freed twice", (64, 400, 2000, 30000, 100000, 4000000), 5, "a, a"), known)
        self.assertIn(attacks.ADDRESSES, {attack.name for attack in known})
        for arguments in ((), ("nonesuch",), ("double-free", "1"), ("double-free", "64", "more")):
            run = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
            self.assertEqual(run.returncode, 0 if not arguments else 2)
            self.assertIn("usage: attacks NAME", run.stdout + run.stderr)

    def test_blocks_of_every_size_are_in_use_around(self):
        # Else the first pages of a fresh heap would stand in for the allocator.
        sizes = {size for attack in attacks.catalogue(PLACES) for size in attack.sizes}
        for size in (*sizes, 1000):
            told = subprocess.run([PROGRAM, "around", str(size)], capture_output=True, text=True, check=True).stdout
            in_use = dict(map(int, line.split()) for line in told.splitlines())
            # Of the attacked size 16 more, to be attacked, of which one is free.
            self.assertEqual(in_use, {**dict.fromkeys(sizes, 64), size: 64 + 16 - 1})

    def test_two_attacks_on_glibc(self):
        if allocators.named(PLACES, "glibc").missing:
            self.skipTest("no glibc here")
        folder = tempfile.mkdtemp(prefix="spanalloc-test-")
        self.addCleanup(shutil.rmtree, folder)
        arguments = ("--attacks", "double-free-reused,free-stack", "--allocators", "glibc", "--out", folder)
        run = self.bench(*arguments, "--rounds", "2", "--hang", str(HANG_S))
        self.assertEqual(run.returncode, 0, run.stderr)
        rows, meta = attacks.read(folder)
        self.assertEqual((list(meta["allocators"]), meta["hang_s"]), (["glibc"], HANG_S))
        self.assertIn(f"no end within {HANG_S} s", run.stdout)
        # Nobody can tell the first from a right free; the second is no address of a block.
        self.assertIn(Row("double-free-reused", 64, "glibc", HARM, "twice", 2), rows)
        self.assertIn(Row("free-stack", 64, "glibc", REFUSED, "SIGABRT", 2), rows)
        for words in ("a, when a has been handed out again", "refused", "harm"):
            self.assertIn(words.split()[0], run.stdout)
        shown = self.bench("--show", "--out", folder)
        self.assertEqual((shown.returncode, shown.stdout), (0, run.stdout))

    def test_ours_is_not_harmed_by_a_plain_double_free(self):
        known = {attack.name: attack for attack in attacks.catalogue(PLACES)}
        ours = allocators.named(PLACES, "standard")
        for size in known["double-free"].sizes:
            rows = attacks.attack_once_and_again(PROGRAM, known["double-free"], size, ours, 1, HANG_S)
            self.assertEqual([row.outcome for row in rows], [REFUSED], size)

    def test_threads_that_attack_have_freed_before(self):
        # The slow path of free, which takes a thread's first frees, looks whether the block is free; the fast path does not.
        known = {attack.name: attack for attack in attacks.catalogue(PLACES)}
        ours = allocators.named(PLACES, "standard")
        for name in ("double-free-aba", "double-free-elsewhere", "double-free-thread-end"):
            rows = attacks.attack_once_and_again(PROGRAM, known[name], 64, ours, 1, HANG_S)
            self.assertEqual([row.outcome for row in rows], [CAUGHT], name)

    def test_a_hang_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            slow = os.path.join(folder, "slow")
            with open(slow, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho attacking\nexec sleep 100000\n")
            os.chmod(slow, 0o755)
            end = attacks.run_once(slow, "any", 64, allocators.named(PLACES, "standard"), hang_s=0.5)
        self.assertEqual(attacks.classify(end), (HANG, ""))

    def test_what_is_unknown_is_named_with_what_there_is(self):
        for option, name, hint in (("--attacks", "nonesuch", "double-free"), ("--allocators", "nonesuch", "standard")):
            run = self.bench(option, name)
            self.assertEqual(run.returncode, 125)
            self.assertIn(f"{option} {name}", run.stderr)
            self.assertIn(hint, run.stderr)
        run = self.bench("--write", "--attacks", "double-free")
        self.assertEqual(run.returncode, 125)
        self.assertIn("--write", run.stderr)


if __name__ == "__main__":
    unittest.main()
