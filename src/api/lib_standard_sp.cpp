// spanalloc_sp: the product engine behind the sp_ names only; malloc stays whose it was.
#include "engines/standard/engine.hpp"

namespace spanalloc {
using LibraryEngine = StandardEngine;
}

#include "api/sp_api.hpp"
