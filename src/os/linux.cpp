// Linux behind os.hpp. See there for every function's contract.
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "os/auxiliary.hpp"
#include "os/kernel_call.hpp"
#include "os/os.hpp"
#include "os/system_call.hpp"

namespace spanalloc::os {

ErrnoGuard::ErrnoGuard() : saved_(errno) {}
ErrnoGuard::~ErrnoGuard() {
  errno = saved_;
}

namespace {

// Any thread finds the same values: no ordering needed.
constexpr std::uintptr_t kNotAsked = UINTPTR_MAX;
struct Known {
  unsigned long type;
  Atomic<std::uintptr_t> value{kNotAsked};
};
constinit Known auxiliaries[] = {{AT_PAGESZ}, {AT_SECURE}, {AT_SYSINFO_EHDR},
                                 {AT_RANDOM}, {AT_BASE},   {AT_EXECFN}};

SPANALLOC_COLD std::uintptr_t ask_for(Known& entry) {
  ErrnoGuard keep;
  const std::uintptr_t value = getauxval(entry.type);
  entry.value.store_relaxed(value);
  return value;
}

}  // namespace

std::uintptr_t auxiliary(Auxiliary which) {
  Known& entry = auxiliaries[static_cast<unsigned>(which)];
  const std::uintptr_t value = entry.value.load_relaxed();
  return SPANALLOC_LIKELY(value != kNotAsked) ? value : ask_for(entry);
}

std::size_t page_size() {
  const std::uintptr_t known =
      auxiliaries[static_cast<unsigned>(Auxiliary::kPageSize)].value.load_relaxed();
  if (SPANALLOC_LIKELY(known != kNotAsked)) return known;
  // Another library's getauxval, called from here, has come back for memory. No page is smaller,
  // and what is mapped and unmapped by too small a one is rounded up by the kernel.
  if (in_kernel_call()) return 4 * kKiB;
  return auxiliary(Auxiliary::kPageSize);
}

namespace {

void* try_map(void* hint, std::size_t bytes, int protection, int flags) {
  void* p = mmap(hint, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

// By a hint, which the kernel follows where the range is free: whether it was is seen
// from the answer. (MAP_FIXED_NOREPLACE, which says so itself, is a flag that filters of
// system calls may not know.)
Placed map_by_hint(char* address, std::size_t bytes, int protection, int flags) {
  void* got = try_map(address, bytes, protection, flags);
  if (got == nullptr) return Placed::kRefused;
  if (got == address) return Placed::kYes;
  munmap(got, bytes);
  return Placed::kTaken;
}

// What a whole entry of the page table's second level maps: a huge page.
std::size_t huge_page() {
  return page_size() * (page_size() / sizeof(std::uint64_t));
}

// Linux 6.7 to 6.12 place what is as large as a huge page by looking for room for one more, from
// the hint on; so they pass by a hole that has just the size. But they do find it for all but the
// last huge page, and for what is smaller than one as they are told. So it is tried in three parts,
// before it counts as taken.
Placed map_in_parts(char* address, std::size_t bytes, int protection, int flags) {
  const std::size_t half = huge_page() / 2;
  const std::size_t ends[] = {bytes - 2 * half, bytes - half, bytes};
  std::size_t done = 0;
  for (const std::size_t end : ends) {
    if (end == done) continue;
    const Placed placed = map_by_hint(address + done, end - done, protection, flags);
    if (placed != Placed::kYes) {
      if (done != 0) munmap(address, done);
      return placed;
    }
    done = end;
  }
  return Placed::kYes;
}

Placed map_exactly(void* address, std::size_t bytes, int protection, int flags) {
  auto* const start = static_cast<char*>(address);
  const Placed placed = map_by_hint(start, bytes, protection, flags);
  if (placed != Placed::kTaken || bytes < huge_page() || address == nullptr) return placed;
  return map_in_parts(start, bytes, protection, flags);
}

// What was unmapped last: there may be room for as much again. (A hint: any thread's will do.)
constinit Atomic<std::uintptr_t> unmapped_last{0};

// Where memory is so short that more than is needed is not granted: a bit below the place that the
// kernel chooses for it, where mostly nothing is; or where something was unmapped last.
void* map_aligned_exactly(std::size_t bytes, std::size_t alignment, int protection, int flags) {
  void* any = try_map(nullptr, bytes, protection, flags);
  if (any == nullptr || address_of(any) % alignment == 0) return any;
  munmap(any, bytes);
  for (const std::uintptr_t near : {address_of(any), unmapped_last.load_relaxed()}) {
    void* place = pointer_to(align_down(near, alignment));
    if (place != nullptr && map_exactly(place, bytes, protection, flags) == Placed::kYes)
      return place;
  }
  return nullptr;
}

// Maps with any alignment: over-maps and cuts the ends off.
void* map_aligned(std::size_t bytes, std::size_t alignment, int protection, int flags) {
  const std::size_t page = page_size();
  if (alignment <= page) return try_map(nullptr, bytes, protection, flags);
  if (bytes > SIZE_MAX - alignment) return nullptr;
  const std::size_t slack = alignment - page;
  void* raw = try_map(nullptr, bytes + slack, protection, flags);
  if (raw == nullptr) return map_aligned_exactly(bytes, alignment, protection, flags);
  const std::uintptr_t begin = address_of(raw);
  const std::uintptr_t aligned = align_up(begin, alignment);
  if (aligned != begin) munmap(raw, aligned - begin);
  const std::uintptr_t tail = begin + slack - aligned;
  if (tail != 0) munmap(pointer_to(aligned + bytes), tail);
  return pointer_to(aligned);
}

}  // namespace

void* reserve(std::size_t bytes, std::size_t alignment) {
  ErrnoGuard keep;
  return map_aligned(bytes, alignment, PROT_NONE, MAP_NORESERVE);
}

Placed reserve_at(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return map_exactly(address, bytes, PROT_NONE, MAP_NORESERVE);
}

bool open(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return mprotect(address, bytes, PROT_READ | PROT_WRITE) == 0;
}

bool close(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  // A new mapping in the old one's place: mprotect would keep the charge under strict overcommit.
  return try_map(address, bytes, PROT_NONE, MAP_NORESERVE | MAP_FIXED) != nullptr;
}

Placed open_at(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return map_exactly(address, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE);
}

bool release(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return munmap(address, bytes) == 0;
}

bool unmap(void* address, std::size_t bytes) {
  if (!release(address, bytes)) {
    // What lies in the middle of a mapping stays, where there are as many mappings as may be. Its
    // pages need not.
    (void)purge(address, bytes);
    return false;
  }
  unmapped_last.store_relaxed(address_of(address));
  return true;
}

void* map(std::size_t bytes, std::size_t alignment) {
  ErrnoGuard keep;
  return map_aligned(bytes, alignment, PROT_READ | PROT_WRITE, 0);
}

void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes) {
  ErrnoGuard keep;
  // Nothing has to move to become smaller. (Linux would not; an emulator may.)
  if (new_bytes <= old_bytes) {
    const std::size_t rest = old_bytes - new_bytes;
    return rest == 0 || munmap(static_cast<char*>(address) + new_bytes, rest) == 0 ? address
                                                                                   : nullptr;
  }
  // The flag that glibc's realloc passes, and no other.
  void* p = mremap(address, old_bytes, new_bytes, MREMAP_MAYMOVE);
  return p == MAP_FAILED ? nullptr : p;
}

namespace {

// Some emulators answer that they have given pages back and keep their contents: asked
// once, on one page. Where that cannot be asked (no memory is left, or all of it is
// locked) the kernel is believed.
bool purged_pages_are_zero() {
  static constinit Atomic<int> known{0};  // any thread finds the same: no ordering needed
  if (known.load_relaxed() == 0) {
    auto* page =
        static_cast<volatile char*>(try_map(nullptr, page_size(), PROT_READ | PROT_WRITE, 0));
    if (page == nullptr) return true;
    *page = 1;
    const bool gone = madvise(const_cast<char*>(page), page_size(), MADV_DONTNEED) == 0;
    if (gone) known.store_relaxed(*page == 0 ? 1 : 2);
    munmap(const_cast<char*>(page), page_size());
  }
  return known.load_relaxed() != 2;
}

}  // namespace

bool purge(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  return purged_pages_are_zero() && madvise(address, bytes, MADV_DONTNEED) == 0;
}

// madvise comes first: caches of memory that is registered with a network card watch madvise,
// munmap and mremap, but not always mmap. (They hear of a refused madvise, too.) EINVAL: a part is
// locked, and what lies behind it was not looked at. ENOMEM: a page is missing.
//
// Then one mapping takes the other's place in one call: no mmap or fork of another thread can come
// between. It asks for what open() and open_at() have, so it joins its neighbours.
//
// A refusal leaves the old mapping. The kernel looks at limits, and allocates what it needs to
// split mappings, before it unmaps. Later it needs memory of its own for one small object, none
// where the new mapping joins a neighbour. It refuses that only in a control group that has no
// memory left and no process that may be ended; there a page that is touched waits, too. So a
// second try, in a hole, is all that is done about it. (may_renew() says of the charge.)
bool renew(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  const bool purged = madvise(address, bytes, MADV_DONTNEED) == 0;
  if (!purged && errno != EINVAL) return false;
  if (may_renew()) {
    if (try_map(address, bytes, PROT_READ | PROT_WRITE, MAP_NORESERVE | MAP_FIXED) != nullptr)
      return true;
    const bool in_hole =
        errno == ENOMEM && madvise(address, page_size(), MADV_DONTNEED) != 0 && errno == ENOMEM;
    if (in_hole) return open_at(address, bytes) == Placed::kYes;
  }
  return purged && purged_pages_are_zero();
}

bool would_grant(std::size_t bytes) {
  ErrnoGuard keep;
  void* p = try_map(nullptr, bytes, PROT_READ | PROT_WRITE, 0);
  if (p != nullptr) munmap(p, bytes);
  return p != nullptr;
}

void forbid_huge_pages(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  madvise(address, bytes, MADV_NOHUGEPAGE);
}

void prefer_huge_pages(void* address, std::size_t bytes) {
  ErrnoGuard keep;
  madvise(address, bytes, MADV_HUGEPAGE);
}

std::size_t resident_pages(void* address, std::size_t bytes) {
  unsigned char told[512] = {};
  std::size_t resident = 0;
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t part = min_of(bytes - at, sizeof told * page_size());
    if (system_call(SYS_mincore, argument(static_cast<char*>(address) + at),
                    static_cast<long>(part), argument(told)) != 0)
      return 0;
    for (std::size_t i = 0; i < part / page_size(); ++i) resident += told[i] & 1;
    at += part;
  }
  return resident;
}

NewPage new_page() {
  ErrnoGuard keep;
  // The kernel tells MCL_FUTURE nowhere directly; a fresh mapping that is resident before it was
  // touched does. MADV_DONTNEED answers EINVAL on a locked mapping, which costs no page.
  void* probe = try_map(nullptr, page_size(), PROT_NONE, MAP_NORESERVE);
  if (probe == nullptr) return errno == EAGAIN ? NewPage::kLocked : NewPage::kRefused;
  const bool locked = is_locked(probe);
  munmap(probe, page_size());
  return locked ? NewPage::kLocked : NewPage::kPlain;
}

bool is_locked(void* page) {
  ErrnoGuard keep;
  return madvise(page, page_size(), MADV_DONTNEED) != 0 && errno == EINVAL;
}

// Not zero: how many kernel calls the thread is in (os/kernel_call.hpp).
alignas(2) SPANALLOC_TLS constinit thread_local char thread_mark_byte = 0;

SPANALLOC_COLD const char* option(const char* name) {
  if (auxiliary(Auxiliary::kIsSecure) != 0 || environ == nullptr) return nullptr;
  // getenv itself may be called before libc is ready for it; environ is set by the loader.
  static constexpr char kPrefix[] = "SPANALLOC_";
  const std::size_t length = strlen(name);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* text = *entry;
    if (strncmp(text, kPrefix, sizeof kPrefix - 1) != 0) continue;
    text += sizeof kPrefix - 1;
    if (strncmp(text, name, length) == 0 && text[length] == '=')
      return text[length + 1] != '\0' ? text + length + 1 : nullptr;
  }
  return nullptr;
}

