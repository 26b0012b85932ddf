"""Spans of the engine `standard` in a process that stands still: which one has an address, what its record says, and
which of its blocks are free, each with the list that has it.

A span's blocks are told apart by what src/standard/span_word.hpp and free_list.hpp define. As in heap.py
no record is believed: what cannot be right leads nowhere.
"""

import bisect
import collections
import struct

from spanalloc_cli.top import heap

_PAGE = 4096
_ROWS = 256  # of the arena's table, that are read together
_MOST_CACHES = 1 << 18
_MOST_SLICES = 1 << 32
_MOST_OUTSIDE = 1 << 21
_NO_END = 8  # set in addresses where lists end

Range = collections.namedtuple("Range", "first slices state")  # of slices; `state`: used, free, decommitted or lost
# Why a block is free. `kind`: "list" (it is `place`, from 1 on, of `of`), or "none": `where` says why.
Free = collections.namedtuple("Free", "kind where place of", defaults=(0, 0))
# What is wrong at a block that `free` has. `kind`: "no link" (its first word is none), "circle" (it leads back into its own
# list), "twice" (`also` has it, too), "no block" (the list begins there,
# where no block is), "unread" (its first word, so that nothing is known of what is behind it on its list).
Damage = collections.namedtuple("Damage", "kind free block word also", defaults=(None, None))


class Span:
    """`number`, `start`, `bytes`; `kind`: "small" (several blocks), "large" (one), "free" or "torn"; `state`: in words;
    `owner`: number of a cache, or None; `size_class`, `class_number`: None where it has none; `first`: where the first
    block begins; `block_bytes`, `blocks`, `carved`."""

    def __init__(self, number, start, size):
        self.number, self.start, self.bytes = number, start, size
        self.kind, self.state, self.owner = "torn", "its record makes no sense", None
        self.size_class = self.class_number = None
        self.first, self.block_bytes, self.blocks, self.carved = start, 0, 0, 0
        self.purged, self.list, self.remote = 0, 0, 0

    def index_at(self, address):
        """Of the block that has the address; None: none has."""
        if self.block_bytes == 0 or address < self.first:
            return None
        index = (address - self.first) // self.block_bytes
        return index if index < self.blocks else None

    def block(self, index):
        return self.first + index * self.block_bytes

    def is_block(self, address):
        index = self.index_at(address)
        return index is not None and index < self.carved and self.block(index) == address

    def is_purged(self, index):
        first = (self.block(index) - self.start) // _PAGE
        last = (self.block(index) + self.block_bytes - 1 - self.start) // _PAGE
        return any(self.purged >> page & 1 for page in range(first, last + 1))


