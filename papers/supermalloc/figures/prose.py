"""What the paper's text claims beside its experiments, and what shows it here."""

from __future__ import annotations

from papers.shared.figures.prose import Prose, Shown

ROWS = (
    Prose("most-classes-are-prime",
          "Most of the size classes are a prime number of cache lines.", "Abstract", Shown.AGAINST,
          "Of Figure 2's 46 sizes 15 are a prime number of lines, and of the 39 here 15. It holds of the medium sizes "
          "that serve requests without an alignment: 12 of 14.",
          ("papers/supermalloc/engine/bins.hpp:medium_sizes_are_prime",)),
    Prose("huge-ones-randomly-aligned",
          "Nonaligned huge accesses are randomly aligned within a page.", "Abstract", Shown.NOT_BUILT,
          "Here a huge object begins with its first chunk. Section 5 describes the offset for large objects only. The "
          "author's malloc.cc adds it to huge ones, too.",
          ("SupermallocHuge.TakeRangesOfAPowerOfTwoOfChunks", "papers/supermalloc/engine/huge_heap.hpp:allocate")),
    Prose("dlmalloc-first-fit",
          "DLmalloc employs a first-fit heuristic.", "§1", Shown.AGAINST,
          "The release that the paper measured says of itself: \"In most ways, this malloc is a best-fit allocator\" "
          "(malloc-2.8.6.c).",
          ("bench/spanalloc_bench/originals.py:_dlmalloc",)),
    Prose("hoard-bounds-its-blowup",
          "Hoard provides a provable bound on its space blowup.", "§1", Shown.CANNOT,
          "A proof is not measured. The memory that Hoard takes in Vyukov's chain is one case, which Figure 13 has."),
    Prose("tbb-as-fast-as-supermalloc",
          "TBBmalloc is about as fast as SuperMalloc.", "§1", Shown.AGAINST,
          "Section 9 says the opposite: in malloc-test SuperMalloc runs about three times faster than TBBmalloc "
          "(Figure 8: 10.6 and 28.7 ns). In Figures 9 to 12 the two are near each other."),
    Prose("tbb-keeps-small-objects",
          "TBB never returns space for small objects to the operating system.", "§1", Shown.COUNT,
          "Many small objects are allocated and all of them freed. What TBBmalloc still has in memory some seconds "
          "later would decide it."),
    Prose("wilderness-takes-no-memory",
          "The rest of a chunk of which not all objects were allocated is an untouched, uncommitted wilderness that "
          "uses no physical memory.", "§2", Shown.SOURCE,
          "Folios are taken in order of their addresses, and only a folio that serves is written to. The arena forbids "
          "huge pages, so a neighbour's page fault commits nothing. No test looks behind the last folio.",
          ("papers/supermalloc/engine/folio_heap.hpp:fresh_folio",
           "papers/supermalloc/engine/chunk_table.hpp:kForbid")),
    Prose("forty-five-bins",
          "The first 45 bins are specific sizes. With 32 CPUs that is 1,440 locks.", "§2, §8", Shown.AGAINST,
          "Figure 2 numbers its bins from 0 to 45, which are 46, without the two that section 4 adds. With 32 CPUs 48 "
          "bins have 1,536 locks. This engine has 39 bins.",
          ("papers/supermalloc/engine/bins.hpp:sizes_are_the_papers", "SupermallocDesign.HasTheTableOfBins")),
    Prose("word-counts-pages",
          "A 4-byte bin number allows objects of just under 2^32 pages, and tracks how much the application asked for "
          "(1.5 MiB of a 2 MiB chunk).", "§2", Shown.TEST,
          "Word and usable size count the pages asked for. The range is left: a word has 24 bits for pages here, as in "
          "the author's malloc.cc. So it ends at 64 GiB (DESIGN.md, deviation 8).",
          ("SupermallocHuge.TakeRangesOfAPowerOfTwoOfChunks", "SupermallocChunkTable.AWordOfAHugeObjectHasItsPages")),
    Prose("chunk-lookup",
          "An entire chunk has objects of the same size. The chunk number leads to the size by an array, instead of a "
          "tree.", "§2", Shown.SOURCE,
          "A subtraction, a shift, a comparison and a load lead from any pointer to its chunk's word. A chunk of a bin "
          "never changes its bin.",
          ("papers/supermalloc/engine/chunk_table.hpp:tag_at",
           "SupermallocBins.ObjectsAreFoundWhereTheyBeginAndNowhereElse")),
    Prose("table-of-512-mib",
          "The table has 2^27 entries of 4 bytes and takes 512 MiB of virtual address space.", "§2", Shown.SOURCE,
          "2^48 bytes are 2^27 chunks of 2 MiB, and 2^27 words take 512 MiB. The author's malloc.cc maps just that. "
          "The table here spans the arena only: at most 2^24 words, 64 MiB.",
          ("papers/supermalloc/engine/chunk_table.hpp:kNumbers",)),
    Prose("table-mostly-uncommitted",
          "The chunk table typically needs only a few pages of physical memory; most of it is uncommitted.",
          "Abstract, §2", Shown.COUNT,
          "The resident pages of the table's mapping after malloc-test would decide it. One page of words covers 1,024 "
          "chunks, 2 GiB of addresses.",
          ("src/pages/growing_table.hpp:GrowingTable",)),
    Prose("small-steps-of-a-quarter",
          "Small objects increase in size by at most 25 % to limit internal fragmentation.", "§3", Shown.SOURCE,
          "Asserted at compile time of the sizes from 64 bytes up. Below that, sizes here are multiples of 16. In the "
          "author's last version 113 bytes get 160, as malloc.cc passes powers of two by.",
          ("papers/supermalloc/engine/bins.hpp:small_steps_are_short",)),
    Prose("size-to-bin-by-bit-hacking",
          "The bin number of a small size is computed by bit hacking in O(1) operations, by the code of Figure 2.",
          "§3, Figure 2", Shown.SOURCE,
          "Worked out for each of 1 to 320 bytes, Figure 2's code gives the least size that holds it. This engine "
          "looks the bin up in a table instead.",
          ("papers/supermalloc/engine/bins.hpp:kTagBySize",
           "SupermallocBins.TheLeastOneServesASizeAndNeverAnAlignedOne")),
    Prose("no-false-sharing-beyond-a-line",
          "SuperMalloc takes a different tack on avoiding false sharing, focusing on objects that are larger than a "
          "cache line.", "§3", Shown.AGAINST,
          "Objects of 80, 96, 112, 160 and 224 bytes are larger than a line and share lines with their neighbours, in "
          "the paper and here. From 256 bytes up every size is whole lines.",
          ("papers/supermalloc/engine/bins.hpp:sizes_are_the_papers",)),
    Prose("never-unmaps",
          "SuperMalloc only uncommits pages and chunks, and never unmaps or changes the size of the objects in a "
          "chunk.", "§3, §6", Shown.SOURCE,
          "Chunks go with the whole heap only. A test sees large chunks stay after a trim. Objects above 8 GiB are "
          "mappings of their own, which go. The author's makechunk.cc unmaps what came misaligned.",
          ("SupermallocLarge.EveryObjectOfAChunkIsUsedAndNoOther", "papers/supermalloc/engine/chunk_table.hpp:destroy",
           "papers/supermalloc/engine/big_objects.hpp:outside")),
    Prose("fullness-lists",
          "Pages of 64-byte objects are in one of 65 states of fullness: an array of 65 lists and a bitmap find the "
          "fullest that has one free.", "§3", Shown.TEST,
          "Random steps over 257 lists, and five folios of 64-byte objects, of which the fullest with one free serves "
          "each time. The author's small_malloc.cc has no bitmap: it walks the lists.",
          ("SupermallocFolios.TheFullestIsFoundAmongAnyLists", "SupermallocFolioHeap.TheFullestFolioServes")),
    Prose("empty-folios-go-whole",
          "List cells lie outside the pages, so that these can be uncommitted. When a folio becomes empty SuperMalloc "
          "uncommits the entire folio.", "§3, §4", Shown.TEST,
          "By residency, for six sizes. The author's last version has gone away from it: it keeps one empty folio a "
          "bin (small_malloc.cc).",
          ("SupermallocFolioHeap.AnEmptyFolioGoesBackWholeAndComesAgainAsZero",)),
    Prose("few-pages-of-bookkeeping",
          "SuperMalloc reserves the first few pages of each 2 MiB chunk for bookkeeping.", "§3", Shown.SOURCE,
          "Bits and cells fill at most 8 pages here. They take the place of whole folios, of which the rest stays "
          "untouched. In the author's last version they are 40 pages for folios of a page (objsizes.cc).",
          ("papers/supermalloc/engine/bins.hpp:bookkeeping_bytes",
           "SupermallocBins.BookkeepingEndsBeforeTheFirstObject")),
    Prose("nine-bytes-get-sixteen",
          "Without the sizes of 10, 12, 14, 20 and 28 bytes, which an upcoming release removes, malloc of 9 bytes "
          "returns an object of 16.", "§3", Shown.TEST,
          "This engine has none of the five sizes; the test tries its config that aligns to 8 bytes. The author's last "
          "version, of two years later, still has all five (objsizes.cc).",
          ("SupermallocConfigs.SmallBinsAlignedToEightBytesAreThePapers",
           "papers/supermalloc/engine/config.hpp:kQuantum")),
    Prose("dlmalloc-8-byte-aligned",
          "DLmalloc returns only 8-byte-aligned objects, necessitating memalign() for SSE.", "§3", Shown.AGAINST,
          "The release that the paper measured aligns to two pointers by default, 16 bytes (malloc-2.8.6.c, "
          "MALLOC_ALIGNMENT).",
          ("bench/spanalloc_bench/originals.py:_dlmalloc",)),
    Prose("tight-packing-breaks-idioms",
          "To pack 10-byte objects tightly will break idiomatic codes (Figure 3: a struct with a string behind it).",
          "§3", Shown.NOT_BUILT,
          "No config packs objects so: the least alignment is 8 bytes. By arithmetic every second object of 10 bytes "
          "begins 2 bytes off a multiple of 4, which Figure 3's integer wants.",
          ("papers/supermalloc/engine/config.hpp:SupermallocAlignedTo8",)),
    Prose("powers-of-two-for-alignment-only",
          "The powers of two (256 to 8192) are used only when the application explicitly asks for aligned data.",
          "§4", Shown.TEST,
          "Every size up to 20 KiB is tried: none leads to 512, 1024, 2048, 4096 or 8192. A size of 256 bytes serves "
          "any request here, as in Figure 2 (DESIGN.md, choice 2).",
          ("SupermallocBins.TheLeastOneServesASizeAndNeverAnAlignedOne",
           "SupermallocConfigs.MediumSizesAreTheNextPowerOfTwo",
           "papers/supermalloc/engine/bins.hpp:sizes_lead_to_no_power_of_two")),
    Prose("gaps-of-57-and-31-percent",
          "Primes leave one big gap between 7 and 11 lines, up to 57 % for 449 bytes, and a slightly smaller one "
          "between 13 and 17, 31 % for 833.", "§4", Shown.AGAINST,
          "The two numbers hold and are asserted. But other gaps are as wide: 321 bytes get 448, 40 % more, and from "
          "1,089 bytes up every step is wider than 31 %, the widest 42 %.",
          ("papers/supermalloc/engine/bins.hpp:worst_excess",)),
    Prose("two-bins-close-the-gaps",
          "To close these gaps SuperMalloc added two more bins, at 9 and 15 cache lines.", "§4", Shown.SOURCE,
          "Asserted at compile time: 449 bytes get at most 28 % more, 833 bytes 15 %. By the rule of the author's last "
          "version (objsizes.cc) 705 bytes get 960, 36 % more, as 13 lines are no bin any more.",
          ("papers/supermalloc/engine/bins.hpp:worst_excess",)),
    Prose("folios-waste-nothing",
          "A page of 832-byte objects holds 4 and wastes 768 bytes. A folio of 13 pages, 53,248 bytes, avoids this "
          "fragmentation.", "§4", Shown.TEST,
          "In every bin the folio's bytes are its objects' bytes: 64 of 832 bytes fill 13 pages.",
          ("SupermallocBins.BookkeepingEndsBeforeTheFirstObject", "papers/supermalloc/engine/bins.hpp:bins_fit")),
    Prose("five-pages-left-of-a-chunk",
          "Fragmentation at the end of the 2 MiB chunk (5 unused pages of the 832-byte bin) comprises whole pages "
          "which are never touched.", "§4", Shown.SOURCE,
          "512 pages are 39 folios of 13 pages, and 5 that belong to none. The bookkeeping takes the first folio's "
          "place here. By the paper's count no pages but those 5 are left for it.",
          ("papers/supermalloc/engine/bins.hpp:make_bin",)),
    Prose("large-begin-at-a-random-line",
          "SuperMalloc adds a random number of cache lines, 0 to 63, to a large allocation and to the pointer. A "
          "page-aligned request skips that.", "§5", Shown.TEST,
          "The tests see offsets of every large bin, and none of aligned requests. Near the largest size there is room "
          "for fewer lines (DESIGN.md, deviation 6).",
          ("SupermallocLarge.BeginAtARandomLineOfTheirFirstPage", "SupermallocLarge.AlignedOnesBeginWithTheirPage",
           "SupermallocLarge.TheLineNeverMakesAnObjectHuge")),
    Prose("huge-pages-but-for-the-rest",
          "The kernel is asked for huge pages for a huge chunk. The last fractional part of a huge page is mapped with "
          "4 KiB pages only.", "§6", Shown.TEST,
          "By the kernel's flags of the mappings, with SPANALLOC_THP=auto. By default nothing is advised, for which "
          "there is a test, too.",
          ("SupermallocHuge.WholeChunksMayBeHugePagesAndTheRestNot", "SupermallocHuge.NoneAreHugePagesByThemselves")),
    Prose("huge-pages-spare-the-tlb",
          "2 MiB pages can reduce TLB pressure and the cost of walking the page table.", "§6", Shown.CANNOT,
          "It is a matter of time, and the virtual machine shows no counters of TLB misses. No workload reads at "
          "random in one huge object, with SPANALLOC_THP=always and with never."),
    Prose("five-of-eight-mib-committed",
          "Of the 8 MiB for a 5 MiB object only 5 MiB are ever committed. Free ranges are threaded through the chunk "
          "table, so a free chunk need not be committed.", "§6", Shown.TEST,
          "By residency: 5 MiB when written, nothing when freed, nothing when calloc hands the range out again. The "
          "author's huge_malloc.cc may commit a little more where the rest is below an eighth of a chunk.",
          ("SupermallocHuge.TakeRangesOfAPowerOfTwoOfChunks",
           "SupermallocHuge.AFreedRangeGoesBackAndServesTheNextOfItsLength")),
    Prose("huge-pages-for-dense-chunks",
          "Idea: enable huge pages once a chunk is 90 % allocated, defer uncommits until 80 %. One uncommitted 4 KiB "
          "page makes the entire chunk ineligible.", "§6", Shown.NOT_BUILT,
          "Not in this engine. The arena of the engine standard finds out by option what is dense. The kernel's "
          "khugepaged may join such a chunk again, so it is ineligible for a time only.",
          ("src/pages/huge_page_advice.hpp:HugePageAdvice",)),
    Prose("magic-of-320",
          "For 32-bit x, x / 320 == (x * 6871947674) >> 41: division is replaced by multiplication and shift.",
          "§7", Shown.SOURCE,
          "6871947674 * 320 exceeds 2^41 by 128, which is less than 2^(41 - 32) = 512: right for every 32-bit x. This "
          "engine's own constants are tried at every place of a chunk.",
          ("SupermallocBins.DivisionByMultiplicationIsRightAtEveryPlace",
           "papers/supermalloc/engine/bins.hpp:inverse_of")),
    Prose("multiplication-beats-division",
          "Division is slow; Figure 4(b) is the faster code.", "§7, Figure 4", Shown.CANNOT,
          "It is the time of single instructions. Counting them says nothing, as a division is one. The author's own "
          "comparison is a timed program (division.cc)."),
    Prose("primes-25-percent-apart",
          "Metaprogramming finds prime numbers that are spaced no more than 25 % apart.", "§7", Shown.AGAINST,
          "From 17 lines on each of Figure 2's primes is 35 to 42 % above the one before, or 26 to 30 % of the larger "
          "one. The rule that gives them is 30 % of the larger (DESIGN.md, choice 4).",
          ("papers/supermalloc/engine/bins.hpp:next_spaced_prime",)),
    Prose("moves-in-constant-time",
          "The caches allow the movement of many objects between a per-CPU cache and the global cache using O(1) "
          "instructions.", "Abstract, §8", Shown.SOURCE,
          "A chain moves by the exchange of two words, a list by its head; no object is touched. That lists stay whole "
          "is tested. They are singly linked here, and in the author's cache.cc.",
          ("papers/supermalloc/engine/cpu_caches.hpp:take_from_all", "papers/supermalloc/engine/cpu_caches.hpp:swap",
           "SupermallocCaches.AListMovesByItsHead")),
    Prose("a-small-thread-cache-is-needed",
          "A per-CPU cache gets most of the advantage of a per-thread cache, but SuperMalloc still needs a small "
          "per-thread cache.", "§8", Shown.NOT_BUILT,
          "No config is without threads' caches. In the author's data for Figure 6 SuperMalloc without them has 81 % "
          "of its throughput with one producer, 65 % with eight."),
    Prose("hashed-caches-cost-212-ns",
          "With P caches hashed by thread only P/e threads run without contention: 485.5/e + 34.1 (1 - 1/e) = 212 ns, "
          "an order of magnitude slower.", "§8", Shown.AGAINST,
          "The sum is 200. And 1/e is the share without contention, so it should be 34.1/e + 485.5 (1 - 1/e) = 319 ns, "
          "9.4 times 34.1. The order of magnitude holds then. Hashed caches are not built."),
    Prose("three-p-caches-for-one-in-twenty",
          "To get contention down to 1/20 of the accesses requires approximately 3P caches (JEmalloc uses 4P); that is "
          "within about half of optimal.", "§8", Shown.AGAINST,
          "With cP caches a thread shares its own with probability 1 - e^(-1/c): 28 % at 3P, 22 % at 4P. 1/20 wants "
          "19.5 P. The cost at 1/20 is 57 ns, 1.7 times the optimum, as claimed."),
    Prose("getcpu-every-16th-time",
          "The cost of sched_getcpu() is reduced by calling it 1/16th of the time. A thread that calls malloc often is "
          "on the right CPU most of the time.", "§8", Shown.TEST,
          "A thread that moves asks with the sixteenth use, not earlier and not later. How often its CPU is the wrong "
          "one by then is not counted. The author's cache.cc does the same.",
          ("SupermallocCaches.AThreadThatMovesIsNoticedWithTheSixteenthUse",)),
    Prose("ten-objects-a-thread",
          "For each size class there is a 10-object per-thread cache, just big enough to amortize 34 ns of locking.",
          "Abstract, §8", Shown.AGAINST,
          "Section 8 also has the two lists of 8 KiB, which are built. They hold 1,024 objects of 16 bytes, 256 of 64, "
          "and two from 5,312 bytes up (DESIGN.md, choice 6).",
          ("SupermallocBins.ListsAndChainsAreAsLongAsThePaperSays",)),
    Prose("cpu-cache-fills-the-data-cache",
          "The per-CPU cache holds about a level-2-cache worth of objects per size class, just big enough to fill the "
          "processor's data cache.", "Abstract, §8", Shown.AGAINST,
          "Two chains of 1 MiB a bin are 8 times the 256 KiB that a core of each of the paper's three processors has "
          "as its level-2 cache.",
          ("papers/supermalloc/engine/config.hpp:kChainBytes", "SupermallocCaches.ChainsHoldAMegabyteOfEveryBin")),
    Prose("less-than-others-thread-caches",
          "Many allocators keep many megabytes in their per-thread caches. Because there are many of these, their "
          "footprint is larger.", "§8", Shown.COUNT,
          "Memory beyond the live bytes, of each allocator in Larson's benchmark with many more threads than cores, "
          "would decide it."),
    Prose("global-cache-of-p-lists",
          "There is a global cache containing P linked lists of up to 1 MiB each.", "§8", Shown.TEST,
          "With five simulated CPUs it takes five chains, and chains hold 1 MiB of every bin. The author's last "
          "version has 8 lists, whatever P is (cache.cc).",
          ("SupermallocCaches.TheGlobalCacheIsAStackOfChains", "SupermallocCaches.ChainsHoldAMegabyteOfEveryBin")),
    Prose("thread-cache-needs-no-lock",
          "If the thread cache has an item, use it. This requires no locking.", "§8", Shown.SOURCE,
          "The fast paths have plain loads and stores only. No test reads their machine code: that check leaves out "
          "every engine with the trait locks, as this one.",
          ("papers/supermalloc/engine/thread_cache.hpp:pop", "papers/supermalloc/engine/thread_cache.hpp:push",
           "src/libraries.txt:locks")),
    Prose("four-steps-of-malloc-and-free",
          "malloc and free try the thread's cache, the CPU's, the global one, and the global data structures, in this "
          "order.", "§8", Shown.TEST,
          "For three sizes, object by object and both ways. What moves differs: a whole chain from the global cache, a "
          "list from the global structures (DESIGN.md, deviations 4 and 5).",
          ("SupermallocCaches.AFreeGoesToTheThreadTheCpuAllCpusTheFolios",)),
    Prose("most-sections-are-the-cpus",
          "Dynamically, most of the critical sections are on the CPU cache; the global data structures are accessed "
          "infrequently.", "§8", Shown.COUNT,
          "The calls that take a CPU's lock, against those that take a bin's, in malloc-test and SuperServer, would "
          "decide it. A list of up to 512 objects takes a bin's lock once for each 32 on its way back.",
          ("papers/supermalloc/engine/cpu_caches.hpp:take_by_lock", "papers/supermalloc/engine/folio_heap.hpp:kBatch")),
    Prose("locks-on-lines-of-their-own",
          "Each lock is on its own cache line. In the line of the list heads it might cause performance trouble.",
          "§8", Shown.SOURCE,
          "So it is laid out here, for CPUs and for bins. The second half is not built: no config has lock and heads "
          "in one line. The author's later cache.cc holds that one line for both is OK.",
          ("papers/supermalloc/engine/cpu_caches.hpp:Slot", "papers/supermalloc/engine/folio_heap.hpp:BinState")),
    Prose("prefetched-for-locks-too",
          "To make critical sections short, both for HTM and locking, everything is prefetched; this improves "
          "performance by a few percent.", "§8", Shown.AGAINST,
          "In the author's data for Figure 6 it gains 1 to 5 % with transactions, and loses 1 to 3 % with locks, at "
          "all eight thread counts. The test shows that this engine prefetches.",
          ("SupermallocConfigs.NoPrefetchAsksForNothingBeforeALock",)),
    Prose("producers-caches-always-empty",
          "In malloc-test per-thread caches do not work well: the producer's caches are always empty, the consumer's "
          "always overflowing.", "§9 \"Speed\"", Shown.AGAINST,
          "A slow path brings a list: 7 objects for the author's 1,024 bytes (new-malloc-test.c). So 6 of 7 mallocs of "
          "a producer find one in the thread's cache.",
          ("SupermallocBins.ListsAndChainsAreAsLongAsThePaperSays", "papers/supermalloc/engine/allocator.hpp:fetch")),
    Prose("improved-malloc-test-runs-faster",
          "These changes not only made malloc-test run more evenly, but also made it run much faster.",
          "§9 \"Speed\"", Shown.NOT_BUILT,
          "The suite has the improved program only. By the author's data SuperMalloc with one producer rises from 9.4 "
          "to 24.4 million allocations a second; on one machine or on two is not said."),
    Prose("limited-by-misses-not-arithmetic",
          "Malloc-test is limited by the rate at which the processor issues memory operations that miss cache, not by "
          "arithmetic nor by the memory subsystem.", "§9 \"Speed\"", Shown.CANNOT,
          "It takes the processor's counters of cycles and misses, which the virtual machine does not show, and two "
          "hardware threads of one core."),
    Prose("gs-asks-for-large-objects",
          "GS apparently allocates large objects and runs its own allocator internally, mostly measuring large-object "
          "allocation.", "§9 \"gs\"", Shown.COUNT,
          "The sizes that Ghostscript asks for would decide it, by calls and by bytes: whether more than half are 16 "
          "KiB and more."),
    Prose("superserver-frees-by-others",
          "Each object will, at the end of its life, be freed by a randomly chosen other thread; its expected lifetime "
          "is proportional to its size.", "§9 \"SuperServer\"", Shown.AGAINST,
          "The author's server.cc clears an object's data pointer before it deletes the object, so the data are never "
          "freed. Its queue orders pointers, not expiry dates. The suite's workload can do either.",
          ("bench/workloads/superserver.cpp:expired",)),
    Prose("footprint-varies-tenfold",
          "The memory footprint of an application can vary by more than an order of magnitude with the allocator.",
          "§9 \"Footprint\"", Shown.COUNT,
          "The largest over the least peak of the five in Vyukov's chain would decide it. By the paper's own Figure 13 "
          "that is 4,214 over 219 MiB, 19 times."),
    Prose("caches-spare-madvise",
          "The SuperMalloc caches reduce the impact of the madvise() calls.", "§10", Shown.COUNT,
          "The calls of madvise with all caches and without one level of them, in malloc-test, with large objects and "
          "in Vyukov's chain, would decide it. A test shows that a large object in a cache keeps its pages.",
          ("SupermallocLarge.PagesGoBackOnceNoCacheHoldsTheObject",)),
    Prose("madv-free-would-help",
          "With MADV_FREE SuperMalloc would speed up and exhibit less performance variance; Linux does not provide it.",
          "§10", Shown.NOT_BUILT,
          "Linux has it since 4.5. Such pages stay counted as RSS and may keep their contents, while large and huge "
          "objects here are handed out as zero. Folios, which promise no zeros, could use it.",
          ("docs/tuning.md:MADV_FREE",)),
    Prose("a-list-of-empty-pages-lies-around",
          "The allocator generally has a big list of empty pages lying around that it could quickly return, on an "
          "event of the kernel's.", "§10", Shown.AGAINST,
          "In this engine an empty folio goes back with the free that empties it; the author's last version keeps one "
          "a bin. What could be returned lies in caches, which a trim takes apart. No event is listened to.",
          ("SupermallocFolioHeap.AnEmptyFolioGoesBackWholeAndComesAgainAsZero",
           "papers/supermalloc/engine/giving_back.hpp:trim")),
    Prose("no-way-to-wait-for-a-mutex",
          "There is no way to ask the operating system to wake a waiter up when the mutex becomes unlocked, except to "
          "lock the mutex.", "§10", Shown.AGAINST,
          "With a futex there is. In the author's later futex_mutex.cc futex_mutex_hold sleeps on a word of its own, "
          "which the unlocker wakes. It holds of a pthread mutex."),
    Prose("hoard-and-jemalloc-do-well-everywhere",
          "Hoard and JEmalloc do pretty well under all loads, whether you measure time, variance, or maximum RSS.",
          "§11", Shown.COUNT,
          "How far both lie behind the best of the five, in time and in peak memory, in each of the six workloads, "
          "would decide it."),
    Prose("scales-better-with-varied-sizes",
          "Under workloads in which the objects vary in size, SuperMalloc appears to scale better, use less physical "
          "memory, all while using less code.", "§11", Shown.CANNOT,
          "The paper has no curve over threads for objects of many sizes, and two cores draw none. Its Figure 12 has "
          "SuperMalloc behind TBBmalloc, 12.81 to 11.52 s. Memory and code have rows above."),
)
