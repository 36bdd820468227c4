"""The story of one response in a worker: claim, render, generate, record, finish.

Whatever happens in between ends in one of the outcomes, and every outcome has a row to show: a response
is finished here, cancelled, failed, given back (`released`) for another worker to go on with, or it
turns out to be somebody else's. Nothing is written but through the journal's fence or a guarded
transition, so a runner that is wrong about what it owns does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from app.aio import run_to_completion
from app.batching import Batcher
from app.protocol.events import frames
from app.protocol.events.deltas import Finish, FinishReason
from app.protocol.events.machine import ResponseStream
from app.protocol.events.table import State
from app.protocol.include import ENCRYPTED_REASONING
from app.protocol.requests.request import COUNT
from app.protocol.requests.unsealing import unsealed
from app.protocol.response import error_object
from app.protocol.status import Status
from app.protocol.usage import Usage
from app.store import journal as log_store
from app.store import responses as store
from app.store.context import ContextGone, context_items, restore_calls
from app.store.database import Database, StoreUnavailable
from app.store.journal import Entry
from app.store.keys import SharedSealer
from app.store.rows import Ending, ResponseRow
from app.store.sealing import BadSeal, SealedKind, unseal_headers
from config.models import ServedModel
from workers.engine.base import Engine, EngineDead, EngineError, InvalidSampling, PromptTooLong
from workers.formats.builder import build_turn
from workers.formats.turn import Parsed, TurnContext
from workers.generation.cancellation import Cancelled, why_cancelled
from workers.generation.coalescing import NOTHING_HELD_BACK, Coalescer, Granularity
from workers.generation.flush_clock import FlushClock
from workers.generation.history import History
from workers.generation.journal import Journal
from workers.generation.lease import Lease
from workers.generation.mcp_setup import listings_for
from workers.generation.outcome import Outcome, ResponseFailed
from workers.generation.recorder import OUTCOMES, Fenced, Recorder, Run, chunk_of
from workers.generation.turn_loop import TurnLoop
from workers.mcp.sessions import McpSessions

log = logging.getLogger("longhaul.runner")

RETRY_SECONDS = 0.5
UNSTREAMED_SECONDS = 0.5
"""Between two chunks of text of a response whose events nobody can read: what a poll may be late by, and what a crash
makes the next worker generate again."""

T = TypeVar("T")


class ContextLost(EngineError):
    """What it continues is not there any more."""

    def __init__(self) -> None:
        super().__init__("a response that it continues was deleted")


class UnreadableItem(EngineError):
    """The API checked it: the deployment's key was lost since."""

    def __init__(self) -> None:
        super().__init__("an item's 'encrypted_content' cannot be read any more")


class UnreadableHeaders(EngineError):
    """The same of what the request brought for a tool server."""

    def __init__(self) -> None:
        super().__init__("the 'headers' of a tool cannot be read any more")


_ERROR_CODES: dict[type[EngineError], str] = {
    UnreadableItem: "invalid_prompt",
    ContextLost: "previous_response_not_found",
    PromptTooLong: "context_length_exceeded",
    InvalidSampling: "invalid_prompt",
}


