// The living processes of a command and the peak of their memory, read from /proc.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { kMaxProcesses = 4096 };

struct Process {
  pid_t pid;
  bool traced;      // false: found in the kernel's list of children
  bool announced;   // its parent's fork event has been seen
  bool held;        // stands at its first stop until it is announced
  bool own_memory;  // false until it is known not to run in its parent's memory (vfork)
};

// `lock` guards every field: the tracer and the sampler both use them. Every function here that
// takes no path is called with it held.
struct ProcessTree {
  pthread_mutex_t lock;
  struct Process processes[kMaxProcesses];
  size_t count;
  uint64_t seen;          // processes ever added
  uint64_t most_at_once;  // most that were alive in one reading
  uint64_t peak_kib, peak_rss_kib, peak_page_tables_kib;
};

extern struct ProcessTree tree;

struct Process* tree_find(pid_t pid);
/// The process, added when it is new; NULL when the list is full.
struct Process* tree_add(pid_t pid);
void tree_drop(pid_t pid);
/// Reads all living processes and raises the peaks. `exiting`, if not 0, stands at its exit stop:
/// the kernel's own peak of it is final.
void tree_read(pid_t exiting);
/// Adds the processes that threads other than the first have forked, of which ptrace does not tell.
void tree_add_untraced_children(void);
void tree_drop_vanished(void);

void raise_to(uint64_t* peak, uint64_t value);
/// Whether a process has mapped the object of this real path.
bool maps_object(pid_t pid, const char* object);
