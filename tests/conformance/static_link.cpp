// A C++ program to link with the archive as the documents say: containers, exceptions and a thread,
// on blocks of the library's. The exit code is 0 when all of them are.
#include <spanalloc/spanalloc.h>

#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

int main() {
  bool ours = false;
  std::thread([&] {
    const std::vector<std::string> words(100, std::string(100, 'x'));
    ours = sp_owns(words.data()) == 1 && sp_owns(words.back().data()) == 1;
  }).join();
  volatile std::size_t count = std::numeric_limits<std::ptrdiff_t>::max() / 2;
  try {
    std::string().reserve(count);
    return 2;
  } catch (const std::bad_alloc&) {
  }
  return ours ? 0 : 1;
}
