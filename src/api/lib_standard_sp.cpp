// spanalloc_sp: the product engine behind the sp_ names only; malloc stays whose it was.
#include "api/nested_engine.hpp"
#include "standard/engine.hpp"

namespace spanalloc {
using LibraryEngine = NestedEngine<StandardEngine>;
}

#include "api/inspection.hpp"
#include "api/sp_api.hpp"

SPANALLOC_HEAP_NOTE("2");
