"""Meters: what the product's code in this process costs Postgres, Redis, and its event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import asyncpg
import redis
from redis.asyncio.connection import Connection
from sqlalchemy import Engine, event

import app
import workers

OURS = tuple(str(Path(package.__path__[0])) for package in (app, workers))
"""Tasks of other code are only noted: how many redis-py and SQLAlchemy make depends on the version of Python."""
WIDTH = 70
"""Characters of a statement in a note."""
_SERVER = """
SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS wal, pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS xid
"""


@dataclass(frozen=True, slots=True)
class Costs:
    """What something cost, or what everything has cost until now."""

    statements: float
    """Statements of SQL, each of them a round trip: BEGIN and COMMIT as well."""
    commits: float
    """Transactions that wrote, or locked rows."""
    wal_bytes: float
    redis_round_trips: float
    """Writes to a connection of Redis. A script is one."""
    messages: float
    """PUBLISH and LPUSH."""
    tasks: float
    """Tasks of asyncio that run the product's own coroutines."""
    hops: float
    """From one thread to another: work for an executor is one, and its way back another."""

    def __sub__(self, before: Costs) -> Costs:
        return Costs(*(mine - other for mine, other in zip(astuple(self), astuple(before), strict=True)))

    def __truediv__(self, count: int) -> Costs:
        return Costs(*(value / count for value in astuple(self)))

    def least(self, other: Costs) -> Costs:
        return Costs(*map(min, astuple(self), astuple(other)))


class Meters:
    """Counts from its start on. `notes` says what was counted, by name."""

    def __init__(self, server: asyncpg.Connection, valkey: redis.Redis) -> None:
        self._server = server
        self._valkey = valkey
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._kinds: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.running: set[asyncio.Task[Any]] = set()
        """The product's tasks that have not ended."""

    async def read(self) -> Costs:
        """Returns what everything has cost until now."""
        server = await self._server.fetchrow(_SERVER)
        commands = self._valkey.info("commandstats")
        messages = sum(commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("publish", "lpush"))
        count = self._kinds
        return Costs(
            count["SQL"], server["xid"], int(server["wal"]), count["Redis"], messages, count["task"], count["hop"]
        )

    def _note(self, kind: str, name: str) -> None:
        self._kinds[kind] += 1
        self.notes[f"{kind}: {' '.join(name.split())[:WIDTH]}"] += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts what is made in the block; connections to Postgres that were opened before do not count."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(asyncpg, "connect", self._connecting(asyncpg.connect)))
            sent = Connection.send_packed_command
            stack.enter_context(patch.object(Connection, "send_packed_command", self._sending(sent)))
            event.listen(Engine, "before_cursor_execute", self._note_prepared)
            stack.callback(event.remove, Engine, "before_cursor_execute", self._note_prepared)
            self._loop.set_task_factory(self._make_task)
            stack.callback(self._loop.set_task_factory, None)
            for name, is_hop in (("run_in_executor", self._is_ours), ("call_soon_threadsafe", self._is_foreign)):
                stack.enter_context(patch.object(self._loop, name, self._hopping(name, is_hop)))
            yield

    def _connecting(self, connect: Any) -> Any:
        """asyncpg's loggers see no prepared statements, which are all that SQLAlchemy has a cursor for."""

        async def connected(*args: Any, **kwargs: Any) -> asyncpg.Connection:
            connection = await connect(*args, **kwargs)
            if self._is_ours():
                connection.add_query_logger(lambda made: self._note("SQL", made.query))
            return connection

        return connected

    def _note_prepared(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if self._is_ours():
            self._note("SQL", statement)

    def _is_ours(self) -> bool:
        """The lease has a thread and connections of its own, and goes by the clock."""
        return threading.get_ident() == self._thread

    def _is_foreign(self) -> bool:
        """asyncio calls `call_soon_threadsafe` within its thread, too."""
        return not self._is_ours()

    def _sending(self, send: Any) -> Any:
        async def sending(connection: Connection, command: Any, *args: Any, **kwargs: Any) -> None:
            self._note("Redis", _first_word(command))
            await send(connection, command, *args, **kwargs)

        return sending

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        if inspect.iscoroutine(coroutine):  # asyncio closes generators in tasks without one
            is_ours = coroutine.cr_code.co_filename.startswith(OURS)
            self._note("task" if is_ours else "other task", coroutine.__qualname__)
            if is_ours:
                self.running.add(task)
                task.add_done_callback(self.running.discard)
        return task

    def _hopping(self, name: str, is_hop: Callable[[], bool]) -> Any:
        function = getattr(self._loop, name)

        def hopping(*args: Any, **kwargs: Any) -> Any:
            if is_hop():
                self._note("hop", name)
            return function(*args, **kwargs)

        return hopping


def _first_word(command: bytes | Iterable[bytes]) -> str:
    """The name of the first packed command: `*3`, `$7`, `PUBLISH`, ..."""
    packed = command if isinstance(command, bytes) else b"".join(command)
    return packed.split(b"\r\n", 3)[2].decode()


@asynccontextmanager
async def meters(services: Any) -> AsyncIterator[Meters]:
    """Meters that count in the block."""
    server = await asyncpg.connect(services.database_url)
    valkey = redis.Redis.from_url(services.redis_url)
    try:
        made = Meters(server, valkey)
        with made.counting():
            yield made
    finally:
        valkey.close()
        await server.close()
