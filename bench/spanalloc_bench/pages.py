"""HTML of the templates beside this file."""

from __future__ import annotations

import os

import jinja2


def words(value) -> str:
    """A value of a record, as a reader wants it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {words(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(words, value))
    if value is None:
        return "unknown"
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)


_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
TEMPLATES = jinja2.Environment(loader=jinja2.FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True,
                               lstrip_blocks=True, auto_reload=False)
TEMPLATES.filters["words"] = words
for _name in TEMPLATES.list_templates():
    TEMPLATES.get_template(_name)  # at once: an hour of measuring may follow
