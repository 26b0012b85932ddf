// What all stress scenarios share: how long to run, random choices, and where threads report what went wrong.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "random.hpp"

namespace spanalloc::stress {

class Random : public test::Random {
 public:
  using test::Random::Random;

  /// 0 to 4 MiB with the skew of real programs: two thirds up to 128 bytes, one in a thousand above 64 KiB.
  std::size_t size() {
    const std::size_t dice = below(1000);
    if (dice == 0) return below((std::size_t{4} << 20) + 1);
    if (dice < 20) return below(65536);
    if (dice < 100) return below(4096);
    if (dice < 340) return below(512);
    return below(129);
  }
};

/// Collects errors from all threads; keeps the first as text. A scenario stops early once there is one.
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

/// How long each scenario runs: STRESS_SECONDS, by default two.
inline double seconds_to_run() {
  const char* text = std::getenv("STRESS_SECONDS");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  return seconds > 0 ? seconds : 2;
}

class Deadline {
 public:
  explicit Deadline(double seconds)
      : end_(std::chrono::steady_clock::now() +
             std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                 std::chrono::duration<double>(seconds))) {}
  bool passed() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

}  // namespace spanalloc::stress
