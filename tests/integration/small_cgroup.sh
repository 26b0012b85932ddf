#!/bin/sh
# A memory cgroup that is small compared with what the library reserves and opens: the workload fits only if
# the library keeps close to what the program uses.
#   small_cgroup.sh LIMIT_MIB WORKLOAD_PROGRAM ARGUMENT...
# SPANALLOC_LIBRARY names the library; it is preloaded into the workload only.
set -u
limit=$(($1 * 1024 * 1024))
shift
# shellcheck source=tests/integration/support/memory_cgroup.sh
. "${0%/*}/support/memory_cgroup.sh"
make_group "$limit"

# The shell moves itself, then becomes the workload: every page of it is charged to the group.
sh -c 'echo $$ >"$0/cgroup.procs" || exit 77; LD_PRELOAD=$SPANALLOC_LIBRARY; export LD_PRELOAD; exec "$@"' \
  "$group" "$@"
status=$?
[ $status = 77 ] && skip "cannot enter $group"
[ $status = 0 ] || { echo "FAILED with $status (137: killed for want of memory)"; exit 1; }
echo "ran within $((limit / 1024 / 1024)) MiB"
