"""Bounds with shares: what one process holds of a thing, and how much of that one project may hold.

The rule, and why it is this one: docs/internals/decisions/bounds.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar

SHARE = 7
"""A project may hold so many times what it leaves free: 7/8 of the total if it is alone, 7/15 beside another such."""
OPERATORS_PART = 16
"""A bound with `operators` keeps 1/16 of its total for operators and for clients that are not known yet: several
projects together can fill the rest."""


class UnknownAddress(str):
    """Stands for a project until the client is authenticated: its network address. No project has such an id."""

    __slots__ = ()


class BoundReached(Exception):
    """Nothing was taken. The same request may succeed later."""

    reason: ClassVar[str]

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound.what)
        bound.refusals[self.reason] += 1
        self.what = bound.what
        self.total = f"{bound.total} {bound.unit}{bound.what}"
        """How many there may be, in words."""


class TotalReached(BoundReached):
    """The process has too little room."""

    reason = "total"


class ShareReached(BoundReached):
    """The process has room, but the project holds its share."""

    reason = "share"


class Holding:
    """One request's part of a bound. It is given back by `release`, or at the end of a `with`."""

    __slots__ = ("_bound", "counted", "project")

    def __init__(self, bound: Bound, project: str | None) -> None:
        self._bound = bound
        self.project = project
        self.counted = 0

    def resize(self, size: int) -> None:
        """Holds `size` in all. Raises TotalReached and ShareReached; then the holding is as before."""
        self._bound.resize(self, size)

    async def wait(self, size: int) -> None:
        """Holds `size` once there is room, as `Bound.wait` says.

        It holds nothing before: a holder that waits for more could wait for itself.
        """
        await self._bound.wait_for(self, size)

    def give(self, project: str | None) -> None:
        """Counts for `project` from now on. Raises TotalReached and ShareReached; then it counts as before."""
        if project != self.project:
            self._bound.give(self, project)

    def release(self) -> None:
        """Gives everything back. The holding may be resized again."""
        self._bound.resize(self, 0)

    def __enter__(self) -> Holding:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _is_too_much(besides: int, counted: int, left: int) -> bool:
    """Whether a project may not hold `counted` with what it holds `besides` and nobody has `left`. A project that holds
    nothing else needs room only."""
    return besides > 0 and besides + counted > SHARE * left


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    holding: Holding
    counted: int
    admitted: asyncio.Event = field(default_factory=asyncio.Event)


