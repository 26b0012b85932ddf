// libspanalloc: the product engine behind the C library's, C++'s and our own names.
#include "engines/standard/engine.hpp"

namespace spanalloc {
using LibraryEngine = StandardEngine;
}

#include "api/new_delete.hpp"
#include "api/override.hpp"
#include "api/sp_api.hpp"
