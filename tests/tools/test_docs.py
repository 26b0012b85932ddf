"""The documents: what they link to exists, a reader of the README comes to all of them, and it stays short."""

import os
import re
import tempfile
import unittest

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
README_LINES = 100  # more than that nobody reads before trying
HOUSE_LINES = 40  # of the README of a folder that is a house of others

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK = re.compile(r"\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a id=\"([^\"]+)\"")


def documents(tree):
    """Every Markdown file of a source tree, from its root; not those of builds and results in it."""
    found = []
    for folder, folders, files in os.walk(tree):
        if folder == tree:
            folders[:] = [name for name in folders if not re.match(r"build|out$", name)]
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.relpath(os.path.join(folder, name), tree) for name in files if name.endswith(".md")]
    return sorted(found)


def files_of(tree, folder):
    """The files below a folder of the tree, from its root; not what Python leaves there."""
    return [os.path.relpath(os.path.join(where, name), tree) for where, _, names in os.walk(os.path.join(tree, folder))
            if os.path.basename(where) != "__pycache__" for name in names]


def read(tree, document):
    with open(os.path.join(tree, document), encoding="utf-8") as file:
        return _FENCE.sub("", file.read())


def links(text):
    """Relative ones, as (path, anchor)."""
    targets = _LINK.findall(_CODE.sub("", text))
    return [tuple((target.split("#") + [""])[:2]) for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text):
    """Those that GitHub gives to headings, and those that stand there."""
    found = set(_ANCHOR.findall(text))
    for heading in _HEADING.findall(text):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while name + (f"-{number}" if number else "") in found:
            number += 1
        found.add(name + (f"-{number}" if number else ""))
    return found


def broken(tree):
    """A line a link of any document that leads nowhere, or out of the tree."""
    found = []
    for document in documents(tree):
        for path, anchor in links(read(tree, document)):
            target = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
            if target.startswith("..") or os.path.isabs(target) or not os.path.exists(os.path.join(tree, target)):
                found.append(f"{document}: no {path}")
            elif anchor and target.endswith(".md") and anchor not in anchors(read(tree, target)):
                found.append(f"{document}: no #{anchor} in {target}")
    return found


def reached(tree, start):
    """The documents that one comes to from `start` by links."""
    found, new = set(), [start]
    while new:
        document = new.pop()
        if document not in found:
            found.add(document)
            targets = (os.path.normpath(os.path.join(os.path.dirname(document), path))
                       for path, _ in links(read(tree, document)) if path.endswith(".md"))
            new += [target for target in targets if os.path.isfile(os.path.join(tree, target))]
    return found


# Where the libraries say that something is wrong, and end the process: the text may be of several literals.
_FATAL = re.compile(r"(?:os::fatal(?:_of_range)?\(|\breport\(|damage\.add\(\{|return \{)\s*((?:\"[^\"\n]*\"\s*)+)")


def sources(tree):
    """The files of the libraries, from the tree's root."""
    for folder in ("src", "papers"):
        for where, folders, names in os.walk(os.path.join(tree, folder)):
            folders[:] = [name for name in folders if name not in ("tests", "figures")]
            yield from (os.path.relpath(os.path.join(where, name), tree) for name in names
                        if name.endswith((".hpp", ".cpp")))


def messages(tree):
    """{a fatal message: the files that have it, from the tree's root} of the libraries' sources."""
    found = {}
    for path in sources(tree):
        with open(os.path.join(tree, path), encoding="utf-8") as file:
            for literals in _FATAL.findall(file.read()):
                message = "".join(re.findall(r'"([^"]*)"', literals))
                found.setdefault(message, set()).add(path)
    return {message: names for message, names in found.items() if " " in message}


# The whole lines that they print besides, and go on.
_LINE = re.compile(r"\"spanalloc: ((?:[^\"\\\n]|\\.)*)\"")


