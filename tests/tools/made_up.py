"""For the tests of `spanalloc doctor`: made-up files, a /proc and a /sys in a folder, ELF files without a compiler; and
how a finding among others is looked at."""

import os
import struct
import tempfile
import unittest

from spanalloc_cli.doctor.files import Files

X86_64, AARCH64, I386 = 62, 183, 3
NATIVE = {"x86_64": X86_64, "aarch64": AARCH64}[os.uname().machine]
OTHER = AARCH64 if NATIVE == X86_64 else X86_64
LOADER = "/lib/ld-linux.so"
LIBRARY = "/opt/lib/libspanalloc.so"  # a link, as it is installed
LIBRARY_FILE = "/opt/lib/libspanalloc.so.0.2.0"
LIBC = "/lib/libc.so.6"
ZEROES = " 00000000 00:00 0 "


class _Strings:
    def __init__(self):
        self.data = b"\0"

    def place(self, text):
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def elf(machine=NATIVE, interpreter=None, needed=(), soname=None, exported=(), defined=None, wanted=(), dynamic=True,
        our_note=None):
    """The bytes of a file of 64 bits. `exported`: functions of its dynamic table, `wanted`: those that are undefined
    there; `defined`: those of its other table, None: it has none (it is stripped); `our_note`: the type of the note of
    ours that it has."""
    names, strings = _Strings(), _Strings()
    dynamic_symbols = _symbols(names, exported, wanted) if dynamic else b""
    entries = [(1, names.place(name)) for name in needed]
    if soname:
        entries.append((14, names.place(soname)))
    symbols = _symbols(strings, defined, ()) if defined is not None else b""
    parts, places, at = [], {}, 64 + 4 * 56

    def add(name, data):
        nonlocal at
        places[name] = (at, len(data))
        parts.append(data)
        at += len(data)

    add("interpreter", (interpreter or "").encode() + b"\0")
    add("names", names.data)
    entries += [(5, places["names"][0]), (0, 0)]
    add("dynamic", b"".join(struct.pack("<QQ", *entry) for entry in entries))
    add("dynamic symbols", dynamic_symbols)
    add("strings", strings.data)
    add("symbols", symbols)
    add("note", struct.pack("<3I", 10, 8, our_note or 0) + b"spanalloc\0\0\0" + bytes(8))
    segments = [(1, 0, at)]
    segments += [(3, *places["interpreter"])] if interpreter else []
    segments += [(2, *places["dynamic"])] if dynamic else []
    segments += [(4, *places["note"])] if our_note else []
    sections = [(0, 0, 0, 0)]
    if dynamic:
        sections += [(11, *places["dynamic symbols"], len(sections) + 1), (3, *places["names"], 0)]
    if defined is not None:
        sections += [(2, *places["symbols"], len(sections) + 1), (3, *places["strings"], 0)]
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, at, 0, 64, 56, len(segments), 64, len(sections), 0)
    rows = b"".join(struct.pack("<IIQQQQQQ", kind, 4, where, where, where, size, size, 1)
                    for kind, where, size in segments)
    table = b"".join(struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, where, size, link, 0, 1, 24 if kind in (2, 11) else 0)
                     for kind, where, size, link in sections)
    return head + rows.ljust(4 * 56, b"\0") + b"".join(parts) + table


def _symbols(strings, defined, undefined):
    rows = [struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)]
    for names, section in ((defined, 1), (undefined, 0)):
        rows += [struct.pack("<IBBHQQ", strings.place(name), 0x12, 0, section, 0, 0) for name in names]
    return b"".join(rows)


def program(**changes):
    """A dynamic program."""
    return elf(**{"interpreter": LOADER, "needed": ("libc.so.6",), "wanted": ("malloc",), **changes})


LIBRARY_BYTES = elf(needed=("libc.so.6",), soname="libspanalloc.so.0",
                    exported=("malloc", "free", "sp_malloc", "__libc_malloc"))
LIBC_BYTES = elf(soname="libc.so.6", exported=("malloc", "free", "__libc_malloc"))
JEMALLOC_BYTES = elf(soname="libjemalloc.so.2", needed=("libc.so.6",), exported=("malloc", "free", "mallctl"))


