"""`GET /v1/responses/{id}?wait=`: an answer once the response has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from app.sizes import LARGE_BYTES
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.api import Api
from tests.support.player import Player
from tests.support.waiting import until


def _waiting(api: Api, response_id: str, seconds: int = 60) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(api.get(response_id, wait=seconds))


async def _subscribed(api: Api) -> None:
    await until(lambda: _has_readers(api), what="the waiting client is subscribed")


async def _has_readers(api: Api) -> bool:
    return bool(api.runtime.pubsub._channels)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_waiting_client_is_answered_once_the_response_has_ended(api: Api, player: Player, stream: bool) -> None:
    response_id = await api.background(stream=stream)
    waiting = _waiting(api, response_id)
    await _subscribed(api)
    play = await player.begin(response_id)
    await play.said("Hello")
    assert not waiting.done()
    await play.finished()
    assert (await waiting).json()["status"] == "completed"


async def test_a_cancel_ends_the_wait(api: Api) -> None:
    response_id = await api.background()
    waiting = _waiting(api, response_id)
    await _subscribed(api)
    await api.client.post(f"/v1/responses/{response_id}/cancel")
    assert (await waiting).json()["status"] == "cancelled"


async def test_a_delete_ends_the_wait(api: Api) -> None:
    response_id = await api.background()
    waiting = _waiting(api, response_id)
    await _subscribed(api)
    await api.client.delete(f"/v1/responses/{response_id}")
    assert (await waiting).status_code == 404


async def test_a_client_that_waits_gets_a_large_response_whole(api: Api, player: Player) -> None:
    said = "x" * 2 * LARGE_BYTES
    response_id = await api.background()
    waiting = _waiting(api, response_id)
    await _subscribed(api)
    await player.answer(said, response_id=response_id)
    assert (await waiting).json()["output"][0]["content"][0]["text"] == said


async def test_what_cannot_be_included_is_refused_before_the_wait(api: Api) -> None:
    response_id = await api.background()
    refused = await api.get(response_id, wait=300, include="code_interpreter_call.outputs")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "include")


async def test_responses_that_end_together_are_read_together(
    api: Api, db: Database, pubsub: PubSub, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses = [await api.background() for _ in range(8)]
    waiting = [_waiting(api, each) for each in responses]
    await until(lambda: len(api.runtime.pubsub._channels) == len(responses), what="all clients are subscribed")
    for each in responses:
        await Player(db, None).answer("Hello", response_id=each)
    statements = []
    execute = Database.execute

    async def counted(self: Database, *args: Any, **more: Any) -> Any:
        if self is api.runtime.db:
            statements.append(args)
        return await execute(self, *args, **more)

    monkeypatch.setattr(Database, "execute", counted)
    await pubsub.tell_ends(*responses)
    assert {(await each).json()["status"] for each in waiting} == {"completed"}
    assert len(statements) < len(responses)


async def test_after_its_time_a_wait_is_answered_with_what_there_is(api: Api) -> None:
    response_id = await api.background()
    answer = await api.get(response_id, wait=1)
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")


async def test_a_response_that_has_ended_is_answered_at_once(api: Api, player: Player) -> None:
    response_id = await api.background()
    await player.answer("Hello", response_id=response_id)
    assert (await api.get(response_id, wait=300)).json()["status"] == "completed"


async def test_what_is_not_there_is_not_waited_for(api: Api) -> None:
    assert (await api.get("resp_missing", wait=60)).status_code == 404


@pytest.mark.parametrize(("query", "param"), [({"wait": 301}, "wait"), ({"wait": 1, "stream": "true"}, "wait")])
async def test_a_wait_is_bounded_and_not_for_streams(api: Api, query: dict[str, object], param: str) -> None:
    refused = await api.get("resp_missing", **query)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_server_that_stops_answers_those_who_wait(api: Api) -> None:
    response_id = await api.background()
    waiting = _waiting(api, response_id)
    await _subscribed(api)
    api.runtime.shutdown.begin()
    assert (await waiting).json()["status"] == "queued"


async def test_many_who_wait_keep_no_other_request_waiting(api: Api, player: Player) -> None:
    """More than are accepted at once."""
    response_id = await api.background()
    waiting = [_waiting(api, response_id) for _ in range(90)]
    await _subscribed(api)
    assert (await api.get(response_id)).status_code == 200
    await player.answer("Hello", response_id=response_id)
    assert {(await each).json()["status"] for each in waiting} == {"completed"}
