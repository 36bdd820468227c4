"""How an exception that ends a run decides the response's row and the run's outcome: one table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.response import code_of, error_object
from app.protocol.text import type_and_places
from app.store.database import Database, StoreUnavailable, retry_until_available
from app.store.guards import HandOver
from app.store.responses import claims, endings, lookup
from app.store.responses.logs import Entry, ItemTaken
from app.store.rows import Ending, EndResult, ResponseRow
from config.logging.context import about
from workers.engine.base import (
    EngineAway,
    EngineDead,
    EngineError,
    RequestAborted,
)
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed, why_cancelled
from workers.generation.run import Fenced, Run
from workers.generation.suspects import crashes_after
from workers.generation.writing.journal import Journal

log = logging.getLogger("longhaul.runner")


@dataclass(frozen=True, slots=True)
class ErrorHandler:
    """Fails, cancels or releases the response of a run that raised. The fence guards every write."""

    db: Database
    journal: Journal
    max_crashes: int
    """A response is failed once so many engines or workers died under it without progress."""
    engine_died: Callable[[], None]
    """Stops the worker."""

    async def handle(self, run: Run, error: Exception | asyncio.CancelledError) -> Outcome | None:
        """Writes the row that goes with `error`.

        Returns RELEASED or YIELDED, or None: then the row holds the outcome.
        """
        handler = next(handler for kind, handler in _HANDLERS if isinstance(error, kind))
        return await handler(self, run, error)

    async def outcome(self, run: Run) -> Outcome:
        """What the row says of a response that has ended or belongs to another worker. Raises ResponseFailed."""
        found = await retry_until_available(lambda: lookup.find_status(self.db, run.row.id))
        if found is None:
            return Outcome.CANCELLED  # deleted
        status, error = found
        if error is not None:
            raise ResponseFailed(code_of(error), error["message"])
        return Outcome(status.value) if status.final else Outcome.FENCED

    async def cancel_all(self, response_ids: Sequence[str]) -> list[str]:
        """Cancels these rows, and publishes it; returns the ids that this call cancelled. Waits for Postgres."""
        cancelled: list[str] = []

        def announce(result: EndResult) -> None:
            assert result.chunk is not None
            with about(result.row.id, attempt=result.row.attempt, request_id=result.row.request_id):
                log.info("cancelled")
            self.journal.publish(result.chunk)
            cancelled.append(result.row.id)

        async def cancel() -> None:
            for result in await endings.cancel_all(self.db, response_ids, None, announce):
                if isinstance(result, StoreUnavailable):
                    raise result

        await retry_until_available(cancel)
        return cancelled

    async def _on_fence(self, run: Run, error: Any) -> None:
        """Nothing to write: the response belongs to another run, or has ended."""

    async def _on_cancellation(self, run: Run, error: Any) -> Outcome | None:
        """The heartbeat fenced the run, a revoke cancelled it, it is to yield, this worker stops; or it is a bug."""
        if run.fenced:
            return None
        if why_cancelled() is Cancelled.REVOKED:
            found = await retry_until_available(lambda: lookup.find_status(self.db, run.row.id))
            if found is not None and not found[0].final:  # the API has committed its own cancels
                await self.cancel_all([run.row.id])
            return None
        if run.yielding and why_cancelled() is None:
            return await self._yield(run)
        if why_cancelled() is Cancelled.SHUTDOWN:
            return await self._release(run, HandOver.DRAINED)
        log.error("the attempt was cancelled by nobody: %s", type_and_places(error))
        return await self._release(run, HandOver.CUT_OFF)

    async def _on_abort(self, run: Run, error: RequestAborted) -> Outcome | None:
        log.error("the engine gave up its request: %s", error)
        if error.refusal is not None and run.row.crashes and _was_given_up(run.row):
            await self._on_engine_error(run, error.refusal)
            return None
        if error.counts:
            return await self._release_after_crash(run, "gave it up {} times", HandOver.ENGINE_GAVE_UP)
        return await self._release(run, HandOver.ENGINE_GAVE_UP)

    async def _on_taken_item(self, run: Run, error: ItemTaken) -> None:
        message = "input: the conversation was given another item with the same id meanwhile; send items without ids."
        await self._fail(run, "invalid_prompt", message)

    async def _on_store_trouble(self, run: Run, error: StoreUnavailable) -> Outcome | None:
        """Postgres ended the same statement for minutes; the next attempt may have more luck."""
        log.error("Postgres ended its statements: %s", error)
        return await self._release(run, HandOver.STORE_TROUBLE)

    async def _on_engine_death(self, run: Run, error: EngineDead) -> Outcome | None:
        is_away = isinstance(error, EngineAway)
        if is_away:
            log.warning("the engine is away: %s", error)
        else:
            log.critical("the engine died: %s", error)
            self.engine_died()
        if error.counts:
            return await self._release_after_crash(run, "died {} times while it ran", HandOver.ENGINE_DIED)
        return await self._release(run, HandOver.ENGINE_GAVE_UP if is_away else HandOver.ENGINE_DIED)

    async def _on_engine_error(self, run: Run, error: EngineError) -> None:
        await self._fail(run, error.code, str(error))

    async def _on_bug(self, run: Run, error: Exception) -> None:
        log.error("the attempt went wrong", exc_info=error)
        await self._fail(run, "server_error", "the server had an error while it generated this response")

    async def _release_after_crash(self, run: Run, what: str, how: HandOver) -> Outcome | None:
        """Another worker continues the response, unless too many engines have crashed under it."""
        await run.last_chunk_written()
        crashes = crashes_after(run, self.max_crashes, engine_died=how is HandOver.ENGINE_DIED)
        if crashes < self.max_crashes:
            return await self._release(run, how, crashes)
        await self._fail(run, "server_error", f"the engine {what.format(crashes)}")
        return None

    async def _release(self, run: Run, how: HandOver, crashes: int | None = None) -> Outcome | None:
        """None: the response belongs to this run no longer. Without `crashes` any progress forgives those so far."""
        await run.last_chunk_written()
        counted = crashes if crashes is not None else 0 if run.commits else run.row.crashes
        owner = (run.row.id, run.row.attempt, run.worker)
        released = await retry_until_available(lambda: claims.release(self.db, *owner, counted, how))
        return Outcome.RELEASED if released else None

    async def _yield(self, run: Run) -> Outcome | None:
        """None: the response belongs to this run no longer."""
        await run.last_chunk_written()
        owner = (run.row.id, run.row.attempt, run.worker)
        yielded = await retry_until_available(lambda: claims.yield_(self.db, *owner))
        return Outcome.YIELDED if yielded else None

    async def _fail(self, run: Run, code: str, message: str) -> None:
        """Ends the response as failed, unless it is fenced. An output that cannot be restored or stored is lost."""
        try:
            await self._fail_after_log(run, code, message)
        except StoreUnavailable:
            raise
        except Exception as error:
            log.error("the response cannot be failed here: %s", type_and_places(error))
            owner = (run.worker, run.row.attempt)
            ended = await retry_until_available(lambda: endings.fail(self.db, run.row.id, code, message, owner=owner))
            if ended is not None and ended.chunk is not None:
                self.journal.publish(ended.chunk)

    async def _fail_after_log(self, run: Run, code: str, message: str) -> None:
        await run.last_chunk_written()
        try:
            await run.restore(self.db)  # events of this run that were not committed do not count
        except Fenced:
            return
        first = run.stream.next_sequence
        events = run.stream.fail(error_object(code, message))
        ending = Ending.of(run.stream.response, run.now())
        kept, is_followed = run.row.request_to_keep, run.row.is_followed
        chunk = run.chunk(first, events, final=True)
        await self.journal.append(Entry(run.worker, chunk, ending, request=kept, is_followed=is_followed))


def _was_given_up(row: ResponseRow) -> bool:
    """Whether the attempt before ended because its engine gave up the request."""
    return [each["how"] for each in row.history or ()][-1:] == [HandOver.ENGINE_GAVE_UP]


_Handler = Callable[[ErrorHandler, Run, Any], Awaitable[Outcome | None]]

_HANDLERS: Sequence[tuple[type[BaseException], _Handler]] = (
    (Fenced, ErrorHandler._on_fence),
    (asyncio.CancelledError, ErrorHandler._on_cancellation),
    (EngineDead, ErrorHandler._on_engine_death),
    (RequestAborted, ErrorHandler._on_abort),
    (EngineError, ErrorHandler._on_engine_error),
    (StoreUnavailable, ErrorHandler._on_store_trouble),
    (ItemTaken, ErrorHandler._on_taken_item),
    (Exception, ErrorHandler._on_bug),
)
"""The first that matches."""
