#!/bin/sh
# Installs a build into a scratch prefix and uses it as somebody else's project would: through pkg-config,
# through the CMake package, and by preloading.
#
# usage: install_test.sh BUILD_FOLDER SOURCE_FOLDER VERSION
# Exit code 77, with the reason, when a tool is missing. CC, CXX and CMAKE name other tools.
set -eu

build=$1
source=$2
version=$3
cc=${CC:-cc}
cxx=${CXX:-c++}
cmake=${CMAKE:-cmake}
pkg_config=$(command -v pkg-config || command -v pkgconf) || {
  echo "skipped: pkg-config is not installed"
  exit 77
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix

"$cmake" --install "$build" --prefix "$prefix" >"$scratch/install.log" || {
  cat "$scratch/install.log"
  exit 1
}
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name spanalloc.pc)")
export PKG_CONFIG_PATH

for package in spanalloc spanalloc-sp spanalloc-pages; do
  named=$("$pkg_config" --define-variable=prefix="$prefix" --modversion $package)
  echo "pkg-config: $package $named"
  [ "$named" = "$version" ] || {
    echo "this is version $version"
    exit 1
  }
done
# shellcheck disable=SC2046  # flags are words
"$cc" $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc) -fno-builtin \
  "$source/tests/conformance/symbols.c" -o "$scratch/by_pkg_config" \
  $("$pkg_config" --define-variable=prefix="$prefix" --libs spanalloc)
libdir=$(dirname "$(find "$prefix" -name libspanalloc.so)")
LD_LIBRARY_PATH=$libdir "$scratch/by_pkg_config" standard
# shellcheck disable=SC2046
"$cc" "-DSPANALLOC_EXPECTED_VERSION=\"$version\"" $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc-sp) \
  "$source/tests/conformance/sp_interface.c" -o "$scratch/sp_by_pkg_config" \
  $("$pkg_config" --define-variable=prefix="$prefix" --libs spanalloc-sp)
"$scratch/sp_by_pkg_config"

# As docs/using.md has it, and with the rest of the program static, too. No linker warns.
echo "the archive:"
for kind in "" -static; do
  # shellcheck disable=SC2046,SC2086
  "$cc" $kind -Wl,--fatal-warnings -fno-builtin "$source/tests/conformance/symbols.c" \
    $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc) \
    "$("$pkg_config" --define-variable=prefix="$prefix" --variable=libdir spanalloc)/libspanalloc.a" -pthread \
    -o "$scratch/by_archive"
  "$scratch/by_archive" standard
  # shellcheck disable=SC2046,SC2086
  "$cxx" $kind -Wl,--fatal-warnings "$source/tests/conformance/static_link.cpp" \
    $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc) \
    "$("$pkg_config" --define-variable=prefix="$prefix" --variable=libdir spanalloc)/libspanalloc.a" -pthread \
    -o "$scratch/by_archive_cxx"
  "$scratch/by_archive_cxx"
done

echo "the documents' examples:"
examples=$source/docs/examples
# shellcheck disable=SC2046
"$cc" "$examples/query_arena.c" $("$pkg_config" --define-variable=prefix="$prefix" --cflags --libs spanalloc) -pthread \
  -o "$scratch/query_arena"
LD_LIBRARY_PATH=$libdir "$scratch/query_arena"
# shellcheck disable=SC2046
"$cc" "$examples/plugin_host.c" $("$pkg_config" --define-variable=prefix="$prefix" --cflags --libs spanalloc) -ldl \
  -o "$scratch/plugin_host"
# shellcheck disable=SC2046
"$cc" -shared -fPIC "$examples/plugin.c" $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc) \
  -o "$scratch/plugin.so"
LD_LIBRARY_PATH=$libdir "$scratch/plugin_host" "$scratch/plugin.so"
test -n "$(find "$prefix" -path '*/man3/sp_heap.3')" || {
  echo "no man page of heaps is installed"
  exit 1
}

# What is linked asks for the soname. The name without a number is for the linker, for preloading, and for what was
# linked before 0.2, when there was no other.
major=${version%%.*}
for name in "$libdir"/libspanalloc*.so; do
  case $(readlink -f "$name") in
    *.so."$version") ;;
    *)
      echo "$name leads to no library of version $version"
      exit 1
      ;;
  esac
done
mkdir "$scratch/runtime"
cp -P "$libdir/libspanalloc.so.$major" "$libdir/libspanalloc.so.$version" "$scratch/runtime"
echo "without the name for the linker:"
LD_LIBRARY_PATH=$scratch/runtime "$scratch/by_pkg_config" standard

# old_names SEPARATOR: the names that libraries had before, and are still found by.
old_names() {
  sed -n 's/^[^#].* link=\([a-z0-9-]*\).*/\1/p' "$source/src/libraries.txt" | paste -s -d "$1" -
}

