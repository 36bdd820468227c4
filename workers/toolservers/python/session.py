"""The interpreter of one MCP session: made at the first call, replaced when it dies, ended with the session."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from app.bounds import Bound, BoundReached, Holding
from workers.toolservers.python.answer import CallOutcome, StopReason
from workers.toolservers.python.errors import SandboxError
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
    sessions: set[Session] = field(default_factory=set)
    _bound: Bound = field(init=False)

    def __post_init__(self) -> None:
        self._bound = Bound("interpreters", self.max_sandboxes)

    async def acquire(self, project: str | None) -> tuple[Sandbox, Holding]:
        """Starts a sandbox; close it before you release the holding. Raises SandboxError if the project gets none.

        For want of room, a project that holds more loses an interpreter that runs no code.
        """
        while True:
            try:
                holding = self._bound.take(project)
                break
            except BoundReached:
                await self._idle_beside(project).lose_interpreter()
        try:
            return await Sandbox.start(self.spec), holding
        except BaseException:
            holding.release()
            raise

    def _idle_beside(self, project: str | None) -> Session:
        """The session whose interpreter has been idle for longest, of the project that holds most."""
        held = Counter(each.project for each in self.sessions if each.sandbox is not None)
        idle = [each for each in self.sessions if each.is_idle and held[each.project] > held[project]]
        if not idle:
            count = self.max_sandboxes
            raise SandboxError(
                f"all {count} interpreters of this server are in use, or kept for other projects; try again later"
            )
        return max(idle, key=lambda each: (held[each.project], -each.last_used))

    def session(self, stack: AsyncExitStack, project: str | None = None, *, renewed: bool = False) -> Session:
        """A new session of a project, which ends with `stack`."""
        session = Session(self, project, renewed=renewed)
        stack.push_async_callback(session.close)
        return session

    async def close(self) -> None:
        """Ends the interpreters of all sessions."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))


class Session:
    """Runs the calls of one MCP session, one after the other.

    `renewed`: its client had an earlier session, whose names are lost.
    """

    def __init__(self, pool: SandboxPool, project: str | None = None, *, renewed: bool = False) -> None:
        self.project = project
        self._pool = pool
        self._lock = asyncio.Lock()
        self.sandbox: Sandbox | None = None
        self._holding: Holding | None = None
        self._idle: asyncio.Task[None] | None = None
        self._names_lost = renewed
        self._closed = False
        self.last_used = 0.0
        pool.sessions.add(self)

    @property
    def is_idle(self) -> bool:
        """Whether it has an interpreter that runs no code."""
        return self.sandbox is not None and not self._lock.locked()

    async def call(self, code: str) -> tuple[CallOutcome, bool]:
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
        if self.sandbox is not None:
            await self.sandbox.close()
        async with self._lock:
            self._stop_waiting()
            await self._release()

    async def lose_interpreter(self) -> None:
        """Ends an idle interpreter, with its names: another project needs one."""
        async with self._lock:
            self._stop_waiting()
            await self._release()

    async def _call(self, code: str, stop: asyncio.Event) -> tuple[CallOutcome, bool]:
        async with self._lock:
            if stop.is_set():
                return CallOutcome(killed=StopReason.CANCELLED), False
            self._stop_waiting()
            sandbox, names_lost = await self._ready_sandbox()
            outcome = await sandbox.run(code, stop)
            self.last_used = asyncio.get_running_loop().time()
            if outcome.state_lost:
                await self._release()
            else:
                self._idle = asyncio.create_task(self._end_when_idle())
            return outcome, names_lost

    async def _ready_sandbox(self) -> tuple[Sandbox, bool]:
        """The sandbox, and whether it is new and replaces an earlier one, of this session or of the one before."""
        self._require_open()
        if self.sandbox is not None and not self.sandbox.alive:
            log.warning("an interpreter ended between two calls")
            await self._release()
        if self.sandbox is None:
            self.sandbox, self._holding = await self._pool.acquire(self.project)
            self._require_open()  # `close` may have come meanwhile; it waits for the lock, then ends this sandbox
            names_lost, self._names_lost = self._names_lost, False
            return self.sandbox, names_lost
        return self.sandbox, False

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the session has ended")

    async def _release(self) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None and self._holding is not None:
            self._names_lost = True
            with self._holding:
                await sandbox.close()

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
