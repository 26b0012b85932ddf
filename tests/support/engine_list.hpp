// Lists of types for typed tests, of which a build may leave out some: cmake/TestBuild.cmake
// defines SPANALLOC_TEST_REFERENCE and SPANALLOC_TEST_SCALLOC_ABLATIONS as 1 or 0. docs/ci.md says
// which build tests which.
#pragma once

#include <gtest/gtest.h>

#include <type_traits>

namespace spanalloc::test {

/// The engines where the build tests them, else none.
template <bool kWanted, class... Engines>
using TypesIf = std::conditional_t<kWanted, ::testing::Types<Engines...>, ::testing::Types<>>;

template <class... Lists>
struct JoinTypes;
template <class... Engines>
struct JoinTypes<::testing::Types<Engines...>> {
  using type = ::testing::Types<Engines...>;
};
template <class... First, class... Second, class... Lists>
struct JoinTypes<::testing::Types<First...>, ::testing::Types<Second...>, Lists...>
    : JoinTypes<::testing::Types<First..., Second...>, Lists...> {};

/// All engines of some lists, in their order.
template <class... Lists>
using Joined = typename JoinTypes<Lists...>::type;

template <template <class> class Engine, class Configs>
struct MakeEngines;
template <template <class> class Engine, class... Configs>
struct MakeEngines<Engine, ::testing::Types<Configs...>> {
  using type = ::testing::Types<Engine<Configs>...>;
};

/// An engine's types for a list of configs.
template <template <class> class Engine, class Configs>
using EnginesOf = typename MakeEngines<Engine, Configs>::type;

}  // namespace spanalloc::test
