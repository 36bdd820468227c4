"""Generates one response: turn after turn, and between turns the calls of hosted tools.

    MCP setup -> compaction, if due -> generate -> the turn ends -> run its calls -> generate -> ... -> finish
                    ^------------------------------'

Everything committed on the way holds. A later attempt starts where the log ends (`history.py`): in the middle of a
turn, or between two calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from app.metrics.instruments import WorkerMetrics
from app.protocol.events.deltas import Finish, FinishReason, TurnEnd
from app.protocol.item_types import CLIENT_ACTIONS, SERVER, TOOL_SEARCH_OUTPUT
from app.protocol.types import Json
from app.protocol.unsealing import is_kept
from app.protocol.usage import Usage
from config.models import ServedModel
from workers.engine.base import Engine, PromptTooLong
from workers.formats.builder import plan_turn
from workers.formats.summary import newest_items
from workers.formats.turn import NOTHING, Parsed, Turn, TurnPlan
from workers.generation.history import EndedTurn
from workers.generation.outcome import Outcome
from workers.generation.run import Run
from workers.generation.turns.compaction import Compaction
from workers.generation.turns.inputs import Context, ContextLost
from workers.generation.turns.mcp_setup import McpSetup, count_setup_items, listings_of, setup_items
from workers.generation.turns.tool_calls import TOO_MANY, ToolCallRunner
from workers.generation.turns.turn_generator import GeneratedTurn, TurnGenerator
from workers.generation.writing.chunk_writer import ChunkWriter

DEFAULT_MAX_CALLS = 1000
"""The limit of hosted tool calls if the request sets none (`max_tool_calls`): without it a response might never end."""
MAX_IDLE_TURNS = 4
"""Stop after this many consecutive turns that only call unknown tools, or search for tools that were found before."""


@dataclass(slots=True)
class TurnLoop:
    """Generates one response."""

    engine: Engine
    generator: TurnGenerator
    model: ServedModel
    run: Run
    writer: ChunkWriter
    context: Context
    compaction: Compaction
    metrics: WorkerMetrics
    _calls: ToolCallRunner = field(init=False)
    _request: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._calls = ToolCallRunner(self.run, self.writer, self._begun_calls(), self.metrics)
        self._request = self.run.row.request

    async def answer(self) -> Outcome:
        """Runs the response to its end. Raises Fenced, EngineDead or EngineError."""
        if self.run.toolbox is not None:
            setup = McpSetup(self.run, self.writer, await self.context.use(setup_items), self._calls)
            with self.generator.left():
                await setup.run()
        turn = await self._compact()
        while (reason := await self._run_calls()) is None:
            try:
                turn = turn or await self._next_turn()
            except PromptTooLong:
                if not self.run.history.turns:
                    raise
                reason = FinishReason.LENGTH  # the tool results leave no room for an answer
                break
            generated = await self.generator.generate(turn)
            if not self._goes_on(generated):
                return await self._finish_with(generated)
            await self._end_turn(generated)
            turn = None
        return await self._finish(NOTHING, reason, self.run.history.usage)

    @property
    def _output(self) -> list[Json]:
        output: list[Json] = self.run.stream.response["output"]
        return output

    def _begun_calls(self) -> frozenset[int]:
        """The item indexes of calls that an earlier attempt may have made: those of ended turns, and the setup's.

        Calls that are pending behind these belong to a turn that the model has not finished: nobody has made them.
        """
        setup = count_setup_items(self._output)
        return frozenset(self.run.history.unanswered) | {index for index in self.run.stream.pending if index < setup}

    async def _compact(self) -> Turn | None:
        """Puts a summary in place of all but the newest items, if the request asks for it and the prompt is too long.

        A response does so once at most, before its first turn. A later attempt comes to the same prompt. Returns the
        first turn if the prompt is short enough, and nothing would be dropped of it.
        """
        if self.run.history.compaction is None and await self._may_compact():
            turn = None if self.compaction.is_begun() else await self._short_turn()
            if turn is not None:
                return turn if self._request["truncation"] == "disabled" else None
            await self.compaction.commit(
                await self.context.use(lambda items: self.compaction.turn(self._with_setup(items)))
            )
        if self.run.history.compaction is not None:
            self._request = {**self._request, "previous_input_messages": None}
        return None

    async def _may_compact(self) -> bool:
        if self.compaction.is_begun():
            return True
        if self._request.get("compaction") is None or self.run.history.tokens or self.run.history.turns:
            return False
        return bool(self._request.get("previous_input_messages")) or await self.context.use(_has_older_items)

    async def _short_turn(self) -> Turn | None:
        """The first turn with all items; None if it needs a compaction."""
        try:
            turn = await self._next_turn(truncation="disabled")
        except PromptTooLong:
            return None
        return turn if len(turn.prompt) <= self.compaction.threshold else None

    def _with_setup(self, items: Sequence[Json]) -> list[Json]:
        """The items before the first turn."""
        return [*items, *self.run.history.with_calls(self._output, 0, count_setup_items(self._output))]

    async def _next_turn(self, **changed: Any) -> Turn:
        """The next turn, or the one that an earlier attempt began: the same at every attempt.

        It holds nothing of the context: `messages` are left to `_messages`.
        """
        request = {**self._request, "enable_response_messages": False, **changed}
        return await self.context.turn(self._shown, partial(self._plan, request))

    async def _shown(self, items: Sequence[Json]) -> list[Json]:
        if self.run.history.compaction is not None:
            items = await self.compaction.compacted(items)
        return self._with_setup(items)

    async def _plan(self, request: Mapping[str, Any], items: Sequence[Json]) -> TurnPlan:
        past, created_at = self.run.history.past(self._output), int(self.run.row.created_at.timestamp())
        return await plan_turn(self.engine, self.model, request, items, past, created_at, listings_of(items))

    # -- the end of a turn ---------------------------------------------------------------------------------

    def _goes_on(self, generated: GeneratedTurn) -> bool:
        """Whether another turn follows: the server has calls to run, or has found tools."""
        if not _asks_the_server(generated) or generated.reason is FinishReason.LENGTH:
            return False
        return not self._is_spent(generated.tokens)

    def _is_spent(self, tokens: Sequence[int]) -> bool:
        """Whether no token is left for an answer to the calls."""
        max_tokens = self._request["max_output_tokens"]
        return max_tokens is not None and self.run.history.spent + len(tokens) >= max_tokens

    async def _end_turn(self, generated: GeneratedTurn) -> None:
        """Commits the end of the turn before any of its calls is made: a later attempt knows that they may have run."""
        turns = self.run.history.turns
        first = count_setup_items(self._output) + (self.run.history.compaction is not None)
        start = turns[-1].stop if turns else first
        self.writer.buffer(generated.rest + Parsed((TurnEnd(),)))
        calls = dict(zip(sorted(self.run.stream.pending), generated.parser.calls, strict=True))
        ended = EndedTurn(generated.tokens, start, len(self._output), generated.usage, calls)
        self.run.history.end_turn(ended)
        await self.writer.flush(NOTHING, ended.as_step())
        await self.writer.commit_all()

    async def _run_calls(self) -> FinishReason | None:
        """Runs the calls of the last turn that have no result; returns how the response ends, None if it goes on."""
        turns = self.run.history.turns
        if not turns:
            return None
        made = sum(len(turn.calls) for turn in turns[:-1])
        max_calls = self._request["max_tool_calls"] or DEFAULT_MAX_CALLS
        allowed = frozenset(list(turns[-1].calls)[: max(max_calls - made, 0)])
        open_calls = self.run.history.unanswered
        if open_calls:
            with self.generator.left():
                await self._calls.run({index: call for index, call in open_calls.items() if index in allowed})
        await self._calls.refuse({i: call for i, call in open_calls.items() if i not in allowed}, TOO_MANY)
        # OpenAI ignores calls beyond the limit. Here the model gets one message about them, then one more turn.
        if made > max_calls or self._waits_for_client(turns[-1]) or self._gets_nowhere():
            return FinishReason.STOP
        return None

    def _waits_for_client(self, turn: EndedTurn) -> bool:
        items = self._output[turn.start : turn.stop]
        return any(item["type"] in CLIENT_ACTIONS and item.get("execution") != SERVER for item in items)

    def _gets_nowhere(self) -> bool:
        """Whether the last turns called unknown tools alone, and their searches found no tool that was new."""
        last = self.run.history.turns[-MAX_IDLE_TURNS:]
        calls = (call for turn in last for call in turn.calls.values())
        if len(last) < MAX_IDLE_TURNS or any(call.kind is not None for call in calls):
            return False
        before, found = self._output[: last[0].start], self._output[last[0].start : last[-1].stop]
        return _found_names(found) <= _found_names(before)

    # -- the end of the response ---------------------------------------------------------------------------

    async def _finish_with(self, generated: GeneratedTurn) -> Outcome:
        """Finishes with this turn as the last one."""
        # Calls that are not run for lack of tokens cut the response, whatever the engine says.
        reason = FinishReason.LENGTH if _asks_the_server(generated) else generated.reason
        return await self._finish(generated.rest, reason, [*self.run.history.usage, generated.usage], generated.tokens)

    async def _finish(
        self, rest: Parsed, reason: FinishReason, usage: Sequence[Usage], tokens: Sequence[int] = ()
    ) -> Outcome:
        """`tokens`: those of the last turn, if it is not in the history."""
        finish = Finish(reason, Usage.of(usage), await self._messages(tokens))
        return await self.writer.finish(rest, finish, self.run.history.tool_results)

    async def _messages(self, tokens: Sequence[int]) -> Mapping[str, Any]:
        """`Finish.messages`: those of the next turn, with these tokens as its output.

        The turn is built a second time: messages hold the context, and nobody else does while the model writes.
        """
        if not self._request.get("enable_response_messages"):
            return {}
        try:
            turn = await self._next_turn(enable_response_messages=True)
        except (PromptTooLong, ContextLost):
            return {}
        return turn.messages(tokens) if turn.messages is not None else {}


def _asks_the_server(generated: GeneratedTurn) -> bool:
    return bool(generated.parser.calls) or generated.parser.searched


def _found_names(items: Sequence[Json]) -> set[tuple[str, str]]:
    """The namespaces (empty: none) and names of the tools that searches on the server found."""
    found = [tool for item in items if item["type"] == TOOL_SEARCH_OUTPUT for tool in item["tools"]]
    nested = {(tool["name"], mine["name"]) for tool in found for mine in tool.get("tools", ())}
    return nested | {("", tool["name"]) for tool in found if "tools" not in tool}


async def _has_older_items(items: Sequence[Json]) -> bool:
    """Whether there are items that a summary would stand for."""
    return not all(map(is_kept, items[: len(items) - len(newest_items(items))]))
