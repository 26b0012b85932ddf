# What the tests of the engines share, as the target `spanalloc_test`: tests/support, how much they are optimised, and
# which engines a typed test runs over. docs/ci.md says which build tests which.
set(SPANALLOC_TEST_ENGINES all CACHE STRING
    "Engines of typed tests beside the typed ones of src/libraries.txt: all, none, or a list of those that are \
typed-by-name there, reference (the test double), and scalloc-ablations")
set(SPANALLOC_TEST_OPTIMISATION -O2 CACHE STRING
    "Optimisation of the tests in a release build. -O2: the engines compiled into them are then as in the libraries")
# Most of what a build compiles, and compiled by -O2 once more with --full.
set(SPANALLOC_UNIT_OPTIMISATION -O1 CACHE STRING "The same of tests/unit, which is compiled in two thirds of the time so")

spanalloc_libraries_that(_engines typed-by-name)
list(APPEND _engines reference scalloc-ablations)
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

# An object, because nothing calls it: a linker would leave it in its archive. Every program of GoogleTest has it.
add_library(spanalloc_keep_core OBJECT ${PROJECT_SOURCE_DIR}/tests/support/keep_core.cpp)
get_target_property(_main GTest::gtest_main ALIASED_TARGET)
if(NOT _main)
  set(_main GTest::gtest_main)
endif()
set_property(TARGET ${_main} APPEND PROPERTY INTERFACE_SOURCES $<TARGET_OBJECTS:spanalloc_keep_core>)
add_library(spanalloc_test INTERFACE)
target_include_directories(spanalloc_test INTERFACE ${PROJECT_SOURCE_DIR}/tests/support)
# On the interface, and by a property of who links it: a target's own options would come before these.
target_compile_options(spanalloc_test INTERFACE
  $<$<CONFIG:Release>:$<IF:$<BOOL:$<TARGET_PROPERTY:SPANALLOC_UNIT>>,${SPANALLOC_UNIT_OPTIMISATION},${SPANALLOC_TEST_OPTIMISATION}>>)
target_include_directories(spanalloc_test INTERFACE ${PROJECT_BINARY_DIR}/generated)
set(tested_includes "")
set(tested_engines "")
set(shipped_engines "")
foreach(_name IN LISTS SPANALLOC_LIBRARIES)
  set(_traits "${SPANALLOC_${_name}_TRAITS}")
  if(NOT "typed" IN_LIST _traits AND NOT _name IN_LIST _chosen)
    continue()
  endif()
  set(_type "${SPANALLOC_${_name}_ENGINE}<${SPANALLOC_${_name}_CONFIG}>")
  list(APPEND tested_includes "#include \"${SPANALLOC_${_name}_FOLDER}/engine.hpp\"")
  list(APPEND tested_engines ${_type})
  if("ships" IN_LIST _traits)
    list(APPEND shipped_engines ${_type})
  endif()
endforeach()
list(REMOVE_DUPLICATES tested_includes)
list(JOIN tested_includes "\n" tested_includes)
list(JOIN tested_engines ", " tested_engines)
list(JOIN shipped_engines ", " shipped_engines)
configure_file(${PROJECT_SOURCE_DIR}/tests/support/tested_engines.hpp.in ${PROJECT_BINARY_DIR}/generated/tested_engines.hpp
               @ONLY)
set(configs_includes "")
set(configs_lists "")
set(_folders "")
foreach(_name IN LISTS SPANALLOC_LIBRARIES)
  list(APPEND _folders ${SPANALLOC_${_name}_FOLDER})
  list(APPEND _configs_of_${SPANALLOC_${_name}_FOLDER} ${SPANALLOC_${_name}_CONFIG})
endforeach()
list(REMOVE_DUPLICATES _folders)
foreach(_folder IN LISTS _folders)
  list(JOIN _configs_of_${_folder} ", " _configs)
  string(REGEX REPLACE "^papers/|/engine$" "" _engine ${_folder})
  string(APPEND configs_includes "#include \"${_folder}/config.hpp\"\n")
  string(APPEND configs_lists "using ${_engine} = ::testing::Types<${_configs}>;\n")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/tests/support/engine_configs.hpp.in ${PROJECT_BINARY_DIR}/generated/engine_configs.hpp
               @ONLY)
# What is no library: SPANALLOC_TEST_REFERENCE, SPANALLOC_TEST_SCALLOC_ABLATIONS.
foreach(_engine IN ITEMS reference scalloc-ablations)
  set(_wanted 0)
  if(_engine IN_LIST _chosen)
    set(_wanted 1)
  endif()
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
