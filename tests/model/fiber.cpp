#include "fiber.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

namespace spanalloc::model {

namespace {
Fiber* arriving = nullptr;  // whose first frame is about to run
}

#if defined(__x86_64__)

// swapcontext() makes a system call at every switch, which would dominate the run time of the whole
// suite; the System V ABI asks for no more than these six registers to survive a call.
extern "C" void spanalloc_model_switch(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
.text
.globl spanalloc_model_switch
.type spanalloc_model_switch, @function
spanalloc_model_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size spanalloc_model_switch, .-spanalloc_model_switch
)");

#endif

Fiber::~Fiber() {
  if (is_mine_) munmap(stack_, kStackBytes);
}

// An overflow stops at the guard page; without it it only stops later
void Fiber::guard_stack() {
  mprotect(stack_, 4096, PROT_NONE);
}

void Fiber::use_stack(void* stack) {
  stack_ = stack;
  guard_stack();
}

void Fiber::first_frame() {
  Fiber* const self = arriving;
  self->entry_(self->argument_);
  std::abort();  // entry() returned: there is no frame below this one
}

void Fiber::prepare(void (*entry)(unsigned), unsigned argument) {
  if (stack_ == nullptr) {
    stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack_ == MAP_FAILED) std::abort();
    is_mine_ = true;
    guard_stack();
  }
  entry_ = entry;
  argument_ = argument;
#if defined(__x86_64__)
  auto** top = reinterpret_cast<void**>(static_cast<char*>(stack_) + kStackBytes);
  *--top = nullptr;  // keeps the stack aligned as after a call, and ends backtraces
  *--top = reinterpret_cast<void*>(&Fiber::first_frame);
  for (int saved_register = 0; saved_register < 6; ++saved_register) *--top = nullptr;
  stack_pointer_ = top;
#else
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &Fiber::first_frame, 0);
#endif
}

void Fiber::switch_to(Fiber& from, Fiber& to) {
  arriving = &to;
#if defined(__x86_64__)
  spanalloc_model_switch(&from.stack_pointer_, to.stack_pointer_);
#else
  swapcontext(&from.context_, &to.context_);
#endif
}

}  // namespace spanalloc::model
