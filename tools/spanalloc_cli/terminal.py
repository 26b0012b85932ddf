"""Tables, colours and a whole screen, for terminals, and as plain text for all else."""

import contextlib
import os
import re
import sys
import unicodedata

_CODES = {"bold": 1, "dim": 2, "reverse": 7, "red": 31, "green": 32, "yellow": 33}
_ESCAPE = re.compile("\x1b\\[[0-9;]*m")
_ASCII = str.maketrans("█▒·─━▾…", "#=.--v~")  # where the locale's code has none of these
_PLAIN_WIDTH = 140  # of tables where there is no terminal


def paint(text, *styles):
    """The text with the codes of styles, which an Output without colours leaves out."""
    return f"\x1b[{';'.join(str(_CODES[style]) for style in styles)}m{text}\x1b[0m" if text and styles else text


def plain(text):
    return _ESCAPE.sub("", text)


def _width_of_character(c):
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


def width_of(text):
    text = plain(text)
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def padded(text, width, to_the_right=False):
    room = " " * (width - width_of(text))
    return room + text if to_the_right else text + room


def cropped(text, width):
    """No more of the text than fits."""
    if width_of(text) <= width:
        return text
    found = ""
    for piece in re.split(f"({_ESCAPE.pattern})", text):
        if piece.startswith("\x1b"):
            found += piece
            continue
        for c in piece:
            width -= _width_of_character(c)
            if width < 0:
                break
            found += c
    return found


def _encodes(stream, text):
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Output:
    """A stream. `is_screen`: whether a picture can be drawn there, one over the other."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stdout
        self.is_terminal = self.stream.isatty()
        self.is_screen = self.is_terminal and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
        self._has_pictures = _encodes(self.stream, "".join(map(chr, _ASCII)))
        self._colours = self.is_screen and not os.environ.get("NO_COLOR")

    @property
    def size(self):
        """(columns, lines); no terminal has room enough that nothing is cut, and no bound of lines (None)."""
        if self.is_terminal:
            with contextlib.suppress(OSError):
                columns, lines = os.get_terminal_size(self.stream.fileno())
                return columns or 80, lines or 24
            return 80, 24
        columns = os.environ.get("COLUMNS", "")
        return (int(columns) if columns.isdecimal() and int(columns) > 0 else _PLAIN_WIDTH), None

    def write(self, text):
        text = text if self._colours else plain(text)
        self.stream.write(text if self._has_pictures else text.translate(_ASCII))

    def print(self, *lines):
        for line in lines:
            self.write(f"{line if self._colours else plain(line).rstrip()}\n")


@contextlib.contextmanager
def whole_screen(output):
    """draw(lines) puts these in the place of what is on the screen. What was there before comes back at the end."""
    def control(text):
        output.stream.write(text)
        output.stream.flush()

    def draw(lines):
        # Without a line's end behind the last one: that would move all of them up.
        output.stream.write("\x1b[H")
        for n, line in enumerate(lines):
            output.write(line)
            output.stream.write("\x1b[K" + "\n" * (n + 1 < len(lines)))
        control("\x1b[J")

    control("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")
    try:
        yield draw
    finally:
        control("\x1b[?25h\x1b[?1049l")


class Table:
    """Columns with headings: those that begin with `>` stand to the right."""

    def __init__(self, *headings):
        self._to_the_right = [heading.startswith(">") for heading in headings]
        self._headings = [heading.lstrip(">") for heading in headings]
        self._rows, self._notes = [], []

    def add(self, *cells, note=""):
        """`note`: stands behind the row, or below it where there is no room."""
        self._rows.append(cells)
        self._notes.append(note)

    def lines(self, width=None):
        """Where that is more than `width` the headings take several lines, and columns come closer. No cell is cut."""
        for gap, splits in ((2, False), (2, True), (1, True)):
            heads = [re.split("(?<=/)| ", heading) if splits else [heading] for heading in self._headings]
            widths = [max(map(width_of, [*head, *cells])) for head, *cells in zip(heads, *self._rows)]
            total = sum(widths) + gap * (len(widths) - 1)
            if width is None or total <= width:
                break
        high = max(map(len, heads))
        heads = [[""] * (high - len(head)) + head for head in heads]

        def line(cells):
            return (" " * gap).join(padded(*each) for each in zip(cells, widths, self._to_the_right)).rstrip()

        beside = width is None or total + gap + max(map(width_of, self._notes), default=0) <= width
        found = [paint(line(head), "bold") for head in zip(*heads)] + ["─" * total]
        for cells, note in zip(self._rows, self._notes):
            if note and beside:
                found.append(padded(line(cells), total + gap) + note)
            else:
                found += [line(cells)] + [f"    {note}"] * bool(note)
        return found
