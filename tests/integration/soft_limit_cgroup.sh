#!/bin/sh
# A program that churns at nine tenths of its memory cgroup's limit, in a real one.
#   soft_limit_cgroup.sh LIMIT_MIB PROGRAM                      ours, which must live with SPANALLOC_SOFT_LIMIT=cgroup
#   soft_limit_cgroup.sh LIMIT_MIB PROGRAM NAME=LIBRARY...      what others do (NAME= of none: the C library's malloc)
# PERCENT of the limit (90) is live. SPANALLOC_LIBRARY names our library; a library is preloaded into the program only.
set -u
limit=$(($1 * 1024 * 1024))
limit_mib=$1
program=$2
shift 2
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
# Where there is swap the program would only become slow.
[ -e "$group/memory.swap.max" ] && echo 0 2>/dev/null >"$group/memory.swap.max"
[ -e "$group/memory.swappiness" ] && echo 0 2>/dev/null >"$group/memory.swappiness"

# run LIBRARY [SOFT_LIMIT]: the shell moves itself, then becomes the program. Its status: 137 is "killed".
run() {
  # shellcheck disable=SC2016 # for the inner shell
  SPANALLOC_SOFT_LIMIT=${2-} LIBRARY=$1 sh -c '
    echo $$ >"$0/cgroup.procs" || exit 77
    [ -n "$SPANALLOC_SOFT_LIMIT" ] || unset SPANALLOC_SOFT_LIMIT
    [ -z "$LIBRARY" ] || { LD_PRELOAD=$LIBRARY; export LD_PRELOAD; }
    exec "$@"' "$group" "$program" "$limit_mib" "${PERCENT:-90}" >/dev/null 2>&1
}
word() {
  case $1 in
    0) echo lives ;;
    137) echo "is killed" ;;
    *) echo "ends with $1" ;;
  esac
}

if [ $# != 0 ]; then
  for contender in "$@"; do
    run "${contender#*=}"
    echo "${contender%%=*}: $(word $?)"
  done
  exit 0
fi
run "$SPANALLOC_LIBRARY"
status=$?
[ $status = 77 ] && skip "cannot enter $group"
echo "without a soft limit the program $(word $status)"
[ $status = 137 ] || skip "the kernel does not end the program without a soft limit here"
for soft in cgroup "$limit"; do
  run "$SPANALLOC_LIBRARY" "$soft"
  status=$?
  echo "with SPANALLOC_SOFT_LIMIT=$soft it $(word $status)"
  [ $status = 0 ] || exit 1
done
