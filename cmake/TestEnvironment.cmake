# Makes plain `ctest` in the build folder set SPANALLOC_TEST_ENVIRONMENT: the file written here is included by
# the top CTestTestfile.cmake, and what it puts into ctest's own environment every test inherits.
set(_text "# Variables for the tests of this build; one that is set by the caller stays.\n")
foreach(_pair IN LISTS SPANALLOC_TEST_ENVIRONMENT)
  string(REGEX MATCH "^([^=]+)=(.*)$" _ "${_pair}")
  string(APPEND _text
    "if(NOT DEFINED ENV{${CMAKE_MATCH_1}})\n  set(ENV{${CMAKE_MATCH_1}} [==[${CMAKE_MATCH_2}]==])\nendif()\n")
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/TestEnvironmentFor.cmake "${_text}")
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY
             TEST_INCLUDE_FILES ${PROJECT_BINARY_DIR}/TestEnvironmentFor.cmake)

# Listing the tests of a binary means running it. Where that is slow or needs the environment above, do it
# when ctest starts instead of at build time.
if(CMAKE_CROSSCOMPILING OR SPANALLOC_SANITIZE)
  set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
endif()
