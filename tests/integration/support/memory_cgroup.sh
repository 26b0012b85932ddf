#!/bin/sh
# For scripts, which include it: a memory cgroup of their own, without swap, that goes when they end.
#   make_group BYTES      sets $group, its folder: who writes its number to $group/cgroup.procs is in it. Exits with 77,
#                         "skipped", and says why, where the machine allows none.

skip() { echo "SKIPPED: $*"; exit 77; }

make_group() {
  if [ -w /sys/fs/cgroup/memory/cgroup.procs ]; then
    group=/sys/fs/cgroup/memory/spanalloc-test-$$
    file=memory.limit_in_bytes
  elif [ -w /sys/fs/cgroup/cgroup.subtree_control ]; then
    group=/sys/fs/cgroup/spanalloc-test-$$
    file=memory.max
  else
    skip "no writable memory cgroup"
  fi
  mkdir "$group" 2>/dev/null || skip "cannot create $group"
  trap remove_group EXIT
  trap 'exit 1' INT TERM HUP
  [ -e "$group/$file" ] || skip "$group has no memory controller"
  echo "$1" 2>/dev/null >"$group/$file" || skip "cannot set $group/$file"
  # Where there is swap the program would only become slow.
  [ -e "$group/memory.swap.max" ] && echo 0 2>/dev/null >"$group/memory.swap.max"
  [ -e "$group/memory.swappiness" ] && echo 0 2>/dev/null >"$group/memory.swappiness"
  return 0
}

# A killed process leaves its group a moment after it was waited for.
# shellcheck disable=SC2317 # the trap calls it
remove_group() {
  tries=600
  while ! rmdir "$group" 2>/dev/null && [ $((tries -= 1)) -gt 0 ]; do sleep 0.1; done
}
