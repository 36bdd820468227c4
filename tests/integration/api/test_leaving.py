"""Foreground clients that leave: at whatever moment, their response is cancelled and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.local.ports import free_port
from app.protocol.status import Status
from app.queue.message import Message
from app.queue.publisher import TaskQueue
from app.store.database import Database, StoreUnavailable
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.streaming.pubsub import PubSub
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.celery_processes import Process
from tests.support.player import Player, ids, one, row_of
from tests.support.rows import alive
from tests.support.scripted import models_of
from tests.support.upping import LONGHAUL
from tests.support.waiting import until

FORMS = pytest.mark.parametrize("stream", [False, True])


async def leave(request: asyncio.Task[Any]) -> None:
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)


async def cancelled(db: Database, response_id: str) -> None:
    await until(lambda: _has(db, response_id, Status.CANCELLED), what="a cancelled row")


async def _has(db: Database, response_id: str, status: Status) -> bool:
    try:
        return (await row_of(db, response_id)).status is status
    except StoreUnavailable:  # a connection of the test's own that broke with Postgres
        return False


@FORMS
async def test_leaving_while_the_response_is_queued_cancels_it(api: Api, db: Database, stream: bool) -> None:
    request = asyncio.create_task(api.post(stream=stream))
    response_id = await one(db)
    await leave(request)
    await cancelled(db, response_id)
    assert (await row_of(db, response_id)).attempt == 0


@FORMS
async def test_leaving_while_the_response_runs_cancels_it_with_its_output_so_far(
    api: Api, db: Database, player: Player, stream: bool
) -> None:
    request = asyncio.create_task(api.post(stream=stream))
    play = await player.begin()
    await play.said("Hi")
    await leave(request)
    await cancelled(db, play.id)
    row = await row_of(db, play.id)
    assert row.output is not None
    assert row.output[0]["content"][0]["text"] == "Hi"
    assert row.output[0]["status"] == "incomplete"
    assert not await play.write(play.say("more")), "the fence stops its worker"


async def test_leaving_early_evades_no_usage(api: Api, db: Database, player: Player) -> None:
    playing = asyncio.create_task(player.begin())
    async with api.streaming() as reader:
        play = await playing
        await play.said("Hi", "there")
        await reader.until_event("response.output_text.delta")
    await cancelled(db, play.id)
    async with db.autocommit() as connection:
        noted = await connection.execute(text("SELECT output_tokens FROM usage_entries"))
        assert list(noted.scalars()) == [2]


async def test_leaving_in_the_middle_of_the_stream_cancels_the_response(api: Api, db: Database, player: Player) -> None:
    playing = asyncio.create_task(player.begin())
    async with api.streaming() as reader:
        play = await playing
        await play.said("Hi")
        await reader.until_event("response.output_text.delta")
    await cancelled(db, play.id)


@FORMS
async def test_every_cancellation_is_published_to_readers_and_workers(
    api: Api, db: Database, pubsub: PubSub, player: Player, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    revoked: list[str] = []

    async def revoke(_: TaskQueue, *response_ids: str) -> None:
        revoked.extend(response_ids)

    monkeypatch.setattr(TaskQueue, "revoke", revoke)
    await alive(db, model=MODEL)
    request = asyncio.create_task(api.post(stream=stream))
    left = await one(db)
    async with pubsub.subscribe(left) as subscription:
        await until(lambda: subscription.is_complete, what="Redis to confirm the subscription")
        await leave(request)
        await until(lambda: revoked == [left] and subscription.has_received)
        assert [chunk.final for chunk in subscription._received] == [True]
    by_cancel, by_delete = await api.background(), await api.background()
    await api.client.post(f"/v1/responses/{by_cancel}/cancel")
    await api.client.delete(f"/v1/responses/{by_delete}")
    await until(lambda: sorted(revoked) == sorted([left, by_cancel, by_delete]))


@FORMS
async def test_leaving_after_the_end_changes_nothing(api: Api, db: Database, player: Player, stream: bool) -> None:
    async with player.at_work("Hi"):
        await api.post(stream=stream)
    await api.client.aclose()
    await api.runtime.responses.close()
    assert await ids(db, "completed") == await ids(db)


@FORMS
async def test_leaving_during_the_insert_cancels_the_response(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    create = Inserter.create

    async def slow(intake: Inserter, new: NewResponse) -> None:
        begun.set()
        await go_on.wait()
        await create(intake, new)

    monkeypatch.setattr(Inserter, "create", slow)
    request = asyncio.create_task(api.post(stream=stream))
    await begun.wait()
    await leave(request)
    await until(lambda: not api.server.server_state.connections, what="the server to notice")
    go_on.set()
    await cancelled(db, await one(db))


@FORMS
async def test_leaving_during_a_batched_insert_cancels_that_response_alone(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    batches: list[int] = []
    send = TaskQueue._send_messages

    async def counted(queue: TaskQueue, messages: Sequence[Message]) -> None:
        batches.append(len(messages))
        await send(queue, messages)

    monkeypatch.setattr(TaskQueue, "_send_messages", counted)
    await alive(db, model=MODEL)
    async with db.begin() as connection:
        await connection.execute(text("LOCK TABLE responses IN SHARE MODE"))
        first = asyncio.create_task(api.post(stream=stream))
        await until(lambda: len(api.server.server_state.connections) == 1)
        await until(lambda: _waits_for_a_lock(db))
        others = [asyncio.create_task(api.post(background=True)) for _ in range(5)]
        await until(lambda: len(api.runtime.responses._creator._inserter._shared._waiting) == 5)
        await leave(first)
        await until(lambda: len(api.server.server_state.connections) == 5, what="the server to notice")
    assert [(await other).status_code for other in others] == [200] * 5
    await until(lambda: ids(db, "cancelled"))
    assert (len(await ids(db, "cancelled")), len(await ids(db, "queued"))) == (1, 5)
    assert batches == [1, 5]


async def _waits_for_a_lock(db: Database) -> bool:
    async with db.begin() as connection:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%unnest%'")
        return bool((await connection.execute(waiting)).scalar_one())


@FORMS
async def test_an_insert_with_unknown_outcome_is_cancelled(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    create = Inserter.create

    async def cut(intake: Inserter, new: NewResponse) -> None:
        await create(intake, new)
        raise StoreUnavailable("the connection broke after the commit")

    monkeypatch.setattr(Inserter, "create", cut)
    answer = await api.post(stream=stream)
    assert answer.status_code == 503
    await cancelled(db, await one(db))
    assert (await api.post(background=True)).status_code == 503
    await until(lambda: _all_cancelled(db, 2))


async def _all_cancelled(db: Database, count: int) -> bool:
    return len(await ids(db, "cancelled")) == count == len(await ids(db))


@FORMS
async def test_a_response_whose_client_leaves_while_postgres_is_away_is_cancelled_later(
    api: Api, db: Database, services: Any, stream: bool
) -> None:
    request = asyncio.create_task(api.post(stream=stream))
    response_id = await one(db)
    await asyncio.to_thread(services.postgres.stop)
    await leave(request)
    await until(lambda: not api.server.server_state.connections, what="the server to notice")
    await asyncio.to_thread(services.postgres.start)
    await cancelled(db, response_id)


async def test_a_hundred_clients_that_leave_at_once_cancel_a_hundred_responses(api: Api, db: Database) -> None:
    requests = [asyncio.create_task(api.post(stream=bool(number % 2))) for number in range(100)]
    await until(lambda: _count(db, 100))
    for request in requests:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    await until(lambda: _all_cancelled(db, 100))


async def _count(db: Database, number: int) -> bool:
    return len(await ids(db)) == number


async def test_a_stopping_server_ends_foreground_requests_with_their_cancellation(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    async with serving(settings_for(services, tmp_path)) as api:
        waiting = asyncio.create_task(api.post())
        streaming = asyncio.create_task(api.post(stream=True))
        await until(lambda: _count(db, 2))
        api.runtime.shutdown.begin()
        answer, events = await waiting, await streaming
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert b"event: response.failed\n" in events.content
        assert events.content.endswith(b"data: [DONE]\n\n")
        await until(lambda: _all_cancelled(db, 2))


class ApiProcess(Process):
    """`longhaul api` as its own process."""

    def __init__(self, services: Any, home: Path, **env: str) -> None:
        self.port = free_port()
        models = home / "models.toml"
        models.write_text(models_of(MODEL))
        urls = {"DATABASE_URL": services.database_url, "REDIS_URL": services.redis_url}
        places = {"LONGHAUL_MODELS": str(models), "LONGHAUL_HOME": str(home), "LONGHAUL_PORT": str(self.port)}
        super().__init__([*LONGHAUL, "api"], {**urls, **places, **env}, home / "api.txt")

    async def started(self, client: httpx.AsyncClient) -> None:
        async def alive() -> bool:
            assert self.is_running, self.text
            try:
                return (await client.get("/health/live")).status_code == 200
            except httpx.TransportError:
                return False

        await until(alive, what="the API process")

    async def ended(self) -> int:
        return await asyncio.to_thread(self.wait)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_and_ctrl_c_end_open_streams_and_the_process(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path, signum: signal.Signals
) -> None:
    process = ApiProcess(services, tmp_path, LONGHAUL_API_GRACE_SECONDS="0.2")
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=30) as client:
            await process.started(client)
            api = Api(None, client)  # type: ignore[arg-type]
            response_id = await api.background(stream=True)
            foreground = asyncio.create_task(api.post())
            await until(lambda: _count(db, 2))
            async with api.resuming(response_id) as reader:
                assert (await reader.event() or {})["type"] == "response.created"
                process.send_signal(signum)
                rest = await reader.rest()
            assert b"[DONE]" not in rest, "its reader must see that this was not the end"
            assert (await foreground).json()["status"] == "cancelled"
        await process.ended()
        output = process.text
        assert "Traceback" not in output
        assert "timeout graceful shutdown exceeded" not in output
        assert output.count("longhaul.http: request ") == 3, "every request has its line, those that ended last too"
        assert "Finished server process" in output.splitlines()[-1]
        assert (await row_of(db, response_id)).status is Status.QUEUED, "background work goes on elsewhere"
    finally:
        process.kill()


async def test_a_killed_api_loses_no_background_response(
    services: Any, db: Database, pubsub: PubSub, tmp_path: Path
) -> None:
    process = ApiProcess(services, tmp_path)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=30) as client:
            await process.started(client)
            api = Api(None, client)  # type: ignore[arg-type]
            response_id = await api.background(stream=True)
            play = await Player(db, pubsub).begin(response_id)
            await play.said("Hi")
            with pytest.raises(httpx.RemoteProtocolError):
                async with api.resuming(response_id) as reader:
                    await reader.until_event("response.output_text.delta")
                    process.kill()
                    await reader.rest()
        await play.finished()
    finally:
        process.kill()
    async with serving(settings_for(services, tmp_path)) as api:
        assert (await api.get(response_id)).json()["status"] == "completed"
        resumed = await api.get(response_id, stream="true", starting_after=5)
        assert b"event: response.completed\n" in resumed.content