def other_messages(tree):
    """{a line that is no fatal message, with X in the place of what changes: the files that have it}."""
    found = {}
    for path in sources(tree):
        with open(os.path.join(tree, path), encoding="utf-8") as file:
            code = re.sub(r"//.*", "", file.read())
        for line in _LINE.findall(code):
            line = re.sub(r"%[.\d]*[a-z]", "X", line).replace("\\n", "")
            if not re.fullmatch(r"[X ]*", line):
                found.setdefault(line, set()).add(path)
    return found


def has_row(line, of_table):
    """Whether a row of the table is the beginning of a line; NAME and VALUE in it are any."""
    forms = (re.escape(row).replace("NAME", r"\w+").replace("VALUE", r"\w+") for row in of_table)
    return any(re.match(form, line) for form in forms)


def rows(tree):
    """{message: (what it means, where to go on)} of the tables of docs/debugging.md."""
    with open(os.path.join(tree, "docs", "debugging.md"), encoding="utf-8") as file:
        text = file.read().partition("\n## The messages")[2].partition("\n## A core file")[0]
    found = re.findall(r"^\| `([^`]*)` \| (.*) \| (.*) \|$", text, re.MULTILINE)
    if len(found) != len(dict.fromkeys(message for message, *_ in found)):
        raise AssertionError(f"a message has two rows: {found}")
    return {message: (meaning, further) for message, meaning, further in found}


