// Adversaries that drive `standard` to the most memory that they can with blocks of up to 32 KiB,
// within a limit on what lives; and the bound of docs/architecture.md ("A bound"), which none of
// them may pass. Each prints what it has reached.
//
// MEMORY_BOUND_MIB: the limit; memory is some sixty times as much. MEMORY_BOUND_SEEDS: programs
// drawn. SPANALLOC_WRITE_DOCS=1 writes the tables of the bound.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "environment.hpp"
#include "memory_bound.hpp"
#include "owned_heap.hpp"
#include "random.hpp"
#include "sanitizers.hpp"
#include "seed_report.hpp"
#include "threads.hpp"

namespace spanalloc {
namespace {

using test::MemoryBound, test::Random;
using Classes = MemoryBound::Classes;

constexpr std::size_t kSmallest = 16, kLargest = Standard::kMaxSmall;
constexpr std::size_t kPage = MemoryBound::kPage;

std::size_t most_live() {
  const char* mib = std::getenv("MEMORY_BOUND_MIB");
  return (mib != nullptr ? std::strtoull(mib, nullptr, 10) : 2) * kMiB;
}

// RSS + page tables. (The counts of status may lag by some pages a core.)
std::size_t resident() {
  std::size_t kib = 0;
  for (const auto& [file, name] :
       {std::pair{"/proc/self/smaps_rollup", "Rss:"}, {"/proc/self/status", "VmPTE:"}}) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(name, 0) == 0)
        kib += std::strtoull(line.c_str() + std::string(name).size(), nullptr, 10);
    }
  }
  EXPECT_GT(kib, 0u);
  return kib * kKiB;
}

struct Block {
  char* memory;
  std::uint32_t size;

  std::uintptr_t begin() const { return address_of(memory); }
  std::uintptr_t end() const { return begin() + size; }
};

