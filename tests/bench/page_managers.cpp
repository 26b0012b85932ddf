// Page managers whose answers are known, for the page experiments that no manager of
// the release can answer yet:
//   test-exact    merges neighbours at every free, under one lock: no coalescing can fail
//   test-never    never merges: every coalescing fails
//   test-small    holds one page less than it was made for
//   test-overlap  hands out the last page of the region twice
#include <map>
#include <mutex>

#include "pages/page_manager.hpp"

namespace {

class Ranges final : public pages::PageManager {
 public:
  struct Behaviour {
    bool merges, small, overlaps;
  };

  Ranges(std::size_t pages, Behaviour behaviour)
      : behaviour_(behaviour), pages_(pages - (behaviour.small ? 1 : 0)) {
    base_ = static_cast<char*>(std::aligned_alloc(pages::kPageSize, pages * pages::kPageSize));
    std::memset(base_, 0, pages * pages::kPageSize);
    if (pages_ > 0) free_[0] = pages_;
  }
  ~Ranges() override { std::free(base_); }

  void* allocate(std::size_t count) override {
    const std::lock_guard lock(mutex_);
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < count) continue;
      const auto [first, length] = *range;
      free_.erase(range);
      if (length > count) free_[first + count] = length - count;
      const bool again = behaviour_.overlaps && first + count == pages_ && first > 0;
      return base_ + (again ? first - 1 : first) * pages::kPageSize;
    }
    return nullptr;
  }

  void free(void* address, std::size_t count) override {
    const std::lock_guard lock(mutex_);
    const auto offset = static_cast<std::size_t>(static_cast<char*>(address) - base_);
    auto range = free_.emplace(offset / pages::kPageSize, count).first;
    if (!behaviour_.merges) return;
    if (range != free_.begin()) {
      auto before = std::prev(range);
      if (before->first + before->second == range->first) {
        before->second += range->second;
        free_.erase(range);
        range = before;
      }
    }
    auto after = std::next(range);
    if (after != free_.end() && range->first + range->second == after->first) {
      range->second += after->second;
      free_.erase(after);
    }
  }

  std::optional<std::size_t> free_blocks() const override { return free_.size(); }

 private:
  const Behaviour behaviour_;
  const std::size_t pages_;
  char* base_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;  // first page -> pages
};

template <bool merges, bool small, bool overlaps>
std::unique_ptr<pages::PageManager> create(std::size_t pages, const std::string&) {
  return std::make_unique<Ranges>(pages, Ranges::Behaviour{merges, small, overlaps});
}

const pages::Registration exact("test-exact", create<true, false, false>);
const pages::Registration never("test-never", create<false, false, false>);
const pages::Registration small("test-small", create<true, true, false>);
const pages::Registration overlap("test-overlap", create<true, false, true>);

}  // namespace
