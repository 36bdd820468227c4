"""`GET /v1/responses/{id}?wait=`: an answer once the response has ended."""

from __future__ import annotations

import asyncio

import httpx

from app.sizes import LARGE_BYTES
from tests.support.api import Api
from tests.support.player import Player
from tests.support.waiting import until


def _waiting(api: Api, response_id: str, seconds: int = 60) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(api.get(response_id, wait=seconds))


async def _subscribed(api: Api) -> None:
    await until(lambda: api.runtime.pubsub._channels, what="the waiting client is subscribed")


async def test_a_client_that_waits_is_answered_once_the_response_has_ended(api: Api, player: Player) -> None:
    said = "x" * 2 * LARGE_BYTES
    for stream in (False, True):
        response_id = await api.background(stream=stream)
        waiting = _waiting(api, response_id)
        await _subscribed(api)
        play = await player.begin(response_id)
        await play.said(said)
        assert not waiting.done()
        await play.finished()
        answer = (await waiting).json()
        assert (answer["status"], answer["output"][0]["content"][0]["text"]) == ("completed", said)
    assert (await api.get(response_id, wait=300)).json()["status"] == "completed", "at once"
    for method, path, status in (("POST", "/cancel", 200), ("DELETE", "", 404)):
        response_id = await api.background()
        waiting = _waiting(api, response_id)
        await _subscribed(api)
        await api.client.request(method, f"/v1/responses/{response_id}{path}")
        answered = await waiting
        assert answered.status_code == status
    response_id = await api.background()
    answered = await api.get(response_id, wait=1)
    assert (answered.status_code, answered.json()["status"]) == (200, "queued"), "what there is after the time"


async def test_what_cannot_be_waited_for_is_refused_before_the_wait(api: Api) -> None:
    response_id = await api.background()
    for query, param in (
        ({"wait": 300, "include": "code_interpreter_call.outputs"}, "include"),
        ({"wait": 301}, "wait"),
        ({"wait": 1, "stream": "true"}, "wait"),
    ):
        refused = await api.get(response_id, **query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert (await api.get("resp_missing", wait=60)).status_code == 404


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
