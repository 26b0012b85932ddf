"""The scripts that judge the source tree must be able to say no."""

import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]


def script(path, *arguments):
    return subprocess.run(
        [sys.executable, os.path.join(SOURCE, path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )


class LayersTest(unittest.TestCase):
    def lint(self, **files):
        """Lints a tree of the files given as folder__name=text, headers but for bench__NAME_py."""
        with tempfile.TemporaryDirectory() as tree:
            for name, text in files.items():
                name = name[:-3] + ".py" if name.endswith("_py") else name + ".hpp"
                path = os.path.join(tree, name.replace("__", "/"))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return script("tests/integration/lint_layers.py", tree)

    def test_this_tree(self):
        run = script("tests/integration/lint_layers.py", SOURCE)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_downward_include_passes(self):
        run = self.lint(src__base__bits="", src__os__x='#include "base/bits.hpp"\n#include <sys/mman.h>')
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_upward_include_fails(self):
        run = self.lint(src__base__bits='\n#include "os/x.hpp"', src__os__x="")
        self.assertEqual(run.returncode, 1)
        self.assertIn("bits.hpp:2:", run.stdout)

    def test_public_header_may_not_include_internals(self):
        run = self.lint(include__spanalloc__x='#include "base/bits.hpp"', src__base__bits="")
        self.assertEqual(run.returncode, 1)

    def test_unknown_folder_fails(self):
        self.assertEqual(self.lint(src__misc__x="").returncode, 1)

    def test_rooms_of_papers(self):
        files = {"src__base__a": "", "src__standard__span_pool": "", "src__standard__heap": "", "src__api__x": "",
                 "papers__shared__s": '#include "base/a.hpp"', "papers__one__engine__e": ""}
        def of(include, name="papers__two__engine__e"):
            return self.lint(**{**files, name: f'#include "{include}"'})
        for include in ("base/a.hpp", "standard/span_pool.hpp", "papers/shared/s.hpp", "papers/two/engine/e2.hpp"):
            run = self.lint(**{**files, "papers__two__engine__e2": "", "papers__two__engine__e": f'#include "{include}"'})
            self.assertEqual(run.returncode, 0, run.stdout)
        for include in ("standard/heap.hpp", "api/x.hpp", "papers/one/engine/e.hpp"):
            self.assertEqual(of(include).returncode, 1, include)
            self.assertEqual(of(include, "papers__two__tests__t").returncode, 0, include)
        self.assertEqual(of("papers/one/engine/e.hpp", "papers__shared__s2").returncode, 1)
        self.assertEqual(of("papers/shared/s.hpp", "src__api__y").returncode, 1)

    def test_the_suite_knows_no_paper(self):
        for text, what in (("\nfrom papers.shared import figures", "imports papers.shared"), ("\nimport papers.x", "imports papers.x"),
                           ("\ndef f():\n    from papers import x", "imports papers")):
            run = self.lint(src__base__a="", bench__suite__x_py=text)
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stdout, rf"x\.py:[23]: {what}: the suite knows no paper; ")
        run = self.lint(src__base__a="", bench__x='\n#include "papers/shared/s.hpp"')
        self.assertIn("x.hpp:2: includes papers/shared/s.hpp: the suite knows no paper", run.stdout)
        run = self.lint(src__base__a="", bench__x_py="import os  # not papers", bench__x='#include "support/a.hpp"')
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_include_without_folder_fails(self):
        self.assertEqual(self.lint(src__base__a='#include "b.hpp"', src__base__b="").returncode, 1)

    def test_includes_in_a_circle_fail(self):
        run = self.lint(src__base__a='#include "base/b.hpp"', src__base__b='\n#include "base/c.hpp"',
                        src__base__c='#include "base/a.hpp"', src__os__x='#include "base/a.hpp"')
        self.assertEqual(run.returncode, 1)
        self.assertIn("b.hpp:2: includes base/c.hpp, which includes it", run.stdout)
        self.assertNotIn("x.hpp", run.stdout)
        self.assertEqual(self.lint(src__base__a='#include "base/a.hpp"').returncode, 1)

    def test_system_call_outside_os_fails(self):
        self.assertEqual(self.lint(src__sync__x="long f() { return syscall(1); }").returncode, 1)
        self.assertEqual(self.lint(src__sync__x="#include <sys/mman.h>").returncode, 1)
        self.assertEqual(self.lint(src__sync__x="// syscall(1) is a comment").returncode, 0)

    def test_atomic_outside_its_door_fails(self):
        self.assertEqual(self.lint(src__sync__x="std::atomic<int> a;").returncode, 1)
        self.assertEqual(self.lint(src__base__atomic="#include <atomic>\nstd::atomic<int> a;").returncode, 0)

    def test_constant_of_one_config_fails(self):
        run = self.lint(src__standard__x="int a = Config::kA;\nint b = StandardReuse80::kB;")
        self.assertEqual(run.returncode, 1)
        self.assertIn("x.hpp:2: a constant of one config", run.stdout)
        self.assertEqual(self.lint(src__standard__config="struct B { int b = Standard::kB; };").returncode, 0)

    def test_empty_tree_fails(self):
        self.assertEqual(self.lint(other__x="").returncode, 1)


class WordsTest(unittest.TestCase):
    GLOSSARY = """
| not | a table | widget |
<!-- words:begin -->
| word | means | in the code still | not |
|---|---|---|---|
| slice | a piece; a granule has been one | | granule, LAB |
| active span | where a thread is | current span | (hot), warm, bury |
| block | what it hands out | | |
<!-- words:end -->
"""

    def lint(self, text, name="src/standard/x.hpp", glossary=GLOSSARY, counts=None):
        with tempfile.TemporaryDirectory() as tree:
            files = {"docs/architecture.md": glossary, name: text}
            if counts is not None:
                files["tests/integration/words_in_code.txt"] = counts
            for path, content in files.items():
                path = os.path.join(tree, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
            return script("tests/integration/lint_words.py", tree)

    def refused(self, text, **where):
        """The words that it refuses, in order."""
        run = self.lint(text, **where)
        words = [line.split(": ")[1] for line in run.stdout.splitlines()[:-1]]
        self.assertEqual(run.returncode, 1 if words else 0, run.stdout)
        return words

    def test_this_tree(self):
        run = script("tests/integration/lint_words.py", SOURCE)
        self.assertEqual(run.returncode, 0, run.stdout)

    def test_words_of_the_last_column_are_refused(self):
        self.assertEqual(self.refused("a warm span // of a Granule"), ["warm", "Granule"])
        self.assertIn("x.hpp:2: warm:", self.lint("\n// warm").stdout)

    def test_parts_of_identifiers_and_other_forms_are_refused(self):
        self.assertEqual(self.refused("kMostGranules warm_span isWarm LABs kLab buries buried"),
                         ["Granules", "warm", "Warm", "LABs", "Lab", "buries", "buried"])

    def test_longer_words_and_what_the_table_does_not_refuse_pass(self):
        self.assertEqual(self.refused("warmth label hot slice means widget granulesque piece"), [])

    def test_file_names_count(self):
        self.assertEqual(self.refused("", name="src/pages/warm_bound.hpp"), ["warm"])

    def test_only_the_folders_that_the_glossary_speaks_of(self):
        for name in ("papers/scalloc/engine/x.hpp", "papers/leite_rocha/manager/x.hpp"):
            self.assertIn(" 5 words, 0 violations", self.lint("warm", name=name).stdout)

    def test_what_users_read_has_the_words_of_the_field(self):
        for text, words in (("a current\nspan", ["current span"]), ("Current spans, kCurrentSpan", ["Current spans", "Current Span"]),
                            ("the current, span; a span current. Current\n\nspan `kCurrentSpan`", []), ("warm", [])):
            for name in ("README.md", "docs/using.md", "docs/man/x.7", "include/spanalloc/x.h"):
                self.assertEqual(self.refused(text, name=name), words, text)
        self.assertIn("0 files, 5 words, 0 violations", self.lint("a current span", name="docs/concurrency.md").stdout)

    def test_what_is_printed_has_them_too(self):
        for name, text, words in (
                ("tools/x.py", '# current span\nprint("the current "\n f"{x}span", "current-span")\n', ["current span"]),
                ("tools/x.py", 'class A(gdb.Command):\n  """A current span."""\n', ["current span"]),
                ("papers/one/engine/x.hpp", '// "current span"\nint current_span; f("current_span", "x\\"current span");',
                 ["current span"])):
            self.assertEqual(self.refused(text, name=name), words, text)
        for name, text in (("papers/one/tests/x.cpp", 'f("a current span");'),
                           ("tools/x.py", '"""A current span."""\nclass A:\n  """A current span."""\n  def current_span(a): ""\n')):
            self.assertIn("0 files", self.lint(text, name=name).stdout)
        self.assertIn("x.py:3: current span", self.lint("\n\nf('a current span')", name="tools/a/x.py").stdout)

    def test_code_says_the_words_of_before_no_more_often(self):
        text = "current_span CurrentSpan // the current span"
        for counts, told in (("3 current span\n", None), ("2 current span\n", "new code"), ("4 current span\n", "--write")):
            run = self.lint(text, counts=counts)
            self.assertEqual(run.returncode, 1 if told else 0, run.stdout)
            self.assertIn(told or "", run.stdout)

    def test_public_names_pass(self):
        self.assertEqual(self.refused('kName = "warm-lab"; out.live_labs = 1;'), [])
        self.assertEqual(self.refused('kName = "warm"; // warm'), ["warm"])

    def test_the_glossary_has_its_own_words(self):
        table = self.GLOSSARY.replace("what it hands out", "of a current span (`CurrentSpan`)")
        self.assertEqual(self.refused("", glossary=table), ["current span"])
        self.assertIn("docs/architecture.md:8: current span", self.lint("", glossary=table).stdout)

    def test_carved_is_a_figure_and_no_word(self):
        table = self.GLOSSARY.replace("current span |", "current span, carve |")
        text = "`carved_bytes`, carved_blocks, `carved`\n.TS\nx\tcarved\ty\nwas carved"
        self.assertEqual(self.refused(text, name="docs/man/x.7", glossary=table), ["carved"])

    def test_no_glossary_and_no_files_fail(self):
        self.assertEqual(self.lint("", glossary="").returncode, 1)
        self.assertEqual(self.lint("", name="src/base/x.hpp").returncode, 1)


class PathsTest(unittest.TestCase):
    def lint(self, **files):
        """Lints a tree of these files, and of some that others may name."""
        with tempfile.TemporaryDirectory() as tree:
            for name, text in {"src/base/bits.hpp": "", "papers/one/engine/heap.hpp": "", "papers/one/tests/a_test.cpp": "",
                               "docs/using.md": "", "README.md": "src/base/bits.hpp", **files}.items():
                path = os.path.join(tree, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
            return script("tests/integration/lint_paths.py", tree)

    def refused(self, text, name="docs/a.md"):
        """The paths that it refuses, in order, each with its line."""
        run = self.lint(**{name: text})
        found = [tuple(line.split(": ")[:2]) for line in run.stdout.splitlines()[:-1]]
        self.assertEqual(run.returncode, 1 if found else 0, run.stdout)
        return [(int(where.split(":")[1]), path) for where, path in found]

    def test_this_tree(self):
        run = script("tests/integration/lint_paths.py", SOURCE)
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertGreater(int(run.stdout.split()[-4]), 1000, run.stdout)

    def test_from_where_a_path_is_read(self):
        for path, name in (("src/base/bits.hpp", "docs/a.md"), ("base/bits.hpp", "docs/a.md"), ("bits.hpp", "docs/a.md"),
                           ("../src/base/bits.hpp", "docs/a.md"), ("tests/a_test.cpp", "papers/one/DESIGN.md"),
                           ("engine/heap.hpp", "papers/one/DESIGN.md"), ("src/base/*.hpp", "docs/a.md"),
                           ("papers/one/tests", "docs/a.md")):
            self.assertEqual(self.refused(f"`{path}`.", name), [], path)
        for path, name in (("src/bits.hpp", "docs/a.md"), ("one/heap.hpp", "docs/a.md"), ("gone.hpp", "docs/a.md"),
                           ("tests/a_test.cpp", "docs/a.md"), ("tests/b_test.cpp", "papers/one/DESIGN.md"),
                           ("src/base/*.cpp", "docs/a.md"), ("papers/one/figures", "docs/a.md"),
                           ("docs/gone.md", "src/README.md"), ("base/gone.hpp", "docs/man/a.7")):
            self.assertEqual(self.refused(f"\n`{path}`.", name), [(2, path)], path)

    def test_comments_are_judged_and_code_is_not(self):
        self.assertEqual(self.refused('#include "a/b.hpp"\nf("a/c.hpp", 1\'000);  // a/d.hpp, "don\'t"\n/* a\n a/e.hpp */',
                                      "src/base/x.hpp"), [(2, "a/d.hpp"), (4, "a/e.hpp")])
        self.assertEqual(self.refused('"""Of a/b.py."""\nx = "a/c.py"  # a/d.py\ndef f():\n    """Of\n    a/e.py"""\n',
                                      "tools/x.py"), [(1, "a/b.py"), (2, "a/d.py"), (5, "a/e.py")])
        self.assertEqual(self.refused("add(a/b.cpp) # a/c.cpp", "src/CMakeLists.txt"), [(1, "a/c.cpp")])
        self.assertEqual(self.refused("#!/bin/sh\na/b.sh # a/c.sh", "scripts/x"), [(2, "a/c.sh")])
        self.assertEqual(self.refused("```sh\na/b.sh\n```\n\n```\na/c.hpp\n```\n"), [(6, "a/c.hpp")])

    def test_what_is_no_path_of_the_tree(self):
        self.assertEqual(self.refused("papers/ROOM/tests, src/PATH/NAME.hpp, https://x.org/a/b.hpp, /usr/a/b.h, ~/a/b.md, "
                                      "$x/a.md, <a/b.h>, sys/mman.h, build/release/a.txt, [a](gone/b.md), [gone/b.md](x/gone/b.md)"), [])
        self.assertEqual(self.refused("[`gone/c.md`](gone/b.md)"), [(1, "gone/c.md")])

    def test_history_is_left_alone(self):
        self.assertEqual(self.refused("| was | is |\n| `a/b.hpp` | `a/c.hpp` |\n\n## 0.2\n`a/d.hpp`\n\n## 0.1\n`a/e.hpp`",
                                      "CHANGELOG.md"), [(2, "a/c.hpp"), (5, "a/d.hpp")])

    def test_a_tree_without_paths_fails(self):
        self.assertEqual(self.lint(**{"README.md": ""}).returncode, 1)


class ListsTest(unittest.TestCase):
    def test_each_class_of_tests_is_in_the_list_by_which_it_is_run(self):
        missing = []
        for folder, places in (("tools", ("tests/tools",)), ("bench", ("tests/bench", "papers/*/tests"))):
            with open(os.path.join(SOURCE, "tests", folder, "CMakeLists.txt"), encoding="utf-8") as file:
                text = file.read()
            # `module.Class`, or a call that begins with the module.
            listed = set(re.findall(r"(\w+)\.(\w+)", text))
            for module, classes in re.findall(r"_test\((\w+) ([^)]*)\)", text):
                listed |= {(module, name) for name in classes.split()}
            for path in (path for place in places for path in glob.glob(os.path.join(SOURCE, place, "test_*.py"))):
                with open(path, encoding="utf-8") as file:
                    classes = re.findall(r"^class (\w+)\((.*)\):\n((?:.*\n)*?)(?=^\S|\Z)", file.read(), re.MULTILINE)
                module = os.path.basename(path)[len("test_"):-len(".py")]
                missing += [f"{path}: {name}" for name, _, text in classes
                            if (module, name) not in listed and re.search(r"^    def test_", text, re.MULTILINE)]
        self.assertEqual(missing, [])


class InterfaceTest(unittest.TestCase):
    HEADER = """
struct sp_thing {
  size_t plain; /* not; a_field */
  char text[16], *next, grid[2][3];
  void (*visit)(int, void*);
};
#define SP_LIMIT 7
SPANALLOC_PUBLIC const char* sp_name(void);
"""
    PROMISES = ["FUNCTION(sp_name, int)", "CONSTANT(SP_LIMIT, 7)", "SIZE(sp_thing, 64)",
                *(f"FIELD(sp_thing, {field}, 0, 8)" for field in ("plain", "text", "next", "grid", "visit"))]

    def judge(self, promises):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, text in (("x.h", self.HEADER), ("x.c", "\n".join(promises)), ("list", "sp_name\n")):
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.write(text)
            return script("tests/conformance/check_interface.py", *paths)

    def test_each_promise_counts(self):
        run = self.judge(self.PROMISES)
        self.assertEqual((run.returncode, run.stdout), (0, "1 functions, 8 promises in all\n"))
        for promise in self.PROMISES:
            run = self.judge([other for other in self.PROMISES if other != promise])
            self.assertEqual(run.returncode, 1, promise)


if __name__ == "__main__":
    unittest.main()
