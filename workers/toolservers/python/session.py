"""The interpreter of one MCP session: made at the first call, replaced when it dies, ended with the session."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.outcome import Outcome, StopReason
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.spec import SandboxSpec

log = logging.getLogger("longhaul.tools.python")


@dataclass(slots=True)
class SandboxPool:
    """All sandboxes of a server, each made to `spec`."""

    spec: SandboxSpec
    max_sandboxes: int
    idle_seconds: float
    """Seconds without a call after which a session loses its interpreter."""
    in_use: int = 0
    sessions: set[Session] = field(default_factory=set)

    async def acquire(self) -> Sandbox:
        """Starts a sandbox; give it back with `release`. Raises SandboxError."""
        if self.in_use >= self.max_sandboxes:
            raise SandboxError(f"all {self.max_sandboxes} interpreters of this server are in use; try again later")
        self.in_use += 1
        try:
            return await Sandbox.start(self.spec)
        except BaseException:
            self.in_use -= 1
            raise

    async def release(self, sandbox: Sandbox) -> None:
        """Ends a sandbox."""
        try:
            await sandbox.close()
        finally:
            self.in_use -= 1

    def session(self, stack: AsyncExitStack) -> Session:
        """A new session, which ends with `stack`."""
        session = Session(self)
        stack.push_async_callback(session.close)
        return session

    async def close(self) -> None:
        """Ends the interpreters of all sessions."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))


class Session:
    """Runs the calls of one MCP session, one after the other."""

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._idle: asyncio.Task[None] | None = None
        self._names_lost = False
        self._closed = False
        pool.sessions.add(self)

    async def call(self, code: str) -> tuple[Outcome, bool]:
        """Runs a cell: its outcome, and whether it ran in a new interpreter without the names of earlier calls.

        If the caller is cancelled, the code is stopped. Raises SandboxError if there is no interpreter for it.
        """
        running = asyncio.create_task(self._call(code, stop := asyncio.Event()))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            running.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise

    async def close(self) -> None:
        """Ends the interpreter at once, even if it is running code. May be called twice."""
        self._closed = True
        self._pool.sessions.discard(self)
        if self._sandbox is not None:
            await self._sandbox.close()
        async with self._lock:
            self._stop_waiting()
            await self._release()

    async def _call(self, code: str, stop: asyncio.Event) -> tuple[Outcome, bool]:
        async with self._lock:
            if stop.is_set():
                return Outcome(killed=StopReason.CANCELLED), False
            self._stop_waiting()
            sandbox, names_lost = await self._ready_sandbox()
            outcome = await sandbox.run(code, stop)
            if outcome.state_lost:
                await self._release()
            else:
                self._idle = asyncio.create_task(self._end_when_idle())
            return outcome, names_lost

    async def _ready_sandbox(self) -> tuple[Sandbox, bool]:
        """The sandbox, and whether it is new and replaces an earlier one."""
        self._require_open()
        if self._sandbox is not None and not self._sandbox.alive:
            log.warning("an interpreter ended between two calls")
            await self._release()
        if self._sandbox is None:
            self._sandbox = await self._pool.acquire()
            self._require_open()  # `close` may have come meanwhile; it waits for the lock, then ends this sandbox
            names_lost, self._names_lost = self._names_lost, False
            return self._sandbox, names_lost
        return self._sandbox, False

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the session has ended")

    async def _release(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            self._names_lost = True
            await self._pool.release(sandbox)

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._pool.idle_seconds)
        async with self._lock:
            log.info("ending an interpreter that had no call for %g s", self._pool.idle_seconds)
            await self._release()

    def _stop_waiting(self) -> None:
        """Call it with the lock: then the task sleeps, waits for the lock, or has ended."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None
