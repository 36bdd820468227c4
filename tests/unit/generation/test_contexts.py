"""The contexts that a worker holds. Who waits for whom: tests/unit/test_bounds.py."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from app.protocol.types import Json
from app.store.database import Database
from app.store.rows import ResponseRow
from tests.support.requests import message, stored_request
from tests.support.worker import scripted_model
from workers.engine import make_engine
from workers.engine.output_format import OutputFormat, OutputSpec
from workers.formats.builder import plan_turn
from workers.formats.turn import Turn, TurnPlan
from workers.generation.turns.inputs import Context, Inputs, Items

MIB = 1024 * 1024
_SEARCH = {"type": "function", "name": "search", "description": None, "parameters": None, "strict": False}
ROW = cast(ResponseRow, SimpleNamespace(project="default"))


class PaperInputs:
    """Stands for `Inputs`, without a database."""

    def __init__(self) -> None:
        made = Inputs(cast(Database, None), MIB, MIB)
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


async def test_a_large_context_is_not_held_while_a_grammar_is_tried() -> None:
    inputs, engine, go, tried = PaperInputs(), make_engine(scripted_model()), asyncio.Event(), asyncio.Event()
    await engine.start()
    output_format = engine.output_format

    async def slow_format(spec: OutputSpec) -> OutputFormat:
        tried.set()
        await go.wait()
        return await output_format(spec)

    engine.output_format = slow_format  # type: ignore[method-assign]
    context = Context(cast(Inputs, inputs), ROW)

    def building(**request: Any) -> asyncio.Task[Turn]:
        async def prepare(items: Items) -> Items:
            return items

        async def plan(items: Items) -> TurnPlan:
            return await plan_turn(engine, scripted_model(), stored_request(**request), items, (), 0, {})

        return asyncio.create_task(context.turn(prepare, plan))

    building_one = building(tools=[_SEARCH])
    await tried.wait()
    assert inputs.contexts.held == 0
    go.set()
    assert (await building_one).prompt
    assert (inputs.reads, inputs.contexts.held) == (2, 0)
    await building()
    assert inputs.reads == 3, "a turn without a grammar reads it once"
