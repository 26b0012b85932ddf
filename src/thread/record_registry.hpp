// Every record of one kind that there ever was: what a thread has in a heap, one record a
// thread at a time. A thread's end leaves its record to the next thread, so that a million
// threads, one after another, use one; records are never given back, so that who has a pointer
// to one can read it for ever.
//
// Fork: a child finds the list of all whole at every step. The list of idle ones is made anew there
// (recover_in_child), for a vanished thread may have been taking or giving back.
#pragma once

#include <cstddef>

#include "base/assert.hpp"
#include "base/atomic.hpp"
#include "sync/spin_lock.hpp"

namespace spanalloc::thread {

/// `Record` has members `Record* next_idle` (the registry's lock) and `Record* next_of_all`
/// (constant once it is in the list). Zero-initialisable.
template <class Record>
class RecordRegistry {
 public:
  /// An idle record, or what make(owner_died) returns, which is called under the lock: a
  /// constructed record that is in no registry, or nullptr when memory is out. `owner_died`: a
  /// vanished thread may have been in the middle of a make(), whose own books are half changed.
  template <class Make>
  Record* take(Make&& make) {
    LockGuard guard(lock_);
    if (Record* record = idle_; record != nullptr) {
      idle_ = record->next_idle;
      return record;
    }
    Record* record = make(guard.owner_died());
    if (record != nullptr) publish_locked(record);
    return record;
  }

  void give_back(Record* record) {
    LockGuard guard(lock_);
    SPANALLOC_ASSERT(!is_idle(record));
    record->next_idle = idle_;
    idle_ = record;
  }

  /// Enters a record that lives elsewhere, once.
  void publish(Record* record) {
    LockGuard guard(lock_);
    bool known = false;
    for_each([&](const Record& other) { known = known || &other == record; });
    if (!known) publish_locked(record);
  }

  /// f(Record&) for every record, idle ones too; those made meanwhile may be missed.
  template <class F>
  void for_each(F&& f) const {
    // Acquire: the record is constructed.
    for (Record* record = all_.load_acquire(); record != nullptr; record = record->next_of_all)
      f(*record);
  }

  /// Forgets all records, whose memory is somebody else's affair, while nobody uses the registry.
  void destroy() {
    idle_ = nullptr;
    all_.store_relaxed(nullptr);
  }

  // --- In a fork's child -------------------------------------------------------------------------

  /// First of all.
  void enter_child() {
    if (!lock_.owner_died()) return;
    is_torn_ = true;
    lock_.abandon_if_owner_died();
  }
  /// The calling thread is alone and in no call of this class: idle are those of which
  /// is_idle(record) says so, which is asked of each, perhaps twice.
  template <class IsIdle>
  void recover_in_child(IsIdle&& is_idle) {
    // (Nobody else is there. But a signal handler may allocate, which it must not: it then waits
    // for ever, as in the middle of a take(), and no record is listed twice.)
    const LockGuard guard(lock_);
    // Mostly the list is right, and nothing is written: the kernel must copy each page that the
    // child writes to. What is listed is idle, unless somebody vanished in the middle of a change.
    std::size_t idle = 0;
    for_each([&](Record& record) { idle += is_idle(record) ? 1 : 0; });
    if (!is_torn_ && has_listed(idle)) return;
    is_torn_ = false;
    idle_ = nullptr;
    for_each([&](Record& record) {
      if (!is_idle(record)) return;
      record.next_idle = idle_;
      idle_ = &record;
    });
  }

 private:
  bool is_idle(const Record* record) const {
    const Record* at = idle_;
    while (at != nullptr && at != record) at = at->next_idle;
    return at != nullptr;
  }

  // Exactly so many. (None is twice in a list that ends.)
  bool has_listed(std::size_t count) const {
    const Record* at = idle_;
    for (; count != 0 && at != nullptr; --count) at = at->next_idle;
    return count == 0 && at == nullptr;
  }

  void publish_locked(Record* record) {
    record->next_of_all = all_.load_relaxed();
    all_.store_release(record);  // release: see for_each()
  }

  WakingLock lock_;  // guards everything below
  Record* idle_ = nullptr;
  bool is_torn_ = false;          // in a fork's child, before its recovery
  Atomic<Record*> all_{nullptr};  // read without the lock: records are only added
};

}  // namespace spanalloc::thread
