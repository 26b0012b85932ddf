// The model's side of the kernel contract; see os_stub.cpp.
#pragma once

namespace spanalloc::model {

/// Before an execution: all memory that was mapped or reserved is to be handed out again. Its bytes stay.
void forget_memory();

}  // namespace spanalloc::model
