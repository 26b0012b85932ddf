// What dlopen.cpp, which knows no engine, asks of the library it is in.
#pragma once

namespace spanalloc {

/// Whether the address lies in a block of this library's engine. override.hpp defines it.
bool library_owns(const void* address) noexcept;

}  // namespace spanalloc
