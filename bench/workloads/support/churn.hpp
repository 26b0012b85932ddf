// Random replacement, each thread by itself: `live` blocks stand at a time, of log-uniform sizes
// from low to high; a step frees one of them at random and puts a new one in its place.
//
// A workload says what it does with a block by a class of its own:
//   Block                          has `bytes`, null while it stands for none, and `size`
//   make(Block&, turn, Random&)    allocates b.size bytes, and writes what it looks for later
//   is_whole(const Block&)         whether that is still there
//   kOverwritten                   what is said where it is not
#ifndef SPANALLOC_BENCH_CHURN_HPP
#define SPANALLOC_BENCH_CHURN_HPP

#include "support/mapped_array.hpp"
#include "support/sizes.hpp"
#include "support/workload.hpp"

namespace workload {

struct Churn {
  std::size_t low, high;
  std::uint64_t live, operations, threads;  // `operations` of each thread
};

template <class Use>
class Churner {
  using Block = typename Use::Block;

 public:
  Churner(const Use& use, const Churn& churn, std::uint64_t seed, LiveBytes& live)
      : use_(use),
        sizes_(churn.low, churn.high, seed),
        blocks_(churn.live),
        random_(seed),
        live_(live) {}

  void churn(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      Block& b = blocks_[random_.below(blocks_.size())];
      drop(b);
      b.size = sizes_.at(i);
      use_.make(b, i, random_);
      live_.add(b.size);
    }
    for (Block& b : blocks_) drop(b);
  }

 private:
  void drop(Block& b) {
    if (b.bytes == nullptr) return;
    check(use_.is_whole(b), Use::kOverwritten);
    std::free(b.bytes);
    live_.remove(b.size);
    b.bytes = nullptr;
  }
  const Use use_;
  SizeTable sizes_;
  MappedArray<Block> blocks_;
  Random random_;
  LiveBytes& live_;
};

// Runs it and prints the record. `is_floor`: what lives is touched, so that memory cannot be less.
template <class Use>
void run_churn(const Options& options, const Use& use, const Churn& churn, bool is_floor = true) {
  MappedArray<LiveBytes> live(churn.threads);
  std::vector<Churner<Use>> churners;
  churners.reserve(churn.threads);
  for (std::uint64_t i = 0; i < churn.threads; ++i)
    churners.emplace_back(use, churn, i + 1, live[i]);
  const std::uint64_t ns =
      run_threads(churn.threads, [&](std::uint64_t i) { churners[i].churn(churn.operations); });
  std::int64_t peak = 0;
  for (const LiveBytes& of : live) peak += of.peak();
  Record(options, churn.threads).print(churn.threads * churn.operations, ns, is_floor ? peak : -1);
}

}  // namespace workload

#endif  // SPANALLOC_BENCH_CHURN_HPP
