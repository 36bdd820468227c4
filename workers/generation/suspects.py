"""Suspects: responses under which engines or workers died. Each has the engine alone until its trial is over.

A trial is over once the suspect has committed something. So an engine that dies in it takes no other response with it,
and no other can be why. Meanwhile the others pause: each closes its request at its next delta, and continues behind its
tokens afterwards. Trials and turns of the others alternate, so nobody waits for all suspects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from time import monotonic

from app.aio import run_until
from app.store.rows import ResponseRow
from workers.engine.base import EngineDelta
from workers.generation.run import Run

OTHERS_SECONDS = 3.0
"""How long no trial begins while others want the engine, first after its start: a trial may end it."""
TRIALS_SECONDS = 1.0
"""How long trials may begin then, one after the other."""
MAX_SECONDS = 30.0
"""How long a trial lasts at most. Then the others go on beside the suspect, which may hang."""
MAX_TRIAL = 1000
LOOK_SECONDS = 0.1

Request = Callable[[Sequence[int]], AsyncGenerator[EngineDelta]]
"""Opens a request to the engine that continues behind these tokens."""


def trial_of(row: ResponseRow) -> int:
    """How many commits a suspect makes alone: one at its second attempt, and more at each later one. So what ends
    engines after some progress is alone at last when it does. 0: it is no suspect."""
    return min((row.attempt - row.yields - 1) ** 2, MAX_TRIAL) if row.crashes else 0


def crashes_after(run: Run, max_crashes: int, *, engine_died: bool) -> int:
    """The crashes of a response whose engine died, or gave up its request alone.

    What was alone ended the engine, whatever it has committed. Else progress forgives; but if the engine died, any
    response that it had is a suspect.
    """
    if not run.commits or (engine_died and run.is_alone):
        return run.row.crashes + 1
    return min(1, max_crashes - 1) if engine_died else 0


class SuspectGate:
    """All requests to the engine go through here."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._suspects: list[Run] = []
        """Those that wait for their trial, first come, first served."""
        self._others = 0
        """How many others wait."""
        self._inside: dict[int, Run] = {}
        self._changed = asyncio.Event()

    async def deltas(self, run: Run, request: Request, committed: Sequence[int]) -> AsyncGenerator[EngineDelta]:
        """What the engine generates behind the `committed` tokens, with pauses."""
        tokens = list(committed)
        while True:
            async with self._engine(run), aclosing(request(tokens)) as deltas:
                async for delta in deltas:
                    tokens += delta.token_ids
                    yield delta
                    if run.alone_until and run.commits >= trial_of(run.row):
                        run.alone_until = 0.0
                        self._notify()
                    if self._suspects and not run.is_alone and self._is_time():
                        break
                else:
                    return

    @asynccontextmanager
    async def _engine(self, run: Run) -> AsyncIterator[None]:
        if run.commits < trial_of(run.row):
            self._suspects.append(run)
            try:
                await self._until(lambda: not self._inside and self._suspects[0] is run and self._is_time())
                run.alone_until = monotonic() + MAX_SECONDS
            finally:
                self._suspects.remove(run)
        else:
            self._others += 1
            try:
                await self._until(lambda: not (self._is_held() or (self._suspects and self._is_time())))
            finally:
                self._others -= 1
        self._inside[id(run)] = run
        try:
            yield
        finally:
            del self._inside[id(run)]
            self._notify()

    def _is_held(self) -> bool:
        return any(run.is_alone for run in self._inside.values())

    def _is_time(self) -> bool:
        """Whether a trial may begin, once the others have paused."""
        if not all(run.can_continue for run in self._inside.values()):
            return False
        others = self._others + len(self._inside) - self._is_held()
        return not others or (monotonic() - self._began) % (OTHERS_SECONDS + TRIALS_SECONDS) >= OTHERS_SECONDS

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await run_until(self._changed.wait(), asyncio.sleep(LOOK_SECONDS))

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
