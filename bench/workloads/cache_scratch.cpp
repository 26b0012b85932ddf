// cache-scratch: passive false sharing. Does a thread that frees another's object
// get to use its cache line?
//
// Defined by: Berger, McKinley, Blumofe, Wilson: Hoard (ASPLOS 2000), "passive-false". Used by:
//   scalloc (OOPSLA 2015) 7.4 (8 bytes, reported as a yes or no; an allocator is prone to it "if
//   objects that are remotely deallocated by a thread are immediately usable for allocation by this
//   thread again"); a2alloc report 3 (1 to 8 threads, 5 runs).
// The main thread allocates --held objects a thread and deals them out in turns, so that neighbours
// go to different threads; each thread frees what it was given and then does what cache-thrash
// does: --iterations times allocate --held objects of --size bytes, write every byte of each in
// --repetitions / threads passes, check and free them. Hoard's usual run: 1000 iterations, one
// object of 8 bytes, 10^6 repetitions. Ours: four objects (support/false_sharing.hpp says why) and
// 20,000 repetitions (the suite: 60,000), so 1/12 of the writes. Threads divide the repetitions, so
// without sharing the time falls as 1/threads.
//
// Reported as a time and as a yes or no: the metric false_sharing is 1 where in any of 16 judged
// rounds before and 16 after the timed loop two threads held blocks of one cache line at the same
// time. It is decided by address, not by time: exact, also on a busy machine or a single core. An
// allocator with active false sharing (cache-thrash) may answer yes here for that reason alone.
//
// As in Hoard's program, the first call that a thread makes is the free of what it was given. Some
// allocators give a thread its cache only when it first allocates, and so answer no here and yes in
// practice. Therefore the question is asked once more at the end, of threads that have allocated:
// the first thread allocates and deals out 64 objects a thread, each frees what it was given, and
// 16 more rounds are judged with as many held at once: the metric false_sharing_warm.
//
// Operations: passes over an object, the same for every number of threads up to rounding.
// Objects that are handed over are stamped; each byte of the others is checked against the
// number of its increments.
#include "support/false_sharing.hpp"
#include "support/stamp.hpp"

namespace {

// Objects a thread of the last question: as caches are in use by then, neighbours
// may be far apart among few.
constexpr std::uint64_t kWarmObjects = 64;

// Objects dealt out in turns: number i goes to thread i % threads.
class Given {
 public:
  Given(std::uint64_t threads, std::size_t size, std::uint64_t each)
      : size_(size), threads_(threads), objects_(threads * each) {}
  void allocate() {
    for (std::uint64_t i = 0; i < objects_.size(); ++i) {
      objects_[i] = std::malloc(size_);
      workload::check(objects_[i] != nullptr, "malloc returned null");
      workload::stamp(objects_[i], size_, workload::stamp_word(objects_[i], size_, i + 1));
    }
  }
  void free_share_of(std::uint64_t thread) {
    for (std::uint64_t i = thread; i < objects_.size(); i += threads_) {
      void* const p = objects_[i];
      workload::check(workload::stamped(p, size_, workload::stamp_word(p, size_, i + 1)),
                      "an object was overwritten");
      std::free(p);
    }
  }

 private:
  const std::size_t size_;
  const std::uint64_t threads_;
  workload::MappedArray<void*> objects_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "cache_scratch", "Hoard (ASPLOS 2000); scalloc 7.4; a2alloc 3",
      "passive false sharing: threads free what they are given, then allocate and write");
  const auto p = workload::FalseSharingParameters::from(options);
  workload::FalseSharingJudge judge(p.threads, p.size, p.held),
      warm_judge(p.threads, p.size, kWarmObjects);
  Given given(p.threads, p.size, p.held), warm_given(p.threads, p.size, kWarmObjects);
  given.allocate();
  const std::uint64_t ns = workload::run_judged(
      judge, p, [&](std::uint64_t thread) { given.free_share_of(thread); },
      [&](std::uint64_t thread) {
        if (thread == 0) warm_given.allocate();
        warm_judge.wait_for_all();
        warm_given.free_share_of(thread);
        for (int i = 0; i < workload::kJudgedRounds; ++i) warm_judge.round(thread);
      });
  workload::Record record(options, p.threads);
  workload::record_judged(record, judge);
  record.metric("false_sharing_warm", warm_judge.rounds_with_sharing() > 0 ? 1 : 0);
  record.print(p.operations(), ns, p.live_bytes());
}
