"""The rules of `/v1/files`, without HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from app.files.errors import file_in_use, no_such_file, part_gone
from app.ids import new_id
from app.protocol.requests.bodies.files import CreateFile
from app.protocol.types import Json
from app.store.database import Database, StoreUnavailable
from app.store.files import content, files
from app.store.files.files import FileInUse
from app.store.files.parts import PartGone, PartWriter
from app.store.files.rows import FileRow, NewFile
from app.store.responses.lookup import Hold

IsLimited = Callable[[str], Awaitable[bool]]
"""Whether a project has limits."""


class FileService:
    """What a client can do with files. Every method raises StoreUnavailable while Postgres cannot be reached.

    Every method that takes a `file_id` raises NotFound if there is no such file.
    """

    def __init__(self, db: Database, is_limited: IsLimited) -> None:
        self._db = db
        self._is_limited = is_limited

    @asynccontextmanager
    async def receiving(self, project: str, announced: int | None) -> AsyncIterator[PartWriter]:
        """Yields what the bytes of a new file are written to; `announced` is the most that will come, if it is known.

        Raises LimitReached. Nothing is left if the block raises; what a killed process leaves, maintenance finds.
        """
        writer = PartWriter(self._db, project, new_id("part"), is_limited=await self._is_limited(project))
        await writer.open(announced)
        try:
            yield writer
        except Exception as error:
            with suppress(StoreUnavailable):
                await writer.drop()
            if isinstance(error, PartGone):
                raise part_gone() from None
            raise

    async def create(self, writer: PartWriter, request: CreateFile) -> Json:
        """Returns the file of what was written."""
        expiry = request.expires_after
        new = NewFile(new_id("file"), request.filename, request.purpose, None if expiry is None else expiry.seconds)
        return (await writer.finish_file(new)).as_object()

    async def get(self, project: str, file_id: str) -> FileRow:
        row = await files.get(self._db, project, file_id)
        if row is None:
            raise no_such_file(file_id)
        return row

    async def delete(self, project: str, file_id: str) -> Json:
        """Raises InvalidRequest for a file that an unfinished batch reads."""
        try:
            is_deleted = await files.delete(self._db, project, file_id)
        except FileInUse:
            raise file_in_use() from None
        if not is_deleted:
            raise no_such_file(file_id)
        return {"id": file_id, "object": "file", "deleted": True}

    def read(self, project: str, file_id: str, first: int, stop: int, hold: Hold) -> AsyncGenerator[bytes, None]:
        """Yields the bytes from `first` to before `stop`, up to 1 MiB at a time, once `hold` has room for each.

        Raises FileGone if the file is deleted meanwhile.
        """
        return content.read(self._db, project, file_id, first, stop, hold)