class Tree:
    """A folder that stands for the root of a system's files."""

    def __init__(self, test):
        scratch = tempfile.TemporaryDirectory(prefix="spanalloc-doctor-")
        test.addCleanup(scratch.cleanup)
        self.root = scratch.name
        self.put("/proc/self/status", "Name:\tpython3\nCpus_allowed_list:\t0-3\n")
        self.put("/sys/devices/system/cpu/online", "0-3\n")
        self.put("/proc/meminfo", meminfo())
        self.put(LIBRARY_FILE, LIBRARY_BYTES)
        self.link(LIBRARY, "libspanalloc.so.0.2.0")
        self.put(LIBC, LIBC_BYTES)

    @property
    def files(self):
        return Files(self.root)

    def put(self, path, content):
        place = self.root + path
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        return path

    def link(self, path, target):
        os.makedirs(os.path.dirname(self.root + path), exist_ok=True)
        os.symlink(target, self.root + path)

    def remove(self, path):
        os.remove(self.root + path)

    def groups(self, *, version, lines, mount="/"):
        """Control groups of `self` and 42: `lines` of /proc/PID/cgroup, mounted at /sys/fs/cgroup."""
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory,cpu"
        self.put("/proc/self/mountinfo", f"22 1 0:20 / /proc rw - proc proc rw\n"
                                         f"31 23 0:28 {mount} /sys/fs/cgroup rw,relatime - {kind}\n")
        for process in ("self", "42"):
            self.put(f"/proc/{process}/cgroup", lines)

    def process(self, exe="/bin/program", content=None, preload=None, mapped=(LIBC,), environment=(), secure=False,
                status=(), maps=""):
        """Process 42. `mapped`: paths of the files that it has mapped beside its program."""
        self.put(exe, program() if content is None else content)
        self.link("/proc/42/exe", exe)
        self.link("/proc/42/cwd", "/")
        self.link("/proc/42/root", "../..")
        lines = {"Name": "program", "State": "S (sleeping)", "VmSize": "9000 kB", "VmRSS": "1000 kB",
                 "RssAnon": "400 kB", "VmPTE": "40 kB", "Threads": "1", "Cpus_allowed_list": "0-3", **dict(status)}
        self.put("/proc/42/status", "".join(f"{name}:\t{value}\n" for name, value in lines.items()))
        self.map(exe, *mapped, rest=maps)
        variables = dict(environment)
        if preload is not None:
            variables["LD_PRELOAD"] = preload
        self.put("/proc/42/environ", "".join(f"{name}={value}\0" for name, value in variables.items()))
        self.put("/proc/42/auxv", struct.pack("=QQQQ", 23, int(secure), 0, 0))

    def map(self, *paths, rest=""):
        """What process 42 has mapped."""
        rows = [f"{0x7f0000000000 + 0x1000 * i:x}-{0x7f0000001000 + 0x1000 * i:x} r-xp 00000000 fe:00 1    {path}\n"
                for i, path in enumerate(paths)]
        self.put("/proc/42/maps", "".join(rows) + rest)


def meminfo(**changes):
    values = {"MemTotal": 8000000, "MemAvailable": 6000000, "SwapTotal": 0, "SwapFree": 0, "CommitLimit": 4000000,
              "Committed_AS": 1000000, "Hugepagesize": 2048, **changes}
    pages = values.pop("HugePages_Free", 0)
    return "".join(f"{name}: {value} kB\n" for name, value in values.items()) + f"HugePages_Free: {pages}\n"


class FindingsTest(unittest.TestCase):
    """What the tests of made-up trees share: the tree, and asking for the one finding of a topic."""

    def setUp(self):
        self.tree = Tree(self)

    def one(self, found, topic):
        """(severity, all that is said) of the topic's finding; None where there is none."""
        of_topic = [finding for finding in found if finding.topic == topic]
        self.assertLessEqual(len(of_topic), 1, of_topic)
        return (of_topic[0].severity, " ".join(filter(None, of_topic[0][2:]))) if of_topic else None

    def says(self, found, topic, severity, *texts):
        one = self.one(found, topic)
        self.assertIsNotNone(one, f"nothing is said of {topic}")
        self.assertEqual(one[0], severity, one)
        for text in texts:
            self.assertIn(text, one[1])

    def silent(self, found, topic):
        self.assertIsNone(self.one(found, topic))
