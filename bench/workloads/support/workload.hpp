// What every workload shares: options, threads, clocks, the latency histogram, the count
// of live bytes, the record.
//
// A workload is a plain program that knows no allocator. It prints one line of JSON:
//   {"workload": "threadtest", "parameters": {...}, "threads": 2, "operations": 4000000,
//   "elapsed_s": 0.41,
//    "peak_live_bytes": 6400000, "metrics": {...}, "latency": {"malloc": {...}}}
// and exits with 0; with 1 and a line on stderr when its data were damaged or memory was refused;
// with 2 for bad options; with 3 and a line on stderr when what it measures does not exist under
// this contender. Nothing in here allocates between start and finish of a measured part, and no two
// threads write to one cache line.
#ifndef SPANALLOC_BENCH_WORKLOAD_HPP
#define SPANALLOC_BENCH_WORKLOAD_HPP

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace workload {

inline constexpr std::size_t kCacheLine = 64;

// One line and the end of the process, also when several threads find something at once. No
// destructors: other threads still use what these would take away. (`damaged`: by this word a
// test's log tells that no busy machine was to blame.)
[[noreturn]] inline void fail(const char* what) {
  static std::atomic_flag failing = ATOMIC_FLAG_INIT;
  while (failing.test_and_set()) pause();
  std::fprintf(stderr, "%s (data damaged, or memory refused)\n", what);
  _exit(1);
}

// Ends the workload with one line when its data are not what it wrote, or memory was refused.
inline void check(bool good, const char* what) {
  if (!good) [[unlikely]]
    fail(what);
}

// Ends the workload where its question has no answer, so that no figure stands for one.
[[noreturn]] inline void unavailable(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(3);
}

inline std::uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

inline void sleep_ms(std::uint64_t ms) {
  const timespec pause = {static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000) * 1'000'000};
  nanosleep(&pause, nullptr);
}

// Keeps the compiler from removing what is measured: the memory behind `p`
// counts as read and written.
inline void touch(void* p) {
  asm volatile("" : : "g"(p) : "memory");
}

// SplitMix64 (Steele, Lea, Flood; OOPSLA 2014): one state word, every seed good.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n), n > 0.
  std::uint64_t below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }
  // Uniform in [low, high].
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// Bytes requested and not freed by one thread, and their peak. One object a thread; sum the peaks
// of threads that work at the same time (an upper bound of the true peak, the floor that peak
// memory is compared with).
class alignas(kCacheLine) LiveBytes {
 public:
  void add(std::size_t n) {
    now_ += static_cast<std::int64_t>(n);
    if (now_ > peak_) peak_ = now_;
  }
  void remove(std::size_t n) { now_ -= static_cast<std::int64_t>(n); }
  std::int64_t now() const { return now_; }
  std::int64_t peak() const { return peak_; }

 private:
  std::int64_t now_ = 0;
  std::int64_t peak_ = 0;
};

// Latencies in the manner of HdrHistogram: 32 linear steps in every power of two, so a value
// is known to 3 %, in a table of fixed size that is part of the object. One histogram a
// thread, merged at the end.
class alignas(kCacheLine) Histogram {
 public:
  void record(std::uint64_t ns) {
    ++counts_[index_of(ns)];
    ++count_;
    if (ns > max_) max_ = ns;
  }
  void merge(const Histogram& other) {
    for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    if (other.max_ > max_) max_ = other.max_;
  }
  std::uint64_t count() const { return count_; }
  std::uint64_t max() const { return max_; }
  // The value below or at which `share` (0 to 1) of all values lie, rounded up to the end
  // of its step; 0 when empty.
  std::uint64_t percentile(double share) const {
    if (count_ == 0) return 0;
    auto wanted = static_cast<std::uint64_t>(share * static_cast<double>(count_) + 0.999999);
    if (wanted == 0) wanted = 1;
    if (wanted > count_) wanted = count_;
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      seen += counts_[i];
      if (seen >= wanted) return end_of(i) < max_ ? end_of(i) : max_;
    }
    return max_;
  }

 private:
  static constexpr unsigned kStepBits = 5;
  static constexpr std::size_t kSteps = std::size_t{1} << kStepBits;
  static std::size_t index_of(std::uint64_t v) {
    if (v < kSteps) return static_cast<std::size_t>(v);
    const unsigned shift = static_cast<unsigned>(std::bit_width(v)) - 1 - kStepBits;
    return (shift + 1) * kSteps + static_cast<std::size_t>((v >> shift) - kSteps);
  }
  static std::uint64_t end_of(std::size_t i) {
    if (i < kSteps) return i;
    const unsigned shift = static_cast<unsigned>(i / kSteps) - 1;
    return ((static_cast<std::uint64_t>(i % kSteps) + kSteps + 1) << shift) - 1;
  }
  std::array<std::uint64_t, (64 - kStepBits + 1) * kSteps> counts_{};
  std::uint64_t count_ = 0;
  std::uint64_t max_ = 0;
};

