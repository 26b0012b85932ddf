// An ordinary program linked with the library: shared, from the archive, and fully static. The
// linker, not LD_PRELOAD, makes malloc ours; that a pointer from the plain malloc is one that the
// sp_ functions know is the proof.
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "spanalloc/spanalloc.h"

namespace {

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "FAILED: %s\n", what);
  exit(1);
}

// sp_malloc and malloc are one heap: a block of one is freed by the other, which would end the
// process ("not our pointer") were they two.
void prove_one_heap() {
  void* plain = malloc(1000);
  const size_t usable = sp_usable_size(plain);
  if (usable < 1000 || usable != malloc_usable_size(plain))
    fail("sp_usable_size of a malloc block");
  sp_free(plain);
  free(sp_malloc(1000));
  auto text = std::make_unique<std::string>(1000, 'x');
  if (sp_usable_size(text->data()) < 1001) fail("operator new is not ours");
  char* copy = strdup("duplicated inside libc");
  if (sp_usable_size(copy) < 23) fail("libc's own allocations are not ours");
  sp_free(copy);
}

void work(int seed) {
  std::map<int, std::string> squares;
  for (int i = 0; i < 3000; ++i)
    squares[(i * 7919 + seed) % 3001] = std::string(static_cast<size_t>(i % 300), 'a');
  size_t total = 0;
  for (const auto& [key, text] : squares) total += text.size() + (key < 0);
  if (squares.size() != 3000 || total != 10u * (299 * 300 / 2)) fail("a map lost something");
}

}  // namespace

int main() {
  prove_one_heap();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
  work(9);
  void* aligned = nullptr;
  if (posix_memalign(&aligned, 4096, 100) != 0 || reinterpret_cast<size_t>(aligned) % 4096 != 0) {
    fail("posix_memalign");
  }
  free(aligned);
  puts("linked: ok");
  return 0;
}
