// cache-scratch: passive false sharing. Does a thread that frees another's object get to use its cache line?
//
// Defined by: Berger, McKinley, Blumofe, Wilson: Hoard (ASPLOS 2000), "passive-false". Used by:
//   scalloc (OOPSLA 2015) 7.4 (8 bytes, reported as a yes or no; an allocator is prone to it "if objects that
//   are remotely deallocated by a thread are immediately usable for allocation by this thread again");
//   a2alloc report 3 (1 to 8 threads, 5 runs).
// The main thread allocates --held objects a thread and deals them out in turns, so that neighbours go to
// different threads; each thread frees what it was given and then does what cache-thrash does: --iterations
// times allocate
// --held objects of --size bytes, write every byte of each in --repetitions / threads passes, check and free
// them. Hoard's usual run: 1000 iterations, one object of 8 bytes, 10^6 repetitions. Ours: four objects
// (support/false_sharing.hpp says why) and 5000 repetitions, so 1/50 of the writes. Threads divide the
// repetitions, so without sharing the time falls as 1/threads.
//
// Reported as a time and as a yes or no: the metric false_sharing is 1 where in any of 16 judged rounds
// before and 16 after the timed loop two threads held blocks of one cache line at the same time. It is
// decided by address, not by time: exact, also on a busy machine or a single core. An allocator with active
// false sharing (cache-thrash) may answer yes here for that reason alone.
//
// Operations: passes over an object, the same for every number of threads up to rounding. Objects that are
// handed over are stamped; each byte of the others is checked against the number of its increments.
#include "support/false_sharing.hpp"
#include "support/stamp.hpp"

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "cache_scratch", "Hoard (ASPLOS 2000); scalloc 7.4; a2alloc 3",
      "passive false sharing: threads free what they are given, then allocate and write");
  const auto p = workload::FalseSharingParameters::from(options);
  workload::FalseSharingJudge judge(p.threads, p.size, p.held);
  // Object i goes to thread i % threads.
  workload::MappedArray<void*> given(p.threads * p.held);
  for (std::uint64_t i = 0; i < given.size(); ++i) {
    given[i] = std::malloc(p.size);
    workload::check(given[i] != nullptr, "malloc returned null");
    workload::stamp(given[i], p.size, workload::stamp_word(given[i], p.size, i + 1));
  }
  const std::uint64_t ns = workload::run_judged(judge, p, [&](std::uint64_t thread) {
    for (std::uint64_t i = thread; i < given.size(); i += p.threads) {
      workload::check(workload::stamped(given[i], p.size, workload::stamp_word(given[i], p.size, i + 1)),
                      "an object was overwritten");
      std::free(given[i]);
    }
  });
  workload::print_judged(options, p, judge, ns);
}
