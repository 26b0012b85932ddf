# shellcheck shell=sh
# What the tests with real programs share; sourced. SPANALLOC_LIBRARY: the library under test;
# SPANALLOC_PROBE: which_malloc.so. Each test works in a folder of its own, $work, which goes away with it.

set -eu
# shellcheck disable=SC2034 # for the scripts that source this
programs=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/spanalloc-program.XXXXXX")
probe_file=$work/which_malloc.txt
on_exit() { :; }
finish() {
  status=$?
  trap - EXIT
  # Whatever still runs here must have ended: it could write into the folder while that goes away.
  on_exit || true
  rm -rf "$work" || echo "cannot remove $work"
  exit $status
}
trap finish EXIT
cd "$work"
trap 'exit 130' INT TERM HUP

# Not Python from somewhere else: its own standard-library tests come with Debian's.
# shellcheck disable=SC2034 # for the scripts that source this
python=/usr/bin/python3

fail() { echo "FAILED: $*"; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }

# need COMMAND PACKAGE: the program is there, else the test is skipped. No test installs anything: scripts/test does, before
# the first one starts, what stands in tests/packages.txt.
need() { command -v "$1" >/dev/null 2>&1 || skip "$1 is not here (Debian: $2)"; }

# ours COMMAND...: runs it with the library under test as its malloc. A shell in the background ignores SIGINT, which
# programs inherit; they get it as it is elsewhere.
ours() {
  env --default-signal=INT LD_PRELOAD="$SPANALLOC_PROBE $SPANALLOC_LIBRARY" SPANALLOC_PROBE_FILE="$probe_file" "$@"
}

# prove_ours COMMAND: the program has run, and in every process so far the whole malloc family was the library's.
prove_ours() {
  program=$(readlink -f "$(command -v "$1")")
  [ -s "$probe_file" ] || fail "no process has reported its malloc"
  grep -q "^$program " "$probe_file" || fail "$program has not run with the library: $(cut -d' ' -f1 "$probe_file" | sort -u)"
  wanted=$(readlink -f "$SPANALLOC_LIBRARY")
  while read -r process calls bindings; do
    [ "$calls" = calls=ours ] || fail "$process calls a malloc that is not the library's"
    for binding in $bindings; do
      [ "$(readlink -f "${binding#*=}")" = "$wanted" ] || fail "$process: ${binding%%=*} comes from ${binding#*=}"
    done
  done <<LINES
$(sort -u "$probe_file")
LINES
  echo "malloc is $wanted in $(wc -l <"$probe_file") processes: $(cut -d' ' -f1 "$probe_file" | sort | uniq -c | sort -rn | head -n 6 | awk '{ printf "%s %s; ", $1, $2 }')"
}

# prove_first COMMAND...: before any work, that each program's malloc is the library's.
prove_first() {
  for command in "$@"; do
    ours "$command" --version >/dev/null 2>&1 || fail "$command --version fails with the library"
    prove_ours "$command"
  done
}
