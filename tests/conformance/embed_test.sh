#!/bin/sh
# Embeds the source tree in another project, by add_subdirectory and by FetchContent: the targets of the installed CMake
# package are there, nothing of the benchmarks, tests or the command is, and the project's cache keeps to itself.
#
# usage: embed_test.sh SOURCE_FOLDER
# CC, CXX and CMAKE name other tools.
set -eu

source=$1
cc=${CC:-cc}
cxx=${CXX:-c++}
cmake=${CMAKE:-cmake}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "$1"
  exit 1
}

mkdir "$scratch/project"
cp "$source/tests/conformance/symbols.c" "$source/tests/conformance/static_link.cpp" "$scratch/project"
cat >"$scratch/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.25)
project(user C CXX)
if(HOW STREQUAL "subdirectory")
  add_subdirectory(${SPANALLOC_TREE} embedded)
elseif(HOW STREQUAL "fetch")
  include(FetchContent)
  FetchContent_Declare(spanalloc SOURCE_DIR ${SPANALLOC_TREE})
  FetchContent_MakeAvailable(spanalloc)
else()
  return()
endif()
foreach(kind IN ITEMS spanalloc spanalloc_static)
  add_executable(by_${kind} symbols.c)
  target_compile_options(by_${kind} PRIVATE -fno-builtin)
  target_link_libraries(by_${kind} PRIVATE spanalloc::${kind})
endforeach()
add_executable(all_static static_link.cpp)
set_property(TARGET all_static PROPERTY CXX_STANDARD 11)
target_link_options(all_static PRIVATE -static -Wl,--fatal-warnings)
target_link_libraries(all_static PRIVATE spanalloc::spanalloc_static)
foreach(name IN LISTS NAMES ITEMS spanalloc_static spanalloc_sp spanalloc_pages)
  if(NOT TARGET spanalloc::${name})
    message(SEND_ERROR "there is no spanalloc::${name}")
  endif()
endforeach()
foreach(kind IN ITEMS COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS INCLUDE_DIRECTORIES)
  get_property(here DIRECTORY PROPERTY ${kind})
  if(here)
    message(SEND_ERROR "${kind} of the project: ${here}")
  endif()
endforeach()
foreach(name IN ITEMS CMAKE_CXX_STANDARD CMAKE_C_STANDARD CMAKE_C_COMPILER_LAUNCHER CMAKE_COMPILE_WARNING_AS_ERROR)
  if(DEFINED ${name})
    message(SEND_ERROR "${name} of the project: ${${name}}")
  endif()
endforeach()
PROJECT

# The package's names: what ships, and what it was called before.
names=$(sed -n 's/^\([a-z0-9-]*\) .* ships.*/spanalloc_\1/p; s/^[^#].* link=\([a-z0-9-]*\).*/spanalloc_\1/p' \
  "$source/src/libraries.txt" | sed 's/^spanalloc_standard$/spanalloc/' | tr - _ | paste -s -d ';' -)
[ -n "$names" ] || fail "libraries.txt has no names"

configure() {
  "$cmake" -G Ninja -S "$scratch/project" -B "$scratch/$1" -DHOW="$1" -DSPANALLOC_TREE="$source" -DNAMES="$names" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$scratch/configure.log" 2>&1 || {
    cat "$scratch/configure.log"
    exit 1
  }
  # Names of the cache, without those of CMake about the project itself.
  sed -n 's/^\([A-Za-z_][A-Za-z0-9_-]*\):.*/\1/p' "$scratch/$1/CMakeCache.txt" |
    grep -Ev '^(SPANALLOC_|spanalloc_|FETCHCONTENT_|CMAKE_PROJECT_VERSION)' | sort >"$scratch/$1.cache"
}

configure nothing
for how in subdirectory fetch; do
  echo "embedded by $how:"
  configure "$how"
  diff "$scratch/nothing.cache" "$scratch/$how.cache" || fail "the project's cache has other variables than without us"
  grep -q '^CMAKE_BUILD_TYPE:STRING=$' "$scratch/$how/CMakeCache.txt" || fail "the project has another type of build"
  "$cmake" --build "$scratch/$how" --target help >"$scratch/targets"
  if grep -E '(^|/)(bench|tests|tools)/|unit_tests|pair_loop|spanalloc_measure' "$scratch/targets"; then
    fail "these are none of the project's business"
  fi
  [ -z "$(find "$scratch/$how" -name bench -o -name tools -o -name tests)" ] || fail "bench or tools are configured"
done

# Built once: both ways have the same targets.
"$cmake" --build "$scratch/fetch" >"$scratch/build.log" 2>&1 || {
  cat "$scratch/build.log"
  exit 1
}
"$scratch/fetch/by_spanalloc" standard
"$scratch/fetch/by_spanalloc_static" standard
"$scratch/fetch/all_static"
others=$(find "$scratch/fetch" -name 'libspanalloc-*.so*')
[ -z "$others" ] || fail "built, and linked by nobody: $others"
# Nothing of ours is installed with the project.
"$cmake" --install "$scratch/fetch" --prefix "$scratch/prefix" >"$scratch/install.log"
[ ! -e "$scratch/prefix/include" ] || fail "the project installs our headers"
