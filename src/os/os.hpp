// The contract with the kernel. Nothing outside os/ does a system call. (linux.cpp: memory,
// options, messages; asked.cpp; clock.cpp.)
//
// Every function may be called by any thread at any time, also before main and in a fork's child.
// None allocates, none is a cancellation point (they run under locks that no unwinding releases),
// none changes errno (a failing kernel call is an ordinary event that is told by the result).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/compiler.hpp"

namespace spanalloc::os {

/// Bytes in a page of the running kernel (asked at run time; 4 KiB to 64 KiB).
std::size_t page_size();

/// Address space only: PROT_NONE, not charged, `alignment` a power of two. nullptr when refused.
void* reserve(std::size_t bytes, std::size_t alignment);
/// Makes a reserved range readable and writable; fresh pages are zero. False
/// when the kernel refuses.
bool open(void* address, std::size_t bytes);
/// What became of a mapping that must lie at one address.
enum class Placed { kYes, kTaken, kRefused };
/// Maps [address, address + bytes) readable and writable if nothing is mapped there. Of nullptr
/// nothing is kept: kTaken means that as much would be granted elsewhere.
Placed open_at(void* address, std::size_t bytes);
/// The same as address space only.
Placed reserve_at(void* address, std::size_t bytes);
/// Makes an open range address space only again: pages and charge are gone. False
/// when the kernel refuses.
bool close(void* address, std::size_t bytes);
/// Gives address space back for good. False: refused, the range is as it was (a hole in a mapping
/// makes two of one, and a process may have vm.max_map_count of them).
bool release(void* address, std::size_t bytes);

/// A readable and writable zeroed mapping of its own. nullptr when refused.
void* map(std::size_t bytes, std::size_t alignment);
/// release() of what map() has returned; if it is refused, its pages go back all the same. Where
/// addresses are short map() uses them again. (What an arena releases is no place for anybody.)
bool unmap(void* address, std::size_t bytes);
/// Makes a mapping larger, at a place that the kernel chooses when it cannot grow where it is, or
/// smaller where it is; what is behind the old end reads as zero. So can any open range be: then
/// nothing is mapped at its old place any more. nullptr when refused (it is not one mapping, or
/// memory is out): nothing has changed.
void* remap(void* address, std::size_t old_bytes, std::size_t new_bytes);

/// Returns the physical pages of an open range; true only if the range now reads as zero. After
/// false (for instance under mlockall) the old bytes may stay, all or some.
bool purge(void* address, std::size_t bytes);
/// The same for an open range that nobody uses. If may_renew() it is mapped anew, too, where that
/// is granted: then nothing is left of what the program has set on its pages by madvise, mbind,
/// mlock, mprotect, pkey_mprotect or userfaultfd. Not while memory_is_locked(): a new mapping would
/// be resident at once.
bool renew(void* address, std::size_t bytes);
/// Whether the kernel would grant a mapping of this size now.
bool would_grant(std::size_t bytes);
/// Advice on transparent huge pages. Refusal is of no consequence and is not told.
void forbid_huge_pages(void* address, std::size_t bytes);
void prefer_huge_pages(void* address, std::size_t bytes);
/// Whether the word at this address can be read.
bool can_be_read(const std::uint32_t* word);
/// Pages of these that are in memory; 0 where the kernel does not tell. By an option only:
/// no call of libc's malloc.
std::size_t resident_pages(void* address, std::size_t bytes);

/// What becomes of a new page of address space. kLocked: it is made resident at once
/// (mlockall(MCL_FUTURE)), or refused because too much is locked. kRefused: there are no more
/// addresses, or mappings, for this process.
enum class NewPage { kPlain, kLocked, kRefused };
NewPage new_page();
/// True when every new page of this process is locked, or none can be had.
inline bool memory_is_locked() {
  return new_page() != NewPage::kPlain;
}
/// True when the mapping of this reserved, unopened page is locked (mlockall(MCL_CURRENT)): opening
/// it would make it resident at once.
bool is_locked(void* page);

// --- What the kernel is asked once ---------------------------------------------------------------
//
// After main begins only those system calls are made that libc's own malloc makes: a filter may
// stand, and end the process for any other one. So what is only asked is asked before, by start(),
// or by what needs it first. None of it goes through a function that another library may have put
// its own in the place of, but for getauxval, which may be one that allocates, as those that map
// memory may (kernel_call.hpp).

/// Asks all of it. From the library's constructor, before or after the first allocation.
void start();
/// Asks anew what may change while a process runs: limits, and CPUs. For tests.
void ask();
/// The limit on address space that stood then, in bytes; SIZE_MAX: none. One that is set later
/// is met by being refused.
std::size_t address_space_limit();
/// The smaller one of the limits on address space and on data that stood then.
std::size_t memory_limit();
inline bool has_memory_limit() {
  return memory_limit() != SIZE_MAX;
}
/// It has turned out that it does not stand any more.
void forget_memory_limit();
/// Number of CPUs the process might run on then, or that the quota of its control groups paid for,
/// if that was less (not told of a static program: asked.cpp), at least 1; or what SPANALLOC_CPUS
/// said then (simulated machines).
unsigned cpu_count();
/// CPUs that the machine might ever have are numbered below this, as far as the kernel said then:
/// so long are its sets of CPUs.
unsigned cpu_numbers();
/// A random number that nobody can foretell who does not know the secret that was drawn then. In a
/// fork's child others follow than in its parent and its siblings. (In a child of which no
/// handlers of forks are told: from Linux 4.14 on.) With SPANALLOC_SEED the next one of a sequence
/// that this number decides.
std::uint64_t random_bits();
/// The same for what decides where memory lies, and for no secret. Where the process was started
/// without address randomisation (ADDR_NO_RANDOMIZE: debuggers, setarch -R) and no seed is set,
/// the next one of a fixed sequence.
std::uint64_t random_place_bits();

/// Whether a mapping may take the place of one of ours. Not in a fork's child: what its parent has
/// excepted from forks (MADV_DONTFORK) may be somebody else's there. Nor where every writable page
/// is charged (vm.overcommit_memory=2): before Linux 6.12 the kernel unmaps, and then may refuse.
/// False where one of the two is not known: before Linux 4.14, without /proc, in a static program.
bool may_renew();

// --- What is no system call ----------------------------------------------------------------------

/// The number of the CPU that the calling thread runs on, or just did. It may be cpu_count()
/// or more: that one counts the CPUs that the process may use, whatever numbers these have.
/// Where neither libc nor a function that the kernel has mapped tells (vdso.hpp) each thread
/// has a number of its own.
unsigned current_cpu();
/// Milliseconds of a coarse monotonic clock, by a function that the kernel has mapped. Where it has
/// mapped none (some emulators and sandboxes), or with SPANALLOC_CLOCK=counted, time passes by
/// events: each 16th call, by any thread, is a millisecond, and so is each that sleep_ms() sleeps.
/// With SPANALLOC_CLOCK=still it stands still.
std::uint64_t now_ms();
/// An address that no two living threads share, and even; the same before and after a fork,
/// in the thread that forks.
#ifdef SPANALLOC_ATOMIC_BACKEND
const void* thread_id();  // models have threads of their own
#else
alignas(2) SPANALLOC_TLS extern constinit thread_local char thread_mark_byte;
inline const void* thread_id() {
  return &thread_mark_byte;
}
#endif

/// True while the calling thread is in one of these functions, in what another library has put
/// in the place of libc's mmap or the like: the thread may hold locks of ours, and its
/// structures may be half changed.
#ifdef SPANALLOC_ATOMIC_BACKEND
inline constexpr bool kHasKernelCalls = false;  // models have none
inline bool in_kernel_call() {
  return false;
}
#else
inline constexpr bool kHasKernelCalls = true;
inline bool in_kernel_call() {
  return thread_mark_byte != 0;
}
#endif
/// Room for what the calling thread's short paths read, while it is hidden from them.
struct alignas(16) HiddenThread {
  unsigned char room[1024];
};
/// A library that replaces malloc defines both: what its thread has at hand is put aside until
/// show_thread(), so that no short path finds anything. Elsewhere nobody is served in a kernel
/// call, and there is none.
[[gnu::weak]] void hide_thread(HiddenThread& room) noexcept;
[[gnu::weak]] void show_thread(const HiddenThread& room) noexcept;

/// As map() and release(), by system calls that no library stands in for: nobody hears of it.
void* map_unheard(std::size_t bytes, std::size_t alignment);

/// Before a fork, in the thread that forks.
void before_fork();
/// In that thread, before or after the fork: whether this is the child, and enter_child() has not
/// been called. (Not so in a child of vfork, which shares its parent's memory.)
bool is_new_child();
/// In a fork's child, once.
void enter_child();
/// Whether the kernel itself shows that a process is a fork's child: then one that is never told of
/// it draws numbers of its own all the same. Not so on kernels older than Linux 4.14 and on
/// emulators without a vDSO.
bool children_show_themselves();

// --- Waiting -------------------------------------------------------------------------------------
//
// By futexes, with a time-out: sched_yield and nanosleep are no calls of libc's malloc. A time-out
// ends later by the thread's timer slack, 50 us unless the program has changed it.

/// Sleeps until somebody wakes it, for `ns` at most, if the word there is `seen` (by its lower
/// half). No cancellation point; nor are the others.
void sleep_while(const void* word, std::uint64_t seen, std::uint64_t ns);
/// Wakes one of those that sleep there. False: nobody did. (The memory need not be there any more.)
bool wake_one(const void* word);

// Nobody wakes who is in one of these.

/// Gives the CPU away, for as short a time as the kernel can.
void yield();
/// Sleeps for some tens of microseconds.
void sleep_briefly();
/// The same for so many milliseconds, or less.
void sleep_ms(std::uint64_t ms);

/// Value of the environment option SPANALLOC_<name>; nullptr if unset or empty, or in a set-user-id
/// program.
const char* option(const char* name);
/// The same as an unsigned number within [low, high]. Unset: `fallback`. Malformed or out of range:
/// one warning line on stderr and `fallback`.
std::uint64_t option_number(const char* name, std::uint64_t low, std::uint64_t high,
                            std::uint64_t fallback);
/// The same as a number of bytes, with K, M, G or T behind it for the powers of 1,024, or as
/// `word`, which counts as kSizeIsWord. Unset: `fallback`. Another word, or 2^60 and more: one
/// warning line on stderr, which ends with `want`, and `fallback`.
std::uint64_t option_size(const char* name, const char* word, std::uint64_t fallback,
                          const char* want);
inline constexpr std::uint64_t kSizeIsWord = UINT64_MAX;
/// Which of `count` words it is. Unset: `fallback`. Another word: one warning line on stderr, which
/// ends with `want`, and `fallback`.
unsigned option_choice(const char* name, const char* const* words, unsigned count,
                       unsigned fallback, const char* want);

/// Whether it is 1, yes, on or true; 0, no, off and false say that it is not. Unset: `fallback`.
/// Else: one warning line on stderr, and `fallback`.
bool option_switch(const char* name, bool fallback);

/// Copies its value, and a terminating 0, to `out`. False: unset, or (after a warning line on
/// stderr) too long for `size` bytes.
bool option_text(const char* name, char* out, std::size_t size);

/// What a heap knows of an address that a report names. 0 and null: unknown.
struct AddressFacts {
  std::uintptr_t block = 0;      ///< where the block begins in which the address lies,
  std::size_t block_bytes = 0;   ///< and its bytes
  const char* range = nullptr;   ///< what the heap calls a range of blocks of one size,
  std::size_t range_number = 0;  ///< its number there,
  std::uintptr_t range_at = 0;   ///< where it begins,
  const char* state = nullptr;   ///< what it is,
  std::uintptr_t owner = 0;      ///< and the thread_id() of the thread that has it
  bool was_block = false;        ///< the block was there last: the memory may be another's by now
};

/// Writes "spanalloc: <what> <address> (<facts>)" to stderr in one line and aborts. (The facts are
/// a write of their own: should the damaged heap end the look for them, the rest is there.) A
/// handler of SIGABRT may do with the heap what it likes: whoever calls this has taken what is
/// damaged out of use, and what the thread holds it is made to let go of first (before_fatal()). If
/// a handler that this has called is still running in this thread, it is the process's end, by
/// SIGABRT's default action.
[[noreturn]] void fatal(const char* what, const void* address);
[[noreturn]] void fatal(const char* what);
/// fatal() of a range by its first address, which is no block's: the facts name none.
[[noreturn]] void fatal_of_range(const char* what, const void* start);
/// What has the calling thread let go of all locks; and what tells of an address, without a lock.
/// (False: it is no address of a heap.)
void before_fatal(void (*let_go)(), bool (*describe)(const void* address, AddressFacts& out));
/// Writes bytes to a file descriptor. False: not all of them, and nothing that anybody could do
/// about it.
bool write_text(int fd, const char* text, std::size_t length);

// --- For statistics: system calls that libc's malloc does not make -------------------------------

/// A file to write to, emptied if there is one, with the rights that the process's mask leaves.
/// Does not wait for a reader. Negative: refused, with that error of the kernel's.
int make_file(const char* path);
/// False: something that was written there is lost.
bool close_file(int fd);
/// For a process that ends: what the calling thread writes for nobody (SIGPIPE), or beyond a limit
/// (SIGXFSZ), fails, and that is all.
void ignore_write_signals();
/// The name of the file by which the program was started, of a script that of the script: in memory
/// that the program may write over.
const char* program_name();
int process_id();
/// The kernel's number of the calling thread.
int kernel_thread_id();
/// pthread_self() of the thread whose thread_id() is `mark`. (No system call. Where thread-local
/// storage is not at the same distance from it in each thread, as under sanitizers: any number.)
std::uintptr_t pthread_of(std::uintptr_t mark);

/// Keeps errno as it was: the malloc family must not change it on success.
class ErrnoGuard {
 public:
  ErrnoGuard();
  ~ErrnoGuard();
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

 private:
  int saved_;
};

}  // namespace spanalloc::os
