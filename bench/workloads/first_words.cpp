// Reads of the first word of objects of one size: where an allocator puts their beginnings.
// Source: beyond the papers.
//
// `objects` objects of `size` bytes stand. `reads` times the first word of one of them, drawn at
// random, is read; which one comes next depends on what was read, so that each read waits for the
// one before. Objects that all begin at the same place of a page, or of 64 KiB, compete for few of
// a cache's sets. An operation is one read.
#include "support/mapped_array.hpp"
#include "support/workload.hpp"

namespace {

std::uint64_t word_of(const std::uint64_t* object) {
  return reinterpret_cast<std::uintptr_t>(object) * 0x9e3779b97f4a7c15u;
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "first_words", "beyond the papers",
                            "reads of the first word of objects of one size");
  const auto size = options.integer("size", 70000, 8, std::uint64_t{1} << 32, "bytes of an object");
  const auto count = options.integer("objects", 1000, 1, 1u << 24, "objects");
  const auto reads = options.integer("reads", 10'000'000, 1, std::uint64_t{1} << 40, "reads");
  options.done();

  // A ring through all of them in random order.
  workload::MappedArray<std::uint64_t*> objects(count);
  for (std::uint64_t*& object : objects) {
    object = static_cast<std::uint64_t*>(std::malloc(size));
    workload::check(object != nullptr, "first_words: malloc returned null");
    *object = word_of(object);
  }
  workload::Random random(1);
  for (std::uint64_t i = count - 1; i > 0; --i) std::swap(objects[i], objects[random.below(i + 1)]);
  for (std::uint64_t i = 0; i < count; ++i) {
    workload::check(*objects[i] == word_of(objects[i]), "first_words: an object was overwritten");
    *objects[i] = reinterpret_cast<std::uintptr_t>(objects[(i + 1) % count]);
  }

  const std::uint64_t begin = workload::now_ns();
  const std::uint64_t* at = objects[0];
  for (std::uint64_t i = 0; i < reads; ++i) at = reinterpret_cast<const std::uint64_t*>(*at);
  const std::uint64_t elapsed = workload::now_ns() - begin;
  workload::check(at == objects[reads % count], "first_words: an object was overwritten");
  for (std::uint64_t* object : objects) std::free(object);

  // The program touches one word of each: they are no floor for memory.
  workload::Record(options, 1).print(reads, elapsed);
}
