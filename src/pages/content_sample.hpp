// Whether much of a large range holds anything: a few of its pages are read.
//
// (No system call that libc's malloc makes, too, tells which pages are in memory. Where a page was
// never written, the kernel shows its page of zeroes, which takes no memory; a page that is swapped
// out comes back.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/os.hpp"
#include "pages/config.hpp"

namespace spanalloc {

template <class Calls>
class ContentSample {
 public:
  /// Samples pages of `count` slices, spread over them, other ones at each call. Returns how many
  /// 256ths of the sample hold bytes other than zero, but at most `enough`. 0 proves nothing: the
  /// program may have written zeroes. Only time and memory depend on the answer.
  SPANALLOC_COLD std::size_t used(const void* start, std::size_t count, std::size_t slice,
                                  std::size_t enough) {
    constexpr std::size_t kLooks = PagesConfig::kSamples;
    const std::size_t look = looks_.fetch_add_relaxed(1);
    const std::size_t pages = min_of(slice / os::page_size(), 4);  // of a slice
    std::size_t used = 0;
    for (std::size_t i = 0; i < kLooks && used < enough; ++i) {
      const std::size_t part = i * 5 % kLooks;  // not in address order
      const std::size_t from = count * part / kLooks;
      const std::size_t among = max_of(count * (part + 1) / kLooks - from, 1);
      const std::size_t any = (look * 0x9E3779B1u + i * 0x85EBCA77u) >> 8;
      const auto* at = static_cast<const char*>(start) + (from + any % among) * slice;
      for (std::size_t p = 0; p < pages; ++p, at += slice / pages) {
        if (!is_zero(at)) used += 256 / kLooks / pages;
      }
    }
    return min_of(used, enough);
  }

 private:
  // Whether the caller's page is zero (or protected by the program). Sanitizers do not look.
  [[gnu::no_sanitize_address, gnu::no_sanitize_thread]] static bool is_zero(const char* page) {
    if (!Calls::can_be_read(reinterpret_cast<const std::uint32_t*>(page))) return true;
    const auto* words = reinterpret_cast<const volatile std::uint64_t*>(page);
    for (std::size_t i = 0; i < os::page_size() / sizeof *words; ++i) {
      if (words[i] != 0) return false;
    }
    return true;
  }

  Atomic<std::size_t> looks_{0};
};

}  // namespace spanalloc
