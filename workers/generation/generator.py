"""The generation of one run: an answer, the summary of a compaction, or nothing but a prompt."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from app.metrics.instruments import WorkerMetrics
from app.protocol.events.deltas import Finish, FinishReason
from app.protocol.include import ENCRYPTED_REASONING
from app.protocol.tasks import COMPACT, COUNT
from app.protocol.usage import Usage
from app.store.database import Database
from app.store.sealing import SealedKind
from config.models import ServedModel
from workers.engine.base import Engine
from workers.formats.turn import Parsed
from workers.generation.outcome import Outcome
from workers.generation.run import Run
from workers.generation.slots import Slots
from workers.generation.suspects import SuspectGate
from workers.generation.turns.compaction import Compaction
from workers.generation.turns.counter import prompt_tokens
from workers.generation.turns.inputs import Context, Inputs, UnreadableRequest
from workers.generation.turns.mcp_setup import all_listings
from workers.generation.turns.turn_generator import TurnGenerator
from workers.generation.turns.turn_loop import TurnLoop
from workers.generation.writing.chunk_writer import ChunkWriter
from workers.generation.writing.flush_clock import FlushClock
from workers.generation.writing.journal import Journal
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.runner")


@dataclass(frozen=True, slots=True)
class Generator:
    """Prepares runs and generates on one engine; everything goes through the journal."""

    db: Database
    engine: Engine
    slots: Slots
    model: ServedModel
    inputs: Inputs
    mcp_sessions: McpSessions
    journal: Journal
    clock: FlushClock
    metrics: WorkerMetrics
    gate: SuspectGate = field(default_factory=SuspectGate)

    async def generate(self, run: Run) -> Outcome:
        """Generates from where the log ends. Raises Fenced, EngineDead, RequestAborted, EngineError and DamagedLog."""
        request = run.row.request
        if not run.row.is_readable:
            log.error("the request cannot be read")
            raise UnreadableRequest
        if run.row.attempt == 1:
            run.stream.accept()  # the API has committed this event, and nothing else is committed
        else:
            await run.restore(self.db)
        context = Context(self.inputs, run.row)
        secrets = await self.inputs.secrets(run.row.project, request)
        answered = {call["kind"] for call in run.history.results.values()}
        run.toolbox = self.mcp_sessions.toolbox(request, secrets, images=self.model.images, answered=answered)
        if ENCRYPTED_REASONING in request["include"]:
            run.stream.seal_reasoning(await self.inputs.seal(run.row.project, SealedKind.REASONING))
        writer = ChunkWriter(self.journal, run, self.clock)
        if request.get("task") == COUNT:
            return await self._count(run, writer, context)
        generator = TurnGenerator(self.engine, self.slots, self.gate, run, writer, self.metrics)
        compaction = Compaction(self.engine, generator, self.model, run, writer, self.inputs)
        if request.get("task") == COMPACT:
            end, usage = await compaction.summarise(await context.use(compaction.turn))
            return await writer.finish(end, Finish(FinishReason.STOP, usage))
        parts = (run, writer, context, compaction, self.metrics)
        return await TurnLoop(self.engine, generator, self.model, *parts).answer()

    async def _count(self, run: Run, writer: ChunkWriter, context: Context) -> Outcome:
        """Generates nothing: the answer is the number of tokens in the prompt."""
        listed = None if run.toolbox is None else await all_listings(run.row.request, context, run.toolbox)
        created_at = int(run.row.created_at.timestamp())
        tokens = await prompt_tokens(self.engine, self.model, run.row, created_at, context, listed)
        return await writer.finish(Parsed(), Finish(FinishReason.STOP, Usage(tokens), counted=True))
