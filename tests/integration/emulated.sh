#!/bin/sh
# A program in an emulator, with the library that SPANALLOC_LIBRARY names preloaded there.
#   emulated.sh valgrind|qemu PROGRAM ARGUMENT...
set -u
tool=$1
shift
skip() { echo "SKIPPED: $*"; exit 77; }
# (Both have less address space to give than a whole arena takes.)
SPANALLOC_ARENA_BITS=32
export SPANALLOC_ARENA_BITS
case $tool in
  valgrind)
    command -v valgrind >/dev/null || skip "valgrind is not here"
    LD_PRELOAD=$SPANALLOC_LIBRARY exec valgrind --tool=none -q --error-exitcode=1 -- "$@"
    ;;
  qemu)
    [ "$(uname -m)" = x86_64 ] || skip "it is for x86-64"
    command -v qemu-x86_64 >/dev/null || skip "qemu-x86_64 is not here"
    exec qemu-x86_64 -E "LD_PRELOAD=$SPANALLOC_LIBRARY" -- "$@"
    ;;
esac
echo "no such tool: $tool"
exit 1
