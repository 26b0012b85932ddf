"""What the report's text claims beside its experiments, and what shows it here."""

from __future__ import annotations

from papers.shared.figures.prose import Prose, Shown

ROWS = (
    Prose("free-list-spares-the-used-blocks",
          "The free list is there to reduce iterating over used blocks: the allocator only has to traverse free "
          "spaces, not occupied ones.", "§2.1, §3", Shown.SOURCE,
          "The search follows the free list of a superblock and nothing else. How many used blocks that spares is not "
          "counted.",
          ("papers/a2alloc/engine/superblock.hpp:find",)),
    Prose("links-in-free-blocks-save-memory",
          "The free list's metadata only where a block is free would reduce memory usage, but complicate the "
          "implementation.", "§2.1", Shown.SOURCE,
          "Built so: a header has 16 bytes, with the report's fields and links 48. A block for 24 bytes has 48 bytes "
          "instead of 80. The complication is a second type. The report's own way is not built.",
          ("papers/a2alloc/engine/block.hpp:FreeBlock", "papers/a2alloc/engine/block.hpp:block_size_for")),
    Prose("global-heap-has-empty-ones-only",
          "All superblocks on the global heap are empty and can be used by any heap, so it needs no list of free "
          "blocks; a large object needs no metadata but its block's.", "§2.1", Shown.TEST,
          "The first half: only empty superblocks arrive, and freed large objects serve as superblocks. The second is "
          "left: a large object's record stands in a table here, and free marks each of its pieces.",
          ("A2allocEviction.OnlyEmptyOnes", "A2allocAssertionDeathTest.OnlyEmptySuperblocksAreEvicted",
           "A2allocGlobalHeap.FreedLargeObjectsMergeAndServeEverything")),
    Prose("no-size-classes-for-speed",
          "To reduce complications and improve speed, size classes were forgone.", "§2.1", Shown.AGAINST,
          "It is simpler. It is not faster by steps: with size classes an allocation of Larson's trace looks at one "
          "free block, without them at more than two. The figure a2alloc-future times it.",
          ("papers/a2alloc/tests/test_a2alloc.py:test_size_classes_look_at_one_free_block",
           "papers/a2alloc/engine/size_classes.hpp")),
    Prose("move-to-front-hugely-faster",
          "To move the superblock to the front of the list has a huge performance benefit: most of the time the "
          "allocator does not go through every block.", "§2.1.2, §3", Shown.COUNT,
          "Superblocks, free blocks and instructions of an allocation, with and without the move, would decide it. "
          "kheap with one thread is the engine without it. A test shows that superblocks are moved.",
          ("A2allocHeap.TheOneLastUsedIsSearchedFirst", "A2allocHeap.KheapSearchesInTheSameOrderAlways",
           "papers/a2alloc/engine/config.hpp:kMoveToFront")),
    Prose("empty-ones-only-against-false-sharing",
          "The first condition of eviction (the superblock is empty) is in place to avoid false sharing, while also "
          "allowing for a larger F.", "§2.1.3", Shown.TEST,
          "No superblock serves two living threads. After a thread's end its heap, with what lives in it, is the next "
          "thread's. The larger F is left: no config evicts superblocks in use.",
          ("A2allocEviction.OnlyEmptyOnes", "A2allocThreads.EachHasAHeapOfItsOwn",
           "A2allocThreads.AnotherThreadsFreeGoesToTheOwnersHeap", "A2allocThreads.AHeapIsLeftToTheNextThread")),
    Prose("k-and-f-spare-threads",
          "The second and third conditions are in place to not penalize a thread when it is not using, or not wasting, "
          "a lot of memory.", "§2.1.3", Shown.TEST,
          "Each condition alone keeps superblocks. That K spares fetching them again is counted by a test, too. "
          "Whether a fetch costs time is left.",
          ("A2allocEviction.OnlyFromHeapsOfMoreThanK", "A2allocEviction.OnlyFromHeapsWhoseUsedOverFreeIsBelowF",
           "papers/a2alloc/tests/test_a2alloc.py:test_k_is_what_an_unused_heap_keeps")),
    Prose("trees-search-faster",
          "Trees can provide better performance when traversing or searching in comparison to linked lists; a B-tree "
          "for free blocks, as in LLalloc, could be applied.", "§2.2.1", Shown.NOT_BUILT,
          "A tree replaces steps along a list by comparisons, and makes each split and merge dearer. Size classes, "
          "which are built, end the search altogether: the most that a tree could gain.",
          ("papers/a2alloc/engine/config.hpp:A2allocSizeClasses",)),
    Prose("max-heap-of-free-space",
          "With a max heap the most free superblock is found in O(1) when a block is freed, closer to Hoard's free; "
          "its maintenance would add overhead.", "§2.2.1", Shown.NOT_BUILT,
          "Nothing asks for the most free superblock, as only empty ones are evicted. Lists by quarters of fullness "
          "are built, which find the emptiest to a quarter. Their price is that of keeping an order.",
          ("papers/a2alloc/engine/heap.hpp:put", "papers/a2alloc/engine/config.hpp:A2allocFullestFirst")),
    Prose("linear-worst-case",
          "To find a free block of any size has a worst-case time of O(N), as the free list has no order by size; but "
          "in most cases one is found in reasonable time.", "§3", Shown.SOURCE,
          "The search is linear in superblocks, and in the free blocks of those whose bound admits the request. The "
          "bound spares full ones a search, not a look. What most cases take, the counted figures say.",
          ("papers/a2alloc/engine/superblock.hpp:find", "papers/a2alloc/engine/heap.hpp:take")),
    Prose("throughput-plateaus",
          "There will be a point where the throughput increase per added thread (Larson) will plateau to an "
          "insignificant amount; more data would be needed.", "§3, Figures 3 and 4", Shown.COUNT,
          "Two cores show no plateau of threads. A doubling that gains less than a tenth would, on the simulated "
          "machine with 8, 16 and 32 cores (spanalloc bench manycore, Larson)."),
    Prose("scores-great-against-libc",
          "The scalability scores for cache-scratch, cache-thrash and larson were great in comparison to libc.",
          "§3", Shown.AGAINST,
          "By the report's own Figure 6 only cache-scratch's is above malloc's, 1.003 to 0.707. The other two are "
          "below it: 0.926 to 1.035 in cache-thrash, 0.839 to 0.959 in larson."),
    Prose("large-objects-leave-no-scraps",
          "Large objects are whole superblocks, and serve superblocks or large objects when freed: no leftover chunk "
          "is too small to hold either.", "§3.1", Shown.TEST,
          "Sizes, what freed ones serve, and what shrinking leaves are tested. The price is inside: an object of "
          "32,769 bytes takes a superblock of 65,536.",
          ("A2allocGlobalHeap.LargeObjectsAreWholeSuperblocks",
           "A2allocGlobalHeap.FreedLargeObjectsMergeAndServeEverything",
           "A2allocGlobalHeap.LargeObjectsGrowAndShrinkInPlace")),
    Prose("mixed-sizes-fragment",
          "Without size classes there is a varying amount of fragmentation between blocks within a superblock; it is "
          "poorly handled, and showed in the memory usage.", "§3.1", Shown.COUNT,
          "Superblocks carried at the peak and left at the end over live bytes, without size classes and with them, "
          "would decide it. A row of the figure a2alloc-future-counts could ask that."),
    Prose("scores-of-fragmentation-are-comparable",
          "For all tests the fragmentation scores are superior to kheap's; against malloc's worse for cache-scratch "
          "and cache-thrash, but significantly better for larson and threadtest.", "§3.1, Figure 7", Shown.AGAINST,
          "a2alloc's row of Figure 7 is required over used memory, the other two are used over required. Turned over, "
          "larson's score is 8.5, worse than malloc's 1.69 by Figure 11. The rest holds.",
          ("papers/a2alloc/figures/figures.py:_LARSON_SCORES",)),
    Prose("easy-cases-of-poor-fragmentation",
          "There are easy cases where the allocator will show how poorly fragmentation is handled.", "§3.1", Shown.TEST,
          "The report names none. One: an object of 16 bytes keeps its superblock of 64 KiB in its thread's heap, "
          "whatever K and F are, as only empty ones are evicted.",
          ("A2allocEviction.OnlyEmptyOnes",)),
    Prose("kheap-soon-needs-less",
          "The number of threads where kheap's memory use is better than the allocator's is not too far off from 8.",
          "§3.2", Shown.AGAINST,
          "By Figures 9 and 10 a2alloc grows by 1.86 MB a thread, kheap from two threads on by 0.54. So they meet at "
          "18 threads, or at 22 with kheap's last step: twice as many and more."),
    Prose("gap-to-malloc-decreases",
          "The gap to malloc's memory slowly decreases as the number of threads increases.",
          "§3.2, Figures 9 and 11", Shown.AGAINST,
          "The ratio falls from 5.85 to 4.82 at four threads and stays: 4.75 at eight. In bytes the gap grows. And "
          "malloc's memory is 405,504 bytes times the threads exactly, least as most."),
    Prose("lists-are-very-expensive",
          "To iterate lists, so O(N), proves to be very expensive, thanks to output from Callgrind.",
          "§3.2", Shown.COUNT,
          "An operation's instructions with the search and without it, as in a2alloc-size-classes, would decide it. A "
          "row of the figure a2alloc-future-counts could compare them.",
          ("papers/a2alloc/figures/steps.py:_instructions_an_operation",)),
)
