// Aligned allocation at random replacement, mixed with plain malloc. Source: beyond the papers.
//
// `live` blocks stand at a time, of log-uniform sizes from low to high. Each step frees one of them
// at random and puts a new one in its place: one allocation an operation. `plain` percent of them
// come from malloc, the rest from aligned_alloc and posix_memalign in turn, aligned to a power of
// two between low-align and high-align, each equally likely. Alignment is checked, and so is a
// stamp at both ends and in every page.
#include "support/mapped_array.hpp"
#include "support/sizes.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

struct Block {
  void* memory = nullptr;
  std::size_t size = 0;
  std::uint64_t id = 0;  // tells its stamp from that of every other block
};

struct alignas(workload::kCacheLine) Result {
  workload::LiveBytes live;
};

struct Shape {
  std::size_t low, high;
  unsigned low_align_bits, high_align_bits;
  std::uint64_t plain;  // percent
};

class Churner {
 public:
  Churner(const Shape& shape, std::uint64_t live, std::uint64_t seed, Result& result)
      : shape_(shape),
        sizes_(shape.low, shape.high, seed),
        blocks_(live),
        random_(seed),
        result_(result) {}

  void churn(std::uint64_t operations) {
    for (std::uint64_t i = 0; i < operations; ++i) {
      Block& b = blocks_[random_.below(blocks_.size())];
      drop(b);
      b = Block{allocate(sizes_.at(i), i), sizes_.at(i), i};
      workload::stamp(b.memory, b.size, workload::stamp_word(b.memory, b.size, b.id));
      result_.live.add(b.size);
    }
    for (Block& b : blocks_) drop(b);
  }

 private:
  void* allocate(std::size_t size, std::uint64_t turn) {
    void* memory = nullptr;
    const char* call = "malloc";
    std::size_t alignment = size < 16 ? 8 : 16;
    if (random_.below(100) < shape_.plain) {
      memory = std::malloc(size);
    } else {
      alignment = std::size_t{1} << random_.between(shape_.low_align_bits, shape_.high_align_bits);
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
  void drop(Block& b) {
    if (b.memory == nullptr) return;
    workload::check(
        workload::stamped(b.memory, b.size, workload::stamp_word(b.memory, b.size, b.id)),
        "aligned: a block was overwritten");
    std::free(b.memory);
    result_.live.remove(b.size);
    b.memory = nullptr;
  }
  const Shape shape_;
  workload::SizeTable sizes_;
  workload::MappedArray<Block> blocks_;
  workload::Random random_;
  Result& result_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "aligned", "beyond the papers",
                            "aligned_alloc and posix_memalign, mixed with malloc");
  Shape shape;
  shape.low = options.integer("low", 16, 1, std::uint64_t{1} << 36, "smallest size in bytes");
  shape.high = options.integer("high", 2048, 1, std::uint64_t{1} << 36, "largest size in bytes");
  const auto low_align =
      options.integer("low-align", 32, 8, 1u << 30, "smallest alignment, a power of two");
  const auto high_align =
      options.integer("high-align", 4096, 8, 1u << 30, "largest alignment, a power of two");
  shape.plain =
      options.integer("plain", 30, 0, 100, "percent of the allocations that are plain malloc");
  const auto live =
      options.integer("live", 2000, 1, 1u << 26, "blocks that stand at once, in each thread");
  const auto operations =
      options.integer("operations", 1000000, 1, 1u << 31, "allocations by each thread");
  const auto threads =
      options.integer("threads", 1, 1, 1024, "threads, each with blocks of its own");
  options.require(shape.low <= shape.high, "--low must not be above --high");
  options.require(std::has_single_bit(low_align) && std::has_single_bit(high_align),
                  "alignments are powers of two");
  options.require(low_align <= high_align, "--low-align must not be above --high-align");
  options.done();
  shape.low_align_bits = static_cast<unsigned>(std::countr_zero(low_align));
  shape.high_align_bits = static_cast<unsigned>(std::countr_zero(high_align));

  workload::MappedArray<Result> results(threads);
  std::vector<Churner> churners;
  churners.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i) churners.emplace_back(shape, live, i + 1, results[i]);
  const std::uint64_t ns =
      workload::run_threads(threads, [&](std::uint64_t i) { churners[i].churn(operations); });

  workload::Record(options, threads)
      .print(threads * operations, ns, workload::sum_of_peaks(results));
}
