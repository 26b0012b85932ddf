"""MariaDB under changing load: rows that come, grow and go, tables in memory, sessions with variables and prepared
statements, sorts and groups of many sizes, long texts."""

from __future__ import annotations

import os
import subprocess

import pymysql

from spanalloc_bench.execute import RunFailed, clean_environment, find_program
from spanalloc_bench.soak.phases import Phase, skewed

NEEDS = (("mariadbd", "mariadb-server-core"),)
SOCKET = "server.sock"
ROWS, MEMORY_ROWS, SESSIONS = 20_000, 60_000, 60

PHASES = (
    Phase("inserting", 30), Phase("tables in memory", 50), Phase("sessions", 8), Phase("sorts and groups", 12),
    Phase("long texts", 12), Phase("updating", 30), Phase("deleting", 30), Phase("quiet", 2),
)


class Session:
    """One connection to a server."""

    def __init__(self, folder):
        try:
            self.connection = pymysql.connect(unix_socket=os.path.join(folder, SOCKET), user="root", database="soak",
                                              autocommit=True)
        except pymysql.MySQLError as error:
            raise ConnectionError(str(error)) from None

    def query(self, statement: str):
        try:
            self.connection.query(statement)
        except pymysql.MySQLError as error:
            raise RunFailed(f"mariadbd answers: {error} ({statement[:60]})") from None

    def close(self):
        self.connection.close()


class Client:
    """A server's main session, and those that the phase "sessions" opens beside it."""

    def __init__(self, folder):
        self.folder, self.main, self.others = folder, Session(folder), {}

    def session(self, number) -> Session:
        """One of the other sessions, a new one in the place of the old."""
        self.end_session(number)
        self.others[number] = Session(self.folder)
        return self.others[number]

    def any_session(self, number) -> Session:
        """One of the other sessions if it is open, else the main one."""
        return self.others.get(number, self.main)

    def end_session(self, number):
        if number in self.others:
            self.others.pop(number).close()

    def close(self):
        for number in list(self.others):
            self.end_session(number)
        self.main.close()


def server(folder) -> list[str]:
    argv = [
        find_program("mariadbd"), "--no-defaults", f"--datadir={folder}/data", "--skip-networking",
        "--skip-grant-tables", "--skip-name-resolve", f"--socket={folder}/{SOCKET}", f"--pid-file={folder}/server.pid",
        "--skip-log-bin", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--innodb-log-buffer-size=2M",
        "--loose-innodb-buffer-pool-size-max=16M", "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=OFF",
        "--innodb-use-native-aio=OFF", "--innodb-flush-method=fsync", "--key-buffer-size=1M",
        "--aria-pagecache-buffer-size=1M", "--max-heap-table-size=64M", "--tmp-table-size=4M", "--log-warnings=1",
        "--innodb-buffer-pool-dump-at-shutdown=OFF", "--innodb-buffer-pool-load-at-startup=OFF",
    ]
    return [*argv, "--user=root"] if os.geteuid() == 0 else argv


def prepare(folder):
    """Makes the server's data folder, with the default malloc: only what serves is measured."""
    data = os.path.join(folder, "data")
    os.mkdir(data)
    run = subprocess.run([*server(folder), "--bootstrap"], input=b"CREATE DATABASE soak;\n", env=clean_environment(),
                         cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, check=False)
    if run.returncode:
        raise RunFailed(f"mariadbd cannot make its data folder: {run.stdout.decode(errors='replace')[-200:].strip()}")


def connect(folder) -> Client:
    """Raises OSError while the server is not ready."""
    return Client(folder)


def fill(clients, rng):
    statements = [
        "CREATE TABLE item (id INT PRIMARY KEY, grp INT, name VARCHAR(200), body TEXT, KEY (grp)) ENGINE=InnoDB",
        "CREATE TABLE fast (id INT PRIMARY KEY, grp INT, name VARCHAR(400), KEY (grp)) ENGINE=MEMORY",
    ]
    statements += [_insert(rng, 200) for _ in range(50)]
    for client in clients:
        for statement in statements:
            client.main.query(statement)


