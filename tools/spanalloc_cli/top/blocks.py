"""What there is at an address of a process that stands still, and which live blocks hold a value, in lines of text:
what `spanalloc block` and `spanalloc find` of gdb print."""

import collections
import re

from spanalloc_cli.top import heap, heaps
from spanalloc_cli.top.process import threads_by_mark
from spanalloc_cli.top.screen import amount
from spanalloc_cli.top.spans import Spans

_PIECE = 1 << 20  # bytes of a large block that are searched together
_PAGE = 4096
_SHOWN = 24  # bytes of a block
_MOST_DAMAGES = 8
MOST_FOUND = 100


_NO_OUTSIDE = "the table of blocks with a mapping of their own cannot be read"
_AT = {"list": "on ", "none": ""}
_OF_WORD = {"no link": "is no link", "circle": "leads in a circle"}


class Unknown(Exception):
    """Nothing can be said; the text says why."""


class Blocks:
    """`still`: a memory.Reader that has tasks() and thread_records(), such as core.Core; `inspection`: its heap's.
    Unknown where that does not tell of single blocks."""

    def __init__(self, still, inspection):
        self._memory, self._i = still, inspection
        if not inspection.tells_layout:
            raise Unknown(f"the library {inspection.engine} does not tell where its records are: of its blocks nothing "
                          "is known")
        if not inspection.tells_blocks:
            raise Unknown(f"the library (spanalloc {inspection.library_version}) is older than this command: it does "
                          "not tell of single blocks")
        try:
            self._spans = Spans(still, inspection)
        except heap.Unreadable as error:
            raise Unknown(str(error)) from None
        except heap.NotStarted:
            raise Unknown("nothing has been allocated yet") from None
        except heap.NoConstants:
            raise Unknown(f"the constants of {inspection.path} cannot be read: it is gone, or is another file by "
                          "now") from None
        marks = self._spans.marks()
        tids = threads_by_mark(set(marks.values()), still.thread_records())
        names = {task.tid: task.name for task in still.tasks()}
        self._tids = {cache: tids.get(mark) for cache, mark in marks.items()}
        self._names = names

    def _thread(self, cache):
        """The words for the thread that has a cache."""
        if cache in self._spans.lost:
            return f"a thread lost at a fork (cache {cache})"
        tid = self._tids.get(cache)
        if tid is None:
            return f"a thread without a number (cache {cache})"
        name = self._names.get(tid)
        return f"thread {tid}" + (f" ({name})" if name else "")

    def _words(self, where):
        """With the threads' numbers in the place of those of their caches."""
        return re.sub(r"@(\d+)", lambda found: self._thread(int(found[1])), where)

    # ---- one address ----

    def describe(self, address):
        """The lines on an address."""
        each = self._spans.range_at(address)
        if each is None and self._spans.why_not and self._spans.known_to <= address < self._spans.end:
            return [f"{address:#x} lies in the heap, but {self._table_words()}"]
        if each is None:
            return self._outside_arena(address)
        if each.state != "used":
            what = {"free": "free memory of the heap", "lost": "a range within the heap that is somebody else's",
                    "decommitted": "a range within the heap that was returned to the kernel"}[each.state]
            return [f"{address:#x} lies in {what}: no block is there"]
        span = self._spans.span_of(each)
        if span.kind == "torn":
            return [f"{address:#x} lies in span {span.number}, but {span.state}"]
        if span.kind == "free":
            return [f"{address:#x} lies in a span that is free: no block is there", self._span_line(span)]
        index = span.index_at(address)
        if index is None:
            return [f"{address:#x} lies in a span, but in no block of it", self._span_line(span)]
        if span.kind == "large":
            return [self._block_line(span, index, address), "state   live: it is the only block of its span",
                    *self._holds(span.block(index), span.block_bytes), self._span_line(span)]
        return self._small(span, index, address)

    def _table_words(self):
        spans = self._spans
        return (f"the table of its ranges {spans.why_not} from that of {spans.known_to:#x} on: nothing is known of the "
                f"{amount(spans.end - spans.known_to)} behind")

    def _small(self, span, index, address):
        free, damages = self._spans.free_blocks(span)
        lines = [self._block_line(span, index, address), f"state   {self._state(span, index, free, damages)}"]
        lines += self._link_lines(span, index, free, damages)
        lines += self._holds(span.block(index), span.block_bytes)
        lines.append(self._span_line(span, free))
        lines += [f"{'missing' if damage.kind == 'unread' else 'damage':8}{self._damage_words(damage)}"
                  for damage in damages[:_MOST_DAMAGES]]
        if len(damages) > _MOST_DAMAGES:
            lines.append(f"damage  ... and {len(damages) - _MOST_DAMAGES} more")
        if self._spans.unread_caches:
            lines.append(f"missing {self._caches_words()}")
        for name, neighbour in (("before", index - 1), ("after", index + 1)):
            if 0 <= neighbour < span.blocks:
                lines.append(f"{name:8}{span.block(neighbour):#x}  {self._state(span, neighbour, free, damages)}")
        return lines

    @staticmethod
    def _block_line(span, index, address):
        start = span.block(index)
        at = "" if address == start else f"; {address:#x} is {address - start} bytes behind its start"
        of = f", block {index + 1} of {span.blocks}" if span.blocks > 1 else ""
        which = f" (class {span.class_number})" if span.class_number is not None else ""
        return f"block   {start:#x}, {span.block_bytes} bytes{which}{of}{at}"

    def _holds(self, block, size):
        data = self._memory.read(block, min(size, _SHOWN))
        if data is None:
            return ["holds   (its memory cannot be read)"]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in data)
        return [f"holds   {bytes(data).hex(' ')}  |{text}|"]

    def _state(self, span, index, free, damages):
        found = free.get(index)
        if found:
            times = "" if len(found) == 1 else f", {len(found)} times"
            return f"free{times}: {'; '.join(map(self._place, found))}"
        why_unsure = self._why_unsure(span, damages)
        if why_unsure is None:
            return "live"
        looks_free = self._looks_free(span, index)
        if looks_free is None:
            return f"unknown: its first word cannot be read, and {why_unsure}"
        return f"{'free' if looks_free else 'live'}, by its first word: {why_unsure}"

    def _why_unsure(self, span, damages):
        """Why a block of the span may be free though nothing that could be read has it. None: it may not."""
        if span.state == "withdrawn" or any(damage.kind != "unread" for damage in damages):
            return "the lists of its span are damaged"
        if damages:
            return "a list of its span cannot be read to its end"
        return "not all threads' bins can be read" if self._spans.unread_caches else None

    def _caches_words(self):
        caches = self._spans.unread_caches
        which = "all" if None in caches else f"{len(caches)} {'records' if len(caches) > 1 else 'record'}"
        return f"{which} of threads' heaps cannot be read: blocks in their bins and batches are not known"

    def _place(self, free):
        """Where a free block is, in words."""
        where = f"{_AT[free.kind]}{self._words(free.where)}"
        return f"{where}, {free.place} of {free.of}" if free.of else where

    def _damage_words(self, damage):
        where = self._words(damage.free.where)
        if damage.kind == "twice":
            also = self._place(damage.also._replace(of=0))
            return (f"{damage.block:#x} is {also}, and {self._place(damage.free)}: freed twice, or a thread was about to "
                    "move it")
        return {"no link": f"{where} ends at {damage.block:#x}, whose first word is no link",
                "circle": f"{where} leads in a circle from {damage.block:#x} on",
                "unread": f"{where} cannot be read behind {damage.block:#x}: what follows there is not known",
                "no block": f"{where} leads to {damage.block:#x}, where no block is"}[damage.kind]

    def _looks_free(self, span, index):
        """Whether its first word is a link, which that of a live block is by chance alone. None: it cannot be read."""
        block = span.block(index)
        word = self._memory.number(block)
        if word is None:
            return None
        kind, to = self._spans.decode(block, word)
        return kind != "to" or span.is_block(to)

    def _link_lines(self, span, index, free, damages):
        found, block = free.get(index), span.block(index)
        word = self._memory.number(block)
        if word is None:
            return []
        kind, to = self._spans.decode(block, word)
        is_link = kind != "to" or span.is_block(to)
        if found is None:
            where = f"to {to:#x}" if to else "of the end of a list"
            text = f"link    its first word is a link {where}: it is free on a list that is damaged, or was freed twice"
            return [text] if is_link else []
        if found[0].kind == "none":
            return []
        how = next((_OF_WORD[damage.kind] for damage in damages if damage.block == block and damage.kind in _OF_WORD), None)
        if how:
            return [f"link    DAMAGED: the first word, {word:#018x}, {how} (written to after its free, or freed twice)"]
        valid = {"end": "the last one of its list"}
        return [f"link    valid: {valid.get(kind) or f'to {to:#x}'}"]

    def _span_line(self, span, free=None):
        text = f"span    {span.number} at {span.start:#x}, {amount(span.bytes)}, {span.state}"
        if span.owner is not None and span.state != "withdrawn":
            text += f", {self._thread(span.owner)}"
        if free is None:
            return text
        never = span.blocks - span.carved
        text += f"; of its {span.blocks} blocks {len(free)} are free"
        return text + (f", {never} of them untouched" if never else "")

    def _outside_arena(self, address):
        for block, size, mapping, mapped in self._spans.outside():
            if mapping <= address < mapping + mapped:
                at = "" if address == block else f"; {address:#x} is {address - block} bytes behind its start"
                return [f"block   {block:#x}, {size} bytes{at}",
                        "state   live: it has a mapping of its own, outside spans", *self._holds(block, size)]
        own = heaps.at(self._memory, self._i.program_heaps, address)
        if own is not None:
            name = f" {own.name}" if own.name else ""
            return [f"{address:#x} lies in the first-class heap{name} (sp_heap* {own.address:#x})",
                    "        of blocks of such heaps nothing more is known"]
        if not self._spans.outside_is_read:
            return [f"{address:#x} is in no span, but {_NO_OUTSIDE}"]
        return [f"{address:#x} is no address of this heap, as far as its records tell (blocks that were allocated inside",
                "        mmap or the like of another library stand in none)"]

    # ---- a value ----

    def find(self, value, most=MOST_FOUND):
        """The lines on live blocks that hold the word `value`."""
        needle = value.to_bytes(8, "little")
        found, free_too, is_cut = [], 0, False
        missing = collections.Counter()  # what could not be read
        for each in self._spans.ranges:
            if each.state != "used" or is_cut:
                continue
            span = self._spans.span_of(each)
            missing["spans"] += span.kind == "torn"
            if span.kind not in ("small", "large"):
                continue
            lists = None
            end = span.block(span.carved - 1) + span.block_bytes if span.carved else span.first
            for place in self._places(needle, span.first, end, missing):
                lists = lists or (self._spans.free_blocks(span) if span.kind == "small" else ({}, []))
                index = span.index_at(place)
                if index is None:
                    continue
                is_free = self._is_free(span, index, *lists)
                if is_free:
                    free_too += 1
                    continue
                if len(found) == most:
                    is_cut = True
                    break
                found.append(self._found(span.block(index), span.block_bytes, place)
                             + ("" if is_free is False else ", of which is not known whether it is live"))
        for block, size, _, _ in self._spans.outside():
            for place in self._places(needle, block, block + size, missing):
                is_cut = is_cut or len(found) == most
                if is_cut:
                    break
                found.append(self._found(block, size, place))
        if is_cut:
            found.append(f"... cut at {most}: there are more")
        if free_too:
            found.append(f"(and {free_too} times in free blocks)")
        not_read = [f"(not searched: {words})" for words in self._missing_words(missing)]
        if not found:
            found.append(f"no live block{' that can be read' if not_read else ''} holds {value:#x}")
        return found + not_read

    def _is_free(self, span, index, free, damages):
        """None: that is not known."""
        if index in free:
            return True
        if span.kind == "large" or self._why_unsure(span, damages) is None:
            return False
        return self._looks_free(span, index)

    def _missing_words(self, missing):
        if self._spans.why_not:
            yield self._table_words()
        if missing["spans"]:
            spans = "1 span, whose record" if missing["spans"] == 1 else f"{missing['spans']} spans, whose records"
            yield f"{spans} cannot be read or make no sense"
        if missing["bytes"]:
            yield f"{amount(missing['bytes'])} of blocks, which cannot be read"
        if not self._spans.outside_is_read:
            yield _NO_OUTSIDE

    @staticmethod
    def _found(block, size, place):
        return f"{place:#x}: at byte {place - block} of the block {block:#x}, {size} bytes"

    def _places(self, needle, start, end, missing):
        """Addresses of aligned words in [start, end) that are `needle`; pages that cannot be read are counted in `missing`.
        """
        at = start
        while at < end:
            size = min(_PIECE, end - at)
            data = self._memory.read(at, size)
            if data is None:
                size = min(_PAGE - at % _PAGE, size)
                data = self._memory.read(at, size)
                if data is None:
                    missing["bytes"] += size
                    data = b""
            data = bytes(data)
            place = data.find(needle)
            while place >= 0:
                if (at + place) % 8 == 0:
                    yield at + place
                place = data.find(needle, place + 1)
            at += size
