"""`/v1/files`, through the official client: what is there, what it holds, and what is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import httpx
import openai
import psutil
import pytest
from python_multipart.multipart import MultipartParser
from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import Scope
from app.aio import end_tasks
from app.api import holdings
from app.api.docs import schemas
from app.api.files import forms
from app.api.holdings import ProcessBounds
from app.ids import new_id
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.files import expiry
from app.store.files.parts import BLOCK_BYTES, PartWriter
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from tests.integration.api.common import change, count
from tests.support.api import Api, serving, uploaded
from tests.support.api_process import ApiProcess
from tests.support.roles import as_role
from tests.support.stored import counted, stored
from tests.support.tenants import Tenant, as_caller, tenant
from tests.support.waiting import until

Client = openai.AsyncOpenAI

NAMES = (
    "Screenshot 9.52.38\u202fAM.png",
    "a\xa0b.txt",
    "\u65e5\u672c\u3000.txt",
    "\U0001f469\u200d\U0001f467.png",
    "e\u0301\u202e.txt",
)
"""As macOS names screenshots, with other spaces, joined emoji, and marks."""
SIZES = (0, 1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 12_345)
FORM = {"content-type": "multipart/form-data; boundary=a"}
HEAD = b'--a\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
TAIL = b'\r\n--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--a--\r\n'
PURPOSE = b'--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
_MANY_PARTS = (
    """INSERT INTO file_parts (id, project, file_id, start, bytes, state)
        SELECT 'part_' || n, :project, :file, 3 * n, 3, 'finished'
        FROM generate_series(0, CAST(:parts AS int) - 1) n""",
    """INSERT INTO file_blocks (part_id, number, data)
        SELECT 'part_' || n, 0, convert_to(to_char(n % 1000, 'FM000'), 'UTF8')
        FROM generate_series(0, CAST(:parts AS int) - 1) n""",
    "UPDATE files SET bytes = 3 * CAST(:parts AS int) WHERE id = :file AND project = :project",
)
"""Makes an empty file one of so many parts, of three bytes each."""
MEMORY_BYTES = 64 * 2**20
"""The most that an upload of any size may take."""


def random_bytes(size: int) -> bytes:
    """Random, and always the same."""
    return random.Random(size).randbytes(size)


async def disposed(api: Api, disposition: str, headers: str = "") -> httpx.Response:
    """Sends a file with this disposition."""
    file = f'--a\r\n{headers}Content-Disposition: form-data; name="file"; {disposition}\r\n\r\neA==\r\n--a--\r\n'
    return await api.client.post("/v1/files", content=PURPOSE + file.encode(), headers=FORM)


async def named(api: Api, name: str) -> httpx.Response:
    return await disposed(api, f"filename*=utf-8''{quote(name)}")


def form(blocks: int, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """A form with a file of so many MiB; with `then` it waits for that before the end."""

    async def body() -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(blocks):
            yield b"x" * BLOCK_BYTES
        if then is not None:
            await then.wait()
        yield TAIL

    return body()


class TestFile:
    async def test_a_file_comes_back_byte_for_byte_until_it_is_deleted(self, client: Client, db: Database) -> None:
        total = 0
        for size in SIZES:
            data = random_bytes(size)
            made = await uploaded(client, data, "größe 1.bin")
            schemas.File.model_validate(made.model_dump(exclude_unset=True))
            assert (made.bytes, made.filename, made.purpose) == (size, "größe 1.bin", "user_data")
            assert made.status == "processed"
            assert await client.files.retrieve(made.id) == made == await client.files.wait_for_processing(made.id)
            assert (await client.files.content(made.id)).content == data
            total += counted(size, "größe 1.bin")
            assert await stored(db, DEFAULT_PROJECT) == total
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "file", True)
        assert await stored(db, DEFAULT_PROJECT) == total - counted(size, "größe 1.bin")
        for call in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError) as caught:
                await call(made.id)
            assert caught.value.code == "file_not_found"

    async def test_a_name_has_spaces_and_signs_of_every_script_and_no_control_characters(
        self, api: Api, client: Client
    ) -> None:
        for name in NAMES:
            assert (await uploaded(client, name=name)).filename == name
        for name in ("a\0b", "a\x7fb", "a\x85b", ""):
            refused = await named(api, name)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "filename")
        for name, shown in (  # So that curl understands it if it can.
            ("my file (1).txt", 'filename="my file (1).txt"'),
            ("größe.txt", "filename*=UTF-8''gr%C3%B6%C3%9Fe.txt"),
            ('a"b.txt', "filename*=UTF-8''a%22b.txt"),
            ("100%.txt", "filename*=UTF-8''100%25.txt"),
        ):
            made = (await named(api, name)).json()
            answer = await api.client.get(f"/v1/files/{made['id']}/content")
            assert answer.headers["content-disposition"] == f"attachment; {shown}"

    async def test_forms_of_every_client_are_read(self, api: Api) -> None:
        for sent, name in (  # The extended name goes before the plain one.
            ("filename*=utf-8''my%20file%20%C3%B6.txt", "my file ö.txt"),  # reqwest, of Rust
            ("filename=\"=?utf-8?B?w7YudHh0?=\"; filename*=utf-8''%C3%B6.txt", "ö.txt"),  # .NET
            ("filename*=iso-8859-1'de'%F6.txt", "ö.txt"),
            ("filename=\"a.txt\"; filename*=utf-16''%00b", "a.txt"),
            ("filename=a.txt", "a.txt"),
        ):
            made = await disposed(api, sent)
            assert (made.status_code, made.json().get("filename")) == (200, name), made.text
        for encoding, status in (("binary", 200), ("8BIT", 200), ("base64", 415)):
            made = await disposed(api, 'filename="a"', f"Content-Transfer-Encoding: {encoding}\r\n")
            assert made.status_code == status, made.text

        data = random_bytes(2 * BLOCK_BYTES)

        async def body() -> Any:  # Without a length: nobody knows how much will come.
            yield HEAD
            for place in range(0, len(data), 100_000):
                yield data[place : place + 100_000]
            yield b"\r\n" + PURPOSE + b"--a--\r\n"

        made = await api.client.post("/v1/files", content=body(), headers=FORM)
        assert made.status_code == 200, made.text
        assert (await api.client.get(f"/v1/files/{made.json()['id']}/content")).content == data

    async def test_a_form_is_parsed_beside_the_loop_and_its_boundary_is_bounded(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        threads, write = set[str](), MultipartParser.write

        def noted(self: MultipartParser, data: bytes) -> int:
            threads.add(threading.current_thread().name)
            return write(self, data)

        monkeypatch.setattr(MultipartParser, "write", noted)
        almost = b"\r\n--a-" * 50_000
        made = await api.client.post("/v1/files", content=HEAD + almost + TAIL, headers=FORM)
        assert made.json()["bytes"] == len(almost)
        assert threads and "MainThread" not in threads
        long = {"content-type": f"{FORM['content-type']}; x={'y' * 60_000}"}
        refused = await api.client.post("/v1/files", content=HEAD + TAIL, headers=long)
        assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert "'Content-Type' has 60035 characters; it may have 512. Choose a shorter boundary." in refused.text
        long = {"content-type": f"multipart/form-data; boundary={'a' * 257}"}
        refused = await api.client.post("/v1/files", content=HEAD + TAIL, headers=long)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_form")
        assert refused.json()["error"]["message"] == "The boundary of the form has 257 bytes; it may have 256."


class TestContent:
    async def test_ranges_are_the_bytes_that_were_asked_for(self, api: Api, client: Client) -> None:
        """tests/unit/api/files has each way to write one."""
        data = random_bytes(2 * BLOCK_BYTES + 77)
        url = f"/v1/files/{(await uploaded(client, data)).id}/content"
        for asked, first, stop in (
            ("bytes=0-0", 0, 1),
            ("bytes=5-", 5, len(data)),
            ("bytes=-10", len(data) - 10, len(data)),
            (f"bytes={BLOCK_BYTES - 3}-{BLOCK_BYTES + 3}", BLOCK_BYTES - 3, BLOCK_BYTES + 4),
        ):
            answer = await api.client.get(url, headers={"range": asked})
            assert (answer.status_code, answer.content) == (206, data[first:stop])
            assert answer.headers["content-range"] == f"bytes {first}-{stop - 1}/{len(data)}"
        refused = await api.client.get(url, headers={"range": f"bytes={len(data)}-"})
        assert (refused.status_code, refused.headers["content-range"]) == (416, f"bytes */{len(data)}")
        assert refused.json()["error"]["code"] == "range_not_satisfiable"

    async def test_the_headers_of_a_get_and_a_head_are_heeded(self, api: Api, client: Client) -> None:
        url = f"/v1/files/{(await uploaded(client, b'0123456789')).id}/content"
        tag = (await api.client.get(url)).headers["etag"]
        for headers in ({"range": "bytes=0-1,3-4"}, {"range": "bytes=0-1", "if-range": '"another"'}):
            answer = await api.client.get(url, headers=headers)
            assert (answer.status_code, answer.content) == (200, b"0123456789")
        for headers in ({}, {"range": "bytes=2-3"}):
            answer = await api.client.head(url, headers=headers)
            assert (answer.status_code, answer.headers["content-length"], answer.content) == (200, "10", b"")
            assert answer.headers["accept-ranges"] == "bytes"
        for sent in (tag, f"W/{tag}", f'"another", {tag}', "*"):
            answer = await api.client.get(url, headers={"if-none-match": sent, "range": "bytes=0-1"})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", tag)
        assert (await api.client.get(url, headers={"if-none-match": '"another"'})).status_code == 200

    async def test_a_file_of_many_parts_is_read_whole_and_in_ranges(
        self, api: Api, client: Client, db: Database
    ) -> None:
        made, parts = await uploaded(client, b""), 1500
        values = {"file": made.id, "project": DEFAULT_PROJECT, "parts": parts}
        for statement in _MANY_PARTS:
            await db.execute(text(statement), values)
        expected = "".join(f"{number % 1000:03}" for number in range(parts))
        assert (await client.files.content(made.id)).text == expected
        ranged = await api.client.get(f"/v1/files/{made.id}/content", headers={"Range": "bytes=2999-3004"})
        assert ranged.text == expected[2999:3005]

    async def test_a_file_that_is_deleted_while_it_is_read_ends_early(
        self, api: Api, client: Client, db: Database
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


async def test_a_list_follows_order_and_purpose_and_a_bad_query_is_named(api: Api, client: Client) -> None:
    ids = [(await uploaded(client, purpose=purpose)).id for purpose in ("batch", "vision", "batch", "user_data")]
    assert [file.id async for file in client.files.list()] == ids[::-1]
    assert [file.id async for file in client.files.list(order="asc", limit=1)] == ids
    assert [file.id async for file in client.files.list(purpose="batch", limit=1)] == [ids[2], ids[0]]
    page = await client.files.list(after=ids[2], limit=1)
    assert ([file.id for file in page.data], page.has_more) == ([ids[1]], True)
    for query in ("limit=0", "limit=10001", "after=no", "purpose=evals"):
        answer = await api.client.get(f"/v1/files?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


class TestRefused:
    async def test_bad_forms_are_refused_by_name_and_leave_nothing(
        self, api: Api, client: Client, db: Database
    ) -> None:
        async def refused(**request: Any) -> tuple[int, str | None, str]:
            error = (answer := await api.client.post("/v1/files", **request)).json()["error"]
            return answer.status_code, error["param"], error["code"]

        file, purpose = {"file": ("a", b"x")}, {"purpose": "batch"}
        twice = [("file", ("a", b"x")), ("file", ("b", b"y"))]
        only_purpose = b'--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--a--\r\n'
        cases: list[tuple[Any, tuple[int, str | None, str]]] = [
            ({"json": {}}, (415, None, "unsupported_media_type")),
            ({"data": purpose, "files": {"data": b"x"}}, (400, "data", "unknown_parameter")),
            ({"files": file}, (400, "purpose", "missing_required_parameter")),
            ({"data": purpose, "files": twice}, (400, "file", "invalid_value")),
            ({"data": {**purpose, "more": "1"}, "files": file}, (400, "more", "unknown_parameter")),
            ({"data": {"purpose": "x" * 2000}, "files": file}, (400, "purpose", "string_above_max_length")),
            ({"content": only_purpose, "headers": FORM}, (400, "file", "missing_required_parameter")),
            *(
                ({"content": body, "headers": FORM}, (400, None, "invalid_form"))
                for body in (b"", b"no form", only_purpose[:-8], b"--b" + only_purpose)
            ),
            ({"content": b"", "headers": {"content-type": "multipart/form-data"}}, (400, None, "invalid_form")),
        ]
        for request, expected in cases:
            assert await refused(**request) == expected
        fields: list[tuple[dict[str, Any], str]] = [
            *(({"purpose": each}, "purpose") for each in ("assistants", "fine-tune", "evals", "batch_output", "")),
            *(
                ({"expires_after": {"anchor": "created_at", "seconds": each}}, "expires_after.seconds")
                for each in (3599, 2_592_001, "soon")
            ),
            ({"expires_after": {"anchor": "last_active_at", "seconds": 3600}}, "expires_after.anchor"),
            ({"expires_after": {"seconds": 3600}}, "expires_after.anchor"),
        ]
        for sent, named in fields:
            with pytest.raises(openai.BadRequestError) as caught:
                await uploaded(client, **sent)
            assert caught.value.param == named
        assert (await count(db, "files"), await stored(db, DEFAULT_PROJECT)) == (0, 0)
        for file_id in ("file_none", "%00", "a" * 3000):
            url = f"/v1/files/{file_id}"
            for method, path in (("GET", url), ("GET", f"{url}/content"), ("DELETE", url)):
                assert (await api.client.request(method, path)).status_code == 404

    async def test_a_file_that_is_too_large_is_refused_by_its_head(self, api: Api) -> None:
        host, port = api.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nContent-Length: {600 * 1024**2}\r\n"
        writer.write(f"{head}Content-Type: multipart/form-data; boundary=a\r\n\r\n".encode())
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()

    async def test_a_cut_upload_is_never_seen_and_leaves_nothing(self, api: Api, client: Client, db: Database) -> None:
        async def body() -> Any:
            yield HEAD + random_bytes(2 * BLOCK_BYTES)
            await asyncio.Event().wait()

        sending = asyncio.create_task(api.client.post("/v1/files", content=body(), headers=FORM))
        await until(lambda: count(db, "file_blocks"))
        assert [file.id async for file in client.files.list()] == []
        await end_tasks(sending)

        async def is_dropped() -> bool:
            return [row.state for row in await db.execute(text("SELECT state FROM file_parts"))] == ["dropped"]

        await until(is_dropped)
        assert await stored(db, DEFAULT_PROJECT) == 0


class TestLimits:
    SETTINGS: ClassVar = {"auth": "keys"}

    async def test_what_does_not_fit_is_refused_before_its_bytes_are_taken(
        self, calling: Api, mine: Tenant, admin: Administration, db: Database
    ) -> None:
        await admin.set_limits(mine.project, "*", {LimitKind.STORED_BYTES: 3 * BLOCK_BYTES})

        async def fits(blocks: int, **sent: Any) -> bool:
            files = {"data": {"purpose": "user_data"}, "files": {"file": ("a", b"x" * blocks * BLOCK_BYTES)}}
            answer = await calling.client.post("/v1/files", **(sent or files))
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (429, "rate_limit_exceeded"), error
                assert "stored_bytes" in error["message"] and answer.headers["x-should-retry"] == "false"
            return answer.status_code == 200

        async def is_limited() -> bool:
            return not await fits(4)

        await until(is_limited)
        assert await fits(2)
        assert not await fits(2)
        assert not await fits(16, content=form(16), headers=FORM), "without a length"
        assert await stored(db, mine.project) == counted(2 * BLOCK_BYTES, "a")
        [kept] = (await calling.client.get("/v1/files")).json()["data"]
        await calling.client.delete(f"/v1/files/{kept['id']}")
        assert await fits(2), "a deletion makes room at once"

    async def test_the_uploads_of_one_project_leave_room_for_another_and_need_the_scope(
        self, api: Api, calling: Api, admin: Administration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(holdings, "UPLOADS", 4)
        monkeypatch.setattr(holdings, "ACCEPT_SECONDS", 0.2)
        other, reader = await tenant(admin, "other"), await tenant(admin, "reader", [Scope.READ])
        async with serving(api.runtime.settings) as bounded:  # It reads its bounds as it starts.
            ended = asyncio.Event()
            async with (
                as_caller(bounded, await tenant(admin, "one")) as first,
                as_caller(bounded, other) as second,
                as_caller(bounded, reader) as third,
            ):
                send = partial(first.client.post, "/v1/files", headers=FORM)
                sending = [asyncio.create_task(send(content=form(1, ended))) for _ in range(3)]
                bounds: ProcessBounds = bounded.server.lifespan.state["bounds"]
                await until(lambda: bounds.uploads.held == 3)
                refused = await send(content=form(1))
                assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_uploads")
                answer = await second.client.post("/v1/files", content=form(1), headers=FORM)
                assert answer.status_code == 200, answer.text
                assert (await third.client.get("/v1/files")).status_code == 200
                assert (await third.client.post("/v1/files", content=form(1), headers=FORM)).status_code == 403
                ended.set()
                assert [(await task).status_code for task in sending] == [200, 200, 200]

    async def test_silent_uploads_end_while_another_project_waits(
        self, api: Api, admin: Administration, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(holdings, "UPLOADS", 4)
        monkeypatch.setattr(forms, "SLOW_SECONDS", 0.1)
        async with serving(api.runtime.settings) as bounded:
            bounds: ProcessBounds = bounded.server.lifespan.state["bounds"]
            ended = asyncio.Event()
            async with (
                as_caller(bounded, await tenant(admin, "one")) as first,
                as_caller(bounded, await tenant(admin, "two")) as second,
                as_caller(bounded, await tenant(admin, "three")) as third,
            ):
                silent = []
                for each in (first, first, first, second):
                    sending = each.client.post("/v1/files", content=form(1, ended), headers=FORM)
                    silent.append(asyncio.create_task(sending))
                    await until(lambda: bounds.uploads.held == len(silent))  # So none of them waits for another's.
                answer = await third.client.post("/v1/files", content=form(1), headers=FORM)
                assert answer.status_code == 200, answer.text
                ended.set()
                statuses = [(await task).status_code for task in silent]
                assert 408 in statuses and set(statuses) <= {200, 408}


class TestDeath:
    async def test_what_a_killed_process_began_is_never_there_and_dropped_after_a_while(
        self, api: Api, db: Database
    ) -> None:
        begun = PartWriter(db, DEFAULT_PROJECT, new_id("part"))
        await begun.open(None)
        await begun.write(b"x" * 2 * BLOCK_BYTES)  # And nothing more, as after SIGKILL.
        assert (await api.client.get("/v1/files")).json()["data"] == []
        assert await stored(db, DEFAULT_PROJECT) > 0, "it is reserved until maintenance finds it"
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        assert await count(db, "file_parts") == 1, "it might go on"
        await change(db, "UPDATE file_parts SET touched_at = now() - interval '2 hours'")
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        left = [await count(db, table) for table in ("files", "file_parts", "file_blocks")]
        assert (left, await stored(db, DEFAULT_PROJECT)) == ([0, 0, 0], 0)

    async def test_what_was_dropped_meanwhile_is_refused_at_its_end(self, api: Api, db: Database) -> None:
        ended = asyncio.Event()
        sending = asyncio.create_task(api.client.post("/v1/files", content=form(2, ended), headers=FORM))

        async def has_blocks() -> bool:
            return await count(db, "file_blocks") == 2

        await until(has_blocks)
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), -1)
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        ended.set()
        answer = await sending
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "upload_ended")
        assert [await count(db, table) for table in ("files", "file_blocks")] == [0, 0]

    async def test_a_file_is_gone_when_it_expires(self, client: openai.AsyncOpenAI, db: Database) -> None:
        expiring = {"anchor": "created_at", "seconds": 3600}
        made = await uploaded(client, random_bytes(BLOCK_BYTES), expires_after=expiring)
        assert made.expires_at == made.created_at + 3600
        kept = await uploaded(client)
        await change(db, "UPDATE files SET expires_at = now() WHERE expires_at IS NOT NULL")
        assert [file.id async for file in client.files.list()] == [kept.id]
        with pytest.raises(openai.NotFoundError):
            await client.files.content(made.id)
        assert await expiry.delete_expired(as_role(db, MAINTENANCE)) == 1
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        assert (await count(db, "file_blocks"), await stored(db, DEFAULT_PROJECT)) == (
            1,
            counted(kept.bytes, kept.filename),
        )


async def test_a_file_that_a_batch_reads_by_now_does_not_expire(
    client: openai.AsyncOpenAI, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement that locks what expired may be older than the batch, which the statement that deletes must see."""
    made = await client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    await client.batches.create(input_file_id=made.id, endpoint="/v1/responses", completion_window="24h")
    await change(db, "UPDATE files SET expires_at = now()")
    monkeypatch.setattr(expiry, "_EXPIRED", text("SELECT id FROM files LIMIT :limit FOR UPDATE"))
    assert await expiry.delete_expired(as_role(db, MAINTENANCE)) == 0
    assert await count(db, "files") == 1


