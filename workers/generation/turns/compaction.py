"""Compaction: the model's summary of a response's context, sealed into one item of the output.

The item shows nothing of the summary, but its tokens are committed as they come. A later attempt parses them again, so
it seals the same text: sealing is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.protocol.events.deltas import Compacted, CompactionStart, FinishReason
from app.protocol.events.table import State
from app.protocol.tasks import COMPACT
from app.protocol.types import Json
from app.protocol.unsealing import is_kept
from app.protocol.usage import Usage
from app.store.sealing import SealedKind
from config.models import ServedModel
from workers.engine.base import Engine, EngineError
from workers.formats.builder import build_turn, plan_turn
from workers.formats.summary import SummaryParser, newest_items, summary_items, summary_request
from workers.formats.turn import Parsed, Turn
from workers.generation.history import EndedCompaction
from workers.generation.run import Run
from workers.generation.turns.inputs import Inputs
from workers.generation.turns.turn_generator import TurnGenerator
from workers.generation.writing.chunk_writer import ChunkWriter


class SummaryCut(EngineError):
    """The summary took more tokens than it may."""

    code = "context_length_exceeded"

    def __init__(self, tokens: int) -> None:
        super().__init__(
            f"the context cannot be compacted: the summary did not end within {tokens} tokens. "
            "It may take a quarter of the model's context, as far as the prompt leaves room for it, and in a project "
            "with limits no more than LONGHAUL_RESERVED_OUTPUT_TOKENS"
        )


@dataclass(frozen=True, slots=True)
class Compaction:
    """Summarises the context of one response."""

    engine: Engine
    generator: TurnGenerator
    model: ServedModel
    run: Run
    writer: ChunkWriter
    inputs: Inputs

    async def turn(self, items: Sequence[Json]) -> Turn:
        """The turn that summarises these items. Raises what `plan_turn` and `build_turn` raise."""
        request = summary_request(self.run.row.request, self.engine.context_length)
        if request.get("task") != COMPACT:  # the client left the context to the server: it must fit
            request["truncation"] = "auto"
        shown, created_at = summary_items(items), int(self.run.row.created_at.timestamp())
        plan = await plan_turn(self.engine, self.model, request, shown, (), created_at, {})
        turn = await build_turn(plan, shown)
        return replace(turn, parser=lambda: SummaryParser(turn.parser()))

    async def summarise(self, turn: Turn) -> tuple[Parsed, Usage]:
        """Generates the summary by its turn, or the rest of it. Its end is returned, and is not written yet.

        Raises Fenced, EngineDead and EngineError.
        """
        seal = await self.inputs.seal(self.run.row.project, SealedKind.COMPACTION)
        if not self.is_begun():
            self.writer.buffer(Parsed((CompactionStart(),)))
        generated = await self.generator.generate(turn)
        if generated.reason is FinishReason.LENGTH:
            raise SummaryCut(len(generated.tokens))
        assert isinstance(generated.parser, SummaryParser)
        if not generated.parser.summary:
            raise EngineError("the context cannot be compacted: the model wrote no summary")
        return generated.rest + Parsed((Compacted(seal(generated.parser.summary)),)), generated.usage

    def is_begun(self) -> bool:
        """Whether an earlier attempt began the summary, and did not end it."""
        return self.run.stream.state is State.COMPACTION

    @property
    def threshold(self) -> int:
        """The most tokens of a prompt that need no compaction."""
        asked: int | None = self.run.row.request["compaction"]["threshold"]
        return self.engine.context_length * 3 // 4 if asked is None else asked

    async def commit(self, turn: Turn) -> None:
        """Summarises by this turn, and commits the end of the summary: a later attempt goes on behind it.

        Raises what `summarise` raises.
        """
        end, usage = await self.summarise(turn)
        ended = EndedCompaction(len(self.run.stream.response["output"]) - 1, usage)
        await self.writer.flush(end, ended.as_step())
        self.run.history.end_compaction(ended)

    async def compacted(self, items: Sequence[Json]) -> list[Json]:
        """The items after the compaction: its summary instead of all but the newest. Raises InvalidPrompt."""
        ended, newest = self.run.history.compaction, newest_items(items)
        assert ended is not None
        summaries = [self.run.stream.response["output"][ended.index]]
        (summary,) = await self.inputs.unseal(self.run.row.project, summaries)
        return [*(item for item in items[: len(items) - len(newest)] if is_kept(item)), summary, *newest]
