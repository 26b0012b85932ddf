// What the line that reports a misuse says of the address: block, span, state, thread.
#include "standard/description.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "sanitizers.hpp"
#include "standard/engine.hpp"
#include "standard/test_support.hpp"

namespace spanalloc::large {
namespace {

std::string hex(std::uintptr_t value) {
  char text[32];
  snprintf(text, sizeof text, "0x%zx", static_cast<std::size_t>(value));
  return text;
}
std::string hex(const void* p) {
  return hex(address_of(p));
}
// Of a span: its number and where it begins, as the line has them.
std::string span_of(const void* p) {
  const auto span = E::pages.span_of(E::pages.any_slice_at(address_of(p)));
  return "span " + std::to_string(index_of(span.number)) + " at " +
         hex(E::pages.address(span.number));
}
// As gdb has it. (Under a sanitizer it is some number: os::pthread_of.)
std::string this_thread() {
  const auto self = static_cast<std::uintptr_t>(pthread_self());
  return test::kUnderAsan || test::kUnderTsan ? "" : "thread " + hex(self);
}
void twice(void* p) {
  E::deallocate(p);
  E::deallocate(p);
}

TEST(StandardDescription, OfABlockOfTheCallingThread) {
  in_fresh_process([] {
    std::vector<char*> blocks;
    for (unsigned i = 0; i < 8; ++i) blocks.push_back(static_cast<char*>(E::allocate(40)));
    char* const p = blocks[3];
    expect_named([=] { twice(p); }, "double free of " + hex(p) + " (block of 48 bytes; " +
                                        span_of(p) + ": owned, " + this_thread());
    expect_named([=] { twice(p); }, " (this one))\n");
    expect_named([=] { E::deallocate(p + 16); }, "not the start of a live block: " + hex(p + 16) +
                                                     " (inside the block of 48 bytes at " + hex(p) +
                                                     "; " + span_of(p));
    for (char* block : blocks) E::deallocate(block);
  });
}

TEST(StandardDescription, OfABlockOfAnotherThread) {
  in_fresh_process([] {
    char* const p = static_cast<char*>(E::allocate(3000));
    const std::string owner = ": owned, " + this_thread();
    expect_named([=] { std::thread([=] { E::deallocate(p + 16); }).join(); },
                 "(inside the block of 3072 bytes at " + hex(p) + "; " + span_of(p) + owner);
    const std::string said =
        last_words([=] { std::thread([=] { E::deallocate(p + 16); }).join(); });
    EXPECT_EQ(said.find("this one"), std::string::npos) << said;
    E::deallocate(p);
  });
}

TEST(StandardDescription, OfAThreadThatHasEnded) {
  in_fresh_process([] {
    std::vector<char*> blocks(20);
    std::thread([&] {
      for (char*& p : blocks) p = static_cast<char*>(E::allocate(400));
    }).join();
    char* const p = blocks[10];
    expect_named([=] { E::deallocate(p + 32); }, "(inside the block of 400 bytes at " + hex(p) +
                                                     "; " + span_of(p) + ": abandoned)\n");
    for (char* block : blocks) E::deallocate(block);
  });
}

TEST(StandardDescription, OfLargeBlocks) {
  in_fresh_process([] {
    char* const p = static_cast<char*>(E::allocate(100'000));
    const std::string bytes = std::to_string(E::usable_size(p));
    expect_named([=] { E::deallocate(p + 64); }, "(inside the block of " + bytes + " bytes at " +
                                                     hex(p) + "; " + span_of(p) + ": in use)\n");
    expect_named([=] { twice(p); }, hex(p) + " (block of " + bytes + " bytes; " + span_of(p) +
                                        ": free, cached, " + this_thread());
    // Of the slices behind its first one the records say what was there before.
    expect_named([=] { E::deallocate(p + 80'000); }, "free, or inside a large block)\n");
    E::deallocate(p);
  });
}

TEST(StandardDescription, OfAnAddressThatIsNoHeapsThereIsNone) {
  in_fresh_process([] {
    E::deallocate(E::allocate(100));
    static char foreign[64];
    expect_named([] { E::deallocate(foreign + 16); },
                 "did not return: " + hex(foreign + 16) + "\n");
  });
}

// The first address of a span with blocks of all its bytes: no block is to blame.
TEST(StandardDescription, OfASpanAsAWhole) {
  in_fresh_process([] {
    void* const p = E::allocate(256);
    const auto span = E::pages.span_of(E::pages.any_slice_at(address_of(p)));
    expect_named(
        [=] { E::pages.corrupted(span); },
        "in the span at " + hex(E::pages.address(span.number)) + " (" + span_of(p) + ": owned, ");
    E::deallocate(p);
  });
}

TEST(StandardDescription, OfADamagedSpan) {
  in_fresh_process([] {
    char* const p = static_cast<char*>(E::allocate(400));
    E::pages.span_of(E::pages.any_slice_at(address_of(p)))->set_withdrawn(true);
    expect_named([=] { E::deallocate(p + 32); }, ": withdrawn, " + this_thread());
  });
}

// What a free span held, and what the records of slices inside a large block say.
TEST(StandardDescription, OfABlockThatWas) {
  in_fresh_process([] {
    std::vector<char*> blocks(2'000);
    for (char*& p : blocks) p = static_cast<char*>(E::allocate(400));
    for (char* p : blocks) E::deallocate(p);
    char* was = nullptr;
    for (char* p : blocks) {
      const auto span = E::pages.span_of(E::pages.any_slice_at(address_of(p)));
      if (span->load_word().state() == standard::SpanState::kFree) was = p;
    }
    ASSERT_NE(was, nullptr);
    expect_named([=] { E::deallocate(was); }, hex(was) + " (was a block of 400 bytes; " +
                                                  span_of(was) + ": free, or inside a large block");
  });
}

// A free block that is overwritten takes its list with it; the span is the thread's all the same.
TEST(StandardDescription, OfAListThatIsDamaged) {
  in_fresh_process([] {
    std::vector<char*> blocks(200);
    for (char*& p : blocks) p = static_cast<char*>(E::allocate(40));
    char* const p = blocks[77];
    expect_named(
        [=] {
          E::deallocate(p);
          *reinterpret_cast<std::uint64_t*>(p) = 0x4141414141414141;
          for (unsigned i = 0; i < 5000; ++i) E::allocate(40);
        },
        "at " + hex(p) + " (block of 48 bytes; " + span_of(p) + ": owned, ");
    for (char* block : blocks) E::deallocate(block);
  });
}

}  // namespace
}  // namespace spanalloc::large
