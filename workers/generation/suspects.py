"""Suspects: responses that may end engines. Each has the engine alone until its trial is over.

A response is one if a worker or an engine died under it before it had committed anything, or if engines died under it
twice within an hour: the first such death says nothing of a response that got on. A trial is over once the suspect has
committed something. If the engine dies in a trial, only the suspect is lost, and only the suspect can be why. Meanwhile
the others pause: each closes its request at its next delta, and continues behind its tokens afterwards. Trials and
turns of the others alternate, so nobody waits for all suspects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import datetime, timedelta
from time import monotonic

from app.store.guards import HandOver
from app.store.rows import ResponseRow
from workers.engine.base import EngineDelta
from workers.generation.run import Run

AGAIN = timedelta(hours=1)
"""An engine's death under a response that got on counts if another engine died under it so shortly before."""
OTHERS_SECONDS = 3.0
"""How long no trial begins while others want the engine, first after its start: a trial may end it."""
TRIALS_SECONDS = 1.0
"""How long trials may begin then, one after the other."""
MAX_SECONDS = 30.0
"""How long a trial lasts at most. Then the others go on beside the suspect, which may hang."""
MAX_TRIAL = 1000
TICK_SECONDS = 0.1
"""While some wait, the gate looks so often whether time alone lets them in."""

Request = Callable[[Sequence[int]], AsyncGenerator[EngineDelta]]
"""Opens a request to the engine that continues behind these tokens."""


def trial_of(row: ResponseRow) -> int:
    """How many commits a suspect makes alone: one at its second attempt, and more at each later one. So what ends
    engines after some progress is alone at last when it does. 0: it is no suspect."""
    return min((row.attempt - row.yields - 1) ** 2, MAX_TRIAL) if row.crashes else 0


def crashes_after(run: Run, max_crashes: int, *, engine_died: bool) -> int:
    """The crashes of a response whose engine died, or gave up its request alone.

    What was alone ended the engine, whatever it has committed. Else progress forgives; but a response under which
    another engine died shortly before is a suspect.
    """
    if not run.commits or (engine_died and run.is_alone):
        return run.row.crashes + 1
    return min(1, max_crashes - 1) if engine_died and _has_lost_an_engine(run) else 0


def _has_lost_an_engine(run: Run) -> bool:
    since = run.now() - AGAIN
    deaths = [each for each in run.row.history or () if each["how"] == HandOver.ENGINE_DIED]
    return any(datetime.fromisoformat(each["to"]) > since for each in deaths)


class SuspectGate:
    """All requests to the engine go through here."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._suspects: dict[asyncio.Future[None], Run] = {}
        """Suspects that wait for their trial, first come, first served."""
        self._others: dict[asyncio.Future[None], Run] = {}
        """The others that wait."""
        self._inside: dict[asyncio.Future[None], Run] = {}
        self._last_trial_until = 0.0
        self._ticker: asyncio.TimerHandle | None = None

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
                        self._admit()
                    if self._suspects and not run.is_alone and self._is_time():
                        break
                else:
                    return

    @asynccontextmanager
    async def _engine(self, run: Run) -> AsyncIterator[None]:
        waiting = self._suspects if run.commits < trial_of(run.row) else self._others
        place = asyncio.get_running_loop().create_future()
        waiting[place] = run
        try:
            self._admit()
            await place
            yield
        finally:
            waiting.pop(place, None)
            self._inside.pop(place, None)
            self._admit()

    def _admit(self) -> None:
        """Lets in all who may: the first suspect alone, in their time, or else the others."""
        if self._suspects and self._is_time():
            if not self._inside:
                place = next(iter(self._suspects))
                self._suspects[place].alone_until = self._last_trial_until = monotonic() + MAX_SECONDS
                self._let_in(place, self._suspects)
        elif not self._is_held():
            for place in list(self._others):
                self._let_in(place, self._others)
        if self._ticker is None and (self._suspects or self._others):
            self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    def _let_in(self, place: asyncio.Future[None], waiting: dict[asyncio.Future[None], Run]) -> None:
        self._inside[place] = waiting.pop(place)
        if not place.done():  # its run was cancelled, and leaves at once
            place.set_result(None)

    def _tick(self) -> None:
        self._ticker = None
        self._admit()

    def _is_held(self) -> bool:
        # Each request comes here, and hundreds may be inside: mostly there is no trial.
        return monotonic() < self._last_trial_until and any(run.is_alone for run in self._inside.values())

    def _is_time(self) -> bool:
        """Whether a trial may begin, once the others have paused."""
        if not all(run.can_continue for run in self._inside.values()):
            return False
        others = len(self._others) + len(self._inside) - self._is_held()
        return not others or (monotonic() - self._began) % (OTHERS_SECONDS + TRIALS_SECONDS) >= OTHERS_SECONDS
