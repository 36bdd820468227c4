"""`Idempotency-Key`: a repeated request gets the same response."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.protocol.status import Status
from app.store.database import Database, StoreUnavailable
from app.store.responses import logs
from app.store.responses.inserts import Inserter
from tests.support.api import MODEL, Api, Reader
from tests.support.logs import row_of
from tests.support.player import Player, ids, one
from tests.support.waiting import until

KEY = "order-66"


async def post(api: Api, key: Any = KEY, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "Hello!", **fields}
    return await api.client.post("/v1/responses", json=body, headers={"Idempotency-Key": key})


async def streamed(api: Api, key: str = KEY, **fields: Any) -> bytes:
    body = {"model": MODEL, "input": "Hello!", "stream": True, **fields}
    async with api.client.stream("POST", "/v1/responses", json=body, headers={"Idempotency-Key": key}) as response:
        assert response.status_code == 200
        return await Reader(response).rest()


async def test_a_repeated_background_request_gets_the_response_as_it_is_now_until_it_is_deleted(
    api: Api, db: Database, player: Player
) -> None:
    first = (await post(api, background=True, client_metadata={"attempt": "1"})).json()
    assert (await post(api, background=True, client_metadata={"attempt": "2"})).json() == first
    spaced = b'{"input": "Hello!", "background":  true, "model": "scripted", "client_metadata": {"attempt": "1"}}'
    headers = {"Idempotency-Key": KEY, "content-type": "application/json"}
    assert (await api.client.post("/v1/responses", content=spaced, headers=headers)).json() == first
    await player.answer("Hi", response_id=first["id"])
    again = (await post(api, background=True)).json()
    assert (again["id"], again["status"]) == (first["id"], "completed")
    assert len(await ids(db)) == 1
    await api.client.delete(f"/v1/responses/{first['id']}")
    assert (await post(api, background=True)).json()["id"] != first["id"]


async def test_another_body_and_an_invalid_key_are_a_400(api: Api, db: Database) -> None:
    await post(api, background=True)
    for fields in ({"background": True, "input": "Bye!"}, {"input": "Bye!"}, {"stream": True}):
        answer = await post(api, **fields)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "idempotency_key_reused")
        assert error["param"] == "Idempotency-Key"
    for key in (b"", b"x" * 256, b"a b", b"\xe9"):
        answer = await post(api, key)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    assert len(await ids(db)) == 1


async def test_concurrent_requests_with_one_key_make_one_response(api: Api, db: Database, player: Player) -> None:
    answers = [asyncio.create_task(post(api)) for _ in range(10)]
    play = await player.begin()
    answers.append(asyncio.create_task(post(api)))
    await (await play.said("Hi")).finished()
    assert len({(await answer).text for answer in answers} | {(await post(api)).text}) == 1
    assert len(await ids(db)) == 1


async def test_a_stream_is_replayed_from_its_first_event(api: Api, db: Database, player: Player) -> None:
    for background in (False, True):
        key = f"background-{background}"
        async with player.at_work("Hi", " there"):
            first = await streamed(api, key, background=background)
        assert await streamed(api, key, background=background) == first
        reading = await logs.read(db, (await ids(db))[-1])
        assert first == b"".join(chunk.frames for chunk in reading.chunks) + b"data: [DONE]\n\n"


async def test_a_refused_request_leaves_its_key_free_and_a_bad_prompt_is_a_400_each_time(
    api: Api, player: Player
) -> None:
    assert (await post(api, previous_response_id="resp_none")).status_code == 400
    first = asyncio.create_task(post(api))
    await (await player.begin()).failed("invalid_prompt", "bad")
    assert (await first).status_code == 400
    assert (await post(api)).json()["error"]["code"] == "invalid_prompt"


async def test_the_response_goes_on_without_its_client_and_is_there_for_the_repeated_request(
    api: Api, db: Database, player: Player
) -> None:
    body = {"model": MODEL, "input": "Hello!", "stream": True}
    async with api.client.stream("POST", "/v1/responses", json=body, headers={"Idempotency-Key": KEY}) as response:
        play = await player.begin()
        assert await Reader(response).event() is not None
    await play.said("Hi")
    assert (await row_of(db, play.id)).status is Status.IN_PROGRESS
    again = asyncio.create_task(streamed(api))
    await play.finished()
    assert b"response.completed" in await again


async def test_responses_go_on_when_the_server_stops_and_a_cut_stream_has_no_done(
    api: Api, db: Database, player: Player
) -> None:
    waiting = asyncio.create_task(post(api))
    play = await player.begin(await one(db, "queued"))
    reading = asyncio.create_task(streamed(api, "other"))
    streaming = await player.begin(await one(db, "queued"))
    await until(lambda: len(api.server.server_state.tasks) == 2)
    await streaming.said("Hi")
    api.runtime.shutdown.begin()
    answer = await waiting
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "service_unavailable")
    assert "retry-after" in answer.headers
    assert b"[DONE]" not in await reading
    await play.finished()
    assert (await row_of(db, play.id)).status is Status.COMPLETED
    assert (await row_of(db, streaming.id)).status is Status.IN_PROGRESS


async def test_an_insert_that_may_have_been_committed_is_not_cancelled(
    api: Api, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
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
