"""One response in a worker: claim, prepare, generate, and an outcome with a row to show for it.

A response is finished here, cancelled, failed, released for another worker, or found to belong to another run. Every
write goes through the journal's fence or a guarded transition, so a runner that is wrong about what it owns does no
harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from app.aio import run_to_completion
from app.dispatcher import Dispatcher
from app.heavy import PROJECT
from app.metrics.instruments import WorkerMetrics
from app.protocol.tasks import COUNT
from app.store.responses import endings
from app.store.rows import ResponseRow
from config.logging.context import about
from workers.generation.claimer import Claimer
from workers.generation.errors import ErrorHandler
from workers.generation.generator import Generator
from workers.generation.outcome import Outcome, ResponseFailed, why_cancelled
from workers.generation.run import ActiveRuns, Run
from workers.generation.slots import Slots
from workers.generation.turns.counter import Counter
from workers.request_log import RequestLog

log = logging.getLogger("longhaul.runner")

_GOES_ON = frozenset({Outcome.RELEASED, Outcome.YIELDED, Outcome.FENCED})
"""Outcomes after which another attempt goes on with the response."""


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs responses on one engine, each from its claim to its outcome."""

    claimer: Claimer
    runs: ActiveRuns
    generator: Generator
    errors: ErrorHandler
    dispatcher: Dispatcher
    slots: Slots
    """They are told of ends; for the pool: how many responses it may take."""
    node: str
    """For the pool: from which list it takes them."""
    command_key: bytes
    """For the pool: it signs commands."""
    counter: Counter
    """For the pool's commands."""
    metrics: WorkerMetrics
    requests: RequestLog

    async def run(self, response_id: str) -> Outcome:
        """Runs the response to its outcome. Raises ResponseFailed if it failed, with the error of its row."""
        row = await self.claimer.claim(response_id)
        if row is None:
            return await self.discarded(response_id)
        PROJECT.set(row.project)
        if row.attempt == 1 and row.started_at is not None:
            self.metrics.waited(row.priority, (row.started_at - row.inserted_at).total_seconds())
        with about(row.id, attempt=row.attempt, request_id=row.request_id):
            log.info("claimed")
            try:
                outcome = await self._supervise(row)
            except ResponseFailed as failed:
                log.info("failed: %s", failed.code)
                raise
            log.info("%s", outcome.value)
        return outcome

    async def discarded(self, response_id: str) -> Outcome:
        """The message of this response led to no claim. If the response ended before, its flow is charged nothing."""
        outcome, row = await self.claimer.why_not(response_id)
        if row is not None and row.status.final and row.attempt == 0:
            self.dispatcher.correct_flow(row, 0, cut_short=True)
            self.dispatcher.nudge(row.queue)  # it was counted among what this worker has
        return outcome

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        """Cancels these rows, whichever worker runs them; returns the ids that this call cancelled.

        Publishes their ends. Waits for Postgres.
        """
        ended: list[str] = []
        for start in range(0, len(response_ids), endings.MAX_CANCELLED):
            batch = response_ids[start : start + endings.MAX_CANCELLED]
            ended += await self.errors.cancel_all(batch)
        return ended

    async def _supervise(self, row: ResponseRow) -> Outcome:
        """Generates, handles what went wrong, and cleans up. What follows an error is never interrupted: a response
        is often cancelled twice, by the fence and by a revoke, and the second must not break a statement."""
        task = asyncio.current_task()
        assert task is not None
        run = Run.of(row, task)
        try:
            with self.runs.registered(run):
                try:
                    outcome: Outcome | None = await self._generate(run)
                except (Exception, asyncio.CancelledError) as error:
                    outcome = await run_to_completion(self.errors.handle(run, error))
        finally:
            # A count has no slot, and the slot of a response that yields goes to a stream. So neither end frees a slot
            # for a response that is taken ahead.
            if run.row.request.get("task") != COUNT and not run.yielding:
                self.slots.note_end()
            if run.toolbox is not None:
                run.toolbox.close()
        try:
            if outcome is None:
                outcome = await run_to_completion(self.errors.outcome(run))
            return outcome
        finally:  # also if the response failed, which raises
            how = "failed" if outcome is None else outcome.value
            run.report(self.metrics, how, goes_on=outcome in _GOES_ON)
            if outcome not in _GOES_ON:
                self._correct_flow(run)
                self.requests.ended(run.row, run.stream.response, how, run.since_insert())
            self.dispatcher.nudge(row.queue)  # its place is free

    def _correct_flow(self, run: Run) -> None:
        usage = run.stream.response["usage"]
        used = run.used if usage is None else usage["total_tokens"]
        self.dispatcher.correct_flow(run.row, used, run.seconds, cut_short=usage is None)

    async def _generate(self, run: Run) -> Outcome:
        if why_cancelled() is not None:  # during the claim
            raise asyncio.CancelledError
        return await self.generator.generate(run)