namespace {

SPANALLOC_COLD void say_ignored(const char* name, const char* text, const char* want) {
  char line[256];
  const int n = snprintf(line, sizeof line, "spanalloc: ignored SPANALLOC_%s=%.64s: want %s\n",
                         name, text, want);
  if (n > 0) write_text(2, line, min_of(static_cast<std::size_t>(n), sizeof line - 1));
}

}  // namespace

SPANALLOC_COLD std::uint64_t option_number(const char* name, std::uint64_t low, std::uint64_t high,
                                           std::uint64_t fallback) {
  const char* text = option(name);
  if (text == nullptr) return fallback;
  std::uint64_t value = 0;
  bool good = true;
  for (const char* c = text; good && *c != '\0'; ++c) {
    good = *c >= '0' && *c <= '9' && value <= (UINT64_MAX - 9) / 10;
    value = value * 10 + static_cast<std::uint64_t>(*c - '0');
  }
  if (good && value >= low && value <= high) return value;
  char want[64];
  snprintf(want, sizeof want, "a number from %llu to %llu", static_cast<unsigned long long>(low),
           static_cast<unsigned long long>(high));
  say_ignored(name, text, want);
  return fallback;
}

SPANALLOC_COLD std::uint64_t option_size(const char* name, const char* word, std::uint64_t fallback,
                                         const char* want) {
  constexpr std::uint64_t kBelow = std::uint64_t{1} << 60;
  const char* text = option(name);
  if (text == nullptr) return fallback;
  if (strcmp(text, word) == 0) return kSizeIsWord;
  std::uint64_t value = 0;
  const char* c = text;
  for (; *c >= '0' && *c <= '9' && value < kBelow; ++c)
    value = value * 10 + static_cast<std::uint64_t>(*c - '0');
  bool good = c != text;
  if (good && *c != '\0') {
    static constexpr char kUnits[] = "KMGT";
    const char* unit = kUnits;
    for (; *unit != '\0' && *unit != *c && *unit + ('a' - 'A') != *c; ++unit) {
    }
    const auto shift = 10 * static_cast<unsigned>(unit - kUnits + 1);
    good = *unit != '\0' && c[1] == '\0' && value < kBelow >> shift;
    if (good) value <<= shift;
  }
  if (good && value < kBelow) return value;
  say_ignored(name, text, want);
  return fallback;
}

