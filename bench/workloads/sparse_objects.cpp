// Large objects of which the program touches little. Source: beyond the papers.
//
// `repeats` times an object of `mib` MiB is allocated by malloc or calloc, one word is written in
// one page in every `every-kib` KiB of it (with `places` other: in another page of each stretch
// each time), and it is freed; `live` of them stand at a time. An allocator that clears all of it,
// or that hands out what other objects touched and keeps every page, pays for what the program
// never asked for. Words of calloc are checked to be zero before they are written. Metrics:
// worst_call_ns, the longest call; last_mib, RSS + page tables after the last object was written,
// less what there was before the first. An operation is one allocation with its free.
#include "support/mapped_array.hpp"
#include "support/resident.hpp"
#include "support/workload.hpp"

namespace {

constexpr std::size_t kPageSize = 4096;

enum Call : std::size_t { kMalloc, kCalloc };
enum Places : std::size_t { kSame, kOther };

struct Shape {
  std::size_t size, every;
  Call call;
  Places places;
};

// The page of stretch `s` that object number `n` writes to.
std::size_t place_of(const Shape& shape, std::size_t s, std::uint64_t n) {
  std::size_t page = 0;
  if (shape.places == kOther) {
    workload::Random random(n * 0x10001 + s);
    page = random.below(shape.every / kPageSize);
  }
  return s * shape.every + page * kPageSize;
}

std::uint64_t word_of(std::uint64_t n, std::size_t place) {
  return (n + 1) * 0x9e3779b97f4a7c15u + place;
}

class Worst {
 public:
  explicit Worst(std::uint64_t& ns) : ns_(ns), begin_(workload::now_ns()) {}
  ~Worst() {
    const std::uint64_t took = workload::now_ns() - begin_;
    if (took > ns_) ns_ = took;
  }
  Worst(const Worst&) = delete;
  Worst& operator=(const Worst&) = delete;

 private:
  std::uint64_t& ns_;
  std::uint64_t begin_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "sparse_objects", "beyond the papers",
                            "large objects of which the program touches little");
  Shape shape;
  shape.size = options.integer("mib", 256, 1, 1u << 20, "MiB of an object") << 20;
  shape.every =
      options.integer("every-kib", 1024, 4, 1u << 30, "one page in so many KiB is written") << 10;
  shape.call =
      static_cast<Call>(options.choice("call", {"malloc", "calloc"}, "how it is allocated"));
  shape.places =
      static_cast<Places>(options.choice("places", {"same", "other"}, "the same page each time?"));
  const auto repeats = options.integer("repeats", 6, 1, 1u << 24, "objects");
  const auto live = options.integer("live", 1, 1, 1024, "objects that stand at a time");
  options.require(shape.every <= shape.size, "--every-kib must not be above the object's size");
  options.require(shape.every % kPageSize == 0, "--every-kib must be a multiple of 4");
  options.done();

  const std::size_t stretches = shape.size / shape.every;
  workload::MappedArray<unsigned char*> objects(live);
  const std::int64_t before = workload::resident_bytes();
  std::uint64_t worst = 0, elapsed = 0;
  const auto drop = [&](std::uint64_t n) {
    unsigned char*& object = objects[n % live];
    for (std::size_t s = 0; s < stretches; ++s) {
      const std::size_t place = place_of(shape, s, n);
      std::uint64_t word;
      __builtin_memcpy(&word, object + place, sizeof word);
      workload::check(word == word_of(n, place), "sparse_objects: an object was overwritten");
    }
    const Worst call(worst);
    std::free(object);
  };
  std::int64_t last = 0;
  for (std::uint64_t n = 0; n < repeats; ++n) {
    const std::uint64_t begin = workload::now_ns();
    if (n >= live) drop(n - live);
    unsigned char*& object = objects[n % live];
    {
      const Worst call(worst);
      object = static_cast<unsigned char*>(shape.call == kCalloc ? std::calloc(shape.size, 1)
                                                                 : std::malloc(shape.size));
    }
    workload::check(object != nullptr, "sparse_objects: the call returned null");
    for (std::size_t s = 0; s < stretches; ++s) {
      const std::size_t place = place_of(shape, s, n);
      std::uint64_t word;
      __builtin_memcpy(&word, object + place, sizeof word);
      workload::check(shape.call != kCalloc || word == 0,
                      "sparse_objects: memory of calloc is not zero");
      word = word_of(n, place);
      __builtin_memcpy(object + place, &word, sizeof word);
    }
    elapsed += workload::now_ns() - begin;
    last = workload::resident_bytes() - before;
  }
  for (std::uint64_t n = repeats - (repeats < live ? repeats : live); n < repeats; ++n) drop(n);

  workload::Record record(options, 1);
  record.metric("worst_call_ns", worst);
  record.metric("last_mib", workload::mib(last));
  record.print(repeats, elapsed, live * stretches * kPageSize);
}
