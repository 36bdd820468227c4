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
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Play, Player, ids, one, row_of
from tests.support.services import AS_OWNER
from tests.support.waiting import until

FORMS = [{}, {"stream": True}, {"background": True}, {"background": True, "stream": True}]


async def healed(play: Play, *words: str) -> None:
    """Writes the rest of the response, on connections that may have broken with the servers."""

    async def write() -> bool:
        try:
            await play.said(*words)
            await play.finished()
        except StoreUnavailable:
            return False
        return True

    await until(lambda: _answers(play._db))
    assert await write()


async def _answers(db: Database) -> bool:
    try:
        await db.ping()
    except StoreUnavailable:
        return False
    return True


class TestPostgresAway:
    @pytest.mark.parametrize("form", FORMS)
    async def test_create_is_a_503_with_retry_after(self, api: Api, services: Any, form: dict[str, Any]) -> None:
        await asyncio.to_thread(services.postgres.stop)
        answer = await api.post(**form)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["type"] == "server_error"
        assert answer.json()["error"]["code"] == "service_unavailable"

    async def test_every_other_route_that_needs_postgres_is_a_503(self, api: Api, services: Any) -> None:
        await asyncio.to_thread(services.postgres.stop)
        url = "/v1/responses/resp_1"
        for method, path in (("GET", url), ("GET", f"{url}?stream=true"), ("POST", f"{url}/cancel"), ("DELETE", url)):
            answer = await api.client.request(method, path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await api.client.get("/v1/models")).status_code == 200
        assert (await api.client.get("/health/live")).status_code == 200

    async def test_the_api_recovers_when_postgres_is_back(self, api: Api, services: Any) -> None:
        await asyncio.to_thread(services.postgres.stop)
        assert (await api.post(background=True)).status_code == 503
        await asyncio.to_thread(services.postgres.start)

        async def created() -> bool:
            return (await api.post(background=True)).status_code == 200

        await until(created)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_foreground_request_survives_a_restart_of_postgres(
        self, api: Api, services: Any, player: Player, stream: bool
    ) -> None:
        waiting = asyncio.create_task(api.post(stream=stream))
        play = await player.begin()
        await play.said("Once ")
        await asyncio.to_thread(services.postgres.restart)
        await healed(play, "upon")
        answer = await waiting
        assert answer.status_code == 200
        assert "Once upon" in answer.text

    async def test_a_reader_survives_a_restart_of_postgres(
        self, api: Api, db: Database, services: Any, player: Player
    ) -> None:
        response_id = await api.background(stream=True)
        reading = asyncio.create_task(api.streamed(response_id))
        play = await player.begin(response_id)
        await play.said("Once ")
        await asyncio.to_thread(services.postgres.restart)
        await healed(play, "upon")
        log = await logs.read(db, response_id)
        assert await reading == b"".join(chunk.frames for chunk in log.chunks) + frames.DONE

    async def test_a_foreground_answer_waits_for_postgres_after_the_last_event(
        self, api: Api, player: Player, monkeypatch: pytest.MonkeyPatch
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

    async def test_a_missing_schema_is_a_503(self, api: Api, db: Database) -> None:
        await _sql(db, "ALTER TABLE responses RENAME TO responses_to_come")
        try:
            assert (await api.post(background=True)).status_code == 503
        finally:
            await _sql(db, "ALTER TABLE responses_to_come RENAME TO responses")
        assert (await api.post(background=True)).status_code == 200


async def _sql(db: Database, statement: str) -> None:
    async with db.begin() as connection:
        await connection.execute(text(AS_OWNER))
        await connection.execute(text(statement))


class TestRedisAway:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_foreground_requests_are_refused_and_nothing_is_stored(
        self, api: Api, db: Database, services: Any, stream: bool
    ) -> None:
        await asyncio.to_thread(services.valkey.stop)
        await until(lambda: not api.runtime.pubsub.connected)
        answer = await api.post(stream=stream)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert await ids(db) == []

    async def test_background_requests_are_accepted_without_redis(self, api: Api, db: Database, services: Any) -> None:
        await asyncio.to_thread(services.valkey.stop)
        response_id = await api.background()
        assert (await row_of(db, response_id)).status is Status.QUEUED

    async def test_a_background_response_is_streamed_through_postgres(
        self, api: Api, db: Database, services: Any
    ) -> None:
        await asyncio.to_thread(services.valkey.stop)
        reading = asyncio.create_task(api.post(background=True, stream=True))
        await Player(db, None).answer("Hi", response_id=await one(db))
        assert b"event: response.completed\n" in (await reading).content

    async def test_cancel_is_decided_in_postgres(self, api: Api, db: Database, services: Any) -> None:
        response_id = await api.background()
        await asyncio.to_thread(services.valkey.stop)
        answer = await api.client.post(f"/v1/responses/{response_id}/cancel")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_foreground_request_survives_an_emptied_redis(
        self, api: Api, db: Database, services: Any, player: Player, stream: bool
    ) -> None:
        waiting = asyncio.create_task(api.post(stream=stream))
        play = await player.begin()
        await play.said("Once ")
        await asyncio.to_thread(services.empty_valkey)
        await (await play.said("upon")).finished()
        answer = await waiting
        assert answer.status_code == 200
        assert "Once upon" in answer.text

    async def test_foreground_requests_are_accepted_when_redis_is_back(
        self, api: Api, services: Any, player: Player
    ) -> None:
        await asyncio.to_thread(services.valkey.restart)
        await until(lambda: api.runtime.pubsub.connected)
        async with player.at_work("Hi"):
            assert (await api.post()).status_code == 200


@pytest.mark.parametrize("form", FORMS)
async def test_a_message_that_cannot_be_sent_is_no_error(
    api: Api, db: Database, player: Player, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]
) -> None:
    async def fail(*_: object) -> None:
        raise QueueUnavailable("no")

    monkeypatch.setattr(TaskQueue, "enqueue", fail)
    async with player.at_work("Hi"):
        assert (await api.post(**form)).status_code == 200
        await until(lambda: ids(db, "completed"))


async def test_the_api_starts_without_postgres_and_redis_and_finds_them_later(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    await asyncio.to_thread(services.postgres.stop)
    await asyncio.to_thread(services.valkey.stop)
    async with serving(settings_for(services, tmp_path)) as api:
        assert (await api.client.get("/health/live")).status_code == 200
        assert (await api.client.get("/health/ready")).json()["missing"][:2] == ["postgres", "redis"]
        assert (await api.post(model=MODEL)).status_code == 503
        await asyncio.to_thread(services.heal)
        await until(lambda: api.runtime.pubsub.connected)
        await until(lambda: _answers(db))
        async with Player(db, pubsub).at_work("Hi"):
            assert (await api.post()).json()["status"] == "completed"


async def test_a_statement_that_takes_too_long_is_a_503_that_names_it_and_changes_nothing(
    api: Api, services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await api.client.post("/v1/conversations", json={})).json()["id"]
    path = f"/v1/conversations/{made}/items"
    sent = {"items": [{"role": "user", "content": text} for text in ("a", "b")]}
    monkeypatch.setattr(main, "CALLER_SECONDS", 1.0)
    async with serving(settings_for(services, tmp_path)) as impatient, db.begin() as connection:
        await connection.execute(text("SELECT 1 FROM conversations FOR UPDATE"))
        answer = await impatient.client.post(path, json=sent)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "statement_timeout"
    assert (await api.client.get(path)).json()["data"] == []
    assert (await api.client.post(path, json=sent)).status_code == 200