class Bound:
    """At most `total` at once of `what` (a plural), over all holdings; messages say it in `unit`, if that is another
    ("bytes of "). For the code of one event loop.

    Each holding has `free` for nothing, so small ones always pass. Without `shares`, and for holdings without a
    project, which are the operators', only the total counts. The only holder may exceed the total: otherwise it could
    never go on. With `operators`, and shares, a part of the total is kept for them, and they wait for no project's
    turn. Whoever has waited for `seconds` is refused: what holds the room may hang.
    """

    def __init__(
        self,
        what: str,
        total: int,
        free: int = 0,
        *,
        unit: str = "",
        shares: bool = True,
        operators: bool = False,
        seconds: float | None = None,
    ) -> None:
        self.what = what
        self.unit = unit
        self.total = total
        self.held = 0
        self.refusals = {each.reason: 0 for each in (TotalReached, ShareReached)}
        """How often something did not fit."""
        self._free = free
        self._seconds = seconds
        self._shares = shares
        self._kept = total // OPERATORS_PART if shares and operators else 0
        self._projects: dict[str | None, int] = {}
        """The sum of each project's holdings, if there are shares."""
        self._lines: dict[str | None, deque[_Waiter]] = {}
        """The waiters, in a line for each project. The first project has the next turn."""

    def take(self, project: str | None, size: int = 1) -> Holding:
        """Returns a holding of `size`. Raises TotalReached and ShareReached."""
        holding = Holding(self, project)
        self.resize(holding, size)
        return holding

    def held_by(self, project: str | None) -> int:
        """Returns how much the project holds; without shares, how much all hold."""
        return self._projects.get(project, 0) if self._shares else self.held

    def others_wait(self, project: str | None) -> bool:
        """Whether another project than this one waits."""
        return any(waiting != project for waiting in self._lines)

    async def wait(self, project: str | None, size: int = 1) -> Holding:
        """Returns a holding of `size` once there is room: `with await bound.wait(project, size): ...`.

        Projects take turns. If there is no room for the next one, all others wait with it, so that nobody is overtaken
        for ever. A project that holds its share is passed over. Raises TotalReached and ShareReached after `seconds`.
        """
        holding = Holding(self, project)
        await self.wait_for(holding, size)
        return holding

    async def wait_for(self, holding: Holding, size: int) -> None:
        """See `Holding.wait`."""
        if not (counted := self._counted(size)):
            return
        if not self._lines and self._has_room(holding, counted) and not self._lacks_share(holding, counted):
            self._count(holding, counted)
            return
        waiter = _Waiter(holding, counted)
        self._lines.setdefault(holding.project, deque()).append(waiter)
        self._admit()
        try:
            async with asyncio.timeout(self._seconds):
                await waiter.admitted.wait()
        except TimeoutError:
            self._leave(waiter)
            raise (ShareReached if self._lacks_share(holding, counted) else TotalReached)(self) from None
        except BaseException:  # Cancelled, perhaps just after it was admitted.
            self._leave(waiter)
            raise

    def resize(self, holding: Holding, size: int) -> None:
        """See `Holding.resize`."""
        counted = self._counted(size)
        if counted > holding.counted:
            if not self._has_room(holding, counted):
                raise TotalReached(self)
            if self._lacks_share(holding, counted):
                raise ShareReached(self)
        if counted != holding.counted:
            self._count(holding, counted)

    def give(self, holding: Holding, project: str | None) -> None:
        """See `Holding.give`."""
        if self.held > self._total_for(project):
            raise TotalReached(self)
        if _is_too_much(self._projects.get(project, 0), holding.counted, self.total - self.held):
            raise ShareReached(self)
        self._add(holding.project, -holding.counted)
        holding.project = project
        self._add(project, holding.counted)

    def _counted(self, size: int) -> int:
        return max(0, size - self._free)

    def _has_room(self, holding: Holding, counted: int) -> bool:
        others = self.held - holding.counted
        return not others or others + counted <= self._total_for(holding.project)

    def _total_for(self, project: str | None) -> int:
        return self.total - (0 if project is None or isinstance(project, UnknownAddress) else self._kept)

    def _lacks_share(self, holding: Holding, counted: int) -> bool:
        """Whether the project would hold more than its share."""
        besides = self._projects.get(holding.project, 0) - holding.counted
        return _is_too_much(besides, counted, self.total - (self.held - holding.counted) - counted)

    def _count(self, holding: Holding, counted: int) -> None:
        growth = counted - holding.counted
        holding.counted = counted
        self.held += growth
        self._add(holding.project, growth)
        if growth < 0 and self._lines:
            self._admit()

    def _add(self, project: str | None, growth: int) -> None:
        if self._shares and project is not None:
            self._projects[project] = self._projects.get(project, 0) + growth
            if not self._projects[project]:
                del self._projects[project]

    def _admit(self) -> None:
        """Lets in all who may go on now."""
        while (waiter := self._next()) is not None:
            self._remove(waiter)
            project = waiter.holding.project
            if project in self._lines:
                self._lines[project] = self._lines.pop(project)  # The last one now: its next turn is after all others'.
            self._count(waiter.holding, waiter.counted)
            waiter.admitted.set()

    def _next(self) -> _Waiter | None:
        comes_first = [self._lines[None]] if self._kept and None in self._lines else self._lines.values()
        for line in comes_first:
            first = line[0]
            if not self._lacks_share(first.holding, first.counted):
                return first if self._has_room(first.holding, first.counted) else None
        return None

    def _leave(self, waiter: _Waiter) -> None:
        if waiter.admitted.is_set():
            waiter.holding.release()
        else:
            self._remove(waiter)
            self._admit()

    def _remove(self, waiter: _Waiter) -> None:
        line = self._lines[waiter.holding.project]
        line.remove(waiter)
        if not line:
            del self._lines[waiter.holding.project]
