"""The slots of a worker's engine: who generates, which responses the worker may take, and who yields.

Some slots are kept for foreground responses: only those with a foreground place take them. All others wait here for
their turn, first come, first served. If a foreground response comes and every slot is taken, a background response
yields: its run is cancelled, its worker puts it back in line, and it continues under its next attempt.

Between the end of a response and the next one in its slot lie a dispatch, a message, a claim and a prompt. The engine
would lack work meanwhile, although more is queued. So a worker looks ahead: it has as many more sent to it as will
probably end within AHEAD_SECONDS. They wait here with their prompts ready. If few responses end, few are sent, so each
waits about AHEAD_SECONDS, however long the responses are. What stays queued is free for other workers, and other flows
can still pass it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic

from app.queue.message import FOREGROUND, WEIGHTS, Kind
from app.store.queue.placement import kept_of, most_foreground_of
from workers.generation.run import Run
from workers.pace import Pace

AHEAD_SECONDS = 0.5
"""About how long a response waits for its slot: several times the way from the queue to the engine (0.1 s when 256
begin at once on two cores)."""
MEMORY_SECONDS = 4.0
"""How long endings are remembered. Responses of one length end together, so a shorter memory has pauses between."""
STEADY_SECONDS = 5.0
"""How long a response runs after its claim, at least, before it yields: more than it takes to read it again."""
MAX_YIELDS = 8
"""How often a response yields at most. Then it runs to its end."""


class Slots:
    """The slots of one engine. `limit` is the most responses that the worker runs at once; the pool sets it.

    A smaller limit than the engine's slots leaves slots free on purpose: then there is no look-ahead. `changed` is
    called when `offered` has changed.
    """

    def __init__(
        self,
        engine_slots: int,
        pace: Pace,
        limit: int,
        clock: Callable[[], float] = monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine_slots = engine_slots
        self._pace = pace
        self._limit = limit
        self._clock = clock
        self.changed = changed
        self._is_offering = True
        self._generating: dict[int, Run] = {}
        """The runs that hold a slot open to all."""
        self._in_foreground: set[int] = set()
        """The runs with a foreground place: they generate, or wait in the engine for the slot of a run that yields."""
        self.waiting: dict[int, tuple[Run, asyncio.Future[None]]] = {}
        """Those that wait for their turn here, their prompts ready."""

    # From any thread

    @property
    def count(self) -> int:
        """How many responses generate at once."""
        return min(self._limit, self._engine_slots)

    @property
    def offered(self) -> int:
        """How many responses may be sent to this worker; 0: none now."""
        return self.count if self._is_offering else 0

    def offer(self, *, is_offering: bool) -> None:
        """Whether the worker takes what is sent to it: not while it stops, or has no connection to Redis."""
        if self._is_offering is not is_offering:
            self._is_offering = is_offering
            self.changed()

    @property
    def kept(self) -> int:
        """How many slots are kept for foreground places."""
        return kept_of(self.count)

    @property
    def most(self) -> int:
        """The most responses that the worker has at once, those that wait here included."""
        return self._limit if self._limit < self._engine_slots else 2 * self._engine_slots

    @property
    def ahead(self) -> int:
        """How many more responses than `count` are to be sent to this worker now."""
        if self._limit < self._engine_slots:
            return 0
        ahead = self._pace.ended_within(MEMORY_SECONDS) * AHEAD_SECONDS / MEMORY_SECONDS
        return min(math.ceil(ahead), self._engine_slots)

    def free(self, kind: Kind, answers: int, in_foreground: int) -> int:
        """How many messages of this kind may be taken, if the worker has so many jobs of either kind.

        Whoever sent an answer has counted what the worker has. A foreground response may have to wait for another one
        to yield.
        """
        if kind is Kind.ANSWERS:
            return self.most - answers
        may_push_out = len(self._yielding()) > self._lacking(in_foreground)
        room = max(self.kept - in_foreground, self.count - in_foreground - answers, int(may_push_out))
        return min(room, most_foreground_of(self.count) - in_foreground)

    def _lacking(self, in_foreground: int) -> int:
        """How many of so many foreground responses have no slot until others yield."""
        leaving = sum(run.yielding for run in list(self._generating.values()))
        return in_foreground + len(self._generating) - leaving - self.count

    def _yielding(self) -> Sequence[Run]:
        """The background responses that may yield now."""
        return [run for run in list(self._generating.values()) if self._may_yield(run)]

    def _may_yield(self, run: Run) -> bool:
        is_steady = self._clock() >= run.claimed_at + STEADY_SECONDS
        return is_steady and not run.yielding and run.row.yields < MAX_YIELDS and run.row.priority not in FOREGROUND

    def resize(self, limit: int) -> None:
        """After a larger limit, call `admit`. After a smaller one, surplus runs go on to their end."""
        if self._limit != limit:
            self._limit = limit
            self.changed()

    # On the worker's loop

    @asynccontextmanager
    async def taken(self, run: Run) -> AsyncIterator[None]:
        """Around what the engine generates for a run: waits for a slot, and frees it."""
        try:
            if run.row.foreground_place:
                self._in_foreground.add(id(run))
                self._push_out()
            else:
                turn = asyncio.get_running_loop().create_future()
                self.waiting[id(run)] = run, turn
                self.admit()
                await turn
            yield
        finally:
            self._in_foreground.discard(id(run))
            self.waiting.pop(id(run), None)
            self._generating.pop(id(run), None)
            self.admit()

    @property
    def are_taken(self) -> bool:
        """Whether every slot that is open to all is taken."""
        return len(self._generating) >= self.count - max(self.kept, len(self._in_foreground))

    def admit(self) -> None:
        """Gives free slots to those who wait, first come, first served."""
        while self.waiting and not self.are_taken:
            key = next(iter(self.waiting))
            run, turn = self.waiting.pop(key)
            if not turn.done():  # it was cancelled, and has not noticed yet
                self._generating[key] = run
                turn.set_result(None)

    def _push_out(self) -> None:
        """Makes background responses yield for foreground ones that have no slot, as many as may.

        Those of the flow that has most here, by the weight of its class; of these the one that costs least to read
        again.
        """
        for _ in range(self._lacking(len(self._in_foreground))):
            if not (candidates := self._yielding()):
                return
            counts = Counter(_flow(run) for run in self._generating.values() if not run.yielding)
            levels = {flow: count / WEIGHTS[flow[1]] for flow, count in counts.items()}
            max(candidates, key=lambda run: (levels[_flow(run)], -run.used)).yield_()


def _flow(run: Run) -> tuple[str, int]:
    return run.row.project, run.row.priority
