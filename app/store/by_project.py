"""Batches of single projects: what one project waits for delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from app.batching import Batcher
from app.store.database import StoreUnavailable

LOCKED_AT_ONCE = 4
"""Projects whose lock is waited for at once. Each has one of the pool's connections meanwhile."""


class Weighed(Protocol):
    """A project's work in a batch."""

    @property
    def project(self) -> str: ...

    @property
    def weight(self) -> int:
        """The work's weight in a batch."""


Item = TypeVar("Item", bound=Weighed)
Result = TypeVar("Result")


def batches(perform: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]], max_items: int) -> Batcher[Item, Result]:
    """Returns what makes batches of up to `max_items` by weight. If Postgres is away, the batch fails together."""
    return Batcher(perform, max_items=max_items, weight=attrgetter("weight"), shared_errors=(StoreUnavailable,))


class ByProject(Generic[Item, Result]):
    """Batches of single projects, each one after the other, and of all of them `at_once` at the same time.

    Projects take turns, however much one has waiting. What `perform` does `waits` for locks, or is large
    (`Database.begin`).
    """

    def __init__(
        self,
        perform: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        max_items: int,
        at_once: int,
    ) -> None:
        self._perform = perform
        self._max_items = max_items
        self._turns = asyncio.Semaphore(at_once)
        self._batches: dict[str, Batcher[Item, Result]] = {}

    def __contains__(self, project: str) -> bool:
        """Whether anything of the project waits here, or runs."""
        return project in self._batches

    async def submit(self, new: Item) -> Result:
        project = new.project
        if (waiting := self._batches.get(project)) is None:
            waiting = self._batches[project] = batches(self._perform_in_turn, self._max_items)
        try:
            return await waiting.submit(new)
        finally:
            if waiting.is_idle and self._batches.get(project) is waiting:
                del self._batches[project]

    async def close(self) -> None:
        for waiting in list(self._batches.values()):
            await waiting.close()

    async def _perform_in_turn(self, batch: Sequence[Item]) -> Sequence[Result]:
        async with self._turns:
            return await self._perform(batch)
