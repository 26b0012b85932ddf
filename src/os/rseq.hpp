// Restartable sequences: a few instructions that a thread runs on one CPU without being preempted
// in between, or begins anew. If the kernel takes the CPU from a thread inside of one, moves it to
// another CPU, or delivers a signal to it, it goes on at the sequence's exit, and the sequence has
// done nothing that counts: what counts is its last instruction.
//
// The kernel must know the thread. libc registers each (glibc 2.35 and later), and says where its
// area is. Of that area the kernel owns everything but `sequence`, which the thread points to
// what it is about to run.
//
// What a sequence excludes is the threads that come to the same CPU. Those of other CPUs go on
// beside it: so the last instruction of those here is an atomic compare-and-swap of a word
// that the others change, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/compiler.hpp"

#ifdef SPANALLOC_SEQUENCE_BACKEND  // models have some of their own
#include SPANALLOC_SEQUENCE_BACKEND
#else

// Not there before glibc 2.35, nor in other C libraries. The offset is from the thread pointer; the
// size is 0 where the kernel refused, or a setting forbids.
extern "C" {
[[gnu::weak]] extern const std::ptrdiff_t __rseq_offset;
[[gnu::weak]] extern const unsigned int __rseq_size;
[[gnu::weak]] extern const unsigned int __rseq_flags;
}

namespace spanalloc::os {

// Thread sanitizer sees no order between threads of one CPU, either.
#if defined(__x86_64__)
inline constexpr bool kHasSequences = !kThreadSanitizer;
#else
inline constexpr bool kHasSequences = false;
#endif

/// What the kernel and a thread have together (its struct rseq, as far as it
/// was from the beginning).
struct SequenceArea {
  std::uint32_t cpu_id_start;
  // Where the thread runs, whenever it looks; no CPU's: the kernel does not know it
  std::uint32_t cpu_id;
  std::uint64_t sequence;  // the descriptor of the one that it is in, or was last; 0: none
};

/// Whether libc has registered this process's threads.
inline bool has_sequences() {
  return kHasSequences && &__rseq_size != nullptr && &__rseq_offset != nullptr &&
         &__rseq_flags != nullptr && __rseq_size >= sizeof(SequenceArea) && __rseq_flags == 0;
}
/// The calling thread's. Where there are sequences.
inline volatile SequenceArea& sequence_area() {
  return *reinterpret_cast<volatile SequenceArea*>(static_cast<char*>(__builtin_thread_pointer()) +
                                                   __rseq_offset);
}
/// The CPU that the thread with this area runs on at the moment of the look; no CPU's
/// number: it has no sequences.
inline unsigned sequence_cpu(const volatile SequenceArea& area) {
  return area.cpu_id;
}

/// Two words, which move together.
struct TwoWords {
  std::uint64_t first;
  std::uint64_t second;
};

#if defined(__x86_64__)

// Around a sequence's instructions, which begin at 1 and end behind the one that counts, at 2. Its
// descriptor (3): version, flags, begin, length, where the kernel sends a thread that it has
// stopped in there. That (4) is behind the signature that libc has told the kernel, and out of
// line. The zero flag, set, says that the last instruction was run and found the word as it was:
// an address is never zero.
//
// (`asm inline`: or the compiler takes its lines for as many instructions when it
// decides what to inline.)
//
// The area is cleared behind it, so that the kernel reads no descriptor of a
// library that has been closed.
//
// No unwind information covers 4, as it lies in no function: a backtrace by a handler whose signal
// came inside of a sequence ends there.
#define SPANALLOC_SEQUENCE_BEGIN                              \
  ".pushsection .data.rel.ro.spanalloc,\"aw?\",@progbits\n"   \
  ".balign 32\n"                                              \
  "3: .long 0, 0\n"                                           \
  ".quad 1f, 2f - 1f, 4f\n"                                   \
  ".popsection\n"                                             \
  ".pushsection .text.unlikely.spanalloc,\"ax?\",@progbits\n" \
  ".byte 0x0f, 0xb9, 0x3d\n" /* an undefined one */           \
  ".long 0x53053053\n"                                        \
  "4: testq %%rsp, %%rsp\n"                                   \
  "jmp 5f\n"                                                  \
  ".popsection\n"                                             \
  "leaq 3b(%%rip), %[first]\n"                                \
  "movq %[first], 8(%[area])\n"                               \
  "1: cmpl %[cpu], 4(%[area])\n"                              \
  "jne 5f\n"                                                  \
  "cmpq %[seen], (%[word])\n"                                 \
  "jne 5f\n"
#define SPANALLOC_SEQUENCE_END            \
  "lock cmpxchgq %[desired], (%[word])\n" \
  "2:\n"                                  \
  "5: movq $0, 8(%[area])\n"

/// In the calling thread, whose area it is: if it runs on `cpu`, and `word` is `seen`, both looked
/// at inside of the sequence: writes to `place`; then makes the word, if it is `seen` still,
/// `desired`. False: the word was left alone. (The place may have been written to.)
[[gnu::always_inline]] inline bool write_and_swap(volatile SequenceArea& area, unsigned cpu,
                                                  void* word, std::uint64_t seen,
                                                  std::uint64_t desired, void* place,
                                                  TwoWords value) {
  bool done;
  std::uint64_t scratch;
  asm inline volatile(SPANALLOC_SEQUENCE_BEGIN
                      "movq %[one], (%[place])\n"
                      "movq %[two], 8(%[place])\n" SPANALLOC_SEQUENCE_END
                      : "=@ccz"(done), [first] "=&r"(scratch), [seen] "+a"(seen)
                      : [area] "r"(&area), [cpu] "r"(cpu), [word] "r"(word), [desired] "r"(desired),
                        [place] "r"(place), [one] "r"(value.first), [two] "r"(value.second)
                      : "memory");
  return done;
}

/// The same, but reads from `place`. False: the word was left alone, and the value is nothing.
[[gnu::always_inline]] inline bool read_and_swap(volatile SequenceArea& area, unsigned cpu,
                                                 void* word, std::uint64_t seen,
                                                 std::uint64_t desired, const void* place,
                                                 TwoWords& value) {
  bool done;
  std::uint64_t first;
  std::uint64_t second;
  asm inline volatile(
      SPANALLOC_SEQUENCE_BEGIN
      "movq (%[place]), %[first]\n"
      "movq 8(%[place]), %[second]\n" SPANALLOC_SEQUENCE_END
      : "=@ccz"(done), [first] "=&r"(first), [second] "=&r"(second), [seen] "+a"(seen)
      : [area] "r"(&area), [cpu] "r"(cpu), [word] "r"(word), [desired] "r"(desired),
        [place] "r"(place)
      : "memory");
  value = {first, second};
  return done;
}

#undef SPANALLOC_SEQUENCE_BEGIN
#undef SPANALLOC_SEQUENCE_END

#else
// Never called.
inline bool write_and_swap(volatile SequenceArea&, unsigned, void*, std::uint64_t, std::uint64_t,
                           void*, TwoWords) {
  return false;
}
inline bool read_and_swap(volatile SequenceArea&, unsigned, void*, std::uint64_t, std::uint64_t,
                          const void*, TwoWords&) {
  return false;
}
#endif

}  // namespace spanalloc::os

#endif