class Spans:
    """`memory`: a memory.Reader. `known_to`: the address behind the last range that the heap's table tells of; `end`: behind
    the last one that there is; `why_not`: why there are others, None where there are none; `unread_caches`: the numbers of
    threads' heaps whose records cannot be read, None among them where that is so of all; `outside_is_read`: whether the
    table of outside() could be. heap.NotStarted, heap.NoConstants, heap.Unreadable where there is nothing to see."""

    def __init__(self, memory, inspection):
        self._memory, self._i = memory, inspection
        self.base, self._rows, self.records = heap.places_of(memory, inspection)
        limit, self.key = memory.number(inspection.arena_limit), memory.number(inspection.link_key)
        if limit is None or self.key is None:
            raise heap.Unreadable("how large the heap is, or the key of its lists, cannot be read")
        self.limit = min(limit, _MOST_SLICES)
        self.classes = heap.read_classes(memory, inspection)
        self._caches = self._lost = self._kept = self.why_not = None
        self.unread_caches, self.outside_is_read = set(), True
        self.ranges = list(self._walk())
        self._firsts = [each.first for each in self.ranges]
        last = self.ranges[-1] if self.ranges else Range(1, 0, "")
        self.known_to, self.end = (self.base + (unit << inspection.slice_bits) for unit in (
            last.first + last.slices, self.limit))

    # ---- the arena ----

    def _walk(self):
        i = self._i
        rows, at_row, end_row, unit = None, 0, 0, 1  # slice 0 is never handed out
        while unit < self.limit:
            row = unit // 64
            if row >= end_row:
                rows, end_row = self._rows_from(row)
                at_row = row
                if rows is None:
                    self.why_not = "cannot be read"
                    return
            at, bit = (row - at_row) * i.row_words, unit % 64
            word = rows[at + i.row_blocks + bit]
            size = word >> i.block_size_shift
            if size == 0 or unit + size > self.limit:
                self.why_not = "makes no sense"
                return
            is_used = word & i.block_state_mask == i.block_used
            is_lost, is_gone = (rows[at + which] >> bit & 1 for which in (i.row_lost, i.row_unmapped))
            yield Range(unit, size, "free" if not is_used else "lost" if is_lost else
                        "decommitted" if is_gone else "used")
            unit += size

    def _rows_from(self, row):
        """(their words, the number behind the last one), of some rows; of one where not all can be read."""
        row_bytes = 8 * self._i.row_words
        for most in (_ROWS, 1):
            units = min(most * 64, self.limit - row * 64)
            count = (units + 63) // 64
            # The last row has existing slices only.
            data = self._memory.read(self._rows + row * row_bytes, count * row_bytes - 8 * (-units % 64))
            if data is not None:
                return data.cast("Q"), row + count
        return None, 0

    def range_at(self, address):
        """The Range that has the address; None: none has."""
        if address < self.base:
            return None
        unit = (address - self.base) >> self._i.slice_bits
        at = bisect.bisect_right(self._firsts, unit) - 1
        return self.ranges[at] if at >= 0 and unit < self.ranges[at].first + self.ranges[at].slices else None

    # ---- a span's record ----

    def span_of(self, each):
        """The Span of a used Range."""
        i = self._i
        span = Span(each.first, self.base + (each.first << i.slice_bits), each.slices << i.slice_bits)
        data = self._memory.read(self.records + each.first * i.span_stride, i.span_stride)
        if data is None:
            span.state = "its record cannot be read"
            return span
        word, first, purged = (_number(data, at, 8) for at in (i.span_word, i.span_first, i.span_purged))
        state, owner, c = word >> i.word_state_shift & 3, word >> i.word_owner_shift, data[i.span_class]
        span.owner = owner if owner != i.word_nobody else None
        if state == 0:
            is_cached = word >> i.word_cached_bit & 1 and not word & 0xFFFFF0000 and span.owner is not None
            span.kind, span.state = "free", "free, cached" if is_cached else "free"
            span.owner = span.owner if is_cached else None
            return span
        if not span.start <= first < span.start + span.bytes or state == 3 and span.owner is not None or not 0 < c <= i.class_count:
            return span
        span.first = first
        if c >= i.class_first_large:
            room = span.start + span.bytes - first
            is_huge = c == i.class_count
            span.kind, span.state, span.owner = "large", "in use", None
            span.class_number = None if is_huge else c
            span.block_bytes = room if is_huge else min(self.classes[c].block_bytes, room)
            span.blocks = span.carved = 1
            return span
        size_class = self.classes[c]
        if size_class.span_bytes != span.bytes or size_class.blocks == 0:
            return span
        span.kind, span.size_class, span.class_number = "small", size_class, c
        span.block_bytes, span.blocks = size_class.block_bytes, size_class.blocks
        span.carved = min(_number(data, i.span_carved, 2), span.blocks)
        span.purged = purged
        head = word >> 16 & 0xFFFFF
        span.remote = span.start + (head - 1) * 16 if head else 0
        span.list = _number(data, i.span_list, 8)
        is_retired = data[i.span_retired] != 0
        span.state = "withdrawn" if is_retired else "owned"
        if not is_retired and owner in self.lost:
            span.state, span.owner = f"{span.state}, of a thread lost at a fork", None
        elif not is_retired and owner == i.word_nobody:
            span.state = "abandoned"
        elif not is_retired and not self.mark_of(owner) and self.unread_caches.isdisjoint((owner, None)):
            span.state, span.owner = "abandoned", None
        return span

    def marks(self):
        """{number of a cache: an address in its thread's storage}, of those that have a thread in this process."""
        if self._caches is None:
            self._caches, self._lost = {}, set()
            i, memory = self._i, self._memory
            records, end, forks = memory.number(i.cache_records), *(
                memory.number(place, 4) for place in (i.cache_end, i.cache_forks))
            if None in (records, end, forks):
                self.unread_caches.add(None)
            for n in range(min(end or 0, _MOST_CACHES) if records else 0):
                mark = memory.number(records + n * i.cache_stride + i.cache_thread)
                its_forks = memory.number(records + n * i.cache_stride + i.cache_forks_of, 4)
                if mark is None or its_forks is None:
                    self.unread_caches.add(n)
                elif mark and its_forks == forks:
                    self._caches[n] = mark
                elif mark:
                    self._lost.add(n)
        return self._caches

    @property
    def lost(self):
        """Numbers of caches of the parent's other threads. (Addresses in their storage may be those of a new thread's.)"""
        self.marks()
        return self._lost

    def mark_of(self, cache):
        return self.marks().get(cache)

    # ---- its free blocks ----

    def kept_by_threads(self):
        """{number of a span: [(where, the address where a list begins)]}: its blocks in threads' batches.
        In `where` @N stands for the thread of cache N."""
        if self._kept is None:
            self._kept = collections.defaultdict(list)
            records, stride = self._memory.number(self._i.cache_records), self._i.cache_stride
            for number in (*self.marks(), *self.lost):
                data = self._memory.read(records + number * stride, stride)
                if data is None:
                    self.unread_caches.add(number)
                else:
                    self._add_batches(number, data)
        return self._kept

    def _add_batches(self, number, data):
        i = self._i
        for at in range(i.cache_batches, i.cache_batches + i.batch_count * i.batch_stride, i.batch_stride):
            if _number(data, at + i.batch_quota, 4):
                span = _number(data, at + i.batch_span, 4)
                self._kept[span].append((f"a remote batch, of @{number}", _number(data, at + i.batch_list, 8)))

    def free_blocks(self, span):
        """({index of a block: [Free]}, [Damage]) of a small span. Of several Free each is a place that has the block: it
        was freed twice, or a thread was about to move it."""
        return _FreeBlocks(self, self._memory, span).result()

    def decode(self, block, word):
        """Where a block's first word leads, as a link: ("end", None), or ("to", an address)."""
        target = block ^ word ^ self.key
        if target == self._i.no_block:
            return "end", None
        return "to", target

    def outside(self):
        """(address, bytes, start of its mapping, bytes of that) of each block with a mapping of its own."""
        i, memory = self._i, self._memory
        table = memory.number(i.outside_table)
        count = memory.number(table) if table else table
        data = memory.read(table + 16, 16 * count) if count and count <= _MOST_OUTSIDE else None
        self.outside_is_read = count == 0 or data is not None
        found = []
        for address, packed in struct.iter_unpack("<2Q", data) if data is not None else ():
            if address > 1:
                size = (packed & (1 << i.outside_end) - 1) >> 12 << 12
                before = (packed >> i.outside_before & 63) * _PAGE + address % _PAGE
                if before < size:
                    found.append((address, size - before, address - before, size))
        return found


