// Aligned allocation at random replacement, mixed with plain malloc. Source: beyond the papers.
//
// `live` blocks stand at a time, of log-uniform sizes from low to high. Each step frees one of them
// at random and puts a new one in its place: one allocation an operation. `plain` percent of them
// come from malloc, the rest from aligned_alloc and posix_memalign in turn, aligned to a power of
// two between low-align and high-align, each equally likely. Alignment is checked, and so is a
// stamp at both ends and in every page.
#include "support/churn.hpp"
#include "support/stamp.hpp"

namespace {

struct Use {
  struct Block {
    void* bytes = nullptr;
    std::size_t size = 0;
    std::uint64_t id = 0;  // tells its stamp from that of every other block
  };
  static constexpr const char* kOverwritten = "aligned: a block was overwritten";
  unsigned low_align_bits, high_align_bits;
  std::uint64_t plain;  // percent

  void make(Block& b, std::uint64_t turn, workload::Random& random) const {
    b.bytes = allocate(b.size, turn, random);
    b.id = turn;
    workload::stamp(b.bytes, b.size, workload::stamp_word(b.bytes, b.size, b.id));
  }
  bool is_whole(const Block& b) const {
    return workload::stamped(b.bytes, b.size, workload::stamp_word(b.bytes, b.size, b.id));
  }

  void* allocate(std::size_t size, std::uint64_t turn, workload::Random& random) const {
    void* memory = nullptr;
    const char* call = "malloc";
    std::size_t alignment = size < 16 ? 8 : 16;
    if (random.below(100) < plain) {
      memory = std::malloc(size);
    } else {
      alignment = std::size_t{1} << random.between(low_align_bits, high_align_bits);
      call = turn % 2 == 0 ? "aligned_alloc" : "posix_memalign";
      if (turn % 2 == 0)
        memory = std::aligned_alloc(alignment, size);
      else if (posix_memalign(&memory, alignment, size) != 0)
        memory = nullptr;
    }
    if (memory == nullptr) [[unlikely]]
      refuse("returned null", call, alignment, size, memory);
    if (reinterpret_cast<std::uintptr_t>(memory) % alignment != 0) [[unlikely]]
      refuse("a block is not aligned", call, alignment, size, memory);
    return memory;
  }
  [[noreturn]] static void refuse(const char* what, const char* call, std::size_t alignment,
                                  std::size_t size, const void* memory) {
    char text[160];
    std::snprintf(text, sizeof text, "aligned: %s: %s of %zu bytes, alignment %zu, gave %p", what,
                  call, size, alignment, memory);
    workload::fail(text);
  }
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "aligned", "beyond the papers",
                            "aligned_alloc and posix_memalign, mixed with malloc");
  Use use;
  workload::Churn churn;
  churn.low = options.integer("low", 16, 1, std::uint64_t{1} << 36, "smallest size in bytes");
  churn.high = options.integer("high", 2048, 1, std::uint64_t{1} << 36, "largest size in bytes");
  const auto low_align =
      options.integer("low-align", 32, 8, 1u << 30, "smallest alignment, a power of two");
  const auto high_align =
      options.integer("high-align", 4096, 8, 1u << 30, "largest alignment, a power of two");
  use.plain =
      options.integer("plain", 30, 0, 100, "percent of the allocations that are plain malloc");
  churn.live =
      options.integer("live", 2000, 1, 1u << 26, "blocks that stand at once, in each thread");
  churn.operations =
      options.integer("operations", 1000000, 1, 1u << 31, "allocations by each thread");
  churn.threads = options.integer("threads", 1, 1, 1024, "threads, each with blocks of its own");
  options.require(churn.low <= churn.high, "--low must not be above --high");
  options.require(std::has_single_bit(low_align) && std::has_single_bit(high_align),
                  "alignments are powers of two");
  options.require(low_align <= high_align, "--low-align must not be above --high-align");
  options.done();
  use.low_align_bits = static_cast<unsigned>(std::countr_zero(low_align));
  use.high_align_bits = static_cast<unsigned>(std::countr_zero(high_align));
  workload::run_churn(options, use, churn);
}
