// Free objects in caches: lists of them, and chains of lists. Every move from one cache to another
// takes a whole list or a whole chain, by its head (section 8).
//
// A free object's first word is its list's link, its second one says so: it is the link under
// a secret of the process. So malloc notices that a free object was written to before it
// follows the link, and free notices an object that is free already; an object in use looks
// free by chance of 2^-64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "base/bits.hpp"
#include "base/compiler.hpp"
#include "base/poison.hpp"
#include "os/os.hpp"

namespace spanalloc::supermalloc {

/// Even, so that it is not what would seal the end of lists.
using Secret = std::uint64_t;

struct FreeObject {
  FreeObject* next;
  std::uint64_t seal;

  bool is_sealed(Secret secret) const { return seal == (address_of(next) ^ secret); }
  /// The link as the seal has it: of a free object nobody wrote to, and of no other, that is
  /// `next`.
  std::uintptr_t link_of_seal(Secret secret) const { return seal ^ secret; }
  /// Makes it the first of the list that begins with `list`.
  void push_on(FreeObject* list, Secret secret) {
    next = list;
    seal = opaque(address_of(list)) ^ secret;  // in the register that has been stored
  }
  /// The same, for short paths: the secret is an operand of the instruction that makes the seal.
  void push_on(FreeObject* list, const SetOnce& secret) {
    next = list;
    seal = opaque(address_of(list)) ^ secret.read();
  }
};

[[noreturn]] SPANALLOC_COLD inline void name_free_already(const void* p) {
  os::fatal("memory is free already (double free, or use after free):", p);
}
[[noreturn]] SPANALLOC_COLD inline void broken_object(const FreeObject* object) {
  os::fatal("free object overwritten (written after free):", object);
}
/// The link of a free object that a program may have written to since.
inline FreeObject* next_of(const FreeObject* object, Secret secret) {
  if (SPANALLOC_UNLIKELY(!object->is_sealed(secret))) broken_object(object);
  return object->next;
}

/// Where every list ends: an object that is not sealed, so that who takes objects off a list
/// notices its end by the same comparison that notices an object that was written to.
inline constinit FreeObject end_of_list{nullptr, 1};
inline bool is_end(const FreeObject* object) {
  return object == &end_of_list;
}

/// A list by its first object. `count` of them hang together.
struct ObjectList {
  FreeObject* first = &end_of_list;
  std::uint32_t count = 0;

  bool is_empty() const { return is_end(first); }
};

/// Lists of one bin, of up to 1 MiB: what a CPU's cache and the global one hold. An array of their
/// heads, and how many there are: together one word, so that a chain changes by one store.
/// (cpu_sequences.hpp says what for.)
class Chain {
 public:
  // Of 1 MiB in lists of 8 KiB there would be 128; lists are whole objects, and
  // may be just above 4 KiB.
  static constexpr std::uint32_t kMostLists = 255;
  struct Room {
    Plain<ObjectList> heads[kMostLists];
  };

  constexpr Chain() = default;  // none
  /// An empty one.
  explicit Chain(Room* room) : word_(address_of(room)) {
    SPANALLOC_ASSERT((word_ & ~kAddress) == 0);
  }

  bool is_none() const { return (word_ & kAddress) == 0; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(word_ >> kCountShift); }
  bool is_empty() const { return count() == 0; }
  /// Those behind count() are nothing.
  Plain<ObjectList>* heads() const { return pointer_to<Plain<ObjectList>>(word_ & kAddress); }
  std::size_t objects() const {
    std::size_t sum = 0;
    for (std::uint32_t i = 0; i < count(); ++i) {
      const ObjectList list = heads()[i];
      sum += list.count;
    }
    return sum;
  }

  /// The same chain when a list has come to its heads' end, or has left it.
  Chain longer() const { return Chain(word_ + kOneList); }
  Chain shorter() const { return Chain(word_ - kOneList); }

  /// A closed one nobody changes but who has closed it.
  bool is_closed() const { return (word_ & kClosed) != 0; }
  Chain closed() const { return Chain(word_ | kClosed); }
  Chain opened() const { return Chain(word_ & ~kClosed); }
  Chain closed_if(bool closes) const { return closes ? closed() : opened(); }

  /// What word() has said.
  explicit Chain(std::uint64_t word) : word_(word) {}
  std::uint64_t word() const { return word_; }
  bool operator==(const Chain&) const = default;

 private:
  static constexpr unsigned kCountShift = 48;  // user addresses are shorter
  static constexpr std::uint64_t kOneList = std::uint64_t{1} << kCountShift;
  static constexpr std::uint64_t kClosed = 1;
  static constexpr std::uint64_t kAddress = (kOneList - 1) & ~kClosed;

  std::uint64_t word_ = 0;
};

/// Where a chain is kept. Who may change it says the cache; anybody may look, and
/// ask for what it will touch.
class ChainPlace {
 public:
  Chain get() const { return Chain(word_.load_relaxed()); }
  void set(Chain chain) { word_.store_relaxed(chain.word()); }
  /// With all that was done to it: its heads above all.
  Chain get_in_order() const { return Chain(word_.load_acquire()); }
  void set_in_order(Chain chain) { word_.store_release(chain.word()); }

  void push(ObjectList list) {
    const Chain before = get();
    SPANALLOC_ASSERT(!before.is_none() && before.count() < Chain::kMostLists && !list.is_empty());
    before.heads()[before.count()] = list;
    set(before.longer());
  }
  ObjectList pop() {
    const Chain before = get();
    SPANALLOC_ASSERT(!before.is_empty());
    set(before.shorter());
    return before.heads()[before.count() - 1];
  }

  /// From now on it changes by nobody else.
  void close() {
    // Acquire: with the lists that others have put there. Sequentially consistent: before the
    // closing thread looks where it runs.
    std::uint64_t seen = word_.load_relaxed();
    while (!word_.compare_exchange_strong_seq_cst(seen, Chain(seen).closed().word())) {
    }
  }
  // Release: what was done to it meanwhile.
  void open() { set_in_order(get().opened()); }

  void prefetch_push() const {
    const Chain seen = get();
    prefetch_to_write(&seen.heads()[seen.count()]);
  }
  void prefetch_pop() const {
    const Chain seen = get();
    prefetch_to_write(&seen.heads()[seen.count() - (seen.is_empty() ? 0 : 1)]);
  }

  void* word() { return &word_; }

 private:
  Atomic<std::uint64_t> word_{0};
};

}  // namespace spanalloc::supermalloc
