// cache-thrash: active false sharing. Does the allocator hand one cache line to threads
// that never communicated?
//
// Defined by: Berger, McKinley, Blumofe, Wilson: Hoard (ASPLOS 2000), "active-false". Used by:
//   scalloc (OOPSLA 2015) 7.4 (8 bytes, reported as a yes or no; "objects that are allocated by
//   different threads (without communication) end up in the same cache line"); a2alloc report 3 (1
//   to 8 threads, 5 runs).
// Each thread --iterations times allocates --held objects of --size bytes, writes every byte of
// each in --repetitions / threads passes, checks and frees them. Hoard's usual run: 1000
// iterations, one object of 8 bytes, 10^6 repetitions. Ours: four objects
// (support/false_sharing.hpp says why) and 20,000 repetitions (the suite: 60,000), so 1/12 of the
// writes. Threads divide the repetitions, so without sharing the time falls as 1/threads.
//
// Reported as a time and as a yes or no: the metric false_sharing is 1 where in any of 16 judged
// rounds before and 16 after the timed loop two threads held blocks of one cache line at the same
// time. It is decided by address, not by time: exact, also on a busy machine or a single core.
//
// Operations: passes over an object, the same for every number of threads up to rounding. Each byte
// is checked against the number of its increments.
#include "support/false_sharing.hpp"

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "cache_thrash",
                            "Hoard (ASPLOS 2000); scalloc 7.4; a2alloc 3",
                            "active false sharing: threads allocate, write and free by themselves");
  const auto p = workload::FalseSharingParameters::from(options);
  workload::FalseSharingJudge judge(p.threads, p.size, p.held);
  const auto nothing = [](std::uint64_t) {};
  const std::uint64_t ns = workload::run_judged(judge, p, nothing, nothing);
  workload::Record record(options, p.threads);
  workload::record_judged(record, judge);
  record.print(p.operations(), ns, p.live_bytes());
}
