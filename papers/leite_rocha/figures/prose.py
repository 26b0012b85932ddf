"""What the paper's text claims beside its experiments, and what shows it here."""

from __future__ import annotations

from papers.shared.figures.prose import Prose, Shown

ROWS = (
    Prose("lock-free",
          "A lock-free coalescing mechanism: allocation and deallocation are trivially lock-free if the controller is "
          "lock-free.", "abstract, §4.3", Shown.SOURCE,
          "No loop of the manager waits for another thread, and the tree's retries finish what others have begun. "
          "Here, beyond 128 threads inside operations, a thread waits for an epoch slot.",
          ("papers/leite_rocha/manager/paper_manager.hpp:PaperManager",
           "papers/leite_rocha/manager/tree_controller.hpp:help", "papers/leite_rocha/manager/epochs.hpp:announce")),
    Prose("best-fit",
          "The mechanism is equivalent to an address-ordered best-fit mechanism.", "abstract, §1, §4.1, §6", Shown.TEST,
          "100,000 random steps against an ordered set: the tree hands out the least block by size, then address. "
          "Several threads are left. The manager that ships bounds its search, so it is no exact best fit.",
          ("CoalescingTree.IsASetOrderedBySizeThenAddress",
           "StaticController.LooksAtNoMoreBlocksThanTheSearchIsWorth")),
    Prose("low-fragmentation",
          "The mechanism has desirable low fragmentation characteristics.", "abstract, §1, §6", Shown.COUNT,
          "The smallest region that serves a fixed trace, over the trace's most live pages, would decide it: of the "
          "tree, of first fit and of powers of two. The paper has no experiment for it."),
    Prose("no-internal-fragmentation",
          "The mechanism does not cause internal fragmentation due to the use of size classes.",
          "§1, §4.2, §6", Shown.TEST,
          "In 50,000 random calls each allocation gets exactly the units that it asks for. All are one block again at "
          "the end. Requests are rounded up to a unit, a page in the benchmarks.",
          ("PaperManager.CoalescesEverythingForOneThread", "Untouchable.BlocksAreWholeUnits")),
    Prose("buddy-wastes",
          "The hierarchical structure that buddy systems impose is known to cause high fragmentation in practice.",
          "§1", Shown.SOURCE,
          "Figure 7 asks for 1 to 128 pages, each as often. Rounded up to powers of two 8,256 pages become 10,923, so "
          "24 % are wasted. Free buddies that do not merge come on top.",
          ("bench/workloads/pages/pages_larson.cpp",)),
    Prose("fewer-system-calls",
          "A lower-level coalescing component brings performance, as fewer (often prohibitively expensive) mmap and "
          "munmap calls are needed.", "§1", Shown.SOURCE,
          "mmap takes a call for each allocation and each free. The tree takes two mappings in all, and one for each "
          "1,024 nodes. That performance follows is a matter of the figures.",
          ("bench/workloads/pages/page_manager.cpp:Mmap", "papers/leite_rocha/figures/page_managers.cpp:Mapping",
           "papers/leite_rocha/manager/node_pool.hpp:kChunkNodes")),
    Prose("single-region-without-os",
          "A lock-free coalescing mechanism allows usage where no operating system exists or a single region has to "
          "be managed.", "§1", Shown.TEST,
          "The manager that ships runs without C library and operating system. The paper's own refuses memory that "
          "others are splitting, and needs memory for nodes. §4.4 calls it unsuitable without an OS.",
          ("freestanding.program", "CoalescingPaper.RefusesWhatAnotherIsSplitting")),
    Prose("nodes-and-aba",
          "The tree needs dynamic allocation of nodes, so a secondary lock-free allocator, and is vulnerable to the "
          "ABA problem without memory reclamation.", "§1, §4.4", Shown.TEST,
          "A block takes two nodes, and is refused when nodes are out. The ABA problem is left: no model of the tree "
          "reuses a node at once.",
          ("CoalescingTree.SaysWhenItsNodesAreOut", "CoalescingTree.ReusesNodes")),
    Prose("allocation-may-fail",
          "While one thread has a block to split it, an unbounded number of allocations may fail though there is free "
          "memory.", "§1, §4.4", Shown.TEST,
          "Of two allocations of 2 of 4 free units one is refused. That their number is unbounded is left; it "
          "follows, as no allocation waits. The manager that ships refuses no thread its share.",
          ("CoalescingPaper.RefusesWhatAnotherIsSplitting", "CoalescingThreads.NobodyIsRefusedItsShare")),
    Prose("thread-death-is-harmless",
          "A lock-free mechanism does not halt under a subpar scheduler or many threads, nor deadlock; unexpected "
          "thread termination is also not problematic.", "§1", Shown.AGAINST,
          "Other threads go on. But a thread that ends inside an operation keeps §4.4's epoch from advancing: each "
          "block added then keeps two nodes for good. After 2^22 nodes freed blocks are lost.",
          ("CoalescingTree.AStalledThreadKeepsWhatIsRetiredMeanwhile",
           "papers/leite_rocha/manager/node_pool.hpp:kMaxChunks",
           "papers/leite_rocha/manager/paper_manager.hpp:lost_units")),
    Prose("no-overlapping-blocks",
          "With the controller as authority, simultaneous coalescing with a shared neighbour (Figure 4) makes no "
          "overlapping blocks; it needs size and address.", "§3, §4.3", Shown.TEST,
          "The model finds no overlap in Figure 4's case, within a bound of preemptions; nor do four real threads. A "
          "controller that takes a block without an exchange is found out.",
          ("CoalescingPaper.LosesAndDoublesNothing", "PaperManager.LosesNoUnitUnderThreads",
           "Controller.RemovesExactlyOneBlockOnce", "CoalescingPaper.ATornTakeHandsABlockOutTwice")),
    Prose("memory-never-touched",
          "Headers and footers are not in the blocks, so that varying amounts of memory are managed and no invalid "
          "memory is accessed.", "§4.1", Shown.TEST,
          "The paper's manager runs over bare unit numbers, without memory behind them. The manager that ships runs "
          "over, and extends, a region without access rights. A region that shrinks is left.",
          ("PaperManager.LosesNoUnitUnderThreads", "Untouchable.IsExtendedUpToItsLimit")),
    Prose("one-word-a-page",
          "The mapper needs two processor words of uncommitted memory for each block unit; the implementation needs "
          "one.", "§4.1", Shown.SOURCE,
          "A unit has a word of 8 bytes, 0.2 % of a page. Only words at the ends of blocks are touched. The tree adds "
          "two nodes of 40 bytes for each free block.",
          ("src/pages/coalescing/mapper.hpp:bytes_for", "papers/leite_rocha/manager/tree_controller.hpp:Node")),
    Prose("state-elsewhere-fails",
          "If the state is kept elsewhere (in the header, the footer), it inevitably becomes impossible to keep it "
          "coherent with the structure.", "§4.1", Shown.AGAINST,
          "The manager that ships keeps the state in the headers, and its bitmaps only say where to look. Its models "
          "hold. It still has one authority alone, as the paper's does: the header.",
          ("src/pages/coalescing/static_controller.hpp:StaticController", "Coalescing.FreeAndEveryOther",
           "CoalescingLinearizability.ThreeThreads")),
    Prose("coalescing-not-guaranteed",
          "The design cannot guarantee that coalescing always occurs: two neighbours that are freed simultaneously "
          "may both stay.", "§4.4", Shown.TEST,
          "The model finds such neighbours, with recursive coalescing and without. The manager that ships looks again "
          "after each publication and leaves none.",
          ("CoalescingPaper.MissesNeighboursFreedAtOnce", "Coalescing.FreeAndEveryOther")),
    Prose("contention-more-failures",
          "As contention increases and more threads operate on the same space, the more likely it is that coalescing "
          "fails.", "§4.4", Shown.CANNOT,
          "The claim wants more cores than two. The simulated machine does not run the page experiments."),
    Prose("recursion-repairs",
          "Recursive coalescing ensures that both blocks will be coalesced when another neighbour block is "
          "deallocated.", "§4.4", Shown.SOURCE,
          "The loop goes on while a neighbour was merged, so two free blocks on one side join one after the other. "
          "Blocks beside which nothing is freed stay apart. No test sets up this case alone.",
          ("papers/leite_rocha/manager/paper_manager.hpp:coalesce",)),
    Prose("maximum-block-size",
          "A maximum block size attenuates the problem of refusals: the controller then has a larger number of blocks.",
          "§4.4", Shown.NOT_BUILT,
          "It would be one condition where blocks are merged, in a third variant of the tree. The manager that ships "
          "has no such refusals.",
          ("papers/leite_rocha/manager/paper_manager.hpp:coalesce",)),
    Prose("future-structure",
          "Further work: a lock-free data structure better suited, ideally completely static, without dynamic "
          "allocation.", "§4.4, §6", Shown.TEST,
          "The controller that ships is one: header words and bitmaps, without allocation. Models check it. The "
          "library of its page manager needs nothing but the four mem functions.",
          ("Coalescing.AllocateAndEveryOther", "CoalescingLinearizability.ThreeThreads", "freestanding.stands_alone",
           "src/pages/coalescing/static_controller.hpp:StaticController")),
    Prose("nbbs-quadratic",
          "NBBS traverses all allocated blocks where blocks are allocated without interleaving deallocations: O(n^2) "
          "expected runtime.", "§5, Figure 5", Shown.COUNT,
          "Figure 5's benchmark with NBBS of January 2019, at 2,000 and at 10,000 blocks, would decide it: n^2 means "
          "25 times the time. NBBS is the user's to build. Later versions begin at a free node.",
          ("bench/workloads/pages/pages_scalability.cpp",)),
    Prose("nbbs-benchmark-wrong",
          "NBBS's authors did not implement Linux-scalability correctly: n pairs of allocation and deallocation "
          "instead of n allocations, then n deallocations.", "§5", Shown.SOURCE,
          "NBBS's public benchmark (HPDCS/NBBS, benchmarks/TB_linux-scalability/main.h) frees each block right after "
          "its allocation, in one loop. The suite's has batches, as the paper's.",
          ("bench/workloads/pages/pages_scalability.cpp", "bench/workloads/pages/batches.hpp:run_batches")),
    Prose("untouched-pages-are-fair",
          "Not touching the pages eliminates page faults, which would be a constant factor regardless of the "
          "mechanism being used.", "§5", Shown.AGAINST,
          "A page of a new mapping faults each time, a page of a region once. A thread of Figure 6 makes 10,000 "
          "allocations and holds at most 100 pages. So faults would favour the mechanism.",
          ("bench/workloads/pages/page_manager.cpp:Mmap", "papers/leite_rocha/figures/page_managers.cpp:Mapping",
           "bench/workloads/pages/pages_threadtest.cpp")),
    Prose("sizes-spread-contention",
          "Larson's different sizes lead to searches in different parts of the tree, thus to decreased contention "
          "points.", "§5, Figure 7", Shown.CANNOT,
          "The claim wants more cores than two. The simulated machine does not run the page experiments, and the tree "
          "does not count its retries."),
    Prose("rare-in-practice",
          "In real-world scenarios this type of coalescing failure will rarely occur.", "§5", Shown.CANNOT,
          "No real program runs on the published manager, and no real program was recorded in pages. Figure 8 is the "
          "extreme case."),
    Prose("future-open-problems",
          "Further work: new schemes capable of attenuating or solving the open problems.", "§6", Shown.TEST,
          "The manager that ships leaves no neighbours unmerged, and refuses only after it has proved that there is "
          "no memory. Left: an allocation that fails may wait for other threads.",
          ("Coalescing.FreeAndEveryOther", "CoalescingThreads.OneBlockRemainsWhenManyFreeEverythingAtOnce",
           "CoalescingThreads.NobodyIsRefusedItsShare", "src/pages/coalescing/manager.hpp:CoalescingManager")),
)
