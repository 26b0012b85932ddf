"""Tables of the `spanalloc` command: whole at each width, and plain where there is no terminal."""

import io
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.environ["SPANALLOC_TEST_SOURCE"], "tools"))

from spanalloc_cli import compare_command, output, terminal  # noqa: E402
from spanalloc_cli.compare import Contender  # noqa: E402


class Comparison:
    """One with figures as large programs have them."""

    def __init__(self):
        record = {"wall_s": 1234.567, "user_s": 4000.0, "system_s": 100.0, "peak_kib": 100 << 20,
                  "minor_faults": 10 ** 8, "major_faults": 0}
        self.contenders = [Contender("glibc", "/a"), Contender("supermalloc", "/b", ours=True),
                           Contender("tcmalloc", "/c")]
        for contender in self.contenders:
            contender.runs = [record]
        self.contenders[1].processes, self.contenders[1].processes_ours = 3, 2
        self.contenders[2].problem = "malloc is in /usr/lib/x86_64-linux-gnu/libsomething.so.2"

    @staticmethod
    def ratios(_):
        return {"wall_s": 0.5, "peak_kib": 1.25}


class TableTest(unittest.TestCase):
    def test_a_comparison_fits_into_80_columns_with_nothing_cut(self):
        for width in (200, 140, 100, 80):
            lines = list(map(terminal.plain, compare_command.table(Comparison()).lines(width)))
            text = "\n".join(lines)
            for whole in ("spanalloc supermalloc", "1234.6 s", "100.0 GiB", "100,000,000", "in 2 of 3 processes",
                          "malloc is in /usr/lib/x86_64-linux-gnu/libsomething.so.2"):
                self.assertIn(whole, text, width)
            self.assertLessEqual(max(map(len, lines)), width, text)

    def test_columns(self):
        table = terminal.Table("name", ">how many")
        self.assertEqual([terminal.plain(line) for line in table.lines()], ["name  how many", "─" * 14])
        table.add("a", terminal.paint("5", "green"))
        table.add("bcdef", "1,000", note="why")
        self.assertEqual([terminal.plain(line) for line in table.lines()],
                         ["name   how many", "─" * 15, "a             5", "bcdef     1,000  why"])
        self.assertEqual([terminal.plain(line) for line in table.lines(11)],
                         ["        how", "name   many", "─" * 11, "a         5", "bcdef 1,000", "    why"])

    def test_widths_of_characters(self):
        self.assertEqual(terminal.width_of(terminal.paint("漢字e\u0301", "bold", "reverse")), 5)
        self.assertEqual(terminal.cropped(terminal.paint("漢字", "red"), 3), "\x1b[31m漢\x1b[0m")
        self.assertEqual(terminal.padded("漢", 4, to_the_right=True), "  漢")

    def test_without_a_terminal_it_is_plain(self):
        stream = io.StringIO()
        plain = terminal.Output(stream)
        plain.print(terminal.paint("a  ", "bold"))
        self.assertEqual((stream.getvalue(), plain.is_screen, plain.size[1]), ("a\n", False, None))

    def test_codes_other_than_utf_8(self):
        """Pictures become what there is; of names that are not text, or not in that code, nothing is lost."""
        for code, wanted in (("latin-1", b"#-v~ \xe9 \\u6f22 \\udcff\n"),
                             ("utf-8", "█─▾… é 漢 \\udcff\n".encode())):
            stream = io.TextIOWrapper(io.BytesIO(), encoding=code)
            with unittest.mock.patch("sys.stdout", stream), output.that_is_told_of():
                terminal.Output().print("█─▾… é 漢 \udcff")
            self.assertEqual(stream.buffer.getvalue(), wanted)


if __name__ == "__main__":
    unittest.main()
