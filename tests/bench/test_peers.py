"""Allocators built from source: how they take the packaged ones' places, and what is said where they cannot be had."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

COMMAND = os.environ["SPANALLOC_TEST_COMMAND"]
SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "bench"), os.path.join(SOURCE, "tools"), SOURCE]

from spanalloc_bench import allocators, originals, peers  # noqa: E402
from spanalloc_cli import libraries  # noqa: E402

PLACES = libraries.Places(os.environ["SPANALLOC_TEST_LIBRARIES"], os.path.dirname(COMMAND))
LIBRARY = os.path.join(os.environ["SPANALLOC_TEST_LIBRARIES"], "libspanalloc.so")


def entry(name, family, path, replaces="", environment=()):
    return {"name": name, "family": family, "replaces": replaces, "path": path, "environment": list(environment)}


class Folder(unittest.TestCase):
    """A folder of its own takes the place of build/peers."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="spanalloc-peers-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, value in (("PEERS_FOLDER", self.folder), ("PEERS_LIST", os.path.join(self.folder, "peers.json"))):
            patch = mock.patch.object(libraries, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def file(self, name, text="", executable=False):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        if executable:
            os.chmod(path, stat.S_IRWXU)
        return path


class ListTest(Folder):
    def packaged(self, found):
        patch = mock.patch.object(libraries, "packaged_allocators", lambda: dict(found))
        patch.start()
        self.addCleanup(patch.stop)

    def test_a_built_peer_takes_the_place_of_the_packaged_one(self):
        self.packaged({"mimalloc": "/nowhere/old.so", "tbbmalloc": "/nowhere/tbb.so"})
        path = self.file("libmimalloc-3.so")
        libraries.write_peers([entry("mimalloc-3.3.2", "mimalloc", path, "mimalloc")])
        self.assertEqual(libraries.other_allocators(), {"mimalloc-3.3.2": path, "tbbmalloc": "/nowhere/tbb.so"})
        names = [contender.name for contender in allocators.discover(PLACES)]
        self.assertIn("mimalloc-3.3.2", names)
        self.assertNotIn("mimalloc", names)
        self.assertEqual(allocators.named(PLACES, "mimalloc").path, "/nowhere/old.so")  # whoever names it has it

    def test_it_runs_with_its_settings(self):
        self.packaged({})
        path = self.file("libx.so")
        libraries.write_peers([entry("x-1", "x", path, environment=[["A", "b"]])])
        self.assertEqual(allocators.named(PLACES, "x-1").environment, (("A", "b"),))

    def test_one_that_was_removed_is_not_there(self):
        self.packaged({"mimalloc": "/nowhere/old.so"})
        libraries.write_peers([entry("mimalloc-3", "mimalloc", os.path.join(self.folder, "gone.so"), "mimalloc")])
        self.assertEqual(libraries.other_allocators(), {"mimalloc": "/nowhere/old.so"})

    def test_what_can_be_built_is_a_contender_that_is_missing(self):
        self.packaged({})
        missing = {contender.name: contender.missing for contender in allocators.discover(PLACES)}
        for name in ("snmalloc", "rpmalloc"):
            self.assertIn("spanalloc bench peers", missing[name])

    def test_a_damaged_list_says_how_to_mend_it(self):
        for text in ("{", '["x"]', '[{"name": "x"}]'):
            self.file("peers.json", text)
            with self.assertRaisesRegex(libraries.Missing, "spanalloc bench peers"):
                libraries.built_peers()


class FetchTest(Folder):
    def refused(self, *names):
        said = []
        with self.assertRaises(allocators.BadChoice) as caught:
            peers.command(PLACES, names, said.append)
        return str(caught.exception)

    def cargo(self, script):
        self.file("cargo", "#!/bin/sh\n" + script, executable=True)
        return mock.patch.dict(os.environ, PATH=f"{self.folder}:/usr/bin:/bin")

    def test_without_cargo(self):
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            self.assertIn("cargo", self.refused())

    def test_with_a_cargo_that_is_too_old(self):
        with self.cargo("echo cargo 1.66.0\n"):
            self.assertIn("1.78 or newer", self.refused())

    def test_without_a_network(self):
        with self.cargo('[ "$1" = --version ] && exec echo cargo 1.90.0\necho "error: no such host" >&2\nexit 101\n'):
            self.assertIn("no such host", self.refused())

    def test_of_a_peer_that_nobody_knows(self):
        self.assertIn("mimalloc, snmalloc", self.refused("nosuch"))

    def test_the_command_says_it_in_one_line(self):
        if shutil.which("cargo", path="/usr/bin:/bin"):
            self.skipTest("the system has a cargo of its own")
        run = subprocess.run(
            [COMMAND, "bench", "peers"], env={**os.environ, "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, check=False,
        )
        self.assertEqual(run.returncode, 125, run.stderr)
        self.assertEqual(len(run.stderr.strip().splitlines()), 1, run.stderr)


class BuildTest(Folder):
    """Peers whose sources are made here."""

    def setUp(self):
        super().setUp()
        self.said = []
        self.crates = {"one": ("1.2.3+x", self.folder, "sum"), "two": ("2.0.0", self.folder, "sum")}

    def command(self, known, only=()):
        with mock.patch.object(peers, "PEERS", known), mock.patch.object(peers, "FAMILIES", ("one", "two")), \
                mock.patch.object(peers, "_cargo", lambda: "cargo"), \
                mock.patch.object(peers, "_fetch", lambda cargo, say: self.crates):
            return peers.command(PLACES, only, self.said.append)

    def peer(self, family, build):
        return peers.Peer(family, family, "", lambda crate, _: crate.partition("+")[0], build)

    def test_what_fails_is_said_and_the_rest_goes_on(self):
        def fails(shop, _):
            shop.run("false")

        failed = self.command((self.peer("one", fails), self.peer("two", lambda shop, _: LIBRARY)))
        self.assertEqual(failed, 1)
        self.assertEqual([e["name"] for e in libraries.built_peers()], ["two-2.0.0"])
        self.assertTrue(any("one: not built: false failed" in line for line in self.said), self.said)
        with open(libraries.PEERS_LIST, encoding="utf-8") as file:
            self.assertEqual(json.load(file)[0]["checksum"], "sum")

    def test_a_missing_tool_is_named(self):
        self.assertEqual(self.command((self.peer("one", lambda shop, _: shop.run("no-such-compiler")),)), 1)
        self.assertIn("no-such-compiler is not installed", self.said[-1])

    def test_a_library_that_does_not_define_malloc_is_refused(self):
        plain = self.file("plain.so", "not a library")
        self.assertEqual(self.command((self.peer("one", lambda shop, _: plain),)), 1)
        self.assertEqual(libraries.built_peers(), [])

    def test_building_one_keeps_the_others(self):
        both = (self.peer("one", lambda shop, _: LIBRARY), self.peer("two", lambda shop, _: LIBRARY))
        self.assertEqual(self.command(both), 0)
        self.assertEqual(self.command(both, only=("one",)), 0)
        self.assertEqual([e["name"] for e in libraries.built_peers()], ["one-1.2.3", "two-2.0.0"])

    def test_versions_are_read_from_the_sources(self):
        os.makedirs(os.path.join(self.folder, "include"))
        self.file("include/mimalloc.h", "#define MI_MALLOC_VERSION 30302   // text\n")
        self.assertEqual(peers._mimalloc_version("0.1.49", self.folder), "3.3.2")
        self.assertEqual(peers._jemalloc_version("0.7.1+5.3.1-0-gabc", self.folder), "5.3.1")

    def test_the_lock_file_has_a_checksum_for_each_crate(self):
        checksums = peers._checksums()
        for peer in peers.PEERS:
            self.assertRegex(checksums[peer.crate], r"^[0-9a-f]{64}$")


class OriginalsTest(Folder):
    """Originals whose public repository is made here."""

    def setUp(self):
        super().setUp()
        if not shutil.which("git"):
            self.skipTest("git is not installed")
        self.said = []
        self.repository = os.path.join(self.folder, "public")
        os.mkdir(self.repository)
        self.git("init", "--quiet")
        self.commits = [self.change("one"), self.change("two")]

    def git(self, *words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        run = subprocess.run(["git", *identity, *words], cwd=self.repository, stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout.strip()

    def change(self, text):
        with open(os.path.join(self.repository, "malloc.c"), "w", encoding="utf-8") as file:
            file.write(text)
        self.git("add", "malloc.c")
        self.git("commit", "--quiet", "-m", text)
        return self.git("rev-parse", "HEAD")

    def original(self, commit, build=None, name="dlmalloc"):
        def found(shop, sources):
            with open(os.path.join(sources, "malloc.c"), encoding="utf-8") as file:
                self.said.append(f"sources: {file.read()}")
            return LIBRARY

        return originals.Original(name, "2.8.6", (originals.Source(self.repository, commit),), build or found, ("malloc.c",))

    def command(self, known, only=()):
        with mock.patch.object(originals, "ORIGINALS", known), \
                mock.patch.object(originals, "NAMES", tuple(original.name for original in known)):
            return originals.command(PLACES, only, self.said.append)

    def test_the_sources_are_those_of_the_commit_that_is_named(self):
        for commit, text in zip(self.commits, ("one", "two")):
            self.assertEqual(self.command((self.original(commit),)), 0)
            self.assertIn(f"sources: {text}", self.said)
        (entry,) = libraries.built_peers()
        self.assertEqual((entry["name"], entry["commit"]), ("dlmalloc", self.commits[1]))
        self.assertTrue(os.path.isfile(os.path.join(entry["sources"], "malloc.c")))

    def test_it_takes_part_where_it_is_named_and_nowhere_else(self):
        self.assertEqual(self.command((self.original(self.commits[0]),)), 0)
        self.assertEqual(allocators.named(PLACES, "dlmalloc").missing, "")
        self.assertNotIn("dlmalloc", libraries.other_allocators())
        self.assertNotIn("dlmalloc", [contender.name for contender in allocators.discover(PLACES)])
        from papers.shared.figures import run

        self.assertEqual(run._named(PLACES, "dlmalloc").missing, "")
        self.assertEqual(run._named(PLACES, "supermalloc-original").missing, run.NOT_FETCHED)
        self.assertEqual(run._named(PLACES, "llalloc").missing, run.ABSENT.format("llalloc"))

    def test_a_commit_that_is_not_there_is_not_built(self):
        self.assertEqual(self.command((self.original("0" * 40), self.original(self.commits[0], name="hoard"))), 1)
        self.assertTrue(any("dlmalloc: not built: git failed" in line for line in self.said), self.said)
        self.assertEqual([entry["name"] for entry in libraries.built_peers()], ["hoard"])

    def test_other_peers_and_it_leave_each_other_alone(self):
        path = self.file("libx.so")
        libraries.write_peers([entry("x-1", "x", path)])
        self.assertEqual(self.command((self.original(self.commits[0]),)), 0)
        self.assertEqual([e["name"] for e in libraries.built_peers()], ["dlmalloc", "x-1"])
        with mock.patch.object(peers, "PEERS", ()), mock.patch.object(peers, "_cargo", lambda: "cargo"), \
                mock.patch.object(peers, "_fetch", lambda cargo, say: {}):
            peers.command(PLACES, (), self.said.append)
        self.assertEqual([e["name"] for e in libraries.built_peers()], ["dlmalloc", "x-1"])

    def test_a_library_that_does_not_define_malloc_is_refused(self):
        plain = self.file("plain.so", "not a library")
        self.assertEqual(self.command((self.original(self.commits[0], lambda shop, _: plain),)), 1)
        self.assertEqual(libraries.built_peers(), [])

    def test_of_one_that_nobody_knows_and_without_git(self):
        with self.assertRaisesRegex(allocators.BadChoice, "hoard, dlmalloc, supermalloc-original"):
            originals.command(PLACES, ("nosuch",), self.said.append)
        with mock.patch.dict(os.environ, PATH="/nonexistent"):
            with self.assertRaisesRegex(allocators.BadChoice, "git"):
                originals.command(PLACES, (), self.said.append)

    def test_each_is_pinned_by_a_commit(self):
        for original in originals.ORIGINALS:
            for source in original.sources:
                self.assertRegex(source.commit, r"^[0-9a-f]{40}$")


if __name__ == "__main__":
    unittest.main()
