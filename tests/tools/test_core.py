"""Core files: that `spanalloc top --core` shows what the process held, and believes nothing. And single spans: that
their blocks add up to the table's."""

import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

import made_core  # noqa: E402
from spanalloc_cli import maps  # noqa: E402
from spanalloc_cli.top import blocks, core, heaps, inspection, look, memory, process, spans  # noqa: E402
from test_top import COMMAND, KNOWN_HEAP, OWN_HEAPS, Looking, Words, known_heap, library, record, top  # noqa: E402

EXCHANGED_HEAP = os.environ["SPANALLOC_TEST_EXCHANGED_HEAP"]
OF_KERNEL = {"uptime_s", "rss_bytes", "rss_file_bytes", "page_table_bytes", "swap_bytes", "minor_faults",
             "major_faults"}


@contextlib.contextmanager
def core_of(*arguments, has_first_pages=True, **options):
    """(path of a core file, the process, which rests)."""
    with tempfile.TemporaryDirectory() as folder, known_heap(*arguments, **options) as (running, _):
        path = os.path.join(folder, "core")
        made_core.write(running.pid, path, has_first_pages)
        yield path, running


class CoreTest(Looking):
    KEYS = ("library", "note", "torn_records", "program_heaps")
    OF_HEAP = ("totals", "classes")

    def assert_shows_the_same(self, *arguments, keys=KEYS + OF_HEAP, **options):
        with core_of(*arguments, **options) as (path, running):
            live = json.loads(top("--json", running.pid).stdout)
            run = top("--json", "--core", path)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        found = json.loads(run.stdout)
        self.assertEqual(found["process"]["pid"], running.pid)
        self.assertEqual({found["process"][name] for name in OF_KERNEL}, {None})
        self.assertEqual(found["process"]["threads"], live["process"]["threads"])
        self.assertEqual(found["process"]["command"][0], live["process"]["command"][0][:79])
        for key in keys:
            self.assertEqual(found[key], live[key], key)
        return found, live

    def test_it_shows_what_the_process_held(self):
        found, live = self.assert_shows_the_same("1024,5000,1000", "48,3000,1", "2000000,3,1")
        self.assertGreater(found["totals"]["live_bytes"], 4000 * 1024)
        if os.uname().machine == "x86_64":
            self.assertEqual([thread["tid"] for thread in found["threads"]],
                             [thread["tid"] for thread in live["threads"]])

    def test_threads(self):
        found, live = self.assert_shows_the_same("3:1000,200,100")
        self.assertEqual(len(found["threads"]), len(live["threads"]))
        if os.uname().machine == "x86_64":
            self.assertEqual({thread["tid"] for thread in found["threads"]},
                             {thread["tid"] for thread in live["threads"]})

    def test_own_heaps_and_other_engines(self):
        # (Its malloc does not rest: it waits by stdio, which allocates a buffer.)
        self.assert_shows_the_same("query=1000,500", program=OWN_HEAPS, keys=self.KEYS)
        found, live = self.assert_shows_the_same("query=1000,500", program=OWN_HEAPS, config="scalloc",
                                                 keys=("library", "torn_records", "program_heaps") + self.OF_HEAP)
        self.assertEqual(found["note"], "the library scalloc does not tell where its records are: first-class heaps are "
                                        "all there is to see")
        self.assertIn("first-class heaps and what /proc knows are all there is to see", live["note"])

    def test_a_static_program(self):
        program = os.environ.get("SPANALLOC_TEST_STATIC_HEAP")
        if not program:
            self.skipTest("this build has no static library")
        with tempfile.TemporaryDirectory() as folder:
            stripped = shutil.copy(program, folder)
            subprocess.run([os.environ.get("STRIP") or "strip", stripped], check=True)
            self.assert_shows_the_same("1024,3000,1000", config=None, program=stripped)

    def test_a_process_without_our_library(self):
        found, live = self.assert_shows_the_same("64,10,0", config=None, keys=("library", "program_heaps"))
        self.assertEqual(found["note"], "it does not run on a spanalloc library")
        self.assertEqual(live["note"], "it does not run on a spanalloc library: what /proc knows is all there is to see")

    def test_the_table(self):
        with core_of("1024,5000,1000") as (path, running):
            run = top("--core", path)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertRegex(run.stdout, rf"known_heap +PID {running.pid} +1 thread +spanalloc [\d.]+ \(standard\)")
        self.assertRegex(run.stdout, r"live▾.*\n─+\n *1\.0 KiB +\d+ +4,00\d ")
        for heading in ("RSS", "page tables", "up "):
            self.assertNotIn(heading, run.stdout.partition("fullness")[0])

    def test_another_file_in_the_librarys_place(self):
        """It is told by its first page; then the library's constants are missing, and nothing is made up for them."""
        with tempfile.TemporaryDirectory() as folder:
            ours = os.path.join(folder, "libspanalloc.so")
            shutil.copy(library(), ours)
            environment = dict(os.environ, LD_PRELOAD=ours)
            with subprocess.Popen([KNOWN_HEAP, "1024,500,0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  env=environment) as running:
                while running.stdout.readline() != "ready\n":
                    pass
                path = os.path.join(folder, "core")
                made_core.write(running.pid, path)
                running.stdin.close()
            still = core.Core(path)
            constants = next(m.start for m in still.mappings if m.path == ours and m.offset)
            self.assertIsNotNone(still.read(constants, 64))
            still.close()
            os.remove(ours)
            with open(library(), "rb") as file:
                data = bytearray(file.read())
            data[200] ^= 1
            with open(ours, "wb") as file:
                file.write(data)
            still = core.Core(path)
            self.assertIsNone(still.read(constants, 64))
            still.close()
            os.remove(ours)
            run = top("--json", "--core", path)
            found = json.loads(run.stdout)
            self.assertEqual((run.returncode, found["totals"], found["torn_records"]), (0, None, 0))
            self.assertIn(f"the constants of {ours} cannot be read", found["note"])

    def test_a_core_file_without_the_first_pages(self):
        """As with bit 4 of coredump_filter cleared: the files have them. That nobody could compare them is said."""
        keys = [key for key in self.KEYS + self.OF_HEAP if key != "note"]
        found, _ = self.assert_shows_the_same("1024,500,100", has_first_pages=False, keys=keys)
        self.assertRegex(found["note"], r"libspanalloc\S* was read for its constants; that it is the file .* by its version")

    def test_another_build_that_cannot_be_told_by_its_first_page(self):
        """Its record differs: in its version, or in where a field is. Nothing is decoded by its constants."""
        with open(library(), "rb") as file:
            data = file.read()
        start = data.index(inspection.MAGIC.ljust(16, b"\0") + struct.pack("<I", inspection.VERSION))
        for at in (24, 72 + 8 * len(inspection.PLACES) + 4 * inspection.NUMBERS.index("span_word")):
            with tempfile.TemporaryDirectory() as folder:
                ours = shutil.copy(library(), folder)
                with core_of("1024,500,0", config=ours, has_first_pages=False) as (path, _):
                    os.remove(ours)
                    changed = bytearray(data)
                    changed[start + at] ^= 1
                    with open(ours, "wb") as file:
                        file.write(changed)
                    run = top("--json", "--core", path)
            found = json.loads(run.stdout)
            self.assertEqual((run.returncode, found["totals"]), (0, None))
            self.assertIn(f"{ours} is not the file that the process had, but of another build", found["note"])

    def test_damaged_ones(self):
        """Cut anywhere, and with bits that have changed: there is an answer, or a refusal; of one that is cut the figures
        are the whole one's, or it is said what is missing. So it is with single blocks."""
        draw = random.Random(1)
        with core_of("1024,500,100") as (path, _):
            with open(path, "rb") as file:
                data = file.read()
            notes, = struct.unpack_from("<Q", data, 64 + 8)
            whole = core.Core(path)
            good, told = look.of_still(whole), inspection.find(whole, whole.mappings)
            self.assertIsNone(good.note)
            walked = spans.Spans(whole, told)
            asked = [walked.base + (each.first << told.slice_bits) + 5000 for each in walked.ranges] + [walked.end, 0]
            answers = self.answers(whole, told, asked)
            whole.close()
            rows = range(64 + 56, 64 + 56 * struct.unpack_from("<H", data, 56)[0], 56)
            of_heap = [row for row in rows if maps.at(whole.mappings, struct.unpack_from("<Q", data, row + 16)[0]) is None]
            seen = dict.fromkeys(("cut", "hole", "missing", "changed"), 0)
            for n in range(80):
                kind = ("cut", "hole", "changed", "changed")[n % 4]
                changed = bytearray(data)
                if kind == "cut":
                    changed = changed[:draw.randrange(len(data))]
                elif kind == "hole":  # a segment of the heap's memory has less than it had
                    row = draw.choice(of_heap)
                    size, = struct.unpack_from("<Q", data, row + 32)
                    struct.pack_into("<Q", changed, row + 32, draw.randrange(size))
                else:  # heads and notes
                    for _ in range(20):
                        changed[draw.randrange(notes + 4000 if n % 4 == 2 else len(data))] ^= 1 << draw.randrange(8)
                damaged = path + ".damaged"
                with open(damaged, "wb") as file:
                    file.write(changed)
                try:
                    still = core.Core(damaged)
                except memory.CannotRead as error:
                    self.assertIn("no core file", str(error))
                    continue
                looked = look.of_still(still)
                found = self.answers(still, looked.inspection, asked)
                still.close()
                seen[kind] += 1
                if kind == "changed":
                    continue
                self.assertTrue(kind == "hole" or "the core file is cut off" in looked.note, looked.note)
                for answer, of_whole in zip(found, answers):
                    if answer != of_whole:
                        self.assertRegex("\n".join(answer), "cannot be read|can be read")
                        seen["missing"] += 1
                if looked.totals and not looked.note:
                    self.assertEqual(vars(looked.totals), vars(good.totals))
            self.assertTrue(all(seen.values()), seen)

    def answers(self, still, told, asked):
        """What is said of addresses, and of a word; empty where there is no heap."""
        try:
            found = blocks.Blocks(still, told) if told is not None else None
        except blocks.Unknown:
            found = None
        if found is None:
            return []
        answers = [found.describe(address) for address in asked] + [found.find(1, 1 << 20)]
        self.assertTrue(all(answers))
        return answers


class MadeUpTest(unittest.TestCase):
    """What needs no process that may be looked at."""

    def core_with(self, files, loads=()):
        """A path of a made-up core file. `files`: [(start, end, offset in pages, path)]; `loads`: [(address, offset, bytes)].
        """
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "core")
        with open(path, "wb") as file:
            file.write(made_core.of_rows(files, loads))
        return path

    def test_paths_that_are_no_files(self):
        """A core file may name any: none is opened that does something, or blocks, and none ends the command."""
        with tempfile.TemporaryDirectory() as folder:
            pipe, link = os.path.join(folder, "pipe"), os.path.join(folder, "link")
            os.mkfifo(pipe)
            os.symlink(pipe, link)
            for named in (pipe, link, "/dev/ptmx", "/dev/net/tun", "/proc/self/mem", "/proc/kmsg", "/dev/zero", folder,
                          "/nonexistent", os.path.join(COMMAND, "x"), "/" + "x" * 5000):
                path = self.core_with([(0x10000, 0x20000, 0, named)])
                run = top("--json", "--core", path, timeout=60)
                self.assertEqual((run.returncode, run.stderr), (0, ""), named)
                still = core.Core(path)
                opened = os.open
                with unittest.mock.patch.object(os, "open", lambda path, *more: self.assert_regular(path) or opened(
                        path, *more)):
                    self.assertIn(still.read(0x10000, 64), (None,), named)
                still.close()
            run = top("--core", pipe, timeout=60)
            self.assertEqual((run.returncode, run.stdout), (125, ""))
            self.assertIn("no core file", run.stderr)

    def assert_regular(self, path):
        self.assertTrue(os.path.isfile(path) or os.path.isdir(path), path)

    def test_damaged_offsets(self):
        """Of files and of segments: what lies there cannot be read, and that is all."""
        absurd = (1 << 50, 1 << 60, (1 << 63) - 10, 1 << 63, (1 << 64) - 1)
        for number in absurd:
            for files, loads in (([(0x10000, 0x20000, number, KNOWN_HEAP)], []), ([], [(0x10000, number, 0x10000)]),
                                 ([(0x10000, number, 0, KNOWN_HEAP)], []), ([], [(0x10000, 0x1000, number)]),
                                 ([(number, number + 1 & (1 << 64) - 1, 0, KNOWN_HEAP)], []), ([], [(number, 0, 64)])):
                still = core.Core(self.core_with(files, loads))
                for address in (0x10000, 0x11000, number, number - 1):
                    found = still.read(address, 0x100)
                    self.assertTrue(found is None or len(found) == 0x100, (files, loads, address))
                self.assertIsNotNone(look.of_still(still).note)
                still.close()

    def test_a_first_page_that_is_cut_off(self):
        """As good as none: the file is not the one that was mapped by that."""
        for loads in ([], [(0x10000, None, 4096)]):
            still = core.Core(self.core_with([(0x10000, 0x20000, 0, KNOWN_HEAP)], loads))
            self.assertIsNotNone(still.read(0x11000, 64))
            self.assertEqual(still.uncompared, {KNOWN_HEAP})
            still.close()

    def test_one_that_does_not_say_which_process_it_is_of(self):
        path = self.core_with([])
        run = top("--core", path)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertNotIn("None", run.stdout)
        self.assertNotIn("PID", run.stdout)
        self.assertIsNone(json.loads(top("--json", "--core", path).stdout)["process"]["pid"])

    def test_what_is_no_core_file(self):
        for path, said in (("/nonexistent", "No such file"), (COMMAND, "no core file"), (KNOWN_HEAP, "no core file"),
                           ("/dev/null", "no core file"), (SOURCE, "Is a directory")):
            run = top("--core", path)
            self.assertEqual((run.returncode, run.stdout), (125, ""), path)
            self.assertIn(said, run.stderr)

    def test_words_that_do_not_fit(self):
        for words in (("--core", "core", "1"), ("--core", "core", "--", "true"), ("--core",)):
            run = top(*words)
            self.assertEqual((run.returncode, run.stdout), (2, ""), words)

    def test_a_library_of_before(self):
        """Its record ends before the fields that lead to single blocks."""
        told = inspection.Inspection(record())
        with self.assertRaisesRegex(blocks.Unknown, "older than this command"):
            blocks.Blocks(Words(), told)

    def test_absurd_numbers_in_the_record(self):
        later = dict.fromkeys(inspection.LATER + inspection.LATER_NUMBERS, 0)
        later.update(no_block=0x7000, batch_list=8, batch_lent=20, span_first=100, span_order=3, outside_before=6,
                     outside_end=48)

        def told(**changes):
            values = {**later, **changes}
            form = f"<{len(inspection.LATER)}Q{len(inspection.LATER_NUMBERS)}I"
            data = record() + struct.pack(form, *values.values())
            return inspection.Inspection(data[:20] + struct.pack("<I", len(data)) + data[24:])

        self.assertTrue(told().tells_blocks)
        for name in inspection.LATER_NUMBERS:
            with self.assertRaises(inspection.BadRecord, msg=name):
                told(**{name: 0xFFFFFFFF})


class KernelTest(Looking):
    def test_a_core_file_by_the_kernel(self):
        """Its notes are the kernel's: threads by their numbers are those that /proc had."""
        with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as file:
            pattern = file.read().strip()
        if not pattern or pattern.startswith("|") or "/" in pattern:
            self.skipTest(f"core files do not go to the program's folder here: {pattern}")
        with tempfile.TemporaryDirectory() as folder:
            # (The shell raises the limit, and is the program afterwards; the core file goes where it stands.)
            script = os.path.join(folder, "start")
            with open(script, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nulimit -c unlimited && cd {folder} && exec {KNOWN_HEAP} "$@"\n')
            os.chmod(script, 0o755)
            with known_heap("3:1000,200,100", program=script) as (running, _):
                live = json.loads(top("--json", running.pid).stdout)
                running.send_signal(signal.SIGQUIT)
                running.wait()
            cores = [name for name in os.listdir(folder) if name != "start"]
            if not cores:
                self.skipTest("the kernel writes no core file here")
            run = top("--json", "--core", os.path.join(folder, cores[0]))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        found = json.loads(run.stdout)
        for key in ("note", "totals", "classes"):
            self.assertEqual(found[key], live[key], key)
        if os.uname().machine == "x86_64":
            self.assertEqual({thread["cache"]: thread["tid"] for thread in found["threads"]},
                             {thread["cache"]: thread["tid"] for thread in live["threads"]})


class Living(memory.Reader):
    """A process that rests, as a core file of it would be; `reader`: of its memory."""

    def __init__(self, pid, reader=None):
        self.pid = pid
        self.read = (reader or memory.Memory(pid)).read
        self._process = process.Process(pid)
        self.mappings, self.facts = self._process.mappings(), self._process.facts

    def tasks(self):
        return self._process.tasks()

    def thread_records(self):
        return process.thread_records([task.tid for task in self.tasks()])


class Changed(memory.Reader):
    """What another one has, but for some words: {address: the word}, None where it cannot be read."""

    def __init__(self, of, words):
        self._of, self._words = of, words
        self.mappings, self.tasks, self.thread_records = of.mappings, of.tasks, of.thread_records

    def read(self, address, size):
        data = self._of.read(address, size)
        for at, word in self._words.items():
            if data is not None and address < at + 8 and at < address + size:
                if word is None:
                    return None
                data = bytearray(data)
                first, end = max(at, address), min(at + 8, address + size)
                data[first - address:end - address] = word.to_bytes(8, "little")[first - at:end - at]
                data = memoryview(bytes(data))
        return data


def span_with(walked, kind, least, block_bytes=0):
    """(a span that has at least so many blocks of that kind of Free, their indices in the order of their list)."""
    for each in walked.ranges:
        span = walked.span_of(each) if each.state == "used" else None
        if span is not None and span.kind == "small" and span.block_bytes >= block_bytes:
            free, _ = walked.free_blocks(span)
            found = sorted((places[0].place, index) for index, places in free.items() if places[0].kind == kind)
            if len(found) >= least and len({free[index][0].where for _, index in found}) == 1:
                return span, [index for _, index in found]
    raise AssertionError(f"no span with {kind}")


class Described(Looking):
    """What the tests of made-up damage share: a heap of a process that rests."""

    def of_heap(self, *arguments, **options):
        running, _ = self.entered(known_heap(*arguments, **options))
        still = Living(running.pid)
        return still, inspection.find(still, still.mappings)

    def entered(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    @staticmethod
    def field(walked, told, span, name):
        return walked.records + span.number * told.span_stride + getattr(told, name)


class DamagedListsTest(Described):
    """A block that is on two lists, and the like: what is described says so."""

    def with_remote(self, still, walked, told, span, block):
        """The change of the span's word by which its remote list begins with `block`."""
        at = self.field(walked, told, span, "span_word")
        word, = struct.unpack("<Q", still.read(at, 8))
        return {at: word & ~(0xFFFFF << 16) | ((block - span.start) // 16 + 1) << 16}

    def test_two_lists_that_have_grown_together(self):
        still, told = self.of_heap("352,300,50")
        walked = spans.Spans(still, told)
        span, listed = span_with(walked, "list", 5)
        self.assertEqual(len(walked.free_blocks(span)[0][listed[2]]), 1)
        # The remote list begins at the own one's third block.
        changed = Changed(still, self.with_remote(still, walked, told, span, span.block(listed[2])))
        again = spans.Spans(changed, told)
        free, damages = again.free_blocks(again.span_of(again.range_at(span.start)))
        self.assertEqual([(damage.kind, damage.block) for damage in damages], [("twice", span.block(listed[2]))])
        for at, index in enumerate(listed):
            self.assertEqual([(place.place, place.of) for place in free[index]],
                             [(at + 1, len(listed))] + [(at - 1, len(listed) - 2)] * (at >= 2))
        lines = blocks.Blocks(changed, told).describe(span.block(listed[2]))
        remote = "the span's remote list (freed by other threads)"
        self.assertIn(f"state   free, 2 times: on the span's free list, 3 of {len(listed)}; on {remote}, "
                      f"1 of {len(listed) - 2}", lines)
        self.assertIn(f"damage  {span.block(listed[2]):#x} is on the span's free list, and on {remote}: freed twice, or a "
                      "thread was about to move it", lines)

    def test_a_circle_and_lists_that_begin_nowhere(self):
        still, told = self.of_heap("352,300,50")
        walked = spans.Spans(still, told)
        span, listed = span_with(walked, "list", 5, block_bytes=32)
        first, third = span.block(listed[0]), span.block(listed[2])
        changed = Changed(still, {third: third ^ first ^ walked.key,
                                  **self.with_remote(still, walked, told, span, first + 16)})
        found = blocks.Blocks(changed, told)
        lines = found.describe(third)
        self.assertIn(f"damage  the span's free list leads in a circle from {third:#x} on", lines)
        self.assertIn("damage  the span's remote list (freed by other threads) leads to "
                      f"{first + 16:#x}, where no block is", lines)
        self.assertTrue(any("DAMAGED" in line and "leads in a circle" in line for line in lines), lines)


class ForkedTest(Described):
    def test_a_forks_child(self):
        """Spans of its parent's other threads are nobody's, also where a thread of its own has the address of one's."""
        running, (*_, child) = self.entered(known_heap("2:1000,200,100", "fork"))
        parent, still = Living(running.pid), Living(child)
        told = inspection.find(parent, parent.mappings)
        walked = spans.Spans(parent, told)
        self.assertEqual((len(walked.marks()), walked.lost), (3, set()))
        own = spans.Spans(still, told)
        self.assertEqual((len(own.marks()), len(own.lost)), (1, 2))
        # One that takes the place of a lost one, as the C library gives a stack to the next thread.
        records, forks = still.number(told.cache_records), still.number(told.cache_forks, 4)
        place = records + min(own.lost) * told.cache_stride
        self.assertNotEqual(still.number(place + told.cache_forks_of, 4), forks)
        mark, = own.marks().values()
        other = Changed(still, {place + told.cache_thread: mark})
        for reader in (still, other):
            found, seen = blocks.Blocks(reader, told), 0
            for each in own.ranges:
                span = own.span_of(each) if each.state == "used" else None
                if span is None or span.kind != "small" or "lost at a fork" not in span.state:
                    continue
                text = "\n".join(found.describe(span.first))
                self.assertRegex(text, r"span .*(owned|shared), of a thread lost at a fork; of its \d+ blocks")
                self.assertNotIn(f"thread {child}", text)
                seen += 1
            self.assertGreaterEqual(seen, 2)


class UnreadTest(Described):
    """Nothing definite is said of what cannot be read."""

    def assert_line(self, lines, *parts):
        self.assertTrue(any(all(part in line for part in parts) for line in lines), (parts, lines))

    def test_a_table_of_ranges_that_ends_early(self):
        still, told = self.of_heap("352,300,50")
        walked = spans.Spans(still, told)
        self.assertEqual((walked.why_not, walked.known_to), (None, walked.end))
        rows = still.number(told.arena_rows)
        last = walked.ranges[-1].first
        place = rows + 8 * (last // 64 * told.row_words + told.row_blocks + last % 64)
        start = walked.base + (last << told.slice_bits)
        # (A word that cannot be read takes its whole row with it: the rows before that are read by themselves.)
        for word, why in ((0, "makes no sense"), (None, "cannot be read")):
            found = blocks.Blocks(Changed(still, {place: word}), told)
            self.assert_line(found.describe(start), "lies in the heap, but the table of its ranges", why)
            self.assertNotIn("is no address", found.describe(start)[0])
            lines = found.find(0x1122334455667788)
            self.assert_line(lines, "no live block that can be read holds")
            self.assert_line(lines, "(not searched: the table of its ranges", why)
        self.assertIn("is no address of this heap", found.describe(walked.end + (1 << 40))[0])

    def test_a_link_and_blocks(self):
        still, told = self.of_heap("352,300,25")
        walked = spans.Spans(still, told)
        # No two blocks of its list are on one page.
        span, listed = span_with(walked, "list", 5, block_bytes=352)
        free, _ = walked.free_blocks(span)
        third, fifth = span.block(listed[2]), span.block(listed[4])
        page = third // 4096 * 4096
        live = [span.block(index) for index in range(span.carved) if index not in free]
        beside = next(block for block in live if page <= block < page + 4096)
        other = next(block for block in live if not page <= block < page + 4096)
        found = blocks.Blocks(Changed(still, dict.fromkeys(range(page, page + 4096, 8))), told)
        lines = found.describe(third)
        self.assert_line(lines, "state   free: on the span's free list, 3 of 3")
        self.assert_line(lines, "missing the span's free list cannot be read", f"behind {third:#x}")
        self.assert_line(lines, "holds   (its memory cannot be read)")
        self.assert_line(found.describe(fifth), "state   free, by its first word: a list of its span cannot be read")
        self.assert_line(found.describe(other), "state   live, by its first word: a list of its span cannot be read")
        self.assert_line(found.describe(beside), "state   unknown: its first word cannot be read, and a list of its span")
        self.assert_line(found.find(1, 1000), "(not searched: 4.0 KiB of blocks, which cannot be read")

    def test_a_threads_heap(self):
        still, told = self.of_heap("352,300,50")
        walked = spans.Spans(still, told)
        span, listed = span_with(walked, "list", 5, block_bytes=352)
        free, _ = walked.free_blocks(span)
        live = next(index for index in range(span.carved) if index not in free)
        records = still.number(told.cache_records)
        number, = walked.marks()
        for field in (told.cache_thread, told.cache_batches):  # the one that says whose it is, and another
            changed = Changed(still, {records + number * told.cache_stride + field: None})
            lines = blocks.Blocks(changed, told).describe(span.block(live))
            self.assert_line(lines, "state   live, by its first word: not all threads' bins can be read")
            self.assert_line(lines, "missing 1 record of threads' heaps cannot be read")
            self.assertFalse(any("abandoned" in line for line in lines), lines)
            looked = look.of_still(Living(still.pid, changed))
            self.assertIn("cannot be read: the figures lack what they say", looked.note)

    def test_what_leads_to_the_heap(self):
        still, told = self.of_heap("352,300,50")
        for name in ("arena_base", "arena_limit", "link_key"):
            changed = Changed(still, {getattr(told, name): None})
            with self.assertRaisesRegex(blocks.Unknown, "cannot be read"):
                blocks.Blocks(changed, told)
            looked = look.of_still(Living(still.pid, changed))
            self.assertIn("cannot be read", looked.note)
        changed = blocks.Blocks(Changed(still, {told.outside_table: None}), told)
        self.assertIn("but the table of blocks with a mapping of their own cannot be read", changed.describe(16)[0])
        self.assert_line(changed.find(0x1122334455667788), "(not searched: the table of blocks with a mapping")

    def test_spans_records(self):
        still, told = self.of_heap("352,300,50")
        walked = spans.Spans(still, told)
        span, _ = span_with(walked, "list", 5)
        changed = blocks.Blocks(Changed(still, {walked.records + span.number * told.span_stride: None}), told)
        self.assertIn("its record cannot be read", changed.describe(span.start + 500)[0])
        self.assert_line(changed.find(0x1122334455667788), "(not searched: 1 span, whose record")

    def test_a_core_file_that_is_cut_off(self):
        with core_of("1024,5000,1000") as (path, _):
            os.truncate(path, os.path.getsize(path) - (1 << 20))
            run = top("--core", path)
            found = json.loads(top("--json", "--core", path).stdout)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertIn("core file is cut off: 1.0 MiB of the memory that it lists are missing", found["note"])
        self.assertIn("core file is cut off", run.stdout)

    def test_a_library_that_cannot_be_read(self):
        """Neither in the core file, nor beside it."""
        with tempfile.TemporaryDirectory() as folder:
            ours = shutil.copy(library(), folder)
            with core_of("1024,500,0", config=None, has_first_pages=False) as (path, _):
                self.assertNotIn("may be the library", look.of_still(core.Core(path)).note)
            with core_of("1024,500,0", config=ours, has_first_pages=False) as (path, _):
                os.remove(ours)
                still = core.Core(path)
                self.assertIn(f"{ours}, which may be the library, cannot be read", look.of_still(still).note)
                still.close()


class SpansTest(Looking):
    """The free blocks of all spans, told apart one by one, are as many as `top` counts."""

    def assert_adds_up(self, pid):
        reader = memory.Memory(pid)
        found = inspection.find(reader, process.Process(pid).mappings())
        counted = {figures.block_bytes: figures for figures in look.Watcher(pid).look().classes}
        walked = spans.Spans(reader, found)
        free = dict.fromkeys(counted, 0)
        blocks = dict.fromkeys(counted, 0)
        for each in walked.ranges:
            span = walked.span_of(each) if each.state == "used" else None
            if span is None or span.kind == "free":
                continue
            self.assertIn(span.kind, ("small", "large"))
            if span.kind == "small":
                of_span, damages = walked.free_blocks(span)
                self.assertEqual(damages, [])
                free[span.block_bytes] += len(of_span)
                blocks[span.block_bytes] += span.blocks
        for size, figures in counted.items():
            if blocks[size]:
                self.assertEqual((free[size], blocks[size]), (figures.free_blocks, figures.blocks), size)
        return sum(free.values())

    def test_of_one_thread(self):
        with known_heap("16,10000,3000", "100,500,500", "352,7000,1", "3000,900,450", "20000,100,30") as (running, _):
            self.assertGreater(self.assert_adds_up(running.pid), 3000)

    def test_an_address_in_a_heap_of_the_programs_own(self):
        with known_heap("query=1000,500", program=OWN_HEAPS) as (running, _):
            still = Living(running.pid)
            told = inspection.find(still, still.mappings)
            own, = heaps.read(still, told.program_heaps).heaps
            of_heap = blocks.Blocks(still, told).describe((own.address >> 16 << 16) + 3000)
            self.assertIsNone(heaps.at(still, told.program_heaps, (own.address >> 16 << 16) + (1 << 40)))
            self.assertIsNone(heaps.at(still, told.program_heaps, 16))
            self.assertIsNone(heaps.at(still, 0, own.address))
        self.assertIn("lies in the first-class heap query", of_heap[0])

    def test_values_are_found_as_often_as_they_stand(self):
        """known_heap writes 1 to each page of its blocks: as a word that is in each block once."""
        with known_heap("352,300,50") as (running, _):
            still = Living(running.pid)
            found = blocks.Blocks(still, inspection.find(still, still.mappings))
            lines, cut = found.find(1, 1000), found.find(1, 20)
        self.assertGreaterEqual(sum("of the block" in line for line in lines), 250)
        self.assertEqual(sum("of the block" in line for line in cut), 20)
        self.assertIn("... cut at 20: there are more", cut)

    def test_of_threads_that_free_for_each_other(self):
        """Batches are among them."""
        with known_heap(program=EXCHANGED_HEAP) as (running, _):
            self.assertGreater(self.assert_adds_up(running.pid), 100)


if __name__ == "__main__":
    unittest.main()
