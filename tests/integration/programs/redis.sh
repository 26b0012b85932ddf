#!/bin/sh
# Redis under redis-benchmark and under a client that checks every reply; then saved, restarted and checked again.
# Debian's redis-server is linked with jemalloc: the preloaded library must win.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need redis-server redis-server
need redis-benchmark redis-tools
need "$python" python3
prove_first redis-server
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
server=
on_exit() { [ -z "$server" ] || kill "$server"; }
start() {
  # Not through ours(): $! must be the server itself.
  env LD_PRELOAD="$SPANALLOC_PROBE $SPANALLOC_LIBRARY" SPANALLOC_PROBE_FILE="$probe_file" redis-server --port "$port" --bind 127.0.0.1 --dir "$work" --save '' --appendonly no --io-threads 2 \
    --io-threads-do-reads yes --daemonize no --logfile "$work/redis.log" &
  server=$!
}
client() { "$python" "$programs/redis_client.py" "$port" "$@" || { tail -n 20 "$work/redis.log"; fail "redis client: $*"; }; }
start
client wait
grep -q "$(readlink -f "$SPANALLOC_LIBRARY")" "/proc/$server/maps" || fail "the library is not mapped"
redis-benchmark -p "$port" -q -n 40000 -c 40 -P 8 -d 300 -r 5000 \
  -t set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset >benchmark.txt 2>&1 ||
  { cat benchmark.txt; fail "redis-benchmark"; }
client fill
client check
client save
kill "$server"
wait "$server" || fail "the server ended with $?"
start
client wait
client check
client churn
prove_ours redis-server
