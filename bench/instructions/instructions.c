/* A plugin for QEMU's user-mode emulators (Debian's package qemu-user) that counts the instructions
 * a program executes, those of all its threads, and writes the number to the file named by its
 * argument out=FILE when the program ends. For what callgrind cannot run, and for other processors.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../manycore/qemu_plugin.h"

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t executed;
static char out_path[4096];

static void count_block(unsigned cpu, void* instructions) {
  (void)cpu;
  __atomic_fetch_add(&executed, (uintptr_t)instructions, __ATOMIC_RELAXED);
}

static void block_translated(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_cb(block, count_block, QEMU_PLUGIN_CB_NO_REGS,
                                       (void*)(uintptr_t)qemu_plugin_tb_n_insns(block));
}

static void program_ends(qemu_plugin_id_t id, void* unused) {
  (void)id;
  (void)unused;
  FILE* out = fopen(out_path, "w");
  if (out == NULL) return;
  fprintf(out, "%llu\n", (unsigned long long)executed);
  fclose(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id,
                                                               const qemu_info_t* info, int argc,
                                                               char** argv) {
  (void)info;
  if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || strlen(argv[0] + 4) >= sizeof out_path) {
    fprintf(stderr, "instructions: one argument is needed, out=FILE\n");
    return 1;
  }
  strcpy(out_path, argv[0] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, block_translated);
  qemu_plugin_register_atexit_cb(id, program_ends, NULL);
  return 0;
}
