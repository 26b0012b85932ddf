"""Recorded results are never rewritten: where a config has got another name since, they are read by today's.

The table is spanalloc_cli.libraries.OLD_NAMES.
"""

from __future__ import annotations

import re

from spanalloc_cli import libraries

_NAME = re.compile(rf"({'|'.join(libraries.OLD_NAMES)})(-[\w-]+)?")


def today(record):
    """A record as json.load gives it: every text and key that is a config's old name is its name of today. What only
    contains one, a path or a command line, is as it was."""
    if isinstance(record, str):
        return libraries.current_name(record) if _NAME.fullmatch(record) else record
    if isinstance(record, list):
        return [today(item) for item in record]
    if isinstance(record, dict):
        return {today(key): today(item) for key, item in record.items()}
    return record