class _FreeBlocks:
    def __init__(self, spans, memory, span):
        self._spans, self._memory, self._span = spans, memory, span
        self._pages = {}
        self._free, self._damages = {}, []

    def result(self):
        span = self._span
        for index in range(span.carved, span.blocks):
            self._free[index] = [Free("none", "never handed out")]
        if span.purged:
            for index in range(span.carved):
                if span.is_purged(index):
                    self._free[index] = [Free("none", "on a page that was returned to the kernel")]
        self._follow("the span's free list", span.list)
        self._follow("the span's remote list (freed by other threads)", span.remote)
        for where, address in self._spans.kept_by_threads().get(span.number, ()):
            self._follow(where, address)
        return self._free, self._damages

    def _damage(self, *fields):
        self._damages.append(Damage(*fields))

    def _word(self, block):
        page = block & -_PAGE
        if page not in self._pages:
            data = self._memory.read(page, _PAGE)
            self._pages[page] = None if data is None else data.cast("Q")
        words = self._pages[page]
        return None if words is None else words[block % _PAGE // 8]

    def _follow(self, where, at):
        span, found, has_joined = self._span, {}, False  # `found`: {index: its place}
        if at != 0 and not at & _NO_END and not span.is_block(at):
            self._damage("no block", Free("list", where), at)
        while at != 0 and not at & _NO_END and span.is_block(at):
            index = span.index_at(at)
            places = self._free.get(index, ())
            if places and places[-1].kind == "none":  # purged: its list ends before it
                break
            word = self._word(at)
            free = Free("list", where, len(found) + 1)
            if places and not has_joined:  # from here on they are one list
                self._damage("twice", free, at, word, places[-1])
                has_joined = True
            found[index] = free.place
            if word is None:
                self._damage("unread", free, at)
                break
            kind, to = self._spans.decode(at, word)
            is_last = kind == "end"
            if not is_last and (kind != "to" or not span.is_block(to) or span.index_at(to) in found):
                self._damage("circle" if kind == "to" and span.is_block(to) else "no link", free, at, word)
                break
            at = 0 if is_last else to
        for index, place in found.items():
            self._free.setdefault(index, []).append(Free("list", where, place, len(found)))


def _number(data, at, size):
    return int.from_bytes(data[at:at + size], "little")
