// Shapes that hurt allocators: each is what somebody would do who wants to ruin one.
// Source: beyond the papers.
//
// `shape` says which; its function below says what it attacks, and what its parameters mean. Every
// block has a word of its own at its start and one byte in each of its pages written (but for
// `untouched`, `replace` and `firsts`), and the word is checked when the block is freed. An
// operation is one block allocated and freed, one realloc, or one question (`asked`). Metrics:
//   held_mib     RSS + page tables at the shape's telling moment, less what the process had before
//                its first block and less this program's own tables; of `trickle` the mean over its
//                milliseconds
//   trimmed_mib  of `crowd`: the same after malloc_trim(0)
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <vector>

#include "support/mapped_array.hpp"
#include "support/resident.hpp"
#include "support/workload.hpp"

namespace {

using workload::MappedArray, workload::Random, workload::run_threads;

constexpr std::size_t kPageSize = 4096;
constexpr std::size_t kSmallest = 16, kLargest = 32768;  // of shapes that go through all sizes

struct Parameters {
  std::size_t size = 0, other = 0, blocks = 0, bytes = 0;
  std::uint64_t threads = 1, rounds = 1;
};

struct Outcome {
  std::uint64_t operations = 0;
  std::uint64_t ns = 0;
  double held_mib = 0;
  double trimmed_mib = -1;  // below 0: it was not trimmed
};

std::int64_t at_start = 0;

double held_mib() {
  return workload::mib(workload::resident_beyond_tables() - at_start);
}

// `id` tells the word of a block from that of every other one.
std::uint64_t word_of(std::uint64_t id) {
  return (id + 1) * 0x9e3779b97f4a7c15u;
}

void write_word(void* block, std::uint64_t id) {
  const std::uint64_t word = word_of(id);
  __builtin_memcpy(block, &word, sizeof word);
}

void check_word(const void* block, std::uint64_t id) {
  std::uint64_t word;
  __builtin_memcpy(&word, block, sizeof word);
  workload::check(word == word_of(id), "attack_shapes: a block was overwritten");
}

void* written(void* block, std::size_t size, std::uint64_t id) {
  workload::check(block != nullptr, "attack_shapes: malloc returned null");
  for (std::size_t place = kPageSize; place < size; place += kPageSize)
    static_cast<char*>(block)[place] = 1;
  write_word(block, id);
  return block;
}

struct Block {
  void* memory;
  std::uint64_t id;
};

Block make(std::size_t size, std::uint64_t id) {
  return {written(std::malloc(size), size, id), id};
}

// Only its word is written.
Block make_little(std::size_t size, std::uint64_t id) {
  void* const memory = std::malloc(size);
  workload::check(memory != nullptr, "attack_shapes: malloc returned null");
  write_word(memory, id);
  return {memory, id};
}

void drop(const Block& b) {
  if (b.memory == nullptr) return;
  check_word(b.memory, b.id);
  std::free(b.memory);
}

// Eight a doubling, no two that differ by less than 16 bytes.
std::vector<std::size_t> all_sizes() {
  std::vector<std::size_t> sizes;
  for (unsigned eighths = 0;; ++eighths) {
    const auto size =
        static_cast<std::size_t>(static_cast<double>(kSmallest) * std::exp2(eighths / 8.0));
    if (size > kLargest) return sizes;
    if (sizes.empty() || size / 16 != sizes.back() / 16) sizes.push_back(size);
  }
}

// For so many milliseconds every 5 a block of each doubling comes and goes.
void pass_by(std::uint64_t ms) {
  for (std::uint64_t i = 0; i < ms / 5; ++i) {
    workload::sleep_ms(5);
    for (std::size_t size = kSmallest; size <= kLargest; size *= 2) drop(make(size, i));
  }
}

// Attacks whoever keeps sizes apart: with `mib` MiB live at the most, size after size fills what is
// free under that limit, and then keeps one block in `other` bytes. So each page, or span, is held
// by one block, of a size that nobody asks for again.
Outcome comb(const Parameters& p) {
  const std::vector<std::size_t> sizes = all_sizes();
  MappedArray<Block> blocks(p.bytes / kSmallest, false);
  std::size_t made = 0, kept = 0, live = 0;
  Outcome outcome;
  const std::uint64_t begin = workload::now_ns();
  for (const std::size_t size : sizes) {
    std::size_t end = kept;
    for (; live + size <= p.bytes && end < blocks.size(); live += size)
      blocks[end++] = make(size, made++);
    const std::size_t stretch = std::max<std::size_t>(1, p.other / size);
    blocks.written(end);
    const std::size_t first = kept;
    for (std::size_t i = first; i < end; ++i) {
      if ((i - first) % stretch == stretch / 2) {
        blocks[kept++] = blocks[i];
      } else {
        drop(blocks[i]);
        live -= size;
      }
    }
  }
  outcome.ns = workload::now_ns() - begin;
  outcome.held_mib = held_mib();
  for (std::size_t i = 0; i < kept; ++i) drop(blocks[i]);
  outcome.operations = made;
  return outcome;
}

// Attacks who moves a block each time it crosses a boundary of sizes: `blocks` blocks are made
// larger, from `size` to `other` bytes, and smaller again.
Outcome edges(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(p.size, i);
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    for (Block& b : blocks) {
      for (const std::size_t size : {p.other, p.size}) {
        void* const moved = std::realloc(b.memory, size);
        workload::check(moved != nullptr, "attack_shapes: realloc returned null");
        check_word(moved, b.id);
        static_cast<char*>(moved)[size - 1] = 1;
        b.memory = moved;
      }
    }
  }
  Outcome outcome{2 * p.rounds * p.blocks, workload::now_ns() - begin, held_mib()};
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// Attacks the path of a realloc that has nothing to do: `blocks` strings grow in turn, by `other`
// bytes at a time, to `size`.
Outcome appends(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  Outcome outcome;
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(kSmallest, i);
    for (std::size_t size = kSmallest; size <= p.size; size += p.other) {
      for (Block& b : blocks) {
        b.memory = std::realloc(b.memory, size);
        workload::check(b.memory != nullptr, "attack_shapes: realloc returned null");
        check_word(b.memory, b.id);
      }
      outcome.operations += p.blocks;
    }
    if (r + 1 == p.rounds) outcome.held_mib = held_mib();
    for (const Block& b : blocks) drop(b);
  }
  outcome.ns = workload::now_ns() - begin;
  return outcome;
}

