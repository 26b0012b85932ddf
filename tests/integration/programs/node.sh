#!/bin/sh
# Node.js: JSON, Map, Buffers, zlib in the thread pool, and worker_threads; the script checks its own results.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need node nodejs
prove_first node
output=$(ours node "$programs/exercise.js" 2>&1) || { echo "$output"; fail "the script"; }
[ "$(echo "$output" | tail -n 1)" = "all checks passed" ] || fail "the script ends with: $output"
prove_ours node
