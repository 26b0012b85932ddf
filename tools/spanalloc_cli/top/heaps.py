"""First-class heaps (sp_heap_create) of another process: which there are, and what each holds.

The record by which they are found is src/pages/heaps_inspection.hpp, which says what each field is; the fields stand
there and here in one order, which a test compares. There is a record for each slice of 64 KiB. A run of slices begins
where a record has an owner; the record says how long the run is, and in which slice its heap stands. So what a heap has
taken is the sum of its runs, and no list is followed.

The process goes on meanwhile: what cannot be right is left out and counted (`torn`), and no count and no address of the
process bounds a loop or an allocation by itself.
"""

import mmap
import struct

VERSION = 1
PLACES = ("base", "records", "end", "held", "decommitted", "lost")
NUMBERS = (
    "slice_bits", "run_stride", "run_owner", "run_first", "run_count", "run_heap",
    "heap_handle", "heap_limit", "heap_name", "name_bytes", "heap_first_shard", "heap_shards", "shard_count",
    "shard_blocks", "shard_bytes", "unused",
)
_HEAD = struct.Struct("<II")
_REST = struct.Struct(f"<{len(PLACES)}Q{len(NUMBERS)}I")
_WORD = struct.Struct("<Q")
_HALF = struct.Struct("<I")

_CHUNK = 4096  # records that are read together
_MOST_RECORDS = 1 << 22  # are looked at, 256 GiB of heaps; what is behind them is cut off
_MOST_KNOWN = 1 << 18  # heaps, in the order of addresses; of further ones nothing is known
_MOST_HEAPS = 1 << 16  # are looked into; of others only what they have taken is known
_MOST_SHARDS = 1 << 17  # are looked at: the first of each heap, and others of the largest heaps
_BATCH = 1024  # heaps that are looked into together
# What the record may say; ours says 32, 64 and 32.
_MOST_STRIDE, _MOST_NAME_BYTES, _MOST_SHARDS_OF_HEAP = 256, 256, 64
_TOUCHED_BY_EACH = 3 * mmap.PAGESIZE  # at most, beside its blocks: a new heap touches two or three pages
_NO_LIMIT = (1 << 64) - 1


class OwnHeap:
    """`taken_bytes`: addresses of its runs, for `used_blocks` of `used_bytes` and what stands beside them;
    `limit_bytes`: 0 for none; `address`: the program's sp_heap*, 0 where that is not known."""

    __slots__ = ("address", "name", "limit_bytes", "taken_bytes", "used_bytes", "used_blocks")

    def __init__(self, taken_bytes):
        self.taken_bytes = taken_bytes
        self.address = self.limit_bytes = self.used_bytes = self.used_blocks = 0
        self.name = ""


class Heaps:
    """All of them. `heaps`: [OwnHeap], the largest first; `kept_bytes`: given back by heaps, and may be in memory;
    `torn`: how many records could not be right; `is_cut`: there was more than is looked at."""

    def __init__(self):
        self.heaps = []
        self.kept_bytes = self.torn = 0
        self.is_cut = False

    def _sum(self, name):
        return sum(getattr(heap, name) for heap in self.heaps)

    @property
    def taken_bytes(self):
        return self._sum("taken_bytes")

    @property
    def used_bytes(self):
        return self._sum("used_bytes")

    @property
    def used_blocks(self):
        return self._sum("used_blocks")

    @property
    def touched_bytes(self):
        """An estimate of the heaps' memory, which is less than the addresses that they have taken. Pages on which all
        blocks have been freed are not in it."""
        return min(self.taken_bytes, self.used_bytes + _TOUCHED_BY_EACH * len(self.heaps))