/// What an adversary has of the heap: never more than the limit.
class Program {
 public:
  Program(test::OwnedHeap<>& owned, std::size_t limit) : owned_(owned), limit_(limit) {
    // Resident before anything is measured.
    blocks.resize(limit / kSmallest);
    blocks.clear();
  }
  ~Program() {
    for (const Block& b : blocks) owned_.deallocate(b.memory);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  bool has_room(std::size_t size) const { return live_ + size <= limit_; }
  void take(std::size_t size) {
    auto* memory = static_cast<char*>(owned_.allocate(size));
    ASSERT_NE(memory, nullptr);
    for (std::size_t at = 0; at < size; at += kPage) memory[at] = 1;
    memory[size - 1] = 1;
    blocks.push_back({memory, static_cast<std::uint32_t>(size)});
    live_ += size;
    most_ = std::max(most_, live_);
  }
  void fill(std::size_t size) {
    while (has_room(size)) take(size);
  }
  /// Frees the blocks from place `first` on of which keep(block) is false, in their order.
  template <class Keep>
  void keep_if(std::size_t first, Keep keep) {
    std::size_t kept = first;
    for (std::size_t i = first; i < blocks.size(); ++i) {
      const Block b = blocks[i];
      if (keep(b)) {
        blocks[kept++] = b;
      } else {
        live_ -= b.size;
        owned_.deallocate(b.memory);
      }
    }
    blocks.resize(kept);
  }
  void sort_from(std::size_t first) {
    std::sort(blocks.begin() + static_cast<std::ptrdiff_t>(first), blocks.end(),
              [](const Block& x, const Block& y) { return x.memory < y.memory; });
  }
  /// The most that has lived.
  std::size_t most() const { return most_; }

  std::vector<Block> blocks;

 private:
  test::OwnedHeap<>& owned_;
  const std::size_t limit_;
  std::size_t live_ = 0, most_ = 0;
};

// --- Adversaries
// -------------------------------------------------------------------------------------------------

// Robson's (1971), against any allocator: sizes double, and of each phase stay the blocks that have
// a word at a place of the next size at which the most is kept from it.
void robson(Program& program) {
  std::uintptr_t place = 0;
  for (std::size_t size = kSmallest; size <= kLargest; size *= 2) {
    if (size > kSmallest) {
      const auto has_word = [&](const Block& b, std::uintptr_t at) {
        return (at - b.begin()) % size < b.size;
      };
      const auto kept_from = [&](std::uintptr_t at) {
        std::size_t sum = 0;
        for (const Block& b : program.blocks)
          sum += has_word(b, at) && b.size < size ? size - b.size : 0;
        return sum;
      };
      if (kept_from(place + size / 2) > kept_from(place)) place += size / 2;
      program.keep_if(0, [&](const Block& b) { return has_word(b, place); });
    }
    program.fill(size);
  }
}

// Knows the classes: of each, one block stays in each span.
void pin_spans(Program& program) {
  for (const unsigned c : MemoryBound::spans_cheapest_first()) {
    const auto& info = Classes::kTable[c];
    const std::size_t first = program.blocks.size();
    program.fill(info.block_size);
    program.sort_from(first);
    std::uintptr_t last = 0;
    program.keep_if(first, [&](const Block& b) {
      const std::uintptr_t span = b.begin() / info.virtual_span;
      return std::exchange(last, span) != span;
    });
  }
}

// The same for pages: as few blocks as touch each page of each span.
void pin_pages(Program& program) {
  for (const unsigned c : MemoryBound::pages_cheapest_first()) {
    const std::size_t first = program.blocks.size();
    program.fill(Classes::kTable[c].block_size);
    program.sort_from(first);
    std::uintptr_t touched = 0;  // up to this page
    std::size_t next = first;
    program.keep_if(first, [&](const Block& b) {
      const std::uintptr_t begin = b.begin() / kPage, last = (b.end() - 1) / kPage;
      const std::uintptr_t wanted = std::max(begin, touched + 1);
      const bool next_touches =
          ++next < program.blocks.size() && program.blocks[next].begin() / kPage <= wanted;
      if (last < wanted || next_touches) return false;
      touched = last;
      return true;
    });
  }
}

// Bands of sizes, drawn; of each a part stays, drawn as well, in runs or alone.
void draw(Program& program, std::uint64_t seed) {
  Random random(test::seed_of(seed));
  const auto class_of_band = [&](unsigned band, unsigned width) {
    return 1 + (band + random.below(width)) % (Classes::kSmallClasses - 1);
  };
  for (unsigned round = 0; round < 120; ++round) {
    const auto band = static_cast<unsigned>(random.below(Classes::kSmallClasses - 1));
    const unsigned width = 1 + static_cast<unsigned>(random.below(12));
    const std::size_t first = random.one_in(2) ? program.blocks.size() : 0;
    for (;;) {
      const std::size_t size = Classes::kTable[class_of_band(band, width)].block_size;
      if (!program.has_room(size)) break;
      program.take(size);
    }
    const std::size_t one_in = std::size_t{1} << random.below(12);
    const std::size_t run = std::size_t{1} << random.below(5);
    std::size_t i = 0;
    bool stays = true;
    program.keep_if(first, [&](const Block&) {
      if (i++ % run == 0) stays = random.one_in(one_in);
      return stays;
    });
  }
}

// --- What they reach -----------------------------------------------------------------------------

class MemoryBoundTest : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kUnderAsan || test::kUnderTsan) GTEST_SKIP() << "a sanitizer has memory of its own";
    if (test::kEmulated) GTEST_SKIP() << "an emulator has memory of its own";
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    owned = std::make_unique<test::OwnedHeap<>>();
    owned->deallocate(owned->allocate(1));  // its tables
  }
  void start() { before_ = resident(); }
  std::size_t taken() const {
    const std::size_t now = resident();
    return now - std::min(before_, now);
  }

  /// Both bounds, and prints them; returns what was reached at once and at
  /// rest, over what has lived.
  std::pair<double, double> check(const char* name, std::size_t live, unsigned threads) {
    const auto over_live = [&](std::size_t bytes) {
      return static_cast<double>(bytes) / static_cast<double>(live);
    };
    const auto bound = [&](double a) {
      return static_cast<std::size_t>(a * static_cast<double>(live)) +
             threads * MemoryBound::kThread + MemoryBound::kProcess;
    };
    const std::size_t at_once = taken();
    owned->trim();
    const std::size_t at_rest = taken();
    std::printf(
        "%s, %zu MiB live: %.1f times as much at once (bound %.0f), %.1f after trim (bound %.0f)\n",
        name, live / kMiB, over_live(at_once), MemoryBound::kAtOnce, over_live(at_rest),
        MemoryBound::kAtRest);
    EXPECT_LE(at_once, bound(MemoryBound::kAtOnce)) << name;
    EXPECT_LE(at_rest, bound(MemoryBound::kAtRest)) << name;
    return {over_live(at_once), over_live(at_rest)};
  }
  void keep_hot(unsigned c, void** blocks) {
    const auto& info = Classes::kTable[c];
    for (unsigned round = 0; round < 3; ++round) {
      for (unsigned i = 0; i + 1 < info.blocks; ++i) blocks[i] = allocate_written(info.block_size);
      for (unsigned i = 0; i + 1 < info.blocks; ++i) owned->deallocate(blocks[i]);
    }
  }
  void* allocate_written(std::size_t size) {
    auto* memory = static_cast<char*>(owned->allocate(size));
    EXPECT_NE(memory, nullptr);
    for (std::size_t at = 0; at < size; at += kPage) memory[at] = 1;
    return memory;
  }
  template <class Adversary>
  std::pair<double, double> drive(const char* name, Adversary adversary) {
    Program program(*owned, most_live());
    start();
    adversary(program);
    return check(name, program.most(), 1);
  }

  // Nothing goes by itself: what is measured at once is all that there ever was.
  test::Variable decay_{"SPANALLOC_DECAY_MS", "3600000"};
  std::unique_ptr<test::OwnedHeap<>> owned;

 private:
  std::size_t before_ = 0;
};