// Command line of the form --name VALUE. Declare each option once; then call done(), which refuses
// what is unknown and answers --help with the program's text and every option's default.
class Options {
 public:
  Options(int argc, char** argv, const char* name, const char* source, const char* about)
      : name_(name), source_(source), about_(about) {
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word == "--help" || word == "-h") {
        help_ = true;
        continue;
      }
      if (word.rfind("--", 0) != 0 || word.size() == 2 || i + 1 == argc)
        bad("expected --NAME VALUE, found " + word);
      given_.emplace_back(word.substr(2), argv[++i]);
    }
  }
  std::uint64_t integer(const char* option, std::uint64_t standard, std::uint64_t low,
                        std::uint64_t high, const char* about) {
    std::uint64_t value = standard;
    if (const std::string* text = take(option)) {
      char* end = nullptr;
      errno = 0;
      value = std::strtoull(text->c_str(), &end, 10);
      if (errno != 0 || end == text->c_str() || *end != '\0' || (*text)[0] == '-' || value < low ||
          value > high)
        bad(std::string("--") + option + " " + *text + ": expected a whole number from " +
            std::to_string(low) + " to " + std::to_string(high));
    }
    declare(option, std::to_string(standard), about);
    parameters_.emplace_back(option, std::to_string(value));
    return value;
  }
  // One of `choices`; returns its index.
  std::size_t choice(const char* option, const std::vector<std::string>& choices,
                     const char* about) {
    std::size_t index = 0;
    if (const std::string* text = take(option)) {
      while (index < choices.size() && choices[index] != *text) ++index;
      if (index == choices.size()) {
        std::string all;
        for (const std::string& c : choices) all += " " + c;
        bad(std::string("--") + option + " " + *text + ": expected one of" + all);
      }
    }
    std::string all;
    for (const std::string& c : choices) all += (all.empty() ? "" : "|") + c;
    declare(option, all, about);
    parameters_.emplace_back(option, "\"" + choices[index] + "\"");
    return index;
  }
  // Any text; must not hold quotes or backslashes.
  std::string text(const char* option, const char* standard, const char* about) {
    std::string value = standard;
    if (const std::string* given = take(option)) value = *given;
    if (value.find_first_of("\"\\\n") != std::string::npos)
      bad(std::string("--") + option + ": no quotes, backslashes or newlines");
    declare(option, standard, about);
    parameters_.emplace_back(option, "\"" + value + "\"");
    return value;
  }
  // Refuses options that do not go together.
  void require(bool good, const char* what) const {
    if (!good && !help_) bad(what);
  }
  void done() {
    if (help_) {
      std::printf("%s: %s\nSource: %s\n\nOptions (--NAME VALUE):\n%s", name_, about_, source_,
                  help_text_.c_str());
      std::exit(0);
    }
    for (const auto& [option, value] : given_) bad("unknown option --" + option);
  }
  const char* name() const { return name_; }
  const std::vector<std::pair<std::string, std::string>>& parameters() const { return parameters_; }

 private:
  [[noreturn]] void bad(const std::string& what) const {
    std::fprintf(stderr, "%s: %s (--help lists the options)\n", name_, what.c_str());
    std::exit(2);
  }
  const std::string* take(const char* option) {
    for (std::size_t i = given_.size(); i-- > 0;) {
      if (given_[i].first == option) {
        taken_.push_back(given_[i].second);
        const std::string wanted = option;
        std::erase_if(given_, [&](const auto& g) { return g.first == wanted; });
        return &taken_.back();
      }
    }
    return nullptr;
  }
  void declare(const char* option, const std::string& standard, const char* about) {
    help_text_ += std::string("  --") + option + " (" + standard + ")  " + about + "\n";
  }
  const char* name_;
  const char* source_;
  const char* about_;
  bool help_ = false;
  std::vector<std::pair<std::string, std::string>> given_;
  std::vector<std::string> taken_;
  std::vector<std::pair<std::string, std::string>> parameters_;
  std::string help_text_;
};

// Resident bytes of the workload's own tables (support/mapped_array.hpp), which are no allocator's:
// now, and at the most. Changed by one thread at a time.
struct OwnBytes {
  std::size_t now = 0;
  std::size_t peak = 0;
  void add(std::size_t n) {
    now += n;
    if (now > peak) peak = now;
  }
  void remove(std::size_t n) { now -= n; }
};
inline OwnBytes own_bytes;

