"""Bad files and bad moments for batches: each is named, and nothing is half done. (The fault suite kills processes.)"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.batches.expander import Expander
from app.responses.models.catalog import Terms
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.integration.api.test_files import count
from tests.support import pdfs
from tests.support.api import serving, settings_for
from tests.support.batches import CHAT, RESPONSES, Carried, created, ended, has_responses, line, lines_of, uploaded
from tests.support.player import Player, ids, row_of
from tests.support.services import AS_OWNER
from tests.support.tenants import administration, tenant
from tests.support.waiting import until
from workers.formats.chat.messages import messages_of

BOM = b"\xef\xbb\xbf"


async def problems(client: openai.AsyncOpenAI, carried: Carried, data: bytes, endpoint: str = RESPONSES) -> list[Any]:
    """Line, code and param of each error of a batch that failed, of which nothing ran."""
    async with carried.on():
        batch = await ended(client, (await created(client, [data], endpoint)).id)
    assert batch.status == "failed"
    assert (batch.output_file_id, batch.error_file_id, batch.request_counts.completed) == (None, None, 0)
    return [(each.line, each.code, each.param) for each in batch.errors.data]


class TestFile:
    @pytest.mark.parametrize("data", [b"", b"\n\r\n  \n", BOM, BOM + b"\r\n"])
    async def test_a_file_without_requests_fails(
        self, client: openai.AsyncOpenAI, carried: Carried, db: Database, data: bytes
    ) -> None:
        assert await problems(client, carried, data) == [(None, "empty_file", None)]
        assert await ids(db) == []

    async def test_marks_blank_lines_and_ends_of_lines_change_nothing(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player
    ) -> None:
        data = b"%b%b\r\n\r\n   \n%b\n%b" % (BOM, line("a"), line("b"), line("c"))
        async with carried.on(), player.at_work("Hello"):
            batch = await ended(client, (await created(client, [data])).id)
        assert (batch.status, batch.request_counts.total) == ("completed", 3)
        assert [each["custom_id"] for each in await lines_of(client, batch.output_file_id)] == ["a", "b", "c"]

    async def test_a_line_of_10_mb_is_named_and_those_around_it_are_read(
        self, client: openai.AsyncOpenAI, carried: Carried
    ) -> None:
        long = line("long", input="a" * 10 * 1024 * 1024)
        data = b"\n".join([line("a"), long, b"no JSON", long])
        assert await problems(client, carried, data) == [
            (2, "line_too_long", None),
            (3, "invalid_json_line", None),
            (4, "line_too_long", None),
        ]

    async def test_a_wrong_method_or_endpoint_is_named(self, client: openai.AsyncOpenAI, carried: Carried) -> None:
        data = b"\n".join([line("a").replace(b"POST", b"GET"), line("b", CHAT), b'{"custom_id":"c","method":"POST"}'])
        assert await problems(client, carried, data) == [
            (1, "invalid_value", "method"),
            (2, "mismatched_endpoint", "url"),
            (3, "missing_required_parameter", "url"),
        ]

    @pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
    async def test_a_tier_that_batches_do_not_have_is_named(
        self, client: openai.AsyncOpenAI, carried: Carried, monkeypatch: pytest.MonkeyPatch, endpoint: str
    ) -> None:
        monkeypatch.setattr("app.responses.models.catalog._UNLIMITED", Terms(top_tier="priority"))
        tiers = ("flex", "default", "priority", "auto")
        data = b"\n".join(line(tier, endpoint, service_tier=tier) for tier in tiers)
        named = (None if tier in ("default", "auto") else "body.service_tier" for tier in tiers)
        assert await problems(client, carried, data, endpoint) == [
            (number, "invalid_value", param) for number, param in enumerate(named, 1) if param
        ]

    async def test_a_project_whose_best_tier_is_flex_is_told_that_it_has_no_batches(
        self, client: openai.AsyncOpenAI, carried: Carried, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.responses.models.catalog._UNLIMITED", Terms(top_tier="flex"))
        async with carried.on():
            batch = await ended(client, (await created(client, [line("a")])).id)
        [error] = batch.errors.data
        assert (error.param, error.message) == (
            "body.service_tier",
            "Invalid 'service_tier': a batch needs the service tier 'default'. The project's best is 'flex'.",
        )


class TestAttachments:
    """Files within the lines."""

    @pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
    async def test_a_line_has_files_as_a_request_has_them(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database, endpoint: str
    ) -> None:
        made = await client.files.create(file=("paper.pdf", pdfs.pdf("Hello there")), purpose="user_data")
        data = f"data:text/csv;base64,{base64.b64encode(b'a,b').decode()}"
        files = ({"file_id": made.id}, {"file_data": data, "filename": "data.csv"})
        lines = [line(str(number), endpoint, **_with(endpoint, file)) for number, file in enumerate(files)]
        async with carried.on():
            batch = await created(client, lines, endpoint)
            await until(lambda: has_responses(db, 2), what="both lines are responses")
            shown = []
            for response_id in await ids(db):
                [message] = messages_of((await row_of(db, response_id)).request["input"])
                shown.append(message["content"])
            async with player.at_work("Read."):
                assert (await ended(client, batch.id)).status == "completed"
        assert sorted(shown) == [
            '<file name="data.csv">\na,b\n</file>\n',
            '<file name="paper.pdf">\nHello there\n</file>\n',
        ]

    @pytest.mark.parametrize(
        ("endpoint", "where"),
        [(RESPONSES, "body.input[0].content[0].file_id"), (CHAT, "body.messages[0].content[0].file.file_id")],
    )
    async def test_a_file_that_cannot_be_read_fails_its_line_by_the_name_of_its_field(
        self, client: openai.AsyncOpenAI, carried: Carried, endpoint: str, where: str
    ) -> None:
        bomb = await client.files.create(file=("bomb.pdf", pdfs.bomb(300 * 2**20)), purpose="user_data")
        lines = [
            line("a", endpoint),
            line("b", endpoint, **_with(endpoint, {"file_id": "file_none"})),
            line("c", endpoint, **_with(endpoint, {"file_id": bomb.id})),
        ]
        assert await problems(client, carried, b"\n".join(lines), endpoint) == [
            (2, "file_not_found", where),
            (3, "file_too_costly", where),
        ]


def _with(endpoint: str, file: dict[str, str]) -> dict[str, Any]:
    if endpoint == RESPONSES:
        return {"input": [{"role": "user", "content": [{"type": "input_file", **file}]}]}
    return {"messages": [{"role": "user", "content": [{"type": "file", "file": file}]}]}


class TestProjects:
    async def test_a_file_and_a_batch_of_another_project_are_not_there(
        self, services: Any, db: Database, pubsub: PubSub, tmp_path: Any
    ) -> None:
        one, other = [await tenant(administration(db, pubsub), name) for name in ("one", "other")]
        async with serving(settings_for(services, tmp_path, auth="keys")) as api:
            url = f"{api.url}/v1"
            mine = openai.AsyncOpenAI(base_url=url, api_key=one.key.secret, max_retries=0)
            theirs = openai.AsyncOpenAI(base_url=url, api_key=other.key.secret, max_retries=0)
            async with mine, theirs:
                batch = await created(mine, [line("a")])
                file: Any = {"input_file_id": batch.input_file_id, "endpoint": RESPONSES, "completion_window": "24h"}
                with pytest.raises(openai.BadRequestError) as caught:
                    await theirs.batches.create(**file)
                assert (caught.value.code, caught.value.param) == ("file_not_found", "input_file_id")
                for call in (theirs.batches.retrieve, theirs.batches.cancel):
                    with pytest.raises(openai.NotFoundError):
                        await call(batch.id)
                for path in ("results", "retry_failed"):
                    verb = theirs.get if path == "results" else theirs.post
                    with pytest.raises(openai.NotFoundError):
                        await verb(f"/batches/{batch.id}/{path}", cast_to=str)
                assert [each async for each in theirs.batches.list()] == []
                assert [each async for each in theirs.files.list()] == []
                with pytest.raises(openai.AuthenticationError):
                    await mine.with_options(api_key="sk-no").batches.list()


class TestMoments:
    async def test_the_file_of_a_running_batch_cannot_be_deleted(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on():
            made = await created(client, [line("a")])
            await until(lambda: has_responses(db, 1), what="the line is a response")
            with pytest.raises(openai.BadRequestError) as refused:
                await client.files.delete(made.input_file_id)
            assert refused.value.code == "file_in_use"
            async with player.at_work("Hello"):
                assert (await ended(client, made.id)).status == "completed"

    async def test_a_cancel_in_the_middle_of_the_check_ends_it(
        self,
        client: openai.AsyncOpenAI,
        carried: Carried,
        db: Database,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        checking, go_on, check = asyncio.Event(), asyncio.Event(), Expander._check

        async def slow(expander: Expander, *args: Any) -> None:
            checking.set()
            await go_on.wait()
            await check(expander, *args)

        monkeypatch.setattr(Expander, "_check", slow)
        async with carried.on():
            made = await created(client, [line("a"), b"{"])
            await checking.wait()
            assert (await client.batches.cancel(made.id)).status in ("cancelling", "cancelled")
            go_on.set()
            batch = await ended(client, made.id)
            assert batch.status == "cancelled"
            assert (batch.errors, batch.output_file_id, batch.error_file_id) == (None, None, None)
        assert (await client.batches.retrieve(made.id)).status == "cancelled"
        assert await ids(db) == []


@asynccontextmanager
async def full_disk(db: Database, *tables: str) -> AsyncIterator[None]:
    """Postgres refuses to write to the tables, with the SQLSTATE of a full disk, until the block is left."""
    function = """
        CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = 'disk_full'; END $$
    """
    await _as_owner(
        db,
        function,
        *(
            f"CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION full_disk()"
            for table in tables
        ),
    )
    try:
        yield
    finally:
        await _as_owner(db, "DROP FUNCTION full_disk CASCADE")


async def _as_owner(db: Database, *statements: str) -> None:
    async with db.begin() as connection:
        for statement in (AS_OWNER, *statements):
            await connection.execute(text(statement))


class TestFullDisk:
    @pytest.mark.parametrize("tables", [("file_parts",), ("file_blocks",), ("files",)])
    async def test_an_upload_is_refused_and_leaves_no_file(
        self, client: openai.AsyncOpenAI, db: Database, tables: tuple[str, ...]
    ) -> None:
        async with full_disk(db, *tables):
            with pytest.raises(openai.InternalServerError) as refused:
                await uploaded(client, line("a"))
            assert (refused.value.status_code, refused.value.code) == (503, "service_unavailable")
            assert "retry-after" in refused.value.response.headers
        assert [each async for each in client.files.list()] == []
        assert await count(db, "files") == 0
        assert await uploaded(client, line("a")), "there is room again"

    async def test_a_batch_is_refused_and_is_not_there(self, client: openai.AsyncOpenAI, db: Database) -> None:
        async with full_disk(db, "batches"):
            with pytest.raises(openai.InternalServerError) as refused:
                await created(client, [line("a")])
            assert (refused.value.status_code, refused.value.code) == (503, "service_unavailable")
        assert [each async for each in client.batches.list()] == []

    async def test_a_batch_whose_results_do_not_fit_waits_for_room(
        self, client: openai.AsyncOpenAI, carried: Carried, player: Player, db: Database
    ) -> None:
        async with carried.on(), player.at_work("Hello"):
            async with full_disk(db, "file_blocks"):
                with pytest.raises(openai.InternalServerError):
                    await uploaded(client, line("a"))
            made = await created(client, [line(str(number)) for number in range(10)])
            async with full_disk(db, "file_blocks"):

                async def answered() -> bool:
                    counts = (await client.batches.retrieve(made.id)).request_counts
                    return counts is not None and counts.completed == 10

                await until(answered, what="all lines have answers")
                assert (await client.batches.retrieve(made.id)).output_file_id is None
            batch = await ended(client, made.id)
        assert batch.status == "completed"
        assert len(await lines_of(client, batch.output_file_id)) == 10
