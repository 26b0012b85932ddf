"""What `spanalloc doctor` says of processes and programs: each finding from made-up trees, with reason and without."""

import os
import sys
import unittest
import unittest.mock

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

import made_up  # noqa: E402
from made_up import FindingsTest, Tree, elf, program  # noqa: E402
from spanalloc_cli.doctor import examine, findings, program as programs, watch  # noqa: E402
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW  # noqa: E402
from spanalloc_cli.doctor.process import Process  # noqa: E402


class ProcessTest(FindingsTest):
    def look(self, wanted_by_us=False):
        return list(programs.process_findings(Process(self.tree.files, 42), wanted_by_us))

    def test_ours_is_preloaded(self):
        self.tree.process(preload=made_up.LIBRARY, mapped=(made_up.LIBRARY_FILE, made_up.LIBC))
        found = self.look()
        self.says(found, "malloc", FINE, made_up.LIBRARY_FILE, "config standard")
        self.says(found, "process", FINE, "/bin/program", "1 thread", "1000.0 KiB")
        for topic in ("preload", "unreadable", "options"):
            self.silent(found, topic)

    def test_ours_is_linked(self):
        self.tree.process(content=program(needed=("libspanalloc.so.0", "libc.so.6")),
                          mapped=(made_up.LIBC, made_up.LIBRARY_FILE))
        self.says(self.look(), "malloc", FINE, made_up.LIBRARY_FILE)

    def test_ours_is_linked_behind_another_one(self):
        self.tree.put("/lib/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
        self.tree.process(content=program(needed=("libjemalloc.so.2", "libspanalloc.so.0", "libc.so.6")),
                          mapped=(made_up.LIBC, made_up.LIBRARY_FILE, "/lib/libjemalloc.so.2"))
        self.says(self.look(), "malloc", COSTS, "that of /lib/libjemalloc.so.2")

    def test_ours_was_opened_later(self):
        self.tree.process(mapped=(made_up.LIBC, made_up.LIBRARY_FILE))
        self.says(self.look(), "malloc", COSTS, f"that of {made_up.LIBC}", "dlopen")

    def test_ours_was_replaced_since(self):
        self.tree.process(preload=made_up.LIBRARY, mapped=(f"{made_up.LIBRARY_FILE} (deleted)", made_up.LIBC))
        found = [finding for finding in self.look() if finding.topic == "malloc"]
        self.assertEqual([finding.severity for finding in found], [FINE, KNOW])
        self.assertIn("replaced or removed", found[1].seen)

    def test_glibcs(self):
        self.tree.process()
        self.says(self.look(), "malloc", KNOW, f"that of {made_up.LIBC}", "spanalloc run")
        self.silent(self.look(), "preload")

    def test_another_allocator(self):
        self.tree.put("/lib/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
        self.tree.process(preload="/lib/libjemalloc.so.2", mapped=("/lib/libjemalloc.so.2", made_up.LIBC))
        self.says(self.look(), "malloc", KNOW, "that of /lib/libjemalloc.so.2")

    def test_a_malloc_of_the_programs_own(self):
        own = program(exported=("malloc", "free", "mallctl"))
        self.tree.process(content=own, preload=made_up.LIBRARY, mapped=(made_up.LIBRARY_FILE, made_up.LIBC))
        self.says(self.look(), "malloc", COSTS, "/bin/program has a malloc of its own (jemalloc)")
        self.tree = Tree(self)
        self.tree.process(content=own)
        self.says(self.look(), "malloc", KNOW, "of its own")
        self.says(self.look(wanted_by_us=True), "malloc", COSTS, "of its own")

    def test_an_allocator_under_names_of_its_own(self):
        self.tree.process(content=program(defined=("mi_malloc",)), preload=made_up.LIBRARY,
                          mapped=(made_up.LIBRARY_FILE, made_up.LIBC))
        found = [finding for finding in self.look() if finding.topic == "malloc"]
        self.assertEqual([finding.severity for finding in found], [FINE, KNOW])
        self.assertIn("mimalloc in it, under names of its own", found[1].seen)

    def test_linked_statically(self):
        for content, severity, text in (
            (elf(dynamic=False, defined=("malloc", "__libc_malloc")), COSTS, "with glibc's malloc"),
            (elf(dynamic=False), COSTS, "stripped"),
            (elf(dynamic=False, defined=("main",)), COSTS, "does not know"),
            (elf(dynamic=False, defined=("runtime.mallocgc",)), COSTS, "Go's runtime"),
            (elf(dynamic=False, defined=("malloc", "sp_malloc", "__libc_malloc")), FINE, "statically with spanalloc"),
            (elf(dynamic=False, our_note=1), FINE, "statically with spanalloc"),
            # With libspanalloc_sp.a malloc is another's.
            (elf(dynamic=False, our_note=2), COSTS, "only its calls of spanalloc.h are on spanalloc"),
            (elf(dynamic=False, our_note=2, defined=("sp_malloc", "__libc_malloc")), COSTS, "with glibc's malloc"),
        ):
            self.tree = Tree(self)
            self.tree.process(content=content, preload=made_up.LIBRARY, mapped=())
            self.says(self.look(), "malloc", severity, text)
            self.says(self.look(), "preload", COSTS, "the library is not in it", "linked statically")

    def test_linked_with_the_calls_alone(self):
        self.tree.process(content=program(our_note=2, defined=("sp_malloc",)))
        self.says(self.look(), "malloc", KNOW, f"that of {made_up.LIBC}", "serves only its calls of spanalloc.h")
        self.tree = Tree(self)
        self.tree.process(content=program(our_note=2, defined=("sp_malloc",), exported=("malloc", "free", "mallctl")))
        self.says(self.look(), "malloc", KNOW, "has a malloc of its own (jemalloc)")

    def test_musl(self):
        self.tree.put("/lib/libc.musl.so", elf(soname="libc.so", exported=("malloc",)))
        self.tree.process(content=program(interpreter="/lib/ld-musl-x86_64.so.1", needed=("libc.so",)),
                          mapped=("/lib/libc.musl.so",))
        texts = [finding.seen for finding in self.look() if finding.topic == "malloc"]
        self.assertIn("Its C library is musl (/lib/ld-musl-x86_64.so.1).", texts)

    def test_symbols_that_cannot_be_read(self):
        self.tree.process(content=program(needed=("libx.so", "libc.so.6")),
                          mapped=("/lib/libx.so (deleted)", made_up.LIBC))
        self.says(self.look(), "malloc", KNOW, "is unknown")

    def test_an_environment_that_was_written_over(self):
        """Where neither that nor the loader's list can be read, nothing is guessed."""
        self.tree.put("/lib/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
        needs = program(needed=("libjemalloc.so.2", "libc.so.6"))
        mapped = ("/lib/libjemalloc.so.2", made_up.LIBC)
        for environ in (bytes(500), b"ar 7:0" + bytes(9)):
            self.tree = Tree(self)
            self.tree.put("/lib/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
            self.tree.process(content=needs, mapped=(made_up.LIBRARY_FILE, *mapped))
            self.tree.put("/proc/42/environ", environ)
            self.says(self.look(), "malloc", KNOW, "is unknown", made_up.LIBRARY_FILE)
            self.says(self.look(), "unreadable", KNOW, "written over its environment")
            self.silent(self.look(), "preload")
            self.silent(self.look(), "idle")
        self.tree.map("/bin/program", *mapped)
        self.says(self.look(), "malloc", KNOW, "that of /lib/libjemalloc.so.2")
        self.tree.put("/proc/42/environ", b"")  # (no variable at all is another thing)
        self.silent(self.look(), "unreadable")

    def test_another_allocator_that_is_loaded_beside_ours(self):
        self.tree.put("/lib/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
        self.tree.process(content=program(needed=("libjemalloc.so.2", "libc.so.6")), preload=made_up.LIBRARY,
                          mapped=(made_up.LIBRARY_FILE, "/lib/libjemalloc.so.2", made_up.LIBC))
        found = [finding for finding in self.look() if finding.topic == "malloc"]
        self.assertEqual([finding.severity for finding in found], [FINE, KNOW])
        self.assertIn("/lib/libjemalloc.so.2 is loaded too", found[1].seen)

    def test_no_malloc_at_all(self):
        self.tree.put("/lib/libx.so", elf(soname="libx.so"))
        self.tree.process(content=program(needed=("libx.so",)), mapped=("/lib/libx.so",))
        self.says(self.look(), "malloc", KNOW, "None of the files")

    def test_why_a_preload_did_not_take(self):
        for preloaded, changes, severity, text in (
            ("/gone/libspanalloc.so", {}, COSTS, "the file is not there"),
            (made_up.LIBRARY, {"secure": True}, COSTS, "AT_SECURE"),
            (made_up.LIBRARY, {}, COSTS, "Nothing speaks against it now"),
            (made_up.LIBRARY, {"mapped": ()}, KNOW, "only just begun"),
            (made_up.LIBRARY, {"content": program(machine=made_up.OTHER)}, COSTS, "for another processor"),
        ):
            with self.subTest(text):
                self.tree = Tree(self)
                self.tree.process(preload=preloaded, **changes)
                found = [finding for finding in self.look() if finding.topic == "preload"
                         and "is not in it" in finding.seen]
                self.assertEqual([finding.severity for finding in found], [severity])
                self.assertIn(text, found[0].why)

    def test_options_that_privileges_make_void(self):
        self.tree.process(environment={"SPANALLOC_THP": "auto"}, secure=True)
        severities = [finding.severity for finding in self.look() if finding.topic == "options"]
        self.assertEqual(sorted(severities), [COSTS, FINE])

    def test_memory(self):
        arena = 6 << 40
        self.tree.process(preload=made_up.LIBRARY, mapped=(made_up.LIBRARY_FILE, made_up.LIBC))
        self.silent(self.look(), "resident")
        self.tree.put("/proc/42/smaps_rollup", f"1000-2000 ---p{made_up.ZEROES} [rollup]\nRss: 900 kB\n"
                                               "Anonymous: 400 kB\nAnonHugePages: 64 kB\n")
        self.says(self.look(), "resident", FINE, "400.0 KiB of its own, 64.0 KiB of that in huge pages")
        self.assertNotIn("heap:", self.one(self.look(), "resident")[1])
        self.tree.put("/proc/42/smaps", f"{arena:x}-{arena + 4096:x} rw-p{made_up.ZEROES}\nRss: 300 kB\n"
                      "AnonHugePages: 8 kB\nSwap: 4 kB\n"
                      f"{arena + 8192:x}-{arena + 12288:x} ---p{made_up.ZEROES}\nRss: 5000 kB\n"
                      f"7f0000000000-7f0000001000 rw-p{made_up.ZEROES}\nRss: 7000 kB\n")
        self.says(self.look(), "resident", FINE, "300.0 KiB, in huge pages 8.0 KiB, in swap 4.0 KiB")

    def test_page_tables(self):
        self.tree.process()
        self.says(self.look(), "page-tables", FINE, "40.0 KiB")
        for tables, resident, severity in (("4096 kB", "32768 kB", COSTS), ("4095 kB", "100 kB", FINE),
                                           ("4096 kB", "32776 kB", FINE)):
            self.tree = Tree(self)
            self.tree.process(status={"VmPTE": tables, "VmRSS": resident})
            self.says(self.look(), "page-tables", severity)

    def test_swapped_and_locked(self):
        self.tree.process(status={"VmSwap": "0 kB", "VmLck": "0 kB"})
        self.silent(self.look(), "swapped")
        self.silent(self.look(), "locked")
        self.tree = Tree(self)
        self.tree.process(status={"VmSwap": "1024 kB", "VmLck": "2048 kB"})
        self.says(self.look(), "swapped", COSTS, "1.0 MiB")
        self.says(self.look(), "locked", COSTS, "2.0 MiB")

    def test_huge_pages_that_it_has_forbidden(self):
        self.tree.process(status={"THP_enabled": "1"})
        self.silent(self.look(), "thp")
        self.tree = Tree(self)
        self.tree.process(status={"THP_enabled": "0"})
        self.says(self.look(), "thp", KNOW, "PR_SET_THP_DISABLE")

    def test_mappings(self):
        self.tree.process()
        self.silent(self.look(), "map-count")
        for most, severity in ((100, FINE), (4, KNOW), (2, COSTS)):
            self.tree.put("/proc/sys/vm/max_map_count", str(most))
            self.says(self.look(), "map-count", severity, f"2 of {most} mappings")

    def test_threads(self):
        ours = {"preload": made_up.LIBRARY, "mapped": (made_up.LIBRARY_FILE, made_up.LIBC)}
        self.tree.process(status={"Threads": str(programs.MANY_THREADS - 1)}, **ours)
        self.silent(self.look(), "threads")
        self.tree = Tree(self)
        self.tree.process(status={"Threads": str(programs.MANY_THREADS)}, **ours)
        for thread, state in (("42", "R"), ("43", "S"), ("44", "S")):
            self.tree.put(f"/proc/42/task/{thread}/stat", f"{thread} (a) S) {state} 1 42\n")
        self.says(self.look(), "threads", KNOW, f"{programs.MANY_THREADS} threads, of which 2 sleep")
        self.tree = Tree(self)
        self.tree.process(status={"Threads": str(programs.MANY_THREADS)})
        self.silent(self.look(), "threads")  # not ours to speak of

    def test_idle(self):
        ours = {"preload": made_up.LIBRARY, "mapped": (made_up.LIBRARY_FILE, made_up.LIBC)}
        self.tree.process(**ours)
        self.says(self.look(), "idle", KNOW, "SPANALLOC_BACKGROUND=1")
        self.tree = Tree(self)
        self.tree.process(environment={"SPANALLOC_BACKGROUND": "yes"}, **ours)
        self.silent(self.look(), "idle")
        self.tree = Tree(self)
        self.tree.process()
        self.silent(self.look(), "idle")

    def test_filter_of_system_calls(self):
        for seccomp, thp, is_said in (("2", "auto", True), ("2", "system", False), ("0", "auto", False)):
            self.tree = Tree(self)
            self.tree.process(preload=made_up.LIBRARY, mapped=(made_up.LIBRARY_FILE, made_up.LIBC),
                              status={"Seccomp": seccomp},
                              environment={"SPANALLOC_THP": thp})
            if is_said:
                self.says(self.look(), "seccomp", KNOW, "SPANALLOC_THP is set")
            else:
                self.silent(self.look(), "seccomp")

    def test_what_may_not_be_read_is_said_and_the_rest_goes_on(self):
        self.tree.process(preload=made_up.LIBRARY)
        self.tree.put("/proc/sys/kernel/yama/ptrace_scope", "1")
        files = self.tree.files
        # As root nothing is refused: so the door itself refuses.
        ask = files._ask

        def refuse(function, path):
            if path.startswith("/proc/42/") and path.rpartition("/")[2] not in ("status", "limits", "cgroup"):
                files.refused[path] = "Permission denied"
                return None
            return ask(function, path)

        files._ask = refuse
        with unittest.mock.patch.object(findings.os, "getuid", lambda: 1000):
            found = list(examine.a_process(files, 42))
        self.says(found, "unreadable", KNOW, "environ", "exe", "maps", "Permission denied", "ptrace_scope is 1",
                  "sudo spanalloc doctor 42")
        self.silent(found, "malloc")
        self.says(found, "page-tables", FINE)
        self.says(found, "cpus", FINE, "cannot be read")
        self.says(found, "thp", KNOW, "cannot be read")

    def test_no_subject(self):
        with self.assertRaisesRegex(examine.NoSubject, "no process 42"):
            examine.a_process(self.tree.files, 42)
        self.tree.put("/proc/42/status", "Name: gone\nState: Z (zombie)\n")
        with self.assertRaisesRegex(examine.NoSubject, "has ended"):
            examine.a_process(self.tree.files, 42)
        self.tree.put("/proc/42/status", "Name: kswapd0\nState: S (sleeping)\n")
        with self.assertRaisesRegex(examine.NoSubject, "thread of the kernel"):
            examine.a_process(self.tree.files, 42)


class ProgramFileTest(FindingsTest):
    def look(self, path="/bin/x"):
        return list(programs.file_findings(self.tree.files, path))

    def test_a_program_as_most_are(self):
        self.tree.put("/bin/x", program())
        self.assertEqual(self.look(), [])

    def test_a_script(self):
        self.tree.put("/bin/x", "#! /bin/sh -e\ntrue\n")
        self.tree.put("/bin/sh", program())
        self.says(self.look(), "program", KNOW, "is a script for /bin/sh")

    def test_a_script_for_itself_comes_to_an_end(self):
        self.tree.put("/bin/x", "#!/bin/x\n")
        self.assertEqual({finding.topic for finding in self.look()}, {"program"})

    def test_set_user_id(self):
        self.tree.put("/bin/x", program())
        place = self.tree.root + "/bin/x"
        os.chmod(place, 0o4755)
        with unittest.mock.patch("os.geteuid", return_value=os.stat(place).st_uid + 1):
            self.says(self.look(), "program", COSTS, "set-user-id", "-lspanalloc")
        self.silent(self.look(), "program")  # one's own: nothing is gained by it

    def test_static_and_own_malloc(self):
        self.tree.put("/bin/x", elf(dynamic=False))
        self.says(self.look(), "malloc", COSTS, "linked statically")
        self.tree.put("/bin/x", program(exported=("malloc",)))
        self.says(self.look(), "malloc", COSTS, "malloc of its own")

    def test_another_processor(self):
        self.tree.put("/bin/x", program(machine=made_up.OTHER))
        self.says(self.look(), "program", COSTS, "for another processor")

    def test_what_is_no_program(self):
        self.tree.put("/bin/x", "text")
        self.assertEqual(self.look(), [])


class RunTest(FindingsTest):
    """What is said of a run of which nothing was seen."""

    def test_too_short(self):
        self.tree.put("/bin/x", program())
        found = examine.a_run(self.tree.files, "/bin/x", watch.Watched(), ["x"])
        self.says(found, "program", KNOW, "x ended before it could be looked at")
        self.silent(found, "unreadable")

    def test_hidden(self):
        files = self.tree.files
        files.refused["/proc/7/exe"] = "Permission denied"
        for user, do in ((1000, "sudo spanalloc doctor -- x"), (0, "You are root here")):
            with unittest.mock.patch.object(findings.os, "getuid", lambda user=user: user):
                found = examine.a_run(files, None, watch.Watched(), ["x"])
            self.says(found, "unreadable", KNOW, "The processes of x may not be read", do)
            self.silent(found, "program")


if __name__ == "__main__":
    unittest.main()
