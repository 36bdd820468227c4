"""The rules of `/v1/batches`, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial

import orjson

from app.batches.batch_object import batch_object
from app.batches.followers import Followers
from app.batching import Batcher
from app.heavy import off_loop
from app.ids import new_id
from app.protocol.errors import InvalidRequest, KeyReused, NotFound, ShareUsed
from app.protocol.requests.bodies.batch import WINDOWS, CreateBatch
from app.protocol.status import BatchStatus
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.paging import Encoded, encoded_list
from app.store.batches import changes, results, rows
from app.store.batches.changes import NewBatch
from app.store.batches.rows import BatchRow
from app.store.database import Connection, Database, StoreUnavailable
from app.store.files import files
from app.store.paging import Page
from app.store.responses.lookup import Hold
from app.store.tenants import limits
from app.streaming.pubsub import PubSub
from config.settings import Settings

MAX_UNFINISHED = 100
"""Unfinished batches of one project."""
MAX_BYTES = 200 * 1024 * 1024
"""Largest file of a batch, as at OpenAI. A batch of more lines than there may have LINE_BYTES for each."""
LINE_BYTES = 4096
MAX_LOOKS = 5000
"""Number of waiters for ends of batches that one statement answers."""
_SENT = ("endpoint", "input_file", "completion_window", "metadata", "output_seconds")
"""A client's fields of a new batch."""


