// Threads of a test, each to its end.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

namespace spanalloc::test {

/// body(k) in `count` threads at once, k = 0 .. count - 1.
template <class Body>
void in_threads(unsigned count, Body body) {
  std::vector<std::jthread> threads;
  for (unsigned k = 0; k < count; ++k) threads.emplace_back(std::ref(body), k);
}

/// Another thread, which rests: who forks beside it leaves somebody behind.
class RestingThread {
 public:
  RestingThread() : thread_([this] { end_.wait(); }) {}
  ~RestingThread() {
    end_.count_down();
    thread_.join();
  }
  RestingThread(const RestingThread&) = delete;
  RestingThread& operator=(const RestingThread&) = delete;

 private:
  std::latch end_{1};
  std::thread thread_;
};

/// Steps that threads count of what they do, so that another one waits for work, not for time.
class Progress {
 public:
  // Relaxed: it orders nothing, so that thread sanitizer misses no race for it.
  void step() { steps_.fetch_add(1, std::memory_order_relaxed); }
  /// Returns when there are `steps` more than at the last wait's end, which may be
  /// at once. One thread waits.
  void wait_for_more(std::size_t steps) {
    while (steps_.load(std::memory_order_relaxed) - seen_ < steps) std::this_thread::yield();
    seen_ = steps_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::size_t> steps_{0};
  std::size_t seen_ = 0;
};

template <class F>
void on_another_thread(F&& f) {
  std::jthread(std::forward<F>(f));
}

}  // namespace spanalloc::test
