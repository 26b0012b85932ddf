"""How findings are printed."""

import textwrap

from spanalloc_cli.doctor.findings import FINE, HEADINGS, TOPICS

_NAME_WIDTH = max(map(len, TOPICS)) + 2


def as_text(findings, width):
    """By severity: what is seen, why it matters, and behind an arrow what to do."""
    for severity, heading in HEADINGS.items():
        found = [finding for finding in findings if finding.severity == severity]
        if not found:
            continue
        yield f"{heading}:"
        for finding in found:
            yield from _paragraph(f"  {finding.topic:{_NAME_WIDTH}}", f"{finding.seen} {finding.why}", width)
            if finding.severity != FINE:
                yield from _paragraph(" " * _NAME_WIDTH + "->", finding.do, width)
        yield ""
    counts = ", ".join(f"{sum(finding.severity == severity for finding in findings)} {heading.lower()}"
                       for severity, heading in HEADINGS.items())
    yield f"{counts}."


def _paragraph(head, text, width):
    indent = " " * (_NAME_WIDTH + 3)
    # A command to type stays as it is: no word is cut.
    return textwrap.wrap(text, max(width, 60), initial_indent=f"{head:{_NAME_WIDTH + 3}}", subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def as_json(findings, **subject):
    return {"subject": subject, "findings": [finding._asdict() for finding in findings]}
