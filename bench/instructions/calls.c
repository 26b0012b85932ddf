/* A plugin for QEMU's user-mode emulators that counts the instructions of every single call of
 * malloc and free, of all threads, between the marks of call_marks.c, in user mode. When the
 * program ends it writes a line "malloc N CALLS" or "free N CALLS" for each number N of
 * instructions that calls took, to the file named by its argument out=FILE.
 *
 * A thread's count goes up by a whole block of translated code when the block begins; a mark in its
 * middle subtracts what comes behind it. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../manycore/qemu_plugin.h"
#include "marks.h"

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

enum { kMostThreads = 4096, kShort = 1 << 16 };
enum { kMalloc, kFree, kKinds };

struct thread {
  uint64_t executed;
  uint64_t began;
} __attribute__((aligned(64)));
static struct thread threads[kMostThreads];

/* How many calls took so many instructions; those above go into a list. */
static uint64_t calls[kKinds][kShort];
struct long_call {
  int kind;
  uint64_t instructions;
};
static struct long_call* long_calls;
static size_t long_count, long_room;
static pthread_mutex_t long_lock = PTHREAD_MUTEX_INITIALIZER;

struct mark {
  uint32_t number;
  uint64_t behind; /* instructions of the block behind the mark */
};
static char out_path[4096];

static void block_begins(unsigned cpu, void* instructions) {
  threads[cpu % kMostThreads].executed += (uintptr_t)instructions;
}

static void note_long(int kind, uint64_t instructions) {
  pthread_mutex_lock(&long_lock);
  if (long_count == long_room) {
    const size_t room = long_room == 0 ? 1024 : 2 * long_room;
    struct long_call* more = realloc(long_calls, room * sizeof *more);
    if (more == NULL) abort();
    long_calls = more;
    long_room = room;
  }
  long_calls[long_count++] = (struct long_call){kind, instructions};
  pthread_mutex_unlock(&long_lock);
}

static void mark_executed(unsigned cpu, void* data) {
  const struct mark* mark = data;
  struct thread* thread = &threads[cpu % kMostThreads];
  const uint64_t now = thread->executed - mark->behind;
  if (mark->number == MARK_MALLOC_BEGINS || mark->number == MARK_FREE_BEGINS) {
    thread->began = now;
    return;
  }
  /* The mark at the end is not the call's. */
  const uint64_t took = now - thread->began - 1;
  const int kind = mark->number == MARK_MALLOC_ENDS ? kMalloc : kFree;
  if (took < kShort) {
    __atomic_fetch_add(&calls[kind][took], 1, __ATOMIC_RELAXED);
  } else {
    note_long(kind, took);
  }
}

static void block_translated(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const size_t count = qemu_plugin_tb_n_insns(block);
  qemu_plugin_register_vcpu_tb_exec_cb(block, block_begins, QEMU_PLUGIN_CB_NO_REGS,
                                       (void*)(uintptr_t)count);
  for (size_t i = 0; i < count; ++i) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    static const unsigned char kBegins[] = {0x0f, 0x1f, 0x80};
    const unsigned char* bytes = qemu_plugin_insn_data(instruction);
    if (qemu_plugin_insn_size(instruction) != MARK_BYTES ||
        memcmp(bytes, kBegins, sizeof kBegins) != 0)
      continue;
    uint32_t number;
    memcpy(&number, bytes + sizeof kBegins, sizeof number);
    if (number < MARK_MALLOC_BEGINS || number > MARK_FREE_ENDS) continue;
    struct mark* mark = malloc(sizeof *mark); /* as long as the program runs: the block may */
    if (mark == NULL) abort();
    *mark = (struct mark){number, count - 1 - i};
    qemu_plugin_register_vcpu_insn_exec_cb(instruction, mark_executed, QEMU_PLUGIN_CB_NO_REGS,
                                           mark);
  }
}

static void program_ends(qemu_plugin_id_t id, void* unused) {
  (void)id;
  (void)unused;
  static const char* const kNames[] = {"malloc", "free"};
  FILE* out = fopen(out_path, "w");
  if (out == NULL) return;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (size_t n = 0; n < kShort; ++n) {
      if (calls[kind][n] != 0)
        fprintf(out, "%s %zu %llu\n", kNames[kind], n, (unsigned long long)calls[kind][n]);
    }
  }
  for (size_t i = 0; i < long_count; ++i) {
    fprintf(out, "%s %llu 1\n", kNames[long_calls[i].kind],
            (unsigned long long)long_calls[i].instructions);
  }
  fclose(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
                                                               const qemu_info_t* info, int argc,
                                                               char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || strlen(argv[0] + 4) >= sizeof out_path) {
    fprintf(stderr, "calls: one argument is needed, out=FILE\n");
    return 1;
  }
  strcpy(out_path, argv[0] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, block_translated);
  qemu_plugin_register_atexit_cb(id, program_ends, NULL);
  return 0;
}
