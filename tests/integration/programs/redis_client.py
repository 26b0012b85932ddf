"""A Redis client that knows what each reply must be: redis_client.py SOCKET wait PID|fill|check|save|churn.

Waiting has no end of its own but that of a hang."""

import random
import socket
import sys
import time

KEYS = 20000
HANG_S = 600


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(HANG_S)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        """Sends a pipeline of commands and returns their replies."""
        out = []
        for command in commands:
            words = [word if isinstance(word, bytes) else str(word).encode() for word in command]
            out.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        self.socket.sendall(b"".join(out))
        return [self.reply() for _ in commands]

    def reply(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"+:":
            return rest if kind == b"+" else int(rest)
        if kind == b"$":
            length = int(rest)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        raise RuntimeError(f"the server says {line!r}")


def value(key):
    """Small and large values, each different in every byte position."""
    rng = random.Random(key)
    size = rng.choice((1, 10, 50, 200, 1000, 5000)) if key % 500 else 2_000_000
    return rng.randbytes(size)


def expect(got, wanted, what):
    if got != wanted:
        sys.exit(f"{what}: got {str(got)[:80]}, wanted {str(wanted)[:80]}")


def until(true, what):
    deadline = time.monotonic() + HANG_S
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within {HANG_S} s")
        time.sleep(0.02)


def wait(path, server):
    """Until the server answers; it must live that long."""

    def answers():
        try:
            with open(f"/proc/{server}/stat", encoding="utf-8") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state in "ZX":
            sys.exit("the server has ended at its start")
        try:
            return Connection(path).send(("PING",)) == [b"PONG"]
        except (OSError, RuntimeError):  # not listening yet, or loading its data
            return False

    until(answers, "the server does not answer")


def fill(path):
    connection = Connection(path)
    for first in range(0, KEYS, 100):
        replies = connection.send(*(("SET", f"checked:{k}", value(k)) for k in range(first, first + 100)))
        expect(replies, [b"OK"] * 100, "SET")
    for k in range(300):
        expect(connection.send(("RPUSH", f"list:{k % 10}", value(k)))[0], k // 10 + 1, "RPUSH")
        expect(connection.send(("HSET", "hash", f"field{k}", value(k)))[0], 1, "HSET")


def check(path):
    connection = Connection(path)
    for first in range(0, KEYS, 100):
        replies = connection.send(*(("GET", f"checked:{k}") for k in range(first, first + 100)))
        for k, got in enumerate(replies, first):
            expect(got, value(k), f"GET checked:{k}")
    for k in range(10):
        expect(connection.send(("LRANGE", f"list:{k}", 0, -1))[0], [value(i) for i in range(k, 300, 10)], "LRANGE")
    expect(len(connection.send(("HGETALL", "hash"))[0]), 600, "HGETALL")


def save(path):
    """A background save (a fork of a process with threads) while requests go on, then one in the foreground."""
    connection = Connection(path)
    connection.send(("BGSAVE",))
    for i in range(3000):
        expect(connection.send(("APPEND", "growing", b"x" * 100))[0], (i + 1) * 100, "APPEND")
    until(lambda: b"rdb_bgsave_in_progress:0" in connection.send(("INFO", "persistence"))[0], "the background save")
    if b"rdb_last_bgsave_status:ok" not in connection.send(("INFO", "persistence"))[0]:
        sys.exit("the background save failed")
    expect(connection.send(("SAVE",))[0], b"OK", "SAVE")


def churn(path):
    """Values that grow, shrink and go, checked against a dictionary."""
    connection = Connection(path)
    rng = random.Random(3)
    known = {}
    for _ in range(20000):
        key = f"churn:{rng.randrange(500)}"
        dice = rng.random()
        if dice < 0.4:
            known[key] = rng.randbytes(rng.choice((3, 40, 300, 3000)))
            expect(connection.send(("SET", key, known[key]))[0], b"OK", "SET")
        elif dice < 0.6:
            more = rng.randbytes(rng.randrange(1, 200))
            known[key] = known.get(key, b"") + more
            expect(connection.send(("APPEND", key, more))[0], len(known[key]), "APPEND")
        elif dice < 0.8:
            expect(connection.send(("DEL", key))[0], int(known.pop(key, None) is not None), "DEL")
        else:
            expect(connection.send(("GET", key))[0], known.get(key), "GET")


if __name__ == "__main__":
    {"wait": wait, "fill": fill, "check": check, "save": save, "churn": churn}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
