# Of supermalloc's two ways to a CPU's cache, under locks and by restartable sequences, the one that is not its default:
# SPANALLOC_OTHER_WAY is what tests over it are called, SPANALLOC_OTHER_RSEQ the value of SPANALLOC_RSEQ that asks for it.
set(_sequences ${PROJECT_SOURCE_DIR}/papers/supermalloc/engine/cpu_sequences.hpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_sequences})
file(STRINGS ${_sequences} _default REGEX "constexpr bool kByDefault = ")
if(_default MATCHES " = false")
  set(SPANALLOC_OTHER_WAY rseq)
  set(SPANALLOC_OTHER_RSEQ 1)
elseif(_default MATCHES " = true")
  set(SPANALLOC_OTHER_WAY locks)
  set(SPANALLOC_OTHER_RSEQ 0)
else()
  message(FATAL_ERROR "${_sequences} does not say which way is the default")
endif()
