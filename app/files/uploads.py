"""The rules of `/v1/uploads`, without HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from app.files.errors import no_such_upload, part_gone
from app.files.service import IsLimited, dropped_on_errors
from app.heavy import off_loop
from app.ids import may_exist, new_file_id, new_part_id, new_upload_id
from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.files import MAX_PARTS, MAX_UPLOAD_BYTES, CompleteUpload, CreateUpload
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.database import Database
from app.store.files import content, files, uploads
from app.store.files.parts import PartWriter
from app.store.files.rows import NewFile, UploadRow


class UploadService:
    """What a client can do with uploads. Every method raises StoreUnavailable while Postgres cannot be reached.

    Every method that takes an `upload_id` raises NotFound if there is no such upload, and InvalidRequest if it has
    ended.
    """

    def __init__(self, db: Database, is_limited: IsLimited) -> None:
        self._db = db
        self._is_limited = is_limited

    async def create(self, project: str, request: CreateUpload) -> Json:
        expiry = request.expires_after
        seconds = None if expiry is None else expiry.seconds
        new = NewFile(new_upload_id(), request.filename, request.purpose, seconds)
        return (await uploads.create(self._db, project, new, request.bytes)).as_object(None)

    @asynccontextmanager
    async def receiving(self, project: str, upload_id: str, announced: int | None) -> AsyncIterator[PartWriter]:
        """Yields what the bytes of a part are written to, as `FileService.receiving`."""
        if not may_exist(upload_id):
            raise no_such_upload(upload_id)
        writer = PartWriter(self._db, project, new_part_id(), is_limited=await self._is_limited(project))
        if not await writer.open(announced, upload_id, _check_room):
            raise no_such_upload(upload_id)
        async with dropped_on_errors(writer):
            yield writer

    async def add(self, writer: PartWriter, upload_id: str) -> Json:
        """Returns the part of what was written."""
        created_at = await writer.finish()
        created = int(created_at.timestamp())
        return {"id": writer.id, "object": "upload.part", "created_at": created, "upload_id": upload_id}

    async def complete(self, project: str, upload_id: str, request: CompleteUpload) -> Json:
        """Returns the upload with its file. A repetition is answered as the first time."""
        upload = await self._get(project, upload_id)
        if upload.status == "completed" and upload.file_id is not None:
            return await self._completed(project, upload, request)
        _check_pending(upload)
        parts = await uploads.finished_parts(self._db, project, upload_id)
        check = partial(_check_parts, request.part_ids)
        check(upload, parts)
        new = NewFile(new_file_id(), upload.filename, upload.purpose, upload.expires_after_seconds)
        if request.md5 is not None:
            try:
                await self._check_md5(project, request, parts)
            except content.FileGone:
                raise part_gone() from None
        made = await uploads.complete(self._db, project, upload_id, request.part_ids, new, check)
        if made is None:
            raise no_such_upload(upload_id)
        return (await self._get(project, upload_id)).as_object(made)

    async def cancel(self, project: str, upload_id: str) -> Json:
        """Returns the upload, which takes no more parts and loses those that it had."""
        if not may_exist(upload_id) or await uploads.cancel(self._db, project, upload_id, _check_pending) is None:
            raise no_such_upload(upload_id)
        return (await self._get(project, upload_id)).as_object(None)

    async def _get(self, project: str, upload_id: str) -> UploadRow:
        row = await uploads.get(self._db, project, upload_id) if may_exist(upload_id) else None
        if row is None:
            raise no_such_upload(upload_id)
        return row

    async def _completed(self, project: str, upload: UploadRow, request: CompleteUpload) -> Json:
        """Clients repeat a request whose answer was lost."""
        assert upload.file_id is not None
        file = await files.get(self._db, project, upload.file_id)
        if file is not None and await uploads.order_of(self._db, project, file.id) != request.part_ids:
            _check_pending(upload)
        return upload.as_object(file)

    async def _check_md5(self, project: str, request: CompleteUpload, parts: Mapping[str, int]) -> None:
        assert request.md5 is not None
        digest = hashlib.md5(usedforsecurity=False)
        sizes = {part_id: parts[part_id] for part_id in request.part_ids}
        async for block in content.read_parts(self._db, project, sizes):
            await off_loop(partial(digest.update, block), len(block))
        if digest.hexdigest() != request.md5.lower():
            message = f"Invalid 'md5': the parts, in this order, have the checksum '{digest.hexdigest()}'."
            raise InvalidRequest(message, "md5", "checksum_mismatch")


def _check_pending(upload: UploadRow) -> None:
    status = upload.as_object(None)["status"]
    if status != "pending":
        raise InvalidRequest(f"The upload is {status}: it takes nothing more.", code=f"upload_{status}")


def _check_room(upload: UploadRow, count: int, size: int) -> None:
    """Parts may be sent again, so together they may have more bytes than the file."""
    _check_pending(upload)
    if count >= MAX_PARTS or size > MAX_UPLOAD_BYTES:
        message = f"An upload may have {MAX_PARTS} parts and {MAX_UPLOAD_BYTES} bytes of them, and this one has."
        raise InvalidRequest(message, code="upload_too_large")


def _check_parts(part_ids: Sequence[str], upload: UploadRow, parts: Mapping[str, int]) -> None:
    _check_pending(upload)
    for index, part_id in enumerate(part_ids):
        where = f"part_ids[{index}]"
        if part_id not in parts:
            message = f"Invalid '{where}': the upload has no complete part '{shortened(part_id)}'."
            raise InvalidRequest(message, where, "part_not_found")
    if len(set(part_ids)) < len(part_ids):
        raise InvalidRequest("Invalid 'part_ids': a part may come once.", "part_ids", "invalid_value")
    if (size := sum(parts[part_id] for part_id in part_ids)) != upload.bytes:
        message = (
            f"Invalid 'part_ids': the parts have {size} bytes together, but the upload was to have {upload.bytes}."
        )
        raise InvalidRequest(message, "part_ids", "size_mismatch")
