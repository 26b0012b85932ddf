// What the kernel is asked once, before main begins: a filter of system calls may stand from then
// on, and end a process that asks anything but what libc's own malloc does.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>

#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/auxiliary.hpp"
#include "os/cgroup.hpp"
#include "os/os.hpp"
#include "os/system_call.hpp"
#include "os/vdso.hpp"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

// glibc 2.35 and later: where a thread's area of restartable sequences lies, from its thread
// pointer on. The kernel keeps the CPU's number there.
extern "C" {
[[gnu::weak]] extern const ptrdiff_t __rseq_offset;
[[gnu::weak]] extern const unsigned int __rseq_size;
}

namespace spanalloc::os {

namespace {

// --- Limits and CPUs -----------------------------------------------------------------------------

// Whoever asks at the same time is told the same, so that only `known` needs an order: release by
// who has written the rest, acquire by who reads it.
struct Answers {
  Atomic<std::size_t> address_space_limit{0};
  Atomic<std::size_t> memory_limit{0};
  Atomic<unsigned> cpus{0};
  Atomic<unsigned> cpu_numbers{0};
  Atomic<unsigned> charges_all{1};
  Atomic<unsigned> known{0};
};
constinit Answers answers;

std::size_t limit_of(int resource) {
  rlimit64 limit{};
  const long error = system_call(SYS_prlimit64, 0, resource, 0, argument(&limit));
  return error != 0 || limit.rlim_cur == RLIM64_INFINITY ? SIZE_MAX : limit.rlim_cur;
}

// A program that a loader has brought up has opened files just before, by the same system calls,
// and so has one that loads this library later: a filter that let them pass lets these pass. A
// static program has no loader, and may have been started under a filter that ends it for opening
// anything.
bool may_open_files() {
  return auxiliary(Auxiliary::kLoader) != 0;
}

// Whether every writable page is charged. What is not known is so.
bool charges_all() {
  if (!may_open_files()) return true;
  const long file = system_call(SYS_openat, AT_FDCWD, argument("/proc/sys/vm/overcommit_memory"),
                                O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  char mode = '\0';
  system_call(SYS_read, file, argument(&mode), sizeof mode);
  system_call(SYS_close, file, 0, 0);
  return mode != '0' && mode != '1';
}

// As many CPUs as the process may run on, or as its control groups' quotas pay for, if that is
// fewer: threads that are more run in turns.
//
// To read that opens files (may_open_files()).
unsigned within_quota(unsigned cpus) {
  if (cpus <= 1 || !may_open_files() || option("CPUS") != nullptr) return cpus;
  const unsigned quota = cpu_quota();
  return quota == 0 ? cpus : static_cast<unsigned>(min_of(cpus, quota));
}

void ask_for_cpus() {
  // The kernel refuses too short a mask
  unsigned long mask[16384 / (8 * sizeof(unsigned long))] = {};
  unsigned count = 0;
  const long bytes = system_call(SYS_sched_getaffinity, 0, sizeof mask, argument(mask));
  for (std::size_t i = 0; bytes > 0 && i < static_cast<std::size_t>(bytes) / sizeof mask[0]; ++i) {
    count += static_cast<unsigned>(__builtin_popcountl(mask[i]));
  }
  answers.cpus.store_relaxed(static_cast<unsigned>(
      option_number("CPUS", 1, 4096, within_quota(static_cast<unsigned>(max_of(count, 1))))));
  // (Refused: as many as one word has.)
  answers.cpu_numbers.store_relaxed(
      8 * static_cast<unsigned>(bytes > 0 ? bytes : long{sizeof mask[0]}));
}

const Answers& asked() {
  if (SPANALLOC_UNLIKELY(answers.known.load_acquire() == 0)) ask();
  return answers;
}

// --- Forks ---------------------------------------------------------------------------------------

// In a page that the kernel clears in a fork's child. (Not so in a child of
// vfork, which shares it.)
struct Marks {
  // 1 in the process that has written it; 0: nobody has told of this child
  Atomic<std::uint32_t> is_known;
  // 1: this process draws other numbers than its parent and its siblings
  Atomic<std::uint32_t> is_salted;
  // 1 in the process that has mapped the page, 0 in all its children
  Atomic<std::uint32_t> is_first;
};
// nullptr: the kernel is older than Linux 4.14, or there is an emulator in its place.
constinit Atomic<Marks*> marks{nullptr};
constinit Atomic<int> noted_process{0};  // then: its number
constinit Atomic<std::uint32_t> forks{0};
// Of the last fork by this thread: other threads may have forked before its child reads it.
SPANALLOC_TLS constinit thread_local std::uint32_t fork_number = 0;
constinit Atomic<std::uint64_t> child_salt{0};

void map_marks() {
  if (marks.load_relaxed() != nullptr) return;
  // Emulators of a kernel that have no vDSO (QEMU's up to 8.1, Valgrind's) may say that they will
  // clear the page, and do not.
  if (auxiliary(Auxiliary::kVdso) == 0) return;
  void* page = map(page_size(), page_size());
  if (page == nullptr) return;
  const long error =
      system_call(SYS_madvise, argument(page), static_cast<long>(page_size()), MADV_WIPEONFORK);
  auto* written = static_cast<Marks*>(page);
  written->is_known.store_relaxed(1);
  written->is_salted.store_relaxed(1);
  written->is_first.store_relaxed(1);
  Marks* none = nullptr;
  if (error != 0 || !marks.compare_exchange_strong_acq_rel(none, written)) {
    release(page, page_size());
  }
}

// --- Random numbers ------------------------------------------------------------------------------

constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Asked once, so that what is wrong with it is told once. (Two threads that ask at
// once may tell it twice.)
constexpr std::uint64_t kNoSeed = UINT64_MAX;
std::uint64_t seed() {
  constexpr std::uint64_t kNotAsked = UINT64_MAX - 1;
  // Any thread finds the same: no ordering needed
  static constinit Atomic<std::uint64_t> known{kNotAsked};
  std::uint64_t value = known.load_relaxed();
  if (value == kNotAsked) {
    value = option_number("SEED", 0, INT64_MAX, kNoSeed);
    known.store_relaxed(value);
  }
  return value;
}

// The next number of the sequence that `seed` decides. A process has one seed, or none.
std::uint64_t repeatable(std::uint64_t seed) {
  // Relaxed: each caller takes a number of its own, that is all
  static constinit Atomic<std::uint64_t> drawn{0};
  return mixed(mixed(seed) + drawn.fetch_add_relaxed(0x9E3779B97F4A7C15u));
}

// Asked once: what comes later changes no address of this process. A kernel that refuses to say
// randomises.
bool has_fixed_addresses() {
  enum : int { kNotAsked, kRandom, kFixed };
  // Any thread finds the same: no ordering needed
  static constinit Atomic<int> known{kNotAsked};
  int value = known.load_relaxed();
  if (value == kNotAsked) {
    constexpr long kOnlyAsk = 0xFFFFFFFF;
    const long personality = system_call(SYS_personality, kOnlyAsk, 0, 0);
    value = personality >= 0 && (personality & ADDR_NO_RANDOMIZE) != 0 ? kFixed : kRandom;
    known.store_relaxed(value);
  }
  return value == kFixed;
}

struct Secret {
  std::uint64_t words[2] = {};
};

// 16 bytes of AT_RANDOM, which every process has: libc takes its canary and its pointer
// guard from them. And 16 bytes more that nobody else knows, unless it is an early boot or
// a filter stands already.
Secret draw() {
  Secret given{};
  Secret own{};
  if (const void* at = pointer_to(auxiliary(Auxiliary::kRandom)); at != nullptr)
    memcpy(&given, at, sizeof given);
  constexpr unsigned kDoNotWait = 1;  // GRND_NONBLOCK
  if (system_call(SYS_getrandom, argument(&own), sizeof own, kDoNotWait) != sizeof own) {
    own = {{address_of(&own), now_ms()}};
  }
  return {{given.words[0] ^ own.words[0], given.words[1] ^ own.words[1]}};
}

// Drawn once. Each word is that of who was first: of two threads that draw at once one word each
// may stay. So there is no state in which a fork could leave it for ever.
Secret secret() {
  static constinit Atomic<std::uint64_t> words[2] = {Atomic<std::uint64_t>{0},
                                                     Atomic<std::uint64_t>{0}};
  // Relaxed: nothing follows from a word but itself.
  Secret known{{words[0].load_relaxed(), words[1].load_relaxed()}};
  if (SPANALLOC_LIKELY(known.words[0] != 0 && known.words[1] != 0)) return known;
  const Secret drawn = draw();
  for (unsigned i = 0; i < 2; ++i) {
    std::uint64_t seen = 0;
    const std::uint64_t own = drawn.words[i] != 0 ? drawn.words[i] : 1;
    known.words[i] = words[i].compare_exchange_strong_acquire(seen, own) ? own : seen;
  }
  return known;
}

constexpr std::uint64_t rotated(std::uint64_t x, unsigned bits) {
  return x << bits | x >> (64 - bits);
}

// SipHash-2-4 (Aumasson and Bernstein, 2012) of one word, with the secret as its key: who has seen
// any of its values can tell neither the key nor another value.
std::uint64_t keyed(const Secret& key, std::uint64_t word) {
  std::uint64_t a = key.words[0] ^ 0x736F6D6570736575u;
  std::uint64_t b = key.words[1] ^ 0x646F72616E646F6Du;
  std::uint64_t c = key.words[0] ^ 0x6C7967656E657261u;
  std::uint64_t d = key.words[1] ^ 0x7465646279746573u;
  const auto rounds = [&](unsigned count) {
    for (; count != 0; --count) {
      a += b;
      c += d;
      b = rotated(b, 13) ^ a;
      d = rotated(d, 16) ^ c;
      a = rotated(a, 32);
      c += b;
      a += d;
      b = rotated(b, 17) ^ c;
      d = rotated(d, 21) ^ a;
      c = rotated(c, 32);
    }
  };
  constexpr std::uint64_t kEnd = std::uint64_t{sizeof word} << 56;  // its length is the last word
  for (const std::uint64_t each : {word, kEnd}) {
    d ^= each;
    rounds(2);
    a ^= each;
  }
  c ^= 0xFF;
  rounds(4);
  return a ^ b ^ c ^ d;
}

// Ticks of the processor. (Who has forbidden itself to read them has forbidden
// itself libc's clocks, too.)
std::uint64_t cycles() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  std::uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#endif
}

void add_salt(std::uint64_t salt) {
  child_salt.store_relaxed(mixed(child_salt.load_relaxed() + mixed(salt)) | 1);
}

// A child of _Fork or clone, which calls no handlers, or one in which other libraries'
// handlers run before ours. No number tells it from its siblings: the time does, and where two
// have the same one, the CPU.
void salt_child_that_nobody_told() {
  Marks* const here = marks.load_acquire();
  if (SPANALLOC_LIKELY(here == nullptr || here->is_salted.load_acquire() != 0)) return;
  add_salt(cycles() ^ rotated(current_cpu(), 48));
  here->is_salted.store_release(1);  // release: the salt
}

}  // namespace

void ask() {
  const std::size_t address_space = limit_of(RLIMIT_AS);
  answers.address_space_limit.store_relaxed(address_space);
  answers.memory_limit.store_relaxed(min_of(address_space, limit_of(RLIMIT_DATA)));
  ask_for_cpus();
  answers.charges_all.store_relaxed(charges_all() ? 1 : 0);
  answers.known.store_release(1);
}

void start() {
  ask();
  map_marks();
  (void)has_fixed_addresses();
  (void)secret();
  (void)now_ms();
}

std::size_t address_space_limit() {
  return asked().address_space_limit.load_relaxed();
}

std::size_t memory_limit() {
  return asked().memory_limit.load_relaxed();
}

void forget_memory_limit() {
  answers.memory_limit.store_relaxed(SIZE_MAX);
}

unsigned cpu_count() {
  return asked().cpus.load_relaxed();
}

bool may_renew() {
  const Marks* const here = marks.load_acquire();
  return here != nullptr && here->is_first.load_relaxed() != 0 &&
         asked().charges_all.load_relaxed() == 0;
}

unsigned cpu_numbers() {
  return asked().cpu_numbers.load_relaxed();
}

unsigned current_cpu() {
  if (&__rseq_size != nullptr && __rseq_size != 0) {
    constexpr std::size_t kCpuId = 4;  // of struct rseq; negative: the thread has none
    const auto* area = static_cast<const char*>(__builtin_thread_pointer()) + __rseq_offset;
    const int cpu = *reinterpret_cast<const volatile int*>(area + kCpuId);
    if (SPANALLOC_LIKELY(cpu >= 0)) return static_cast<unsigned>(cpu);
  }
#if defined(__x86_64__)
  using CpuFunction = long (*)(unsigned*, unsigned*, void*);
  constexpr std::uintptr_t kNone = 1;
  // Any thread finds the same: no ordering needed
  static constinit Atomic<std::uintptr_t> known{0};
  if (known.load_relaxed() == 0)
    known.store_relaxed(max_of(address_of(vdso_function("__vdso_getcpu")), kNone));
  if (const std::uintptr_t function = known.load_relaxed(); function != kNone) {
    unsigned cpu = 0;
    if (reinterpret_cast<CpuFunction>(function)(&cpu, nullptr, nullptr) == 0) return cpu;
  }
#endif
  return static_cast<unsigned>(mixed(address_of(thread_id())) >> 32);
}

std::uint64_t random_bits() {
  static constinit Atomic<std::uint64_t> drawn{0};
  if (seed() != kNoSeed) return repeatable(seed());
  salt_child_that_nobody_told();
  const std::uint64_t number = drawn.fetch_add_relaxed(1);
  // A fork's child goes on with the numbers of another key.
  Secret key = secret();
  if (const std::uint64_t salt = child_salt.load_relaxed(); salt != 0) {
    key = {{keyed(key, salt), keyed(key, ~salt)}};
  }
  return keyed(key, number);
}

// The seed of addresses alone: secrets are drawn as ever, from random_bits().
std::uint64_t random_place_bits() {
  constexpr std::uint64_t kSeedOfFixed = 0;
  return seed() == kNoSeed && has_fixed_addresses() ? repeatable(kSeedOfFixed) : random_bits();
}

void before_fork() {
  salt_child_that_nobody_told();
  // Relaxed: each fork has its own number, that is all
  fork_number = forks.fetch_add_relaxed(1) + 1;
  if (Marks* here = marks.load_acquire(); here != nullptr) {
    here->is_known.store_relaxed(1);
  } else {
    noted_process.store_relaxed(process_id());
  }
}

bool children_show_themselves() {
  return marks.load_acquire() != nullptr;
}

bool is_new_child() {
  if (const Marks* here = marks.load_acquire(); here != nullptr)
    return here->is_known.load_relaxed() == 0;
  return noted_process.load_relaxed() != process_id();
}

// By the number of its fork, which no other child of this parent has.
void enter_child() {
  add_salt(fork_number);
  if (Marks* here = marks.load_acquire(); here != nullptr) {
    here->is_salted.store_release(1);
    here->is_known.store_relaxed(1);
  } else {
    noted_process.store_relaxed(process_id());
  }
}

}  // namespace spanalloc::os
