#!/bin/sh
# CPython runs a part of its own standard library's tests. PYTHONMALLOC=malloc: every object goes through malloc.
#   cpython.sh daily    the modules that ask most of a malloc, and threads
#   cpython.sh further  more modules of the same kind
#   cpython.sh timed    those of the first whose tests are not all run every day, for they look at the clock
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need "$python" python3
prove_first "$python"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import test.test_dict' 2>/dev/null ||
  skip "the standard library's tests are not here (Debian: libpython$version-testsuite)"

case $1 in
  daily)
    set -- test_dict test_list test_set test_tuple test_json test_re test_gc test_threading test_bytes \
      test_memoryview test_deque test_ordered_dict test_pickle test_zlib test_sort test_generators \
      test_thread test_long test_itertools test_struct test_fstring
    # These want a thread to have got somewhere, or something to be done, within milliseconds or a few seconds.
    for timed in LockTests PyRLockTests CRLockTests EventTests ConditionAsRLockTests ConditionTests SemaphoreTests \
      BoundedSemaphoreTests BarrierTests ThreadJoinOnShutdown test_repr_stopped test_search_anchor_at_beginning; do
      set -- -i "$timed" "$@"
    done
    ;;
  further)
    set -- test_unicode test_array test_memoryio test_buffer test_codecs test_ast test_compile test_lzma test_bz2 \
      test_decimal test_weakref test_weakset test_descr test_collections test_heapq test_marshal test_xml_etree_c \
      test_pyexpat test_ctypes test_mmap test_tracemalloc test_csv test_copy test_sax test_difflib
    ;;
  timed)
    set -- test_threading test_thread test_re
    ;;
esac
# --randseed: what the tests draw, and their order. --timeout: a fortieth of it, 600 s, is how long they wait for threads
# and processes, which is 30 s otherwise.
seed=${SPANALLOC_TEST_SEED:-1}
PYTHONMALLOC=malloc PYTHONHASHSEED=$((seed % 4294967296)) \
  ours "$python" -m test --randseed "$seed" --timeout 24000 "$@" >output.txt 2>&1 || {
  tail -n 40 output.txt
  fail "the standard library's tests, with seed $seed"
}
grep -E '^(Result: SUCCESS|Tests result: SUCCESS|== Tests result: SUCCESS)' output.txt >/dev/null ||
  { tail -n 20 output.txt; fail "no success was reported"; }
prove_ours "$python"
grep -E 'tests? OK' output.txt || true
