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
# shellcheck source=tests/integration/support/memory_cgroup.sh
. "${0%/*}/support/memory_cgroup.sh"
make_group "$limit"

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
