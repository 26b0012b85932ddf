# What the tests of the engines share, as the target `spanalloc_test`: tests/support, how much they are optimised, and
# which engines a typed test runs over. docs/ci.md says which build tests which.
set(SPANALLOC_TEST_ENGINES all CACHE STRING
    "Engines of typed tests beside standard and scalloc: all, none, or a list of reference (the test double), \
a2alloc, a2alloc-classes, kheap, scalloc-ablations")
set(SPANALLOC_TEST_OPTIMISATION -O2 CACHE STRING
    "Optimisation of the tests in a release build. -O2: the engines compiled into them are then as in the libraries")

set(_engines reference a2alloc a2alloc-classes kheap scalloc-ablations)
set(_chosen ${SPANALLOC_TEST_ENGINES})
if(_chosen STREQUAL "all")
  set(_chosen ${_engines})
elseif(_chosen STREQUAL "none")
  set(_chosen "")
endif()
foreach(_engine IN LISTS _chosen)
  if(NOT _engine IN_LIST _engines)
    message(FATAL_ERROR "SPANALLOC_TEST_ENGINES: there is no ${_engine}; there are ${_engines}, all and none")
  endif()
endforeach()

# An object, because nothing calls it: a linker would leave it in its archive.
add_library(spanalloc_keep_core OBJECT ${PROJECT_SOURCE_DIR}/tests/support/keep_core.cpp)
add_library(spanalloc_test INTERFACE)
target_include_directories(spanalloc_test INTERFACE ${PROJECT_SOURCE_DIR}/tests/support)
target_sources(spanalloc_test INTERFACE $<TARGET_OBJECTS:spanalloc_keep_core>)
target_compile_options(spanalloc_test INTERFACE $<$<CONFIG:Release>:${SPANALLOC_TEST_OPTIMISATION}>)
foreach(_engine IN LISTS _engines)
  set(_wanted 0)
  if(_engine IN_LIST _chosen)
    set(_wanted 1)
  endif()
  # scalloc-ablations: SPANALLOC_TEST_SCALLOC_ABLATIONS
  string(TOUPPER ${_engine} _name)
  string(REPLACE "-" "_" _name ${_name})
  target_compile_definitions(spanalloc_test INTERFACE SPANALLOC_TEST_${_name}=${_wanted})
endforeach()

option(SPANALLOC_TEST_THREADED_ONLY "Leave out units whose test file starts no thread (for ThreadSanitizer)" OFF)

# spanalloc_precompile_gtest(TARGET): what nearly every test file begins with, read once. -fpch-preprocess lets ccache
# look into it.
function(spanalloc_precompile_gtest target)
  target_precompile_headers(${target} PRIVATE <gtest/gtest.h> <algorithm> <cstdlib> <cstring> <string> <thread> <vector>)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endfunction()
