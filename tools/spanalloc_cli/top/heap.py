"""Walks over the records of a heap of the engine `standard` in another process, and counts.

What the records say of a span's blocks, src/standard/span_word.hpp and purged_pages.hpp define:

  never carved, purged          free   the record has how many
  freed by other threads        free   the span word counts them
  an owned span's lists         free   they are followed, block by block: see Lists
  batches                       free   what threads keep; for their span these blocks are out
  in a batch that was lent      unsure  its thread allocates from it: no more than it says
  of a retired span             unsure

The process goes on meanwhile. So a figure is of no one moment, a record may be half of one life and half of another,
and no count and no address is believed: each is bounded by the one before, and what cannot be right is left out and
counted (`torn`). Of a process that rests the figures are exact, but for `unsure`.
"""

import collections
import struct

_CHUNK = 1 << 14  # slices that are read together; a multiple of 64
_ENDED_BIT = 8  # set in the address at which a list ends
_PAGE = 4096
_MOST_CACHES = 1 << 18
_MOST_KEPT = 1 << 14  # so many threads' caches are looked into; of others what they keep counts as live
_TOGETHER = 64  # of their records that are read together
_MOST_SLICES = 1 << 32
_MOST_OUTSIDE = 1 << 20


class NotStarted(Exception):
    """The heap has not begun."""


class Unreadable(Exception):
    """Where the heap is cannot be read; the text says what."""


class NoConstants(Exception):
    """The library's constants cannot be read."""


class SizeClass(collections.namedtuple("SizeClass", "block_bytes span_bytes blocks lead")):
    def index_at(self, offset):
        return (offset - self.lead) // self.block_bytes if offset > self.lead else 0


class ClassFigures:
    """Of all spans of a class. blocks = live_blocks + free_blocks + unsure_blocks; of the free ones kept_blocks are in
    threads' hands, and blocks - carved_blocks were never touched."""

    __slots__ = ("block_bytes", "span_bytes", "spans", "blocks", "carved_blocks", "live_blocks", "free_blocks",
                 "unsure_blocks", "kept_blocks")

    def __init__(self, size_class):
        self.block_bytes, self.span_bytes = size_class.block_bytes, size_class.span_bytes
        self.spans = self.blocks = self.carved_blocks = 0
        self.live_blocks = self.free_blocks = self.unsure_blocks = self.kept_blocks = 0

    def settle(self):
        self.free_blocks = min(self.free_blocks, self.blocks)
        self.unsure_blocks = min(self.unsure_blocks, self.blocks - self.free_blocks)
        self.live_blocks = self.blocks - self.free_blocks - self.unsure_blocks


class ThreadFigures:
    """Of a thread that has a cache, or one in each of several heaps (`cache` is the first): the spans that it owns, and what
    it keeps that is free. (Spans of one block are no thread's.)"""

    __slots__ = ("cache", "mark", "spans", "span_bytes", "live_bytes", "unsure_bytes",
                 "kept_block_bytes", "kept_span_bytes")

    def __init__(self, cache, mark):
        self.cache, self.mark = cache, mark
        self.spans = self.span_bytes = self.live_bytes = self.unsure_bytes = 0
        self.kept_block_bytes = self.kept_span_bytes = 0


class Totals:
    """Bytes, but for the counts of blocks and objects."""

    NAMES = ("live_bytes", "live_blocks", "free_bytes", "free_blocks", "unsure_bytes", "unsure_blocks", "large_bytes",
             "large_objects", "kept_block_bytes", "kept_span_bytes", "pool_bytes", "dirty_bytes", "clean_bytes",
             "purged_part_bytes", "decommitted_bytes")

    def __init__(self):
        for name in self.NAMES:
            setattr(self, name, 0)


class Lists:
    """Follows lists of free blocks. Only pages are read in which blocks of a list lie, so nothing is touched in the
    process that it had not touched. A budget bounds what a look costs; a list that is longer than what is left of it,
    or leads astray, is unknown."""

    def __init__(self, memory, key, most_pages=8192, most_blocks=400_000):
        self._memory, self._key = memory, key
        self.pages_left, self.blocks_left = most_pages, most_blocks
        self.unread = 0  # pages

    def length(self, first, span_start, size_class):
        """How many blocks; None: unknown. `first`: an address."""
        pages = {}
        end = span_start + size_class.span_bytes
        count, at = 0, first
        while at != 0 and not at & _ENDED_BIT:
            if not span_start <= at < end or at & 15 or count >= size_class.blocks or self.blocks_left <= 0:
                return None
            page = at & -_PAGE
            words = pages.get(page)
            if words is None:
                if self.pages_left <= 0:
                    return None
                self.pages_left -= 1
                data = self._memory.read(page, _PAGE)
                if data is None:
                    self.unread += 1
                    return None
                words = pages[page] = data.cast("Q")
            self.blocks_left -= 1
            count += 1
            at ^= words[(at - page) >> 3] ^ self._key
        return count


