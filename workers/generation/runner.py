"""One response in a worker: claim, prepare, generate, and an outcome with a row to show for it.

A response is finished here, cancelled, failed, released for another worker, or found to belong to another run. Every
write goes through the journal's fence or a guarded transition, so a runner that is wrong about what it owns does no
harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from app.aio import run_to_completion
from app.protocol.events.deltas import Finish, FinishReason
from app.protocol.include import ENCRYPTED_REASONING
from app.protocol.tasks import COMPACT, COUNT
from app.protocol.types import Json
from app.protocol.usage import Usage
from app.store.database import Database, retry_until_available
from app.store.responses import endings
from app.store.rows import ResponseRow
from config.models import ServedModel
from workers.engine.base import Engine, EngineDead, PromptTooLong
from workers.formats.builder import build_turn
from workers.formats.turn import Parsed, Turn, TurnContext
from workers.generation.cancellation import why_cancelled
from workers.generation.chunk_writer import ChunkWriter
from workers.generation.claims import Claims
from workers.generation.errors import EngineGone, ErrorHandler
from workers.generation.flush_clock import FlushClock
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.look_ahead import LookAhead
from workers.generation.outcome import Outcome
from workers.generation.run import Run
from workers.generation.runs import ActiveRuns, SideGate, SuspectGate
from workers.generation.turns.compaction import Compaction
from workers.generation.turns.inputs import Context, Inputs, UnreadableRequest
from workers.generation.turns.mcp_setup import all_listings, listings_of
from workers.generation.turns.turn_loop import TurnLoop
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.runner")


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the runs of one worker share."""

    db: Database
    engine: Engine
    model: ServedModel
    journal: Journal
    lease: Lease
    runs: ActiveRuns
    """The same registry as the lease has."""
    look_ahead: LookAhead
    mcp_sessions: McpSessions
    events_per_second: float
    """The most events per second of all runs together; 0: no bound."""
    side_concurrency: int
    """How many counts and compactions run at once."""
    max_crashes: int
    """A response is failed once so many engines or workers died under it."""
    most_context_bytes: int
    """The most that is read of what a response continues."""
    held_context_bytes: int
    """The most of it that all runs hold together."""
    send_released: Callable[[ResponseRow], Awaitable[None]]
    """Sends a message for a released response."""
    claimed: Callable[[], None]
    """Called after claims: more responses can be sent."""
    ended: Callable[[ResponseRow, int], None]
    """Called with each response that ended here, and with the tokens that it took."""
    engine_died: Callable[[], None]
    """Stops this worker; called by every run that the engine's death ends."""


