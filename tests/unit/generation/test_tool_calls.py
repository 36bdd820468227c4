"""How many hosted calls a worker makes at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.bounds import Bound
from app.heavy import PROJECT
from app.metrics.instruments import WorkerMetrics
from tests.support.waiting import until
from workers.formats.calls.hosted import HostedCall
from workers.generation.turns import tool_calls
from workers.generation.turns.tool_calls import MAX_CONCURRENT, ToolCallRunner

TOTAL = 14


async def nothing(*_: Any) -> None:
    """Writes nothing."""


async def test_calls_of_all_responses_share_the_worker_s_bound_by_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "CALLS", bound := Bound("hosted calls", TOTAL))
    running, may_end = list[str](), asyncio.Event()

    class Tools:
        async def run(self, call: HostedCall, code: str | None) -> Any:
            running.append(call.name)
            await may_end.wait()
            return SimpleNamespace(ok=True, result="", sources=(), fields={})

    async def respond(project: str) -> None:
        PROJECT.set(project)
        history = SimpleNamespace(add_result=lambda *_: {}, results={})
        run: Any = SimpleNamespace(toolbox=Tools(), history=history)
        runner = ToolCallRunner(run, SimpleNamespace(flush=nothing, commit_all=nothing), (), WorkerMetrics())  # type: ignore[arg-type]
        await runner.run({number: HostedCall(project, "{}", "mcp", "s", "t") for number in range(MAX_CONCURRENT)})

    greedy = [asyncio.create_task(respond("a")) for _ in range(4)]
    await until(lambda: len(running) == bound.held == TOTAL * 7 // 8)
    other = asyncio.create_task(respond("b"))
    await until(lambda: "b" in running)
    may_end.set()
    await asyncio.gather(*greedy, other)
    assert (len(running), bound.held) == (5 * MAX_CONCURRENT, 0)
