// The forms of operator new and delete that the program has itself: those in OWN_FORMS, a bit
// each. Base forms of new take from a pool of the program's own, which no allocator knows;
// the others do as C++ says.
#include <cstdint>
#include <cstdlib>
#include <new>

#include "forms.hpp"

const unsigned own_forms = OWN_FORMS;
int own_calls[kForms];

namespace {

constexpr std::size_t kPoolBytes = 1 << 20;
alignas(4096) char pool[kPoolBytes];
std::size_t used;

[[maybe_unused]] void* take(Form form, std::size_t n, std::size_t alignment = 16) {
  ++own_calls[form];
  if (n == kOwnRefuse) throw std::bad_alloc();
  used = (used + alignment - 1) / alignment * alignment;
  void* p = pool + used;
  used += n;
  if (used > kPoolBytes) abort();
  return p;
}
[[maybe_unused]] void drop(Form form, void* p) {
  ++own_calls[form];
  if (!in_own_pool(p)) abort();
}
template <class Call>
[[maybe_unused]] auto counted(Form form, Call call) {
  ++own_calls[form];
  return call();
}
template <class Call>
[[maybe_unused]] void* caught(Form form, Call call) noexcept {
  ++own_calls[form];
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

bool in_own_pool(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p),
             begin = reinterpret_cast<std::uintptr_t>(pool);
  return address >= begin && address < begin + kPoolBytes;
}

#define OWN(form) ((OWN_FORMS) >> (form) & 1)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wsized-deallocation"
#endif

// The preprocessor knows no enumerators: the numbers are those of forms.hpp, compared below.
#if OWN(0)
void* operator new(std::size_t n) {
  return take(kNew, n);
}
#endif
#if OWN(1)
void* operator new[](std::size_t n) {
  return counted(kNewArray, [=] { return ::operator new(n); });
}
#endif
#if OWN(2)
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return caught(kNewNothrow, [=] { return ::operator new(n); });
}
#endif
#if OWN(3)
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  return caught(kNewArrayNothrow, [=] { return ::operator new[](n); });
}
#endif
#if OWN(4)
void* operator new(std::size_t n, std::align_val_t a) {
  return take(kNewAligned, n, static_cast<std::size_t>(a));
}
#endif
#if OWN(5)
void* operator new[](std::size_t n, std::align_val_t a) {
  return counted(kNewArrayAligned, [=] { return ::operator new(n, a); });
}
#endif
#if OWN(6)
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return caught(kNewAlignedNothrow, [=] { return ::operator new(n, a); });
}
#endif
#if OWN(7)
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return caught(kNewArrayAlignedNothrow, [=] { return ::operator new[](n, a); });
}
#endif
#if OWN(8)
void operator delete(void* p) noexcept {
  drop(kDelete, p);
}
#endif
#if OWN(9)
void operator delete[](void* p) noexcept {
  counted(kDeleteArray, [=] { ::operator delete(p); });
}
#endif
#if OWN(10)
void operator delete(void* p, std::size_t) noexcept {
  counted(kDeleteSized, [=] { ::operator delete(p); });
}
#endif
#if OWN(11)
void operator delete[](void* p, std::size_t) noexcept {
  counted(kDeleteArraySized, [=] { ::operator delete[](p); });
}
#endif
#if OWN(12)
void operator delete(void* p, const std::nothrow_t&) noexcept {
  counted(kDeleteNothrow, [=] { ::operator delete(p); });
}
#endif
#if OWN(13)
void operator delete[](void* p, const std::nothrow_t&) noexcept {
  counted(kDeleteArrayNothrow, [=] { ::operator delete[](p); });
}
#endif
#if OWN(14)
void operator delete(void* p, std::align_val_t) noexcept {
  drop(kDeleteAligned, p);
}
#endif
#if OWN(15)
void operator delete[](void* p, std::align_val_t a) noexcept {
  counted(kDeleteArrayAligned, [=] { ::operator delete(p, a); });
}
#endif
#if OWN(16)
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  counted(kDeleteSizedAligned, [=] { ::operator delete(p, a); });
}
#endif
#if OWN(17)
void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept {
  counted(kDeleteArraySizedAligned, [=] { ::operator delete[](p, a); });
}
#endif
#if OWN(18)
void operator delete(void* p, std::align_val_t a, const std::nothrow_t&) noexcept {
  counted(kDeleteAlignedNothrow, [=] { ::operator delete(p, a); });
}
#endif
#if OWN(19)
void operator delete[](void* p, std::align_val_t a, const std::nothrow_t&) noexcept {
  counted(kDeleteArrayAlignedNothrow, [=] { ::operator delete[](p, a); });
}
#endif
static_assert(kNewNothrow == 2 && kNewAligned == 4 && kDelete == 8 && kDeleteSized == 10 &&
              kDeleteAligned == 14 && kDeleteArrayAlignedNothrow == 19);
