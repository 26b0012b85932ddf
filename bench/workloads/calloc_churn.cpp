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
#include "support/churn.hpp"

namespace {

enum Touch : std::size_t { kAll, kLines, kEnds };

struct Block {
  unsigned char* bytes = nullptr;
  std::size_t size = 0;
  unsigned char dirt = 0;  // never zero
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

class Use {
 public:
  using Block = ::Block;
  static constexpr const char* kOverwritten = "calloc_churn: a block was overwritten";
  explicit Use(Touch touch) : touch_(touch) {}

  void make(Block& b, std::uint64_t turn, workload::Random&) const {
    b.dirt = static_cast<unsigned char>(1 + turn % 255);
    b.bytes = static_cast<unsigned char*>(std::calloc(b.size, 1));
    workload::check(b.bytes != nullptr, "calloc_churn: calloc returned null");
    workload::check(is_zero(b, touch_), "calloc_churn: memory of calloc is not zero");
    make_dirty(b, touch_);
  }
  bool is_whole(const Block& b) const { return is_dirty(b); }

 private:
  Touch touch_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "calloc_churn", "beyond the papers",
                            "calloc at random replacement, checked to be zero");
  workload::Churn churn;
  churn.low = options.integer("low", 16, 1, std::uint64_t{1} << 36, "smallest size in bytes");
  churn.high = options.integer("high", 1024, 1, std::uint64_t{1} << 36, "largest size in bytes");
  churn.live =
      options.integer("live", 4096, 1, 1u << 26, "blocks that stand at once, in each thread");
  churn.operations =
      options.integer("operations", 1000000, 1, 1u << 31, "calls of calloc by each thread");
  const auto touch = static_cast<Touch>(
      options.choice("touch", {"all", "lines", "ends"}, "what is checked and dirtied"));
  churn.threads = options.integer("threads", 1, 1, 1024, "threads, each with blocks of its own");
  options.require(churn.low <= churn.high, "--low must not be above --high");
  options.done();
  workload::run_churn(options, Use(touch), churn);
}
