"""Runs the calls of a turn side by side, and has each result in the log as soon as it is there.

A call is made once its turn's end is committed, and never again once its result is. One that was under way when its
worker went is made again or given back as failed, as its server's `after_crash` says: what it has done, nobody knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from app.aio import run_to_completion
from app.protocol.events.deltas import ToolEnded
from workers.formats.calls.hosted import HostedCall, HostedKind
from workers.formats.turn import Parsed
from workers.generation.recorder import Fenced, Recorder, Run

if TYPE_CHECKING:
    from workers.mcp.results import ToolResult
    from workers.mcp.toolbox import Toolbox

AT_ONCE = 8
"""Calls of one response."""
CANCEL_SECONDS = 2.0
"""How long a call that is cut may take to tell its server so."""

INTERRUPTED = "The call was cut off when its worker stopped. It may have taken effect or not, and is not repeated."
TOO_MANY = (
    "The call was not made: the response has had all the tool calls that it may have. Answer without more of them."
)
NO_SUCH_TOOL = "There is no tool {name!r}, so nothing was called. Call tools that you were told of, or none."
_MOST_LETTERS = 100
"""Of a name that the model made up, where it is told of it."""


class ToolCallRunner:
    """Of one response. `interrupted` are the places of calls that an earlier attempt may have made."""

    def __init__(self, run: Run, record: Recorder, interrupted: Collection[int]) -> None:
        self._run = run
        self._record = record
        self._interrupted = interrupted

    @property
    def _toolbox(self) -> Toolbox:
        """There is one where there are calls of tools that there are."""
        assert self._run.toolbox is not None
        return self._run.toolbox

    async def make(self, calls: Mapping[int, HostedCall]) -> None:
        """Makes these calls, by the places of their items. Returns once every result is committed. Raises Lost."""
        gate = asyncio.Semaphore(AT_ONCE)
        tasks = {asyncio.create_task(self._ran(gate, place, call)): place for place, call in calls.items()}
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=tasks.__getitem__):
                    await self._over(tasks[task], calls[tasks[task]], task.result())
            await self._record.settle()
        except BaseException:
            await run_to_completion(self._let_go(tasks, calls))
            raise

    async def refuse(self, calls: Mapping[int, HostedCall], message: str) -> None:
        """Ends these calls without making them. Raises Lost."""
        for place, call in calls.items():
            await self._over(place, call, await self._failed(call, message))
        await self._record.settle()

    async def _ran(self, gate: asyncio.Semaphore, place: int, call: HostedCall) -> ToolResult:
        if call.kind is HostedKind.NONE:
            return await self._failed(call, NO_SUCH_TOOL.format(name=call.name[:_MOST_LETTERS]))
        if place in self._interrupted and not self._toolbox.may_repeat(call):
            return await self._failed(call, INTERRUPTED)
        code = self._run.stream.response["output"][place]["code"] if call.kind is HostedKind.PYTHON else None
        async with gate:
            return await self._toolbox.run(call, code)

    async def _failed(self, call: HostedCall, message: str) -> ToolResult:
        if self._run.toolbox is not None:
            return self._run.toolbox.failed(call, message)
        results = await asyncio.to_thread(import_module, "workers.mcp.results")  # the library, hardly ever needed
        made: ToolResult = results.failed_result(call, message, results.ResultOptions(len(message.encode())))
        return made

    async def _over(self, place: int, call: HostedCall, ran: ToolResult) -> None:
        step = self._run.history.answered(place, call, ran.result, ran.sources)
        await self._record.add(Parsed((ToolEnded(place, ran.ok, ran.fields),)), step)

    async def _let_go(self, tasks: Mapping[asyncio.Task[ToolResult], int], calls: Mapping[int, HostedCall]) -> None:
        """Cuts what is under way; what is over must not be made again, so it still goes into the log."""
        under_way = [task for task in tasks if not task.done()]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way, timeout=CANCEL_SECONDS)
        over = [place for task, place in tasks.items() if _is_over(task)]
        with suppress(Fenced):
            for task, place in tasks.items():
                if place in over and place not in self._run.history.results:
                    await self._over(place, calls[place], task.result())
            if over:
                await self._record.settle()


def _is_over(task: asyncio.Task[ToolResult]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
