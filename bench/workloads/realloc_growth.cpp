// Vectors that grow by realloc, many at once. Source: beyond the papers.
//
// `vectors` of them stand at a time. Each step takes one of them at random and lets it grow: by
// half, to the double, or by `step` bytes; its first capacity is 16 bytes (one step, where it grows
// by steps). A vector that has reached its final size (drawn log-uniformly from low to high) is
// freed and a new one begins, until `total` have been finished. An operation is one realloc. The
// program writes one word in every 64 bytes of what was added, as a push_back would write all of
// it; the words say which vector and which place they belong to. After each growth the first word,
// the last one of the old part and one between are looked at; at a vector's end all of them.
#include "support/mapped_array.hpp"
#include "support/sizes.hpp"
#include "support/workload.hpp"

namespace {

using workload::Random;

constexpr std::size_t kStride = 64;
enum Policy : std::size_t { kByHalf, kDouble, kByStep };

struct Vector {
  unsigned char* bytes = nullptr;
  std::size_t capacity = 0;
  std::size_t final_size = 0;
  std::uint64_t id = 0;
};

struct alignas(workload::kCacheLine) Result {
  workload::LiveBytes live;
  std::uint64_t operations = 0;
};

std::uint64_t word_of(const Vector& v, std::size_t place) {
  return (v.id + 1) * 0x9e3779b97f4a7c15u + place;
}

void write_word(Vector& v, std::size_t place) {
  const std::uint64_t word = word_of(v, place);
  __builtin_memcpy(v.bytes + place, &word, sizeof word);
}

bool word_is_there(const Vector& v, std::size_t place) {
  std::uint64_t word;
  __builtin_memcpy(&word, v.bytes + place, sizeof word);
  return word == word_of(v, place);
}

// The last place of a word in a vector of so many bytes (at least 16).
std::size_t last_place(std::size_t capacity) {
  return (capacity - sizeof(std::uint64_t)) / kStride * kStride;
}

class Grower {
 public:
  Grower(Policy policy, std::size_t step, std::size_t low, std::size_t high, std::uint64_t vectors,
         std::uint64_t seed, Result& result)
      : policy_(policy),
        step_(step),
        sizes_(low, high, seed),
        vectors_(vectors),
        random_(seed),
        result_(result) {}

  void grow_all(std::uint64_t total) {
    for (Vector& v : vectors_) begin(v);
    for (std::uint64_t finished = 0; finished < total;) {
      Vector& v = vectors_[random_.below(vectors_.size())];
      if (v.capacity < v.final_size) {
        grow(v);
      } else {
        end(v);
        begin(v);
        ++finished;
      }
    }
    for (Vector& v : vectors_) end(v);
  }

 private:
  void begin(Vector& v) {
    v = Vector{nullptr, 0, sizes_.at(next_id_), next_id_};
    ++next_id_;
  }

  void grow(Vector& v) {
    std::size_t capacity = policy_ == kByStep ? v.capacity + step_ : 16;
    if (policy_ == kByHalf && v.capacity > 0) capacity = v.capacity + v.capacity / 2;
    if (policy_ == kDouble && v.capacity > 0) capacity = v.capacity * 2;
    void* grown = std::realloc(v.bytes, capacity);
    workload::check(grown != nullptr, "realloc_growth: realloc returned null");
    ++result_.operations;
    result_.live.remove(v.capacity);
    result_.live.add(capacity);
    v.bytes = static_cast<unsigned char*>(grown);
    std::size_t fresh = 0;
    if (v.capacity > 0) {
      const std::size_t last = last_place(v.capacity);
      workload::check(word_is_there(v, 0) && word_is_there(v, last / kStride / 2 * kStride) &&
                          word_is_there(v, last),
                      "realloc_growth: realloc lost contents");
      fresh = last + kStride;
    }
    v.capacity = capacity;
    for (std::size_t place = fresh; place <= last_place(capacity); place += kStride)
      write_word(v, place);
  }

  void end(Vector& v) {
    for (std::size_t place = 0; v.capacity > 0 && place <= last_place(v.capacity); place += kStride)
      workload::check(word_is_there(v, place), "realloc_growth: a vector was overwritten");
    std::free(v.bytes);
    result_.live.remove(v.capacity);
    v.capacity = 0;
  }

  const Policy policy_;
  const std::size_t step_;
  workload::SizeTable sizes_;
  workload::MappedArray<Vector> vectors_;
  Random random_;
  Result& result_;
  std::uint64_t next_id_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "realloc_growth", "beyond the papers",
                            "vectors that grow by realloc, many at once");
  const auto policy =
      static_cast<Policy>(options.choice("policy", {"x1.5", "x2", "step"}, "how a vector grows"));
  const auto step =
      options.integer("step", 4096, 16, 1u << 30, "bytes added at a time (policy step)");
  const auto low =
      options.integer("low", 1024, 16, std::uint64_t{1} << 36, "smallest final size in bytes");
  const auto high =
      options.integer("high", 65536, 16, std::uint64_t{1} << 36, "largest final size in bytes");
  const auto vectors =
      options.integer("vectors", 64, 1, 1u << 24, "vectors that grow at once, in each thread");
  const auto total =
      options.integer("total", 10000, 1, 1u << 31, "vectors finished by each thread");
  const auto threads =
      options.integer("threads", 1, 1, 1024, "threads, each with vectors of its own");
  options.require(low <= high, "--low must not be above --high");
  options.done();

  workload::MappedArray<Result> results(threads);
  std::vector<Grower> growers;
  growers.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i)
    growers.emplace_back(policy, step, low, high, vectors, i + 1, results[i]);
  const std::uint64_t ns =
      workload::run_threads(threads, [&](std::uint64_t i) { growers[i].grow_all(total); });

  std::uint64_t operations = 0;
  for (const Result& r : results) operations += r.operations;
  workload::Record(options, threads).print(operations, ns, workload::sum_of_peaks(results));
}
