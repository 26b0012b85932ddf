// libspanalloc-oopsla15: the engine as its paper describes it, with the paper's numbers.
#include "engines/virtual_span/oopsla15/engine.hpp"

namespace spanalloc {
using LibraryEngine = Oopsla15Engine<Oopsla15>;
}

#include "api/new_delete.hpp"
#include "api/override.hpp"
#include "api/sp_api.hpp"
