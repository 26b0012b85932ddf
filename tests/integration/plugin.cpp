// A shared object that allocates in its constructor, in its functions, in its thread_local
// objects and in its destructor: what a plugin of a real program does. PLUGIN_TLS_BYTES adds
// a big thread-local array.
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#ifndef PLUGIN_TLS_BYTES
#define PLUGIN_TLS_BYTES 16
#endif

namespace {

void* from_constructor = nullptr;
std::vector<std::string>* names = nullptr;

struct PerThread {
  std::vector<std::string> lines;
  ~PerThread() { lines.clear(); }
};
thread_local PerThread per_thread;
thread_local unsigned char big[PLUGIN_TLS_BYTES];

[[gnu::constructor]] void load() {
  from_constructor = malloc(10000);
  memset(from_constructor, 7, 10000);
  names = new std::vector<std::string>;
}

[[gnu::destructor]] void unload() {
  if (static_cast<unsigned char*>(from_constructor)[9999] != 7) abort();
  free(from_constructor);
  delete names;
  free(malloc(100));
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void* plugin_work(std::size_t size) {
  per_thread.lines.push_back(std::string(200, 'x'));
  memset(big, 3, sizeof big);
  std::string copy(50, 'y');
  void* p = malloc(size);
  memset(p, big[0], size);
  return p;
}
