// The model's side of the kernel contract; see os_stub.cpp.
#pragma once

#include <cstddef>

namespace spanalloc::model {

/// Before an execution: all memory that was mapped or reserved is to be handed
/// out again. Its bytes stay.
void forget_memory();
/// From now on os::cpu_count() is so many.
void count_cpus(unsigned count);
/// From now on until then nothing beyond the first `bytes` of the first
/// range reserved can be opened.
void limit_first_range(std::size_t bytes);

}  // namespace spanalloc::model
