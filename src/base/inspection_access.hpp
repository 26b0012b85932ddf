// Names the one that may look at private members to say where in memory they are, for a reader
// outside of the process (engines/inspection.hpp). A friend: no class has functions for it.
#pragma once

namespace spanalloc {

struct InspectionAccess;

}  // namespace spanalloc
