// libspanalloc-a2alloc: the allocator of the a2alloc report.
#include "engines/a2alloc/engine.hpp"

namespace spanalloc {
using LibraryEngine = A2allocEngine<A2allocReport>;
}

#include "api/new_delete.hpp"
#include "api/override.hpp"
#include "api/sp_api.hpp"