def _text(rng, low, high):
    """SQL for a text of this length, which the server makes."""
    return f"REPEAT('{rng.randrange(16**8):08x}', {max(1, skewed(rng, low, high) // 8)})"


def _insert(rng, rows=20):
    values = (f"({rng.randrange(ROWS)}, {rng.randrange(200)}, {_text(rng, 8, 200)}, {_text(rng, 8, 3000)})"
              for _ in range(rows))
    return "REPLACE INTO item VALUES " + ", ".join(values)


def _insert_fast(rng):
    values = (f"({rng.randrange(MEMORY_ROWS)}, {rng.randrange(200)}, {_text(rng, 8, 400)})" for _ in range(50))
    return "REPLACE INTO fast VALUES " + ", ".join(values)


def _sort(rng):
    size = 32768 << rng.randrange(7)
    group, width = rng.randrange(180), rng.randrange(1, 8)
    where = f"grp BETWEEN {group} AND {group + width}"
    return rng.choice((
        f"SET STATEMENT sort_buffer_size={size} FOR SELECT id, name, body FROM item WHERE {where} ORDER BY body, name",
        f"SELECT name, COUNT(*), SUM(LENGTH(body)) FROM item WHERE {where} GROUP BY name ORDER BY 3",
        f"SET STATEMENT join_buffer_size={size} FOR SELECT COUNT(*) FROM item a IGNORE INDEX (grp) JOIN fast b IGNORE "
        f"INDEX (grp) ON a.grp = b.grp AND a.grp = {group}",
        f"SELECT DISTINCT LEFT(body, 40) FROM item WHERE {where}",
    ))


def _long_text(rng):
    size, group = skewed(rng, 10_000, 2_000_000), rng.randrange(190)
    return rng.choice((
        f"SELECT LENGTH(REVERSE(REPEAT('spanalloc ', {size // 10})))",
        f"SET STATEMENT group_concat_max_len={size} FOR SELECT LENGTH(GROUP_CONCAT(body ORDER BY id)) FROM item "
        f"WHERE grp BETWEEN {group} AND {group + 8}",
        f"SELECT JSON_LENGTH(JSON_ARRAYAGG(name)) FROM item WHERE grp BETWEEN {group} AND {group + 8}",
        f"SELECT LENGTH(COMPRESS(REPEAT('0123456789', {size // 40})))",
    ))


def _update(rng):
    first = rng.randrange(ROWS)
    return f"UPDATE item SET body = {_text(rng, 8, 3000)} WHERE id BETWEEN {first} AND {first + 20}"


def _delete(rng):
    first = rng.randrange(ROWS)
    return f"DELETE FROM item WHERE id BETWEEN {first} AND {first + 40}"


_STATEMENTS = {
    "inserting": _insert, "tables in memory": _insert_fast, "sorts and groups": _sort, "long texts": _long_text,
    "updating": _update, "deleting": _delete,
    "quiet": lambda rng: f"SELECT * FROM item WHERE id = {rng.randrange(ROWS)}",
}


def _open_session(clients, rng):
    """A new session that holds variables and prepared statements, as those of a pool of connections do."""
    number = rng.randrange(SESSIONS)
    statements = [f"SET @kept{i} = {_text(rng, 500, 500_000)}" for i in range(rng.randrange(1, 6))]
    statements += [f"PREPARE kept{i} FROM 'SELECT id, name FROM item WHERE grp = ? AND id > {rng.randrange(ROWS)}'"
                   for i in range(rng.randrange(1, 12))]
    statements += [f"SET @group = {rng.randrange(200)}", "EXECUTE kept0 USING @group"]
    for client in clients:
        session = client.session(number)
        for statement in statements:
            session.query(statement)


def load(clients, tick):
    """One tick on every server."""
    name, rng = tick.phase.name, tick.rng
    if name == "deleting" and tick.first:
        for client in clients:
            client.main.query("TRUNCATE fast")  # the only way in which such a table gives memory back
            for number in range(0, SESSIONS, 2):
                client.end_session(number)
    for _ in range(tick.count):
        if name == "sessions":
            _open_session(clients, rng)
            continue
        statement, number = _STATEMENTS[name](rng), rng.randrange(SESSIONS)
        for client in clients:
            client.any_session(number).query(statement)