TEST_F(MemoryBoundTest, Robson) {
  const double least = MemoryBound::robson(kLargest / kSmallest);
  const auto [at_once, at_rest] = drive("Robson's adversary", robson);
  std::printf("  (any allocator that neither moves blocks nor returns pages: %.1f)\n", least);
  EXPECT_GE(at_once, 0.95 * least) << "the adversary has gone soft";
  EXPECT_LE(at_rest, at_once);
}

TEST_F(MemoryBoundTest, OneBlockASpan) {
  const auto [at_once, at_rest] = drive("one block a span", pin_spans);
  EXPECT_GE(at_once, MemoryBound::kAtOnce / 2) << "the bound is twice what is reached, and more";
  EXPECT_LE(at_rest, at_once / 2) << "spans are not thinned";
}

TEST_F(MemoryBoundTest, OneBlockAPage) {
  const auto [at_once, at_rest] = drive("one block a page", pin_pages);
  EXPECT_GE(at_rest, MemoryBound::kAtRest / 2) << "the bound is twice what is reached, and more";
  EXPECT_LE(at_rest, at_once);
}

TEST_F(MemoryBoundTest, Drawn) {
  const char* seeds = std::getenv("MEMORY_BOUND_SEEDS");
  const std::uint64_t usual = most_live() > 2 * kMiB ? 20 : 3;
  const std::uint64_t count = seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : usual;
  for (std::uint64_t seed = 0; seed < count; ++seed) {
    owned = std::make_unique<test::OwnedHeap<>>();
    owned->deallocate(owned->allocate(1));
    drive(("drawn from seed " + std::to_string(seed)).c_str(),
          [=](Program& program) { draw(program, seed); });
  }
}

// Each thread with a part of the limit.
TEST_F(MemoryBoundTest, SeveralThreads) {
  constexpr unsigned kThreads = 4;
  std::vector<std::unique_ptr<Program>> programs;
  for (unsigned k = 0; k < kThreads; ++k)
    programs.push_back(std::make_unique<Program>(*owned, most_live() / kThreads));
  start();
  std::barrier<> gate(kThreads + 1);
  std::vector<std::jthread> threads;
  for (unsigned k = 0; k < kThreads; ++k) {
    threads.emplace_back([&, k] {
      pin_spans(*programs[k]);
      gate.arrive_and_wait();  // done
      gate.arrive_and_wait();  // measured: until then it lives
    });
  }
  gate.arrive_and_wait();
  std::size_t live = 0;
  for (const auto& program : programs) live += program->most();
  check("one block a span, four threads", live, kThreads);
  gate.arrive_and_wait();
}

// --- What a thread keeps -------------------------------------------------------------------------