// Attacks lists that lead where the frees have been: `blocks` blocks are freed in an order drawn
// anew each round, allocated again, and read.
Outcome shuffled(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  Random random(1);
  Outcome outcome;
  for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(p.size, i);
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    for (std::size_t i = p.blocks - 1; i > 0; --i)
      std::swap(blocks[i], blocks[random.below(i + 1)]);
    const std::uint64_t begin = workload::now_ns();
    for (const Block& b : blocks) drop(b);
    for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(p.size, i);
    for (const Block& b : blocks) check_word(b.memory, b.id);
    outcome.ns += workload::now_ns() - begin;
  }
  outcome.operations = p.rounds * p.blocks;
  outcome.held_mib = held_mib();
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// 16 bytes to 3 KiB, no two in a row alike.
std::size_t turning_size(std::size_t i) {
  return kSmallest + i * 61 % 3000;
}

// Attacks caches whose owners wait: each of `threads` threads makes `blocks` blocks and sleeps,
// and the main thread frees all, a block of each thread in turn; then the next round. Nothing
// lives when it is looked.
Outcome makers(const Parameters& p) {
  MappedArray<Block> blocks(p.threads * p.blocks);
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads + 1));
  double held = 0;
  const std::uint64_t ns = run_threads(p.threads + 1, [&](std::uint64_t t) {
    for (std::uint64_t r = 0; r < p.rounds; ++r) {
      if (t < p.threads) {
        for (std::size_t i = t * p.blocks; i < (t + 1) * p.blocks; ++i)
          blocks[i] = make(turning_size(i), i);
      }
      gate.arrive_and_wait();
      if (t == p.threads) {
        for (std::size_t i = 0; i < p.blocks; ++i) {
          for (std::size_t maker = 0; maker < p.threads; ++maker)
            drop(blocks[maker * p.blocks + i]);
        }
        if (r + 1 == p.rounds) held = held_mib();
      }
      gate.arrive_and_wait();
    }
  });
  return {p.rounds * p.threads * p.blocks, ns, held};
}