def count_purged(mask, size_class, carved):
    """How many of the first `carved` blocks touch a page of the mask."""
    count = following = 0
    while mask:
        first = (mask & -mask).bit_length() - 1
        above = mask >> first
        length = (~above & (above + 1)).bit_length() - 1
        begin = size_class.index_at(first * _PAGE)
        end = min(size_class.index_at((first + length) * _PAGE - 1) + 1, carved)
        begin = max(begin, following)
        if end > begin:
            count += end - begin
            following = end
        mask &= ~(((1 << length) - 1) << first)
    return count


def read_classes(memory, i):
    """[SizeClass] by number. `i`: the Inspection."""
    data = memory.read(i.classes, i.class_stride * i.class_count)
    if data is None:
        raise NoConstants
    found = [SizeClass(0, 0, 0, 0)]
    for n in range(1, i.class_count):
        at = n * i.class_stride
        row = [int.from_bytes(data[at + field:at + field + 4], "little") for field in (
            i.class_block_size, i.class_span, i.class_blocks, i.class_lead)]
        # A row that is none: nothing counts for it.
        sane = row[0] >= 16 and 0 < row[2] < 1 << 16 and row[0] * row[2] + row[3] <= row[1] <= 1 << 40
        found.append(SizeClass(*row) if sane else SizeClass(16, 0, 0, 0))
    return found


def places_of(memory, i):
    """(address of slice 0, of its rows, of the slices' records)."""
    places = [memory.number(place) for place in (i.arena_base, i.arena_rows, i.span_records)]
    if None in places:
        raise Unreadable("the words that say where the heap is cannot be read")
    if 0 in places:
        raise NotStarted
    return places