// Of each class a span's blocks but one, so that the span stays hot, all freed; three times, so
// that it does not grow any more.
TEST_F(MemoryBoundTest, WhatAThreadKeeps) {
  for (const unsigned count : {1u, 4u, 16u, 64u}) {
    owned = std::make_unique<test::OwnedHeap<>>();
    owned->deallocate(owned->allocate(1));
    std::vector<std::vector<void*>> blocks(count);
    for (auto& mine : blocks) mine.resize(Classes::kTable[1].blocks);
    std::barrier<> gate(count + 1);
    std::vector<std::jthread> threads;
    for (unsigned k = 0; k < count; ++k) {
      threads.emplace_back([&, k] {
        gate.arrive_and_wait();  // all threads stand
        for (unsigned c = 1; c < Classes::kSmallClasses; ++c) keep_hot(c, blocks[k].data());
        gate.arrive_and_wait();
        gate.arrive_and_wait();
      });
    }
    start();
    gate.arrive_and_wait();
    gate.arrive_and_wait();
    const std::size_t at_once = taken();
    owned->trim();
    const std::size_t at_rest = taken();
    std::printf(
        "%u threads that hold nothing: %.0f KiB each at once, %.0f after trim (bound %zu)\n", count,
        static_cast<double>(at_once) / kKiB / count, static_cast<double>(at_rest) / kKiB / count,
        MemoryBound::kThread / kKiB);
    EXPECT_LE(at_once, count * MemoryBound::kThread + MemoryBound::kProcess);
    gate.arrive_and_wait();
  }
}

// A thread frees all blocks but one of 400 of another's spans, and sleeps on what it has batched.
TEST_F(MemoryBoundTest, WhatAThreadGathers) {
  for (const std::size_t size : {4 * kKiB, 8 * kKiB, 32 * kKiB}) {
    const auto& info = Classes::info(Classes::of(size));
    constexpr std::size_t kSpans = 400;
    std::vector<void*> blocks(kSpans * info.blocks);
    owned = std::make_unique<test::OwnedHeap<>>();
    owned->deallocate(owned->allocate(1));
    start();
    for (void*& p : blocks) p = allocate_written(size);
    std::barrier<> gate(2);
    std::jthread other([&] {
      owned->deallocate(owned->allocate(1));  // it has a thread cache, so it gathers
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (i % info.blocks != 0) owned->deallocate(blocks[i]);
      }
      gate.arrive_and_wait();
      gate.arrive_and_wait();
    });
    gate.arrive_and_wait();
    owned->trim();
    const std::size_t live = kSpans * size;
    std::printf("a thread that has freed another's blocks of %zu KiB holds %.1f MiB (bound %zu)\n",
                size / kKiB, static_cast<double>(taken() - live) / kMiB,
                MemoryBound::kThreadWithRemotes / kMiB);
    // What it has not batched, and what its owner's spans hold hot, comes on top
    // of the blocks themselves.
    EXPECT_LE(taken(), live + MemoryBound::kThreadWithRemotes + MemoryBound::kProcess);
    if (size == 4 * kKiB) {
      EXPECT_GE(taken(), live + 1 * kMiB) << "the adversary is none";
    }
    gate.arrive_and_wait();
    other.join();
    for (std::size_t i = 0; i < blocks.size(); i += info.blocks) owned->deallocate(blocks[i]);
  }
}

// Many threads free all blocks but one of 12 spans of another's each, and sleep.
TEST_F(MemoryBoundTest, WhatAllThreadsGather) {
  constexpr std::size_t kThreads = 32, kSpans = 12, kSize = 32 * kKiB;
  const std::size_t a_span = Classes::info(Classes::of(kSize)).blocks;
  std::vector<void*> blocks(kThreads * kSpans * a_span);
  owned = std::make_unique<test::OwnedHeap<>>();
  owned->deallocate(owned->allocate(1));
  std::barrier<> gate(kThreads + 1);
  std::vector<std::jthread> threads;
  for (std::size_t k = 0; k < kThreads; ++k) {
    threads.emplace_back([&, k] {
      owned->deallocate(owned->allocate(1));  // it has a thread cache, so it gathers
      gate.arrive_and_wait();                 // all threads stand
      gate.arrive_and_wait();                 // the blocks do
      for (std::size_t i = 0; i < kSpans * a_span; ++i) {
        if (i % a_span != 0) owned->deallocate(blocks[k * kSpans * a_span + i]);
      }
      gate.arrive_and_wait();
      gate.arrive_and_wait();
    });
  }
  gate.arrive_and_wait();
  start();
  for (void*& p : blocks) p = allocate_written(kSize);
  gate.arrive_and_wait();
  gate.arrive_and_wait();
  owned->trim();
  const std::size_t live = kThreads * kSpans * kSize;
  std::printf("%zu threads that have freed another's blocks of %zu KiB hold %.1f MiB (bound %zu)\n",
              kThreads, kSize / kKiB, static_cast<double>(taken() - live) / kMiB,
              Standard::kBatchBytes / kMiB);
  EXPECT_LE(taken(),
            live + Standard::kBatchBytes + MemoryBound::kProcess + kThreads * MemoryBound::kState);
  gate.arrive_and_wait();
  threads.clear();
  for (std::size_t i = 0; i < blocks.size(); i += a_span) owned->deallocate(blocks[i]);
}

