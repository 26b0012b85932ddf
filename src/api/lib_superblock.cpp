// libspanalloc-superblock: the allocator of the a2alloc report.
#include "engines/superblock/engine.hpp"

namespace spanalloc {
using LibraryEngine = SuperblockEngine<SuperblockReport>;
}

#include "api/new_delete.hpp"
#include "api/override.hpp"
#include "api/sp_api.hpp"
