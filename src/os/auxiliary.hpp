// What the kernel leaves in each process as it starts it. libc's getauxval reads it, and is a
// function that another library may have put its own in the place of: so each is asked for once, as
// a call of the kernel is made (kernel_call.hpp), and kept.
#pragma once

#include <cstdint>

namespace spanalloc::os {

enum class Auxiliary : unsigned {
  kPageSize,
  kIsSecure,  ///< not 0: a set-user-id program, or the like
  kVdso,      ///< where the kernel has mapped its shared object; 0: nowhere
  kRandom,    ///< where 16 random bytes are; 0: nowhere
  kLoader,    ///< where the program's loader is; 0: it has none
  kProgram    ///< where the path is by which the program was started; 0: nowhere
};

std::uintptr_t auxiliary(Auxiliary which);

}  // namespace spanalloc::os
