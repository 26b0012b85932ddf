"""Real programs: what the papers ran, or what stands in its place, and beyond them. How much each one allocates stands
in docs/benchmarks-programs.md.

Their inputs are generated (programs.fixtures) or lie in bench/workloads; they end badly when a result is wrong, where
the program can tell. The time is the wall clock's, of servers the load's.
"""

from __future__ import annotations

from ..model import Case, Family
from ..programs import redis as redis_driver
from ..programs.fixtures import GIT_ENVIRONMENT
from .builders import BEYOND


def _case(name: str, title: str, source: str, argv: tuple[str, ...], variant: str = "", **more) -> Case:
    more.setdefault("needs", argv[:1])
    more.setdefault("family", Family.PROGRAM)
    return Case(id=f"program-{name}" + (f".{variant}" if variant else ""), group=f"program-{name}", title=title,
                source=source, argv=argv, **more)


def _sizes(quick: bool) -> dict:
    """What a case of the full size and one of the small size have in common: the name's end, and where they belong."""
    return {"variant": "quick" if quick else "", "quick": quick, "full": not quick}


def xalan(quick: bool = False) -> Case:
    """scalloc 7.1, Figure 5: 483.xalancbmk of SPEC CPU2006, an older Xalan-C++ with SPEC's own documents, for minutes.
    Here: Debian's Xalan-C++ with a generated 30 MB (2 MB)."""
    name = "library-quick" if quick else "library"
    return _case("xalan", "Xalan: XSLT, XML to HTML", "scalloc 7.1 (483.xalancbmk)",
                 ("xalan", "-in", f"{{fixtures}}/{name}.xml", "-xsl", "{source}/bench/workloads/library.xsl",
                  "-out", "/dev/null"),
                 prepare=("xalan_quick" if quick else "xalan",), **_sizes(quick))


def ghostscript(quick: bool = False) -> Case:
    """SuperMalloc 9, Figure 10, with its options: a manual of 3251 pages and 16.8 MB, 200 s. Here: 400 generated pages,
    an eighth (40: an eightieth)."""
    name = "manual-quick" if quick else "manual"
    return _case("ghostscript", "Ghostscript: a PDF of 40 pages" if quick else "Ghostscript: a PDF of 400 pages",
                 "SuperMalloc 9, Figure 10",
                 ("gs", "-q", "-dBATCH", "-dNODISPLAY", "-dNOPAUSE", f"{{fixtures}}/{name}.pdf"),
                 prepare=("ghostscript_quick" if quick else "ghostscript",), **_sizes(quick))


def database(test: str = "oltp_point_select", clients: int = 8, events: int = 80_000, variant: str = "",
             full: bool = False) -> Case:
    """SuperMalloc 9, Figure 9: MySQL under super-smack's select-key, 50 clients with 20,000 queries each. Here: MariaDB
    under sysbench, 8 clients with 10,000 each (`events` in all). Time: seconds a query; the record has queries_per_s.
    oltp_read_only is beyond the paper: its sorts take a buffer of hundreds of KiB each."""
    what = "selects by key" if test == "oltp_point_select" else test.removeprefix("oltp_").replace("_", " ")
    return _case("mariadb", f"MariaDB: {what}, {clients} clients",
                 "SuperMalloc 9, Figure 9" if test == "oltp_point_select" else BEYOND,
                 (test, str(clients), str(events)), variant, family=Family.DRIVER, driver="mariadb:run",
                 needs=("mariadbd", "sysbench"), prepare=("database",),
                 threads=clients, full=full)


def redis(requests: int = 20_000, quick: bool = False) -> Case:
    """redis-benchmark, 12 kinds of request, 20,000 (2,000) of each with short values and then with longer ones."""
    if quick:
        requests //= 10
    return _case("redis", "Redis: redis-benchmark, 12 kinds of request", BEYOND, (str(requests), "60", "400"),
                 family=Family.DRIVER, driver="redis:run", needs=redis_driver.NEEDS, **_sizes(quick))


def python() -> Case:
    """CPython with its own pools switched off: parses and compiles a part of its library and keeps the syntax trees."""
    return _case("python", "CPython: parse and compile its library, PYTHONMALLOC=malloc", BEYOND,
                 ("/usr/bin/python3", "{source}/bench/workloads/parse_library.py"),
                 environment=(("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0")), full=True)


def sqlite() -> Case:
    """A shop's orders in memory: 360,000 rows; joins, groups, windows, text, JSON."""
    return _case("sqlite", "SQLite: a shop's orders in memory", BEYOND,
                 ("sqlite3", "-init", "/dev/null", "-bail", ":memory:", ".read {source}/bench/workloads/orders.sql"),
                 full=True)


def gcc() -> Case:
    """cc1plus on a generated unit with templates, containers and lambdas, optimised."""
    return _case("gcc", "GCC: compile C++ with -O2", BEYOND,
                 ("g++", "-std=c++20", "-O2", "-S", "-o", "/dev/null", "{fixtures}/unit.cpp"), prepare=("gcc",),
                 full=True)


def node() -> Case:
    """Node's native side: buffers of many sizes, text, deflate and digests."""
    return _case("node", "Node: buffers, text, deflate, digests", BEYOND,
                 ("node", "{source}/bench/workloads/buffers.js"), full=True)


def lua(quick: bool = False) -> Case:
    """Lua: records, strings, closures and coroutines; 40 (4) rounds."""
    return _case("lua", "Lua: tables and strings", BEYOND,
                 ("lua5.4", "{source}/bench/workloads/churn.lua", "4" if quick else "40"), **_sizes(quick))


def z3() -> Case:
    """z3 unfolds recursive functions over a tree, and solves equations in exact fractions."""
    return _case("z3", "z3: recursive functions and exact fractions", BEYOND, ("z3", "-smt2", "{fixtures}/proofs.smt2"),
                 prepare=("z3",), full=True)


def git_log() -> Case:
    """git log with the words that each of 2500 commits changed."""
    return _git("git-log", "git: log with changed words, 2500 commits",
                ("log", "-p", "--stat", "-U30", "--word-diff", "--word-diff-regex=[a-z]+", "main"))


def git_pack(threads: int = 2) -> Case:
    """git pack-objects that looks for all deltas anew: large buffers, in two threads."""
    return _git("git-pack", f"git: pack 2500 commits anew, {threads} threads",
                ("pack-objects", "-q", "--all", "--no-reuse-delta", f"--threads={threads}", "--stdout"),
                threads=threads)


def _git(name: str, title: str, command: tuple[str, ...], **more) -> Case:
    return _case(name, title, BEYOND, ("git", "-c", "safe.directory=*", "-C", "{fixtures}/history.git", *command),
                 prepare=("git",), environment=tuple(GIT_ENVIRONMENT.items()), full=True, **more)


def suite() -> list[Case]:
    return [
        xalan(), ghostscript(), database(full=True),
        database("oltp_read_only", events=3000, variant="read-only", full=True), redis(), python(), sqlite(), gcc(),
        node(), lua(), z3(), git_log(), git_pack(), xalan(quick=True), lua(quick=True), redis(quick=True),
    ]
