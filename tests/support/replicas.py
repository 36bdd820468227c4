"""A Postgres with a synchronous standby, and failover from one to the other, from the embedded server's programs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import asyncpg

from app.local.children import Program, run
from app.local.errors import LocalError
from app.local.services.postgres import OPTIONS, OWNER, Postgres
from app.local.services.service_account import service_environment
from tests.support.services import RUNTIME, LoopThread, Server

SYNC_FILE = "synchronous.conf"
REPLICATION = f"local replication {OWNER} scram-sha-256\n"
OPTIONS_OF_A_PAIR = {
    **OPTIONS,
    "wal_keep_size": "512MB",  # one that was away for a moment catches up without an archive
    "wal_retrieve_retry_interval": "100ms",
}

PAUSE_SECONDS = 0.02
_COMMIT = "SELECT pg_logical_emit_message(true, 'faults', '')"
"""Writes to the log of Postgres, and to no table."""
_WAITS = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'"


class Node:
    """One of the two servers. It is a standby while its data folder says so."""

    name = "Postgres"
    variable = "DATABASE_URL"

    def __init__(self, postgres: Postgres, folder: Path) -> None:
        self._postgres = postgres
        self.data = folder / "data"
        self.sockets = folder / "s"

    @property
    def url(self) -> str:
        return self.url_of(RUNTIME)

    def url_of(self, role: str) -> str:
        return self._postgres.url_of(role, self.sockets)

    async def prepare(self) -> Program:
        options = {"unix_socket_directories": str(self.sockets), "port": "5432", **OPTIONS_OF_A_PAIR}
        argv = [self._postgres._binary("postgres"), "-D", str(self.data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        return self._postgres._program(argv, stop_signal=signal.SIGINT)

    async def ready(self) -> bool:
        check = (self._postgres._binary("pg_isready"), "--quiet", "-h", str(self.sockets), "-d", "postgres")
        status, _ = await run(self._postgres._program(list(check)), lambda _: None)
        return status == 0

    async def recover(self, failures: int) -> bool:
        return False

    async def copy_from(self, other: Node) -> None:
        """Becomes a new standby of the other, which runs."""
        shutil.rmtree(self.data, ignore_errors=True)
        argv = [self._postgres._binary("pg_basebackup"), "-h", str(other.sockets), "-U", OWNER, "-D", str(self.data)]
        argv += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        env = {**service_environment(), "PGPASSWORD": self._postgres.password_of(OWNER)}
        status, line = await run(replace(self._postgres._program(argv), env=env), lambda _: None)
        if status != 0:
            raise LocalError(f"the standby could not be copied: {line}")


class Pair:
    """A primary whose commits wait for its standby. Every method blocks until it is done."""

    def __init__(self, thread: LoopThread, postgres: Postgres, folder: Path) -> None:
        """`folder` is reachable for the servers' account."""
        self._thread = thread
        self._nodes = []
        program = thread.run(postgres.prepare())  # makes the data folder of a single server
        data = Path(program.argv[2])
        for name in ("a", "b"):
            node = Node(postgres, folder / name)
            for path in (folder / name, node.sockets):
                path.mkdir(mode=0o700)
                if account := postgres.folders.account:
                    os.chown(path, account.uid, account.gid)
            self._nodes.append(node)
        first, second = self._nodes
        data.rename(first.data)
        with (first.data / "pg_hba.conf").open("a", encoding="utf-8") as file:
            file.write(REPLICATION)
        with (first.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(f"include_if_exists '{SYNC_FILE}'\n")
        self.primary = Server(thread, first)
        thread.run(second.copy_from(first))
        self.standby = Server(thread, second)
        self._set_synchronous(first, self.primary, True)
        thread.run(self._until_synchronous(first))

    @property
    def url(self) -> str:
        """One URL for both, as DATABASE_URL has it."""
        return self.url_of(RUNTIME)

    def url_of(self, role: str) -> str:
        first, second = self._nodes
        return f"{first.url_of(role)},{quote(str(second.sockets))}"

    def fail_over(self) -> None:
        """Kills the primary and promotes the standby, whose commits then wait for nobody."""
        self.primary.kill()
        node = self._node_of(self.standby)
        self._set_synchronous(node, self.standby, False)
        (node.data / "promote").touch()
        os.kill(self.standby.pids[0], signal.SIGUSR1)
        self.primary, self.standby = self.standby, self.primary

    def rebuild_standby(self) -> None:
        """Makes a new standby where the old primary was."""
        node, primary = self._node_of(self.standby), self._node_of(self.primary)
        self._thread.run(self._until_promoted(primary))
        self._thread.run(node.copy_from(primary))
        self.standby.start()
        self._set_synchronous(primary, self.primary, True)
        self._thread.run(self._until_synchronous(primary))

    async def _until_promoted(self, node: Node) -> None:
        """Returns when the server takes writes. A copy that begins before fails: its source was promoted meanwhile."""
        connection = await asyncpg.connect(node.url)
        try:
            while await connection.fetchval("SELECT pg_is_in_recovery()"):  # noqa: ASYNC110 - it cannot tell us
                await asyncio.sleep(0.02)
        finally:
            await connection.close()

    async def _until_synchronous(self, node: Node) -> None:
        """Returns when commits wait for the standby, and it has all earlier ones.

        Postgres has no view of that: it is proved by a commit that waits while the standby is frozen.
        """
        settings = {"application_name": "faults"}  # faults within Postgres spare it
        opened: list[asyncpg.Connection] = []
        try:
            for _ in range(2):
                opened.append(await asyncpg.connect(node.url, server_settings=settings))
            committing, looking = opened
            pid, waits = committing.get_server_pid(), False
            while not waits:
                with self.standby.frozen():
                    commit = asyncio.create_task(committing.execute(_COMMIT))
                    while not (waits or commit.done()):
                        await asyncio.wait({commit}, timeout=PAUSE_SECONDS)
                        waits = bool(await looking.fetchval(_WAITS, pid))
                await commit
        finally:
            for connection in opened:
                connection.terminate()

    def _node_of(self, server: Server) -> Node:
        return next(node for node in self._nodes if node.url == server.url)

    def _set_synchronous(self, node: Node, server: Server, wanted: bool) -> None:
        value = "*" if wanted else ""
        file = node.data / SYNC_FILE
        file.write_text(f"synchronous_standby_names = '{value}'\n", encoding="utf-8")
        file.chmod(0o644)
        os.kill(server.pids[0], signal.SIGHUP)
