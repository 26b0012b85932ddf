"""Of which commits recorded results are: those in the repository, and what is found to be wrong with a record."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ.get("SPANALLOC_TEST_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools")]

from spanalloc_bench import provenance, store, words  # noqa: E402
from spanalloc_bench.model import Sample  # noqa: E402

MADE = 1_700_000_000  # when the commits of the test's repository were made


class RepositoryTest(unittest.TestCase):
    def test_each_record_names_commits_of_the_history_older_than_its_samples(self):
        history = provenance.History(SOURCE)
        if history.missing:
            self.skipTest(history.missing)
        folder = os.path.join(SOURCE, "bench/results")
        self.assertGreater(len(provenance.records(folder)), 10)
        self.assertEqual(provenance.problems(history, folder), {})


class RecordTest(unittest.TestCase):
    def setUp(self):
        history = provenance.History(SOURCE)
        if history.missing == "git is not installed":
            self.skipTest(history.missing)
        scratch = tempfile.TemporaryDirectory(prefix="spanalloc-test-")
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.results = os.path.join(self.folder, "results")
        os.mkdir(self.results)
        self.git("init", "--quiet")
        self.commit = self.made()
        self.history = provenance.History(self.folder)

    def git(self, *arguments):
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "a"), ("EMAIL", "a@b"), ("DATE", f"{MADE} +0000"))}
        return subprocess.run(["git", "-C", self.folder, *arguments], env={**os.environ, **who}, check=True,
                              capture_output=True, text=True).stdout.strip()

    def made(self):
        self.git("commit", "--quiet", "--allow-empty", "-m", "A commit")
        return self.git("rev-parse", "HEAD")

    def record(self, started=MADE + 60, name=store.META, **meta):
        path = os.path.join(self.results, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(meta, file)
        with store.Store(self.results) as samples:
            samples.append(Sample("case", "glibc", 1, 1, elapsed_s=1, started=started))
        return path

    def wrong(self):
        return list(provenance.problems(self.history, self.results).values())

    def test_samples_of_a_commit_of_the_history(self):
        self.record(git={"commit": self.commit}, started=MADE + 60)
        self.assertEqual(self.wrong(), [])

    def test_samples_that_are_older_than_their_commit(self):
        self.record(git={"commit": self.commit}, started=MADE - 1)
        self.assertEqual(self.wrong(), [f"samples are older than {self.commit[:10]}"])

    def test_a_commit_that_was_rewritten(self):
        self.git("commit", "--quiet", "--amend", "--allow-empty", "-m", "Another one")
        self.record(git={"commit": self.commit})
        self.assertEqual(self.wrong(), [f"{self.commit[:10]} is not in the history"])

    def test_a_commit_that_nobody_has(self):
        self.record(git={"commit": "0" * 40})
        self.assertEqual(self.wrong(), ["0000000000 is not in the history"])

    def test_a_record_without_a_commit(self):
        self.record(git={})
        self.assertEqual(self.wrong(), ["names no commit"])

    def test_each_run_is_of_its_own_commit(self):
        later = self.made()
        runs = [{"started": "2023-11-14T22:13:19+0000", "git": {"commit": self.commit}},  # a second too early
                {"started": "2023-11-14T22:14:20+0000", "git": {"commit": later, "dirty": True}}]
        self.record(git={"commit": later}, runs=runs)
        self.assertEqual(self.wrong(), [f"samples are older than {self.commit[:10]}"])
        self.record(git={"commit": later}, runs=runs[1:])
        self.assertEqual(self.wrong(), [])

    def test_records_of_other_commands(self):
        self.record(name="soak-meta.json", source={"commit": self.commit},
                    programs={"redis": {"started": "2023-11-14 22:13:19"}, "node": {"started": "2023-11-14 22:14:20"}})
        self.assertEqual(self.wrong(), [f"samples are older than {self.commit[:10]}"])

    def test_a_note_says_what_is_known_instead(self):
        self.record(git={"commit": "0" * 40}, commit_note="lost")
        self.assertEqual(self.wrong(), [])

    def test_a_note_that_is_not_so(self):
        self.record(git={"commit": self.commit}, commit_note="lost")
        self.assertEqual(self.wrong(), ["nothing is wrong with the commit, but its commit_note says: lost"])


class WordsTest(unittest.TestCase):
    def test_each_commit_is_said_once(self):
        runs = [{"git": {"commit": "a" * 40}}, {"git": {"commit": "b" * 40, "dirty": True}}, {"git": {"commit": "a" * 40}}]
        self.assertEqual(words.commit({"git": {"commit": "b" * 40}, "runs": runs}, 3), "aaa, bbb with changes")

    def test_the_note_is_said(self):
        self.assertEqual(words.commit({"source": {"commit": "a" * 40}, "commit_note": "lost"}, 2), "aa (lost)")

    def test_nothing_is_said_of_none(self):
        self.assertEqual(words.commit({"git": {}, "runs": [{"started": ""}]}), "")


if __name__ == "__main__":
    unittest.main()
