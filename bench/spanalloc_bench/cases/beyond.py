"""What the papers leave out: mixes of sizes and lifetimes, growth by realloc, calloc, alignment, large and huge
objects, idle threads, fragmentation over phases, what stays of a peak, the start of a tiny program.

The parameters are ours. A case takes about 0.4 seconds under most allocators; where they differ tenfold, as with large
objects, about 0.3 under the fastest of them. Those of small objects allocate less than 6 GiB in all, so that `bump`, which
never frees, has a row (its fresh memory takes it some seconds); some last less long for that. In those of large ones it
would measure the zeroing of pages and nothing else: there it is refused memory beyond 2 GiB, and its row says so. In
cases of several threads the work is one total that the threads divide.
"""

from __future__ import annotations

from ..model import Case
from .builders import BEYOND, KIB, LITTLE_FOR_BUMP, MIB, command, count, short, size_text, suites, unusual, workload


def _fits_bump(high: int) -> tuple[tuple[str, str], ...]:
    """The environment of a case with objects of up to `high` bytes."""
    return LITTLE_FOR_BUMP if high >= 64 * KIB else ()


def exchange(threads: int = 4, objects: int = 1_000_000, size: int = 64, exchanges: int = 4_000_000) -> Case:
    """One thread allocates, the others free at random what it allocated long before: no two frees in a row are of one
    span."""
    return workload(
        f"exchange-{short(size)}-l{objects}-n{exchanges}", "exchange",
        f"{objects} blocks of {size_text(size)}, one allocates, {threads - 1} free at random", BEYOND,
        command("exchange", threads=threads, objects=objects, size=size, exchanges=exchanges), threads,
        parameters=(("objects", str(objects)), ("size", str(size))),
    )


# Operations of each distribution in all its threads together, to the same time roughly.
MIXED_OPERATIONS = {"compiler": 16_000_000, "browser": 6_000_000, "keyvalue": 16_000_000, "web": 12_000_000,
                    "powerlaw": 24_000_000}


