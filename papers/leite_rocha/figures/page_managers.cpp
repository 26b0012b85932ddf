// spanalloc's page managers as contenders of the page experiments: the paper's two and ours.
//
//   tree            the lock-free tree as published, each neighbour tried once ("COA" in the
//                   paper's figures)
//   tree-recursive  the same, coalescing on while there are free neighbours ("COA-R")
//   static          no nodes, coalescing guaranteed, no spurious refusals
//
// Each has a region of its own for the pages and zeroed memory for its books; both go when it does.
#include <sched.h>
#include <sys/mman.h>

#include "pages/coalescing/manager.hpp"
#include "pages/page_manager.hpp"
#include "papers/leite_rocha/manager/paper_manager.hpp"

namespace {

using namespace spanalloc::coalescing;

// Zeroed memory for as long as the object lives, touched only where it is used.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes)
      : bytes_(bytes),
        start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (*this) munmap(start_, bytes_);
  }
  explicit operator bool() const { return start_ != MAP_FAILED; }
  void* get() const { return start_; }
  void* at(std::size_t page) const { return static_cast<char*>(start_) + page * pages::kPageSize; }
  std::size_t page_of(const void* address) const {
    return static_cast<std::size_t>(static_cast<const char*>(address) -
                                    static_cast<const char*>(start_)) /
           pages::kPageSize;
  }

 private:
  std::size_t bytes_;
  void* start_;
};

struct Environment {
  bool pause() {
    sched_yield();
    return true;
  }
  bool purge(Block) { return false; }
};

class Static final : public pages::PageManager {
 public:
  using Manager = CoalescingManager<Environment>;
  explicit Static(std::size_t pages)
      : region_(pages * pages::kPageSize), metadata_(Manager::metadata_bytes(pages)) {
    if (!good()) return;
    manager_.attach(metadata_.get(), pages);
    manager_.extend(pages, true);
  }
  bool good() const { return region_ && metadata_; }
  void* allocate(std::size_t count) override {
    const Allocation got = manager_.allocate(count);
    return got ? region_.at(got.block.first) : nullptr;
  }
  void free(void* address, std::size_t) override {
    workload::check(manager_.free(region_.page_of(address)),
                    "static: freed what it had not handed out");
  }
  std::optional<std::size_t> free_blocks() const override {
    std::size_t count = 0;
    manager_.walk([&](Block, BlockState state, bool) { count += state == BlockState::kFree; });
    return count;
  }

 private:
  Environment environment_;
  Mapping region_, metadata_;
  Manager manager_{environment_};
};

struct Chunks {
  static void* map(std::size_t bytes) {
    void* const chunk =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return chunk == MAP_FAILED ? nullptr : chunk;
  }
  static void unmap(void* chunk, std::size_t bytes) { munmap(chunk, bytes); }
};

template <bool kRecursive>
class Tree final : public pages::PageManager {
 public:
  using Manager = PaperManager<TreeController<Chunks>, kRecursive>;
  explicit Tree(std::size_t pages)
      : region_(pages * pages::kPageSize), metadata_(Manager::metadata_bytes(pages)) {
    good_ =
        region_ && metadata_ && manager_.attach(metadata_.get(), pages) && manager_.extend(pages);
  }
  ~Tree() override { manager_.release_nodes(); }
  bool good() const { return good_; }
  // The published mechanism refuses while others hold the block that they are splitting, and then
  // turns to the operating system (Listing 3, line 4). A region of a fixed size has none to turn
  // to: a refusal is believed after kYields attempts, and kSleeps more that let whoever holds the
  // block have the processor.
  void* allocate(std::size_t count) override {
    for (unsigned attempt = 0; attempt < kYields + kSleeps; ++attempt) {
      if (const Block got = manager_.allocate(count)) return region_.at(got.first);
      const timespec pause = {0, 100'000};
      if (attempt < kYields) {
        sched_yield();
      } else {
        nanosleep(&pause, nullptr);
      }
    }
    return nullptr;
  }
  void free(void* address, std::size_t) override {
    workload::check(manager_.free(region_.page_of(address)),
                    "tree: freed what it had not handed out");
  }
  std::optional<std::size_t> free_blocks() const override {
    std::size_t count = 0;
    manager_.for_each_free([&](Block) { ++count; });
    return count;
  }

 private:
  static constexpr unsigned kYields = 1000;
  static constexpr unsigned kSleeps = 100;
  Mapping region_, metadata_;
  mutable Manager manager_;
  bool good_ = false;
};

template <class Manager>
std::unique_ptr<pages::PageManager> create(std::size_t pages, const std::string&) {
  auto manager = std::make_unique<Manager>(pages);
  return manager->good() ? std::move(manager) : nullptr;
}

const pages::Registration tree("tree", create<Tree<false>>);
const pages::Registration tree_recursive("tree-recursive", create<Tree<true>>);
const pages::Registration static_manager("static", create<Static>);

}  // namespace
