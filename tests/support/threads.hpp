// Threads of a test, each to its end.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
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

/// Returns when other threads have counted `steps` more of theirs, however long they take for them.
inline void wait_for_more(const std::atomic<std::size_t>& counted, std::size_t steps) {
  for (const std::size_t seen = counted; counted - seen < steps;) std::this_thread::yield();
}

template <class F>
void on_another_thread(F&& f) {
  std::jthread(std::forward<F>(f));
}

}  // namespace spanalloc::test
