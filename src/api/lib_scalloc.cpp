// libspanalloc-scalloc: the engine as its paper describes it, with the paper's numbers.
#include "engines/scalloc/engine.hpp"

namespace spanalloc {
using LibraryEngine = ScallocEngine<Scalloc>;
}

#include "api/new_delete.hpp"
#include "api/override.hpp"
#include "api/sp_api.hpp"