class Heap:
    """One walk; NotStarted, Unreadable or NoConstants where there can be none. `classes`: [ClassFigures], smallest blocks
    first; `threads`: {cache number: ThreadFigures} of living ones, one object a thread; `totals`; `torn`: how many records
    could not be right; `unread`: how many pieces of what it walks over could not be read (where a process goes on, that
    may be what has ended meanwhile; and gaps are among them)."""

    def __init__(self, memory, inspection):
        self._memory, self._i = memory, inspection
        self.totals = Totals()
        self.torn = self.unread = 0
        self._base, self._rows, self._records = places_of(memory, inspection)
        self._classes = read_classes(memory, inspection)
        self._figures = [ClassFigures(size_class) for size_class in self._classes]
        self._lists = Lists(memory, self._number(inspection.link_key))
        self.threads = {}
        self._read_caches()
        self._walk()
        self._count_kept()
        self._finish()
        self.unread += self._lists.unread

    def _number(self, place, size=8):
        """0 where it cannot be read."""
        number = self._memory.number(place, size)
        self.unread += number is None
        return number or 0

    @property
    def classes(self):
        return [figures for figures in self._figures if figures.spans]

    # ---- caches ----

    def _read_caches(self):
        i, memory = self._i, self._memory
        records, end = self._number(i.cache_records), self._number(i.cache_end, 4)
        self._caches = records
        if not records or not end:
            return
        forks = self._number(i.cache_forks, 4)
        end = min(end, _MOST_CACHES)
        heads = memory.read_each([(records + n * i.cache_stride + offset, size) for n in range(end)
                                  for offset, size in ((i.cache_thread, 8), (i.cache_forks_of, 4))])
        of_mark = {}
        for n in range(end):
            mark, its_forks = heads[2 * n], heads[2 * n + 1]
            if mark is None or its_forks is None:
                self.unread += 1  # or a gap
                continue
            mark = int.from_bytes(mark, "little")
            if mark and int.from_bytes(its_forks, "little") == forks:
                self.threads[n] = of_mark.setdefault(mark, ThreadFigures(n, mark))

    def _count_kept(self):
        numbers = list(self.threads)[:_MOST_KEPT]
        for first in range(0, len(numbers), _TOGETHER):
            self._count_kept_by(numbers[first:first + _TOGETHER])

    def _count_kept_by(self, numbers):
        stride = self._i.cache_stride
        batches = []  # (thread, span, blocks, whether its thread allocates from it)
        records = self._memory.read_each([(self._caches + number * stride, stride) for number in numbers])
        for number, data in zip(numbers, records):
            if data is None:
                self.unread += 1
            else:
                thread = self.threads[number]
                batches += ((thread, *batch) for batch in self._batches(data))
        # What class the blocks are of, the records of their spans tell. (Some may have begun another life.)
        classes = self._memory.read_each([(self._records + span * self._i.span_stride + self._i.span_class, 1)
                                          for _, span, _, _ in batches])
        for (thread, _, blocks, lent), c in zip(batches, classes):
            if c is not None and 0 < c[0] < self._i.class_first_large:
                (self._add_lent if lent else self._add_kept)(thread, c[0], blocks)

    def _batches(self, data):
        """(span, blocks, lent) of each that holds some."""
        i = self._i
        for n in range(i.batch_count):
            at = i.cache_batches + n * i.batch_stride
            quota, = _HALF.unpack_from(data, at + i.batch_quota)
            if quota == 0:
                continue
            span, = _HALF.unpack_from(data, at + i.batch_span)
            left, = _HALF.unpack_from(data, at + i.batch_left)
            if span and left <= quota < 1 << 16:
                yield span, quota - left, bool(i.batch_lent and data[at + i.batch_lent])

    def _add_kept(self, thread, c, blocks):
        blocks = min(blocks, self._classes[c].blocks)
        self._figures[c].free_blocks += blocks
        self._figures[c].kept_blocks += blocks
        thread.kept_block_bytes += blocks * self._classes[c].block_bytes
        self.totals.kept_block_bytes += blocks * self._classes[c].block_bytes

    def _add_lent(self, thread, c, blocks):
        blocks = min(blocks, self._classes[c].blocks)
        self._figures[c].unsure_blocks += blocks
        thread.unsure_bytes += blocks * self._classes[c].block_bytes

    # ---- the arena, and the records of its spans ----

    def _walk(self):
        memory, i = self._memory, self._i
        limit = min(self._number(i.arena_limit), _MOST_SLICES)
        records = min(self._number(i.span_end), limit)
        outside = [self._number(place) for place in (i.outside_objects, i.outside_bytes)]
        if outside[0] <= _MOST_OUTSIDE and outside[1] < 1 << 47:
            self.totals.large_objects += outside[0]
            self.totals.large_bytes += outside[1]
        row_bytes = 8 * i.row_words
        unit = 0
        while unit < limit:
            first = unit // _CHUNK * _CHUNK
            end = min(first + _CHUNK, limit)
            count = (end - first + 63) // 64
            # The last row has only the words of existing units.
            size = count * row_bytes - 8 * (count * 64 - (end - first))
            rows = memory.read(self._rows + first // 64 * row_bytes, size)
            if rows is None:
                self.torn += 1
                self.unread += 1
                return
            used = []
            unit = self._walk_rows(rows.cast("Q"), first, unit, end, limit, used)
            self._count_spans([span for span in used if sum(span) <= records])
            if unit < end:
                return  # torn

    def _walk_rows(self, words, first, unit, end, limit, used):
        """Walks from one range to the next, from `unit` to `end` or behind it. Less: the words lead nowhere."""
        i, totals = self._i, self.totals
        row_words, at_blocks = i.row_words, i.row_blocks
        shift, mask, is_used, bits = i.block_size_shift, i.block_state_mask, i.block_used, i.slice_bits
        while unit < end:
            local = unit - first
            row = local // 64 * row_words
            word = words[row + at_blocks + local % 64]
            size = word >> shift
            if size == 0 or unit + size > limit:
                self.torn += 1
                return unit
            if word & mask != is_used:
                dirty = self._dirty(words, first, unit, size)
                totals.dirty_bytes += dirty << bits
                totals.clean_bytes += size - dirty << bits
            elif words[row + i.row_unmapped] >> local % 64 & 1:
                if not words[row + i.row_lost] >> local % 64 & 1:
                    totals.decommitted_bytes += size << bits
            elif not words[row + i.row_lost] >> local % 64 & 1 and unit != 0:
                used.append((unit, size))
            unit += size
        return unit

    def _dirty(self, words, first, unit, size):
        """How many slices of a free range are dirty; those behind the chunk are read for it."""
        i = self._i
        count = 0
        end = unit + size
        while unit < end:
            row, low = unit // 64, unit % 64
            width = min(64 - low, end - unit)
            index = (row - first // 64) * i.row_words + i.row_dirty
            if index < len(words):
                bits = words[index]
            else:
                return count + self._dirty_behind(unit, end)
            count += bin(bits >> low & (1 << width) - 1).count("1")
            unit += width
        return count

    def _dirty_behind(self, unit, end):
        i = self._i
        count = 0
        while unit < end:
            stop = min(end, unit // _CHUNK * _CHUNK + _CHUNK)
            data = self._memory.read_each([(self._rows + 8 * (row * i.row_words + i.row_dirty), 8)
                                           for row in range(unit // 64, (stop + 63) // 64)])
            for row, word in enumerate(data, unit // 64):
                if word is None:
                    return count
                low, high = max(unit, row * 64) % 64, min(stop, row * 64 + 64) - row * 64
                count += bin(int.from_bytes(word, "little") >> low & (1 << high - low) - 1).count("1")
            unit = stop
        return count

    def _count_spans(self, used):
        """`used`: [(number, slices)] in order."""
        stride = self._i.span_stride
        runs = []  # [first, end) in records: neighbours are read together, gaps (untouched records, maybe) are not
        for number, _ in used:
            if runs and number - runs[-1][1] < 2 * _PAGE // stride:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
        data = self._memory.read_each([(self._records + first * stride, (end - first) * stride) for first, end in runs])
        runs = [(first, end, view) for (first, end), view in zip(runs, data)]
        at = 0
        for number, slices in used:
            while number >= runs[at][1]:
                at += 1
            first, _, view = runs[at]
            if view is None:
                self.torn += 1
                self.unread += 1
            else:
                self._count_span(number, slices, view, (number - first) * stride)

    def _count_span(self, number, slices, view, at):
        i, totals = self._i, self.totals
        word, = _WORD.unpack_from(view, at + i.span_word)
        state, owner = word >> i.word_state_shift & 3, word >> i.word_owner_shift
        span_bytes = slices << i.slice_bits
        if state == 0:
            if word >> i.word_cached_bit & 1 and word & 0xFFFFF0000 == 0 and owner != i.word_nobody:
                totals.kept_span_bytes += span_bytes
                thread = self.threads.get(owner)
                if thread:
                    thread.kept_span_bytes += span_bytes
            else:
                totals.pool_bytes += span_bytes
            return
        c = view[at + i.span_class]
        if c == i.class_count:
            totals.large_bytes += span_bytes
            totals.large_objects += 1
            return
        if c == 0 or c > i.class_count or state == 3 and owner != i.word_nobody or self._classes[c].blocks == 0:
            self.torn += 1
            return
        figures = self._figures[c]
        figures.spans += 1
        if c >= i.class_first_large:
            figures.blocks += 1
            figures.carved_blocks += 1
            return
        self._count_blocks(number, view, at, word, state, owner, self._classes[c], figures)

    def _count_blocks(self, number, view, at, word, state, owner, size_class, figures):
        """Of a span of several blocks."""
        i = self._i
        blocks = size_class.blocks
        carved = min(_QUARTER.unpack_from(view, at + i.span_carved)[0], blocks)
        mask, = _WORD.unpack_from(view, at + i.span_purged)
        unlisted = blocks - carved
        if mask:
            unlisted += count_purged(mask, size_class, carved)
            self.totals.purged_part_bytes += bin(mask).count("1") * _PAGE
        remote = max(blocks - (word & 0xFFFF), 0)
        unsure = 0
        if state in (1, 3):  # owned, or abandoned and counted by nobody
            listed = self._listed(number, view, at, size_class)
            free = unlisted + remote + (listed or 0)
            if listed is None or state == 3 and word >> i.word_cached_bit & 1:  # its holder counts it, or has
                unsure = blocks
        elif view[at + i.span_retired]:
            free, unsure = unlisted + remote, blocks
        else:
            free = remote
        free = min(free, blocks)
        unsure = min(unsure, blocks - free)
        figures.blocks += blocks
        figures.carved_blocks += carved
        figures.free_blocks += free
        figures.unsure_blocks += unsure
        thread = self.threads.get(owner)
        if thread and state == 1:
            thread.spans += 1
            thread.span_bytes += size_class.span_bytes
            thread.live_bytes += (blocks - free - unsure) * size_class.block_bytes
            thread.unsure_bytes += unsure * size_class.block_bytes

    def _listed(self, number, view, at, size_class):
        """How many blocks are on a span's own list; None: unknown. Its thread may change them meanwhile: then they are
        looked for once more."""
        start = self._base + (number << self._i.slice_bits)
        length = self._length(view, at, start, size_class)
        if length is None:
            again = self._memory.read(self._records + number * self._i.span_stride, self._i.span_stride)
            if again is not None:
                length = self._length(again, 0, start, size_class)
        return length

    def _length(self, view, at, start, size_class):
        first, = _WORD.unpack_from(view, at + self._i.span_list)
        return self._lists.length(first, start, size_class)

    def _finish(self):
        totals = self.totals
        for figures in self._figures:
            figures.settle()
            for kind in ("live", "free", "unsure"):
                blocks = getattr(figures, f"{kind}_blocks")
                setattr(totals, f"{kind}_blocks", getattr(totals, f"{kind}_blocks") + blocks)
                setattr(totals, f"{kind}_bytes", getattr(totals, f"{kind}_bytes") + blocks * figures.block_bytes)


_WORD = struct.Struct("<Q")
_HALF = struct.Struct("<I")
_QUARTER = struct.Struct("<H")
