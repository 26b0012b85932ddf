// What a thread keeps in thread-local storage for one heap.
#pragma once

#include <cstdint>

#include "base/signal_flag.hpp"
#include "engines/virtual_span/oopsla15/backend.hpp"
#include "engines/virtual_span/oopsla15/lab.hpp"

namespace spanalloc::oopsla15 {

/// The thread's copy of the directory: plain words that nobody else writes.
struct DirectoryView {
  std::uintptr_t base = 0;
  std::size_t limit = 0;  // may lag behind: what seems to lie outside is looked up in the directory itself
  const ClassMark* marks = nullptr;

  std::size_t granule_of(std::uintptr_t address) const { return (address - base) >> kVirtualSpanBits; }
  std::size_t mark(std::size_t granule) const { return marks[granule].load_relaxed(); }
};

/// Zero until the thread's first allocation, zero again after its exit. About half a kilobyte: the library's
/// thread-local storage must fit into what the loader sets aside for libraries opened late.
struct ThreadState {
  HotSpans spans{};  // of this thread's own LAB; stays empty without one
  DirectoryView view;
  OwnerWord owner = 0;  // of `lab`, 0 without
  Lab* lab = nullptr;
  std::uint32_t number = 0;     // this thread's identifier, counted from 1; 0: not yet given
  std::uint8_t exit_round = 0;  // thread::ExitKey's
  bool without_lab = false;     // the thread is past its exit hook, or no hook could be had
  SignalFlag inside;            // in a slow path; looked at by this thread's signal handlers, if they fork
};
static_assert(sizeof(ThreadState) <= 640);

}  // namespace spanalloc::oopsla15