SPANALLOC_COLD unsigned option_choice(const char* name, const char* const* words, unsigned count,
                                      unsigned fallback, const char* want) {
  const char* text = option(name);
  if (text == nullptr) return fallback;
  for (unsigned i = 0; i < count; ++i) {
    if (strcmp(text, words[i]) == 0) return i;
  }
  say_ignored(name, text, want);
  return fallback;
}

SPANALLOC_COLD bool option_switch(const char* name, bool fallback) {
  static constexpr const char* kWords[] = {"0", "no", "off", "false", "1", "yes", "on", "true"};
  return option_choice(name, kWords, 8, fallback ? 4 : 0,
                       "0 or 1, no or yes, off or on, false or true") >= 4;
}

SPANALLOC_COLD bool option_text(const char* name, char* out, std::size_t size) {
  const char* text = option(name);
  if (text == nullptr) return false;
  const std::size_t length = strlen(text);
  if (length >= size) {
    say_ignored(name, text, "some text that is not too long");
    return false;
  }
  memcpy(out, text, length + 1);
  return true;
}

bool write_text(int fd, const char* text, std::size_t length) {
  while (length > 0) {
    const long n = system_call(SYS_write, fd, argument(text), static_cast<long>(length));
    if (n == -EINTR) continue;
    if (n <= 0) return false;
    text += n;
    length -= static_cast<std::size_t>(n);
  }
  return true;
}