class Runner:
    """Runs responses on one engine, each from its claim to its outcome."""

    def __init__(self, parts: WorkerParts) -> None:
        self._parts = parts
        self._claims = Claims(parts.db, parts.runs, parts.claimed)
        self._inputs = Inputs(parts.db, parts.most_context_bytes, parts.held_context_bytes)
        self._clock = FlushClock(parts.events_per_second)
        self._side_gate = SideGate(parts.side_concurrency)
        self._gate = SuspectGate(parts.max_crashes)
        self._errors = ErrorHandler(parts.db, parts.journal, parts.max_crashes, parts.send_released, parts.engine_died)
        self._engine_is_dead = False

    @property
    def look_ahead(self) -> LookAhead:
        """How many responses the pool may take."""
        return self._parts.look_ahead

    async def run(self, response_id: str) -> Outcome:
        """Runs the response to its outcome. Raises ResponseFailed if it failed, with the error of its row."""
        with self._parts.runs.claiming(response_id):
            row = await self._claims.claim(response_id, lambda: self._parts.lease.worker)
        if row is None or row.worker is None:
            return await self._claims.why_not(response_id)
        log.info("%s claimed, attempt %d", response_id, row.attempt)
        try:
            outcome = await self._supervise(row, row.worker)
        finally:
            if row.request.get("task") != COUNT:  # which had no slot of the engine
                self._parts.look_ahead.note_end()
        log.info("%s attempt %d: %s", response_id, row.attempt, outcome.value)
        return outcome

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        """Cancels these rows, whichever worker runs them; returns the ids that this call cancelled.

        Publishes their ends. Waits for Postgres.
        """
        ended: list[str] = []
        for start in range(0, len(response_ids), endings.MAX_CANCELLED):
            batch = response_ids[start : start + endings.MAX_CANCELLED]
            ended += await retry_until_available(partial(self._errors.cancel_rows, batch))
        return ended

    async def _supervise(self, row: ResponseRow, worker: str) -> Outcome:
        """Generates, handles what went wrong, and cleans up. What follows an error is never interrupted: a response
        is often cancelled twice, by the fence and by a revoke, and the second must not break a statement."""
        task = asyncio.current_task()
        assert task is not None
        run = Run.of(row, worker, task)
        try:
            with self._parts.runs.registered(run):
                try:
                    return await self._generate_alone(run)
                except (Exception, asyncio.CancelledError) as error:
                    outcome = await run_to_completion(self._errors.handle(run, error))
        finally:
            if (usage := run.stream.response["usage"]) is not None:
                self._parts.ended(row, usage["total_tokens"])
            if run.toolbox is not None:
                await run_to_completion(run.toolbox.close())
        if outcome is not None:
            return outcome
        return await run_to_completion(self._errors.outcome(run))

    async def _generate_alone(self, run: Run) -> Outcome:
        """Generates. A response that its next crash would fail runs alone; counts and compactions wait for a place."""
        if why_cancelled() is not None:  # during the claim
            raise asyncio.CancelledError
        async with self._side_gate.admit(run.row), self._gate.admit(run.row):
            if self._engine_is_dead:
                raise EngineGone
            try:
                return await self._generate(run)
            except EngineDead:
                self._engine_is_dead = True  # before the gate opens for the next run
                raise

    async def _generate(self, run: Run) -> Outcome:
        parts, request = self._parts, run.row.request
        if not run.row.is_readable:
            log.error("%s: its request cannot be read", run.row.id)
            raise UnreadableRequest
        if run.row.attempt == 1:
            run.stream.accept()  # the API has committed this event, and nothing else is committed
        else:
            await run.restore(parts.db)
        context = Context(self._inputs, run.row)
        secrets = await self._inputs.secrets(run.row.project, request)
        run.toolbox = parts.mcp_sessions.toolbox(request, secrets, images=parts.model.images)
        if ENCRYPTED_REASONING in request["include"]:
            run.stream.seal = await self._inputs.reasoning_seal(run.row.project)
        writer = ChunkWriter(parts.journal, run, self._clock)
        if request.get("task") == COUNT:
            return await self._count(run, writer, context)
        compaction = Compaction(parts.engine, parts.model, run, writer, self._inputs)
        if request.get("task") == COMPACT:
            end, usage = await compaction.summarise(await context.use(compaction.turn))
            return await writer.finish(end, Finish(FinishReason.STOP, usage))
        return await TurnLoop(parts.engine, parts.model, run, writer, context, compaction).answer()

    async def _count(self, run: Run, writer: ChunkWriter, context: Context) -> Outcome:
        """Generates nothing: the answer is the number of tokens in the prompt."""
        parts, request = self._parts, run.row.request
        listed = None if run.toolbox is None else await all_listings(request, context, run.toolbox)

        async def build(items: Sequence[Json]) -> Turn:
            known = TurnContext(int(run.row.created_at.timestamp()), listings_of(items) if listed is None else listed)
            return await build_turn(parts.engine, parts.model, request, items, (), known)

        try:
            turn = await context.use(build)
            tokens = len(turn.prompt)
        except PromptTooLong as error:
            tokens = error.tokens
        return await writer.finish(Parsed(), Finish(FinishReason.STOP, Usage(tokens), counted=True))
