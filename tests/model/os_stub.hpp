// The model's side of the kernel contract; see os_stub.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spanalloc::model {

/// Before an execution: all memory that was mapped or reserved is to be handed out again, and reads
/// as zero.
void forget_memory();
/// From now on os::cpu_count() is so many.
void count_cpus(unsigned count);
/// From now on until then nothing beyond the first `bytes` of the first range reserved can be
/// opened.
void limit_first_range(std::size_t bytes);
/// From now on nothing more can be opened.
void refuse_memory();
/// From now on os::purge() makes memory read as zero. Before, it is refused.
void grant_purges();
/// From now on it is refused.
void refuse_purges();
/// From now on os::now_ms() is so much. Before, it is 0.
void set_clock(std::uint64_t ms);

}  // namespace spanalloc::model
