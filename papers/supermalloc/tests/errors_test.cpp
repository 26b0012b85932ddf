// Pointers that are no objects, objects freed twice, and free objects that were written to: named,
// whichever cache has them.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "papers/supermalloc/tests/test_support.hpp"
#include "sanitizers.hpp"

namespace spanalloc {
namespace {

using supermalloc::Bin;
using supermalloc::FolioChunk;
using supermalloc::kChunk;
using test::allocate_many;
using test::checked;
using test::free_all;
using Bins = test::SupermallocBins;

class SupermallocErrorsDeathTest : public test::SupermallocTest {
 protected:
  test::OwnHeap<> heap_;
};

#define EXPECT_NAMED(statement, text) \
  EXPECT_EXIT(statement, ::testing::KilledBySignal(SIGABRT), text)

TEST_F(SupermallocErrorsDeathTest, PointersIntoSmallObjects) {
  for (const std::size_t n : {16u, 112u, 1000u, 14000u}) {
    auto* p = static_cast<char*>(heap_->allocate(n));
    const Bin& bin = Bins::of(Bins::for_folios(n));
    for (const std::size_t offset : {std::size_t{1}, std::size_t{8}, std::size_t{bin.size} - 1}) {
      EXPECT_NAMED(heap_->deallocate(p + offset), "^spanalloc: pointer is no object in use");
      EXPECT_NAMED(heap_->usable_size(p + offset), "^spanalloc: pointer is no object in use");
      EXPECT_NAMED(heap_->resize(p + offset, 10), "^spanalloc: pointer is no object in use");
    }
    EXPECT_NAMED(heap_->deallocate(p + 8), "\\(inside the block of " + std::to_string(bin.size) +
                                               " bytes at 0x[0-9a-f]+; chunk [0-9]+ at "
                                               "0x[0-9a-f]+: objects of one size\\)");
    // The chunk's bookkeeping, and its wilderness.
    char* chunk = static_cast<char*>(pointer_to(align_down(address_of(p), kChunk)));
    EXPECT_NAMED(heap_->deallocate(chunk), "no object in use");
    EXPECT_NAMED(heap_->deallocate(chunk + bin.size), "no object in use");
    EXPECT_NAMED(heap_->deallocate(FolioChunk::of(p, bin).object(bin.objects - 1)),
                 "no object in use");
    EXPECT_NAMED(heap_->deallocate(chunk + kChunk - 16), "no object in use");
    char text[64];
    std::snprintf(text, sizeof text, ": 0x%zx \\(", address_of(p) + 1);
    EXPECT_NAMED(heap_->deallocate(p + 1), text);
    heap_->deallocate(p);
  }
}

TEST_F(SupermallocErrorsDeathTest, PointersOfNobodyAndOfOtherHeaps) {
  test::OwnHeap<> other;
  void* in_other = other->allocate(100);
  void* large_in_other = other->allocate(100'000);
  void* huge_in_other = other->allocate(3 * kMiB);
  long on_stack[2] = {};
  static long in_data[2];
  // Before the heap has started, and after.
  for (int round = 0; round < 2; ++round) {
    for (void* p :
         {in_other, large_in_other, huge_in_other, static_cast<void*>(on_stack),
          static_cast<void*>(in_data), pointer_to(kChunk), pointer_to(~std::uintptr_t{0} << 4)}) {
      EXPECT_FALSE(heap_->owns(p));
      EXPECT_NAMED(heap_->deallocate(p), "^spanalloc: pointer is none of this heap's");
      EXPECT_NAMED(heap_->usable_size(p), "^spanalloc: pointer is none of this heap's");
      EXPECT_NAMED(heap_->resize(p, 10), "^spanalloc: pointer is none of this heap's");
    }
    heap_->deallocate(nullptr);
    EXPECT_EQ(heap_->usable_size(nullptr), 0u);
    heap_->deallocate(heap_->allocate(100));
  }
  // The arena's first chunk, which is never used, and one that is not open yet.
  const std::uintptr_t first = heap_->chunks().address(1);
  EXPECT_NAMED(heap_->deallocate(pointer_to(first - kChunk)), "none of this heap's");
  EXPECT_NAMED(heap_->deallocate(pointer_to(first + kGiB)), "none of this heap's");
}

TEST_F(SupermallocErrorsDeathTest, PointersIntoHugeObjects) {
  auto* p = static_cast<char*>(heap_->allocate(5 * kMiB));
  for (const std::size_t offset :
       {std::size_t{1}, std::size_t{16}, std::size_t{4096}, kChunk, 2 * kChunk}) {
    EXPECT_NAMED(heap_->deallocate(p + offset),
                 "^spanalloc: pointer is none of this heap's, or not the start");
    EXPECT_NAMED(heap_->usable_size(p + offset), "not the start of an object");
  }
  heap_->deallocate(p);
  EXPECT_NAMED(heap_->deallocate(p), "^spanalloc: memory is free already");
  EXPECT_NAMED(heap_->usable_size(p), "^spanalloc: memory is free already");
  EXPECT_NAMED(heap_->resize(p, 100), "^spanalloc: memory is free already");
}

// Wherever a free has taken it.
TEST_F(SupermallocErrorsDeathTest, ASecondFreeIsNamed) {
  const std::size_t list = Bins::of(Bins::for_folios(1000)).list_objects;
  std::vector<void*> objects = allocate_many(heap_, 3 * list, 1000);
  heap_->trim();
  std::vector<void*> freed = objects;
  free_all(heap_, objects);
  // The first third is the CPU's, the second one waits, the third one is in the list that serves.
  for (const std::size_t i :
       {std::size_t{0}, list - 1, list, 2 * list - 1, 2 * list, 3 * list - 1}) {
    EXPECT_NAMED(heap_->deallocate(freed[i]), "^spanalloc: memory is free already");
    EXPECT_NAMED(heap_->usable_size(freed[i]), "^spanalloc: memory is free already");
    EXPECT_NAMED(heap_->resize(freed[i], 10), "^spanalloc: memory is free already");
    EXPECT_NAMED(std::thread([&] { heap_->deallocate(freed[i]); }).join(),
                 "^spanalloc: memory is free already");
  }
  heap_->trim();
  // In its folio: of those nobody knows whether they ever were out.
  for (const std::size_t i : {std::size_t{0}, list, 3 * list - 1}) {
    EXPECT_NAMED(heap_->deallocate(freed[i]), "^spanalloc: pointer is no object in use");
  }
}

TEST_F(SupermallocErrorsDeathTest, WritesAfterFreeAreNamedBeforeTheObjectIsHandedOut) {
  if (test::kUnderAsan)
    GTEST_SKIP() << "free objects are poisoned: the sanitizer reports the write itself";
  const std::size_t list = Bins::of(Bins::for_folios(1000)).list_objects;
  std::vector<void*> objects = allocate_many(heap_, 3 * list, 1000);
  heap_->trim();
  std::vector<void*> freed = objects;
  free_all(heap_, objects);
  const auto allocate_all = [&] {
    for (std::size_t i = 0; i < 3 * list; ++i) heap_->allocate(1000);
  };
  for (const std::size_t i :
       {std::size_t{0}, list - 1, list, 2 * list - 1, 2 * list, 3 * list - 1}) {
    for (const std::size_t offset : {0u, 8u}) {
      char* p = static_cast<char*>(freed[i]) + offset;
      EXPECT_NAMED((std::memset(p, 'A', 8), allocate_all()), "^spanalloc: free object overwritten");
      EXPECT_NAMED((std::memset(p, 'A', 1), allocate_all()), "^spanalloc: free object overwritten");
      EXPECT_NAMED((std::memset(p, 'A', 8), heap_->trim()), "^spanalloc: free object overwritten");
    }
    // Zeros are no seal, and a copy of another free object is none.
    EXPECT_NAMED((std::memset(freed[i], 0, 16), allocate_all()),
                 "^spanalloc: free object overwritten");
    EXPECT_NAMED((std::memset(freed[i], 0, 16), heap_->trim()),
                 "^spanalloc: free object overwritten");
  }
  // The address is that of the object that was written to.
  char text[80];
  std::snprintf(text, sizeof text, "free object overwritten.*: 0x%zx \\(",
                address_of(freed.back()));
  EXPECT_NAMED((std::memset(freed.back(), 'A', 8), heap_->allocate(1000)), text);
  // What lies behind the first two words is nobody's affair.
  for (void* p : freed) std::memset(static_cast<char*>(p) + 16, 'A', 984);
  allocate_all();
  checked(heap_);
}

// Zeros, the last bytes of a free object, or whatever: an object in use never looks free.
TEST_F(SupermallocErrorsDeathTest, ObjectsInUseDoNotLookFree) {
  // As it was left when it was free, but for the seal.
  for (int i = 0; i < 1000; ++i) heap_->deallocate(heap_->allocate(64));
  void* words[2] = {};
  void* p = heap_->allocate(64);
  heap_->deallocate(p);
  p = heap_->allocate(64);
  std::memcpy(words, p, sizeof words);
  heap_->deallocate(p);
  void* objects[3];
  for (void*& q : objects) q = heap_->allocate(64);
  std::memset(objects[0], 0, 64);
  std::memset(objects[1], 0xFF, 64);
  std::memcpy(objects[2], words, sizeof words);
  for (void* q : objects) heap_->deallocate(q);
  checked(heap_);
}

}  // namespace
}  // namespace spanalloc