async def test_dropped_parts_go_a_few_at_a_time_with_and_without_blocks(
    client: openai.AsyncOpenAI, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "PARTS_AT_ONCE", 2)
    monkeypatch.setattr(expiry, "BLOCKS_AT_ONCE", 1)
    for size in (0, 2 * BLOCK_BYTES, 1, 0, BLOCK_BYTES + 1):
        await client.files.delete((await uploaded(client, random_bytes(size))).id)
    await expiry.delete_dropped(as_role(db, MAINTENANCE))
    assert (await count(db, "file_parts"), await count(db, "file_blocks")) == (0, 0)


@pytest.mark.long
async def test_an_upload_of_100_mb_takes_little_memory(services: Any, db: Database, tmp_path: Path) -> None:
    process = ApiProcess(services, tmp_path)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=300) as client:
            await process.started(client)
            await client.post("/v1/files", content=form(2), headers=FORM)
            api = psutil.Process(process.process.pid)
            before, most = api.memory_info().rss, 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, api.memory_info().rss)
                    await asyncio.sleep(0.01)

            watching = asyncio.create_task(watch())
            made = await client.post("/v1/files", content=form(100), headers=FORM)
            assert made.status_code == 200
            uploading, most = most - before, 0
            async with client.stream("GET", f"/v1/files/{made.json()['id']}/content") as answer:
                read = sum([len(piece) async for piece in answer.aiter_bytes()])
            await end_tasks(watching)
            assert read == 100 * BLOCK_BYTES
            assert uploading < MEMORY_BYTES and most - before < MEMORY_BYTES
            os.kill(api.pid, signal.SIGTERM)
        await process.ended()
    finally:
        process.kill()