int make_file(const char* path) {
  constexpr long kRights = 0666;
  const long fd =
      system_call(SYS_openat, AT_FDCWD, argument(path),
                  O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, kRights);
  return static_cast<int>(fd);
}

bool close_file(int fd) {
  return system_call(SYS_close, fd, 0, 0) == 0;
}

void ignore_write_signals() {
  std::uint64_t signals = std::uint64_t{1} << (SIGPIPE - 1) | std::uint64_t{1} << (SIGXFSZ - 1);
  system_call(SYS_rt_sigprocmask, SIG_BLOCK, argument(&signals), 0, sizeof signals);
}

SPANALLOC_COLD const char* program_name() {
  const auto* path = pointer_to<const char>(auxiliary(Auxiliary::kProgram));
  if (path == nullptr) return "";
  const char* name = path;
  for (const char* c = path; *c != '\0'; ++c) {
    if (*c == '/') name = c + 1;
  }
  return name;
}

int process_id() {
  return static_cast<int>(system_call(SYS_getpid, 0, 0, 0));  // cannot fail
}

int kernel_thread_id() {
  return static_cast<int>(system_call(SYS_gettid, 0, 0, 0));
}

std::uintptr_t pthread_of(std::uintptr_t mark) {
  return mark - address_of(thread_id()) + static_cast<std::uintptr_t>(pthread_self());
}

