"""What clients do with batches, without a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.batches.service import BatchService
from app.protocol.status import BatchStatus
from config.settings import Settings


class Silent:
    """A database that never answers, and a Redis that says nothing."""

    async def execute(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Any]:
        yield self

    @asynccontextmanager
    async def listen(self, _: str) -> AsyncIterator[Any]:
        yield SimpleNamespace(wait=self.execute)

    async def until_ended(self, _: str, find: Any, __: float) -> Any:
        return await find()


async def test_nothing_is_read_after_the_close(monkeypatch: pytest.MonkeyPatch) -> None:
    silent: Any = Silent()
    service = BatchService(silent, silent, Settings())
    row: Any = SimpleNamespace(id="batch_1", project="default", status=BatchStatus.IN_PROGRESS)

    async def found(*_: object) -> Any:
        return row

    monkeypatch.setattr(service, "_row", found)
    mine = asyncio.all_tasks()
    waiting = asyncio.create_task(service.until_ended("default", "batch_1", 60.0))
    following = asyncio.ensure_future(anext(await service.follow("default", "batch_1", 0)))
    for _ in range(5):
        await asyncio.sleep(0)
    begun = asyncio.all_tasks() - mine - {waiting, following}
    assert len(begun) == 3, "one that reads for those who wait for an end, one that listens, one that reads results"
    await service.close()
    assert all(task.done() for task in begun)
    await asyncio.gather(waiting, following, return_exceptions=True)
