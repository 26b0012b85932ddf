// The kernel contract as far as lock-free code needs it, inside a model.
#include "os/os.hpp"

#include "scheduler.hpp"

namespace spanalloc::os {

void yield() {
  model::yield();
}

void fatal(const char* what, const void*) {
  model::fail(what);
}
void fatal(const char* what) {
  model::fail(what);
}

}  // namespace spanalloc::os