# new_name OLD: of the library that had this name.
new_name() {
  sed -n "s/^\([a-z0-9-]*\) .* link=$1\( .*\)*\$/\1/p" "$source/src/libraries.txt"
}

echo "CMake package:"
mkdir "$scratch/project"
cp "$source/tests/conformance/symbols.c" "$source/tests/conformance/sp_interface.c" \
  "$source/tests/unit/freestanding/program.c" "$scratch/project"
cat >"$scratch/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(spanalloc @version@ REQUIRED)
foreach(kind IN ITEMS spanalloc spanalloc_static)
  add_executable(by_${kind} symbols.c)
  target_compile_options(by_${kind} PRIVATE -fno-builtin)
  target_link_libraries(by_${kind} PRIVATE spanalloc::${kind})
endforeach()
add_executable(by_spanalloc_sp sp_interface.c)
target_compile_definitions(by_spanalloc_sp PRIVATE SPANALLOC_EXPECTED_VERSION="@version@")
target_link_libraries(by_spanalloc_sp PRIVATE spanalloc::spanalloc_sp)
foreach(old IN LISTS OLD_NAMES)
  add_executable(by_${old} symbols.c)
  target_compile_options(by_${old} PRIVATE -fno-builtin)
  target_link_libraries(by_${old} PRIVATE spanalloc::spanalloc_${old})
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/file_of_${old} CONTENT "$<TARGET_FILE:spanalloc::spanalloc_${old}>\n")
endforeach()
add_executable(by_spanalloc_pages program.c)
target_compile_options(by_spanalloc_pages PRIVATE -ffreestanding -fno-stack-protector -fno-pie)
target_link_options(by_spanalloc_pages PRIVATE -nostdlib -static -no-pie)
target_link_libraries(by_spanalloc_pages PRIVATE spanalloc::spanalloc_pages)
PROJECT
sed -i "s/@version@/$version/" "$scratch/project/CMakeLists.txt"
# Ninja, which built what is installed: CMake's own choice, make, need not be there.
"$cmake" -G Ninja -S "$scratch/project" -B "$scratch/project/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_C_COMPILER="$cc" -DOLD_NAMES="$(old_names ';')" >"$scratch/configure.log" && "$cmake" --build "$scratch/project/build" >"$scratch/build.log" || {
  cat "$scratch"/*.log
  exit 1
}
"$scratch/project/build/by_spanalloc" standard
"$scratch/project/build/by_spanalloc_static" standard
"$scratch/project/build/by_spanalloc_sp"
"$scratch/project/build/by_spanalloc_pages"

# Before 1.0 targets may have had other names in the minor version before.
if [ "$major" -eq 0 ]; then
  minor=${version#*.}
  minor=${minor%%.*}
  sed "s/find_package(spanalloc $version /find_package(spanalloc 0.$((minor - 1)) /" "$scratch/project/CMakeLists.txt" >"$scratch/older"
  mv "$scratch/older" "$scratch/project/CMakeLists.txt"
  if "$cmake" -G Ninja -S "$scratch/project" -B "$scratch/project/older" -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_C_COMPILER="$cc" >"$scratch/older.log" 2>&1; then
    echo "version $version is taken for 0.$((minor - 1))"
    exit 1
  fi
  grep -q 'compatible with requested version' "$scratch/older.log" || {
    cat "$scratch/older.log"
    exit 1
  }
fi

echo "the page manager alone:"
# shellcheck disable=SC2046
"$cc" $("$pkg_config" --define-variable=prefix="$prefix" --cflags spanalloc-pages) -ffreestanding -fno-stack-protector \
  -O1 -fno-pie -nostdlib -static -no-pie "$source/tests/unit/freestanding/program.c" -o "$scratch/pages" \
  $("$pkg_config" --define-variable=prefix="$prefix" --libs spanalloc-pages)
"$scratch/pages"
test -n "$(find "$prefix" -path '*/man3/sp_pages.3')" || {
  echo "no man page of the page manager is installed"
  exit 1
}

"$cc" -fno-builtin "$source/tests/conformance/symbols.c" -o "$scratch/plain"
for name in $(awk '/^[^#]/ && / ships/ { print $1 }' "$source/src/libraries.txt"); do
  echo "preloaded: $name"
  library=$libdir/libspanalloc-$name.so
  [ "$name" != standard ] || library=$libdir/libspanalloc.so
  LD_PRELOAD=$library "$scratch/plain" "$name"
done

for old in $(old_names ' '); do
  new=$(new_name "$old")
  echo "by its name of before: $old is $new"
  LD_PRELOAD=$libdir/libspanalloc-$old.so "$scratch/plain" "$new"
  "$scratch/project/build/by_$old" "$new"
  case $(readlink -f "$(cat "$scratch/project/build/file_of_$old")") in
    */libspanalloc-"$new".so."$version") ;;
    *)
      echo "its target in the CMake package has the file $(cat "$scratch/project/build/file_of_$old")"
      exit 1
      ;;
  esac
done
