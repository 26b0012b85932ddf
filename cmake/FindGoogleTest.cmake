# Supplies GTest::gtest and GTest::gtest_main. A plain native build takes the system's library (Debian:
# libgtest-dev); a cross or sanitizer build compiles it from the sources that Debian's package `googletest`
# ships, because it must be built with the same target and instrumentation as the tests.
include(GoogleTest)
if(NOT CMAKE_CROSSCOMPILING AND NOT SPANALLOC_SANITIZE)
  find_package(GTest QUIET)
endif()
if(NOT TARGET GTest::gtest_main)
  set(SPANALLOC_GTEST_SOURCE /usr/src/googletest CACHE PATH "GoogleTest's sources")
  if(NOT EXISTS ${SPANALLOC_GTEST_SOURCE}/CMakeLists.txt)
    message(FATAL_ERROR "GoogleTest is missing: apt install libgtest-dev googletest, "
                        "or configure with -DSPANALLOC_TESTS=OFF, or set SPANALLOC_GTEST_SOURCE")
  endif()
  block()
    set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
    set(INSTALL_GTEST OFF)
    set(BUILD_GMOCK OFF)
    set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
    set(CMAKE_WARN_DEPRECATED OFF)
    add_subdirectory(${SPANALLOC_GTEST_SOURCE} ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL SYSTEM)
    # Not optimised: compiling it would take longer than running it does.
    target_compile_options(gtest PRIVATE -w -O0)
    target_compile_options(gtest_main PRIVATE -w -O0)
  endblock()
  # find_package(GTest) in a test folder is content with the targets that stand now.
  file(WRITE ${CMAKE_FIND_PACKAGE_REDIRECTS_DIR}/GTestConfig.cmake "set(GTest_FOUND TRUE)\n")
endif()
