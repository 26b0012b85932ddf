#!/bin/sh
# Redis under redis-benchmark and under a client that checks every reply; then saved, restarted and checked again.
# Debian's redis-server is linked with jemalloc: the preloaded library must win.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
# The package redis-tools has the server's program, too, under another name; the package redis-server would start one.
need redis-check-rdb redis-tools
need redis-benchmark redis-tools
need "$python" python3
mkdir bin
ln -s "$(command -v redis-check-rdb)" bin/redis-server
PATH=$work/bin:$PATH
prove_first redis-server
socket=server.sock  # relative, for the length of a socket's path is limited
server=
on_exit() { [ -z "$server" ] || { kill -KILL "$server"; wait "$server"; } 2>/dev/null; }
start() {
  # Not through ours(): $! must be the server itself.
  env LD_PRELOAD="$SPANALLOC_PROBE $SPANALLOC_LIBRARY" SPANALLOC_PROBE_FILE="$probe_file" redis-server --port 0 \
    --unixsocket "$socket" --dir "$work" --save '' --appendonly no --io-threads 2 --io-threads-do-reads yes \
    --daemonize no --logfile "$work/redis.log" &
  server=$!
  # As long as it takes, but not when the server has ended.
  client wait "$server"
}
client() { "$python" "$programs/redis_client.py" "$socket" "$@" || { tail -n 20 "$work/redis.log"; fail "redis client: $*"; }; }
start
grep -q "$(readlink -f "$SPANALLOC_LIBRARY")" "/proc/$server/maps" || fail "the library is not mapped"
redis-benchmark -s "$socket" -q -n 40000 -c 40 -P 8 -d 300 -r 5000 \
  -t set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset >benchmark.txt 2>&1 ||
  { cat benchmark.txt; fail "redis-benchmark"; }
client fill
client check
client save
kill "$server"
ended=$server server=
wait "$ended" || fail "the server ended with $?"
start
client check
client churn
prove_ours redis-server
