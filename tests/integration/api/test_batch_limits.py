"""Batches of projects with limits: lines wait in the file until there is room for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.access.administration import Administration
from app.protocol.limits import LimitKind
from app.store.database import Database
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.batches import Carried, created, ended, has_responses, line, lines_of
from tests.support.player import Player, ids
from tests.support.tenants import Tenant
from tests.support.waiting import until

Client = openai.AsyncOpenAI

ROOM = 10
FOR_LINES = 7
"""Of so much room."""


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(settings_for(services, tmp_path, auth="keys")) as running:
        yield running


@pytest.fixture
async def client(api: Api, mine: Tenant) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=mine.key.secret, max_retries=0) as running:
        yield running


async def limit(admin: Administration, mine: Tenant, **values: int | None) -> None:
    await admin.set_limits(mine.project, "*", {LimitKind(kind): value for kind, value in values.items()})


async def news(client: Client, db: Database, batch_id: str) -> tuple[Any, list[str]]:
    """The batch and its project's queued responses, once there are some or the batch is completed."""

    async def look() -> Any:
        batch, queued = await client.batches.retrieve(batch_id), await ids(db, "queued")
        return (batch, queued) if queued or batch.status == "completed" else None

    found: tuple[Any, list[str]] = await until(look, what="lines are responses, or the batch is completed")
    return found


async def test_lines_become_responses_as_room_appears(
    client: Client, admin: Administration, mine: Tenant, carried: Carried, player: Player, db: Database
) -> None:
    await limit(admin, mine, queued_responses=ROOM, tokens_per_day=10**7)
    seen: set[int] = set()
    async with carried.on():
        made = await created(client, [line(str(number)) for number in range(14)])
        await until(lambda: has_responses(db, FOR_LINES), what="lines have all the room that they may")
        while True:
            batch, waiting = await news(client, db, made.id)
            if batch.status == "completed":
                break
            seen.add(len(waiting))
            for response_id in waiting[:4]:
                await player.answer("Hello", response_id=response_id)
    assert max(seen) == FOR_LINES
    assert batch.request_counts.completed == 14
    assert [each["custom_id"] for each in await lines_of(client, batch.output_file_id)] == list(map(str, range(14)))


async def test_a_batch_refuses_none_of_its_projects_single_requests(
    client: Client, admin: Administration, mine: Tenant, carried: Carried, player: Player, db: Database
) -> None:
    """The batch has several times as many lines as the limit has room for; single requests use what lines leave."""
    lines = [line(str(number), max_output_tokens=1000) for number in range(13)]
    sent: dict[str, Any] = {"model": MODEL, "input": "Hello!", "background": True, "max_output_tokens": 1000}
    async with carried.on():
        for kind, value in (("queued_responses", 8), ("unfinished_responses", 8), ("tokens_per_minute", 20_000)):
            await limit(admin, mine, **{kind: value})
            made, rounds = await created(client, lines), 0
            while True:
                batch, _ = await news(client, db, made.id)
                if batch.status == "completed":
                    break
                live = [await client.responses.create(**sent) for _ in range(2)]
                for response_id in await ids(db, "queued"):
                    await player.answer("Hello", response_id=response_id)
                assert {(await client.responses.retrieve(one.id)).status for one in live} == {"completed"}
                rounds += 1
            assert (batch.request_counts.completed, batch.request_counts.failed) == (13, 0), kind
            assert rounds > 1, kind
            await limit(admin, mine, **{kind: None})


async def test_a_line_that_never_fits_is_named_before_any_runs(
    client: Client, admin: Administration, mine: Tenant, carried: Carried, db: Database
) -> None:
    await limit(admin, mine, tokens_per_minute=5000)
    lines = [line("fits", max_output_tokens=100), line("never", max_output_tokens=6000)]
    async with carried.on():
        batch = await ended(client, (await created(client, lines)).id)
    (error,) = batch.errors.data
    assert (batch.status, error.line, error.code) == ("failed", 2, "rate_limit_exceeded")
    assert "never fits" in error.message and "tokens_per_minute" in error.message
    assert await ids(db) == []


async def test_a_limit_that_shrinks_below_a_line_fails_that_line_alone(
    client: Client, admin: Administration, mine: Tenant, carried: Carried, player: Player, db: Database
) -> None:
    await limit(admin, mine, queued_responses=1, tokens_per_day=10**6)
    names = ("a", "b", "large", "c")
    lines = [line(name, max_output_tokens=5000 if name == "large" else 100) for name in names]
    async with carried.on():
        made = await created(client, lines)
        await until(lambda: ids(db, "queued"), what="the first line is a response")
        await limit(admin, mine, tokens_per_day=4000)
        async with player.at_work("Hello"):
            batch = await ended(client, made.id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 3, 1)
    (failed,) = await lines_of(client, batch.error_file_id)
    assert (failed["custom_id"], failed["error"]["code"]) == ("large", "rate_limit_exceeded")


async def test_batches_that_wait_for_room_keep_no_other_batch_waiting(
    client: Client, admin: Administration, mine: Tenant, carried: Carried, db: Database
) -> None:
    await limit(admin, mine, queued_responses=1)
    async with carried.on():
        for _ in range(3):
            await created(client, [line("a"), line("b")])
        bad = await created(client, [b"{}"])
        assert (await ended(client, bad.id)).status == "failed"
        found = await db.execute(text("SELECT count(*) AS waiting FROM batches WHERE expanded < total"))
    assert found[0].waiting >= 2
