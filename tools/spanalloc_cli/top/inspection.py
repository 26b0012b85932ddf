"""The record by which a process tells where its heap's records are: src/engine/inspection.hpp, which says what each
field is. The fields stand there and here in one order; a test compares them."""

import struct

from spanalloc_cli.top import objects

MAGIC = b"spanalloc heap"
VERSION = 1

PLACES = (
    "classes", "arena_base", "arena_limit", "arena_rows", "span_records", "span_end", "cache_records", "cache_end",
    "cache_forks", "link_key", "outside_objects", "outside_bytes",
)
NUMBERS = (
    "class_stride", "class_count", "class_first_large", "class_block_size", "class_span", "class_blocks", "class_lead",
    "slice_bits", "row_units", "row_words", "row_dirty", "row_unmapped", "row_lost", "row_blocks",
    "block_size_shift", "block_state_mask", "block_used",
    "span_stride", "span_word", "span_class", "span_carved", "span_list",
    "span_purged", "span_retired",
    "word_owner_shift", "word_state_shift", "word_cached_bit", "word_nobody",
    "cache_stride", "cache_thread", "cache_forks_of", "cache_batches", "batch_count", "batch_stride",
    "batch_span", "batch_quota", "batch_left",
)
# What libraries of a later version of this record have behind these: 0 where a record ends before it.
LATER = ("program_heaps", "no_block", "outside_table")
LATER_NUMBERS = ("span_order", "span_first", "batch_list", "outside_before", "outside_end", "batch_lent")
_HEAD = struct.Struct("<16sII16s32s")
_REST = struct.Struct(f"<{len(PLACES)}Q{len(NUMBERS)}I{len(NUMBERS) % 2 * 4}x")  # the next fields have 8 bytes
_LATER = struct.Struct(f"<{len(LATER)}Q{len(LATER_NUMBERS)}I{len(LATER_NUMBERS) % 2 * 4}x")

# What is read of a process is not believed: more than this no heap has, and no loop of ours shall take.
MOST_CLASSES = 1024
MOST_STRIDE = 1 << 16


class BadRecord(Exception):
    """The record does not make sense, or is of a version that this command does not know; the text says what."""


class Inspection:
    """`engine`, `library_version`, `path` (of the file that has it), each of LATER, `tells_layout`; with that each of
    PLACES and NUMBERS; `tells_blocks`; with that each of LATER_NUMBERS."""

    def __init__(self, data, path=""):
        if len(data) < _HEAD.size:
            raise BadRecord("the record of its heap is cut off")
        magic, self.version, self.bytes, library_version, engine = _HEAD.unpack_from(data)
        if magic.rstrip(b"\0") != MAGIC:
            raise BadRecord("what a note of its calls the heap's record is something else")
        self.path = path
        self.library_version = _text(library_version)
        self.engine = _text(engine)
        if self.version != VERSION:
            raise BadRecord(f"its library (spanalloc {self.library_version}) describes its heap by version "
                            f"{self.version}, and this command knows version {VERSION}: use the command that came "
                            "with that library")
        if self.bytes < _HEAD.size + _REST.size or len(data) < _HEAD.size + _REST.size:
            raise BadRecord("the record of its heap is too short")
        values = _REST.unpack_from(data, _HEAD.size)
        for name, value in zip(PLACES + NUMBERS, values):
            setattr(self, name, value)
        later = bytes(data[_HEAD.size + _REST.size:self.bytes])
        for name, value in zip(LATER + LATER_NUMBERS, _LATER.unpack_from(later.ljust(_LATER.size, b"\0"))):
            setattr(self, name, value)
        self.tells_layout = self.class_count != 0
        self.tells_blocks = self.tells_layout and self.no_block != 0
        if self.tells_layout:
            self._check()

    def _check(self):
        """Whether each field lies in what it is a field of, so that no walk leaves what it has read."""
        fields = (
            ("class_stride", ("class_block_size", "class_span", "class_blocks", "class_lead"), 4),
            ("span_stride", ("span_word", "span_list", "span_purged"), 8),
            ("span_stride", ("span_carved",), 2), ("span_stride", ("span_class", "span_retired"), 1),
            ("cache_stride", ("cache_thread",), 8), ("cache_stride", ("cache_forks_of",), 4),
            ("batch_stride", ("batch_span", "batch_quota", "batch_left"), 4),
        )
        good = all(getattr(self, name) + size <= getattr(self, stride) <= MOST_STRIDE
                   for stride, names, size in fields for name in names)
        small = self.class_first_large
        good = good and 0 < small <= self.class_count <= MOST_CLASSES
        good = good and 12 <= self.slice_bits <= 30 and self.row_units == 64 and self.row_words <= 4096
        good = good and max(self.row_dirty, self.row_unmapped, self.row_lost) < self.row_blocks <= self.row_words - 64
        good = good and self.block_size_shift < 64 and self.word_owner_shift < 64 and self.word_cached_bit < 64
        good = good and self.word_state_shift + 2 <= 64 and self.span_stride % 8 == 0
        good = good and self.cache_batches + self.batch_stride * self.batch_count <= self.cache_stride
        if self.tells_blocks:
            good = good and max(self.span_order + 1, self.span_first + 8) <= self.span_stride
            good = good and max(self.batch_list + 8, self.batch_lent + 1) <= self.batch_stride
            good = good and max(self.outside_before, self.outside_end) < 64
        if not good:
            raise BadRecord("the record of its heap does not make sense")


def _text(data):
    return "".join(c for c in data.split(b"\0")[0].decode("utf-8", "replace") if c.isprintable())


def read_at(memory, address, path=""):
    """The Inspection there; `address`: its own. BadRecord where it is none."""
    found = _read_at(memory, address, path)
    found.address = address
    return found


def is_of_file(memory, found):
    """Whether the file that is read for what is constant has this record, by its version, its engine and its numbers. (The
    addresses in it the loader has written.) None: there is no such file, or nothing is read from one."""
    same = None
    for at, size in ((0, _HEAD.size), (_HEAD.size + 8 * len(PLACES), 4 * len(NUMBERS))):
        there = memory.in_file(found.address + at, size)
        if there is None:
            return None
        same = same is not False and there == bytes(memory.read(found.address + at, size) or b"")
    return same


def _read_at(memory, address, path):
    head = memory.read(address, _HEAD.size)
    if head is None:
        return Inspection(b"", path)
    size = _HEAD.unpack_from(head)[2]
    data = memory.read(address, min(max(size, _HEAD.size), _HEAD.size + _REST.size + _LATER.size))
    return Inspection(head if data is None else data, path)


def find(memory, mappings):
    """The Inspection of the heap that the process uses; None: it has none of ours."""
    places = objects.heap_records(memory, mappings)
    # A program may have several of them mapped. One is used: it has begun.
    read, bad = [], {}
    for address, path in places:
        try:
            read.append(read_at(memory, address, path))
        except BadRecord as error:
            bad.setdefault(path, error)
    best = max(read, key=lambda each: _reach(memory, each), default=None)
    for each in read:
        bad.pop(each.path, None)  # the file is mapped twice, once as bytes that are read
    if bad and (best is None or not _reach(memory, best)):
        raise next(iter(bad.values()))
    return best


def _reach(memory, inspection):
    if not inspection.tells_layout or not memory.number(inspection.arena_base):
        return 0
    return memory.number(inspection.arena_limit) or 0
