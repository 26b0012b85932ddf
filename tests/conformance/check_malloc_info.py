#!/usr/bin/env python3
"""Reads what malloc_info writes under a library: figures that are numbers, and bins that add up to them.

usage: check_malloc_info.py LIBRARY PROGRAM [BINS]

PROGRAM is malloc_info.c. BINS: the library has bins; another one may have none. Prints what is wrong, one line each; exit
code 0 when nothing is.
"""
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

MOMENTS = ("empty", "held", "freed", "trimmed")
# Objects of a bin that `held` has more than `empty`. (20000 bytes, wherever in its first page the object begins.)
HELD = {48: 300, 576: 1000, 14272: 50, 32768: 5}


class Bin:
    def __init__(self, element):
        self.size, self.folio = int(element.get("size")), int(element.get("folio"))
        self.committed, self.cached = int(element.find("committed").text), int(element.find("cached").text)
        self.folios = {int(entry.get("free")): int(entry.text) for entry in element.findall("folios")}

    def out(self):
        """Objects that are in use or in a cache."""
        if self.folio == 0:
            return self.committed // self.size
        return sum(count * (self.folio // self.size - free) for free, count in self.folios.items())

    def problems(self):
        if self.cached > self.out():
            yield f"{self.cached} objects in caches, of {self.out()}"
        if self.folio == 0:
            if self.folios or self.committed % self.size:
                yield "neither folios nor whole objects"
            return
        if self.folio % self.size or self.committed % self.folio:
            yield "no whole folios, or no whole objects in one"
        if max(self.folios) > self.folio // self.size:
            yield "a folio has more objects free than it has"
        used = self.folio * sum(count for free, count in self.folios.items() if free != self.folio // self.size)
        if not used <= self.committed <= self.folio * sum(self.folios.values()):
            yield "committed is not what the folios have"


class Document:
    def __init__(self, text):
        root = ElementTree.fromstring(text)
        if root.tag != "malloc" or not root.get("version") or not root.get("engine"):
            raise ValueError("the root says neither version nor engine")
        self.figures = {element.tag: int(element.text) for element in root if element.tag != "bins"}
        self.bins = {found.size: found for found in map(Bin, root.iterfind("bins/bin"))}
        self.has_bins = root.find("bins") is not None

    def in_use(self, size):
        return self.bins[size].out() - self.bins[size].cached if size in self.bins else 0

    def problems(self):
        for size, one in self.bins.items():
            yield from (f"bin {size}: {problem}" for problem in one.problems())
        if not self.has_bins:
            return
        bins = self.bins.values()
        for figure, total in (("carved", sum(one.committed for one in bins if one.folio)),
                              ("pooled", sum(one.cached * one.size for one in bins))):
            if self.figures[figure] != total:
                yield f"{figure} is {self.figures[figure]}, the bins have {total}"
        large = sum(one.committed - one.cached * one.size for one in bins if not one.folio)
        if self.figures["large"] < large:
            yield f"large is {self.figures['large']}, the bins have {large}"


def problems(documents, wants_bins):
    for moment, document in documents.items():
        if wants_bins and not document.has_bins:
            yield f"{moment}: no bins"
        yield from (f"{moment}: {problem}" for problem in document.problems())
    if not wants_bins:
        return
    for size, count in HELD.items():
        before, held, freed = (documents[moment].in_use(size) for moment in ("empty", "held", "freed"))
        if (held, freed) != (before + count, before):
            yield f"bin {size}: {before} in use, then {held} with {count} more, {freed} without them"
    if documents["freed"].figures["pooled"] == 0 or documents["trimmed"].figures["pooled"] != 0:
        yield "what was freed is not in caches, or is there after a trim"
    if documents["trimmed"].figures["carved"] >= documents["freed"].figures["carved"]:
        yield "a trim has given no folio back"


def main(arguments):
    if len(arguments) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    library, program = arguments[:2]
    written = subprocess.run([program], env={**os.environ, "LD_PRELOAD": library}, check=True, stdout=subprocess.PIPE,
                             text=True).stdout
    documents, texts = {}, {}
    for line in written.splitlines(True):
        if line.strip() in MOMENTS:
            moment = line.strip()
            texts[moment] = ""
        else:
            texts[moment] += line
    documents = {moment: Document(text) for moment, text in texts.items()}
    found = list(problems(documents, len(arguments) == 3)) if tuple(documents) == MOMENTS else ["a document is missing"]
    print("\n".join(found) or f"{len(documents)} documents, {len(documents['held'].bins)} bins")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
