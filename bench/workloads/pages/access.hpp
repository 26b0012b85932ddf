// How an experiment uses its pages: untouched, as the paper measures, or checked,
// before the measured part.
//
// The paper's experiments "do not touch the pages", so that no page fault is in their times. Hence
// the data are checked apart: each program first runs its experiment with less work on pages that
// it claims. A claim is a word in every page, exchanged from 0 to the owner's number at the
// allocation and back at the free; two owners of one page cannot both succeed.
#ifndef SPANALLOC_BENCH_PAGE_ACCESS_HPP
#define SPANALLOC_BENCH_PAGE_ACCESS_HPP

#include <sys/mman.h>

#include <atomic>
#include <cstdint>

#include "pages/page_manager.hpp"

namespace pages {

class Untouched {
 public:
  // `region`: pages that the region was made for, for the message.
  Untouched(PageManager& manager, std::size_t region) : manager_(manager), region_(region) {}

  void* allocate(std::size_t count, std::uint64_t) {
    void* const address = manager_.allocate(count);
    if (!address) [[unlikely]]
      refused(count);
    workload::check(reinterpret_cast<std::uintptr_t>(address) % kPageSize == 0,
                    "pages at an odd address");
    return address;
  }
  void free(void* address, std::size_t count, std::uint64_t) { manager_.free(address, count); }

 private:
  [[noreturn]] void refused(std::size_t count) const {
    workload::fail(("the page manager refused " + std::to_string(count) +
                    " pages; the experiment needs a region of " + std::to_string(region_))
                       .c_str());
  }
  PageManager& manager_;
  const std::size_t region_;
};

class Checked {
 public:
  Checked(PageManager& manager, std::size_t region) : untouched_(manager, region) {}

  // `owner` > 0: the number of the thread, starting from 1.
  void* allocate(std::size_t count, std::uint64_t owner) {
    void* const address = untouched_.allocate(count, owner);
    for (std::size_t i = 0; i < count; ++i)
      workload::check(word(address, i).exchange(owner) == 0,
                      "a page was handed out that was not free, or not zero");
    return address;
  }
  void free(void* address, std::size_t count, std::uint64_t owner) {
    for (std::size_t i = 0; i < count; ++i)
      workload::check(word(address, i).exchange(0) == owner,
                      "a page does not hold what was written into it");
    // Only so that the check does not show in the memory of the measured part: a refusal does no
    // harm.
    madvise(address, count * kPageSize, MADV_DONTNEED);
    untouched_.free(address, count, owner);
  }

 private:
  static std::atomic_ref<std::uint64_t> word(void* address, std::size_t page) {
    return std::atomic_ref(
        *reinterpret_cast<std::uint64_t*>(static_cast<char*>(address) + page * kPageSize));
  }
  Untouched untouched_;
};

}  // namespace pages

#endif  // SPANALLOC_BENCH_PAGE_ACCESS_HPP
