# SPANALLOC_TEST_CPUS: also the tests of `standard` once more as on machines of other numbers of CPUs. They are about
# counts that a heap takes at its start and not about the compiler, so one build is enough; an emulator is too slow.
set(_plain OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT SPANALLOC_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  set(_plain ON)
endif()
option(SPANALLOC_TEST_CPUS "Run the tests of the standard engine with other numbers of CPUs, too" ${_plain})
