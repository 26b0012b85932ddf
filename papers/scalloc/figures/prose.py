"""What the paper's text claims beside its experiments, and what shows it here."""

from __future__ import annotations

from papers.shared.figures.prose import Prose, Shown

ROWS = (
    Prose("generally-better",
          "Scalloc generally performs and scales better than other allocators while using less memory, and is still "
          "competitive otherwise.", "abstract", Shown.COUNT,
          "Geometric means of time and of memory over the seven experiments of Figures 5 to 11, against each other "
          "allocator, would decide it. The figures' runs hold them."),
    Prose("constant-time-malloc",
          "An allocation is constant-time, modulo synchronization: it considers only hot and reusable spans, and need "
          "not clean up empty ones.", "abstract, §4", Shown.SOURCE,
          "A slow call looks at its LAB's sets, the span-pool's stacks and one page of blocks, however many spans "
          "there are. Exceptions: suspects are settled one by one, and where memory is out the arena is walked.",
          ("papers/scalloc/engine/frontend_allocate.hpp:find_span", "papers/scalloc/engine/frontend_allocate.hpp:carve",
           "papers/scalloc/engine/frontend_allocate.hpp:take_floating")),
    Prose("beats-tbb",
          "Scalloc increases performance on average while consuming less memory than the previously fastest allocator "
          "(TBB).", "§1", Shown.COUNT,
          "Geometric means of time and of memory over the paper's experiments, against TBB alone, would decide it. "
          "Whether TBB is the fastest of the others is a second question."),
    Prose("object-sizes-no-more-memory",
          "Scalloc outperforms all allocators for varying object sizes that fit virtual spans while consuming as much "
          "or less memory.", "§1", Shown.COUNT,
          "At each size below 1 MB, scalloc's memory in Figure 10b over the best other allocator's would decide it. "
          "§7.5 itself says that memory is higher for small objects. The time is a claim of Figure 10a."),
    Prose("all-three-needed",
          "The combination of all three design choices (virtual spans, the span-pool, eager return) is needed to "
          "achieve scalability and low memory consumption.", "§1, §6", Shown.COUNT,
          "The engine is built without each of the three. Their time and memory against scalloc's, with as many cores "
          "as the paper has, would decide it.",
          ("papers/scalloc/engine/config.hpp:ScallocNoVirtualSpans",
           "papers/scalloc/engine/config.hpp:ScallocSingleStack",
           "papers/scalloc/engine/config.hpp:ScallocLazyReclaim")),
    Prose("constant-time-free",
          "Local deallocations are constant-time, remote ones modulo synchronization: an innovation against cleanup "
          "that is not constant-time.", "§1, §2, §4", Shown.SOURCE,
          "A free is a push and a look at the span word. A compare-and-swap that others have overtaken is tried "
          "again. In the kernel madvise is linear in the real span, which has at most 1,540 KiB.",
          ("papers/scalloc/engine/span_protocol.hpp:push_remote", "papers/scalloc/engine/span_protocol.hpp:settle",
           "papers/scalloc/engine/backend.hpp:put")),
    Prose("progress-in-constant-time",
          "Modulo synchronization means that at least one thread will make progress in constant time while others may "
          "have to retry.", "§1, §4", Shown.AGAINST,
          "The sets of reusable spans have a lock, in the paper too. While a thread is preempted that holds one, no "
          "other thread that needs this set makes progress.",
          ("papers/scalloc/engine/lab.hpp:ReusableSet", "papers/scalloc/engine/span_protocol.hpp:SetGuard")),
    Prose("unused-part-is-free",
          "The fraction of a virtual span that is unused has no cost aside of consuming virtual address space.",
          "§1, §3.2, §3.4", Shown.AGAINST,
          "On x86-64 each virtual span has a page of page tables of its own: 4 KiB for a real span of 32 KiB, an "
          "eighth of it. Without virtual spans 64 such real spans would share that page.",
          ("papers/scalloc/engine/size_classes.hpp:kVirtualSpanBits", "papers/scalloc/DESIGN.md")),
    Prose("sets-uncontended",
          "Contention on the sets of reusable spans is low, as they are segregated by size class and LAB.",
          "§1, §5", Shown.COUNT,
          "The cache lines that move because of the sets' locks, in larson and producer-consumer on the simulated "
          "machine, would decide it. A free takes such a lock only where a span crosses a threshold.",
          ("papers/scalloc/engine/span_protocol.hpp:settle",)),
    Prose("three-thousand-lines",
          "Scalloc is implemented in around 3000 lines of code.", "§1", Shown.COUNT,
          "The lines of the authors' public sources, at the paper's commit, would decide it. They are not among the "
          "originals that the suite fetches.",
          ("bench/spanalloc_bench/originals.py",)),
    Prose("fast-path-unsynchronised",
          "Allocating objects thread-locally without synchronization is fast and standard practice; so is freeing "
          "into an own hot span.", "§2, §3.4", Shown.TEST,
          "The test reads the machine code of malloc, free, new and delete. Their fast paths have no locked "
          "instruction, no fence and no call. How fast they are is left.",
          ("conformance.hot_path", "tests/conformance/check_hot_path.py")),
    Prose("addressable-256gb",
          "Allocating 1-byte objects only, scalloc may still allocate up to 256GB of physical memory in 32TB (real "
          "spans of 16KB in virtual spans of 2MB).", "§2, §3.2", Shown.SOURCE,
          "2^45 bytes are 2^24 spans of 2^21. With 16 KiB each they hold 2^38 bytes, as claimed; with the 32 KiB of "
          "§7, which the engine has, 2^39. A 1-byte object takes 16 of them.",
          ("papers/scalloc/engine/size_classes.hpp:kVirtualSpanBits",
           "papers/scalloc/engine/size_classes.hpp:kSizeClasses", "src/pages/address_range.hpp:kMaxBits")),
    Prose("locked-stacks-slower",
          "Replacing the Treiber stacks with lock-based stacks results in loss of performance and limits scalability.",
          "§2", Shown.NOT_BUILT,
          "A configuration of the span-pool with a lock for each stack would show it. The paper has no figure for it. "
          "Scaling wants more cores than two, and Figure 13's workload is not simulated.",
          ("src/standard/span_pool.hpp:SpanPool",)),
    Prose("block-internal-fragmentation",
          "The design of the size classes limits block-internal fragmentation for sizes larger than 16 bytes to less "
          "than 50 %.", "§3.1", Shown.SOURCE,
          "Classes by 16 bytes waste at most 15 bytes. Classes by doubling waste less than half: 524,289 bytes take "
          "1,048,576. An alignment breaks the bound: 17 bytes aligned to 4,096 take 4,096.",
          ("papers/scalloc/engine/size_classes.hpp:class_of", "papers/scalloc/engine/frontend.hpp:allocate_aligned")),
    Prose("size-classes-29-9",
          "There are 29 size classes but only 9 distinct real-span sizes, which are all multiples of 4KB.",
          "§3.1", Shown.AGAINST,
          "16 classes by 16 bytes and 12 by doubling are 28. The 29th is class 0, which serves no request. Nine "
          "real-span sizes, all multiples of 4 KiB, hold of the engine; the paper does not list its own.",
          ("papers/scalloc/engine/size_classes.hpp:kAllClasses",
           "papers/scalloc/engine/size_classes.hpp:kRealSpanSizes")),
    Prose("address-space-left",
          "Left for other mappings are 2^48 - 2^45 bytes, 224TB; a larger arena could have up to 256TB on current "
          "hardware (2TB addressable).", "§3.2", Shown.AGAINST,
          "Linux gives a process on x86-64 2^47 bytes. Left are 96 TiB, and an arena has less than 128 TiB, of which "
          "1 TiB is addressable. With the 48-bit addresses of aarch64 the claim holds.",
          ("src/pages/address_range.hpp:kMaxBits",)),
    Prose("arena-mapped-once",
          "There are no repeated system calls upon every span allocation, since the arena is mmapped only once.",
          "§3.2", Shown.SOURCE,
          "One call reserves the arena. mprotect opens it in steps that double up to 16 MiB, so a call serves eight "
          "spans. Under a limit on address space each fresh span takes calls.",
          ("src/pages/address_range.hpp:open_up_to", "papers/scalloc/engine/page_layer.hpp:SpanSource",
           "papers/scalloc/engine/backend.hpp:close_tail")),
    Prose("arena-costs-nothing",
          "Mapping 32TB at initialization does not introduce any significant overhead.", "§3.2", Shown.COUNT,
          "Start-up time and resident memory of an empty program, with an arena of 2^30 and of 2^45 bytes, would "
          "decide it. The engine reserves the arena, and does not map it readable and writable.",
          ("src/pages/address_range.hpp:kMaxBits", "papers/scalloc/DESIGN.md")),
    Prose("spans-to-128mb",
          "Configurations of up to 128MB for virtual spans resulted in unchanged temporal and spatial performance.",
          "§3.2", Shown.NOT_BUILT,
          "The size of a virtual span is one constant, not a parameter of a configuration. Threadtest and the object "
          "sizes with spans up to 128 MiB would show it.",
          ("papers/scalloc/engine/size_classes.hpp:kVirtualSpanBits",)),
    Prose("segfaults-remain",
          "Virtual spans do not restrict observing segmentation faults: memory not used by a real span is protected "
          "by mprotect.", "§3.2", Shown.AGAINST,
          "The engine opens whole virtual spans, so a write behind a real span is not caught. Only under a limit on "
          "address space the tail of a span is unmapped.",
          ("papers/scalloc/DESIGN.md", "papers/scalloc/engine/backend.hpp:close_tail")),
    Prose("real-span-size-stays",
          "The design of the span-pool minimizes the chances that a virtual span changes its real-span size.",
          "§3.2", Shown.SOURCE,
          "A get searches its own size on all cores before any other size. Listing 1 as printed goes on with the "
          "smallest size after a miss on its own core. How often a span changes its size is not counted.",
          ("papers/scalloc/engine/backend.hpp:find_pooled", "papers/scalloc/DESIGN.md")),
    Prose("lower-madvise-threshold",
          "Lowering MADVISE_THRESHOLD (down to a page) does not substantially improve memory while it noticeably "
          "decreases performance.", "§3.3, §7", Shown.NOT_BUILT,
          "The threshold is a constant. As 32 KiB is the smallest real span, any lower value means that madvise is "
          "called for every emptied span. One configuration with that would show it.",
          ("papers/scalloc/engine/size_classes.hpp:kMadviseThreshold", "papers/scalloc/engine/backend.hpp:put")),
    Prose("compaction-call",
          "Where physical fragmentation is an issue, one can add a compaction call that traverses and madvises "
          "particular spans.", "§3.3", Shown.TEST,
          "malloc_trim is that call. A pooled span of 32 KiB whose pages are all resident keeps only the page of its "
          "header.",
          ("ScallocMemory.SmallSpansKeepThemUntilTrim", "papers/scalloc/engine/backend.hpp:purge_pooled")),
    Prose("pool-loses-nothing",
          "In the span-pool no values are lost nor invented; single-threaded each pool is a stack; there is no "
          "linearizable emptiness check.", "§3.3", Shown.TEST,
          "Threads that put and get lose no span and invent none, and a stack is last-in, first-out. Left are local "
          "linearizability and the get that misses a span. Listing 1 as printed loses a span.",
          ("SpanPool.NothingIsLostOrInventedUnderContention", "SpanPool.OwnStackIsLastInFirstOut",
           "TreiberStack.ThreeThreads", "ScallocTraps.PoolReturnsWhatItsFastPathFinds")),
    Prose("pool-needs-no-memory",
          "Stacks need no sentinel nodes, so no additional and no dynamic memory; and their push and pop have lower "
          "latency than a queue's operations.", "§3.3, §6", Shown.SOURCE,
          "A pooled span's link stands in its own header, and the stacks' tops are a static array. The latency is "
          "left: no queue is built.",
          ("papers/scalloc/engine/span.hpp:pool_link", "src/standard/span_pool.hpp:SpanPool")),
    Prose("aba-counters-suffice",
          "ABA counters of 16 bits make the ABA problem unlikely; on the remote free list it may occur, but is not a "
          "problem.", "§3.3, §5", Shown.COUNT,
          "How often 16 bits come round within one operation would decide the first part. The model fails without "
          "tags and holds with 32 bits. The paper's remote list is not modelled: here it shares its word with an "
          "epoch.",
          ("TreiberStack.WithoutTagsAnElementIsHandedOutTwice", "TreiberStack.PopAgainstReuse",
           "papers/scalloc/engine/span_word.hpp:SpanWord")),
    Prose("last-free-returns-span",
          "A new contribution of scalloc is that a span is freed upon the deallocation of the last object in the span.",
          "§3.4, §1, §2", Shown.AGAINST,
          "A last local and a last remote free may miss each other. As published the span is then lost; in the engine "
          "a later search finds it. A hot span stays where it is, in the paper too.",
          ("NaiveSpan.TheLostEmptySpanNeedsStoreBuffers", "ScallocTraps.TwoLastFreesMissEachOther",
           "ScallocSpan.StatesWithEagerReturn")),
    Prose("only-eager-one",
          "All other span-based allocators postpone freeing of a span until the next allocation, which triggers a "
          "cleanup.", "§3.4, §6", Shown.COUNT,
          "Addresses would decide it: one thread fills spans, frees all and sleeps; another thread allocates as much. "
          "Only under scalloc may it get the first thread's addresses. llalloc and Streamflow are not available."),
    Prose("remote-list-apart",
          "Allocating in the remote free list would make allocation interfere with remote frees, destroying the "
          "performance of allocation.", "§3.4", Shown.NOT_BUILT,
          "A configuration that refills from every remote list that is not empty would show it in producer-consumer. "
          "It would be one condition: the engine refills from more than 80 % of the blocks.",
          ("papers/scalloc/engine/frontend_allocate.hpp:refill",)),
    Prose("span-internal-fragmentation",
          "Equations (1) to (4): an allocation changes f by u - size or by -size; a free changes f by -u if it is the "
          "last of its span, else by +size.", "§4", Shown.AGAINST,
          "With f as the sum of u less the live bytes, (3) contradicts the others. Before its last free a span adds u "
          "- size to f, so that free leaves f - u + size. A hot span stays after its last free: then (4) applies."),
    Prose("orphans-are-adopted",
          "Orphaned spans are always floating, and are adopted by threads upon freeing a block in them.",
          "§5", Shown.TEST,
          "A free into an orphan makes the thread its owner, before the block is freed. As published the span may get "
          "lost, which the model finds. Where memory is out, an allocation adopts orphans too.",
          ("ScallocSpan.Adoption", "ScallocSpan.ThreadTermination", "ScallocTraps.AdoptionKeepsTheFreeGoing",
           "ScallocTraps.TwoAdopters", "NaiveSpan.EveryKnownTrapIsFound")),
    Prose("unwritten-rules",
          "Being competitive in absolute terms requires strict inlining, careful layout of thread-local storage, and "
          "intercepting thread creation and termination.", "§5", Shown.NOT_BUILT,
          "No configuration without inlining, or with dynamic thread-local storage, is built. The engine intercepts "
          "no thread's creation. It learns of a thread's end by a pthread key.",
          ("src/thread/lifecycle.hpp:ExitKey", "src/base/compiler.hpp:SPANALLOC_TLS")),
    Prose("no-object-headers",
          "Scalloc does not require object headers.", "§6, §7.6", Shown.SOURCE,
          "Blocks of a class follow each other at the distance of their size, and a free block's link stands in the "
          "block. Huge objects, which have a header in the paper, stand in a side table.",
          ("papers/scalloc/engine/frontend_allocate.hpp:carve", "papers/scalloc/engine/free_block.hpp:FreeBlock",
           "src/pages/large_objects.hpp:LargeObjects")),
    Prose("huge-threshold-irrelevant",
          "The threshold between big and huge objects (1MB) is so large that it is likely to be irrelevant for most "
          "existing applications.", "§6", Shown.COUNT,
          "The share of requests above 1 MiB in real programs would decide it. The suite does not record the sizes "
          "that they ask for."),
    Prose("supermalloc-poor",
          "The generally poor performance of SuperMalloc for concurrent workloads shows that virtual spans alone do "
          "not suffice.", "§6", Shown.COUNT,
          "Runs of Figures 6a to 10a with SuperMalloc beside scalloc, with as many threads as the paper's 40 cores, "
          "would decide it. Such a machine can only be simulated here."),
    Prose("threadtest-working-set",
          "The working set for a single round of a thread in threadtest is roughly 6.4MB, so allocators are forced to "
          "interact with their backend.", "§7.2.1", Shown.AGAINST,
          "In a round each of t threads has 10^5 / t objects of 64 bytes: 6.4 MB for one thread, 160 KB for each of "
          "40. The backend is met all the same: 2,500 objects fill five spans of 508 blocks.",
          ("bench/workloads/threadtest.cpp", "papers/scalloc/engine/size_classes.hpp:kSizeClasses")),
    Prose("adoption-may-share",
          "Only in case of thread termination threads may adopt spans in which others still have blocks, potentially "
          "causing false sharing.", "§7.4", Shown.TEST,
          "A thread allocates from an adopted span in which older blocks live. Adoption wants an owner that has "
          "ended. That two threads then share a cache line is left: the test's blocks have 256 bytes.",
          ("ScallocTraps.AdoptionKeepsTheFreeGoing", "papers/scalloc/engine/span_protocol.hpp:adopt")),
    Prose("pool-only-bottleneck",
          "For object sizes below 1MB the only possible bottleneck is accessing the span-pool.", "§7.5", Shown.COUNT,
          "Figure 12a's times without madvise, over scalloc's, would decide it. If they are lower by more than 5 %, "
          "the kernel is a second bottleneck.",
          ("papers/scalloc/engine/config.hpp:ScallocNoMadvise",)),
    Prose("future-vm",
          "Future work: integrating virtual spans and virtual memory management, and kernels that allow larger arenas.",
          "§8, §3.2", Shown.NOT_BUILT,
          "This is work on the kernel, and another project."),
    Prose("future-numa",
          "Future work: NUMA-aware mapping of real spans.", "§8", Shown.NOT_BUILT,
          "No machine with several memory nodes is here, and the simulated machine has one node. Nothing could judge "
          "it."),
    Prose("future-resize",
          "Future work: dynamically resizing real spans to trade off LAB provisioning and performance by run-time "
          "feedback.", "§8", Shown.NOT_BUILT,
          "Each span's header has its own number of blocks, so sizes could differ. But a class has one real-span size "
          "in a table, and the fast path of malloc checks links by that size as a constant.",
          ("papers/scalloc/engine/size_classes.hpp:no_link_bits",)),
)