// Attacks caches whose owners sleep: each of `threads` threads, one after the other, makes and
// frees `other` bytes of each size, at least seven blocks, `rounds` times, and sleeps. It is looked
// when the main thread has passed by for a second. Nothing lives.
Outcome sleepers(const Parameters& p) {
  const std::vector<std::size_t> sizes = all_sizes();
  const auto count_of = [&](std::size_t size) { return std::max<std::size_t>(7, p.other / size); };
  std::size_t a_round = 0;
  for (const std::size_t size : sizes) a_round += count_of(size);
  MappedArray<Block> blocks(count_of(kSmallest));
  std::atomic<std::uint64_t> turn{0};
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads + 1));
  Outcome outcome{p.threads * p.rounds * a_round, 0, 0};
  run_threads(p.threads + 1, [&](std::uint64_t t) {
    if (t == p.threads) {
      gate.arrive_and_wait();  // all sleep
      pass_by(1000);
      outcome.held_mib = held_mib();
      gate.arrive_and_wait();
      return;
    }
    for (std::uint64_t now; (now = turn.load()) != t;) turn.wait(now);
    const std::uint64_t begin = workload::now_ns();
    for (const std::size_t size : sizes) {
      for (std::uint64_t r = 0; r < p.rounds; ++r) {
        for (std::size_t i = 0; i < count_of(size); ++i) blocks[i] = make(size, i);
        for (std::size_t i = 0; i < count_of(size); ++i) drop(blocks[i]);
      }
    }
    outcome.ns += workload::now_ns() - begin;
    turn.store(t + 1);
    turn.notify_all();
    gate.arrive_and_wait();
    gate.arrive_and_wait();
  });
  return outcome;
}

// Attacks whoever gathers, or waits for, what comes back: each of `threads` threads makes
// `blocks` blocks of many sizes, and frees those of the one before it; all wait for one
// another after each round.
Outcome ring(const Parameters& p) {
  MappedArray<Block> blocks(2 * p.threads * p.blocks);
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads));
  const std::uint64_t ns = run_threads(p.threads, [&](std::uint64_t t) {
    Random random(t);
    for (std::uint64_t r = 0; r < p.rounds; ++r) {
      Block* const lot = &blocks[r % 2 * p.threads * p.blocks];
      for (std::size_t i = t * p.blocks; i < (t + 1) * p.blocks; ++i)
        lot[i] = make(random.between(kSmallest, 2048), i);
      gate.arrive_and_wait();
      const std::size_t before = (t + p.threads - 1) % p.threads;
      for (std::size_t i = before * p.blocks; i < (before + 1) * p.blocks; ++i) drop(lot[i]);
    }
  });
  return {p.rounds * p.threads * p.blocks, ns, held_mib()};
}

// Attacks who must make memory of one size into that of another: `mib` MiB in blocks of `size`
// bytes come and go, then as much in blocks of `other`, and so on.
Outcome flip(const Parameters& p) {
  MappedArray<Block> blocks(p.bytes / std::min(p.size, p.other));
  Outcome outcome;
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    const std::size_t size = r % 2 == 0 ? p.size : p.other;
    const std::size_t count = p.bytes / size;
    for (std::size_t i = 0; i < count; ++i) blocks[i] = make(size, i);
    for (std::size_t i = 0; i < count; ++i) drop(blocks[i]);
    outcome.operations += count;
  }
  outcome.ns = workload::now_ns() - begin;
  outcome.held_mib = held_mib();
  return outcome;
}

