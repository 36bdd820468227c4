"""Postgres or Redis away: clear answers at once, nothing half done, and recovery without help."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app import main
from app.protocol.events import frames
from app.protocol.status import Status
from app.queue.publisher import QueueUnavailable, TaskQueue
from app.store.database import Database, StoreUnavailable
from app.store.responses import logs, lookup
from app.streaming.pubsub import PubSub
from tests.integration.api.common import ASKED, BODIES, ROUTES, SAID
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.logs import row_of
from tests.support.player import Player, ids, one
from tests.support.rows import alive
from tests.support.waiting import until

FORMS: list[dict[str, Any]] = [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}]
FORMED = [("/v1/responses", {**ASKED, **form}) for form in FORMS]


async def _answers(db: Database) -> bool:
    try:
        await db.ping()
    except StoreUnavailable:
        return False
    return True


async def _missing(api: Api, what: list[str]) -> bool:
    missing: list[str] = (await api.client.get("/health/ready")).json()["missing"]
    return missing == what


async def test_without_postgres_every_route_is_a_503_with_retry_after_until_it_is_back(api: Api, services: Any) -> None:
    await asyncio.to_thread(services.postgres.stop)
    with_bodies = [("POST", path, body) for path, body in (*FORMED, *BODIES)]
    without = [(method, path, None) for method, path in (*ROUTES, ("GET", "/v1/responses/resp_1?stream=true"))]
    for method, path, body in (*with_bodies, *without):
        answer = await api.client.request(method, path, json=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), (method, path)
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", "service_unavailable"), (method, path)
    answer = await api.client.get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "not_ready")
    assert "postgres" in answer.json()["missing"] and "redis" not in answer.json()["missing"]
    for path in ("/v1/models", "/health/live"):
        assert (await api.client.get(path)).status_code == 200
    await asyncio.to_thread(services.postgres.start)

    async def created() -> bool:
        return (await api.post(background=True)).status_code == 200

    await until(created)
    await until(lambda: _missing(api, ["workers"]))


async def test_clients_and_readers_survive_a_restart_of_postgres(
    api: Api, db: Database, services: Any, player: Player
) -> None:
    response_id = await api.background(stream=True)
    reading = asyncio.create_task(api.streamed(response_id))
    plays, clients = [await player.begin(response_id)], []
    for stream in (False, True):
        clients.append(asyncio.create_task(api.post(stream=stream)))
        plays.append(await player.begin())
    for play in plays:
        await play.said("Once ")
    await asyncio.to_thread(services.postgres.restart)
    for play in plays:
        await until(lambda: _answers(db))  # Connections may have broken with the servers.
        await (await play.said("upon")).finished()
    for client in clients:
        answer = await client
        assert answer.status_code == 200 and "Once upon" in answer.text
    log = await logs.read(db, response_id)
    assert await reading == b"".join(chunk.frames for chunk in log.chunks) + frames.DONE


async def test_a_foreground_answer_waits_for_postgres_after_the_last_event(
    api: Api, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event has arrived, and Postgres is gone before the row can be read."""
    away = 3
    show = lookup.show

    async def sometimes(*args: Any) -> Any:
        nonlocal away
        away -= 1
        if away >= 0:
            raise StoreUnavailable("away")
        return await show(*args)

    monkeypatch.setattr(lookup, "show", sometimes)
    async with player.at_work("Hi"):
        assert (await api.post()).json()["status"] == "completed"
    assert away < 0


async def test_without_redis_background_work_goes_on_and_foreground_requests_are_refused_until_it_is_back(
    api: Api, db: Database, services: Any, player: Player
) -> None:
    await alive(db, model=MODEL)
    await asyncio.to_thread(services.valkey.stop)
    await until(lambda: not api.runtime.pubsub.connected)
    for stream in (False, True):
        answer = await api.post(stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert await ids(db) == []
    reading = asyncio.create_task(api.post(background=True, stream=True))
    await Player(db, None).answer("Hi", response_id=await one(db))
    assert b"event: response.completed\n" in (await reading).content, "streamed through Postgres"
    response_id = await api.background()
    assert (await row_of(db, response_id)).status is Status.QUEUED
    answer = await api.client.post(f"/v1/responses/{response_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    await until(lambda: _missing(api, ["redis", "workers"]))
    assert (await api.client.get("/health/ready")).status_code == 200
    assert (await api.client.get("/health/ready", params={"model": MODEL})).status_code == 503
    await asyncio.to_thread(services.valkey.start)
    await until(lambda: api.runtime.pubsub.connected)
    async with player.at_work("Hi"):
        assert (await api.post()).status_code == 200
    await until(lambda: _missing(api, ["workers"]))


async def test_foreground_requests_survive_an_emptied_redis(api: Api, services: Any, player: Player) -> None:
    clients, plays = [], []
    for stream in (False, True):
        clients.append(asyncio.create_task(api.post(stream=stream)))
        plays.append(await player.begin())
        await plays[-1].said("Once ")
    await asyncio.to_thread(services.empty_valkey)
    for play, client in zip(plays, clients, strict=True):
        await (await play.said("upon")).finished()
        answer = await client
        assert answer.status_code == 200 and "Once upon" in answer.text


async def test_a_message_that_cannot_be_sent_is_no_error(
    api: Api, db: Database, player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise QueueUnavailable("no")

    monkeypatch.setattr(TaskQueue, "enqueue", fail)
    async with player.at_work("Hi"):
        for form in FORMS:
            assert (await api.post(**form)).status_code == 200
        await until(lambda: _all_completed(db, len(FORMS)))


async def _all_completed(db: Database, count: int) -> bool:
    return len(await ids(db, "completed")) == count


async def test_the_api_starts_without_postgres_and_redis_and_finds_them_later(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    await asyncio.to_thread(services.postgres.stop)
    await asyncio.to_thread(services.valkey.stop)
    async with serving(settings_for(services, tmp_path)) as api:
        assert (await api.client.get("/health/live")).status_code == 200
        assert (await api.client.get("/health/ready")).json()["missing"][:2] == ["postgres", "redis"]
        assert (await api.post()).status_code == 503
        await asyncio.to_thread(services.heal)
        await until(lambda: api.runtime.pubsub.connected)
        await until(lambda: _answers(db))
        async with Player(db, pubsub).at_work("Hi"):
            assert (await api.post()).json()["status"] == "completed"


async def test_a_statement_that_takes_too_long_is_a_503_that_names_it_and_changes_nothing(
    services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "CALLER_SECONDS", 1.0)
    async with serving(settings_for(services, tmp_path)) as impatient:
        made = (await impatient.client.post("/v1/conversations", json={})).json()["id"]
        path, sent = f"/v1/conversations/{made}/items", {"items": [SAID, SAID]}
        async with db.begin() as connection:
            await connection.execute(text("SELECT 1 FROM conversations FOR UPDATE"))
            answer = await impatient.client.post(path, json=sent)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "statement_timeout"
        assert (await impatient.client.get(path)).json()["data"] == []
        assert (await impatient.client.post(path, json=sent)).status_code == 200