namespace {

constinit Atomic<void (*)()> let_go_of_locks{nullptr};
constinit Atomic<bool (*)(const void*, AddressFacts&)> describe_address{nullptr};

// As the kernel has it, not libc.
struct KernelAction {
  void* handler = nullptr;
  unsigned long flags = 0;
  void* restorer = nullptr;
  std::uint64_t mask = 0;
};

// The frame of a report, for as long as the handler runs that it has called. Nobody tells us when a
// handler is left by longjmp. Then what comes next writes over the frame's marks, or does not come
// as deep in the stack as a signal's frame reaches, or the stack is gone. Or it is a frame that is
// deeper and has not written where the marks are: then SIGABRT is not blocked any more, as it is
// while its handler runs, if siglongjmp was used and the handler has not asked for SA_NODEFER. If
// none of these tells, the process ends with the second report, without the handler. So it does
//   - if the thread itself has blocked SIGABRT: siglongjmp brings that mask back;
//   - with the ninth report in a row of which only the mask tells: ever deeper in a stack, or on
//     stacks each below the one before, of which none is used again.
// A handler that lets SIGABRT through and comes back with a misuse looks the same,
// and must come to an end.
class Report {
 public:
  Report() {
    for (std::uint64_t& mark : marks_) *const_cast<volatile std::uint64_t*>(&mark) = mark_of(&mark);
    newest_.frame = this;
    // The stack for signals, if the thread has one. (While a handler is on it the kernel may say
    // that there is none, with SS_AUTODISARM.)
    stack_t signals{};
    const bool has_one = system_call(SYS_sigaltstack, 0, argument(&signals), 0) == 0 &&
                         (signals.ss_flags & SS_DISABLE) == 0;
    newest_.signals_at = has_one ? address_of(signals.ss_sp) : 0;
    newest_.signals_size = has_one ? signals.ss_size : 0;
    KernelAction action{};
    newest_.blocks =
        system_call(SYS_rt_sigaction, SIGABRT, 0, argument(&action), sizeof action.mask) == 0 &&
        (action.flags & static_cast<unsigned long>(SA_NODEFER)) == 0;
  }
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  static bool is_in_handler() {
    if (newest_.frame == nullptr) return false;
    if (!is_below_newest()) {
      newest_.let_through = 0;
      return false;
    }
    // (A handler may let SIGABRT through, and so be called again, but not for ever.)
    return !newest_.blocks || is_blocked() || ++newest_.let_through > kMostLetThrough;
  }

 private:
  static constexpr std::size_t kLeastSignalFrame = kKiB;
  static constexpr std::size_t kMarks = 128;
  static constexpr unsigned kMostLetThrough = 8;

  // As far as stack and marks tell: the newest report's frame stands, and the
  // thread has gone on below it.
  static bool is_below_newest() {
    const Report* const report = newest_.frame;
    const std::uintptr_t here = address_of(__builtin_frame_address(0));
    const bool on_signals = newest_.has_for_signals(here);
    const bool was_on_signals = newest_.has_for_signals(address_of(report));
    if (was_on_signals && !on_signals) return false;
    if (was_on_signals == on_signals && here + kLeastSignalFrame > address_of(report)) return false;
    if (!is_readable(&report->marks_[0]) || !is_readable(&report->marks_[kMarks - 1])) return false;
    for (const std::uint64_t& mark : report->marks_) {
      if (*const_cast<const volatile std::uint64_t*>(&mark) != mark_of(&mark)) return false;
    }
    return true;
  }

  // Not in the frame, which may be gone.
  struct Newest {
    const Report* frame;
    std::uintptr_t signals_at;
    std::size_t signals_size;
    // Reports in a row of which the mask alone has told that they are not in it
    unsigned let_through;
    bool blocks;  // the handler, as it runs, SIGABRT

    bool has_for_signals(std::uintptr_t address) const {
      return address - signals_at < signals_size;
    }
  };

  static std::uint64_t mark_of(const std::uint64_t* place) {
    return address_of(place) * 0x9E3779B97F4A7C15u + 1;
  }
  static bool is_blocked() {
    std::uint64_t blocked = 0;
    system_call(SYS_rt_sigprocmask, SIG_BLOCK, 0, argument(&blocked), sizeof blocked);
    return (blocked >> (SIGABRT - 1) & 1) != 0;
  }
  // The kernel reads the word before it finds that it is told to do nothing.
  static bool is_readable(const std::uint64_t* word) {
    constexpr int kNothing = -1;
    return system_call(SYS_rt_sigprocmask, kNothing, argument(word), 0, sizeof *word) != -EFAULT;
  }