// Attacks who works for each page of a block, used or not: blocks of `size` bytes, of which only
// the first word is written, `blocks` of them at a time, the oldest replaced.
Outcome untouched(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t n = 0; n < p.rounds; ++n) {
    Block& b = blocks[n % p.blocks];
    drop(b);
    b = make_little(p.size, n);
  }
  Outcome outcome{p.rounds, workload::now_ns() - begin, held_mib()};
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// Attacks who gives memory back by the count of calls, or not at all: `mib` MiB of blocks of
// `size` bytes come and go at once; then for `rounds` milliseconds twenty blocks of all
// sizes come and go in each.
Outcome trickle(const Parameters& p) {
  MappedArray<Block> blocks(p.bytes / p.size);
  const std::uint64_t begin = workload::now_ns();
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = make(p.size, i);
  for (const Block& b : blocks) drop(b);
  Outcome outcome{blocks.size(), workload::now_ns() - begin, 0};
  const std::vector<std::size_t> sizes = all_sizes();
  const std::uint64_t start = workload::now_ns();
  std::size_t turn = 0, looks = 0;
  double sum = 0;
  do {
    for (unsigned i = 0; i < 20; ++i, ++turn) drop(make(sizes[turn % sizes.size()], turn));
    workload::sleep_ms(1);
    sum += held_mib();
    ++looks;
  } while (workload::now_ns() - start < p.rounds * 1'000'000);
  outcome.held_mib = sum / static_cast<double>(looks);
  return outcome;
}

// Attacks who serves alignment by size: blocks of `size` bytes, aligned to `other`, `blocks` of
// them at a time, replaced at random.
Outcome aligned(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  Random random(1);
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t n = 0; n < p.rounds; ++n) {
    Block& b = blocks[random.below(p.blocks)];
    drop(b);
    void* memory = nullptr;
    workload::check(posix_memalign(&memory, p.other, p.size) == 0,
                    "attack_shapes: posix_memalign returned null");
    b = {written(memory, p.size, n), n};
  }
  Outcome outcome{p.rounds, workload::now_ns() - begin, held_mib()};
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// Of block `i`: from `size` to `other`, or `size` where that is not below `other`.
std::size_t size_in_range(const Parameters& p, std::size_t i) {
  return p.other > p.size ? p.size + word_of(i) % (p.other - p.size + 1) : p.size;
}

// Attacks who settles with a span, or is filled from one, at every few frees: each of `threads`
// threads has `blocks` blocks, frees one that is drawn and allocates as many bytes again, `rounds`
// times. They are of `size` bytes, or of any size from there to `other`. Their pages are written
// once, then only the words, so that it is the allocator that is timed, and not the cache.
Outcome replace(const Parameters& p) {
  MappedArray<Block> blocks(p.threads * p.blocks);
  Outcome outcome{p.threads * p.rounds, 0, 0};
  std::uint64_t begin = 0;
  std::barrier gate(static_cast<std::ptrdiff_t>(p.threads), [&]() noexcept {
    if (begin == 0) {
      begin = workload::now_ns();
    } else {
      outcome.ns = workload::now_ns() - begin;
      outcome.held_mib = held_mib();
    }
  });
  run_threads(p.threads, [&](std::uint64_t t) {
    Block* const own = &blocks[t * p.blocks];
    for (std::size_t i = 0; i < p.blocks; ++i) own[i] = make(size_in_range(p, i), t * p.blocks + i);
    Random random(t);
    gate.arrive_and_wait();
    for (std::uint64_t n = 0; n < p.rounds; ++n) {
      const std::size_t i = random.below(p.blocks);
      drop(own[i]);
      own[i] = make_little(size_in_range(p, i), own[i].id + blocks.size());
    }
    gate.arrive_and_wait();
    for (std::size_t i = 0; i < p.blocks; ++i) drop(own[i]);
  });
  return outcome;
}

