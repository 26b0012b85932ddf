"""Redis under changing load: values that grow, large values, values that expire, lists and sets, mass deletion."""

from __future__ import annotations

import os
import shutil
import socket

from spanalloc_bench.execute import RunFailed
from spanalloc_bench.soak.phases import Phase, skewed

# Debian's package redis-tools has the server's program under this name; under the name redis-server it serves.
PROGRAM = "redis-check-rdb"
NEEDS = ((PROGRAM, "redis-tools"),)
SOCKET = "server.sock"
KEYS, LARGE_KEYS, SETS = 40_000, 1_200, 300
AT_ONCE = 100  # commands sent before their replies are read

PHASES = (
    Phase("small values", 3000), Phase("growing values", 3000), Phase("large values", 160),
    Phase("expiring values", 2000), Phase("lists and sets", 2000), Phase("reading, trimming", 2000),
    Phase("deleting", 5000), Phase("quiet", 40),
)


class Client:
    """One connection: sends commands, and takes their replies without looking at more than whether one is an error."""

    def __init__(self, folder):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(600)
        try:
            self.socket.connect(os.path.join(folder, SOCKET))
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rb")

    def send(self, commands):
        for first in range(0, len(commands), AT_ONCE):
            part = commands[first:first + AT_ONCE]
            self.socket.sendall(b"".join(part))
            for _ in part:
                self._reply()

    def _reply(self):
        line = self.file.readline()
        kind = line[:1]
        if kind == b"$":
            length = int(line[1:])
            if length >= 0:
                self.file.read(length + 2)
        elif kind == b"*":
            for _ in range(int(line[1:])):
                self._reply()
        elif kind not in (b"+", b":"):
            raise RunFailed(f"redis answers {line.decode(errors='replace').strip() or 'nothing'}")

    def close(self):
        self.file.close()
        self.socket.close()


def prepare(folder):
    """Makes what the server needs in its folder."""
    os.symlink(shutil.which(PROGRAM), os.path.join(folder, "redis-server"))


def server(folder) -> list[str]:
    return [os.path.join(folder, "redis-server"), "--port", "0", "--unixsocket", SOCKET, "--dir", folder, "--save", "",
            "--appendonly", "no", "--daemonize", "no"]


def connect(folder) -> Client:
    """Raises OSError while the server is not ready."""
    client = Client(folder)
    client.send([_command("PING")])
    return client


def fill(clients, rng):
    """What stays for the whole run, so that what comes and goes has something to lie between."""
    commands = [_command("SET", f"kept:{i}", _value(rng, 16, 4096)) for i in range(8000)]
    for client in clients:
        client.send(commands)


def _command(*words) -> bytes:
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


_BYTES = bytes(range(256)) * 300


def _value(rng, low, high) -> bytes:
    return _BYTES[:skewed(rng, low, high)]


def _structure(rng):
    at, kind = rng.randrange(SETS), rng.randrange(4)
    if kind == 0:
        return _command("RPUSH", f"list:{at}", *(_value(rng, 8, 600) for _ in range(4)))
    if kind == 1:
        return _command("HSET", f"hash:{at}", *(x for _ in range(4) for x in (rng.randrange(500), _value(rng, 8, 600))))
    if kind == 2:
        return _command("ZADD", f"ranking:{at}", *(x for _ in range(4) for x in (rng.randrange(10**6), rng.randrange(2000))))
    return _command("SADD", f"set:{at}", *(f"member-{rng.randrange(3000)}" for _ in range(4)))


def _read_or_trim(rng):
    at, kind = rng.randrange(SETS), rng.randrange(8)
    if kind < 2:
        return _command("GET", f"key:{rng.randrange(KEYS)}")
    if kind < 4:
        return _command("LRANGE", f"list:{at}", 0, 20)
    if kind == 4:
        return _command("LTRIM", f"list:{at}", -10, -1)
    if kind == 5:
        return _command("ZREMRANGEBYRANK", f"ranking:{at}", 0, 15)
    if kind == 6:
        return _command("SPOP", f"set:{at}", 20)
    return _command("HDEL", f"hash:{at}", *rng.sample(range(500), 40))


def _delete(rng):
    dice = rng.random()
    if dice < 0.94:
        return _command("DEL", f"key:{rng.randrange(KEYS)}")
    if dice < 0.985:
        return _command("UNLINK", f"large:{rng.randrange(LARGE_KEYS)}")
    kind = rng.choice(("list", "hash", "ranking", "set"))
    return _command("UNLINK", f"{kind}:{rng.randrange(SETS)}")


_COMMANDS = {
    "small values": lambda rng: _command("SET", f"key:{rng.randrange(KEYS)}", _value(rng, 16, 256)),
    "growing values": lambda rng: _command("APPEND", f"key:{rng.randrange(KEYS)}", _value(rng, 50, 1000)),
    "large values": lambda rng: _command("SET", f"large:{rng.randrange(LARGE_KEYS)}", _value(rng, 4096, 65536)),
    "expiring values": lambda rng: _command("SET", f"session:{rng.getrandbits(40)}", _value(rng, 100, 4000), "PX",
                                            rng.randrange(2000, 40000)),
    "lists and sets": _structure,
    "reading, trimming": _read_or_trim,
    "deleting": _delete,
    "quiet": lambda rng: _command("GET", f"key:{rng.randrange(KEYS)}"),
}


def load(clients, tick):
    """One tick on every server."""
    make = _COMMANDS[tick.phase.name]
    commands = [make(tick.rng) for _ in range(tick.count)]
    for client in clients:
        client.send(commands)
