"""`/v1/uploads`, through the official client: files that come in parts."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.api.docs import schemas
from app.store.database import Database
from app.store.files import expiry
from app.store.files.parts import BLOCK_BYTES
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from tests.integration.api.test_files import count, random_bytes
from tests.support.api import Api
from tests.support.roles import as_role
from tests.support.stored import stored

SIZES = (BLOCK_BYTES + 5, 1, 2 * BLOCK_BYTES, 77)


async def begun(client: openai.AsyncOpenAI, size: int, **more: Any) -> Any:
    fields = {"filename": "a.bin", "mime_type": "application/octet-stream", "purpose": "user_data", **more}
    return await client.uploads.create(bytes=size, **fields)


async def part(client: openai.AsyncOpenAI, upload: Any, data: bytes) -> str:
    made = await client.uploads.parts.create(upload.id, data=data)
    schemas.UploadPart.model_validate(made.model_dump())
    assert made.upload_id == upload.id
    return made.id


async def sql(db: Database, statement: str) -> None:
    async with db.autocommit() as connection:
        await connection.execute(text(statement))


class TestUpload:
    async def test_parts_become_a_file_in_the_order_of_the_end(self, client: openai.AsyncOpenAI, db: Database) -> None:
        pieces = [random_bytes(size) for size in SIZES]
        data = b"".join(pieces)
        upload = await begun(client, len(data), expires_after={"anchor": "created_at", "seconds": 3600})
        schemas.Upload.model_validate(upload.model_dump())
        assert (upload.status, upload.file, upload.expires_at - upload.created_at) == ("pending", None, 3600)
        ids = await asyncio.gather(*(part(client, upload, piece) for piece in reversed(pieces)))
        wrong = await part(client, upload, b"not in the file")
        assert [file.id async for file in client.files.list()] == []
        done = await client.uploads.complete(upload.id, part_ids=ids[::-1], md5=hashlib.md5(data).hexdigest())
        assert done.status == "completed" and done.file is not None and wrong not in ids
        assert (done.file.bytes, done.file.filename) == (len(data), "a.bin")
        assert done.file.expires_at is not None and done.file.expires_at - done.file.created_at == 3600
        assert (await client.files.content(done.file.id)).content == data
        assert await stored(db, DEFAULT_PROJECT) == len(data)
        assert await client.uploads.complete(upload.id, part_ids=ids[::-1]) == done, "whose answer was lost"
        await client.files.delete(done.file.id)
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        assert (await stored(db, DEFAULT_PROJECT), await count(db, "file_blocks")) == (0, 0)

    async def test_a_cancelled_upload_takes_nothing_more_and_stores_nothing(
        self, client: openai.AsyncOpenAI, db: Database
    ) -> None:
        upload = await begun(client, 3)
        sent = await part(client, upload, b"abc")
        assert (await client.uploads.cancel(upload.id)).status == "cancelled"
        assert await stored(db, DEFAULT_PROJECT) == 0
        for call in (
            client.uploads.cancel(upload.id),
            client.uploads.complete(upload.id, part_ids=[sent]),
            client.uploads.parts.create(upload.id, data=b"abc"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await call
            assert caught.value.code == "upload_cancelled"

    async def test_an_upload_expires_with_its_parts(self, client: openai.AsyncOpenAI, db: Database) -> None:
        upload = await begun(client, 3)
        sent = await part(client, upload, b"abc")
        await sql(db, "UPDATE uploads SET expires_at = now()")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.uploads.complete(upload.id, part_ids=[sent])
        assert caught.value.code == "upload_expired"
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        assert (await stored(db, DEFAULT_PROJECT), await count(db, "file_parts")) == (0, 0)
        await sql(db, "UPDATE uploads SET expires_at = now() - interval '2 days'")
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        assert await count(db, "uploads") == 0

    async def test_what_does_not_fit_together_is_refused_and_changes_nothing(self, client: openai.AsyncOpenAI) -> None:
        upload = await begun(client, 6)
        first, second = await part(client, upload, b"abc"), await part(client, upload, b"def")
        other = await part(client, await begun(client, 3), b"abc")
        for ids, more, named, code in (
            ([first], {}, "part_ids", "size_mismatch"),
            ([first, first], {}, "part_ids", "invalid_value"),
            ([first, other], {}, "part_ids[1]", "part_not_found"),
            ([first, "part_none"], {}, "part_ids[1]", "part_not_found"),
            ([first, second], {"md5": "0" * 32}, "md5", "checksum_mismatch"),
            ([first, second], {"md5": "no"}, "md5", "invalid_value"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.uploads.complete(upload.id, part_ids=ids, **more)
            assert (caught.value.param, caught.value.code) == (named, code)
        assert (await client.uploads.complete(upload.id, part_ids=[second, first])).status == "completed"

    async def test_bad_fields_are_named(self, api: Api) -> None:
        good = {"bytes": 1, "filename": "a", "mime_type": "text/plain", "purpose": "batch"}
        for change, named in (
            ({"bytes": -1}, "bytes"),
            ({"bytes": 8 * 1024**3 + 1}, "bytes"),
            ({"filename": ""}, "filename"),
            ({"filename": "a\0"}, "filename"),
            ({"purpose": "evals"}, "purpose"),
            ({"mime_type": None}, "mime_type"),
            ({"more": 1}, "more"),
        ):
            answer = await api.client.post("/v1/uploads", json={**good, **change})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, named)