// Attacks who starts the first block of every size at the same place, where they compete for a few
// of a cache's sets: one block of each of `blocks` sizes, from `size` bytes on and `other` apart.
// All are freed, and all are allocated again, the largest first.
Outcome firsts(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    for (const Block& b : blocks) drop(b);
    for (std::size_t i = p.blocks; i-- > 0;)
      blocks[i] = make_little(p.size + i * p.other, r * p.blocks + i);
  }
  Outcome outcome{p.rounds * p.blocks, workload::now_ns() - begin, held_mib()};
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// Attacks lists that lead where the frees have been: in each round a drawn half of `blocks` nodes
// of `size` bytes is freed and made anew, and all are walked `other` times, each from the one
// before: the new ones as they were made, then those kept in a drawn order. Drawing and linking are
// not timed.
Outcome graph(const Parameters& p) {
  MappedArray<Block> nodes(p.blocks);
  const auto link_of = [&](std::size_t i) {
    return static_cast<void**>(nodes[i % p.blocks].memory) + 1;  // behind the word
  };
  Random random(1);
  Outcome outcome;
  for (std::size_t i = 0; i < p.blocks; ++i) nodes[i] = make(p.size, i);
  for (std::uint64_t r = 1; r <= p.rounds; ++r) {
    for (std::size_t i = p.blocks - 1; i > 0; --i) std::swap(nodes[i], nodes[random.below(i + 1)]);
    std::uint64_t begin = workload::now_ns();
    for (std::size_t i = 0; i < p.blocks / 2; ++i) drop(nodes[i]);
    for (std::size_t i = 0; i < p.blocks / 2; ++i) nodes[i] = make(p.size, r * p.blocks + i);
    outcome.ns += workload::now_ns() - begin;
    for (std::size_t i = 0; i < p.blocks; ++i) *link_of(i) = nodes[(i + 1) % p.blocks].memory;
    begin = workload::now_ns();
    void* at = nodes[0].memory;
    for (std::size_t i = 0; i < p.other * p.blocks; ++i) at = static_cast<void**>(at)[1];
    outcome.ns += workload::now_ns() - begin;
    workload::check(at == nodes[0].memory, "attack_shapes: a block was overwritten");
  }
  outcome.operations = p.rounds * (p.blocks / 2);
  outcome.held_mib = held_mib();
  for (const Block& b : nodes) drop(b);
  return outcome;
}

// Attacks who looks for a block's span when it is asked how large the block is: `blocks` blocks of
// `size` to `other` bytes are asked in turn.
Outcome asked(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  std::size_t least = 0;
  for (std::size_t i = 0; i < p.blocks; ++i) {
    blocks[i] = make(size_in_range(p, i), i);
    least += size_in_range(p, i);
  }
  std::size_t sum = 0;
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r)
    for (const Block& b : blocks) sum += malloc_usable_size(b.memory);
  Outcome outcome{p.rounds * p.blocks, workload::now_ns() - begin, held_mib()};
  workload::check(sum >= p.rounds * least, "attack_shapes: a usable size is too small");
  for (const Block& b : blocks) drop(b);
  return outcome;
}

// Attacks who pays for the first memory of a process bit by bit: `blocks` blocks of `size` bytes
// are made, once, every byte of them written, and all are freed.
Outcome once(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  const std::uint64_t begin = workload::now_ns();
  for (std::size_t i = 0; i < p.blocks; ++i) {
    void* const memory = std::malloc(p.size);
    workload::check(memory != nullptr, "attack_shapes: malloc returned null");
    std::memset(memory, 0, p.size);
    write_word(memory, i);
    blocks[i] = {memory, i};
  }
  for (const Block& b : blocks) drop(b);
  return {p.blocks, workload::now_ns() - begin, held_mib()};
}

// Attacks locks that all threads pass by, and caches of threads that end: `threads` threads at once
// take one block of every size, the largest first, free them when all have theirs, and end. It is
// looked when the main thread has passed by for `rounds` milliseconds, and after malloc_trim(0).
// Nothing lives.
Outcome crowd(const Parameters& p) {
  const std::vector<std::size_t> sizes = all_sizes();
  MappedArray<Block> blocks(p.threads * sizes.size());
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads));
  Outcome outcome{p.threads * sizes.size(), 0, 0};
  outcome.ns = run_threads(p.threads, [&](std::uint64_t t) {
    Block* const own = &blocks[t * sizes.size()];
    for (std::size_t i = sizes.size(); i-- > 0;) own[i] = make(sizes[i], t * sizes.size() + i);
    gate.arrive_and_wait();
    for (std::size_t i = 0; i < sizes.size(); ++i) drop(own[i]);
  });
  pass_by(p.rounds);
  outcome.held_mib = held_mib();
  malloc_trim(0);
  outcome.trimmed_mib = held_mib();
  return outcome;
}

