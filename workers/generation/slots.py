"""The slots of a worker's engine: who generates, which responses the worker may take, and who yields.

Runs wait here for a slot, and for room in the engine's cache. Some slots are kept for foreground responses: only those
with a foreground place take them. If one of these finds every slot taken, or the cache full, a background response
yields: its run is cancelled, its worker puts it back in line, and it continues under its next attempt. The foreground
keeps a slot that it won for a while, so that its next short request makes nobody yield.

Between the end of a response and the next one in its slot lie a dispatch, a message, a claim and a prompt. The engine
would lack work meanwhile, although more is queued. So a worker looks ahead: it has as many more sent to it as will
probably end within AHEAD_SECONDS. They wait here with their prompts ready. If few responses end, few are sent, so each
waits about AHEAD_SECONDS, however long the responses are. What stays queued is free for other workers, and other flows
can still pass it.

A run that waits for its tools is away: it needs no slot, and another response is sent to the worker meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import sys
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from time import monotonic
from typing import NamedTuple

from app.queue.message import FOREGROUND, WEIGHTS, Kind
from app.scheduling.loads import KEPT_PART, kept_of, most_foreground_of
from workers.engine.base import EngineAway
from workers.generation.run import Run

AHEAD_SECONDS = 0.5
"""About how long a response waits for its slot: several times the way from the queue to the engine (0.1 s when 256
begin at once on two cores)."""
MEMORY_SECONDS = 4.0
"""How long endings are remembered. Responses of one length end together, so a shorter memory has pauses between."""
MAX_ENDINGS = 4096
"""The most endings that are remembered; they take 128 KiB."""
STEADY_SECONDS = 5.0
"""How long a response generates, at least, before it yields, and how long the foreground keeps a slot that it won."""
PASSED_SECONDS = 5.0
"""How long others pass a response that lacks room in the engine's cache."""
LOOK_SECONDS = 0.1
"""How often a line that does not move is looked at: time alone makes responses steady."""
AWAY_SECONDS = 0.5
"""The least time between two notes to Postgres of how many runs are away: most calls of tools are shorter."""


class _InLine(NamedTuple):
    run: Run
    turn: asyncio.Future[None]
    since: float


