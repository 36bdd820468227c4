"""The contexts that a worker holds. Who waits for whom: tests/unit/test_bounds.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from app.protocol.types import Json
from app.store.database import Database
from app.store.rows import ResponseRow
from tests.support.requests import message
from workers.generation.turns.inputs import Context, Inputs

MIB = 1024 * 1024
ROW = cast(ResponseRow, SimpleNamespace(project="default"))


class PaperInputs:
    """Stands for `Inputs`, without a database."""

    def __init__(self) -> None:
        made = Inputs(cast(Database, None), held_bytes=MIB)
        self.contexts, self.calls = made.contexts, made.calls
        self.reads = 0

    async def size(self, _row: ResponseRow) -> int:
        return MIB

    async def read(self, _row: ResponseRow) -> list[Json]:
        self.reads += 1
        return [message("x")]

    async def unseal(self, _project: str, items: list[Json]) -> list[Json]:
        return items


async def test_what_a_prompt_is_built_from_counts_until_it_is_built() -> None:
    inputs, go, begun = PaperInputs(), asyncio.Event(), []

    async def build(_items: list[Json]) -> None:
        begun.append("one")
        await go.wait()

    uses: Any = [asyncio.create_task(Context(cast(Inputs, inputs), ROW).use(build)) for _ in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert (begun, inputs.reads) == (["one"], 1)
    go.set()
    await asyncio.gather(*uses)
    assert inputs.reads == 2
