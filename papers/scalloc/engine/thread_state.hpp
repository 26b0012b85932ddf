// What a thread keeps for one heap.
#pragma once

#include <cstdint>

#include "base/atomic.hpp"
#include "base/compiler.hpp"
#include "base/signal_flag.hpp"
#include "papers/scalloc/engine/directory.hpp"
#include "papers/scalloc/engine/hot_spans.hpp"
#include "papers/scalloc/engine/lab.hpp"

namespace spanalloc::scalloc {

/// Zero until the thread's first allocation, zero again after its exit. About half a
/// kilobyte: the library's thread-local storage must fit into what the loader sets aside
/// for libraries opened late.
struct ThreadState {
  HotSpans spans{};  // of this thread's own LAB; stays empty without one
  DirectoryView view;
  OwnerWord owner = kTerminated;  // of `own_lab`; kTerminated without
  Lab* own_lab = nullptr;
  std::uint32_t number = 0;     // this thread's identifier, counted from 1; 0: not yet given
  std::uint8_t exit_round = 0;  // thread::ExitKey's
  bool without_lab = false;     // the thread is past its exit hook, or no hook could be had
  // In a slow path; looked at by this thread's signal handlers, if they fork
  SignalFlag inside;

  /// What hide() has put aside.
  struct Hidden {
    PerMark<FreeBlock> list;
    std::size_t limit;
    std::size_t limit_of_delete;
  };
  /// Until show() no list has a block and no address is known, so that each malloc and free leaves
  /// the fast path. What is hot stays: it is read behind these two only, and in no kernel call. (A
  /// fork's child knows hot spans by their words.)
  void hide(Hidden& aside) {
    aside = {spans.list, view.limit, view.limit_of_delete};
    spans.list = {};
    view.limit = view.limit_of_delete = 0;
  }
  void show(const Hidden& aside) {
    spans.list = aside.list;
    view.limit = aside.limit;
    view.limit_of_delete = aside.limit_of_delete;
  }
};
static_assert(sizeof(ThreadState) <= 632);

/// The heap that the calling thread is just beginning to use, if it is not a default one; read by
/// its signal handlers, if they fork.
SPANALLOC_TLS inline constinit thread_local Atomic<const void*> beginning_in{nullptr};

}  // namespace spanalloc::scalloc