class _Layout:
    def __init__(self, data):
        for name, value in zip(PLACES + NUMBERS, _REST.unpack_from(data, _HEAD.size)):
            setattr(self, name, value)

    @property
    def is_sane(self):
        """Whether each field lies in what it is a field of."""
        slice_bytes = 1 << min(self.slice_bits, 30)
        good = 12 <= self.slice_bits <= 30 and 0 < self.run_stride <= _MOST_STRIDE
        good = good and self.run_owner + 8 <= self.run_stride
        good = good and max(self.run_first, self.run_count, self.run_heap) + 4 <= self.run_stride
        good = good and 0 < self.name_bytes <= _MOST_NAME_BYTES and self.shard_count <= _MOST_SHARDS_OF_HEAP
        good = good and max(self.heap_handle, self.heap_limit) + 8 <= slice_bytes
        good = good and self.heap_name + self.name_bytes <= slice_bytes
        good = good and self.heap_shards + 8 * self.shard_count <= slice_bytes
        in_shard = max(self.shard_blocks, self.shard_bytes) + 8
        return good and self.heap_first_shard + in_shard <= slice_bytes


def read(memory, place):
    """The Heaps of a process; None where they cannot be told: a library that has none, or describes them in another
    way. `place`: the address of the word that leads to their record."""
    address = memory.number(place) if place else None
    if address == 0:
        return Heaps()  # there was none yet
    layout = _layout_at(memory, address)
    return _Reader(memory, layout).found if layout else None


def at(memory, place, address):
    """The OwnHeap, without its figures, that has an address; None where none has it."""
    layout = _layout_at(memory, memory.number(place) if place else None)
    if layout is None:
        return None
    base, records, end = (memory.number(each) or 0 for each in (layout.base, layout.records, layout.end))
    number = (address - base) >> layout.slice_bits
    if not base or not records or not 0 < number < min(end, _MOST_RECORDS):
        return None

    def of_record(which, field, size):
        return memory.number(records + which * layout.run_stride + field, size) or 0

    first = of_record(number, layout.run_first, 4)
    if not 0 < first <= number or number - first >= of_record(first, layout.run_count, 4) or not of_record(
            first, layout.run_owner, 8):
        return None
    found = OwnHeap(0)
    home = base + (of_record(first, layout.run_heap, 4) << layout.slice_bits)
    found.address = memory.number(home + layout.heap_handle) or 0
    found.name = _text(memory.read(home + layout.heap_name, layout.name_bytes) or b"")
    return found


def _layout_at(memory, address):
    data = memory.read(address, _HEAD.size + _REST.size) if address else None
    if data is None:
        return None
    version, size = _HEAD.unpack_from(data)
    if version != VERSION or size < _HEAD.size + _REST.size:
        return None
    layout = _Layout(data)
    return layout if layout.is_sane else None


