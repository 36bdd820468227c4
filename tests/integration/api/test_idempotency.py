"""`Idempotency-Key`: a repeated request gets the same response."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.protocol.status import Status
from app.store.database import Database
from app.store.responses import logs
from tests.support.api import MODEL, Api, Reader
from tests.support.player import Player, ids, one, row_of
from tests.support.waiting import until

KEY = {"Idempotency-Key": "order-66"}


async def post(api: Api, headers: dict[str, str] = KEY, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "Hello!", **fields}
    return await api.client.post("/v1/responses", json=body, headers=headers)


async def streamed(api: Api, **fields: Any) -> bytes:
    body = {"model": MODEL, "input": "Hello!", "stream": True, **fields}
    async with api.client.stream("POST", "/v1/responses", json=body, headers=KEY) as response:
        assert response.status_code == 200
        return await Reader(response).rest()


async def test_a_repeated_background_request_returns_the_response_as_it_is_now(
    api: Api, db: Database, player: Player
) -> None:
    first = (await post(api, background=True)).json()
    assert (await post(api, background=True)).json() == first
    await player.answer("Hi", response_id=first["id"])
    again = (await post(api, background=True)).json()
    assert (again["id"], again["status"]) == (first["id"], "completed")
    assert len(await ids(db)) == 1


async def test_a_repeated_request_may_have_other_metadata_of_its_client(api: Api, player: Player) -> None:
    first = (await post(api, background=True, client_metadata={"attempt": "1"})).json()
    assert (await post(api, background=True, client_metadata={"attempt": "2"})).json() == first


async def test_concurrent_requests_with_one_key_make_one_response(api: Api, db: Database, player: Player) -> None:
    answers = asyncio.gather(*(post(api) for _ in range(10)))
    await player.answer("Hi")
    assert len({answer.text for answer in await answers}) == 1
    assert len(await ids(db)) == 1


async def test_a_repeated_sync_request_waits_for_the_first_response(api: Api, db: Database, player: Player) -> None:
    first = asyncio.create_task(post(api))
    play = await player.begin()
    second = asyncio.create_task(post(api))
    await (await play.said("Hi")).finished()
    assert (await first).json() == (await second).json() == (await post(api)).json()


async def test_a_stream_is_replayed_from_its_first_event(api: Api, db: Database, player: Player) -> None:
    async with player.at_work("Hi", " there"):
        first = await streamed(api)
    assert await streamed(api) == first
    (response_id,) = await ids(db)
    reading = await logs.read(db, response_id)
    assert first == b"".join(chunk.frames for chunk in reading.chunks) + b"data: [DONE]\n\n"


async def test_a_background_stream_is_replayed_from_its_first_event(api: Api, player: Player) -> None:
    async with player.at_work("Hi", " there"):
        first = await streamed(api, background=True)
    assert await streamed(api, background=True) == first


async def test_another_body_is_a_400(api: Api, db: Database) -> None:
    await post(api, background=True)
    for fields in ({"background": True, "input": "Bye!"}, {"input": "Bye!"}, {"stream": True}):
        answer = await post(api, **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "idempotency_key_reused")
        assert error["param"] == "Idempotency-Key"
    assert len(await ids(db)) == 1


async def test_equal_json_written_differently_is_the_same_body(api: Api, db: Database) -> None:
    bodies = (
        b'{"model": "scripted", "input": "x", "background": true}',
        b'{"background":true,"input":"x","model":"scripted"}',
    )
    headers = {**KEY, "content-type": "application/json"}
    answers = [await api.client.post("/v1/responses", content=body, headers=headers) for body in bodies]
    assert answers[0].json() == answers[1].json()


async def test_an_invalid_key_is_a_400(api: Api, db: Database) -> None:
    for key in (b"", b"x" * 256, b"a b", b"\xe9"):
        sent = {"model": MODEL, "input": "x"}
        answer = await api.client.post("/v1/responses", json=sent, headers={b"idempotency-key": key})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert await ids(db) == []


async def test_a_refused_request_leaves_its_key_free(api: Api, player: Player) -> None:
    assert (await post(api, previous_response_id="resp_none")).status_code == 400
    async with player.at_work("Hi"):
        assert (await post(api)).status_code == 200


async def test_a_repeated_bad_prompt_is_a_400_each_time(api: Api, player: Player) -> None:
    first = asyncio.create_task(post(api))
    await (await player.begin()).failed("invalid_prompt", "bad")
    assert (await first).status_code == 400
    for fields in ({}, {}):
        assert (await post(api, **fields)).json()["error"]["code"] == "invalid_prompt"


async def test_the_response_goes_on_without_its_client_and_is_there_for_the_repeated_request(
    api: Api, db: Database, player: Player
) -> None:
    body = {"model": MODEL, "input": "Hello!", "stream": True}
    async with api.client.stream("POST", "/v1/responses", json=body, headers=KEY) as response:
        play = await player.begin()
        assert await Reader(response).event() is not None
    await play.said("Hi")
    assert (await row_of(db, play.id)).status is Status.IN_PROGRESS
    again = asyncio.create_task(streamed(api))
    await play.finished()
    assert b"response.completed" in await again


async def test_the_response_goes_on_when_the_server_stops(api: Api, db: Database, player: Player) -> None:
    waiting = asyncio.create_task(post(api))
    play = await player.begin(await one(db, "queued"))
    api.runtime.shutdown.begin()
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")
    assert "retry-after" in answer.headers
    await play.finished()
    assert (await row_of(db, play.id)).status is Status.COMPLETED


async def test_a_stream_cut_by_a_stopping_server_has_no_done(api: Api, db: Database, player: Player) -> None:
    reading = asyncio.create_task(streamed(api))
    play = await player.begin(await one(db, "queued"))
    await until(lambda: bool(api.server.server_state.tasks))
    await play.said("Hi")
    api.runtime.shutdown.begin()
    assert b"[DONE]" not in await reading
    assert (await row_of(db, play.id)).status is Status.IN_PROGRESS


async def test_a_key_is_free_again_when_its_response_is_deleted(api: Api, db: Database) -> None:
    first = (await post(api, background=True)).json()["id"]
    await api.client.delete(f"/v1/responses/{first}")
    assert (await post(api, background=True)).json()["id"] != first


async def test_an_insert_that_may_have_been_committed_is_not_cancelled(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.store.database import StoreUnavailable
    from app.store.responses.inserts import Inserter

    real = Inserter.create

    async def lost(*arguments: Any) -> Any:
        await real(*arguments)
        raise StoreUnavailable("gone")

    monkeypatch.setattr(Inserter, "create", lost)
    assert (await post(api, background=True)).status_code == 503
    monkeypatch.setattr(Inserter, "create", real)
    again = (await post(api, background=True)).json()
    assert [again["id"]] == await ids(db)
    assert again["status"] == "queued"
