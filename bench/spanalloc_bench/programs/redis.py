"""Redis under redis-benchmark: a private server on a Unix socket, nothing saved. Only the server runs under the
contender; that of Debian is linked with jemalloc, so it is the preloaded malloc only because a preload comes first."""

import os
import shutil
import subprocess

from .servers import Server, load

# Debian's package redis-tools has the server's program too, under this name; under the name redis-server it serves. So
# no package needs to be there that would start a server of its own.
NEEDS = ("redis-check-rdb", "redis-benchmark", "redis-cli")
SOCKET = "server.sock"  # relative, for the length of a socket's path is limited
TESTS = "set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,lrange_100,mset"


def _ready(folder, environment):
    def ask():
        answer = subprocess.run(["redis-cli", "-s", SOCKET, "ping"], cwd=folder, env=environment, check=False,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return answer.stdout.strip() == b"PONG"

    return ask


def run(context):
    """Argument words of the case: requests of each kind, bytes of a value in a first and in a second pass."""
    requests, small, large = context.case.argv
    folder = context.scratch
    program = os.path.join(folder, "redis-server")
    os.symlink(shutil.which("redis-check-rdb"), program)
    options = ["--port", "0", "--unixsocket", SOCKET, "--dir", folder, "--save", "", "--appendonly", "no",
               "--daemonize", "no"]
    total, seconds = 0, 0.0
    with Server(context.measured_command([program, *options]), folder, context.environment,
                os.path.join(folder, "server.log")) as server:
        server.wait_until(_ready(folder, context.environment))
        for size in (small, large):  # the second pass replaces values by longer ones
            _, took = load(server, ["redis-benchmark", "-s", SOCKET, "-q", "-n", requests, "-c", "20", "-P", "8", "-r",
                                    requests, "-d", size, "-t", TESTS], folder, context.environment)
            total += int(requests) * len(TESTS.split(","))
            seconds += took
        server.stop()
    return {"operations": total, "elapsed_s": seconds, "metrics": {"requests_per_s": total / seconds}}
