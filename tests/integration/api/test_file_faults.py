"""What limits, deaths and crowds do to uploads: nothing is half there, and nothing is lost of what is."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.access.caller import Scope
from app.aio import end_tasks
from app.api import holdings
from app.api.holdings import ProcessBounds
from app.ids import new_part_id
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.files import expiry
from app.store.files.parts import BLOCK_BYTES, PartWriter
from app.store.roles.rights import MAINTENANCE
from app.store.tables import DEFAULT_PROJECT
from tests.integration.api.test_files import FORM, HEAD, count, random_bytes, uploaded
from tests.integration.api.test_leaving import ApiProcess
from tests.support.api import Api, serving, settings_for
from tests.support.roles import as_role
from tests.support.stored import stored
from tests.support.tenants import Tenant, as_caller, tenant
from tests.support.waiting import until

TAIL = b'\r\n--a\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n--a--\r\n'
MEMORY_BYTES = 64 * 2**20
"""The most that an upload of any size may take."""


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


async def sql(db: Database, statement: str) -> None:
    async with db.autocommit() as connection:
        await connection.execute(text(statement))


class TestLimits:
    @pytest.fixture
    async def api(self, services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
        async with serving(settings_for(services, tmp_path, auth="keys")) as running:
            yield running

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
        assert await stored(db, mine.project) == 2 * BLOCK_BYTES
        upload = {"filename": "a", "bytes": 9, "mime_type": "text/plain", "purpose": "user_data"}
        made = (await calling.client.post("/v1/uploads", json=upload)).json()["id"]
        part = await calling.client.post(f"/v1/uploads/{made}/parts", files={"data": ("a", b"x" * 2 * BLOCK_BYTES)})
        assert part.status_code == 429
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


class TestDeath:
    async def test_what_a_killed_process_began_is_never_there_and_dropped_after_a_while(
        self, api: Api, db: Database
    ) -> None:
        begun = PartWriter(db, DEFAULT_PROJECT, new_part_id())
        await begun.open(None)
        await begun.write(b"x" * 2 * BLOCK_BYTES)  # And nothing more, as after SIGKILL.
        assert (await api.client.get("/v1/files")).json()["data"] == []
        assert await stored(db, DEFAULT_PROJECT) > 0, "it is reserved until maintenance finds it"
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        assert await count(db, "file_parts") == 1, "it might go on"
        await sql(db, "UPDATE file_parts SET touched_at = now() - interval '2 hours'")
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 3600)
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        left = [await count(db, table) for table in ("files", "file_parts", "file_blocks")]
        assert (left, await stored(db, DEFAULT_PROJECT)) == ([0, 0, 0], 0)

    async def test_what_was_dropped_meanwhile_is_refused_at_its_end_and_parts_of_an_upload_go_on(
        self, api: Api, client: openai.AsyncOpenAI, db: Database
    ) -> None:
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
        upload = await client.uploads.create(bytes=3, filename="a", mime_type="text/plain", purpose="user_data")
        part = await client.uploads.parts.create(upload.id, data=b"abc")
        await sql(db, "UPDATE file_parts SET touched_at = now() - interval '50 minutes'")
        await expiry.drop_abandoned(as_role(db, MAINTENANCE), 60)
        assert (await client.uploads.complete(upload.id, part_ids=[part.id])).status == "completed"

    async def test_a_file_is_gone_when_it_expires(self, client: openai.AsyncOpenAI, db: Database) -> None:
        expiring = {"anchor": "created_at", "seconds": 3600}
        made = await uploaded(client, random_bytes(BLOCK_BYTES), expires_after=expiring)
        assert made.expires_at == made.created_at + 3600
        kept = await uploaded(client)
        await sql(db, "UPDATE files SET expires_at = now() WHERE expires_at IS NOT NULL")
        assert [file.id async for file in client.files.list()] == [kept.id]
        with pytest.raises(openai.NotFoundError):
            await client.files.content(made.id)
        assert await expiry.delete_expired(as_role(db, MAINTENANCE)) == 1
        await expiry.delete_dropped(as_role(db, MAINTENANCE))
        assert (await count(db, "file_blocks"), await stored(db, DEFAULT_PROJECT)) == (1, kept.bytes)


@pytest.mark.long
async def test_an_upload_of_200_mb_takes_little_memory(services: Any, db: Database, tmp_path: Path) -> None:
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
            made = await client.post("/v1/files", content=form(200), headers=FORM)
            assert made.status_code == 200
            uploading, most = most - before, 0
            async with client.stream("GET", f"/v1/files/{made.json()['id']}/content") as answer:
                read = sum([len(piece) async for piece in answer.aiter_bytes()])
            await end_tasks(watching)
            assert read == 200 * BLOCK_BYTES
            assert uploading < MEMORY_BYTES and most - before < MEMORY_BYTES
            os.kill(api.pid, signal.SIGTERM)
        await process.ended()
    finally:
        process.kill()