  SPANALLOC_TLS static inline constinit thread_local Newest newest_{};

  std::uint64_t marks_[kMarks];
};

// Kernel calls, so that no library between us and the kernel has a say.
[[noreturn]] void end_by_default_action() {
  const KernelAction action{};  // SIG_DFL
  std::uint64_t signals = std::uint64_t{1} << (SIGABRT - 1);
  for (;;) {
    system_call(SYS_rt_sigaction, SIGABRT, argument(&action), 0, sizeof signals);
    system_call(SYS_rt_sigprocmask, SIG_UNBLOCK, argument(&signals), 0, sizeof signals);
    system_call(SYS_tgkill, system_call(SYS_getpid, 0, 0, 0), system_call(SYS_gettid, 0, 0, 0),
                SIGABRT);
  }
}

[[noreturn, gnu::noinline]] void report(const char* line, std::size_t length) {
  // In a kernel call what the locks guard may be half changed; there the
  // thread is served without any.
  if (auto* let_go = let_go_of_locks.load_acquire(); let_go != nullptr && !in_kernel_call())
    let_go();
  write_text(2, line, length);
  if (Report::is_in_handler()) end_by_default_action();
  const Report this_one;
  abort();
}

// A line of a report: what does not fit is left out.
class Line {
 public:
  template <class... Values>
  void add(const char* format, Values... values) {
    const int added = snprintf(text_ + length_, kRoom - length_, format, values...);
    if (added > 0) length_ = min_of(length_ + static_cast<std::size_t>(added), kRoom - 1);
  }
  void add_facts(const AddressFacts& facts, std::uintptr_t address) {
    const bool has_block = facts.block_bytes != 0;
    if (has_block && address == facts.block)
      add(" (%sblock of %zu bytes", facts.was_block ? "was a " : "", facts.block_bytes);
    else if (has_block)
      add(" (inside the block of %zu bytes at %#zx", facts.block_bytes, facts.block);
    if (facts.range != nullptr)
      add("%s%s %zu at %#zx", has_block ? "; " : " (", facts.range, facts.range_number,
          facts.range_at);
    if (facts.range != nullptr && facts.state != nullptr) add(": %s", facts.state);
    if (facts.range != nullptr && facts.owner != 0) {
      add(", thread %#zx%s", pthread_of(facts.owner),
          facts.owner == address_of(thread_id()) ? " (this one)" : "");
    }
    if (has_block || facts.range != nullptr) add("%s", ")");
  }
  void end() { text_[length_++] = '\n'; }
  const char* text() const { return text_; }
  std::size_t length() const { return length_; }

 private:
  static constexpr std::size_t kRoom = 512;  // with a 0 in the place of the line's end
  char text_[kRoom] = {};
  std::size_t length_ = 0;  // below kRoom
};

[[noreturn]] void fatal_with_facts(const char* what, const void* address, bool names_block) {
  Line begin;
  begin.add("spanalloc: %s %p", what, address);
  write_text(2, begin.text(), begin.length());
  Line rest;
  AddressFacts facts;
  if (auto* describe = describe_address.load_acquire();
      describe != nullptr && describe(address, facts)) {
    if (!names_block) facts.block_bytes = 0;
    rest.add_facts(facts, address_of(address));
  }
  rest.end();
  report(rest.text(), rest.length());
}

}  // namespace

void before_fatal(void (*let_go)(), bool (*describe)(const void*, AddressFacts&)) {
  describe_address.store_release(describe);
  let_go_of_locks.store_release(let_go);
}

void fatal(const char* what) {
  Line line;
  line.add("spanalloc: %s", what);
  line.end();
  report(line.text(), line.length());
}

void fatal(const char* what, const void* address) {
  fatal_with_facts(what, address, true);
}
void fatal_of_range(const char* what, const void* start) {
  fatal_with_facts(what, start, false);
}

}  // namespace spanalloc::os

namespace spanalloc {

void assertion_failed(const char* condition, const char* file, int line) {
  char line_text[512];
  const int n = snprintf(line_text, sizeof line_text, "spanalloc: assertion failed: %s (%s:%d)\n",
                         condition, file, line);
  if (n > 0)
    os::write_text(2, line_text, min_of(static_cast<std::size_t>(n), sizeof line_text - 1));
  abort();
}

}  // namespace spanalloc
