// Model threads: coroutines with stacks of their own, all in one thread of the operating system.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace spanalloc::model {

/// A place that execution can be switched away from and back to.
///
/// A fiber that is abandoned half-way (its execution found a failure) is simply prepared
/// again: its stack is reused without being unwound, so what runs on it must not own
/// anything but stack memory.
class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  static constexpr std::size_t kStackBytes = 256 * 1024;

  /// Before the first prepare(): it runs on this stack, of so many bytes, a multiple of a page. (By
  /// default on one of its own, at an address that differs from process to process.)
  void use_stack(void* stack);
  /// The next switch to this fiber calls `entry(argument)`, which must never return.
  void prepare(void (*entry)(unsigned), unsigned argument);

  static void switch_to(Fiber& from, Fiber& to);

 private:
  static void first_frame();
  void guard_stack();

  void* stack_ = nullptr;
  bool is_mine_ = false;  // the stack
  void (*entry_)(unsigned) = nullptr;
  unsigned argument_ = 0;
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace spanalloc::model
