// calloc at random replacement, from small to large, every block checked to be zero.
// Source: beyond the papers.
//
// `live` blocks stand at a time, of log-uniform sizes from low to high. Each step frees one of them
// at random and puts a new one in its place, one calloc an operation. What is checked and dirtied,
// so that a block of used memory that is not zeroed is found:
//   all    every byte is checked and dirtied
//   lines  one word in every 64 bytes is checked, every byte is dirtied
//   ends   only the first and last 16 bytes: a program that touches little of a large block, where
//          an allocator that knows fresh memory to be zero need not touch it either
#include "support/mapped_array.hpp"
#include "support/sizes.hpp"
#include "support/workload.hpp"

namespace {

enum Touch : std::size_t { kAll, kLines, kEnds };

struct Block {
  unsigned char* bytes = nullptr;
  std::size_t size = 0;
  unsigned char dirt = 0;  // never zero
};

struct alignas(workload::kCacheLine) Result {
  workload::LiveBytes live;
};

bool zero_word(const unsigned char* at) {
  std::uint64_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return word == 0;
}

bool zero_range(const unsigned char* bytes, std::size_t from, std::size_t to, std::size_t stride) {
  std::size_t at = from;
  for (; at + sizeof(std::uint64_t) <= to; at += stride)
    if (!zero_word(bytes + at)) return false;
  for (at = to - to % sizeof(std::uint64_t); at < to; ++at)
    if (bytes[at] != 0) return false;
  return true;
}

constexpr std::size_t kEnd = 16;

bool is_zero(const Block& b, Touch touch) {
  if (touch == kEnds && b.size > 2 * kEnd)
    return zero_range(b.bytes, 0, kEnd, 8) && zero_range(b.bytes + b.size - kEnd, 0, kEnd, 8);
  return zero_range(b.bytes, 0, b.size, touch == kLines ? 64 : 8);
}

void make_dirty(const Block& b, Touch touch) {
  if (touch == kEnds && b.size > 2 * kEnd) {
    std::memset(b.bytes, b.dirt, kEnd);
    std::memset(b.bytes + b.size - kEnd, b.dirt, kEnd);
  } else {
    std::memset(b.bytes, b.dirt, b.size);
  }
}

// Whether the dirt is still there: the block belongs to nobody else.
bool is_dirty(const Block& b) {
  return b.bytes[0] == b.dirt && b.bytes[b.size - 1] == b.dirt;
}

class Churner {
 public:
  Churner(std::size_t low, std::size_t high, std::uint64_t live, Touch touch, std::uint64_t seed,
          Result& result)
      : sizes_(low, high, seed), blocks_(live), touch_(touch), random_(seed), result_(result) {}

  void churn(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      Block& b = blocks_[random_.below(blocks_.size())];
      drop(b);
      b.size = sizes_.at(i);
      b.dirt = static_cast<unsigned char>(1 + i % 255);
      b.bytes = static_cast<unsigned char*>(std::calloc(b.size, 1));
      workload::check(b.bytes != nullptr, "calloc_churn: calloc returned null");
      workload::check(is_zero(b, touch_), "calloc_churn: memory of calloc is not zero");
      make_dirty(b, touch_);
      result_.live.add(b.size);
    }
    for (Block& b : blocks_) drop(b);
  }

 private:
  void drop(Block& b) {
    if (b.bytes == nullptr) return;
    workload::check(is_dirty(b), "calloc_churn: a block was overwritten");
    std::free(b.bytes);
    result_.live.remove(b.size);
    b.bytes = nullptr;
  }
  workload::SizeTable sizes_;
  workload::MappedArray<Block> blocks_;
  const Touch touch_;
  workload::Random random_;
  Result& result_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "calloc_churn", "beyond the papers",
                            "calloc at random replacement, checked to be zero");
  const auto low = options.integer("low", 16, 1, std::uint64_t{1} << 36, "smallest size in bytes");
  const auto high =
      options.integer("high", 1024, 1, std::uint64_t{1} << 36, "largest size in bytes");
  const auto live =
      options.integer("live", 4096, 1, 1u << 26, "blocks that stand at once, in each thread");
  const auto operations =
      options.integer("operations", 1000000, 1, 1u << 31, "calls of calloc by each thread");
  const auto touch = static_cast<Touch>(
      options.choice("touch", {"all", "lines", "ends"}, "what is checked and dirtied"));
  const auto threads =
      options.integer("threads", 1, 1, 1024, "threads, each with blocks of its own");
  options.require(low <= high, "--low must not be above --high");
  options.done();

  workload::MappedArray<Result> results(threads);
  std::vector<Churner> churners;
  churners.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i)
    churners.emplace_back(low, high, live, touch, i + 1, results[i]);
  const std::uint64_t ns =
      workload::run_threads(threads, [&](std::uint64_t i) { churners[i].churn(operations); });

  workload::Record(options, threads)
      .print(threads * operations, ns, workload::sum_of_peaks(results));
}