class Runner:
    """Runs responses on one engine. `again` sends a message for a response that was released.

    A response under which `max_crashes` engines or workers died is failed. Who was there each time is not yet who did
    it: those on their last chance run one at a time, so that a poison pill takes no bystander with it.
    """

    def __init__(
        self,
        db: Database,
        journal: Journal,
        engine: Engine,
        model: ServedModel,
        max_crashes: int,
        again: Callable[[ResponseRow], Awaitable[None]],
        engine_died: Callable[[], None],
        workshop: McpSessions | None = None,
        granularity: Granularity = NOTHING_HELD_BACK,
    ) -> None:
        self._db = db
        self._journal = journal
        self._engine = engine
        self._model = model
        self._max_crashes = max_crashes
        self._again = again
        self._engine_died = engine_died
        self._workshop = workshop or McpSessions()
        self._granularity = granularity
        self._beat = FlushClock(granularity.per_second)
        self._seals = SharedSealer(db)
        self._claims = Batcher(self._claim, shared_errors=(StoreUnavailable,))
        self._runs: dict[str, Run] = {}
        self._last_chance = asyncio.Lock()
        self._engine_is_dead = False
        self.lease: Lease

    def running(self) -> Mapping[str, int]:
        """What runs here now: response id -> attempt."""
        return {response_id: run.row.attempt for response_id, run in self._runs.items()}

    def _runs_here(self, row: ResponseRow) -> bool:
        run = self._runs.get(row.id)
        return run is not None and run.row.attempt == row.attempt

    def lost(self, responses: Mapping[str, int]) -> None:
        """Stops what is no longer this worker's (response id -> attempt); nothing is written for it."""
        for response_id, attempt in responses.items():
            run = self._runs.get(response_id)
            if run is not None and run.row.attempt <= attempt:  # a later one may run here by now
                run.stop()

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        """Cancels these rows, whoever has them, and tells their readers; returns those that it ended.

        Raises StoreUnavailable.
        """
        open_ids = await store.cancellable(self._db, response_ids)  # the API's cancels are committed already
        ended: list[str] = []
        for start in range(0, len(open_ids), store.MOST_CANCELLED):
            ended += await self._cancelled(open_ids[start : start + store.MOST_CANCELLED])
        return ended

    async def _cancelled(self, response_ids: Sequence[str]) -> list[str]:
        cancellations = await store.cancel_all(self._db, response_ids, None)
        chunks = [found.chunk for found in cancellations if found is not None and found.chunk is not None]
        for chunk in chunks:
            log.info("%s cancelled", chunk.response_id)
            self._journal.publish(chunk)
        return [chunk.response_id for chunk in chunks]

    async def run(self, response_id: str) -> Outcome:
        """Runs it to an end. Raises ResponseFailed where it failed, with the reason that the row holds."""
        worker = self.lease.worker
        # Never half a claim: a row claimed by a job that is gone would wait for this worker's death.
        row = await run_to_completion(self._claimed(response_id, worker))
        if row is None or self._runs_here(row):
            return await self._not_claimed(response_id)
        log.info("%s claimed, attempt %d", response_id, row.attempt)
        outcome = await self._guarded(row, worker)
        log.info("%s attempt %d: %s", response_id, row.attempt, outcome.value)
        return outcome

    async def _claimed(self, response_id: str, worker: str) -> ResponseRow | None:
        """Claims it. A claim whose answer got lost may have been made: then the row is ours, and does not run here."""
        unsure = False
        while True:
            try:
                if (row := await self._claims.submit((response_id, worker))) is not None or not unsure:
                    return row
                row = await store.find(self._db, response_id)
                return row if row is not None and row.worker == worker else None
            except StoreUnavailable:
                unsure = True
                await asyncio.sleep(RETRY_SECONDS)

    async def _claim(self, wanted: Sequence[tuple[str, str]]) -> Sequence[ResponseRow | None]:
        return await store.claim_all(self._db, wanted)

    async def _not_claimed(self, response_id: str) -> Outcome:
        row = await self._patiently(lambda: store.find(self._db, response_id))
        cancelled = row is not None and row.status is Status.CANCELLED
        return Outcome.CANCELLED if cancelled else Outcome.NOT_CLAIMED

    async def _guarded(self, row: ResponseRow, worker: str) -> Outcome:
        """Every way out of `_generate`, turned into an outcome and the row that goes with it."""
        task = asyncio.current_task()
        assert task is not None
        run = Run(row, worker, task, ResponseStream({**row.as_object(), "status": Status.QUEUED.value}))
        if (earlier := self._runs.get(row.id)) is not None:
            earlier.stop()  # this worker was taken for dead, and now has claimed it again
        self._runs[row.id] = run
        try:
            if why_cancelled() is not None:  # while it was claimed
                return await run_to_completion(self._stopped(run))
            async with self._turn_of(row):
                if self._engine_is_dead:  # before this one began: that is not its doing
                    return await run_to_completion(self._released(run))
                return await self._generate(run)
        except Fenced:
            pass
        except asyncio.CancelledError:
            return await run_to_completion(self._stopped(run))
        except EngineDead as error:
            log.critical("the engine died: %s", error)
            self._engine_is_dead = True
            self._engine_died()
            return await run_to_completion(self._crashed(run))
        except EngineError as error:
            await run_to_completion(self._failed(run, _ERROR_CODES.get(type(error), "server_error"), str(error)))
        except Exception:
            log.exception("%s attempt %d went wrong", row.id, row.attempt)
            message = "the server had an error while it generated this response"
            await run_to_completion(self._failed(run, "server_error", message))
        finally:
            if self._runs.get(row.id) is run:
                del self._runs[row.id]
            if run.toolbox is not None:
                await run_to_completion(run.toolbox.close())
        # Whoever cancels an answer stops it by the fence and by a revoke: one would break into the other's statement.
        return await run_to_completion(self._verdict(run))

    def _turn_of(self, row: ResponseRow) -> AbstractAsyncContextManager[None]:
        on_its_last = row.crashes > 0 and row.crashes >= self._max_crashes - 1
        return self._last_chance if on_its_last else contextlib.nullcontext()

    # -- generating ----------------------------------------------------------------------------------------

    async def _generate(self, run: Run) -> Outcome:
        if run.row.attempt == 1:
            run.stream.accept()  # committed by the API, and nothing else is
        else:
            await self._take_up(run)
        items = await self._items(run.row)
        secrets = await self._secrets(run.row.request)
        run.toolbox = self._workshop.toolbox(run.row.request, secrets, images=self._model.images)
        if run.row.request.get("task") == COUNT:
            return await self._count(run, items)
        if ENCRYPTED_REASONING in run.row.request["include"]:
            run.stream.seal = partial((await self._patiently(self._seals.get)).seal, SealedKind.REASONING)
        record = self._recorder(run)
        with closing(self._pace(record, streamed=run.row.stream)) as pace:
            return await TurnLoop(self._engine, self._model, run, record, items, pace).answer()

    def _pace(self, record: Recorder, *, streamed: bool) -> Coalescer:
        """Events that nobody can read are few, whatever was set."""
        interval, each = self._granularity.interval, self._granularity.per_token
        if streamed:
            return Coalescer(record, interval, self._beat, per_token=each)
        return Coalescer(record, max(interval, UNSTREAMED_SECONDS), self._beat)

    def _recorder(self, run: Run) -> Recorder:
        return Recorder(self._journal, run, run.stream.begin() if run.stream.state is State.QUEUED else [])

    async def _count(self, run: Run, items: list[dict[str, Any]]) -> Outcome:
        """Generates nothing: the answer is how many tokens the prompt has."""
        listings = await listings_for(run.row.request, items, run.toolbox)
        seen = TurnContext(int(run.row.created_at.timestamp()), listings)
        try:
            tokens = len((await build_turn(self._engine, self._model, run.row.request, items, (), seen)).prompt)
        except PromptTooLong as error:
            tokens = error.tokens
        return await self._recorder(run).finish(Parsed(), Finish(FinishReason.STOP, Usage(tokens)))

    async def _items(self, row: ResponseRow) -> list[dict[str, Any]]:
        """What it continues and what it was asked: the same at every attempt."""
        try:
            before = await self._patiently(lambda: context_items(self._db, row))
        except ContextGone:
            raise ContextLost from None
        items = await self._patiently(lambda: restore_calls(self._db, row.project, [*before, *row.request["input"]]))
        return await self._unsealed(items)

    async def _unsealed(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seal = await self._patiently(self._seals.get)
        try:
            return unsealed(
                items, partial(seal.unseal, SealedKind.REASONING), partial(seal.unseal, SealedKind.COMPACTION)
            )
        except BadSeal:
            raise UnreadableItem from None

    async def _secrets(self, request: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """The headers that it brought for tool servers, by their labels."""
        if not (sealed := request.get("secrets")):
            return {}
        seal = await self._patiently(self._seals.get)
        try:
            return {label: unseal_headers(seal, token) for label, token in sealed.items()}
        except BadSeal:
            raise UnreadableHeaders from None

    async def _take_up(self, run: Run) -> None:
        """Where earlier attempts, or the API, left off."""
        reading = await self._patiently(lambda: log_store.read(self._db, run.row.id))
        if reading.status is not Status.IN_PROGRESS:
            raise Fenced
        events = (event for chunk in reading.chunks for event in frames.decode(chunk.frames))
        run.stream = ResponseStream.restore(events)
        run.history = History.of(reading.chunks)

    # -- ways out ------------------------------------------------------------------------------------------

    async def _verdict(self, run: Run) -> Outcome:
        """What its row says of a response that this run has ended, or that is not ours any more."""
        row = await self._patiently(lambda: store.find(self._db, run.row.id))
        if row is None:
            return Outcome.CANCELLED  # deleted
        if row.status is Status.FAILED and row.error is not None:
            raise ResponseFailed(row.error["code"], row.error["message"])
        return OUTCOMES.get(row.status, Outcome.LOST)

    async def _stopped(self, run: Run) -> Outcome:
        """Its task was cancelled: by the heartbeat, by a revoke, or because this worker stops."""
        if run.lost:
            return await self._verdict(run)
        if why_cancelled() is Cancelled.REVOKED:
            await self._patiently(lambda: self._cancelled([run.row.id]))
            return await self._verdict(run)
        return await self._released(run)

    async def _crashed(self, run: Run) -> Outcome:
        """Its engine died under it: another worker goes on, unless it has killed too many."""
        if run.row.crashes + 1 < self._max_crashes:
            return await self._released(run, crashed=True)
        message = f"the engine died {self._max_crashes} times while it ran"
        await self._failed(run, "server_error", message)
        return await self._verdict(run)

    async def _released(self, run: Run, *, crashed: bool = False) -> Outcome:
        row = await self._patiently(
            lambda: store.release(self._db, run.row.id, run.row.attempt, run.worker, crashed=crashed)
        )
        if row is None:
            return await self._verdict(run)
        await self._again(row)
        return Outcome.RELEASED

    async def _failed(self, run: Run, code: str, message: str) -> None:
        """Ends it as failed, if it is still ours."""
        if run.handed is not None:
            await asyncio.wait([run.handed])  # else it could land in the place of the last chunk
        try:
            # From the row's log, not from this run's stream: events that were not committed do not count.
            await self._take_up(run)
        except Fenced:
            return
        first = run.stream.next_sequence
        events = run.stream.fail(error_object(code, message))
        ending = Ending.of(run.stream.response, datetime.now(UTC))
        await self._journal.append(Entry(run.worker, chunk_of(run, first, events, final=True), ending))

    async def _patiently(self, action: Callable[[], Awaitable[T]]) -> T:
        """Does it again until Postgres answers."""
        while True:
            try:
                return await action()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
