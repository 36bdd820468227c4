"""Generates one turn of a response, from the engine's tokens to committed chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from functools import partial

from app.heavy import off_loop
from app.metrics.instruments import TokenTimes, WorkerMetrics
from app.protocol.events.deltas import FinishReason
from app.protocol.usage import Usage
from workers.engine.base import Engine, EngineDelta, EngineError, EngineRequest, RequestAborted
from workers.formats.sampling import priority_of
from workers.formats.turn import Parsed, Turn, TurnParser
from workers.generation.run import Run
from workers.generation.slots import Slots
from workers.generation.suspects import SuspectGate
from workers.generation.writing.chunk_writer import ChunkWriter

UNSTREAMED_TOKENS = 64
"""Tokens of one delta, and so of one chunk, of a response that nobody can stream. A poll sees text this much later,
and after a crash the next worker generates this much again (docs/internals/performance.md)."""

GROWTH = 256
"""Tokens that a response may still generate count in the engine's cache as if they were there, up to so many. Nobody
knows how long it becomes; if the cache is full all the same, the engine preempts."""


@dataclass(frozen=True, slots=True)
class GeneratedTurn:
    """A turn that the engine has generated, with what is not written yet."""

    rest: Parsed
    tokens: tuple[int, ...]
    """All tokens of the turn."""
    reason: FinishReason
    usage: Usage
    parser: TurnParser


@dataclass(frozen=True, slots=True)
class TurnGenerator:
    """Generates the turns of one response, one at a time."""

    engine: Engine
    slots: Slots
    gate: SuspectGate
    run: Run
    writer: ChunkWriter
    metrics: WorkerMetrics

    async def generate(self, turn: Turn) -> GeneratedTurn:
        """Generates the turn to its end. Its last deltas are not written yet: they go with what ends the turn."""
        self.writer.count(len(turn.prompt), 0)
        parser, committed = turn.parser(), self.run.history.tokens
        # The events of committed tokens are known. Thousands of tokens would hold up all other streams.
        await off_loop(partial(parser.feed, committed), items=len(committed))
        tokens, cached, times = list(committed), 0, self._times()
        before = sum(usage.input_tokens + usage.output_tokens for usage in self.run.history.usage)
        self.run.used = before + len(turn.prompt) + len(tokens)
        self.run.held = len(turn.prompt) + len(tokens) + min(turn.sampling.max_tokens or GROWTH, GROWTH)
        self.run.can_continue = self.engine.can_continue(turn.sampling)
        try:
            async with self.writer.begun(), self.slots.taken(self.run), aclosing(self._deltas(turn)) as deltas:
                async for delta in deltas:
                    times.note(len(delta.token_ids))
                    if delta.cached_tokens > cached:
                        self.run.held -= delta.cached_tokens - cached
                        cached = delta.cached_tokens
                        self.writer.count(len(turn.prompt), cached)
                    parsed = parser.feed(delta.token_ids, delta.logprobs)
                    reason = FinishReason.STOP if parser.ended else delta.finish_reason
                    if reason is not None:
                        break  # which ends it in the engine, too
                    tokens += parsed.tokens
                    self.run.used += len(parsed.tokens)
                    self.run.held += len(parsed.tokens)
                    await self.writer.write(parsed)
                else:
                    raise RequestAborted("it gave no reason")
        except (EngineError, RequestAborted):
            await self.writer.flush()  # a failed response keeps what was generated, and the next attempt goes on there
            raise
        except asyncio.CancelledError:
            if self.run.yielding:  # so does one that yields
                await self.writer.flush()
            raise
        rest = parsed + parser.flush(cut=reason is FinishReason.LENGTH)
        usage = self._usage(turn, parser, cached)
        self.metrics.read_prompt(usage.input_tokens, usage.cached_tokens)
        return GeneratedTurn(rest, (*tokens, *rest.tokens), reason, usage, parser)

    def left(self) -> AbstractContextManager[None]:
        """Around what the response waits for between two turns."""
        return self.slots.left(self.run)

    def _times(self) -> TokenTimes:
        history = self.run.history
        has_tokens = history.tokens or history.turns or history.compaction is not None
        return self.metrics.turn(None if has_tokens else self.run.since_insert, self.run.row.priority)

    def _deltas(self, turn: Turn) -> AsyncGenerator[EngineDelta]:
        row, history = self.run.row, self.run.history

        def generate(tokens: Sequence[int]) -> AsyncGenerator[EngineDelta]:
            request = EngineRequest(
                f"{row.id}-{row.attempt}-{history.generations}-{len(tokens)}",
                turn.prompt,
                turn.sampling,
                committed=tokens,
                tokens_per_delta=1 if row.stream else UNSTREAMED_TOKENS,
                seconds_per_delta=self.writer.seconds_per_flush,
                trace_headers=row.trace_headers or None,
                priority=priority_of(row.request, row.priority),
            )
            return self.engine.generate(request)

        return self.gate.deltas(self.run, generate, history.tokens)

    def _usage(self, turn: Turn, parser: TurnParser, cached: int) -> Usage:
        # The engine of a later attempt may report committed tokens as cached prompt: they count as output.
        input_tokens = len(turn.prompt)
        before = self.run.history.turns[-1].usage if self.run.history.turns else None
        tool_output = 0 if before is None else max(input_tokens - before.input_tokens - before.output_tokens, 0)
        return Usage(input_tokens, min(cached, input_tokens), parser.tokens, parser.reasoning_tokens, tool_output)
