"""Every method of `client.files`, `client.uploads` and `client.batches`: strict types, pages, raw answers, errors.

The shapes of `/docs` are those of the same answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch, FileDeleted, FileObject, Upload
from openai.types.uploads import UploadPart
from pydantic import BaseModel

from app.api.docs import schemas
from tests.support.batches import Carried, created, ended, line, uploaded
from tests.support.player import Player, ids
from tests.support.sdk import check
from tests.support.waiting import until

NEW_UPLOAD: dict[str, Any] = {"bytes": 6, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
EXPIRING: Any = {"anchor": "created_at", "seconds": 3600}


def same(kind: type[BaseModel], shape: Any, raw: Any) -> Any:
    """Checks an answer against the package's type and the shape in `/docs`; returns it as the package reads it."""
    check(kind, raw.content)
    shape.model_validate(json.loads(raw.content))
    assert raw.request_id is not None
    return raw.parse()


async def test_answers_of_files_are_of_their_types_and_content_streams_to_a_file(
    client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    files, made_before = client.files.with_raw_response, []
    for purpose, expiry in (("user_data", openai.omit), ("batch", EXPIRING), ("vision", EXPIRING)):
        raw = await files.create(file=("a.txt", b"Hello!"), purpose=purpose, expires_after=expiry)  # type: ignore[arg-type]
        made = same(FileObject, schemas.File, raw)
        assert same(FileObject, schemas.File, await files.retrieve(made.id)) == made
        made_before.append(made.id)
    orders: list[tuple[Any, list[str]]] = [("asc", made_before), ("desc", made_before[::-1])]
    for order, expected in orders:
        assert [each.id async for each in client.files.list(limit=2, order=order)] == expected
    check_page(FileObject, schemas.FileList, await files.list())
    assert same(FileDeleted, schemas.FileDeleted, await files.delete(made.id)).deleted
    data = b"0123456789" * 30_000
    large = await uploaded(client, data, purpose="user_data")
    async with client.files.with_streaming_response.content(large) as answer:
        assert answer.headers["content-length"] == str(len(data))
        await answer.stream_to_file(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    part = await client.files.content(large, extra_headers={"Range": "bytes=3-5"})
    assert (part.content, part.response.status_code) == (b"345", 206)


async def test_answers_of_uploads_are_of_their_types_and_the_client_sends_bytes_and_paths_in_parts(
    client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    uploads = client.uploads.with_raw_response
    made = same(Upload, schemas.Upload, await uploads.create(**NEW_UPLOAD, expires_after=EXPIRING))
    sent = await client.uploads.parts.with_raw_response.create(made.id, data=b"Hello!")
    part = same(UploadPart, schemas.UploadPart, sent)
    whole = same(Upload, schemas.Upload, await uploads.complete(made.id, part_ids=[part.id]))
    other = await client.uploads.create(**NEW_UPLOAD)
    assert same(Upload, schemas.Upload, await uploads.cancel(other.id)).status == "cancelled"
    (tmp_path / "a.jsonl").write_bytes(line("a") + b"\n")
    by_path = await client.uploads.upload_file_chunked(
        file=tmp_path / "a.jsonl", mime_type="application/jsonl", purpose="batch"
    )
    by_bytes = await client.uploads.upload_file_chunked(
        file=b"Hello!", filename="b.txt", bytes=6, mime_type="text/plain", purpose="user_data", part_size=4
    )
    for done, data in ((whole, b"Hello!"), (by_path, line("a") + b"\n"), (by_bytes, b"Hello!")):
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == data


class TestBatches:
    async def test_a_batch_is_of_its_type_in_every_status(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Any
    ) -> None:
        raw = client.batches.with_raw_response
        file = await uploaded(client, *(line(str(number)) for number in range(3)))
        made = same(
            Batch,
            schemas.Batch,
            await raw.create(
                input_file_id=file,
                endpoint="/v1/responses",
                completion_window="24h",
                metadata={"a": "b"},
                output_expires_after=EXPIRING,
            ),
        )
        bad = await created(client, [b"{"])
        cancelled = await created(client, [line("a")])
        assert same(Batch, schemas.Batch, await raw.cancel(cancelled.id)).status == "cancelling"
        seen = {"validating", "cancelling"}

        async def look(batch_id: str, *statuses: str) -> Any:
            batch = same(Batch, schemas.Batch, await raw.retrieve(batch_id))
            seen.add(batch.status)
            return batch if batch.status in statuses else None

        async with carried.on():
            await until(lambda: look(made.id, "in_progress"), what="it runs")
            await until(lambda: look(bad.id, "failed"), what="it has failed")
            await until(lambda: look(cancelled.id, "cancelled"), what="it is cancelled")

            async def begun() -> bool:
                return len(await ids(db)) == 3

            await until(begun, what="all lines are responses")
            await (await player.begin((await ids(db))[0])).failed("server_error", "It broke.")
            async with player.at_work("Hello"):
                done = await until(lambda: look(made.id, "completed"), what="it has ended")
        assert done.output_file_id is not None and done.error_file_id is not None
        for file_id in (done.output_file_id, done.error_file_id):
            file = same(FileObject, schemas.File, await client.files.with_raw_response.retrieve(file_id))
            assert (file.purpose, file.expires_at - file.created_at) == ("batch_output", 3600)  # type: ignore[attr-defined]
        assert seen >= {"validating", "in_progress", "completed", "failed", "cancelling", "cancelled"}
        check_page(Batch, schemas.BatchList, await raw.list())

    async def test_an_expired_batch_is_of_its_type_and_results_stream_through_the_client(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Any
    ) -> None:
        """Results are an extension: the path that docs/batches.md shows."""
        made = await created(client, [line("a")])
        async with carried.on():
            await ended(client, made.id, "in_progress")
            async with db.begin() as connection:
                await connection.exec_driver_sql("UPDATE batches SET due_at = now()")
            await ended(client, made.id, "expired")
            raw = await client.batches.with_raw_response.retrieve(made.id)
            assert same(Batch, schemas.Batch, raw).expired_at is not None
            async with player.at_work("Hello"):
                made = await created(client, [line("a"), line("b")])
                await ended(client, made.id)
        text = await client.get(f"/batches/{made.id}/results", cast_to=str, options={"params": {"after": 1}})
        last, end = map(json.loads, text.splitlines())
        assert (last["number"], end["batch"]["status"]) == (2, "completed")


def check_page(kind: type[BaseModel], shape: Any, raw: Any) -> None:
    page = json.loads(raw.content)
    shape.model_validate(page)
    for each in page["data"]:
        check(kind, each)
    assert [page["first_id"], page["last_id"]] == [page["data"][0]["id"], page["data"][-1]["id"]]


Call = Callable[[openai.AsyncOpenAI], Any]
BATCH: Any = {"input_file_id": "file_none", "endpoint": "/v1/responses", "completion_window": "24h"}


ERRORS: list[tuple[Call, type[openai.APIStatusError], str | None]] = [
    (lambda client: client.files.retrieve("file_none"), openai.NotFoundError, None),
    (lambda client: client.files.content("file_none"), openai.NotFoundError, None),
    (lambda client: client.files.delete("file_none"), openai.NotFoundError, None),
    (lambda client: client.files.list(after="file_none"), openai.BadRequestError, "after"),
    (lambda client: client.files.create(file=b"x", purpose="evals"), openai.BadRequestError, "purpose"),
    (lambda client: client.uploads.cancel("upload_none"), openai.NotFoundError, None),
    (lambda client: client.uploads.complete("upload_none", part_ids=[]), openai.NotFoundError, None),
    (lambda client: client.uploads.parts.create("upload_none", data=b"x"), openai.NotFoundError, None),
    (lambda client: client.uploads.create(**{**NEW_UPLOAD, "bytes": -1}), openai.BadRequestError, "bytes"),
    (lambda client: client.batches.retrieve("batch_none"), openai.NotFoundError, "batch_id"),
    (lambda client: client.batches.cancel("batch_none"), openai.NotFoundError, "batch_id"),
    (lambda client: client.batches.list(after="batch_none"), openai.BadRequestError, "after"),
    (lambda client: client.batches.list(limit=101), openai.BadRequestError, "limit"),
    (lambda client: client.batches.create(**BATCH), openai.BadRequestError, "input_file_id"),
    (lambda client: client.batches.create(**BATCH | {"endpoint": "/v1/x"}), openai.BadRequestError, "endpoint"),
]


async def test_an_error_is_of_the_packages_class_and_names_its_field(client: openai.AsyncOpenAI) -> None:
    for number, (call, error, param) in enumerate(ERRORS):
        with pytest.raises(error) as caught:
            await call(client)
        assert (caught.value.param, caught.value.request_id is not None) == (param, True), number
        assert caught.value.code is not None
