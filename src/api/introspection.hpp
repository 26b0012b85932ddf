// What the C library's introspection functions tell about an engine: mallinfo,
// mallinfo2, malloc_info, malloc_stats. All of them show E::statistics(), the last two with what
// first-class heaps have (api/figures.hpp): an estimate while other threads are at work.
#pragma once

#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdio.h>

#include <cstddef>

#include "api/figures.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "engine/engine.hpp"
#include "os/os.hpp"

namespace spanalloc {

template <Engine E>
struct Introspection {
  /// Bytes; fields that describe glibc's bins stay 0.
  SPANALLOC_COLD static struct mallinfo2 mallinfo2() noexcept {
    const EngineStatistics s = E::statistics();
    struct mallinfo2 info{};
    info.arena = s.opened_bytes;
    info.hblks = s.large_objects;
    info.hblkhd = s.large_bytes;
    info.uordblks = s.small_bytes_carved;
    info.fordblks = s.pooled_bytes;
    info.keepcost = s.pooled_bytes;  // what malloc_trim could give back at most
    // As far as the engine knows: glibc has the small blocks here that wait for their next use.
    if (s.free_blocks != kNotTold) info.smblks = s.free_blocks;
    if (s.free_bytes != kNotTold) info.fsmblks = s.free_bytes;
    return info;
  }

  /// The same in ints: what does not fit shows as INT_MAX instead of wrapping.
  SPANALLOC_COLD static struct mallinfo mallinfo() noexcept {
    const struct mallinfo2 wide = mallinfo2();
    struct mallinfo info{};
    info.arena = saturated(wide.arena);
    info.hblks = saturated(wide.hblks);
    info.hblkhd = saturated(wide.hblkhd);
    info.uordblks = saturated(wide.uordblks);
    info.fordblks = saturated(wide.fordblks);
    info.keepcost = saturated(wide.keepcost);
    info.smblks = saturated(wide.smblks);
    info.fsmblks = saturated(wide.fsmblks);
    return info;
  }

  /// Writes an XML document to `stream`. 0; EINVAL unless `options` is 0; -1 with the stream's
  /// errno when writing fails.
  SPANALLOC_COLD static int malloc_info(int options, FILE* stream) noexcept {
    if (options != 0) return EINVAL;
    const EngineStatistics s = all_statistics<E>();
    bool good = fprintf(stream, "<malloc version=\"spanalloc-1\" engine=\"%s\">\n", E::kName) >= 0;
    for_each_figure(s, [&](const Figure& figure, std::size_t value) {
      const char* name = figure.element;
      good = fprintf(stream, "  <%s>%zu</%s>\n", name, value, name) >= 0 && good;
    });
    if constexpr (DescribesBins<E>) good = (os::in_kernel_call() || write_bins(stream)) && good;
    good = fputs("</malloc>\n", stream) >= 0 && good;
    return good ? 0 : -1;
  }

  /// Writes the figures to standard error, one a line. Past stdio, in one piece: no cancellation
  /// point, no lock that somebody else may hold.
  SPANALLOC_COLD static void malloc_stats() noexcept {
    char text[2048];
    std::size_t length = 0;
    const auto count = [&](int written) {
      if (written > 0) length = min_of(length + static_cast<std::size_t>(written), sizeof text - 1);
    };
    count(snprintf(text, sizeof text, "spanalloc, engine %s\n", E::kName));
    for_each_figure(all_statistics<E>(), [&](const Figure& figure, std::size_t value) {
      count(
          snprintf(text + length, sizeof text - length, "%-40s = %16zu\n", figure.meaning, value));
    });
    os::write_text(2, text, length);
  }

 private:
  static int saturated(std::size_t x) { return x > INT_MAX ? INT_MAX : static_cast<int>(x); }

  static bool write_bins(FILE* stream) {
    bool good = fputs("  <bins>\n", stream) >= 0;
    const char* end_of_last = "";
    E::describe(
        [&](std::size_t size, std::size_t folio, std::size_t committed, std::size_t cached) {
          good = fprintf(stream, "%s    <bin size=\"%zu\" folio=\"%zu\">\n", end_of_last, size,
                         folio) >= 0 &&
                 good;
          good = fprintf(stream, "      <committed>%zu</committed>\n      <cached>%zu</cached>\n",
                         committed, cached) >= 0 &&
                 good;
          end_of_last = "    </bin>\n";
        },
        [&](std::size_t free, std::size_t folios) {
          good = fprintf(stream, "      <folios free=\"%zu\">%zu</folios>\n", free, folios) >= 0 &&
                 good;
        });
    return fprintf(stream, "%s  </bins>\n", end_of_last) >= 0 && good;
  }
};

}  // namespace spanalloc