class DocumentsTest(unittest.TestCase):
    def tree(self, **files):
        """A tree of documents given as folder__name=text."""
        scratch = tempfile.TemporaryDirectory(prefix="spanalloc-docs-")
        self.addCleanup(scratch.cleanup)
        for name, text in files.items():
            path = os.path.join(scratch.name, name.replace("__", "/") + ".md")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return scratch.name

    def test_links_of_this_tree(self):
        self.assertGreater(len(documents(SOURCE)), 10)
        self.assertEqual(broken(SOURCE), [])

    def test_the_readme_leads_to_every_document(self):
        self.assertEqual([name for name in documents(SOURCE) if name not in reached(SOURCE, "README.md")], [])

    def test_the_readme_is_short(self):
        with open(os.path.join(SOURCE, "README.md"), encoding="utf-8") as file:
            self.assertLessEqual(len(file.readlines()), README_LINES)

    def test_the_first_screen_of_the_readme_is_for_users(self):
        """It has few links, and none to a document of the engine's inside."""
        first = read(SOURCE, "README.md").partition("\n## How it compares")[0]
        self.assertLessEqual(len(links(first)), 10)
        inside = [f"docs/{name}.md" for name in ("architecture", "concurrency", "hot-path", "tuning")]
        self.assertEqual([path for path, _ in links(first) if path in inside or path.startswith("src/")], [])

    def test_each_message_has_a_row(self):
        """So has each other line that is printed; and each row is of a message."""
        found, of_table = messages(SOURCE), rows(SOURCE)
        self.assertGreater(len(found), 40)
        self.assertEqual({message: names for message, names in found.items() if message not in of_table}, {})
        others = other_messages(SOURCE)
        self.assertGreaterEqual(len(others), 5)
        self.assertEqual({line: names for line, names in others.items() if not has_row(line, of_table)}, {})
        self.assertEqual([row for row in of_table if row not in found and not any(
            has_row(line, [row]) for line in others)], [])

    def test_gdbs_commands_are_asked_where_they_know_something(self):
        """B is for messages of the engine whose blocks they know."""
        found = messages(SOURCE)
        in_vain = [message for message, (_, further) in rows(SOURCE).items() if "B" in further.split(", ")
                   and not any(name.startswith("src/standard/") for name in found.get(message, ()))]
        self.assertEqual(in_vain, [])

    def test_where_messages_are_found(self):
        tree = self.tree()
        for path, text in (
                ("src/a.hpp", 'os::fatal("one of", p); os::fatal(\n  "two "\n  "parts:",\n p); f("none at all");'),
                ("papers/x/engine/b.hpp", 'damage.add({"three of", p}); report("four of", p);\nreturn {"five of", p};'),
                ("papers/x/tests/c.cpp", 'os::fatal("of a test")')):
            os.makedirs(os.path.join(tree, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(tree, path), "w", encoding="utf-8") as file:
                file.write(text)
        self.assertEqual(sorted(messages(tree)), ["five of", "four of", "one of", "three of", "two parts:"])

    def test_where_lines_that_are_not_fatal_are_found(self):
        tree = self.tree()
        os.makedirs(os.path.join(tree, "src"))
        with open(os.path.join(tree, "src", "a.cpp"), "w", encoding="utf-8") as file:
            file.write('static constexpr char kLine[] =\n    "spanalloc: ignored A=b: none\\n";\nwrite_text(2, kLine, 1);\n'
                       '// "spanalloc: in a comment"\nprint("spanalloc: ignored %s=%.64s: want %d\\n"); add("spanalloc: %s %p");')
        lines = other_messages(tree)
        self.assertEqual(sorted(lines), ["ignored A=b: none", "ignored X=X: want X"])
        self.assertEqual([has_row(line, ["ignored NAME=VALUE: want"]) for line in sorted(lines)], [False, True])

    def test_the_guide_to_messages_is_short(self):
        with open(os.path.join(SOURCE, "docs", "debugging.md"), encoding="utf-8") as file:
            self.assertLessEqual(len(file.read().split()), 2500)

    def test_each_house_says_what_its_folders_are(self):
        """The README of each names every folder in it, and is short."""
        for house in ("src", "papers", "tests", "bench"):
            with self.subTest(house):
                with open(os.path.join(SOURCE, house, "README.md"), encoding="utf-8") as file:
                    text = file.read()
                self.assertLessEqual(text.count("\n"), HOUSE_LINES)
                tracked = {path.split("/")[1] for path in files_of(SOURCE, house) if path.count("/") > 1}
                self.assertEqual([name for name in sorted(tracked) if f"{name}/" not in text], [])

    def test_good_links_pass(self):
        tree = self.tree(
            a="[b](docs/b.md), [c, of two\nlines](docs/b.md#a--b-c), ![p](docs/b.md \"a picture\"), [web](https://x/y)\n"
              "[here](#one-1), [folder](docs), [known](docs/b.md#own)\n# One\n# One\n",
            docs__b="## A & `b`, *C*\n<a id=\"own\"></a> [up](../a.md)")
        self.assertEqual(broken(tree), [])
        self.assertEqual(len(links(read(tree, "a.md"))), 6)

    def test_broken_links_are_named(self):
        tree = self.tree(a="[x](gone.md) ![y](docs/gone.png) [z](docs/b.md#gone) [out](../etc) [q](#gone)", docs__b="# B")
        self.assertEqual(broken(tree), ["a.md: no gone.md", "a.md: no docs/gone.png", "a.md: no #gone in docs/b.md",
                                        "a.md: no ../etc", "a.md: no #gone in a.md"])

    def test_code_has_no_links_and_no_headings(self):
        tree = self.tree(a="`[x](gone.md)` and ``[`](gone.md)``\n```sh\n# no heading\n[x](gone.md)\n```\n[y](#no-heading)\n")
        self.assertEqual(broken(tree), ["a.md: no #no-heading in a.md"])

    def test_what_nobody_links_to_is_not_reached(self):
        tree = self.tree(README="[a](docs/a.md)", docs__a="[b](b.md#x)", docs__b="", docs__alone="[a](a.md)")
        self.assertEqual(reached(tree, "README.md"), {"README.md", "docs/a.md", "docs/b.md"})

    def test_builds_are_left_out(self):
        self.assertEqual(documents(self.tree(build__a="", out__b="", docs__c="", docs__build__d="")),
                         ["docs/build/d.md", "docs/c.md"])


if __name__ == "__main__":
    unittest.main()
