# spanalloc_discover_tests(TARGET [TEST_PREFIX P] [TEST_FILTER F] [TEST_LIST NAME] [PROPERTIES ...]): the tests of a
# GoogleTest binary, one process each, as gtest_discover_tests() has it. Where a process takes long to start, under a
# sanitizer or in an emulator, one process a suite (SPANALLOC_TESTS_BY_SUITE); scripts/run_ctest.py counts its tests one
# by one.
include(GoogleTest)
if(SPANALLOC_SANITIZE OR CMAKE_CROSSCOMPILING)
  set(_by_suite ON)
else()
  set(_by_suite OFF)
endif()
option(SPANALLOC_TESTS_BY_SUITE "One process for all tests of a GoogleTest suite" ${_by_suite})

function(spanalloc_discover_tests target)
  if(NOT SPANALLOC_TESTS_BY_SUITE)
    gtest_discover_tests(${target} DISCOVERY_TIMEOUT 600 ${ARGN})
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 T "" "TEST_PREFIX;TEST_FILTER;TEST_LIST" "PROPERTIES")
  if(NOT T_TEST_LIST)
    set(T_TEST_LIST ${target})
  endif()
  get_target_property(emulator ${target} CROSSCOMPILING_EMULATOR)
  if(NOT emulator)
    set(emulator "")
  endif()
  # Included by ctest when it starts, because the binary has to be run to tell its suites.
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${T_TEST_LIST}_suites.cmake)
  file(GENERATE OUTPUT ${file} CONTENT
"set(suites_of $<TARGET_FILE:${target}>)
set(suites_emulator [==[${emulator}]==])
set(suites_prefix [==[${T_TEST_PREFIX}]==])
set(suites_filter [==[${T_TEST_FILTER}]==])
set(suites_properties [==[${T_PROPERTIES}]==])
include([==[${PROJECT_SOURCE_DIR}/cmake/AddSuites.cmake]==])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
endfunction()
