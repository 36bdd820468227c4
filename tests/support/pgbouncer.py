"""PgBouncer in front of the tests' Postgres, if the machine has one (Debian: apt install pgbouncer)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from app.local.ports import free_port
from tests.support.waiting import until_sync

HOST = "127.0.0.1"
CONFIGURATION = """
[databases]
* = host={sockets} port=5432

[pgbouncer]
listen_addr = {host}
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = 80
max_client_conn = 1000
server_lifetime = 20
logfile = {folder}/pgbouncer.log
"""


@contextmanager
def pgbouncer(database_url: str, mode: str, folder: Path) -> Iterator[int]:
    """The port of a PgBouncer. `folder` must be open to other users: as root, it runs as the owner of the database."""
    url = urlsplit(database_url)
    sockets, port = parse_qs(url.query)["host"][0], free_port()
    folder.mkdir()
    text = CONFIGURATION.format(sockets=sockets, host=HOST, port=port, folder=folder, mode=mode)
    (folder / "pgbouncer.ini").write_text(text)
    (folder / "users").write_text(f'"{url.username}" "{url.password}"\n')
    owner = Path(sockets).stat()
    for path in (folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert program is not None, "there is no pgbouncer here"
    account = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    process = subprocess.Popen([program, "-q", str(folder / "pgbouncer.ini")], **account)  # type: ignore[call-overload]
    try:
        until_sync(lambda: _listens(port), what="pgbouncer listens")
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((HOST, port)) == 0
