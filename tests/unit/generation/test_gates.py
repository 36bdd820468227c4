"""The gates before generation: who waits for whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.protocol.tasks import COMPACT, COUNT
from workers.generation.runs import SideGate


def row(task: str | None) -> Any:
    return SimpleNamespace(request={"task": task})


@pytest.mark.parametrize("task", [COUNT, COMPACT])
async def test_counts_and_compactions_wait_their_turn_and_answers_do_not(task: str) -> None:
    gate, go, begun = SideGate(1), asyncio.Event(), []

    async def run(name: str, task: str | None) -> None:
        async with gate.admit(row(task)):
            begun.append(name)
            await go.wait()

    runs = [
        asyncio.create_task(run(name, kind)) for name, kind in (("first", task), ("second", COUNT), ("answer", None))
    ]
    await asyncio.sleep(0)
    assert begun == ["first", "answer"]
    go.set()
    await asyncio.gather(*runs)
    assert begun == ["first", "answer", "second"]


async def test_a_cancelled_count_leaves_its_place() -> None:
    gate = SideGate(1)
    async with gate.admit(row(COUNT)):
        waits = asyncio.create_task(gate.admit(row(COUNT)).__aenter__())
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
    async with gate.admit(row(COUNT)):
        pass
