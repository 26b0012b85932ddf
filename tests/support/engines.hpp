// The engines that typed tests run over, and the fixture that they share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "api/malloc_api.hpp"
#include "engine_list.hpp"
#include "reference_engine.hpp"
#include "tested_engines.hpp"

namespace spanalloc::test {

/// The engines of this build, and the test double, which shows what belongs to api/ alone.
using AllEngines = Joined<TypesIf<SPANALLOC_TEST_REFERENCE, ReferenceEngine>, TestedEngines>;

/// Short names for suites whose binary is compiled without RTTI. A filter of GoogleTest's takes
/// what is behind a minus for what is to be left out.
struct EngineNames {
  template <class E>
  static std::string GetName(int) {
    std::string name = E::kName;
    for (char& c : name) {
      if (c == '-') c = '_';
    }
    return name;
  }
};

/// What a library's constructor does, once for each engine type and before main.
template <class E>
inline const bool engine_started = (E::process_start(), true);

template <class E>
class EngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ASSERT_TRUE(engine_started<E>); }
};

}  // namespace spanalloc::test