// --- The documented tables -----------------------------------------------------------------------

std::string mib(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes % kMiB == 0 ? "%.0f MiB" : "%.1f MiB",
                static_cast<double>(bytes) / kMiB);
  return text;
}

// Classes whose spans are of one size, in a row.
std::string row_of_order(unsigned order) {
  unsigned first = 0, last = 0;
  std::size_t fewest = 0, most = 0, pages = 0;
  for (unsigned c = 1; c < Classes::kSmallClasses; ++c) {
    const auto& info = Classes::kTable[c];
    if (info.order != order) continue;
    if (first == 0) first = c, most = info.blocks, fewest = info.blocks;
    last = c;
    fewest = std::min<std::size_t>(fewest, info.blocks);
    most = std::max<std::size_t>(most, info.blocks);
    const double touched = info.block_size / (MemoryBound::pin_of_pages(c) * kPage);
    pages = std::max(pages, static_cast<std::size_t>(touched + 0.5));
  }
  std::ostringstream row;
  row << "| " << first << " to " << last << " | " << Classes::kTable[first].block_size << " to "
      << Classes::kTable[last].block_size << " bytes | " << fewest << " to " << most << " | "
      << (std::size_t{1} << order) << " | 1 to " << pages << " |\n";
  return row.str();
}

std::string tables() {
  std::ostringstream text;
  text << "| | at once | at rest | of that |\n|---|--:|--:|---|\n"
       << "| a | " << MemoryBound::kAtOnce << " | " << MemoryBound::kAtRest << " | tables "
       << std::round(MemoryBound::kTables * 10000) / 100
       << " % of the slices that were ever open |\n"
       << "| b, a thread | " << mib(MemoryBound::kThread)
       << " | the same, less the cached large spans | of each class three spans, "
       << mib(3 * MemoryBound::current_bytes()) << "; other ready ones " << mib(MemoryBound::kReady)
       << "; cached large spans " << mib(MemoryBound::kCached)
       << "; cache record, map and its own words less than "
       << align_up(MemoryBound::kState, 16 * kKiB) / kKiB << " KiB |\n"
       << "| b, one that frees blocks of others, too | " << mib(MemoryBound::kThreadWithRemotes)
       << " | the same, less the cached large spans | besides: batches "
       << mib(MemoryBound::batch_bytes()) << " |\n"
       << "| c | " << mib(MemoryBound::kProcess) << " | " << mib(MemoryBound::kProcess)
       << " | what the first call opens of tables and page tables |\n"
       << "| a shard | " << mib(Standard::kPoolBytesPerRow)
       << " for each of 1, 2 and 4 slices | nothing | "
       << "free spans in the pool, of this decay epoch and of the one before |\n";
  text << "\n| classes | blocks | blocks a span | slices that a block pins at once | pages that it "
          "pins at "
          "rest |\n"
       << "|---|---|--:|--:|--:|\n";
  for (unsigned order = 0; order <= Standard::kMaxOrder; ++order) text << row_of_order(order);
  return text.str();
}

TEST(MemoryBoundTables, AreDocumented) {
  const std::string path = std::string(SPANALLOC_DOCS) + "/architecture.md";
  std::stringstream file;
  file << std::ifstream(path).rdbuf();
  std::string text = file.str();
  const std::string begin = "<!-- bound:begin -->\n", end = "<!-- bound:end -->";
  const std::size_t from = text.find(begin) + begin.size(), to = text.find(end);
  ASSERT_NE(to, std::string::npos);
  ASSERT_LE(from, to);
  if (std::getenv("SPANALLOC_WRITE_DOCS") != nullptr) {
    text.replace(from, to - from, tables());
    std::ofstream(path) << text;
    return;
  }
  EXPECT_EQ(text.substr(from, to - from), tables()) << "SPANALLOC_WRITE_DOCS=1 writes them";
}

}  // namespace
}  // namespace spanalloc
