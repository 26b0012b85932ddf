#!/bin/sh
# fresh.sh SIMULATION SECONDS: seeds that nobody has tried, from SPANALLOC_TEST_SEED on.
set -eu
exec "$1" search --first $((1000000 + ${SPANALLOC_TEST_SEED:-1} % 1000000 * 1000000)) --seconds "$2" --jobs 2
