"""The options of the libraries, as spanalloc(7) describes them and as the libraries read them."""

import collections
import difflib
import os
import re

PREFIX = "SPANALLOC_"
STANDARD, SCALLOC, SUPERMALLOC, A2ALLOC = "standard", "scalloc", "supermalloc", "a2alloc"
EVERY_ENGINE = (STANDARD, SCALLOC, SUPERMALLOC, A2ALLOC)
# For the command and its helpers: no library reads them.
OF_THE_COMMAND = ("SPANALLOC_PYTHON", "SPANALLOC_PROBE_OUT")


class Number(collections.namedtuple("Number", "least most")):
    def takes(self, text):
        return bool(re.fullmatch("[0-9]+", text)) and self.least <= int(text) <= self.most

    def __str__(self):
        return f"a number from {self.least} to {self.most}"


class Switch:
    """On or off."""

    ON, OFF = ("1", "yes", "on", "true"), ("0", "no", "off", "false")

    def takes(self, text):
        return text in self.ON + self.OFF

    def __str__(self):
        return "0 or 1, no or yes, off or on, false or true"


class Word(collections.namedtuple("Word", "words")):
    def takes(self, text):
        return text in self.words

    def __str__(self):
        return self.words[0] if len(self.words) == 1 else f"{', '.join(self.words[:-1])} or {self.words[-1]}"


class Size(collections.namedtuple("Size", "word")):
    def takes(self, text):
        return text == self.word or self.bytes(text) is not None

    @staticmethod
    def bytes(text):
        """None where it is no number, or a larger one than is taken."""
        found = re.fullmatch("([0-9]+)([KMGTkmgt]?)", text)
        if not found:
            return None
        count = int(found[1]) << 10 * (" KMGT".index(found[2].upper()) if found[2] else 0)
        return count if count < 1 << 60 else None

    def __str__(self):
        return f"bytes, also with K, M, G or T behind the number, or {self.word}"


class Place(collections.namedtuple("Place", "most")):
    def takes(self, text):
        return 0 < len(os.fsencode(text)) <= self.most

    def __str__(self):
        return f"the name of a file, up to {self.most} bytes"


# {name: (the values that it takes, the engines that read it)}
OPTIONS = {
    "SPANALLOC_ARENA_BITS": (Number(30, 45), EVERY_ENGINE),
    "SPANALLOC_BACKGROUND": (Switch(), (STANDARD,)),
    "SPANALLOC_CLOCK": (Word(("kernel", "counted", "still")), EVERY_ENGINE),
    "SPANALLOC_CPUS": (Number(1, 4096), EVERY_ENGINE),
    "SPANALLOC_DECAY_MS": (Number(0, 3600 * 1000), (STANDARD, A2ALLOC)),
    "SPANALLOC_DEEPBIND": (Word(("keep",)), EVERY_ENGINE),
    "SPANALLOC_RSEQ": (Switch(), (SUPERMALLOC,)),
    "SPANALLOC_SEED": (Number(0, 2**63 - 1), EVERY_ENGINE),
    "SPANALLOC_SOFT_LIMIT": (Size("cgroup"), (STANDARD,)),
    "SPANALLOC_STATS_AT_EXIT": (Place(4000), EVERY_ENGINE),
    "SPANALLOC_THP": (Word(("system", "auto", "always", "never")), (STANDARD, SUPERMALLOC)),
}


def given(environment):
    """{name: value} of the variables of ours, also misspelt ones, but for those of the command, and empty ones, which
    count as unset."""
    return {name: text for name, text in sorted(environment.items())
            if name.upper().startswith(PREFIX) and text and name not in OF_THE_COMMAND}


def value(environment, name):
    """What a library takes from the environment: None where nothing is said, or nothing that it takes."""
    text = environment.get(name)
    return text if text is not None and OPTIONS[name][0].takes(text) else None


def is_on(environment, name):
    """Of a switch: whether it is said to be on."""
    return value(environment, name) in Switch.ON


def meant(name):
    """The option whose name is like this one, or begins so; None where none is."""
    options = {option.removeprefix(PREFIX): option for option in OPTIONS}
    said = name.upper().removeprefix(PREFIX)
    like = difflib.get_close_matches(said, options, n=1, cutoff=0.6)
    like += [option for option in options if said and option.startswith(said)]
    return options[like[0]] if like else None