class _Reader:
    def __init__(self, memory, layout):
        self._memory, self._i = memory, layout
        self.found = Heaps()
        self._base, self._records, end = (memory.number(place) for place in (layout.base, layout.records, layout.end))
        if not self._base or not self._records or not end:
            return
        self._end = min(end, _MOST_RECORDS)
        self.found.is_cut = self._end < end
        self._taken = {}  # {the slice of a heap: slices that it has}
        self._homes = set()
        self._slices = 0  # of all runs
        self._read_runs()
        self._read_heaps()
        self._count_kept()

    # ---- runs ----

    def _read_runs(self):
        stride = self._i.run_stride
        at = 1
        while at < self._end:
            first = at
            count = min(_CHUNK, self._end - first)
            data = self._memory.read(self._records + first * stride, count * stride)
            if data is None:
                at = first + count  # a gap, or torn
                continue
            data = bytes(data)
            if data.count(0) == len(data):
                at = first + count  # never used
                continue
            while at < first + count:
                at += self._read_run(data, (at - first) * stride, at)

    def _read_run(self, data, offset, number):
        """How many slices to pass by: the run's, where one begins."""
        i = self._i
        owner, = _WORD.unpack_from(data, offset + i.run_owner)
        if owner == 0:
            return 1
        first, count, heap = (_HALF.unpack_from(data, offset + field)[0]
                              for field in (i.run_first, i.run_count, i.run_heap))
        if first != number or count == 0 or count > self._end - number or not 0 < heap < self._end:
            self.found.torn += 1
            return 1
        self._slices += count
        if heap not in self._taken and len(self._taken) == _MOST_KNOWN:
            self.found.is_cut = True
            return count
        self._taken[heap] = self._taken.get(heap, 0) + count
        if heap == number:
            self._homes.add(number)
        return count

    # ---- heaps ----

    def _read_heaps(self):
        # Runs whose heap has none of its own: it was being made, or destroyed.
        self.found.torn += len(self._taken.keys() - self._homes)
        ordered = sorted(self._homes, key=lambda home: (-self._taken[home], home))
        heaps = {home: OwnHeap(self._taken[home] << self._i.slice_bits) for home in ordered}
        self.found.is_cut = self.found.is_cut or len(ordered) > _MOST_HEAPS
        looked_into = ordered[:_MOST_HEAPS]
        self._others_left = _MOST_SHARDS - len(looked_into)
        for first in range(0, len(looked_into), _BATCH):
            self._read_batch(looked_into[first:first + _BATCH], heaps)
        self.found.heaps = list(heaps.values())

    def _read_batch(self, homes, heaps):
        shards = []  # (its heap, its address)
        heads = self._memory.read_each([piece for home in homes for piece in self._pieces_of(home)])
        for n, home in enumerate(homes):
            handle, limit, name, others = heads[4 * n:4 * n + 4]
            if None in (handle, limit, name, others):
                self.found.torn += 1
                continue
            if not self._describe(heaps[home], home, handle, limit, name):
                del heaps[home]  # it is being destroyed
                continue
            shards.append((heaps[home], self._address(home) + self._i.heap_first_shard))
            addresses = [shard for shard, in struct.iter_unpack("<Q", others) if self._may_be_shard(shard)]
            self.found.is_cut = self.found.is_cut or len(addresses) > self._others_left
            addresses = addresses[:self._others_left]
            self._others_left -= len(addresses)
            shards += ((heaps[home], shard) for shard in addresses)
        self._read_shards(shards)

    def _address(self, number):
        return self._base + (number << self._i.slice_bits)

    def _pieces_of(self, home):
        i, start = self._i, self._address(home)
        return ((start + i.heap_handle, 8), (start + i.heap_limit, 8), (start + i.heap_name, i.name_bytes),
                (start + i.heap_shards, 8 * i.shard_count))

    def _describe(self, heap, home, handle, limit, name):
        heap.address, limit = int.from_bytes(handle, "little"), int.from_bytes(limit, "little")
        if heap.address == 0:
            return False
        if heap.address >> self._i.slice_bits << self._i.slice_bits != self._address(home):
            self.found.torn += 1
            heap.address = 0
        heap.limit_bytes = 0 if limit == _NO_LIMIT else limit
        heap.name = _text(name)
        return True

    def _may_be_shard(self, address):
        if address == 0:
            return False
        room = self._end << self._i.slice_bits
        if 0 < address - self._base < room and address % 8 == 0:
            return True
        self.found.torn += 1
        return False

    def _read_shards(self, shards):
        i = self._i
        data = self._memory.read_each([(shard + field, 8) for _, shard in shards
                                       for field in (i.shard_blocks, i.shard_bytes)])
        for n, (heap, _) in enumerate(shards):
            blocks, size = data[2 * n:2 * n + 2]
            if blocks is None or size is None:
                self.found.torn += 1
                continue
            blocks, size = int.from_bytes(blocks, "little"), int.from_bytes(size, "little")
            # A block has 16 bytes at least, and no more is in use than was taken.
            if size > heap.taken_bytes - heap.used_bytes or blocks > size // 16:
                self.found.torn += 1
                continue
            heap.used_blocks += blocks
            heap.used_bytes += size

    def _count_kept(self):
        held, decommitted, lost = (self._memory.number(place) or 0
                                   for place in (self._i.held, self._i.decommitted, self._i.lost))
        kept = held - decommitted - lost - 1 - self._slices
        self.found.kept_bytes = max(0, min(kept, _MOST_RECORDS)) << self._i.slice_bits


def _text(data):
    """A name that a program has given: no control character reaches the terminal."""
    text = bytes(data).split(b"\0")[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