class Slots:
    """The slots of one engine. `limit` is the most responses that the worker runs at once; the pool sets it.

    A smaller limit than the engine's slots leaves slots free on purpose: then there is no look-ahead. `changed` is
    called when `offered` or `away` has changed. `cache_tokens`: what the engine's cache holds; None: nobody knows.
    """

    def __init__(
        self,
        engine_slots: int,
        limit: int,
        clock: Callable[[], float] = monotonic,
        changed: Callable[[], None] = lambda: None,
        cache_tokens: int | None = None,
    ) -> None:
        self._engine_slots = engine_slots
        self._limit = limit
        self._clock = clock
        self._cache = cache_tokens or sys.maxsize
        self._kept_cache = self._cache // KEPT_PART
        self.changed = changed
        self._is_offering = True
        self.is_drained = False
        self._generating: dict[int, Run] = {}
        """The runs that hold a slot."""
        self._in_foreground = 0
        """How many of them have a foreground place."""
        self.waiting: dict[int, _InLine] = {}
        """Runs that wait for their turn here, their prompts ready."""
        self._away: dict[int, Run] = {}
        self.away = (0, 0)
        """How many runs are away, as Postgres knows it: those without a foreground place, and those with one."""
        self._endings: deque[float] = deque(maxlen=MAX_ENDINGS)
        """When responses ended, of late."""
        self._won, self._won_until = 0, 0.0
        """How many slots of a full engine the foreground had, and until when it keeps them."""
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def note_end(self) -> None:
        """A response that generated has ended."""
        self._endings.append(self._clock())

    # From any thread

    @property
    def count(self) -> int:
        """How many responses generate at once."""
        return min(self._limit, self._engine_slots)

    @property
    def offered(self) -> int:
        """How many responses may be sent to this worker, beside those that are away; 0: none now."""
        return self.count if self._is_offering else 0

    def offer(self, *, is_offering: bool) -> None:
        """Whether the worker takes what is sent to it: not while it stops, or has no connection to Redis."""
        if self._is_offering is not is_offering:
            self._is_offering = is_offering
            self.changed()

    def set_drained(self, is_drained: bool) -> None:
        """Operators have drained the worker, or given it back. Nothing is sent to it."""
        self.is_drained = is_drained

    @property
    def generating(self) -> int:
        """How many responses generate now."""
        return len(self._generating)

    @property
    def kept(self) -> int:
        """How many slots are kept for foreground places."""
        return kept_of(self.count)

    @property
    def most(self) -> int:
        """The most responses that the worker has at once, those included that wait here or are away."""
        return self._limit if self._limit < self._engine_slots else max(2 * self._engine_slots, self._limit)

    @property
    def ahead(self) -> int:
        """How many more responses than `count` are to be sent to this worker now."""
        endings = list(self._endings)  # one step for other threads
        ended = len(endings) - bisect_left(endings, self._clock() - MEMORY_SECONDS)
        ahead = ended * AHEAD_SECONDS / MEMORY_SECONDS
        return max(min(math.ceil(ahead), self._engine_slots, self.most - self.count - sum(self.away)), 0)

    def free(self, kind: Kind, answers: int, in_foreground: int) -> int:
        """How many messages of this kind may be taken, if the worker has so many jobs of either kind.

        The sender of an answer has already counted this worker's slots. A foreground response may have to wait for
        another one to yield.
        """
        if kind is Kind.ANSWERS:
            return self.most - answers
        in_foreground -= self._count_away()[1]
        others = [run for run in self._staying() if not run.row.foreground_place]
        room = self.count - in_foreground - len(others) + sum(map(self._may_yield, others))
        return min(max(self.kept - in_foreground, room), most_foreground_of(self.count) - in_foreground)

    def _staying(self) -> Sequence[Run]:
        return [run for run in list(self._generating.values()) if not run.yielding]

    def _may_yield(self, run: Run) -> bool:
        """Whether it has generated, behind its first commit in its slot, for STEADY_SECONDS and for as long as it took
        to read it: each attempt makes progress, and at most half of the time is lost."""
        progress_at = run.progress_at
        if progress_at is None or run.row.priority in FOREGROUND or not run.can_continue:
            return False
        return self._clock() >= progress_at + max(STEADY_SECONDS, progress_at - run.slot_at)

    def engine_has(self, slots: int) -> None:
        """The engine generates so many at once now; 0: it is away. Those who wait for a slot are released then, for
        other workers."""
        if self._engine_slots == slots:
            return
        self._engine_slots = slots
        self.changed()
        for each in [] if slots else list(self.waiting.values()):
            if not each.turn.done():
                each.turn.set_exception(EngineAway("the engine is away"))
        self.admit()

    def resize(self, limit: int) -> None:
        """Sets the most runs at once."""
        if self._limit != limit:
            self._limit = limit
            self.changed()

    def _count_away(self) -> tuple[int, int]:
        placed = [run.row.foreground_place for run in list(self._away.values())]
        return placed.count(False), placed.count(True)

    # On the worker's loop

    @contextmanager
    def left(self, run: Run) -> Iterator[None]:
        """Gives up the run's slot in its block, while the run waits for its tools."""
        self._away[id(run)] = run
        self._soon(self._note_away, AWAY_SECONDS)
        try:
            yield
        finally:
            del self._away[id(run)]
            self._soon(self._note_away, AWAY_SECONDS)

    def _note_away(self) -> None:
        away, before, room = self._count_away(), self.away, self.most - self.count
        self.away = min(away[0], room), min(away[1], max(room - away[0], 0))
        if self.away != before:
            self.changed()

    def _soon(self, call: Callable[[], None], seconds: float) -> None:
        """Calls it, unless it will be called already."""
        if call not in self._timers:
            self._timers[call] = asyncio.get_running_loop().call_later(seconds, self._call, call)

    def _call(self, call: Callable[[], None]) -> None:
        del self._timers[call]
        call()

    @asynccontextmanager
    async def taken(self, run: Run) -> AsyncIterator[None]:
        """Around what the engine generates for a run: waits for a slot, and frees it. Raises EngineAway."""
        if not self._engine_slots:
            raise EngineAway("the engine is away")
        turn = asyncio.get_running_loop().create_future()
        self.waiting[id(run)] = _InLine(run, turn, self._clock())
        try:
            self.admit()
            await turn
            yield
        finally:
            self.waiting.pop(id(run), None)
            self._leave(run)
            self.admit()

    def _leave(self, run: Run) -> None:
        if id(run) not in self._generating:
            return
        if run.row.foreground_place and len(self._generating) >= self.count:
            self._won = max(self._in_foreground, self._kept_now)
            self._won_until = self._clock() + STEADY_SECONDS
        del self._generating[id(run)]
        self._in_foreground -= run.row.foreground_place

    @property
    def _kept_now(self) -> int:
        return max(self.kept, self._won if self._clock() < self._won_until else 0)

    def _has_slot(self, *, foreground_place: bool) -> bool:
        taken = len(self._generating)
        if foreground_place:
            return taken < self.count
        return taken - self._in_foreground < self.count - max(self._kept_now, self._in_foreground)

    def admit(self) -> None:
        """Gives slots to those who wait, and makes others yield if foreground responses lack room."""
        if not self.waiting:
            return
        # Each response comes here twice, and hundreds may wait: what can change nothing is not looked at.
        has_foreground = any(each.run.row.foreground_place for each in self.waiting.values())
        if (has_foreground or self._has_slot(foreground_place=False)) and (lacking := self._give_slots()):
            self._push_out(lacking)
        if self.waiting:
            self._soon(self.admit, LOOK_SECONDS)

    def _give_slots(self) -> Sequence[Run]:
        """Returns the foreground responses that lack a slot, or room in the cache.

        A response that lacks room in the cache, of which a part is kept for the foreground, is passed by others for
        PASSED_SECONDS, and while its project has something in the engine. Then all wait for it that have no foreground
        place.
        """
        held = sum(run.held for run in self._generating.values())
        projects = {run.row.project for run in self._generating.values()}
        is_closed, lacking = False, list[Run]()
        for each in self._line(projects):
            run = each.run
            is_foreground, has_place = run.row.priority in FOREGROUND, run.row.foreground_place
            has_slot = self._has_slot(foreground_place=has_place)
            if has_place and not has_slot:
                lacking.append(run)
            elif not has_place and (is_closed or not has_slot):
                break
            elif not self._generating or held + run.held <= self._cache - (0 if is_foreground else self._kept_cache):
                self._give(each)
                held += run.held
                projects.add(run.row.project)
            else:
                lacking += [run] if is_foreground else []
                is_due = self._clock() >= each.since + PASSED_SECONDS and run.row.project not in projects
                is_closed |= is_due or len(self._staying()) < len(self._generating)  # it gets what they leave
        return lacking

    def _line(self, projects: Set[str]) -> Iterator[_InLine]:
        """Foreground places come first, then the first one of each project that has nothing in the engine."""
        lines: tuple[list[_InLine], ...] = ([], [], [], [])
        known = {*projects}
        for each in self.waiting.values():
            row = each.run.row
            lines[2 * (not row.foreground_place) + (row.project in known)].append(each)
            known.add(row.project)
        return chain.from_iterable(lines)

    def _give(self, each: _InLine) -> None:
        del self.waiting[id(each.run)]
        if not each.turn.done():  # it was cancelled, and has not noticed yet
            self._generating[id(each.run)] = each.run
            self._in_foreground += each.run.row.foreground_place
            each.run.slot_at, each.run.progress_at = self._clock(), None
            each.turn.set_result(None)

    def _push_out(self, lacking: Sequence[Run]) -> None:
        """Makes background responses yield for foreground ones that have no slot, or no room in the cache: as many as
        may, up to half of the slots."""
        staying = self._staying()
        slots, tokens = self.count - len(staying), self._cache - sum(run.held for run in staying)
        for run in lacking[: max(most_foreground_of(self.count) - self._in_foreground, 0)]:
            slots, tokens = slots - 1, tokens - run.held
            while slots < 0 or tokens < 0:
                if (chosen := self._chosen(run, by_tokens=slots >= 0)) is None:
                    return
                chosen.yield_()
                slots, tokens = slots + 1, tokens + chosen.held

    def _chosen(self, run: Run, *, by_tokens: bool) -> Run | None:
        """The response that yields to `run`. It belongs to the flow with the most slots here (`by_tokens`: the most
        tokens), weighted by class, and has the fewest tokens to read again.

        A flow with fewer tokens than that of `run` yields none. Slots need no such check: the dispatch has compared
        them.
        """
        levels: defaultdict[tuple[str, int], float] = defaultdict(float)
        for each in self._staying():
            levels[_flow(each)] += (each.held if by_tokens else 1) / WEIGHTS[each.row.priority]
        own = levels[_flow(run)] + run.held / WEIGHTS[run.row.priority] if by_tokens else 0
        candidates = [each for each in self._staying() if self._may_yield(each) and levels[_flow(each)] >= own]
        return max(candidates, key=lambda each: (levels[_flow(each)], -each.used), default=None)


def _flow(run: Run) -> tuple[str, int]:
    return run.row.project, run.row.priority
