"""Foreground clients that leave: at whatever moment, their response is cancelled and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from app.protocol.status import Status
from app.queue.publisher import TaskQueue
from app.store.database import Database, StoreUnavailable
from app.store.responses.inserts import Inserter
from app.store.responses.new_rows import NewResponse
from app.streaming.pubsub import PubSub
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.api_process import ApiProcess
from tests.support.batches import has_responses
from tests.support.logs import row_of
from tests.support.player import Player, ids, one
from tests.support.rows import alive
from tests.support.waiting import until


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


async def test_leaving_while_the_response_is_queued_cancels_it(api: Api, db: Database) -> None:
    requests = [asyncio.create_task(api.post(stream=stream)) for stream in (False, True)]
    await until(lambda: has_responses(db, 2))
    for request in requests:
        await leave(request)
    for response_id in await ids(db):
        await cancelled(db, response_id)
        assert (await row_of(db, response_id)).attempt == 0


async def test_leaving_while_the_response_runs_cancels_it_with_its_output_and_usage_so_far(
    api: Api, db: Database, player: Player
) -> None:
    for stream in (False, True):
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
    noted = await db.execute(text("SELECT output_tokens FROM usage_entries"))
    assert [row.output_tokens for row in noted] == [1, 1]


async def test_every_cancellation_is_published_to_readers_and_workers(
    api: Api, db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked: list[str] = []

    async def revoke(_: TaskQueue, *response_ids: str) -> None:
        revoked.extend(response_ids)

    monkeypatch.setattr(TaskQueue, "revoke", revoke)
    await alive(db, model=MODEL)
    for stream in (False, True):
        request = asyncio.create_task(api.post(stream=stream))
        response_id = await one(db, "queued")
        async with pubsub.subscribe(response_id) as subscription:
            await until(lambda: subscription.is_complete, what="Redis to confirm the subscription")
            await leave(request)
            await until(lambda: revoked and subscription.has_received)
            assert revoked.pop() == response_id
            assert [chunk.final for chunk in subscription._received] == [True]
    by_cancel, by_delete = await api.background(), await api.background()
    await api.client.post(f"/v1/responses/{by_cancel}/cancel")
    await api.client.delete(f"/v1/responses/{by_delete}")
    await until(lambda: sorted(revoked) == sorted([by_cancel, by_delete]))


async def test_leaving_during_the_insert_cancels_the_response(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = [], asyncio.Event()
    create = Inserter.create

    async def slow(intake: Inserter, new: NewResponse) -> None:
        begun.append(new)
        await go_on.wait()
        await create(intake, new)

    monkeypatch.setattr(Inserter, "create", slow)
    requests = [asyncio.create_task(api.post(stream=stream)) for stream in (False, True)]
    await until(lambda: len(begun) == 2)
    for request in requests:
        await leave(request)
    await until(lambda: not api.server.server_state.connections, what="the server to notice")
    go_on.set()
    await until(lambda: _all_cancelled(db, 2))


async def test_an_insert_with_unknown_outcome_is_cancelled(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Inserter.create

    async def cut(intake: Inserter, new: NewResponse) -> None:
        await create(intake, new)
        raise StoreUnavailable("the connection broke after the commit")

    monkeypatch.setattr(Inserter, "create", cut)
    for fields in ({}, {"stream": True}, {"background": True}):
        assert (await api.post(**fields)).status_code == 503
    await until(lambda: _all_cancelled(db, 3))


async def _all_cancelled(db: Database, count: int) -> bool:
    return len(await ids(db, "cancelled")) == count == len(await ids(db))


async def test_a_response_whose_client_leaves_while_postgres_is_away_is_cancelled_later(
    api: Api, db: Database, services: Any
) -> None:
    requests = [asyncio.create_task(api.post(stream=stream)) for stream in (False, True)]
    await until(lambda: has_responses(db, 2))
    responses = await ids(db)
    await asyncio.to_thread(services.postgres.stop)
    for request in requests:
        await leave(request)
    await until(lambda: not api.server.server_state.connections, what="the server to notice")
    await asyncio.to_thread(services.postgres.start)
    for response_id in responses:
        await cancelled(db, response_id)


async def test_ctrl_c_ends_open_streams_and_the_process(services: Any, db: Database, tmp_path: Path) -> None:
    """As SIGTERM does: test_draining.py."""
    process = ApiProcess(services, tmp_path, LONGHAUL_API_GRACE_SECONDS="0.2")
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{process.port}", timeout=30) as client:
            await process.started(client)
            api = Api(None, client)  # type: ignore[arg-type]
            response_id = await api.background(stream=True)
            foreground, streaming = asyncio.create_task(api.post()), asyncio.create_task(api.post(stream=True))
            await until(lambda: has_responses(db, 3))
            async with api.resuming(response_id) as reader:
                assert (await reader.event() or {})["type"] == "response.created"
                process.send_signal(signal.SIGINT)
                rest = await reader.rest()
            assert b"[DONE]" not in rest, "its reader must see that this was not the end"
            assert (await foreground).json()["status"] == "cancelled"
            assert b"event: response.failed\n" in (await streaming).content
            assert (await streaming).content.endswith(b"data: [DONE]\n\n")
        await process.ended()
        output = process.text
        assert "Traceback" not in output
        assert "timeout graceful shutdown exceeded" not in output
        assert output.count("longhaul.http: request ") == 4, "every request has its line, those that ended last too"
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
