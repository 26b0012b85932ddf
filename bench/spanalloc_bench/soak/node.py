"""Node under changing load: bench/workloads/soak_server.js keeps buffers, sessions and what it has packed, as its
phases ask for."""

from __future__ import annotations

import http.client
import os
import socket

from spanalloc_bench import tree
from spanalloc_bench.execute import RunFailed, find_program
from spanalloc_bench.soak.phases import Phase, skewed

NEEDS = (("node", "nodejs"),)
SOCKET = "server.sock"
EXPIRE_TICKS = 6  # ticks from one look for what has expired to the next

# Operations are pieces of work in the server, many a request.
PHASES = (
    Phase("small buffers", 3000), Phase("growing buffers", 3000), Phase("large buffers", 60), Phase("sessions", 500),
    Phase("packing", 40), Phase("uploads, secrets", 40), Phase("dropping", 1500), Phase("quiet", 20),
)
_KINDS = {
    "small buffers": "small", "growing buffers": "grow", "large buffers": "large", "sessions": "session",
    "packing": "pack", "uploads, secrets": "secret", "dropping": "drop", "quiet": "read",
}


class Client(http.client.HTTPConnection):
    """HTTP over the server's Unix socket."""

    def __init__(self, folder):
        super().__init__("localhost", timeout=600)
        self.path = os.path.join(folder, SOCKET)
        self.connect()

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except OSError:
            self.close()
            raise

    def ask(self, kind, count=0, seed=0, body=b""):
        self.request("POST", f"/{kind}?count={count}&seed={seed}", body)
        answer = self.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise RunFailed(f"node answers {answer.status}: {said.decode(errors='replace')[:100]}")


def prepare(folder):
    """Nothing is needed in the server's folder."""


def server(folder) -> list[str]:
    # A small heap of V8's own, which no malloc serves.
    return [find_program("node"), "--expose-gc", "--max-old-space-size=128", "--max-semi-space-size=2",
            os.path.join(tree.SOURCE, "bench", "workloads", "soak_server.js"), os.path.join(folder, SOCKET)]


def connect(folder) -> Client:
    """Raises OSError while the server is not ready."""
    return Client(folder)


def fill(clients, rng):
    seed = rng.getrandbits(32)
    for client in clients:
        client.ask("keep", 6000, seed)


def load(clients, tick):
    """One tick on every server."""
    kind, seed = _KINDS[tick.phase.name], tick.rng.getrandbits(32)
    body = bytes(skewed(tick.rng, 1000, 300_000)) if kind == "secret" else b""
    renewed = kind == "session" and tick.number % 4 == 0
    for client in clients:
        if renewed:  # as when a browser comes back
            client.close()
            client.connect()
        client.ask(kind, tick.count, seed, body)
        if tick.number % EXPIRE_TICKS == 0:
            client.ask("expire")
