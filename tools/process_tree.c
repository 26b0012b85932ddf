#define _GNU_SOURCE
#include "process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ProcessTree tree = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct Reading {
  uint64_t rss_kib, hwm_kib, pte_kib, pss_kib;
};

// ---- reading /proc ----

// Reads a whole small file of /proc; false when the process is gone.
static bool read_proc(pid_t pid, const char* name, char* buffer, size_t size) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t filled = 0;
  for (;;) {
    ssize_t n = read(fd, buffer + filled, size - 1 - filled);
    if (n <= 0) break;
    filled += (size_t)n;
    if (filled == size - 1) break;
  }
  close(fd);
  buffer[filled] = '\0';
  return filled > 0;
}

// Value in KiB of a line "Key:   123 kB"; 0 when there is none.
static uint64_t field(const char* text, const char* key) {
  const char* at = strstr(text, key);
  return at == NULL ? 0 : strtoull(at + strlen(key), NULL, 10);
}

static bool read_status_of(pid_t pid, const char* name, struct Reading* r) {
  char text[4096];
  if (!read_proc(pid, name, text, sizeof text) || strstr(text, "VmRSS:") == NULL) return false;
  *r = (struct Reading){.rss_kib = field(text, "VmRSS:"),
                        .hwm_kib = field(text, "VmHWM:"),
                        .pte_kib = field(text, "VmPTE:")};
  r->pss_kib = r->rss_kib;
  return true;
}

// False when the process has no memory any more.
static bool read_status(pid_t pid, struct Reading* r) {
  if (read_status_of(pid, "status", r)) return true;
  // Its first thread may have ended while others go on: then those know.
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR* threads = opendir(path);
  bool found = false;
  for (struct dirent* entry; threads != NULL && !found && (entry = readdir(threads)) != NULL;) {
    const pid_t thread = atoi(entry->d_name);
    if (thread == 0 || thread == pid) continue;
    snprintf(path, sizeof path, "task/%d/status", (int)thread);
    found = read_status_of(pid, path, r);
  }
  if (threads != NULL) closedir(threads);
  return found;
}

static void read_pss(pid_t pid, struct Reading* r) {
  char text[4096];
  if (read_proc(pid, "smaps_rollup", text, sizeof text)) r->pss_kib = field(text, "\nPss:");
}

bool maps_object(pid_t pid, const char* object) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
  FILE* file = fopen(path, "re");
  if (file == NULL) return false;
  char* line = NULL;
  size_t capacity = 0;
  bool found = false;
  while (!found && getline(&line, &capacity, file) > 0) {
    char* name = strchr(line, '/');
    if (name == NULL) continue;
    name[strcspn(name, "\n")] = '\0';
    found = strcmp(name, object) == 0;
  }
  free(line);
  fclose(file);
  return found;
}

// ---- the list of processes (callers hold the lock) ----

struct Process* tree_find(pid_t pid) {
  for (size_t i = 0; i < tree.count; i++) {
    if (tree.processes[i].pid == pid) return &tree.processes[i];
  }
  return NULL;
}

struct Process* tree_add(pid_t pid) {
  struct Process* p = tree_find(pid);
  if (p != NULL || tree.count == kMaxProcesses) return p;
  p = &tree.processes[tree.count++];
  *p = (struct Process){.pid = pid};
  tree.seen++;
  return p;
}

void tree_drop(pid_t pid) {
  struct Process* p = tree_find(pid);
  if (p != NULL) *p = tree.processes[--tree.count];
}

void raise_to(uint64_t* peak, uint64_t value) {
  if (value > *peak) *peak = value;
}

// One reading of all living processes. `exiting` stands at its exit stop: its own peak is final.
void tree_read(pid_t exiting) {
  struct Reading sum = {0};
  uint64_t alive = 0, exiting_peak = 0;
  for (size_t i = 0; i < tree.count; i++) {
    struct Process* p = &tree.processes[i];
    struct Reading r;
    if (!p->own_memory || !read_status(p->pid, &r)) continue;
    if (tree.count > 1) read_pss(p->pid, &r);
    alive++;
    sum.rss_kib += r.pss_kib;
    sum.pte_kib += r.pte_kib;
    if (p->pid == exiting) exiting_peak = r.hwm_kib;
    if (p->pid == exiting) raise_to(&tree.peak_kib, r.hwm_kib + r.pte_kib);
  }
  raise_to(&tree.most_at_once, alive);
  raise_to(&tree.peak_rss_kib, sum.rss_kib > exiting_peak ? sum.rss_kib : exiting_peak);
  raise_to(&tree.peak_page_tables_kib, sum.pte_kib);
  raise_to(&tree.peak_kib, sum.rss_kib + sum.pte_kib);
}

// ---- children of threads ----

// Adds the children of one thread. A new one counts from its second sighting on: until its exec a
// child made by vfork or posix_spawn runs in its parent's memory, and that is over quickly.
static void add_children_of(pid_t process, pid_t thread) {
  char name[64], text[4096];
  snprintf(name, sizeof name, "task/%d/children", (int)thread);
  if (!read_proc(process, name, text, sizeof text)) return;
  for (char* at = text;;) {
    char* end;
    long child = strtol(at, &end, 10);
    if (end == at) return;
    at = end;
    struct Process* known = tree_find((pid_t)child);
    if (known != NULL) {
      if (!known->traced) known->own_memory = true;
    } else {
      tree_add((pid_t)child);
    }
  }
}

// ptrace does not tell of the processes that threads other than the first have forked.
void tree_add_untraced_children(void) {
  for (size_t i = 0; i < tree.count; i++) {
    char path[64], text[4096];
    pid_t parent = tree.processes[i].pid;
    if (!read_proc(parent, "status", text, sizeof text)) continue;
    if (tree.processes[i].traced && field(text, "Threads:") < 2) continue;
    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    DIR* threads = opendir(path);
    if (threads == NULL) continue;
    for (struct dirent* entry; (entry = readdir(threads)) != NULL;) {
      // Children of a traced first thread are traced themselves and come with their own events.
      const pid_t thread = atoi(entry->d_name);
      if (thread == 0 || (tree.processes[i].traced && thread == parent)) continue;
      add_children_of(parent, thread);
    }
    closedir(threads);
  }
}

void tree_drop_vanished(void) {
  for (size_t i = tree.count; i-- > 0;) {
    if (!tree.processes[i].traced && kill(tree.processes[i].pid, 0) != 0)
      tree.processes[i] = tree.processes[--tree.count];
  }
}
