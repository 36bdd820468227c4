"""The contexts that a worker holds: who waits for whom, and how long each one is held."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.bounds import Bound
from app.protocol.types import Json
from app.sizes import LARGE_BYTES
from app.store.database import Database
from app.store.rows import ResponseRow
from tests.support.requests import message
from workers.generation.turns.inputs import Context, Inputs

MIB = 1024 * 1024
ROW = cast(ResponseRow, SimpleNamespace(project="default"))


def bound(total: int) -> Bound:
    """As `Inputs` makes it."""
    return Inputs(cast(Database, None), held_bytes=total).contexts


class Runs:
    """Runs that each hold a context until they are told to let go of it. A name begins with its project."""

    def __init__(self, total: int) -> None:
        self._bound = bound(total)
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.holding: list[str] = []

    async def start(self, **sizes: int) -> list[str]:
        """Starts runs with contexts of these sizes; returns the names of all that hold theirs."""
        for name, size in sizes.items():
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(name, size))
        return await self._settled()

    async def end(self, *names: str) -> list[str]:
        for name in names:
            self._ends[name].set()
        await asyncio.gather(*(self.tasks[name] for name in names))
        return await self._settled()

    async def _run(self, name: str, size: int) -> None:
        with await self._bound.wait(name[0], size):
            self.holding.append(name)
            await self._ends[name].wait()
            self.holding.remove(name)

    async def _settled(self) -> list[str]:
        for _ in range(10 * (1 + len(self.tasks))):  # turns of the loop, and no time
            await asyncio.sleep(0)
        return self.holding


async def test_contexts_that_do_not_fit_together_wait_for_their_turns() -> None:
    runs = Runs(10 * MIB)
    assert await runs.start(a1=6 * MIB, b1=6 * MIB, b2=4 * MIB, c1=4 * MIB) == ["a1"], "c1 waits behind b1"
    assert await runs.end("a1") == ["b1", "c1"], "projects take turns"
    assert await runs.end("b1") == ["c1", "b2"]
    await runs.end("c1", "b2")


async def test_small_contexts_wait_for_nobody() -> None:
    runs = Runs(MIB)
    assert await runs.start(large=2 * MIB, waits=MIB, small=LARGE_BYTES, none=0) == ["large", "small", "none"]
    await runs.end("large", "waits", "small", "none")


async def test_a_context_that_is_larger_than_the_bound_is_held_alone() -> None:
    runs = Runs(MIB)
    assert await runs.start(a=MIB, b=9 * MIB, c=MIB) == ["a"]
    assert await runs.end("a") == ["b"]
    assert await runs.end("b") == ["c"]
    await runs.end("c")


async def test_a_run_that_is_cancelled_leaves_its_place() -> None:
    runs = Runs(MIB)
    await runs.start(holds=MIB, first=MIB, second=MIB)
    for name in ("first", "holds"):
        runs.tasks[name].cancel()
    await asyncio.wait([runs.tasks["first"], runs.tasks["holds"]])
    runs.holding.remove("holds")
    assert await runs.start(third=MIB) == ["second"]
    assert await runs.end("second") == ["third"]
    await runs.end("third")


class Items(list[Json]):
    """A list that a test can watch."""


class PaperInputs:
    """Stands for `Inputs`, without a database."""

    def __init__(self, size: int, calls: int = 0) -> None:
        self.contexts, self.calls = bound(MIB), bound(MIB)
        self.reads = 0
        self.seen: weakref.ref[Items] | None = None
        self._size, self._calls = size, calls

    async def size(self, _row: ResponseRow) -> int:
        return self._size

    async def read(self, _row: ResponseRow) -> list[Json]:
        self.reads += 1
        copied = {"type": "mcp_call", "id": "mcp_0123_4"}
        return [message("x"), *([copied] if self._calls else [])]

    async def size_of_calls(self, _row: ResponseRow, responses: list[str]) -> int:
        assert responses == ["resp_0123"]
        return self._calls

    async def restore(self, _row: ResponseRow, items: list[Json], _responses: list[str]) -> list[Json]:
        return items

    async def unseal(self, _project: str, items: list[Json]) -> list[Json]:
        found = Items(items)
        self.seen = weakref.ref(found)
        return found


async def length(items: list[Json]) -> int:
    return len(items)


@pytest.mark.parametrize(("size", "calls"), [(MIB, 0), (0, MIB)])
async def test_a_large_context_is_let_go_and_read_again(size: int, calls: int) -> None:
    inputs = PaperInputs(size, calls)
    context = Context(cast(Inputs, inputs), ROW)
    assert await context.use(length) == 1 + bool(calls)
    gc.collect()
    assert inputs.seen is not None and inputs.seen() is None
    await context.use(length)
    assert inputs.reads == 2


async def test_a_small_context_is_read_once() -> None:
    inputs = PaperInputs(LARGE_BYTES)
    context = Context(cast(Inputs, inputs), ROW)
    assert [await context.use(length) for _ in range(2)] == [1, 1]
    assert inputs.reads == 1


async def test_what_a_prompt_is_built_from_counts_until_it_is_built() -> None:
    inputs, go, begun = PaperInputs(MIB), asyncio.Event(), []

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