def mixed(distribution: str, threads: int = 1, latency: bool = False, operations: int = 0) -> Case:
    """A mix of sizes and lifetimes; bench/workloads/mixed.cpp describes the distributions. `latency`: every call is
    timed (the time per operation then holds four reads of the clock), and the case is judged by malloc's 99.99th
    percentile."""
    total = operations or MIXED_OPERATIONS[distribution] // (2 if latency else 1)
    return workload(
        f"mixed-{distribution}" + "-latency" * latency + unusual("n", operations, 0), "mixed" + "-latency" * latency,
        f"mix of a {distribution}, {count(threads)}" + ", latency" * latency, BEYOND,
        command("mixed", distribution=distribution, threads=threads, operations=max(1, total // threads),
                latency=int(latency)),
        threads, parameters=(("distribution", distribution),), metric="malloc_p9999_ns" if latency else "time",
    )


def realloc_growth(name: str, policy: str, low: int, high: int, vectors: int, total: int, step: int = 4096,
                   threads: int = 1) -> Case:
    """`vectors` grow at a time by `policy` ("x1.5", "x2", "step") to a size between low and high; `total` of them are
    finished."""
    growth = f"by {size_text(step)}" if policy == "step" else policy
    return workload(
        f"realloc-{name}", "realloc",
        f"vectors growing {growth}, {size_text(low)} to {size_text(high)}, {vectors} at once, {count(threads)}", BEYOND,
        command("realloc_growth", policy=policy, step=step, low=low, high=high, vectors=vectors,
                total=max(1, total // threads), threads=threads),
        threads, parameters=(("policy", policy), ("high", str(high))), environment=_fits_bump(high),
    )


def calloc_churn(low: int, high: int, live: int, operations: int, touch: str = "lines", threads: int = 1) -> Case:
    """calloc of low to high bytes, `live` blocks at a time; every byte is dirtied, one word a cache line checked."""
    return workload(
        f"calloc-{short(low)}-{short(high)}" + ("" if touch == "lines" else f"-{touch}"), "calloc",
        f"calloc, {size_text(low)} to {size_text(high)}, {live} at once, {count(threads)}"
        + (", ends touched" if touch == "ends" else ""), BEYOND,
        command("calloc_churn", low=low, high=high, live=live, operations=max(1, operations // threads), touch=touch,
                threads=threads),
        threads, parameters=(("high", str(high)), ("touch", touch)), environment=_fits_bump(high),
    )


def aligned(low_align: int, high_align: int, low: int, high: int, live: int, operations: int, plain: int = 30,
            threads: int = 1) -> Case:
    """aligned_alloc and posix_memalign in turn, `plain` percent of malloc among them."""
    return workload(
        f"aligned-{short(low_align)}-{short(high_align)}", "aligned",
        f"aligned to {size_text(low_align)} to {size_text(high_align)}, "
        f"objects of {size_text(low)} to {size_text(high)}, {count(threads)}", BEYOND,
        command("aligned", low_align=low_align, high_align=high_align, low=low, high=high, live=live,
                operations=max(1, operations // threads), plain=plain, threads=threads),
        threads, parameters=(("high-align", str(high_align)),), environment=_fits_bump(high),
    )


def large_objects(low: int, high: int, live: int, operations: int, touch: str = "page", threads: int = 1) -> Case:
    """Objects of low to high bytes at random replacement, `live` of them in each thread; one word a page is written
    (`touch` "page"), or the first and last only ("ends")."""
    touched = {"page": "a word a page written", "ends": "ends written", "all": "every byte written"}[touch]
    return workload(
        f"large-{short(low)}-{short(high)}" + ("" if touch == "page" else f"-{touch}"), "large",
        f"objects of {size_text(low)} to {size_text(high)}, {count(threads)}, {touched}", BEYOND,
        command("large_objects", low=low, high=high, live=live, operations=max(1, operations // threads), touch=touch,
                threads=threads),
        threads, parameters=(("low", str(low)), ("high", str(high)), ("touch", touch)), environment=LITTLE_FOR_BUMP,
    )


def idle_threads(threads: int = 1000, rounds: int = 12) -> Case:
    """Threads that sleep, two of them awake at a time; each round wakes every one for a burst of 200 objects, of which
    it keeps 10. Judged by what is resident when all sleep over the bytes that live."""
    return workload(
        f"idle-threads-r{rounds}", "idle-threads", f"{threads} idle threads, a burst of 200 objects now and then",
        BEYOND,
        command("idle_threads", threads=threads, rounds=rounds), threads, metric="idle_over_live",
    )


def fragmentation(metric: str = "time", live_mib: int = 32) -> Case:
    """A churn through six phases of sizes. One run gives the time and every ratio of memory to live bytes; a case is
    judged by one of them: "time", or "rss_over_live_mean", "rss_over_live_freed90", "rss_over_live_rested". The rest is
    1 s: longer than our own decay of 0.5 s, shorter than jemalloc's of 10 s, so it shows who returns memory soon, not
    who returns it at all. The record also has rss_over_live_250ms, within our decay."""
    suffix, what = {
        "time": ("", ""),
        "rss_over_live_mean": ("-phases", ": memory over live bytes, mean of the phases"),
        "rss_over_live_freed90": ("-freed", ": memory over live bytes when 90 % is freed"),
        "rss_over_live_rested": ("-rested", ": memory over live bytes when 90 % is freed, 1 s later (spanalloc's decay "
                                            "is 0.5 s, jemalloc's 10 s)"),
    }[metric]
    return workload(
        f"fragmentation-{live_mib}m{suffix}", "fragmentation",
        f"churn of {live_mib} MiB through six phases of sizes{what}", BEYOND,
        command("fragmentation", live_mib=live_mib, rest_ms=1000 if metric == "rss_over_live_rested" else 0),
        metric=metric,
    )


def peak_and_rest(mib: int, size: int, keep: int, rest: str, metric: str, trim: bool = False,
                  again_size: int = 0) -> Case:
    """`mib` MiB in blocks of `size` bytes, all freed but for one in `keep` (0: none), then a second of rest: "sleep", or
    "passing", in which the program allocates a little. Judged by what is resident then ("rested_mib"), after
    malloc_trim ("trimmed_mib", `trim`), or when as much stands again in blocks of `again_size` ("again_over_live")."""
    again = dict(again_mib=mib, again_size=again_size) if again_size else {}
    kept = f"one in {keep} kept" if keep else "none kept"
    what = {"rested_mib": "memory 1 s later", "trimmed_mib": "memory after malloc_trim",
            "again_over_live": f"as much again of {size_text(again_size)}, memory over live bytes"}[metric]
    return workload(
        f"peak-{mib}m-{short(size)}-k{keep}-{rest}" + "-trim" * trim + (f"-{short(again_size)}" if again_size else ""),
        "peak",
        f"{mib} MiB in blocks of {size_text(size)}, {kept}, {rest}: {what}", BEYOND,
        command("peak_and_rest", mib=mib, size=size, keep=keep, rest=rest, trim=int(trim),
                rest_ms=100 if again_size else 1000, **again),
        metric=metric,
    )


def resting_threads(threads: int, sizes: int, burst_kib: int, keep: bool, metric: str = "rested_mib") -> Case:
    """Threads that allocate `burst_kib` KiB of `sizes` sizes once, free it but for one block of each size (`keep`), and
    sleep. Judged by what is resident a second later, or after malloc_trim ("trimmed_mib")."""
    suffix, what = {"rested_mib": ("", "memory 1 s later"),
                    "trimmed_mib": ("-trim", "memory after malloc_trim")}[metric]
    return workload(
        f"resting-threads-s{sizes}-b{burst_kib}k" + "-keep" * keep + suffix, "resting-threads",
        f"{threads} threads rest after {burst_kib} KiB of {sizes} sizes, "
        + ("one block of each kept" if keep else "none kept") + f": {what}", BEYOND,
        command("resting_threads", threads=threads, sizes=sizes, burst_kib=burst_kib, keep=int(keep)), threads,
        metric=metric,
    )


def sparse_objects(call: str, mib: int, every_kib: int, places: str, repeats: int, live: int = 1) -> Case:
    """Objects of `mib` MiB, by `call`, of which one page in `every_kib` KiB is written, the same ones each time or
    other ones."""
    return workload(
        f"sparse-{call}-{mib}m-e{every_kib}k-{places}-l{live}-n{repeats}", "sparse",
        f"{call} of {mib} MiB, a page in {size_text(every_kib * KIB)} written, "
        + ("the same each time" if places == "same" else "another each time"), BEYOND,
        command("sparse_objects", call=call, mib=mib, every_kib=every_kib, places=places, repeats=repeats, live=live),
        environment=LITTLE_FOR_BUMP,
    )


def first_words(size: int, objects: int, reads: int) -> Case:
    """Random reads of the first words of objects of one size."""
    return workload(
        f"first-words-{size}-n{objects}-r{reads}", "first-words",
        f"reads of the first word of {objects} objects of {size} bytes", BEYOND,
        command("first_words", size=size, objects=objects, reads=reads), parameters=(("size", str(size)),),
    )


def startup(starts: int = 600) -> Case:
    """A C program whose main does one malloc, started again and again; time is that of one start and exit."""
    return workload(f"startup-n{starts}", "startup", "start and exit of a tiny C program", BEYOND,
                    command("startup", starts=starts))


def suite() -> list[Case]:
    return suites(full=[
        *(mixed(distribution) for distribution in MIXED_OPERATIONS),
        mixed("web", threads=4),
        mixed("browser", latency=True),
        realloc_growth("small-x2", "x2", low=64, high=4 * KIB, vectors=2000, total=900_000),
        realloc_growth("medium-x1.5", "x1.5", low=4 * KIB, high=256 * KIB, vectors=200, total=80_000),
        realloc_growth("large-x1.5", "x1.5", low=MIB, high=32 * MIB, vectors=6, total=160),
        realloc_growth("step", "step", low=16 * KIB, high=256 * KIB, vectors=40, total=32_000, step=1024),
        calloc_churn(16, KIB, live=4096, operations=15_000_000),
        calloc_churn(64 * KIB, 4 * MIB, live=12, operations=7500),
        aligned(32, 4096, low=16, high=2 * KIB, live=2000, operations=7_000_000),
        aligned(4 * KIB, 2 * MIB, low=4 * KIB, high=512 * KIB, live=100, operations=250_000),
        large_objects(128 * KIB, MIB, live=16, operations=160_000),
        large_objects(128 * KIB, MIB, live=16, operations=160_000, threads=4),
        large_objects(MIB, 32 * MIB, live=6, operations=1500),
        large_objects(32 * MIB, 256 * MIB, live=3, operations=24),
        exchange(), exchange(threads=2, size=400, objects=100_000),
        idle_threads(),
        fragmentation(),
        fragmentation("rss_over_live_rested"),
        realloc_growth("turns-20x32m", "step", low=32 * MIB, high=32 * MIB, vectors=20, total=20, step=64 * KIB),
        realloc_growth("turns-100x8m", "step", low=8 * MIB, high=8 * MIB, vectors=100, total=100, step=64 * KIB),
        realloc_growth("turns-200x1m", "step", low=MIB, high=MIB, vectors=200, total=400, step=16 * KIB),
        sparse_objects("calloc", 1024, 1024, "same", repeats=6),
        sparse_objects("malloc", 256, 256, "other", repeats=60),
        sparse_objects("malloc", 24, 128, "other", repeats=1000, live=4),
        first_words(70_000, 1000, 10_000_000),
        first_words(40_000, 1000, 10_000_000),
        first_words(262_144, 500, 10_000_000),
        peak_and_rest(512, 4 * KIB, 16, "passing", "rested_mib"),
        peak_and_rest(512, 4 * KIB, 16, "passing", "trimmed_mib", trim=True),
        peak_and_rest(256, 256, 64, "passing", "rested_mib"),
        peak_and_rest(512, 4 * MIB, 0, "sleep", "rested_mib"),
        peak_and_rest(256, 4 * KIB, 0, "passing", "again_over_live", again_size=70_000),
        peak_and_rest(64, 4 * KIB, 0, "passing", "again_over_live", again_size=33_000),
        resting_threads(300, 32, 1747, keep=True),
        resting_threads(200, 20, 1024, keep=False),
        resting_threads(200, 20, 1024, keep=False, metric="trimmed_mib"),
        startup(),
    ], quick=[
        mixed("browser", operations=400_000),
        realloc_growth("quick", "x1.5", low=KIB, high=256 * KIB, vectors=50, total=500),
        calloc_churn(16, 64 * KIB, live=200, operations=20_000),
        aligned(16, 512, low=16, high=2 * KIB, live=500, operations=100_000),
        large_objects(256 * KIB, 8 * MIB, live=4, operations=100),
        idle_threads(threads=200, rounds=2),
        fragmentation("rss_over_live_mean", live_mib=4),
        sparse_objects("calloc", 16, 256, "other", repeats=20),
        first_words(70_000, 100, 200_000),
        peak_and_rest(16, 4 * KIB, 16, "passing", "rested_mib"),
        resting_threads(20, 8, 128, keep=True),
        startup(starts=50),
    ])
