// Names those that may look at private members to say where in memory they are, for a reader
// outside of the process (engine/inspection.hpp, pages/heaps_inspection.hpp). Friends: no class
// has functions for them.
#pragma once

namespace spanalloc {

struct InspectionAccess;
struct HeapsInspectionAccess;

}  // namespace spanalloc