class BatchService:
    """What a client can do with batches. Every method raises StoreUnavailable while Postgres cannot be reached.

    Every method that takes a `batch_id` raises NotFound if the project has no such batch.
    """

    def __init__(self, db: Database, pubsub: PubSub, settings: Settings) -> None:
        self._db = db
        self._pubsub = pubsub
        self._looks: Batcher[str, BatchRow | None] = Batcher(
            partial(rows.find_each, db), max_items=MAX_LOOKS, shared_errors=(StoreUnavailable,)
        )
        """Reads batches for all callers that wait for an end."""
        self._followers = Followers(db, pubsub)
        self._settings = settings

    async def close(self) -> None:
        """Breaks off what is being read."""
        await self._looks.close()
        await self._followers.close()

    async def create(
        self, project: str, request: CreateBatch, key_id: str | None, idempotency_key: str | None = None
    ) -> Json:
        """Returns the new batch, which is `validating`; if the project has used the idempotency key before, that one.

        Raises InvalidRequest and ShareUsed.
        """
        expiry = request.output_expires_after
        new = NewBatch(
            id=new_id("batch"),
            project=project,
            key_id=key_id,
            endpoint=request.endpoint,
            input_file=request.input_file_id,
            completion_window=request.completion_window,
            window_seconds=WINDOWS[request.completion_window],
            metadata=request.metadata,
            output_seconds=None if expiry is None else expiry.seconds,
            idempotency_key=idempotency_key,
        )
        async with self._db.begin(waits=True) as connection:
            # Before anything else of the request is looked at: the file may be gone by now.
            batch_id = await _repeated(connection, new) or await self._insert(connection, new)
        return await self.get(project, batch_id)

    async def get(self, project: str, batch_id: str) -> Json:
        return batch_object(await self._row(project, batch_id))

    async def check(self, project: str, batch_id: str, param: str) -> None:
        """Only raises; `param` is the field that names the batch."""
        await self._row(project, batch_id, param)

    async def until_ended(self, project: str, batch_id: str, seconds: float) -> Json | None:
        """Returns the batch once it has ended. None: it has not after `seconds`."""
        await self.check(project, batch_id, "batch_id")

        async def find() -> BatchRow | None:
            row = await self._looks.submit(batch_id)
            if row is None:
                raise _no_such_batch(batch_id, "batch_id")
            return row if row.status.final else None

        ended = await self._pubsub.until_ended(batch_id, find, seconds)
        return None if ended is None else batch_object(ended)

    async def page(self, project: str, page: Page, hold: Hold) -> Encoded:
        """Returns a page of batches, the newest first, once `hold` has room for it. Raises UnknownCursor."""
        found = await rows.find_page(self._db, project, page, hold)

        def encoded() -> Encoded:
            entries = [(row.id, orjson.dumps(batch_object(row))) for row in found.entries]
            return encoded_list(entries, has_more=found.has_more)

        return await off_loop(encoded, found.bytes)

    async def cancel(self, project: str, batch_id: str) -> Json:
        """Cancels what has not ended of the batch; returns it, `cancelling`. Raises InvalidRequest if it has ended."""
        row = await self._row(project, batch_id)
        if row.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
            async with self._db.begin(waits=True) as connection:
                await rows.lock(connection, batch_id)
                is_cancelled = await changes.move(connection, batch_id, BatchStatus.CANCELLING)
            row = await self._row(project, batch_id)
            if not is_cancelled and row.status not in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
                message = f"The batch cannot be cancelled: it is '{row.status.value}'."
                raise InvalidRequest(message, "batch_id", "batch_not_cancellable")
        return batch_object(row)

    async def retry_failed(self, project: str, batch_id: str, key_id: str | None) -> Json:
        """Returns a new batch of the lines that have no answer, or the one that retries them already.

        It has the old one's file, and reads these lines of it. Raises InvalidRequest if the batch has not ended, all
        its lines have answers, or its file is gone. Raises LimitReached and ShareUsed.
        """
        row = await self._row(project, batch_id)
        if not row.status.final or row.status is BatchStatus.FAILED:
            message = f"The batch cannot be retried: it is '{row.status.value}'."
            raise InvalidRequest(message, "batch_id", "batch_not_retryable")
        async with self._db.autocommit() as connection:
            known = await rows.unfinished_retry(connection, project, batch_id)
        if known is not None:
            return await self.get(project, known)
        unanswered = await results.unanswered(self._db, batch_id)
        if not unanswered:
            raise InvalidRequest("Every request of the batch has an answer.", "batch_id", "nothing_to_retry")
        if await files.get(self._db, project, row.input_file) is None:
            message = f"The batch's file '{row.input_file}' is gone; send the requests again."
            raise InvalidRequest(message, "batch_id", "file_not_found")
        async with self._db.begin(waits=True) as connection:
            await rows.lock(connection, batch_id)  # Of several retries at once there is one.
            known = await rows.unfinished_retry(connection, project, batch_id)
            made = known or await self._insert(connection, _retry_of(row, key_id, unanswered))
        return await self.get(project, made)

    async def follow(self, project: str, batch_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Returns lines of JSON, one for each result with a number larger than `after`, until the batch has ended.

        They come in the order in which they were seen to end, each with its `number`: whoever goes on behind the last
        one that it has read misses none and reads none twice. The last line has the `batch`. An empty piece says that
        nothing has come for a while.
        """
        return self._followers.follow(await self._row(project, batch_id), after)

    async def _row(self, project: str, batch_id: str, param: str = "batch_id") -> BatchRow:
        row = await rows.find(self._db, project, batch_id)
        if row is None:
            raise _no_such_batch(batch_id, param)
        return row

    async def _insert(self, connection: Connection, new: NewBatch) -> str:
        """Returns the id of the batch, or of one with its idempotency key that was faster.

        Raises InvalidRequest, LimitReached, and ShareUsed if the project has too many batches.
        """
        file = await files.keep(connection, new.project, new.input_file)
        if file is None:
            message = f"No such file: '{shortened(new.input_file)}'."
            raise InvalidRequest(message, "input_file_id", "file_not_found")
        if file.purpose != "batch":
            message = f"The file '{file.id}' has the purpose '{file.purpose}'; that of a batch must be 'batch'."
            raise InvalidRequest(message, "input_file_id", "invalid_purpose")
        most = max(MAX_BYTES, LINE_BYTES * self._settings.max_batch_lines)
        if file.bytes > most:
            message = f"The file has {file.bytes} bytes; that of a batch may have {most}."
            raise InvalidRequest(message, "input_file_id", "file_too_large")
        # It locks the project: two at once would not see each other.
        await limits.check_stored(connection, new.project, rows.OBJECT_BYTES)
        if (known := await _repeated(connection, new)) is not None:
            return known
        if await rows.count_unfinished(connection, new.project) >= MAX_UNFINISHED:
            message = f"The project has {MAX_UNFINISHED} unfinished batches, the most; wait until one has ended."
            raise ShareUsed(message, code="too_many_batches")
        await changes.create(connection, new)
        return new.id


def _no_such_batch(batch_id: str, param: str) -> NotFound:
    return NotFound(f"No such batch: '{shortened(batch_id)}'.", param, "batch_not_found")


async def _repeated(connection: Connection, new: NewBatch) -> str | None:
    """Returns the id of the project's batch with this idempotency key. Raises KeyReused if it is another one."""
    if new.idempotency_key is None:
        return None
    known = await rows.find_by_key(connection, new.project, new.idempotency_key)
    if known is not None and any(getattr(known, name) != getattr(new, name) for name in _SENT):
        raise KeyReused
    return None if known is None else known.id


def _retry_of(row: BatchRow, key_id: str | None, lines: Sequence[int]) -> NewBatch:
    return NewBatch(
        id=new_id("batch"),
        project=row.project,
        key_id=key_id,
        endpoint=row.endpoint,
        input_file=row.input_file,
        completion_window=row.completion_window,
        window_seconds=WINDOWS[row.completion_window],
        metadata=row.metadata,
        output_seconds=row.output_seconds,
        retry_of=row.id,
        lines=lines,
    )
