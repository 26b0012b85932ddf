"""The list of libraries, src/libraries.txt, against what it speaks of: the configs, the manual."""

import os
import re
import sys
import unittest
import unittest.mock

SOURCE = os.environ["SPANALLOC_TEST_SOURCE"]
sys.path.insert(0, os.path.join(SOURCE, "tools"))

from spanalloc_cli import libraries  # noqa: E402


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


class LibrariesTest(unittest.TestCase):
    def test_standard_is_the_first(self):
        self.assertEqual(libraries.SHIPPED_CONFIGS[0], libraries.DEFAULT_CONFIG)
        self.assertEqual(libraries.COMPARED_CONFIGS[0], libraries.DEFAULT_CONFIG)

    def test_each_config_bears_its_librarys_name(self):
        for name, library in libraries.LIBRARIES.items():
            with self.subTest(name):
                text = read("src" if library.folder == "standard" else ".", library.folder, "config.hpp")
                body = re.search(rf"^struct {library.config}\b.*?^}};", text, re.MULTILINE | re.DOTALL)
                self.assertIsNotNone(body, f"no struct {library.config} in {library.folder}/config.hpp")
                self.assertIn(f'kName = "{name}"', body.group())

    def test_each_config_that_has_a_name_has_a_line(self):
        found = set()
        for folder in {library.folder for library in libraries.LIBRARIES.values()}:
            text = read("src" if folder == "standard" else ".", folder, "config.hpp")
            found |= set(re.findall(r'kName = "([^"]+)"', text))
        self.assertEqual(found, set(libraries.LIBRARIES))

    def test_no_two_lines_are_of_one_library(self):
        lines = [line.split() for line in read("src", "libraries.txt").splitlines()
                 if line and not line.startswith("#")]
        names = [line[0] for line in lines]
        types = [tuple(line[2:4]) for line in lines]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(len(set(types)), len(types))

    def test_the_command_understands_what_is_a_link_and_results_are_read_by_what_was_recorded(self):
        for old, new in libraries.OLD_NAMES.items():
            self.assertEqual(libraries.current_name(f"{old}-clab"), f"{new}-clab")
            self.assertEqual(libraries.RECORDED_NAMES.get(old), new, "a link's name is in results too")
        # In the release after, when the links are gone.
        with unittest.mock.patch.object(libraries, "OLD_NAMES", {}):
            self.assertEqual(libraries.current_name("oopsla15-clab"), "oopsla15-clab")
            self.assertEqual(libraries.current_name("oopsla15-clab", libraries.RECORDED_NAMES), "scalloc-clab")

    def test_the_manual_names_what_ships(self):
        of_the_command, of_the_libraries = read("docs", "man", "spanalloc.1"), read("docs", "man", "spanalloc.7")
        for name in libraries.SHIPPED_CONFIGS:
            with self.subTest(name):
                written = name.replace("-", "\\-")
                self.assertTrue(re.search(rf"(?m)^\.BR? {re.escape(written)}( |$)", of_the_command),
                                f"docs/man/spanalloc.1 does not name {name}")
                file = "libspanalloc.so" if name == libraries.DEFAULT_CONFIG else f"libspanalloc\\-{written}.so"
                self.assertTrue(file in of_the_libraries, f"docs/man/spanalloc.7 does not name {file}")


if __name__ == "__main__":
    unittest.main()
