#!/bin/sh
# CPython runs a part of its own standard library's tests. PYTHONMALLOC=malloc: every object goes through malloc.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need "$python" python3
prove_first "$python"
"$python" -c 'import test.test_dict' 2>/dev/null || {
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  sh "$programs/install.sh" "libpython$version-testsuite" >/dev/null 2>&1 || true
  "$python" -c 'import test.test_dict' 2>/dev/null || skip "the package libpython$version-testsuite cannot be installed"
}
PYTHONMALLOC=malloc ours "$python" -m test \
  test_dict test_list test_set test_tuple test_json test_re test_gc test_threading test_bytes \
  test_memoryview test_deque test_ordered_dict test_pickle test_zlib test_sort test_generators \
  test_thread test_long test_itertools test_struct test_fstring >output.txt 2>&1 || {
  tail -n 40 output.txt
  fail "the standard library's tests"
}
grep -E '^(Result: SUCCESS|Tests result: SUCCESS|== Tests result: SUCCESS)' output.txt >/dev/null ||
  { tail -n 20 output.txt; fail "no success was reported"; }
prove_ours "$python"
grep -E 'tests? OK' output.txt || true
