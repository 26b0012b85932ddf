// What all stress scenarios share: how much to do, random choices, and where
// threads report what went wrong.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "environment.hpp"
#include "random.hpp"
#include "sanitizers.hpp"

namespace spanalloc::stress {

class Random : public test::Random {
 public:
  using test::Random::Random;

  /// 0 to 4 MiB with the skew of real programs: two thirds up to 128 bytes, one in
  /// a thousand above 64 KiB.
  std::size_t size() {
    const std::size_t dice = below(1000);
    if (dice == 0) return below((std::size_t{4} << 20) + 1);
    if (dice < 20) return below(65536);
    if (dice < 100) return below(4096);
    if (dice < 340) return below(512);
    return below(129);
  }
};

/// Collects errors from all threads; keeps the first as text. A scenario stops
/// early once there is one.
class Report {
 public:
  [[gnu::format(printf, 2, 3)]] void error(const char* format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    std::lock_guard guard(lock_);
    if (errors_.fetch_add(1, std::memory_order_relaxed) == 0) first_ = text;
  }
  std::size_t errors() const { return errors_.load(std::memory_order_relaxed); }
  std::string first() {
    std::lock_guard guard(lock_);
    return first_;
  }

  /// Operations done, for the scenario's summary.
  std::atomic<std::size_t> operations{0};

 private:
  std::atomic<std::size_t> errors_{0};
  std::mutex lock_;
  std::string first_;
};

/// How often a scenario does something of which `normal` takes it half a second or more in a
/// release build: multiplied by STRESS_SCALE, by default one (five with SPANALLOC_TEST_FULL), and
/// less where everything takes longer.
inline std::size_t scaled(std::size_t normal) {
  const char* text = std::getenv("STRESS_SCALE");
  double scale = text == nullptr ? 0 : std::strtod(text, nullptr);
  if (!(scale > 0)) scale = test::is_full() ? 5 : 1;
  constexpr double kSlower = test::kUnderTsan || test::kEmulated ? 10 : test::kUnderAsan ? 4 : 1;
  const double times = static_cast<double>(normal) * scale / kSlower;
  return times < 1 ? 1 : static_cast<std::size_t>(times);
}

}  // namespace spanalloc::stress