// Attacks owners that sleep while others free what is theirs: each of `threads` threads in turn
// frees what the one before made, makes `blocks` blocks of `size` bytes, and sleeps; the main
// thread frees the last. It is looked when that has passed by for `rounds` milliseconds. Nothing
// lives.
Outcome handed(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  std::atomic<std::uint64_t> turn{0};
  std::barrier<> gate(static_cast<std::ptrdiff_t>(p.threads + 1));
  Outcome outcome{p.threads * p.blocks, 0, 0};
  std::uint64_t begin = 0;
  run_threads(p.threads + 1, [&](std::uint64_t t) {
    for (std::uint64_t now; (now = turn.load()) != t;) turn.wait(now);
    if (t == 0) begin = workload::now_ns();
    for (const Block& b : blocks) drop(b);
    if (t == p.threads) {
      outcome.ns = workload::now_ns() - begin;
      gate.arrive_and_wait();  // all sleep
      pass_by(p.rounds);
      outcome.held_mib = held_mib();
    } else {
      for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(p.size, t * p.blocks + i);
      turn.store(t + 1);
      turn.notify_all();
      gate.arrive_and_wait();
    }
    gate.arrive_and_wait();
  });
  return outcome;
}

// Attacks who keeps what a block has outgrown: `blocks` buffers grow in turn by half, from 64 bytes
// to `size`, every page written, and are freed; `rounds` times. Nothing lives when it is looked.
Outcome halves(const Parameters& p) {
  MappedArray<Block> blocks(p.blocks);
  Outcome outcome;
  const std::uint64_t begin = workload::now_ns();
  for (std::uint64_t r = 0; r < p.rounds; ++r) {
    std::size_t before = 64;
    for (std::size_t i = 0; i < p.blocks; ++i) blocks[i] = make(before, i);
    while (before < p.size) {
      const std::size_t size = std::min(p.size, before + before / 2);
      for (Block& b : blocks) {
        void* const moved = std::realloc(b.memory, size);
        workload::check(moved != nullptr, "attack_shapes: realloc returned null");
        check_word(moved, b.id);
        for (std::size_t place = before; place < size; place += kPageSize)
          static_cast<char*>(moved)[place] = 1;
        b.memory = moved;
      }
      outcome.operations += p.blocks;
      before = size;
    }
    for (const Block& b : blocks) drop(b);
  }
  outcome.ns = workload::now_ns() - begin;
  outcome.held_mib = held_mib();
  return outcome;
}

struct Shape {
  const char* name;
  Outcome (*run)(const Parameters&);
};
constexpr Shape kShapes[] = {
    {"comb", comb},           {"edges", edges},       {"appends", appends}, {"shuffled", shuffled},
    {"makers", makers},       {"sleepers", sleepers}, {"ring", ring},       {"flip", flip},
    {"untouched", untouched}, {"trickle", trickle},   {"aligned", aligned}, {"replace", replace},
    {"firsts", firsts},       {"graph", graph},       {"asked", asked},     {"once", once},
    {"crowd", crowd},         {"handed", handed},     {"halves", halves}};

}  // namespace

int main(int argc, char** argv) {
  workload::Options options(argc, argv, "attack_shapes", "beyond the papers",
                            "shapes that hurt allocators");
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  const Shape& shape =
      kShapes[options.choice("shape", names, "which; what the others mean its source says")];
  Parameters p;
  p.size = options.integer("size", 4096, 16, std::uint64_t{1} << 36, "bytes of a block");
  p.other = options.integer("other", 8192, 1, std::uint64_t{1} << 36,
                            "bytes: a second size, step, alignment");
  p.blocks = options.integer("blocks", 100, 1, 1u << 30, "blocks at a time (of each thread)");
  p.bytes = options.integer("mib", 1, 1, 1u << 16, "MiB at a time") << 20;
  p.threads = options.integer("threads", 1, 1, 10000, "threads, where a shape has several");
  p.rounds =
      options.integer("rounds", 10, 1, std::uint64_t{1} << 40, "rounds, blocks or milliseconds");
  options.done();

  at_start = workload::resident_bytes();
  const Outcome outcome = shape.run(p);
  workload::Record record(options, p.threads);
  record.metric("held_mib", outcome.held_mib);
  if (outcome.trimmed_mib >= 0) record.metric("trimmed_mib", outcome.trimmed_mib);
  record.print(outcome.operations, outcome.ns);
}
