"""/proc/PID/maps and smaps."""

import collections

Mapping = collections.namedtuple("Mapping", "start end permissions offset path")


def with_lines(text):
    """Of maps or smaps: [(mapping, the lines that follow it)]."""
    found = []
    for line in (text or "").splitlines():
        words = line.split(maxsplit=5)
        start, dash, end = (words[0] if words else "").partition("-")
        if dash and len(words) >= 5:
            path = words[5] if len(words) > 5 else ""
            found.append((Mapping(int(start, 16), int(end, 16), words[1], int(words[2], 16), path), []))
        elif found:
            found[-1][1].append(line)
    return found


def mappings(text):
    return [mapping for mapping, _ in with_lines(text)]


def at(found, address):
    """The mapping among `found` that has the address; None where none has."""
    return next((mapping for mapping in found if mapping.start <= address < mapping.end), None)
