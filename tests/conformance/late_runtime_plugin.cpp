// The plug-in of late_runtime.c.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

#include <new>

namespace {

int handler_calls;

void give_up() {
  ++handler_calls;
  std::set_new_handler(nullptr);
}

bool throws_bad_alloc(std::size_t bytes) {
  try {
    ::operator delete(::operator new(bytes));
  } catch (const std::bad_alloc&) {
    return true;
  }
  return false;
}

int fails(const char* what) {
  fprintf(stderr, "late_runtime: %s\n", what);
  return 1;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] int plugin_runs_out();
int plugin_runs_out() {
  if (dlsym(RTLD_DEFAULT, "_Znwm") == nullptr) return fails("operator new is the C++ runtime's");
  volatile std::size_t huge = PTRDIFF_MAX;
  if (!throws_bad_alloc(huge)) return fails("operator new does not throw");
  std::set_new_handler(&give_up);
  if (!throws_bad_alloc(huge)) return fails("operator new does not throw after a new handler");
  if (handler_calls != 1) return fails("the new handler is not called once");
  std::set_new_handler(&give_up);
  if (::operator new(huge, std::nothrow) != nullptr) return fails("nothrow new returns a block");
  if (handler_calls != 2) return fails("nothrow new does not call the new handler");
  return 0;
}
