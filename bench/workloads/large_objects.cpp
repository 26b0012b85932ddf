// Large and huge objects at random replacement. Source: beyond the papers.
//
// Each thread keeps `live` objects of log-uniform sizes from low to high; a step frees one of them
// at random and puts a new one in its place: one malloc an operation. `touch` says what the
// program does with an object:
//   ends   it writes the first and the last word (what the allocator itself costs)
//   page   one word in every 4 KiB (the page faults are the program's own, unless the memory is
//          warm)
//   all    every byte
// The first and the last word are checked when the object is freed, and unless it touches only
// these one word in every 4 KiB.
#include "support/churn.hpp"

namespace {

enum Touch : std::size_t { kEnds, kPage, kAll };
constexpr std::size_t kPageSize = 4096;

struct Object {
  unsigned char* bytes = nullptr;
  std::size_t size = 0;
  std::uint64_t id = 0;  // tells its words from those of every other object
};

class Use {
 public:
  using Block = Object;
  static constexpr const char* kOverwritten = "large_objects: an object was overwritten";
  explicit Use(Touch touch) : touch_(touch) {}

  void make(Object& o, std::uint64_t turn, workload::Random&) const {
    o.id = turn;
    o.bytes = static_cast<unsigned char*>(std::malloc(o.size));
    workload::check(o.bytes != nullptr, "large_objects: malloc returned null");
    write(o);
  }
  bool is_whole(const Object& o) const {
    for (std::size_t place = 0; touch_ != kEnds && place < last_place(o); place += kPageSize)
      if (!there(o, place)) return false;
    return there(o, 0) && there(o, last_place(o));
  }

 private:
  static std::uint64_t word_of(const Object& o, std::size_t place) {
    return (reinterpret_cast<std::uintptr_t>(o.bytes) + o.id) * 0x9e3779b97f4a7c15u + place;
  }
  static void put(const Object& o, std::size_t place) {
    const std::uint64_t word = word_of(o, place);
    __builtin_memcpy(o.bytes + place, &word, sizeof word);
  }
  static bool there(const Object& o, std::size_t place) {
    std::uint64_t word;
    __builtin_memcpy(&word, o.bytes + place, sizeof word);
    return word == word_of(o, place);
  }
  static std::size_t last_place(const Object& o) {
    return (o.size - sizeof(std::uint64_t)) & ~std::size_t{7};
  }
  void write(const Object& o) const {
    if (touch_ == kAll) std::memset(o.bytes, 0x5a, o.size);
    for (std::size_t place = 0; touch_ != kEnds && place < last_place(o); place += kPageSize)
      put(o, place);
    put(o, 0);
    put(o, last_place(o));
  }
  Touch touch_;
};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "large_objects", "beyond the papers",
                            "large and huge objects at random replacement");
  workload::Churn churn;
  churn.low =
      options.integer("low", 128 << 10, 64, std::uint64_t{1} << 40, "smallest size in bytes");
  churn.high =
      options.integer("high", 1 << 20, 64, std::uint64_t{1} << 40, "largest size in bytes");
  churn.live =
      options.integer("live", 16, 1, 1u << 20, "objects that stand at once, in each thread");
  churn.operations =
      options.integer("operations", 2000, 1, 1u << 31, "objects allocated by each thread");
  const auto touch = static_cast<Touch>(
      options.choice("touch", {"ends", "page", "all"}, "what the program writes"));
  churn.threads = options.integer("threads", 1, 1, 1024, "threads, each with objects of its own");
  options.require(churn.low <= churn.high, "--low must not be above --high");
  options.done();
  workload::run_churn(options, Use(touch), churn, touch != kEnds);
}