// The line that a workload ends with. A workload with tables of its own has metric own_kib: the
// part of the process's peak memory that these are.
class Record {
 public:
  Record(const Options& options, std::uint64_t threads) : options_(options), threads_(threads) {}
  template <class Number, class Divisor = int>
  void metric(const std::string& name, Number value, Divisor divisor = 1) {
    char text[64];
    std::snprintf(text, sizeof text, "%.9g",
                  static_cast<double>(value) / static_cast<double>(divisor));
    metrics_ += (metrics_.empty() ? "\"" : ", \"") + name + "\": " + text;
  }
  void latency(const char* call, const Histogram& h) {
    char text[320];
    std::snprintf(text, sizeof text,
                  "%s\"%s\": {\"count\": %" PRIu64 ", \"p50_ns\": %" PRIu64 ", \"p99_ns\": %" PRIu64
                  ", \"p999_ns\": %" PRIu64 ", \"p9999_ns\": %" PRIu64 ", \"max_ns\": %" PRIu64 "}",
                  latency_.empty() ? "" : ", ", call, h.count(), h.percentile(0.5),
                  h.percentile(0.99), h.percentile(0.999), h.percentile(0.9999), h.max());
    latency_ += text;
  }
  // `peak_live`: bytes, the floor of the peak memory; below 0: there is none.
  template <class Bytes = int>
  void print(std::uint64_t operations, std::uint64_t elapsed_ns, Bytes peak_live = -1) const {
    std::printf("{\"workload\": \"%s\", \"parameters\": {", options_.name());
    const char* comma = "";
    for (const auto& [name, value] : options_.parameters()) {
      std::printf("%s\"%s\": %s", comma, name.c_str(), value.c_str());
      comma = ", ";
    }
    const auto peak = static_cast<std::int64_t>(peak_live);
    std::printf("}, \"threads\": %" PRIu64 ", \"operations\": %" PRIu64
                ", \"elapsed_s\": %.9f, \"peak_live_bytes\": %s, \"metrics\": {%s",
                threads_, operations, static_cast<double>(elapsed_ns) * 1e-9,
                peak >= 0 ? std::to_string(peak).c_str() : "null", metrics_.c_str());
    if (own_bytes.peak > 0)
      std::printf("%s\"own_kib\": %zu", metrics_.empty() ? "" : ", ", own_bytes.peak / 1024);
    std::printf("}, \"latency\": {%s}}\n", latency_.c_str());
    std::fflush(stdout);
  }

 private:
  const Options& options_;
  std::uint64_t threads_;
  std::string metrics_;
  std::string latency_;
};

// The most that threads which work at the same time have had alive: an upper bound.
template <class Threads>
std::int64_t sum_of_peaks(const Threads& threads) {
  std::int64_t sum = 0;
  for (const auto& thread : threads) sum += thread.live.peak();
  return sum;
}

// A thread with a stack of 256 KiB, for workloads that have thousands; `run(argument)` is its life.
inline pthread_t start_small_thread(void* (*run)(void*), void* argument) {
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  check(pthread_create(&thread, &attributes, run, argument) == 0, "cannot start the threads");
  pthread_attr_destroy(&attributes);
  return thread;
}

// Empty functions by whose names a tool that looks at the program from outside finds the part that
// counts: from the last call of the first to the last call of the second. bench/manycore does.
extern "C" [[gnu::noinline]] inline void measured_part_starts() {
  asm volatile("");
}
extern "C" [[gnu::noinline]] inline void measured_part_ends() {
  asm volatile("");
}

// Runs `body(index)` in `threads` threads that start together; returns the nanoseconds from that
// start to the end of the last. Creating and joining the threads lies outside.
template <class Body>
std::uint64_t run_threads(std::uint64_t threads, Body body) {
  struct alignas(kCacheLine) End {
    std::uint64_t ns = 0;
  };
  std::vector<End> ends(threads);
  std::atomic<std::uint64_t> start{0};
  std::barrier gate(static_cast<std::ptrdiff_t>(threads), [&]() noexcept {
    measured_part_starts();
    start.store(now_ns());
  });
  std::vector<std::thread> workers;
  workers.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      gate.arrive_and_wait();
      body(i);
      ends[i].ns = now_ns();
      measured_part_ends();
    });
  }
  for (std::thread& w : workers) w.join();
  std::uint64_t last = 0;
  for (const End& e : ends) last = e.ns > last ? e.ns : last;
  return last - start.load();
}

}  // namespace workload

#endif  // SPANALLOC_BENCH_WORKLOAD_HPP
