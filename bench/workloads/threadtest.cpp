// threadtest: rounds of allocating many objects of one size, then freeing them
// all, each thread by itself.
//
// Defined by: Berger, McKinley, Blumofe, Wilson: Hoard (ASPLOS 2000). Used by:
//   scalloc (OOPSLA 2015) 7.2.1: t threads, 10^4 rounds each, 10^5 / t objects of 64 bytes a round;
//   7.7.3 the same; 7.7.2 the same with 256 bytes, which empties a 32 KiB span every 127 objects
//   and so exercises the span-pool; a2alloc report 3: 1 to 8 threads (its parameters are not
//   given); Leite & Rocha (ISMM 2019) 5, there in pages: a workload of its own.
// Here: --objects (10^5) is the number that all threads hold together, as in scalloc; --rounds is
// what we scale: 100 rounds are 1/100 of the paper's work, with the same live memory. --work spins
// that many turns of an empty loop after every allocation and before every free, as Hoard's does.
//
// Operations: pairs of malloc and free. Each object is stamped (first and last word)
// and checked at its free.
#include "support/mapped_array.hpp"
#include "support/stamp.hpp"
#include "support/workload.hpp"

namespace {

void spin(std::uint64_t turns) {
  for (std::uint64_t i = 0; i < turns; ++i) asm volatile("");
}

void run(void** objects, std::uint64_t count, std::size_t size, std::uint64_t rounds,
         std::uint64_t work, std::uint64_t salt) {
  for (std::uint64_t round = 0; round < rounds; ++round) {
    for (std::uint64_t i = 0; i < count; ++i) {
      void* const p = std::malloc(size);
      workload::check(p != nullptr, "threadtest: malloc returned null");
      workload::stamp(p, size, workload::stamp_word(p, size, salt + i));
      objects[i] = p;
      spin(work);
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      void* const p = objects[i];
      workload::check(workload::stamped(p, size, workload::stamp_word(p, size, salt + i)),
                      "threadtest: an object was overwritten");
      spin(work);
      std::free(p);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(
      argc, argv, "threadtest", "Hoard (ASPLOS 2000); scalloc 7.2.1, 7.7.2, 7.7.3",
      "rounds of allocating and freeing objects of one size, each thread by itself");
  const auto threads = options.integer("threads", 2, 1, 1024, "threads");
  const auto size = options.integer("size", 64, 1, 1 << 20, "bytes of an object");
  const auto objects = options.integer("objects", 100'000, 1, 1u << 30,
                                       "objects that all threads together allocate a round");
  const auto rounds = options.integer("rounds", 200, 1, 1u << 30, "rounds of each thread");
  const auto work =
      options.integer("work", 0, 0, 1u << 30, "turns of an empty loop beside every call");
  options.done();

  const std::uint64_t each = objects / threads > 0 ? objects / threads : 1;
  std::vector<workload::MappedArray<void*>> tables;
  for (std::uint64_t i = 0; i < threads; ++i) tables.emplace_back(each);
  const std::uint64_t ns = workload::run_threads(threads, [&](std::uint64_t i) {
    run(tables[i].data(), each, size, rounds, work, (i + 1) << 32);
  });

  workload::Record(options, threads).print(each * threads * rounds, ns, each * threads * size);
}
