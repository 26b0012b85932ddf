// Every form of operator new and delete, in a C++ program that has the library behind them
// (linked, static or preloaded).
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <spanalloc/spanalloc.h>
#include <spanalloc/memory_resource.hpp>

#include <cerrno>
#include <cstdint>
#include <list>
#include <map>
#include <memory_resource>
#include <new>
#include <string>
#include <vector>

// Weak, so that the program also links without the library and finds it preloaded.
#pragma weak sp_malloc
#pragma weak sp_calloc
#pragma weak sp_realloc
#pragma weak sp_free
#pragma weak sp_aligned_alloc
#pragma weak sp_posix_memalign
#pragma weak sp_usable_size
#pragma weak sp_owns
#pragma weak sp_trim
#pragma weak sp_stats
#pragma weak sp_version
#pragma weak sp_engine_name
#pragma weak sp_heap_create
#pragma weak sp_heap_destroy
#pragma weak sp_heap_reset
#pragma weak sp_heap_malloc
#pragma weak sp_heap_aligned_alloc
#pragma weak sp_heap_free
#pragma weak sp_heap_owns
#pragma weak sp_heap_stats

namespace {

// Refused by arithmetic nowhere, by memory everywhere
volatile std::size_t too_much = PTRDIFF_MAX;
volatile std::size_t above_all = SIZE_MAX / 2 + 100;  // volatile: or the compiler warns and folds

bool ours(void* p, std::size_t alignment = 16) {
  return p != nullptr && sp_owns(p) == 1 && reinterpret_cast<std::uintptr_t>(p) % alignment == 0;
}

class Operators : public ::testing::Test {
 protected:
  void SetUp() override {
    if (sp_engine_name == nullptr) FAIL() << "the library is not in this process";
  }
  void TearDown() override { std::set_new_handler(nullptr); }
};

TEST_F(Operators, PlainSizedAndArrayForms) {
  constexpr std::size_t kSizes[] = {0, 1, 16, 100, 513, 5000, 100000, 3000000};
  for (std::size_t n : kSizes) {
    void* p = ::operator new(n);
    EXPECT_TRUE(ours(p));
    ::operator delete(p);
    p = ::operator new(n);
    ::operator delete(p, n);
    p = ::operator new[](n);
    EXPECT_TRUE(ours(p));
    ::operator delete[](p);
    p = ::operator new[](n);
    ::operator delete[](p, n);
    p = ::operator new(n, std::nothrow);
    EXPECT_TRUE(ours(p));
    ::operator delete(p, std::nothrow);
    p = ::operator new[](n, std::nothrow);
    EXPECT_TRUE(ours(p));
    ::operator delete[](p, std::nothrow);
  }
}

TEST_F(Operators, AlignedForms) {
  for (std::size_t alignment = 1; alignment <= 1048576; alignment *= 4) {
    const std::align_val_t a{alignment};
    for (std::size_t n :
         {std::size_t{1}, std::size_t{100}, std::size_t{5000}, std::size_t{100000}}) {
      void* p = ::operator new(n, a);
      EXPECT_TRUE(ours(p, alignment));
      ::operator delete(p, a);
      p = ::operator new(n, a);
      ::operator delete(p, n, a);
      p = ::operator new[](n, a);
      EXPECT_TRUE(ours(p, alignment));
      ::operator delete[](p, a);
      p = ::operator new[](n, a);
      ::operator delete[](p, n, a);
      p = ::operator new(n, a, std::nothrow);
      EXPECT_TRUE(ours(p, alignment));
      ::operator delete(p, a, std::nothrow);
      p = ::operator new[](n, a, std::nothrow);
      EXPECT_TRUE(ours(p, alignment));
      ::operator delete[](p, a, std::nothrow);
    }
  }
}

TEST_F(Operators, DeletingNullDoesNothing) {
  void* volatile none = nullptr;
  ::operator delete(none);
  ::operator delete(none, std::size_t{8});
  ::operator delete[](none, std::align_val_t{64});
}

TEST_F(Operators, ThrowBadAlloc) {
  constexpr std::align_val_t a{64};
  for (std::size_t n : {std::size_t{too_much}, std::size_t{above_all}, SIZE_MAX}) {
    EXPECT_THROW((void)::operator new(n), std::bad_alloc);
    EXPECT_THROW((void)::operator new[](n), std::bad_alloc);
    EXPECT_THROW((void)::operator new(n, a), std::bad_alloc);
    EXPECT_THROW((void)::operator new[](n, a), std::bad_alloc);
    EXPECT_EQ(::operator new(n, std::nothrow), nullptr);
    EXPECT_EQ(::operator new[](n, std::nothrow), nullptr);
    EXPECT_EQ(::operator new(n, a, std::nothrow), nullptr);
    EXPECT_EQ(::operator new[](n, a, std::nothrow), nullptr);
  }
}

// As behind libstdc++'s, whose malloc has said so.
TEST_F(Operators, SetErrnoWhereMemoryIsOut) {
  constexpr std::align_val_t a{64};
  const auto errno_of = [](auto&& allocate) {
    errno = 0;
    allocate();
    return errno;
  };
  EXPECT_EQ(errno_of([] { EXPECT_THROW((void)::operator new(too_much), std::bad_alloc); }), ENOMEM);
  EXPECT_EQ(errno_of([] { EXPECT_THROW((void)::operator new(too_much, a), std::bad_alloc); }),
            ENOMEM);
  EXPECT_EQ(errno_of([] { EXPECT_EQ(::operator new(too_much, std::nothrow), nullptr); }), ENOMEM);
  EXPECT_EQ(errno_of([] { EXPECT_EQ(::operator new[](too_much, a, std::nothrow), nullptr); }),
            ENOMEM);
  EXPECT_EQ(errno_of([] { ::operator delete(::operator new(100)); }), 0);
}

// Behind a library that wraps malloc and free (wrapping_malloc.c) both are seen.
TEST_F(Operators, GoThroughAWrapper) {
  const auto* wrapped = static_cast<const long*>(dlsym(RTLD_DEFAULT, "wrapped_calls"));
  const auto seen = [&] { return wrapped == nullptr ? 0 : *wrapped; };
  const auto pair = [&](auto allocate, auto release) {
    const long before = seen();
    release(allocate());
    return seen() - before;
  };
  const long both = wrapped == nullptr ? 0 : 2;
  EXPECT_EQ(pair([] { return ::operator new(100); }, [](void* p) { ::operator delete(p); }), both);
  EXPECT_EQ(pair([] { return ::operator new[](9000, std::nothrow); },
                 [](void* p) { ::operator delete[](p); }),
            both);
}

int handler_calls = 0;

void give_up_at_third_call() {
  if (++handler_calls == 3) std::set_new_handler(nullptr);
}

TEST_F(Operators, NewHandlerIsCalledUntilThereIsNone) {
  constexpr std::align_val_t a{64};
  const auto calls_of = [](auto&& allocate) {
    handler_calls = 0;
    std::set_new_handler(give_up_at_third_call);
    allocate();
    return handler_calls;
  };
  EXPECT_EQ(calls_of([] { EXPECT_THROW((void)::operator new(too_much), std::bad_alloc); }), 3);
  EXPECT_EQ(calls_of([] { EXPECT_THROW((void)::operator new(too_much, a), std::bad_alloc); }), 3);
  EXPECT_EQ(calls_of([] { EXPECT_EQ(::operator new(too_much, std::nothrow), nullptr); }), 3);
  EXPECT_EQ(calls_of([] { EXPECT_EQ(::operator new(too_much, a, std::nothrow), nullptr); }), 3);
}

struct OwnException {};
void throw_own() {
  throw OwnException{};
}

TEST_F(Operators, WhatTheHandlerThrowsComesOut) {
  std::set_new_handler(throw_own);
  EXPECT_THROW((void)::operator new(too_much), OwnException);
  EXPECT_THROW((void)::operator new[](too_much), OwnException);
  EXPECT_THROW((void)::operator new(too_much, std::align_val_t{64}), OwnException);
}

TEST_F(Operators, NothrowFormsReturnNullWhenTheHandlerThrows) {
  std::set_new_handler(throw_own);
  EXPECT_EQ(::operator new(too_much, std::nothrow), nullptr);
  EXPECT_EQ(::operator new[](too_much, std::nothrow), nullptr);
  EXPECT_EQ(::operator new(too_much, std::align_val_t{64}, std::nothrow), nullptr);
}

TEST_F(Operators, ContainersUseThem) {
  std::map<int, std::string> map;
  for (int i = 0; i < 10000; ++i) map[i] = std::string(static_cast<std::size_t>(i % 300), 'x');
  EXPECT_TRUE(ours(&map[77], alignof(std::string)));
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(map[i].size(), static_cast<std::size_t>(i % 300));
}

TEST_F(Operators, MemoryResource) {
  std::pmr::memory_resource* resource = spanalloc::memory_resource();
  EXPECT_EQ(*resource, *spanalloc::memory_resource());
  EXPECT_NE(*resource, *std::pmr::new_delete_resource());
  std::pmr::vector<std::pmr::string> strings(resource);
  for (int i = 0; i < 1000; ++i) strings.emplace_back(static_cast<std::size_t>(i), 'y');
  EXPECT_TRUE(ours(strings.data()));
  EXPECT_TRUE(ours(strings[900].data()));
  void* p = resource->allocate(100, 4096);
  EXPECT_TRUE(ours(p, 4096));
  resource->deallocate(p, 100, 4096);
  EXPECT_THROW((void)resource->allocate(above_all), std::bad_alloc);
}

TEST_F(Operators, HeapResources) {
  spanalloc::OwnHeapResource own;
  spanalloc::OwnHeapResource other;
  spanalloc::HeapResource same(own.heap());
  EXPECT_TRUE(own == same);
  EXPECT_FALSE(own == other);
  EXPECT_FALSE(own == *spanalloc::memory_resource());
  {
    std::pmr::vector<std::pmr::string> strings(&own);
    for (int i = 0; i < 1000; ++i) strings.emplace_back(static_cast<std::size_t>(i), 'y');
    EXPECT_TRUE(ours(strings.data()));
    EXPECT_EQ(sp_heap_owns(own.heap(), strings[900].data()), 1);
    EXPECT_EQ(sp_heap_owns(other.heap(), strings[900].data()), 0);
  }
  EXPECT_TRUE(ours(own.allocate(100, 4096), 4096));
  EXPECT_THROW((void)own.allocate(above_all), std::bad_alloc);
  own.release();
  sp_heap_statistics left{};
  sp_heap_stats(own.heap(), &left, sizeof left);
  EXPECT_EQ(left.used_blocks, 0u);

  spanalloc::OwnHeapResource small(1 << 16, "small");
  EXPECT_THROW((void)small.allocate(1 << 16), std::bad_alloc);
  EXPECT_THROW(spanalloc::OwnHeapResource(1), std::bad_alloc);
}

TEST_F(Operators, StlAllocator) {
  struct alignas(256) Wide {
    char bytes[256];
  };
  std::vector<Wide, spanalloc::Allocator<Wide>> wide(100);
  EXPECT_TRUE(ours(wide.data(), 256));
  std::list<int, spanalloc::Allocator<int>> list{1, 2, 3};
  EXPECT_TRUE(ours(&list.front(), alignof(int)));
  EXPECT_TRUE(spanalloc::Allocator<int>() == spanalloc::Allocator<Wide>());
  EXPECT_THROW((void)spanalloc::Allocator<Wide>().allocate(SIZE_MAX / 4),
               std::bad_array_new_length);
  EXPECT_THROW((void)spanalloc::Allocator<char>().allocate(too_much), std::bad_alloc);
}

}  // namespace
