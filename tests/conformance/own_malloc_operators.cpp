// A C++ program with a malloc of its own (and with OWN_ALIGNED an aligned_alloc): operator new and
// delete of the library go through it, all forms, as those of a C++ library do; aligned forms stay
// the library's, both, where the program has no aligned_alloc. Prints what is not so.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

extern "C" [[gnu::weak]] int sp_owns(const void* address);  // weak: the library may be preloaded

namespace {

alignas(4096) char pool[8 << 20];
std::size_t used;
std::size_t limit = sizeof pool;
volatile int mallocs, aligned_mallocs, frees;

bool in_pool(const void* p) {
  return static_cast<const char*>(p) >= pool && static_cast<const char*>(p) < pool + sizeof pool;
}

void* take(std::size_t n, std::size_t alignment) {
  const std::size_t at = (used + alignment - 1) & ~(alignment - 1);
  if (n > limit || at + n > limit) {
    errno = ENOMEM;
    return nullptr;
  }
  used = at + n;
  return pool + at;
}

}  // namespace

extern "C" {
void* malloc(std::size_t n) noexcept {
  mallocs = mallocs + 1;
  return n == 0 ? nullptr : take(n, 16);  // as it may
}
void* calloc(std::size_t count, std::size_t size) noexcept {
  void* const p = take(count * size, 16);
  return p == nullptr ? p : std::memset(p, 0, count * size);
}
void* realloc(void* p, std::size_t n) noexcept {
  void* const fresh = take(n, 16);
  return p != nullptr && fresh != nullptr ? std::memcpy(fresh, p, n) : fresh;
}
void free(void* p) noexcept {
  if (p != nullptr && !in_pool(p)) std::abort();
  frees = frees + 1;
}
#ifdef OWN_ALIGNED
void* aligned_alloc(std::size_t alignment, std::size_t n) noexcept {
  aligned_mallocs = aligned_mallocs + 1;
  return n % alignment == 0 ? take(n, alignment) : nullptr;  // C11's demand
}
#endif
}

namespace {

#ifdef OWN_ALIGNED
constexpr bool kOwnAligned = true;
#else
constexpr bool kOwnAligned = false;
#endif
constexpr std::align_val_t kAlignment{256};
int failures;

void expect(bool right, const char* what) {
  if (right) return;
  ++failures;
  std::fprintf(stderr, "own_malloc_operators: %s\n", what);
}

// How often `f` calls the counted function.
template <class F>
int calls(volatile int& counter, F f) {
  const int before = counter;
  f();
  return counter - before;
}

void* volatile block;  // volatile: or the compiler folds a new and its delete

void plain_forms() {
  const auto goes_through = [](auto allocate, auto release, const char* what) {
    for (const std::size_t n : {0u, 1u, 100u, 2000u, 40000u, 1000000u}) {
      if (n == 1000000) used = 0;  // the largest one has room by itself
      expect(calls(mallocs, [&] { block = allocate(n); }) == 1 && in_pool(block), what);
      expect(calls(frees, [&] { release(block); }) == 1, what);
    }
  };
  goes_through([](std::size_t n) { return ::operator new(n); },
               [](void* p) { ::operator delete(p); }, "new");
  goes_through([](std::size_t n) { return ::operator new[](n); },
               [](void* p) { ::operator delete[](p); }, "new[]");
  goes_through([](std::size_t n) { return ::operator new(n, std::nothrow); },
               [](void* p) { ::operator delete(p, std::nothrow); }, "nothrow new");
  goes_through([](std::size_t n) { return ::operator new[](n, std::nothrow); },
               [](void* p) { ::operator delete[](p, std::size_t{1}); }, "nothrow new[]");
}

void aligned_forms() {
  const auto goes_through = [](auto allocate, auto release, const char* what) {
    for (const std::size_t n : {0u, 1u, 100u, 2000u, 40000u}) {
      const int taken = calls(aligned_mallocs, [&] { block = allocate(n); });
      expect(taken == (kOwnAligned ? 1 : 0) && in_pool(block) == kOwnAligned &&
                 reinterpret_cast<std::uintptr_t>(block) % 256 == 0,
             what);
      if (!kOwnAligned) expect(sp_owns(block) == 1, what);
      expect(calls(frees, [&] { release(block); }) == (kOwnAligned ? 1 : 0), what);
    }
  };
  goes_through([](std::size_t n) { return ::operator new(n, kAlignment); },
               [](void* p) { ::operator delete(p, kAlignment); }, "aligned new");
  goes_through([](std::size_t n) { return ::operator new[](n, kAlignment); },
               [](void* p) { ::operator delete[](p, std::size_t{1}, kAlignment); },
               "aligned new[]");
  goes_through([](std::size_t n) { return ::operator new(n, kAlignment, std::nothrow); },
               [](void* p) { ::operator delete(p, kAlignment, std::nothrow); },
               "aligned nothrow new");
}

int handler_calls;
void give_up_at_third_call() {
  if (++handler_calls == 3) std::set_new_handler(nullptr);
}

template <class Allocate>
void out_of_memory(Allocate allocate, bool throws, const char* what) {
  handler_calls = 0;
  std::set_new_handler(give_up_at_third_call);
  errno = 0;
  bool thrown = false;
  try {
    block = allocate();
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  expect(thrown == throws && (thrown || block == nullptr), what);
  expect(handler_calls == 3 && errno == ENOMEM, what);
}

volatile std::size_t too_much = PTRDIFF_MAX;

}  // namespace

int main() {
  if (&sp_owns == nullptr) {
    std::fprintf(stderr, "own_malloc_operators: the library is not there\n");
    return 2;
  }
  plain_forms();
  aligned_forms();
  out_of_memory([] { return ::operator new(too_much); }, true, "new of too much");
  out_of_memory([] { return ::operator new(too_much, std::nothrow); }, false, "nothrow, too much");
  out_of_memory([] { return ::operator new(too_much, kAlignment); }, true, "aligned, too much");
  ::operator delete(nullptr);
  return failures == 0 ? 0 : 1;
}
