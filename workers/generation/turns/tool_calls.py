"""Runs the hosted tool calls of a turn side by side, and commits each result as soon as it is there.

A call is made only after the end of its turn is committed, and never a second time once its result is. If a worker dies
during a call, nobody knows what the call has done: it is repeated or fails, as its MCP server's `after_crash` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from app.aio import run_to_completion
from app.bounds import Bound
from app.heavy import PROJECT
from app.metrics.instruments import WorkerMetrics
from app.protocol.events.deltas import ToolEnded
from workers.formats.calls.hosted import HostedCall
from workers.formats.turn import Parsed
from workers.generation.run import Fenced, Run
from workers.generation.writing.chunk_writer import ChunkWriter

if TYPE_CHECKING:  # these import the MCP library, which a response without hosted tools never loads
    from workers.mcp.results import ToolResult
    from workers.mcp.toolbox import Toolbox

MAX_CONCURRENT = 8
"""Calls of one response that run at once."""
CALLS = Bound("hosted calls", 256)
"""Hosted calls that run in this worker at once. The others wait: each call has a deadline."""
CANCEL_SECONDS = 2.0
"""How long a cancelled call may take to tell its MCP server."""

INTERRUPTED = "The call was cut off when its worker stopped. It may have taken effect or not, and is not repeated."
TOO_MANY = "The call was not made: the response has reached its limit of tool calls. Answer without further calls."
NO_SUCH_TOOL = "There is no tool {name!r}, so nothing was called. Call only the tools that you were given, or none."
_MAX_NAME_LENGTH = 100
"""The most characters of an unknown tool's name in the message to the model."""


class ToolCallRunner:
    """Runs the calls of one response. `interrupted`: the item indexes of calls that an earlier attempt may have made.

    Calls are given by the indexes of their items.
    """

    def __init__(self, run: Run, writer: ChunkWriter, interrupted: Collection[int], metrics: WorkerMetrics) -> None:
        self._metrics = metrics
        self._run = run
        self._writer = writer
        self._interrupted = interrupted

    async def run(self, calls: Mapping[int, HostedCall]) -> None:
        """Runs these calls. Returns once every result is committed. Raises Fenced."""
        semaphore = asyncio.Semaphore(MAX_CONCURRENT)
        tasks = {asyncio.create_task(self._run_one(semaphore, index, call)): index for index, call in calls.items()}
        running = set(tasks)
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=tasks.__getitem__):
                    await self._write_result(tasks[task], calls[tasks[task]], task.result())
            await self._writer.commit_all()
        except BaseException:
            await run_to_completion(self._cancel(tasks, calls))
            raise

    async def refuse(self, calls: Mapping[int, HostedCall], message: str) -> None:
        """Ends these calls as failed without making them. Raises Fenced."""
        for index, call in calls.items():
            await self._write_result(index, call, await self._failed(call, message))
        await self._writer.commit_all()

    async def _run_one(self, semaphore: asyncio.Semaphore, index: int, call: HostedCall) -> ToolResult:
        if call.kind is None:
            return await self._failed(call, NO_SUCH_TOOL.format(name=call.name[:_MAX_NAME_LENGTH]))
        if index in self._interrupted and not await self._toolbox.may_repeat(call):
            return await self._failed(call, INTERRUPTED)
        code = self._run.stream.response["output"][index]["code"] if call.kind == "python" else None
        async with semaphore:
            with await CALLS.wait(PROJECT.get()):
                return await self._toolbox.run(call, code)

    @property
    def _toolbox(self) -> Toolbox:
        """Set when the response has hosted tools."""
        assert self._run.toolbox is not None
        return self._run.toolbox

    async def _failed(self, call: HostedCall, message: str) -> ToolResult:
        if self._run.toolbox is not None:
            return self._run.toolbox.failed(call, message)
        # A call of an unknown tool in a response without hosted tools: rare, and the library takes a second to load.
        results = await asyncio.to_thread(import_module, "workers.mcp.results")
        failed: ToolResult = results.failed_result(call, message, results.ResultOptions(len(message.encode())))
        return failed

    async def _write_result(self, index: int, call: HostedCall, result: ToolResult) -> None:
        self._metrics.called_tool(call.kind, ok=result.ok)
        step = self._run.history.add_result(index, call, result.result, result.sources)
        await self._writer.flush(Parsed((ToolEnded(index, result.ok, result.fields),)), step)

    async def _cancel(self, tasks: Mapping[asyncio.Task[ToolResult], int], calls: Mapping[int, HostedCall]) -> None:
        """Cancels the running calls. Results that are there go into the log, so that nobody repeats their calls."""
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CANCEL_SECONDS)
        done = {task: index for task, index in tasks.items() if task.done() and not task.cancelled()}
        ended = {task: index for task, index in done.items() if task.exception() is None}
        with suppress(Fenced):
            for task, index in ended.items():
                if index not in self._run.history.results:
                    await self._write_result(index, calls[index], task.result())
            if ended:
                await self._writer.commit_all()
