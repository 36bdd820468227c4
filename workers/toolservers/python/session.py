"""The interpreter of one MCP session: made at the first call, replaced when it dies, ended with the session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.outcome import Outcome, StopReason
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.spec import SandboxSpec

log = logging.getLogger("longhaul.tools.python")


class PoolExhausted(SandboxError):
    """All interpreters that the server may have are in use."""


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
        """Starts a sandbox; give it back with `release`. Raises PoolExhausted, SandboxError."""
        if self.in_use >= self.max_sandboxes:
            raise PoolExhausted(f"all {self.max_sandboxes} interpreters of this server are in use; try again later")
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

    async def close(self) -> None:
        """Ends the interpreters of all sessions."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))


class Session:
    """Runs the calls of one MCP session, one after the other."""

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
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
        self._stop_idle_timer()
        if self._sandbox is not None:
            await self._sandbox.close()
        async with self._lock:
            await self._release()

    async def _call(self, code: str, stop: asyncio.Event) -> tuple[Outcome, bool]:
        async with self._lock:
            self._stop_idle_timer()
            if stop.is_set():
                return Outcome(killed=StopReason.CANCELLED), False
            sandbox, names_lost = await self._ready_sandbox()
            outcome = await sandbox.run(code, stop)
            if outcome.state_lost:
                await self._release()
            self._start_idle_timer()
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

    def _start_idle_timer(self) -> None:
        if not self._closed:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(self._pool.idle_seconds, self._on_idle)

    def _stop_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = None

    def _on_idle(self) -> None:
        self._closing = asyncio.create_task(self._close_if_idle())

    async def _close_if_idle(self) -> None:
        async with self._lock:
            if self._idle_timer is not None and self._idle_timer.when() <= asyncio.get_running_loop().time():
                log.info("ending an interpreter that had no call for %g s", self._pool.idle_seconds)
                with contextlib.suppress(SandboxError):
                    await self._release()
