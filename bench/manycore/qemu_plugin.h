/* The part of QEMU's public plugin interface (API version 1) that is used here, so that building
 * needs no headers of QEMU's: Debian's qemu-user ships none. */
#ifndef SPANALLOC_BENCH_MANYCORE_QEMU_PLUGIN_H
#define SPANALLOC_BENCH_MANYCORE_QEMU_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct {
  const char* target_name;
  struct {
    int min, cur;
  } version;
  bool system_emulation;
} qemu_info_t;
enum { QEMU_PLUGIN_CB_NO_REGS = 0 };
enum { QEMU_PLUGIN_MEM_RW = 3 };

typedef void (*vcpu_cb)(qemu_plugin_id_t, unsigned cpu);
typedef void (*tb_trans_cb)(qemu_plugin_id_t, struct qemu_plugin_tb*);
typedef void (*exec_cb)(unsigned cpu, void* data);
typedef void (*mem_cb)(unsigned cpu, qemu_plugin_meminfo_t, uint64_t address, void* data);
typedef void (*syscall_cb)(qemu_plugin_id_t, unsigned cpu, int64_t number, uint64_t, uint64_t,
                           uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*syscall_ret_cb)(qemu_plugin_id_t, unsigned cpu, int64_t number, int64_t result);
typedef void (*udata_cb)(qemu_plugin_id_t, void* data);

void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, vcpu_cb);
void qemu_plugin_register_vcpu_exit_cb(qemu_plugin_id_t, vcpu_cb);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_trans_cb);
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb*, exec_cb, int flags, void* data);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn*, exec_cb, int flags,
                                            void* data);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*, mem_cb, int flags, int rw,
                                      void* data);
void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t, syscall_cb);
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, syscall_ret_cb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, udata_cb, void* data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t index);
const void* qemu_plugin_insn_data(const struct qemu_plugin_insn*);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn*);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn*);
const char* qemu_plugin_insn_symbol(const struct qemu_plugin_insn*);
bool qemu_plugin_mem_is_store(
    qemu_plugin_meminfo_t); /* also true for an atomic read-modify-write: one callback */

/* Where the guest's address 0 lies in this process. Debian's qemu-user exports it; elsewhere it is
 * taken for 0. */
extern __attribute__((weak)) uintptr_t guest_base;

#endif
