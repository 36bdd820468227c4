"""Each statement that a test runs, tried under the role of each kind of process whose code can run it.

Tests of the store have all rights, so a right that a process lacks shows only where the process itself gets so far. So
every statement is noted with the function that ran it, and after the test Postgres explains it to each role that can
reach that function (reach.py): it refuses what the role may not do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import asyncpg
import greenlet
from sqlalchemy import Engine, event

from app.store.roles.rights import API, MAINTENANCE, MONITOR, WORKER
from config.process import CHECKOUT
from tests.support.reach import Name, reached
from tests.support.services import Services

ENTRIES = {
    API: ("app.main", "app.flower.service"),
    WORKER: ("workers.worker",),
    MAINTENANCE: ("app.maintenance.__main__",),
    MONITOR: ("app.maintenance.fleet:FleetCollector",),
}
_OF_KEYS = "app.store.tenants.api_keys"
NEVER = {(MAINTENANCE, (_OF_KEYS, "find")), (MAINTENANCE, (_OF_KEYS, "mark_used"))}
"""What is reached and never runs: maintenance authenticates nobody, so its directory knows no key."""
_STORE = str(CHECKOUT / "app/store")
_PASSED_ON = {str(CHECKOUT / f"app/store/{name}.py") for name in ("database", "paging")}
"""What runs the statements of others."""
_EXPLAINED = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
_RAW = ("fetch", "fetchrow", "fetchval", "execute")


class Statements:
    """Notes what runs from `start` to `close`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._new: set[tuple[Name, str]] = set()
        self._known: set[tuple[Name, str]] = set()
        self._loop = asyncio.new_event_loop()
        self._connections: dict[str, asyncpg.Connection] = {}
        self._patches = [mock.patch.object(asyncpg.Connection, name, self._noting(name)) for name in _RAW]

    def start(self) -> None:
        event.listen(Engine, "before_cursor_execute", self._on_statement)
        for patch in self._patches:
            patch.start()

    def close(self) -> None:
        if event.contains(Engine, "before_cursor_execute", self._on_statement):
            event.remove(Engine, "before_cursor_execute", self._on_statement)
            for patch in self._patches:
                patch.stop()
        for connection in self._connections.values():
            connection.terminate()
        self._loop.run_until_complete(asyncio.sleep(0))  # their sockets are closed
        self._loop.close()

    def note(self, function: Name, statement: str) -> None:
        if (function, statement) not in self._known and _EXPLAINED.match(statement):
            self._known.add((function, statement))
            self._new.add((function, statement))

    def refused(self) -> list[str]:
        """What a role may not do of what is new since the last call: role, function and Postgres' words for it."""
        found = []
        while self._new:
            function, statement = self._new.pop()
            for role, entries in ENTRIES.items():
                if function in reached(*entries) and (role, function) not in NEVER:
                    with suppress(OSError, asyncpg.InterfaceError):  # the test has broken Postgres
                        found += self._loop.run_until_complete(self._refused(role, function, statement))
        return found

    async def _refused(self, role: str, function: Name, statement: str) -> list[str]:
        known = self._connections.get(role)
        if known is None or known.is_closed():
            known = self._connections[role] = await asyncpg.connect(self._services.url_of(role))
        try:
            await known.execute(f"EXPLAIN (GENERIC_PLAN) {statement}")
        except asyncpg.InsufficientPrivilegeError as error:
            return [f"{role}, {'.'.join(function)}: {error}"]
        except asyncpg.PostgresError:  # a test's own schema
            pass
        return []

    def _on_statement(self, connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        self._note_from(statement)

    def _noting(self, name: str) -> Any:
        original = getattr(asyncpg.Connection, name)

        def noting(connection: asyncpg.Connection, query: str, *more: Any, **named: Any) -> Any:
            self._note_from(query)
            return original(connection, query, *more, **named)

        return noting

    def _note_from(self, statement: str) -> None:
        for frame in _frames():
            path = frame.f_code.co_filename
            if path.startswith(_STORE) and path not in _PASSED_ON:
                module = ".".join(Path(path).relative_to(CHECKOUT).with_suffix("").parts)
                self.note((module, frame.f_code.co_qualname.partition(".<locals>")[0]), statement)
                return


def _frames() -> Iterator[FrameType]:
    """From the innermost on; SQLAlchemy runs a statement in a greenlet, beside the stack of its caller."""
    running = greenlet.getcurrent()
    frame = running.gr_frame
    while running is not None:
        while frame is not None:
            yield frame
            frame = frame.f_back
        running = running.parent
        frame = None if running is None else running.gr_frame
