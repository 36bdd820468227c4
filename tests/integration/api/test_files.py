"""`/v1/files`, through the official client: what is there, what it holds, and what is refused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import text

from app.aio import end_tasks
from app.api.docs import schemas
from app.store.database import Database, StoreUnavailable
from app.store.files import content, expiry
from app.store.files.parts import BLOCK_BYTES
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from tests.support.api import Api
from tests.support.roles import as_role
from tests.support.stored import stored
from tests.support.waiting import until

NAMES = (
    "Screenshot 9.52.38\u202fAM.png",
    "a\xa0b.txt",
    "\u65e5\u672c\u3000.txt",
    "\U0001f469\u200d\U0001f467.png",
    "e\u0301\u202e.txt",
)
"""As macOS names screenshots, with other spaces, joined emoji, and marks."""
SIZES = (0, 1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 12_345)


def random_bytes(size: int) -> bytes:
    """Random, and always the same."""
    return random.Random(size).randbytes(size)


async def uploaded(client: openai.AsyncOpenAI, data: bytes = b"Hello!", name: str = "a.txt", **more: Any) -> Any:
    return await client.files.create(file=(name, data), purpose=more.pop("purpose", "user_data"), **more)


async def count(db: Database, table: str) -> int:
    async with db.autocommit() as connection:
        return int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar_one())


class TestFile:
    @pytest.mark.parametrize("size", SIZES)
    async def test_a_file_comes_back_byte_for_byte(self, client: openai.AsyncOpenAI, db: Database, size: int) -> None:
        data = random_bytes(size)
        made = await uploaded(client, data, "größe 1.bin")
        schemas.File.model_validate(made.model_dump(exclude_unset=True))
        assert (made.bytes, made.filename, made.purpose, made.status) == (size, "größe 1.bin", "user_data", "processed")
        assert await client.files.retrieve(made.id) == made
        assert await client.files.wait_for_processing(made.id) == made
        assert (await client.files.content(made.id)).content == data
        assert await stored(db, DEFAULT_PROJECT) == size

    async def test_a_deleted_file_is_gone_with_its_bytes(self, client: openai.AsyncOpenAI, db: Database) -> None:
        made = await uploaded(client, random_bytes(2 * BLOCK_BYTES))
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "file", True)
        assert await stored(db, DEFAULT_PROJECT) == 0
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                await call(made.id)
            assert caught.value.code == "file_not_found"

    @pytest.mark.parametrize("name", NAMES)
    async def test_a_name_has_spaces_and_signs_of_every_script(self, client: openai.AsyncOpenAI, name: str) -> None:
        assert (await uploaded(client, name=name)).filename == name
        begun = await client.uploads.create(bytes=1, filename=name, mime_type="text/plain", purpose="user_data")
        assert begun.filename == name

    @pytest.mark.parametrize("name", ["a\0b", "a\x7fb", "a\x85b", ""])
    async def test_a_name_without_a_sign_or_with_control_characters_is_refused(
        self, client: openai.AsyncOpenAI, name: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.uploads.create(bytes=1, filename=name, mime_type="text/plain", purpose="user_data")
        assert caught.value.param == "filename"

    @pytest.mark.parametrize(
        ("sent", "name"),
        [
            ("filename*=utf-8''my%20file%20%C3%B6.txt", "my file ö.txt"),  # reqwest, of Rust
            ("filename=\"=?utf-8?B?w7YudHh0?=\"; filename*=utf-8''%C3%B6.txt", "ö.txt"),  # .NET
            ("filename*=iso-8859-1'de'%F6.txt", "ö.txt"),
            ("filename=\"a.txt\"; filename*=utf-16''%00b", "a.txt"),
            ("filename=a.txt", "a.txt"),
        ],
    )
    async def test_an_extended_name_goes_before_the_plain_one(self, api: Api, sent: str, name: str) -> None:
        head = b'--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        file = f'--a\r\nContent-Disposition: form-data; name="file"; {sent}\r\n\r\nx\r\n--a--\r\n'.encode()
        headers = {"content-type": "multipart/form-data; boundary=a"}
        made = await api.client.post("/v1/files", content=head + file, headers=headers)
        assert (made.status_code, made.json().get("filename")) == (200, name), made.text

    @pytest.mark.parametrize(("encoding", "status"), [("binary", 200), ("8BIT", 200), ("base64", 415)])
    async def test_a_part_that_says_that_it_is_encoded_is_refused(self, api: Api, encoding: str, status: int) -> None:
        head = b'--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        file = (
            f"--a\r\nContent-Transfer-Encoding: {encoding}\r\n"
            'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\neA==\r\n--a--\r\n'
        )
        headers = {"content-type": "multipart/form-data; boundary=a"}
        made = await api.client.post("/v1/files", content=head + file.encode(), headers=headers)
        assert made.status_code == status, made.text

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("batch_1_output.jsonl", 'filename="batch_1_output.jsonl"'),
            ("my file (1).txt", 'filename="my file (1).txt"'),
            ("größe.txt", "filename*=UTF-8''gr%C3%B6%C3%9Fe.txt"),
            ('a"b.txt', "filename*=UTF-8''a%22b.txt"),
            ("100%.txt", "filename*=UTF-8''100%25.txt"),
        ],
    )
    async def test_an_answer_names_its_file_so_that_curl_understands_it_if_it_can(
        self, api: Api, client: openai.AsyncOpenAI, name: str, shown: str
    ) -> None:
        begun = await client.uploads.create(bytes=0, filename=name, mime_type="text/plain", purpose="user_data")
        made = (await client.uploads.complete(begun.id, part_ids=[])).file
        assert made is not None
        answer = await api.client.get(f"/v1/files/{made.id}/content")
        assert answer.headers["content-disposition"] == f"attachment; {shown}"

    async def test_a_file_that_is_no_form_is_sent_piece_by_piece(self, api: Api) -> None:
        """Without a length: nobody knows how much will come."""
        data, boundary = random_bytes(2 * BLOCK_BYTES), "xyz"
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'.encode()
        tail = f'\r\n--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--{boundary}--\r\n'

        async def body() -> Any:
            yield head
            for place in range(0, len(data), 100_000):
                yield data[place : place + 100_000]
            yield tail.encode()

        headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
        made = await api.client.post("/v1/files", content=body(), headers=headers)
        assert made.status_code == 200, made.text
        content = await api.client.get(f"/v1/files/{made.json()['id']}/content")
        assert content.content == data


class TestRange:
    async def test_ranges_are_the_bytes_that_were_asked_for(self, api: Api, client: openai.AsyncOpenAI) -> None:
        data = random_bytes(2 * BLOCK_BYTES + 77)
        url = f"/v1/files/{(await uploaded(client, data)).id}/content"
        for asked, first, stop in (
            ("bytes=0-0", 0, 1),
            ("bytes=5-", 5, len(data)),
            ("bytes=-10", len(data) - 10, len(data)),
            (f"bytes={BLOCK_BYTES - 3}-{BLOCK_BYTES + 3}", BLOCK_BYTES - 3, BLOCK_BYTES + 4),
            (f"bytes=100-{10 * len(data)}", 100, len(data)),
        ):
            answer = await api.client.get(url, headers={"range": asked})
            assert (answer.status_code, answer.content) == (206, data[first:stop])
            assert answer.headers["content-range"] == f"bytes {first}-{stop - 1}/{len(data)}"

    async def test_a_range_without_bytes_is_refused_and_what_is_no_range_is_ignored(
        self, api: Api, client: openai.AsyncOpenAI
    ) -> None:
        url = f"/v1/files/{(await uploaded(client, b'0123456789')).id}/content"
        refused = await api.client.get(url, headers={"range": "bytes=10-"})
        assert (refused.status_code, refused.headers["content-range"]) == (416, "bytes */10")
        assert refused.json()["error"]["code"] == "range_not_satisfiable"
        for ignored in ("bytes=0-1,3-4", "bytes=5-2", "lines=1-2", "bytes=-"):
            answer = await api.client.get(url, headers={"range": ignored})
            assert (answer.status_code, answer.content) == (200, b"0123456789")
        stale = await api.client.get(url, headers={"range": "bytes=0-1", "if-range": '"another"'})
        assert stale.status_code == 200

    async def test_a_head_says_how_large_the_file_is(self, api: Api, client: openai.AsyncOpenAI) -> None:
        url = f"/v1/files/{(await uploaded(client, b'0123456789')).id}/content"
        for headers in ({}, {"range": "bytes=2-3"}):
            answer = await api.client.head(url, headers=headers)
            assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "10", b"")
        assert answer.headers["accept-ranges"] == "bytes"

    async def test_a_client_that_has_the_file_is_told_so(self, api: Api, client: openai.AsyncOpenAI) -> None:
        url = f"/v1/files/{(await uploaded(client, b'0123456789')).id}/content"
        tag = (await api.client.get(url)).headers["etag"]
        for sent in (tag, f"W/{tag}", f'"another", {tag}', "*"):
            answer = await api.client.get(url, headers={"if-none-match": sent, "range": "bytes=0-1"})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
        assert (await api.client.get(url, headers={"if-none-match": '"another"'})).status_code == 200

    @pytest.mark.parametrize("data", [b"", b"0123456789"])
    async def test_a_client_that_has_all_bytes_sends_its_next_request_on_the_connection(
        self, api: Api, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, data: bytes
    ) -> None:
        read = content.read

        async def never_ends(*args: Any) -> AsyncGenerator[bytes, None]:
            async for piece in read(*args):
                yield piece
            await asyncio.Event().wait()

        made = await uploaded(client, data)
        monkeypatch.setattr(content, "read", never_ends)
        for _ in range(3):
            assert (await api.client.get(f"/v1/files/{made.id}/content")).content == data
            assert (await api.client.get("/health/live")).status_code == 200


class TestList:
    async def test_pages_follow_order_and_purpose(self, client: openai.AsyncOpenAI) -> None:
        made = [await uploaded(client, purpose=purpose) for purpose in ("batch", "vision", "batch", "user_data")]
        ids = [file.id for file in made]
        assert [file.id async for file in client.files.list()] == ids[::-1]
        assert [file.id async for file in client.files.list(order="asc", limit=1)] == ids
        assert [file.id async for file in client.files.list(purpose="batch", limit=1)] == [ids[2], ids[0]]
        page = await client.files.list(after=ids[2], limit=1)
        assert ([file.id for file in page.data], page.has_more) == ([ids[1]], True)

    @pytest.mark.parametrize(
        ("query", "named"),
        [("limit=0", "limit"), ("limit=10001", "limit"), ("after=no", "after"), ("purpose=evals", "purpose")],
    )
    async def test_a_bad_query_is_named(self, api: Api, query: str, named: str) -> None:
        answer = await api.client.get(f"/v1/files?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, named)


class TestRefused:
    @pytest.mark.parametrize("purpose", ["assistants", "fine-tune", "evals", "batch_output", "other", ""])
    async def test_other_purposes_are_refused_by_name(
        self, client: openai.AsyncOpenAI, db: Database, purpose: Any
    ) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await uploaded(client, purpose=purpose)
        assert caught.value.param == "purpose"
        assert await count(db, "file_parts") == 0

    @pytest.mark.parametrize(
        ("expiry", "named"),
        [
            ({"anchor": "created_at", "seconds": 3599}, "expires_after.seconds"),
            ({"anchor": "created_at", "seconds": 2_592_001}, "expires_after.seconds"),
            ({"anchor": "created_at", "seconds": "soon"}, "expires_after.seconds"),
            ({"anchor": "last_active_at", "seconds": 3600}, "expires_after.anchor"),
            ({"seconds": 3600}, "expires_after.anchor"),
        ],
    )
    async def test_a_bad_expiry_is_named(self, client: openai.AsyncOpenAI, expiry: Any, named: str) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await uploaded(client, expires_after=expiry)
        assert caught.value.param == named

    async def test_bad_forms_are_refused_and_leave_nothing(self, api: Api, db: Database) -> None:
        async def refused(**request: Any) -> tuple[int, str | None, str]:
            answer = await api.client.post("/v1/files", **request)
            error = answer.json()["error"]
            return answer.status_code, error["param"], error["code"]

        file, purpose = {"file": ("a", b"x")}, {"purpose": "batch"}
        assert await refused(json={}) == (415, None, "unsupported_media_type")
        assert await refused(data=purpose, files={"data": b"x"}) == (400, "data", "unknown_parameter")
        assert await refused(files=file) == (400, "purpose", "missing_required_parameter")
        twice = [("file", ("a", b"x")), ("file", ("b", b"y"))]
        assert await refused(data=purpose, files=twice) == (400, "file", "invalid_value")
        assert await refused(data={**purpose, "more": "1"}, files=file) == (400, "more", "unknown_parameter")
        assert await refused(data={"purpose": "x" * 2000}, files=file) == (400, "purpose", "string_above_max_length")
        form = {"content-type": "multipart/form-data; boundary=a"}
        only_purpose = b'--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--a--\r\n'
        assert await refused(content=only_purpose, headers=form) == (400, "file", "missing_required_parameter")
        for body in (b"", b"no form", only_purpose[:-8], b"--b" + only_purpose):
            assert await refused(content=body, headers=form) == (400, None, "invalid_form")
        assert await refused(content=b"", headers={"content-type": "multipart/form-data"}) == (
            400,
            None,
            "invalid_form",
        )
        assert (await count(db, "files"), await stored(db, DEFAULT_PROJECT)) == (0, 0)

    async def test_a_file_that_is_too_large_is_refused_by_its_head(self, api: Api) -> None:
        """Nobody sends 600 MB to learn that."""
        host, port = api.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Length: {600 * 1024**2}\r\n"
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=a\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()

    async def test_ids_that_nobody_has_are_not_found(self, api: Api) -> None:
        for file_id in ("file_none", "%00", "a" * 3000):
            url = f"/v1/files/{file_id}"
            answers = [
                await api.client.get(url),
                await api.client.get(f"{url}/content"),
                await api.client.delete(url),
            ]
            assert {answer.status_code for answer in answers} == {404}


class TestInterrupted:
    async def test_a_cut_upload_is_never_seen_and_leaves_nothing(
        self, api: Api, client: openai.AsyncOpenAI, db: Database
    ) -> None:
        head = b'--a\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        begun = asyncio.Event()

        async def body() -> Any:
            yield head + random_bytes(2 * BLOCK_BYTES)
            begun.set()
            await asyncio.sleep(3600)

        headers = {"content-type": "multipart/form-data; boundary=a"}
        sending = asyncio.create_task(api.client.post("/v1/files", content=body(), headers=headers))

        async def has_blocks() -> bool:
            return await count(db, "file_blocks") > 0

        await until(has_blocks)
        assert [file.id async for file in client.files.list()] == []
        await end_tasks(sending)

        async def is_dropped() -> bool:
            async with db.autocommit() as connection:
                states = (await connection.execute(text("SELECT state FROM file_parts"))).scalars().all()
            return states == ["dropped"]

        await until(is_dropped)
        assert await stored(db, DEFAULT_PROJECT) == 0

    async def test_a_file_that_is_deleted_while_it_is_read_ends_early(
        self, api: Api, client: openai.AsyncOpenAI, db: Database
    ) -> None:
        """The client sees that bytes are missing: it never takes a part of a file for all of it."""
        made = await uploaded(client, random_bytes(20 * BLOCK_BYTES))
        with pytest.raises(httpx.TransportError):
            async with api.client.stream("GET", f"/v1/files/{made.id}/content") as answer:
                pieces = answer.aiter_bytes()
                await anext(pieces)
                await client.files.delete(made.id)
                await expiry.delete_dropped(as_role(db, MAINTENANCE))
                async for _ in pieces:
                    pass
        assert await count(db, "file_blocks") == 0

    async def test_a_file_that_is_read_while_postgres_goes_away_ends_early(
        self, api: Api, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(*_: Any) -> AsyncGenerator[bytes, None]:
            yield b"a" * 1000
            raise StoreUnavailable

        made = await uploaded(client, random_bytes(BLOCK_BYTES))
        monkeypatch.setattr(content, "_read_part", broken)
        with pytest.raises(httpx.TransportError):
            await api.client.get(f"/v1/files/{made.id}/content")
        assert "crashed" not in caplog.text
