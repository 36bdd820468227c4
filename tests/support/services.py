"""Real Postgres and Valkey for tests: the embedded servers, in a folder that is removed after the session."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from app.local.children import Child
from app.local.services.embedded_services import Service, launch, launch_first
from app.local.services.postgres import OWNER, Postgres
from app.local.services.service_account import ServiceFolders
from app.local.services.valkey import Valkey
from app.store.roles.rights import PROCESSES
from tests.support.clusters import add_cluster
from tests.support.processes import alive, tree
from tests.support.waiting import until_sync

if TYPE_CHECKING:  # it imports this module
    from tests.support.replicas import Pair

T = TypeVar("T")
START_SECONDS = 120.0
RUNTIME = "longhaul_runtime"
"""One role with the rights of all processes, and to read and write all rows, for what tests do themselves."""
AS_OWNER = f"SET LOCAL ROLE {OWNER}"
"""The first statement of a test's transaction that does what no process of Longhaul may."""


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may enter, because under root the servers run as another user.

    pytest's own folders are closed to other users, so the servers would use a folder in /var/lib and leave it there.
    """
    path = Path(tempfile.mkdtemp(prefix="lh-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)


class LoopThread:
    """An event loop in a thread. The servers belong to it, because every test has a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-services", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(START_SECONDS)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Server:
    """One server. Every method blocks until it is done."""

    def __init__(self, thread: LoopThread, service: Service) -> None:
        self._thread = thread
        self._service = service
        self._child: Child | None = thread.run(launch_first(service))

    @property
    def service(self) -> Service:
        return self._service

    @property
    def url(self) -> str:
        return self._service.url

    @property
    def running(self) -> bool:
        return self._child is not None and self.pids != []

    @property
    def pids(self) -> list[int]:
        """The server's process ids; the main process (postmaster) first."""
        return [] if self._child is None else tree(self._child.pid)

    def stop(self) -> None:
        """Stops the server as `longhaul up` does; clients lose their connections."""
        if self._child is not None:
            self._thread.run(self._child.stop_and_wait())
            self._child = None

    def terminate_all(self) -> None:
        """Sends SIGTERM to all processes of the server. Does not wait."""
        if self._child is not None:
            _signal_all(self.pids, signal.SIGTERM)

    def kill(self) -> None:
        """Kills all processes of the server with SIGKILL."""
        if self._child is not None:
            pids = self.pids  # Postgres' backends have sessions of their own.
            self._child.kill()
            _signal_all(pids, signal.SIGKILL)
            self._thread.run(self._child.wait())
            until_sync(lambda: not any(map(alive, pids)))
            self._child = None

    def start(self) -> None:
        """Starts the server with the same data and address as before, unless it runs."""
        if not self.running:
            self.stop()
            self._child = self._thread.run(launch(self._service))

    def restart(self) -> None:
        self.stop()
        self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspends the server (SIGSTOP) within the block: connected and silent."""
        pids = self.pids
        try:
            _signal_all(pids, signal.SIGSTOP)
            yield
        finally:
            _signal_all(pids, signal.SIGCONT)


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Leaves out what has ended meanwhile, such as a session of Postgres."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class PostgresForTests(Postgres):
    """Its owner may make databases (a test of migrations has one of its own), roles, and copies (replicas.py).

    RUNTIME has the rights of all processes, and more until a test becomes the owner by AS_OWNER: all rows, and VACUUM.
    """

    roles = (*Postgres.roles, RUNTIME)
    options = MappingProxyType({**Postgres.options, "track_commit_timestamp": "on"})

    @property
    def url(self) -> str:
        return self.url_of(RUNTIME)

    def role_statements(self) -> str:
        statements = (
            f"ALTER ROLE {OWNER} CREATEDB CREATEROLE REPLICATION",
            f"GRANT {OWNER} TO {RUNTIME} WITH INHERIT FALSE, SET TRUE",
            f"GRANT pg_maintain, pg_read_all_data, pg_write_all_data TO {RUNTIME}",
            f"GRANT {', '.join(PROCESSES)} TO {RUNTIME}",
        )
        return super().role_statements() + "".join(f"{statement};\n\n" for statement in statements)


class Services:
    """`database_url` and `redis_url` name the running servers; `postgres` and `valkey` let a test break them.

    `database_url` is of RUNTIME, and `owner_url` the one for migrations.
    """

    def __init__(self, *, standby: bool = False) -> None:
        self._exit = ExitStack()
        self.folder = self._exit.enter_context(open_folder())
        folders = add_cluster(self.folder / "home", PostgresForTests)
        self._thread = LoopThread()
        self.pair = self._make_pair(folders) if standby else None
        self._postgres = None if self.pair else Server(self._thread, PostgresForTests(folders))
        self.valkey = Server(self._thread, Valkey(folders))

    def _make_pair(self, folders: ServiceFolders) -> Pair:
        from tests.support.replicas import Pair

        (self.folder / "pair").mkdir(mode=0o711)
        return Pair(self._thread, PostgresForTests(folders), self.folder / "pair")

    @property
    def postgres(self) -> Server:
        """The Postgres that takes writes."""
        server = self.pair.primary if self.pair else self._postgres
        assert server is not None
        return server

    @property
    def database_url(self) -> str:
        return self.pair.url if self.pair else self.postgres.url

    @property
    def owner_url(self) -> str:
        return self.url_of(OWNER)

    def url_of(self, role: str) -> str:
        """The `database_url` of another role."""
        if self.pair:
            return self.pair.url_of(role)
        assert isinstance(self.postgres.service, Postgres)
        return self.postgres.service.url_of(role)

    @property
    def redis_url(self) -> str:
        return self.valkey.url

    def heal(self) -> None:
        """Starts the servers that a test has stopped or killed."""
        self.postgres.start()
        if self.pair:
            self.pair.standby.start()
        self.valkey.start()

    def empty_valkey(self) -> None:
        """Kills Valkey and starts it without a single key."""
        self.valkey.kill()
        self.valkey.start()

    def close(self) -> None:
        if self.pair:
            self.pair.standby.stop()
        self.postgres.stop()
        self.valkey.stop()
        self._thread.close()
        self._exit.close()
