#!/bin/sh
# vm.overcommit_memory=2: every writable byte is charged, reservations are not. Runs a workload and simple
# programs in that mode. The setting is the whole machine's: it is restored whatever happens.
#   overcommit.sh WORKLOAD_PROGRAM [ATTRIBUTES_PROGRAM]
# ATTRIBUTES_PROGRAM (attributes.cpp) must find that free memory is not mapped anew in that mode.
# SPANALLOC_LIBRARY names the library; it is preloaded here, into the programs under test only.
set -u
setting=/proc/sys/vm/overcommit_memory
workload=$1
attributes=${2-}

skip() { echo "SKIPPED: $*"; exit 77; }
[ -w "$setting" ] || skip "cannot write $setting"
before=$(cat "$setting") || skip "cannot read $setting"
# shellcheck disable=SC2317 # the trap calls it
restore() { echo "$before" >"$setting"; { echo restored >&9; } 2>/dev/null; }
trap restore EXIT
trap 'exit 1' INT TERM HUP
# Nobody can catch a kill: somebody outside of this process group restores the setting when the pipe, whose other end
# this shell alone has, is closed without a word.
folder=$(mktemp -d) || skip "cannot make a folder"
mkfifo "$folder/pipe" || skip "cannot make a pipe"
# shellcheck disable=SC2016 # the other shell expands it
(setsid sh -c 'read -r _ <"$0" || echo "$1" >"$2"' "$folder/pipe" "$before" "$setting" >/dev/null 2>&1 &)
exec 9>"$folder/pipe"
rm -r "$folder"
echo 2 2>/dev/null >"$setting" || skip "the kernel does not let us set $setting"
[ "$(cat "$setting")" = 2 ] || skip "$setting did not take the value 2"

limit=$(awk '/CommitLimit/ { print $2 }' /proc/meminfo)
used=$(awk '/Committed_AS/ { print $2 }' /proc/meminfo)
[ "$((limit - used))" -gt 1000000 ] || skip "only $((limit - used)) KiB may still be committed on this machine"

failed=0
check() {
  if LD_PRELOAD=$SPANALLOC_LIBRARY "$@" >/dev/null 9>&-; then
    echo "ok: $*"
  else
    echo "FAILED with $?: $*"
    failed=1
  fi
}
check /bin/true
check ls /
check sh -c 'seq 1 100000 | sort -R | wc -l'
check "$workload" mixed 8 16 10000
if [ -n "$attributes" ]; then
  found=$(LD_PRELOAD=$SPANALLOC_LIBRARY "$attributes" not_dumped 2>&1 9>&-)
  case $found in
    *"mappings still have it"*) echo "ok: nothing is mapped anew" ;;
    *) echo "FAILED: memory was mapped anew: $found"; failed=1 ;;
  esac
fi
exit $failed
