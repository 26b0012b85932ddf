"""What `spanalloc doctor` says of machines, limits and environments: each finding from made-up trees, with reason and
without."""

import os
import sys
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

import made_up  # noqa: E402
from made_up import FindingsTest, Tree, elf  # noqa: E402
from spanalloc_cli.doctor import bounds, environment, machine, preload  # noqa: E402
from spanalloc_cli.doctor.findings import COSTS, FINE, KNOW  # noqa: E402

THP = "/sys/kernel/mm/transparent_hugepage"

class MachineTest(FindingsTest):
    def look(self, **variables):
        return list(machine.look(self.tree.files, variables))

    def test_a_machine_that_tells_nothing_has_no_findings_but_of_what_is_known(self):
        for path in ("/proc/meminfo", "/sys/devices/system/cpu/online"):
            self.tree.remove(path)
        self.assertEqual([finding.topic for finding in self.look()], ["thp"])

    def test_kernel(self):
        self.tree.put("/proc/sys/kernel/osrelease", "6.1.0-28-amd64\n")
        self.says(self.look(), "kernel", FINE, "6.1.0-28-amd64")
        self.tree.put("/proc/sys/kernel/osrelease", "4.4.0\n")
        self.says(self.look(), "kernel", KNOW, "4.14")

    def switch(self, word):
        self.tree.put(f"{THP}/enabled", " ".join(f"[{each}]" if each == word else each
                                                 for each in ("always", "madvise", "never")))

    def test_huge_pages_switched_off(self):
        self.switch("never")
        self.says(self.look(), "thp", KNOW, "switch is never", "echo madvise")
        self.says(self.look(SPANALLOC_THP="never"), "thp", FINE)
        for wanted in ("auto", "always"):
            self.says(self.look(SPANALLOC_THP=wanted), "thp", COSTS, "no effect", "echo madvise")

    def test_huge_pages_for_those_that_ask(self):
        self.switch("madvise")
        self.says(self.look(), "thp", KNOW, "SPANALLOC_THP is not set", "SPANALLOC_THP=auto")
        self.says(self.look(SPANALLOC_THP="alway"), "thp", KNOW, "is ignored")
        for wanted in ("auto", "always", "never"):
            self.says(self.look(SPANALLOC_THP=wanted), "thp", FINE)

    def test_huge_pages_always(self):
        self.switch("always")
        self.tree.put("/proc/sys/kernel/osrelease", "6.13.0")
        self.says(self.look(), "thp", KNOW, "SPANALLOC_THP=never")
        self.assertNotIn("max_ptes_none", self.one(self.look(), "thp")[1])
        self.tree.put(f"{THP}/khugepaged/max_ptes_none", "511")
        self.says(self.look(), "thp", KNOW, "511 small pages")
        for version, severity in (("5.7.1", KNOW), ("5.8.0", COSTS), ("6.12.9", COSTS)):
            self.tree.put("/proc/sys/kernel/osrelease", version)
            self.says(self.look(), "thp", severity)
            self.says(self.look(SPANALLOC_THP="always"), "thp", severity)
        self.says(self.look(SPANALLOC_THP="never"), "thp", FINE)

    def test_sizes_of_huge_pages_with_a_switch_of_their_own(self):
        self.switch("never")
        for size, word in (("64", "inherit"), ("128", "never")):
            self.tree.put(f"{THP}/hugepages-{size}kB/enabled", f"x [{word}] y")
        self.says(self.look(), "thp", KNOW, "All memory is in small pages")
        self.assertNotIn("of their own", self.one(self.look(), "thp")[1])
        self.tree.put(f"{THP}/hugepages-128kB/enabled", "x [madvise] y")
        self.says(self.look(SPANALLOC_THP="auto"), "thp", FINE, "switch is never", "128kB madvise")
        self.tree.put(f"{THP}/hugepages-64kB/enabled", "x [always] y")
        self.says(self.look(), "thp", KNOW, "64kB always", "sparsely")

    def test_huge_pages_that_the_kernel_lacks(self):
        self.says(self.look(), "thp", FINE, "shows no transparent huge pages")
        self.says(self.look(SPANALLOC_THP="auto"), "thp", COSTS, "no effect")

    def test_huge_pages_of_a_process_whose_environment_is_hidden(self):
        self.switch("always")
        self.says(list(machine.look(self.tree.files, None)), "thp", KNOW, "cannot be read")

    def test_room_for_huge_pages(self):
        self.switch("madvise")
        for word, asked, unasked in (("always", KNOW, KNOW), ("madvise", KNOW, FINE), ("defer+madvise", KNOW, FINE),
                                     ("defer", FINE, FINE), ("never", FINE, FINE)):
            self.switch("madvise")
            self.tree.put(f"{THP}/defrag", f"a [{word}] b")
            self.silent(self.look(), "thp-defrag")  # nobody asks for any
            self.silent(self.look(SPANALLOC_THP="never"), "thp-defrag")
            self.says(self.look(SPANALLOC_THP="auto"), "thp-defrag", asked, word)
            self.switch("always")
            self.says(self.look(), "thp-defrag", unasked, word)

    def test_overcommit(self):
        self.silent(self.look(), "overcommit")
        for mode, text in ((0, "obviously too much"), (1, "any mapping")):
            self.tree.put("/proc/sys/vm/overcommit_memory", f"{mode}\n")
            self.says(self.look(), "overcommit", FINE, f"vm.overcommit_memory is {mode}", text)
        self.tree.put("/proc/sys/vm/overcommit_memory", "2\n")
        self.tree.put("/proc/sys/vm/overcommit_ratio", "50\n")
        self.says(self.look(), "overcommit", KNOW, "976.6 MiB of 3.8 GiB", "it is 50")
        self.tree.put("/proc/meminfo", made_up.meminfo(Committed_AS=3700000))
        self.says(self.look(), "overcommit", COSTS, "vm.overcommit_ratio=90")
        self.tree.put("/proc/meminfo", "")
        self.says(self.look(), "overcommit", KNOW, "up to a limit")

    def test_mappings(self):
        self.silent(self.look(), "map-count")
        for most, severity in ((65530, FINE), (1048576, FINE), (65529, KNOW)):
            self.tree.put("/proc/sys/vm/max_map_count", str(most))
            self.says(self.look(), "map-count", severity, f"{most:,}")

    def test_memory(self):
        self.says(self.look(), "memory", FINE, "5.7 GiB of 7.6 GiB")
        self.tree.put("/proc/meminfo", made_up.meminfo(MemAvailable=700000))
        self.says(self.look(), "memory", COSTS, "683.6 MiB")

    def test_pressure(self):
        self.silent(self.look(), "pressure")
        for percent, severity in (("0.00", FINE), ("0.99", FINE), ("12.50", COSTS)):
            self.tree.put("/proc/pressure/memory", f"some avg10=99.00 avg60={percent} avg300=0.00 total=1\n"
                                                   "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
            self.says(self.look(), "pressure", severity, f"{percent} %")

    def test_swap(self):
        self.says(self.look(), "swap", FINE, "no swap")
        self.tree.put("/proc/meminfo", made_up.meminfo(SwapTotal=2048, SwapFree=2048))
        self.says(self.look(), "swap", FINE, "0 bytes of 2.0 MiB")
        self.tree.put("/proc/meminfo", made_up.meminfo(SwapTotal=2048, SwapFree=1024))
        self.says(self.look(), "swap", KNOW, "1.0 MiB of 2.0 MiB")
        self.assertNotIn("zswap", self.one(self.look(), "swap")[1])
        self.tree.put("/sys/module/zswap/parameters/enabled", "Y\n")
        self.says(self.look(), "swap", KNOW, "zswap")

    def test_reserved_huge_pages(self):
        self.silent(self.look(), "hugetlb")
        self.tree.put("/proc/meminfo", made_up.meminfo(HugePages_Free=100))
        self.says(self.look(), "hugetlb", KNOW, "200.0 MiB", "vm.nr_hugepages=0")

    def test_numa(self):
        self.tree.put("/sys/devices/system/node/online", "0\n")
        self.silent(self.look(), "numa")
        self.tree.put("/sys/devices/system/node/online", "0-1,4\n")
        self.says(self.look(), "numa", KNOW, "3 NUMA nodes")

    def test_preload_file(self):
        self.silent(self.look(), "preload-file")
        self.tree.put("/etc/ld.so.preload", "# /gone.so\n")
        self.silent(self.look(), "preload-file")
        self.tree.put("/etc/ld.so.preload", f"{made_up.LIBRARY}\n")
        self.says(self.look(), "preload-file", KNOW, made_up.LIBRARY)
        self.tree.put("/etc/ld.so.preload", "/gone.so # was here\n")
        self.says(self.look(), "preload-file", COSTS, "/gone.so", "is not there")


class BoundsTest(FindingsTest):
    UNLIMITED = {"address space": "unlimited", "data size": "unlimited", "core file size": "unlimited"}

    def look(self, **variables):
        return list(bounds.look(self.tree.files, "self", variables))

    def limits(self, **changes):
        rows = {**self.UNLIMITED, **{name.replace("_", " "): value for name, value in changes.items()}}
        lines = [("Limit", "Soft Limit", "Hard Limit", "Units")]
        lines += [(f"Max {name}", value, "unlimited", "bytes") for name, value in rows.items()]
        self.tree.put("/proc/self/limits", "".join(f"{a:25} {b:20} {c:20} {d:10}\n" for a, b, c, d in lines))

    def test_limits(self):
        self.silent(self.look(), "limits")
        self.limits()
        self.says(self.look(), "limits", FINE)
        self.limits(address_space="1073741824")
        self.says(self.look(), "limits", KNOW, "address space is limited to 1.0 GiB", "ulimit -v unlimited")
        self.limits(data_size="1048576")
        self.says(self.look(), "limits", KNOW, "data size is limited to 1.0 MiB", "ulimit -d unlimited")

    def test_locked_memory(self):
        self.limits(locked_memory="8388608")
        for configs, severity in (([], FINE), (["standard"], FINE), (["scalloc"], KNOW)):
            self.says(bounds.look(self.tree.files, "self", {}, configs), "limits", severity)
        self.says(bounds.look(self.tree.files, "self", {}, ["scalloc"]), "limits", KNOW, "8.0 MiB", "ARENA_BITS")
        self.limits(locked_memory="unlimited")
        self.says(bounds.look(self.tree.files, "self", {}, ["scalloc"]), "limits", FINE)

    def test_core_files(self):
        self.limits(core_file_size="0")
        self.says(self.look(), "limits", KNOW, "No core files", "ulimit -c unlimited")
        self.tree.put("/proc/sys/kernel/core_pattern", "|/usr/lib/systemd/systemd-coredump\n")
        self.says(self.look(), "limits", FINE)

    def group(self, path, **values):
        for name, value in values.items():
            self.tree.put(f"/sys/fs/cgroup{path}/{name.replace('__', '.')}", f"{value}\n")

    def test_no_groups(self):
        self.silent(self.look(), "cgroup")

    def test_the_lowest_limit_up_the_tree_counts(self):
        self.tree.groups(version=2, lines="0::/a/b\n")
        self.group("/a/b", memory__max="max", memory__current=5)
        self.group("/a", memory__max="max", memory__current=5)
        self.says(self.look(), "cgroup", FINE, "version 2")
        self.group("/a", memory__max=1 << 30, memory__current=1 << 20)
        self.says(self.look(), "cgroup", KNOW, "/sys/fs/cgroup/a is limited to 1.0 GiB", "1.0 MiB are used")
        self.group("/a/b", memory__max=1 << 28, memory__current=1 << 20)
        self.says(self.look(), "cgroup", KNOW, "/sys/fs/cgroup/a/b is limited to 256.0 MiB")
        self.group("/a/b", memory__swap__max=0)
        self.says(self.look(), "cgroup", KNOW, "without swap")
        self.group("/a/b", memory__current=250 << 20)
        self.says(self.look(), "cgroup", COSTS, "250.0 MiB are used")

    def test_a_limit_above_the_machines_memory_is_none(self):
        self.tree.groups(version=2, lines="0::/a\n")
        self.group("/a", memory__max=1 << 40, memory__current=5)
        self.says(self.look(), "cgroup", FINE)

    def test_processes_that_were_killed(self):
        self.tree.groups(version=2, lines="0::/a\n")
        self.group("/a", memory__max="max", memory__events="low 0\nhigh 0\nmax 9\noom 2\noom_kill 1")
        self.says(self.look(), "cgroup", COSTS, "killed 1 process of")

    def test_memory_high(self):
        self.tree.groups(version=2, lines="0::/a\n")
        self.group("/a", memory__high=1 << 30, memory__current=1 << 20, memory__events="high 0\n")
        self.says(self.look(), "cgroup", KNOW, "memory.high of /sys/fs/cgroup/a is 1.0 GiB")
        self.group("/a", memory__events="high 7\n")
        self.says(self.look(), "cgroup", COSTS, "passed 7 times")
        self.group("/a", memory__events="high 0\n", memory__current=1 << 30)
        self.says(self.look(), "cgroup", COSTS, "1.0 GiB are used")

    def test_version_1(self):
        self.tree.groups(version=1, lines="4:memory,cpu:/a/b\n0::/\n")
        self.group("/a/b", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=5)
        self.says(self.look(), "cgroup", FINE, "version 1")
        self.group("/a", memory__limit_in_bytes=1 << 30, memory__usage_in_bytes=1 << 20)
        self.says(self.look(), "cgroup", KNOW, "/sys/fs/cgroup/a is limited to 1.0 GiB")
        self.group("/a", memory__use_hierarchy=0)
        self.says(self.look(), "cgroup", FINE)
        self.group("/a", memory__use_hierarchy=1)
        self.group("/a/b", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 3")
        found = [finding for finding in self.look() if finding.topic == "cgroup"]
        self.assertEqual([finding.severity for finding in found], [COSTS, KNOW])
        self.assertIn("killed 3 processes", found[0].seen)

    def test_a_container_sees_its_own_group_as_the_top(self):
        for lines, mount in (("0::/docker/x/job\n", "/docker/x"), ("0::/job\n", "/"), ("0::/../elsewhere\n", "/")):
            tree = self.tree = Tree(self)
            tree.groups(version=2, lines=lines, mount=mount)
            self.group("", memory__max=1 << 30, memory__current=5)
            self.group("/job", memory__max="max", memory__current=5)
            self.says(self.look(), "cgroup", KNOW, "/sys/fs/cgroup is limited to 1.0 GiB")

    def test_cpus(self):
        self.says(self.look(), "cpus", FINE, "4 of 4 CPUs", "that is what the library counts")
        self.tree.put("/proc/self/status", "Cpus_allowed_list:\t1,3\n")
        self.says(self.look(), "cpus", FINE, "2 of 4 CPUs")
        self.tree.put("/proc/self/status", "Cpus_allowed_list:\t0-127\n")  # also those that the machine lacks
        self.says(self.look(), "cpus", FINE, "4 of 4 CPUs")
        self.says(self.look(SPANALLOC_CPUS="64"), "cpus", KNOW, "believes in 64")
        self.says(self.look(SPANALLOC_CPUS="4"), "cpus", FINE)
        self.says(self.look(SPANALLOC_CPUS="0"), "cpus", FINE)  # what the library does not take
        self.says(bounds.look(self.tree.files, "self", None), "cpus", FINE, "unless SPANALLOC_CPUS")
        self.tree.put("/proc/self/status", "Name: x\n")
        self.silent(self.look(), "cpus")

    def test_quota(self):
        self.tree.groups(version=2, lines="0::/a\n")
        self.group("/a", cpu__max="max 100000")
        self.says(self.look(), "cpus", FINE, "No quota")
        self.group("/a", cpu__max="150000 100000")
        self.says(self.look(), "cpus", FINE, "quota of 1.5 CPUs", "the library counts 2")
        self.says(self.look(SPANALLOC_CPUS="3"), "cpus", KNOW, "believes in 3")
        self.group("/a", cpu__stat="nr_periods 100\nnr_throttled 40\nthrottled_usec 1\n")
        self.says(self.look(), "cpus", COSTS, "40 of 100 periods")
        self.group("/a", cpu__max="800000 100000", cpu__stat="nr_periods 100\nnr_throttled 0\n")
        self.says(self.look(), "cpus", FINE, "quota of 8 CPUs", "the library counts 4")

    def test_soft_limit(self):
        self.silent(self.look(), "soft-limit")
        self.says(self.look(SPANALLOC_SOFT_LIMIT="cgroup"), "soft-limit", KNOW, "no control group limits memory")
        self.says(self.look(SPANALLOC_SOFT_LIMIT="64m"), "soft-limit", FINE, "64.0 MiB")
        self.silent(self.look(SPANALLOC_SOFT_LIMIT="0"), "soft-limit")
        self.silent(self.look(SPANALLOC_SOFT_LIMIT="64X"), "soft-limit")
        self.tree.put("/proc/7/status", "RssAnon:\t 70000 kB\nVmSwap:\t 1000 kB\nCpus_allowed_list:\t0\n")
        for limit, severity in (("60M", COSTS), ("100M", FINE)):
            found = list(bounds.look(self.tree.files, "7", {"SPANALLOC_SOFT_LIMIT": limit}))
            self.says(found, "soft-limit", severity)
        self.tree.groups(version=2, lines="0::/a\n")
        self.group("/a", memory__max=1 << 30, memory__current=1 << 20)
        self.silent(self.look(SPANALLOC_SOFT_LIMIT="cgroup"), "soft-limit")
        self.says(self.look(SPANALLOC_SOFT_LIMIT="cgroup"), "cgroup", KNOW, "SPANALLOC_SOFT_LIMIT=cgroup is set")
        self.says(self.look(), "cgroup", KNOW, "(SPANALLOC_SOFT_LIMIT=cgroup)")

    def test_quota_of_version_1(self):
        self.tree.groups(version=1, lines="4:cpu,memory:/a\n")
        self.group("/a", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
        self.says(self.look(), "cpus", FINE, "No quota")
        self.group("/a", cpu__cfs_quota_us=50000)
        self.says(self.look(), "cpus", FINE, "quota of 0.5 CPUs", "the library counts 1")


class EnvironmentTest(FindingsTest):
    def look(self, current="/", **variables):
        loader = preload.Loader(self.tree.files, variables, current=current)
        entries = [loader.entry(name) for name in preload.names(variables.get("LD_PRELOAD"))]
        return list(environment.look(variables, entries))

    def test_no_preload(self):
        self.says(self.look(), "preload", FINE, "is not set")

    def test_ours(self):
        self.says(self.look(LD_PRELOAD=made_up.LIBRARY), "preload", FINE, made_up.LIBRARY)
        self.says(self.look(current="/opt", LD_PRELOAD="./lib/libspanalloc.so"), "preload", FINE)
        self.says(self.look(LD_PRELOAD="libspanalloc.so", LD_LIBRARY_PATH="/x:/opt/lib"), "preload", FINE)

    def test_a_file_that_is_not_there(self):
        self.says(self.look(LD_PRELOAD="/gone/libspanalloc.so"), "preload", COSTS,
                  "/gone/libspanalloc.so, which is not there")
        self.says(self.look(LD_PRELOAD="libspanalloc.so"), "preload", COSTS, "is not there")

    def test_a_name_that_the_loaders_cache_knows(self):
        entry = b"glibc-ld.so.cache1.1"
        strings_at = 48 + 24
        head = entry + (1).to_bytes(4, sys.byteorder) + bytes(24)
        row = b"".join(number.to_bytes(4, sys.byteorder) for number in (0x303, strings_at, strings_at + 16)) + bytes(12)
        self.tree.put("/etc/ld.so.cache", head + row + b"libspanalloc.so\0" + made_up.LIBRARY.encode() + b"\0")
        self.says(self.look(LD_PRELOAD="libspanalloc.so"), "preload", FINE)

    def test_what_is_no_library_for_this_processor(self):
        self.tree.put("/x.so", "text")
        self.says(self.look(LD_PRELOAD="/x.so"), "preload", COSTS, "is no library")
        self.tree.put("/x.so", elf(machine=made_up.OTHER, soname="x.so"))
        self.says(self.look(LD_PRELOAD="/x.so"), "preload", COSTS, "for another processor")
        self.says(self.look(LD_PRELOAD="/opt"), "preload", COSTS, "is no file")

    def test_ours_without_a_malloc(self):
        self.tree.put("/libspanalloc-old.so", elf(soname="x", exported=("sp_malloc",)))
        self.says(self.look(LD_PRELOAD="/libspanalloc-old.so"), "preload", COSTS, "has no malloc")

    def test_other_allocators(self):
        self.tree.put("/libjemalloc.so.2", made_up.JEMALLOC_BYTES)
        self.says(self.look(LD_PRELOAD="/libjemalloc.so.2"), "preload", KNOW, "another allocator (jemalloc)")
        self.says(self.look(LD_PRELOAD=f"/libjemalloc.so.2:{made_up.LIBRARY}"), "preload", COSTS, "stands before",
                  "jemalloc")
        self.says(self.look(LD_PRELOAD=f"{made_up.LIBRARY} /libjemalloc.so.2"), "preload", KNOW, "several allocators")
        self.tree.put("/other.so", elf(soname="other.so", exported=("read",)))
        self.silent(self.look(LD_PRELOAD="/other.so"), "preload")
        self.says(self.look(LD_PRELOAD=f"/other.so:{made_up.LIBRARY}"), "preload", FINE)

    def test_what_only_the_loader_knows(self):
        self.says(self.look(LD_PRELOAD="/opt/$LIB/x.so"), "preload", KNOW, "Only the loader knows")

    def test_options(self):
        self.silent(self.look(), "options")
        self.silent(self.look(SPANALLOC_PYTHON="/usr/bin/python3"), "options")
        self.says(self.look(SPANALLOC_DECAY="5"), "options", COSTS, "SPANALLOC_DECAY=5",
                  "Did you mean SPANALLOC_DECAY_MS?")
        self.says(self.look(SPANALLOC_XYZZY="1"), "options", COSTS, "no library has", "man 7 spanalloc")
        self.says(self.look(spanalloc_thp="auto"), "options", COSTS, "Did you mean SPANALLOC_THP?")
        self.says(self.look(SPANALLOC_THP="yes"), "options", COSTS, "system, auto, always or never")
        self.says(self.look(SPANALLOC_CPUS="5000"), "options", COSTS, "a number from 1 to 4096")
        self.says(self.look(SPANALLOC_CPUS=" 5"), "options", COSTS, "a number from 1 to 4096")
        self.says(self.look(SPANALLOC_DECAY_MS="100"), "options", FINE, "SPANALLOC_DECAY_MS=100")
        self.says(self.look(SPANALLOC_CLOCK="still"), "options", COSTS, "given back")
        self.says(self.look(SPANALLOC_CLOCK="kernel"), "options", FINE)
        self.says(self.look(SPANALLOC_SEED="1"), "options", KNOW, "In production")
        for text in ("1", "no", "off", "true"):
            self.says(self.look(SPANALLOC_BACKGROUND=text), "options", FINE)
        self.says(self.look(SPANALLOC_BACKGROUND="2"), "options", COSTS, "want 0 or 1, no or yes")
        self.silent(self.look(SPANALLOC_DECAY_MS="", SPANALLOC_THP=""), "options")  # as if they were not set

    def test_options_that_the_preloaded_library_does_not_read(self):
        self.says(self.look(SPANALLOC_RSEQ="1", LD_PRELOAD=made_up.LIBRARY), "options", COSTS, "does not read it",
                  "supermalloc")
        self.says(self.look(SPANALLOC_RSEQ="1"), "options", FINE)
        self.tree.put("/libspanalloc-supermalloc.so", made_up.LIBRARY_BYTES)
        with_it = {"LD_PRELOAD": "/libspanalloc-supermalloc.so", "SPANALLOC_RSEQ": "1"}
        self.says(self.look(**with_it), "options", FINE)
        found = self.look(**with_it, GLIBC_TUNABLES="glibc.pthread.rseq=0")
        self.assertIn(COSTS, [finding.severity for finding in found if finding.topic == "options"])

    def test_variables_of_other_allocators(self):
        self.silent(self.look(), "malloc-variables")
        self.silent(self.look(MALLOC_ARENA_MAX="2"), "malloc-variables")
        self.silent(self.look(LD_PRELOAD=made_up.LIBRARY, GLIBC_TUNABLES="glibc.rtld.optional_static_tls=1"),
                    "malloc-variables")
        self.says(self.look(MALLOC_CONF="x"), "malloc-variables", KNOW, "MALLOC_CONF: for jemalloc")
        for name, value, text in (("MALLOC_ARENA_MAX", "2", "for glibc"), ("MIMALLOC_VERBOSE", "1", "for mimalloc"),
                                  ("GLIBC_TUNABLES", "a=b:glibc.malloc.check=3",
                                   "GLIBC_TUNABLES (glibc.malloc): for glibc")):
            self.says(self.look(LD_PRELOAD=made_up.LIBRARY, **{name: value}), "malloc-variables", KNOW, text,
                      "do not read")


if __name__ == "__main__":
    unittest.main()
