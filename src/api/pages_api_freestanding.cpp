// libspanalloc_pages: the page manager for programs without an operating system or a C library.
// Built without either; tests/unit/freestanding shows that it needs neither.
#include "base/atomic.hpp"

namespace spanalloc {

/// There is no memory but the caller's, so none to open, to purge or to give back.
struct LibraryPagesSystem {
  static void pause() { spin_hint(); }
  static bool open(void*, decltype(sizeof 0)) { return false; }
  static bool purge(void*, decltype(sizeof 0)) { return false; }
  static void release(void*, decltype(sizeof 0)) {}
};

}  // namespace spanalloc

#include "api/pages_api_functions.hpp"
