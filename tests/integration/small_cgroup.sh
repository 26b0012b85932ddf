#!/bin/sh
# A memory cgroup that is small compared with what the library reserves and opens: the workload fits only if
# the library keeps close to what the program uses.
#   small_cgroup.sh LIMIT_MIB WORKLOAD_PROGRAM ARGUMENT...
# SPANALLOC_LIBRARY names the library; it is preloaded into the workload only.
set -u
limit=$(($1 * 1024 * 1024))
shift
name=spanalloc-test-$$

skip() { echo "SKIPPED: $*"; exit 77; }
if [ -w /sys/fs/cgroup/memory/cgroup.procs ]; then
  group=/sys/fs/cgroup/memory/$name
  file=memory.limit_in_bytes
elif [ -w /sys/fs/cgroup/cgroup.subtree_control ]; then
  group=/sys/fs/cgroup/$name
  file=memory.max
else
  skip "no writable memory cgroup"
fi
mkdir "$group" 2>/dev/null || skip "cannot create $group"
# A killed process leaves its group a moment after it was waited for.
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
  tries=600
  while ! rmdir "$group" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do sleep 0.1; done
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
[ -e "$group/$file" ] || skip "$group has no memory controller"
echo "$limit" 2>/dev/null >"$group/$file" || skip "cannot set $group/$file"
[ -e "$group/memory.swap.max" ] && echo 0 2>/dev/null >"$group/memory.swap.max"

# The shell moves itself, then becomes the workload: every page of it is charged to the group.
sh -c 'echo $$ >"$0/cgroup.procs" || exit 77; LD_PRELOAD=$SPANALLOC_LIBRARY; export LD_PRELOAD; exec "$@"' \
  "$group" "$@"
status=$?
[ $status = 77 ] && skip "cannot enter $group"
[ $status = 0 ] || { echo "FAILED with $status (137: killed for want of memory)"; exit 1; }
echo "ran within $((limit / 1024 / 1024)) MiB"
