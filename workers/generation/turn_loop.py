"""How a response comes about: turn after turn, and between them the calls that the server runs.

    prepare -> generate -> the turn ends -> run its calls -> generate -> ... -> finish
                  ^------------------------------'

Whatever is committed on the way holds: an attempt that takes over begins where the log ends (`history.py`), in the
middle of a turn or between two calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from app.protocol.events.deltas import Finish, FinishReason, TurnEnd
from app.protocol.item_types import CLIENT_ACTIONS
from app.protocol.usage import Usage
from config.models import ServedModel
from workers.engine.base import Engine, EngineDelta, EngineError, PromptTooLong
from workers.formats.builder import build_turn
from workers.formats.calls.hosted import HostedKind
from workers.formats.sampling import priority_of
from workers.formats.turn import Parsed, Turn, TurnContext, TurnParser
from workers.generation.coalescing import Coalescer
from workers.generation.history import EndedTurn, Json
from workers.generation.mcp_setup import McpSetup, listings_of, prepared
from workers.generation.outcome import Outcome
from workers.generation.recorder import Recorder, Run
from workers.generation.tool_calls import TOO_MANY, ToolCallRunner

"""Items that the client has to answer before anything goes on."""
MOST_CALLS = 1000
"""Of a response that does not say (`max_tool_calls`): one that never ends would have to end somewhere."""
MOST_LOST_TURNS = 4
"""Turns on end in which all that was called is not there: a model that has been told so does not learn any more."""


class TurnLoop:
    """One response. `items` are those of its context, its own input last."""

    def __init__(
        self, engine: Engine, model: ServedModel, run: Run, record: Recorder, items: Sequence[Json], pace: Coalescer
    ) -> None:
        self._engine = engine
        self._pace = pace
        self._model = model
        self._run = run
        self._record = record
        self._items = items
        self._caller = ToolCallRunner(run, record, interrupted=frozenset(run.stream.pending))
        self._preparation = McpSetup(run, record, items, self._caller)
        self._history = run.history
        self._request: Mapping[str, Any] = run.row.request

    async def answer(self) -> Outcome:
        """To its end. Raises Lost, EngineDead or EngineError."""
        await self._preparation.make()
        while (end := await self._run_calls()) is None:
            try:
                turn = await self._turn()
            except PromptTooLong:
                if not self._history.turns:
                    raise
                end = FinishReason.LENGTH  # what the tools gave leaves no room for an answer
                break
            if (outcome := await self._say(turn)) is not None:
                return outcome
        messages = await self._messages()
        return await self._finish(Parsed(), end, [turn.usage for turn in self._history.turns], messages)

    @property
    def _output(self) -> list[Json]:
        output: list[Json] = self._run.stream.response["output"]
        return output

    async def _turn(self) -> Turn:
        """The next one, or the one that an earlier attempt began: the same at every attempt."""
        output, first = self._output, prepared(self._output)
        items = [*self._items, *self._history.shown(output, 0, first)]
        seen = TurnContext(int(self._run.row.created_at.timestamp()), listings_of(items))
        past = self._history.past(output)
        return await build_turn(self._engine, self._model, self._request, items, past, seen)

    # -- generating ----------------------------------------------------------------------------------------

    async def _say(self, turn: Turn) -> Outcome | None:
        """Generates a turn to its end; None where calls of it are left to run."""
        await self._record.begin()
        parser = turn.parser()
        parser.feed(self._history.tokens)  # its events are known: they were committed with these tokens
        tokens = list(self._history.tokens)
        cached = 0
        try:
            async with aclosing(self._deltas(turn)) as deltas:
                async for delta in deltas:
                    cached = max(cached, delta.cached_tokens)
                    said = self._pace.read(parser, delta)
                    reason = FinishReason.STOP if parser.ended else delta.finish_reason
                    if reason is not None:
                        break  # which ends it in the engine too
                    tokens += said.tokens
                    await self._pace.say(said)
                else:
                    raise EngineError("the engine stopped without a reason")
        except EngineError:
            await self._record.add(self._pace.rest())  # what it said until then counts
            raise
        said += parser.flush(cut=reason is FinishReason.LENGTH)
        tokens += said.tokens
        said = self._pace.rest(said)
        usage = self._usage(turn, parser, cached)
        if parser.calls and self._is_spent(tokens):
            reason = FinishReason.LENGTH  # nobody could be told what they gave
        if parser.calls and reason is not FinishReason.LENGTH:
            await self._end_turn(said, tuple(tokens), usage, parser)
            return None
        messages = turn.messages(tokens) if turn.messages is not None else {}
        return await self._finish(said, reason, [*(turn.usage for turn in self._history.turns), usage], messages)

    async def _end_turn(self, said: Parsed, tokens: tuple[int, ...], usage: Usage, parser: TurnParser) -> None:
        """The end is committed before any of its calls is made: who takes over knows that they may have been."""
        turns = self._history.turns
        start = turns[-1].stop if turns else prepared(self._output)
        self._record.take(said + Parsed((TurnEnd(),)))
        calls = dict(zip(sorted(self._run.stream.pending), parser.calls, strict=True))
        ended = EndedTurn(tokens, start, len(self._output), usage, calls)
        self._history.ended(ended)
        await self._record.add(Parsed(), ended.as_step())
        await self._record.settle()

    def _deltas(self, turn: Turn) -> AsyncGenerator[EngineDelta]:
        row, history = self._run.row, self._history
        return self._engine.generate(
            f"{row.id}-{row.attempt}-{len(history.turns)}",
            turn.prompt,
            turn.sampling,
            priority=priority_of(self._request, row.priority),
            committed=history.tokens,
        )

    def _usage(self, turn: Turn, parser: TurnParser, cached: int) -> Usage:
        # An attempt that went on behind committed tokens may have read those as prompt: they count as output.
        read = len(turn.prompt)
        before = self._history.turns[-1].usage if self._history.turns else None
        told = 0 if before is None else max(read - before.input_tokens - before.output_tokens, 0)
        return Usage(read, min(cached, read), parser.tokens, parser.reasoning_tokens, told)

    def _is_spent(self, tokens: Sequence[int]) -> bool:
        most = self._request["max_output_tokens"]
        return most is not None and self._history.spent + len(tokens) >= most

    # -- between turns -------------------------------------------------------------------------------------

    async def _run_calls(self) -> FinishReason | None:
        """Runs what the last turn left to run; how the response ends then, or None where it goes on."""
        turns = self._history.turns
        if not turns:
            return None
        made = sum(len(turn.calls) for turn in turns[:-1])
        most = self._request["max_tool_calls"] or MOST_CALLS
        may = frozenset(list(turns[-1].calls)[: max(most - made, 0)])
        left = self._history.unanswered
        await self._caller.make({place: call for place, call in left.items() if place in may})
        await self._caller.refuse({place: call for place, call in left.items() if place not in may}, TOO_MANY)
        items = self._output[turns[-1].start : turns[-1].stop]
        waits = any(item["type"] in CLIENT_ACTIONS for item in items)
        # Of more calls openai's types say that they are ignored: told so once, a model that calls on is at its end.
        return FinishReason.STOP if waits or made > most or self._is_lost() else None

    def _is_lost(self) -> bool:
        last = self._history.turns[-MOST_LOST_TURNS:]
        calls = (call for turn in last for call in turn.calls.values())
        return len(last) == MOST_LOST_TURNS and all(call.kind is HostedKind.NONE for call in calls)

    async def _finish(
        self, said: Parsed, reason: FinishReason, turns: Sequence[Usage], messages: Mapping[str, Any]
    ) -> Outcome:
        return await self._record.finish(said, Finish(reason, Usage.of(turns), messages), self._history.tool_results)

    async def _messages(self) -> Mapping[str, Any]:
        """`Finish.messages` where no further turn is generated: those of the next one, with nothing said in it."""
        if not self._request.get("enable_response_messages"):
            return {}
        try:
            turn = await self._turn()
        except PromptTooLong:
            return {}
        return turn.messages(()) if turn.messages is not None else {}
