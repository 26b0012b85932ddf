// Calls each form of operator new and delete in a program that has some of them itself
// (own_forms.cpp), and expects that those of its own are called, each once, by which C++ defines
// the form, and no others. What ends in none of its own is the library's. Prints what is not so;
// exit code 0 when all is.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "forms.hpp"

extern "C" [[gnu::weak]] int sp_owns(const void* address);  // weak: the library may be preloaded

namespace {

constexpr std::size_t kBytes = 200;
constexpr std::align_val_t kAlignment{256};
int failures;

bool own(int form) {
  return (own_forms >> form & 1) != 0;
}
Form base_of(int form) {
  while (kDefinedBy[form] != form) form = kDefinedBy[form];
  return static_cast<Form>(form);
}

void* volatile result;  // volatile: or the compiler folds a new and its delete

void* allocate(int form, std::size_t n) {
  switch (form) {
    case kNew:
      return ::operator new(n);
    case kNewArray:
      return ::operator new[](n);
    case kNewNothrow:
      return ::operator new(n, std::nothrow);
    case kNewArrayNothrow:
      return ::operator new[](n, std::nothrow);
    case kNewAligned:
      return ::operator new(n, kAlignment);
    case kNewArrayAligned:
      return ::operator new[](n, kAlignment);
    case kNewAlignedNothrow:
      return ::operator new(n, kAlignment, std::nothrow);
    default:
      return ::operator new[](n, kAlignment, std::nothrow);
  }
}

void release(int form, void* p) {
  switch (form) {
    case kDelete:
      return ::operator delete(p);
    case kDeleteArray:
      return ::operator delete[](p);
    case kDeleteSized:
      return ::operator delete(p, kBytes);
    case kDeleteArraySized:
      return ::operator delete[](p, kBytes);
    case kDeleteNothrow:
      return ::operator delete(p, std::nothrow);
    case kDeleteArrayNothrow:
      return ::operator delete[](p, std::nothrow);
    case kDeleteAligned:
      return ::operator delete(p, kAlignment);
    case kDeleteArrayAligned:
      return ::operator delete[](p, kAlignment);
    case kDeleteSizedAligned:
      return ::operator delete(p, kBytes, kAlignment);
    case kDeleteArraySizedAligned:
      return ::operator delete[](p, kBytes, kAlignment);
    case kDeleteAlignedNothrow:
      return ::operator delete(p, kAlignment, std::nothrow);
    default:
      return ::operator delete[](p, kAlignment, std::nothrow);
  }
}

// The program's own forms on the way from this one to its base, and those only.
void expect_own_calls(int called) {
  int expected[kForms] = {};
  for (int form = called;; form = kDefinedBy[form]) {
    expected[form] = own(form) ? 1 : 0;
    if (kDefinedBy[form] == form) break;
  }
  for (int form = 0; form < kForms; ++form) {
    if (own_calls[form] != expected[form]) {
      ++failures;
      std::fprintf(stderr, "form %d called form %d of the program %d times, not %d\n", called, form,
                   own_calls[form], expected[form]);
    }
    own_calls[form] = 0;
  }
}

void expect_home(int form, const void* p) {
  const bool right = own(base_of(form)) ? in_own_pool(p) : sp_owns(p) == 1;
  const bool aligned =
      base_of(form) != kNewAligned ||
      reinterpret_cast<std::uintptr_t>(p) % static_cast<std::size_t>(kAlignment) == 0;
  if (right && aligned) return;
  ++failures;
  std::fprintf(stderr, "form %d returned %p: of somebody else, or not aligned\n", form, p);
}

bool is_nothrow(int form) {
  return form == kNewNothrow || form == kNewArrayNothrow || form == kNewAlignedNothrow ||
         form == kNewArrayAlignedNothrow;
}

// The program's own form throws: out of the forms that throw, into the null of those that do not.
void expect_throw(int form) {
  bool threw = false;
  try {
    result = allocate(form, kOwnRefuse);
  } catch (const std::bad_alloc&) {
    threw = true;
  }
  if (threw == is_nothrow(form) || (!threw && result != nullptr)) {
    ++failures;
    std::fprintf(stderr, "form %d %s where the program's own throws\n", form,
                 threw ? "throws" : "does not throw");
  }
}

}  // namespace

int main() {
  // With every operator its own a program would refer to nothing of the library
  result = std::malloc(1);
  std::free(result);
  if (sp_owns == nullptr) {
    std::fprintf(stderr, "the library is not in this process\n");
    return 2;
  }
  for (int round = 0; round < 3; ++round) {  // the first call of a form may be another one's
    for (int form = kNew; form < kDelete; ++form) {
      for (int& calls : own_calls) calls = 0;
      result = allocate(form, kBytes);
      void* p = result;
      expect_own_calls(form);
      expect_home(form, p);
      release(base_of(form) == kNew ? kDelete : kDeleteAligned, p);
      if (own(base_of(form))) expect_throw(form);
    }
    for (int form = kDelete; form < kForms; ++form) {
      result = allocate(base_of(form) == kDelete ? kNew : kNewAligned, kBytes);
      for (int& calls : own_calls) calls = 0;
      release(form, result);
      expect_own_calls(form);
    }
  }
  return failures == 0 ? 0 : 1;
}
