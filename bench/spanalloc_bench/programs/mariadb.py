"""MariaDB under sysbench: SuperMalloc 9 runs MySQL under super-smack's select-key, 50 clients with 20,000 queries each.

A private server on a Unix socket in the run's own folder, with no network and no accounts, on a copy of a data folder
that has been made once. Only the server runs under the contender.
"""

import os
import pathlib
import re
import shutil
import subprocess

from ..execute import RunFailed, clean_environment
from .servers import Server, command, load

TABLE_ROWS = 20000
SOCKET = "server.sock"  # relative, for the length of a socket's path is limited: the server works in its data folder


def _server(folder):
    argv = [
        command("mariadbd"), "--no-defaults", f"--datadir={folder}", "--skip-networking", "--skip-grant-tables",
        "--skip-name-resolve", f"--socket={SOCKET}", f"--pid-file={folder}/server.pid", "--skip-log-bin",
        "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=64M", "--loose-innodb-buffer-pool-size-max=64M",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-use-native-aio=OFF", "--log-warnings=1",
        "--innodb-buffer-pool-dump-at-shutdown=OFF", "--innodb-buffer-pool-load-at-startup=OFF",
    ]
    # The server refuses to run as root unless it is told so.
    return [*argv, "--user=root"] if os.geteuid() == 0 else argv


def _sysbench(test, *options):
    return [
        "sysbench", test, f"--mysql-socket={SOCKET}", "--mysql-user=root", "--mysql-db=bench", "--tables=1",
        f"--table-size={TABLE_ROWS}", "--rand-seed=1", "--rand-type=uniform", "--db-ps-mode=disable", *options,
    ]


def _ready(log):
    return lambda: "ready for connections" in log.read_text(errors="replace")


def make_template(folder: pathlib.Path):
    """Fills an empty folder with a database that has sysbench's table."""
    environment = clean_environment()
    log = folder / "server.log"
    statements = folder / "create.sql"
    statements.write_text("CREATE DATABASE bench;\n")
    with open(statements, "rb") as script, open(log, "ab") as output:
        subprocess.run([*_server(folder), "--bootstrap"], stdin=script, stdout=output, stderr=output, env=environment,
                       cwd=folder, check=True, timeout=600)
    with Server(_server(folder), folder, environment, log) as server:
        server.wait_until(_ready(log))
        load(server, _sysbench("oltp_point_select", "prepare"), folder, environment)
        server.stop()
    log.unlink()
    statements.unlink()


def run(context):
    """Argument words of the case: the sysbench test, clients, events."""
    test, clients, events = context.case.argv
    folder = pathlib.Path(context.scratch, "data")
    shutil.copytree(os.path.join(context.fixtures, "database"), folder)
    log = folder / "server.log"
    with Server(context.measured_command(_server(folder)), folder, context.environment, log) as server:
        server.wait_until(_ready(log))
        argv = _sysbench(test, f"--threads={clients}", f"--events={events}", "--time=0", "run")
        output, _ = load(server, argv, folder, context.environment)
        server.stop()
    queries = re.search(r"queries:\s+(\d+)\s", output)
    seconds = re.search(r"total time:\s+([\d.]+)s", output)
    if not queries or not seconds:
        raise RunFailed(f"sysbench says nothing of its queries: {' '.join(output.split())[-200:]}")
    number, elapsed = int(queries[1]), float(seconds[1])
    return {"operations": number, "elapsed_s": elapsed, "metrics": {"queries_per_s": number / elapsed}}
