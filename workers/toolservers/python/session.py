"""The interpreter of one MCP session: made at its first call, made anew when it died, gone with the session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field

from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.outcome import Ending, Outcome
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.spec import Builder

log = logging.getLogger("longhaul.tools.python")


class NoRoom(SandboxError):
    """All interpreters that the server may have are in use."""


@dataclass(slots=True)
class SandboxPool:
    """All sandboxes of a server. `most` is how many there may be; `idle_seconds` how long one may go without a call."""

    builder: Builder
    most: int
    idle_seconds: float
    taken: int = 0
    sessions: set[Session] = field(default_factory=set)

    async def open(self) -> Sandbox:
        """One more; give it back with `leave`. Raises NoRoom, SandboxError."""
        if self.taken >= self.most:
            raise NoRoom(f"all {self.most} interpreters of this server are in use; try again later")
        self.taken += 1
        try:
            return await Sandbox.start(self.builder)
        except BaseException:
            self.taken -= 1
            raise

    async def leave(self, sandbox: Sandbox) -> None:
        """Ends it."""
        try:
            await sandbox.close()
        finally:
            self.taken -= 1

    async def close(self) -> None:
        """Ends all of them."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))


class Session:
    """Calls of one MCP session, one after the other."""

    def __init__(self, house: SandboxPool) -> None:
        self._house = house
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._names_lost = False
        self._closed = False
        house.sessions.add(self)

    async def call(self, code: str) -> tuple[Outcome, bool]:
        """Runs a cell: what it came to, and whether it ran without the names of earlier calls, which are lost.

        Where the caller is cancelled, so is the code. Raises SandboxError where there is no interpreter for it.
        """
        running = asyncio.create_task(self._call(code, stop := asyncio.Event()))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            running.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise

    async def close(self) -> None:
        """Ends the interpreter, at once where it runs something. May be called again."""
        self._closed = True
        self._house.sessions.discard(self)
        self._rest(False)
        if self._sandbox is not None:
            await self._sandbox.close()
        async with self._lock:
            await self._leave()

    async def _call(self, code: str, stop: asyncio.Event) -> tuple[Outcome, bool]:
        async with self._lock:
            self._rest(False)
            if stop.is_set():
                return Outcome(killed=Ending.CANCELLED), False
            sandbox, lost = await self._ready()
            outcome = await sandbox.run(code, stop)
            if outcome.state_lost:
                await self._leave()
            self._rest(True)
            return outcome, lost

    async def _ready(self) -> tuple[Sandbox, bool]:
        """The interpreter, and whether it is new in the place of another one."""
        self._require_open()
        if self._sandbox is not None and not self._sandbox.alive:
            log.warning("an interpreter ended between two calls")
            await self._leave()
        if self._sandbox is None:
            self._sandbox = await self._house.open()
            self._require_open()  # `close`, which waits for us, ends what was made meanwhile
            lost, self._names_lost = self._names_lost, False
            return self._sandbox, lost
        return self._sandbox, False

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the session has ended")

    async def _leave(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            self._names_lost = True
            await self._house.leave(sandbox)

    def _rest(self, rests: bool) -> None:
        """Starts or stops the time after which an interpreter that nobody calls is ended."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = None
        if rests and not self._closed:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._house.idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._closing = asyncio.create_task(self._close_idle())

    async def _close_idle(self) -> None:
        async with self._lock:
            if self._idle is not None and self._idle.when() <= asyncio.get_running_loop().time():
                log.info("an interpreter without calls for %g s is ended", self._house.idle_seconds)
                with contextlib.suppress(SandboxError):
                    await self._leave()
