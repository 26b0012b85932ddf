"""Writes a PDF in the manner of a large technical manual: text in several fonts, tables, diagrams, shadings, an
outline, links, compressed streams. Directly, because a converter would take longer than the case."""

import zlib

from . import inputs
from .inputs import Dice, sentence

FONTS = ("Times-Roman", "Times-Bold", "Helvetica", "Helvetica-Oblique", "Courier")
PALETTE = ("0 0 0", "0.1 0.1 0.5", "0.5 0.1 0.1", "0.1 0.4 0.1", "0.3 0.3 0.3")


def _paragraph(dice, x, y, lines, font, size):
    yield f"BT /{font} {size} Tf {size + 2} TL {dice.pick(PALETTE)} rg {x} {y} Td"
    for _ in range(lines):
        yield f"({sentence(dice, 9)}) Tj T*"
    yield "ET"


def _table(dice, x, y, rows, columns):
    yield "q 0.5 w"
    for row in range(rows):
        for column in range(columns):
            left, bottom = x + column * 70, y - row * 14
            yield f"{0.8 + dice.below(20) / 100} g {left} {bottom} 70 14 re B 0 g"
            yield f"BT /F4 8 Tf {left + 3} {bottom + 4} Td ({dice.below(1 << 32):08x}) Tj ET"
    yield "Q"


def _diagram(dice, x, y, curves):
    yield f"q 1 0 0 1 {x} {y} cm 1 w"
    for _ in range(curves):
        points = " ".join(str(dice.below(180)) for _ in range(6))
        yield f"{dice.pick(PALETTE)} RG {dice.below(180)} {dice.below(120)} m {points} c S"
        yield f"q {dice.below(150)} {dice.below(100)} 30 20 re W n /S{dice.below(2)} sh Q"
    yield "Q"


def _page_content(seed):
    dice = Dice(seed)
    yield from _paragraph(dice, 60, 780, 1, "F1", 16)
    yield from _paragraph(dice, 60, 750, 14, "F0", 10)
    yield from _table(dice, 60, 560, dice.between(6, 12), 6)
    yield from _diagram(dice, 60, 260, 12)
    yield from _paragraph(dice, 270, 370, 6, "F3", 8)
    yield from _paragraph(dice, 60, 230, 13, "F0", 10)
    yield from _paragraph(dice, 60, 60, 2, "F4", 8)


class _Objects:
    """Numbers the objects and remembers where each one stands in the file."""

    def __init__(self):
        self.offsets = {}
        self.position = 0

    def raw(self, data):
        self.position += len(data)
        return data

    def put(self, number, body):
        self.offsets[number] = self.position
        return self.raw(b"%d 0 obj\n%b\nendobj\n" % (number, body))

    def stream(self, number, dictionary, data):
        packed = zlib.compress(data)
        head = b"<< %b /Filter /FlateDecode /Length %d >>" % (dictionary, len(packed))
        return self.put(number, head + b"\nstream\n" + packed + b"\nendstream")

    def trailer(self, root):
        count = max(self.offsets) + 1
        lines = b"".join(b"%010d 00000 n \n" % self.offsets[n] for n in range(1, count))
        return (b"xref\n0 %d\n0000000000 65535 f \n" % count + lines
                + b"trailer\n<< /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, root, self.position))


CATALOG, PAGES, OUTLINES, RESOURCES, FIRST_FONT, FIRST_SHADING, FIRST_PAGE = 1, 2, 3, 4, 5, 10, 12
PER_PAGE = 4  # page, content, outline entry, link


def manual(pages):
    """The pieces of the file."""
    objects = _Objects()
    number = [FIRST_PAGE + PER_PAGE * page for page in range(pages)]
    yield objects.raw(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    yield objects.put(CATALOG, b"<< /Type /Catalog /Pages %d 0 R /Outlines %d 0 R >>" % (PAGES, OUTLINES))
    yield objects.put(PAGES, b"<< /Type /Pages /Count %d /Kids [%b] >>" % (
        pages, b" ".join(b"%d 0 R" % n for n in number)))
    yield objects.put(OUTLINES, b"<< /Type /Outlines /Count %d /First %d 0 R /Last %d 0 R >>" % (
        pages, number[0] + 2, number[-1] + 2))
    fonts = " ".join(f"/F{i} {FIRST_FONT + i} 0 R" for i in range(len(FONTS)))
    yield objects.put(RESOURCES, f"<< /Font << {fonts} >> /Shading << /S0 {FIRST_SHADING} 0 R "
                                 f"/S1 {FIRST_SHADING + 1} 0 R >> >>".encode())
    for i, font in enumerate(FONTS):
        yield objects.put(FIRST_FONT + i, f"<< /Type /Font /Subtype /Type1 /BaseFont /{font} >>".encode())
    for i, shape in enumerate(("/ShadingType 2 /Coords [0 0 180 120]", "/ShadingType 3 /Coords [90 60 0 90 60 90]")):
        yield objects.put(FIRST_SHADING + i, f"<< {shape} /ColorSpace /DeviceRGB /Function << /FunctionType 2 "
                                             "/Domain [0 1] /C0 [1 0.9 0.8] /C1 [0.4 0.5 0.9] /N 1 >> >>".encode())
    dice = Dice(7)
    for page, first in enumerate(number):
        # 200 different pages are as good as thousands, and quickly made.
        content = _contents()[page % DIFFERENT]
        yield objects.put(first, b"<< /Type /Page /Parent %d 0 R /MediaBox [0 0 595 842] /Resources %d 0 R "
                                 b"/Contents %d 0 R /Annots [%d 0 R] >>" % (PAGES, RESOURCES, first + 1, first + 3))
        yield objects.stream(first + 1, b"", content)
        before = b"/Prev %d 0 R " % (first + 2 - PER_PAGE) if page else b""
        after = b"/Next %d 0 R " % (first + 2 + PER_PAGE) if page + 1 < pages else b""
        yield objects.put(first + 2, b"<< /Title (%b) /Parent %d 0 R %b%b/Dest [%d 0 R /Fit] >>" % (
            sentence(dice, 6).encode(), OUTLINES, before, after, first))
        yield objects.put(first + 3, b"<< /Type /Annot /Subtype /Link /Rect [60 40 300 70] /Border [0 0 0] "
                                     b"/Dest [%d 0 R /Fit] >>" % dice.pick(number))
    yield objects.trailer(CATALOG)


DIFFERENT = 200
_made = []


def _contents():
    if not _made:
        _made.extend("\n".join(_page_content(seed)).encode() for seed in range(DIFFERENT))
    return _made
