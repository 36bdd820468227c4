"""`POST /v1/chat/completions`: the response behind it, and what its client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from app.store.database import Database
from tests.integration.api.common import error_of
from tests.support.api import MODEL, Api, Reader
from tests.support.player import Play, Player, one
from tests.support.waiting import until

Json = dict[str, Any]
BODY = 1_000_000
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SETTINGS = {"max_body_bytes": BODY}


async def post(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": MODEL, "messages": HELLO, **fields}
    return await api.client.post("/v1/chat/completions", json=body, headers=headers)


async def lines_of(reader: Reader) -> list[Json]:
    """The chunks up to `[DONE]`, which must come."""
    found: list[Json] = []
    while (frame := await reader.frame()) is not None:
        if frame == b"data: [DONE]\n\n":
            assert await reader.frame() is None
            return found
        if not frame.startswith(b":"):
            found.append(orjson.loads(frame.removeprefix(b"data: ")))
    raise AssertionError("the stream ended without [DONE]")


async def chunk(reader: Reader) -> Json:
    """The next chunk; comments are passed over."""
    while (frame := await reader.frame()) is not None and frame.startswith(b":"):
        pass
    assert frame is not None
    found: Json = orjson.loads(frame.removeprefix(b"data: "))
    return found


@asynccontextmanager
async def streaming(api: Api, player: Player, **fields: Any) -> AsyncIterator[tuple[Reader, Play]]:
    """A stream whose response a worker has begun."""
    playing = asyncio.create_task(player.begin())
    body = {"model": MODEL, "messages": HELLO, **fields, "stream": True}
    async with api.client.stream("POST", "/v1/chat/completions", json=body) as response:
        yield Reader(response), await playing


class TestAnswer:
    async def test_an_end_without_an_answer_is_an_error_in_chats_terms(self, api: Api, player: Player) -> None:
        for fields, code, message, status, error in (
            ({}, "context_length_exceeded", "It is long.", 400, {"param": "messages", "message": "It is long."}),
            ({}, "server_error", "it broke", 500, {"message": "it broke"}),
            (
                {"stream": True},
                "invalid_prompt",
                "input[0].content: is wrong",
                400,
                {"param": "messages[0].content", "message": "messages[0].content: is wrong"},
            ),
        ):
            asking = asyncio.create_task(post(api, **fields))
            await (await player.take()).failed(code, message)
            answer = await asking
            assert (answer.status_code, error_of(answer) | error) == (status, error_of(answer)), answer.text

    async def test_a_client_that_leaves_cancels_it(self, api: Api, db: Database, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            await chunk(reader)
        await until(lambda: one(db, "cancelled"), what="a cancelled response")
        assert not await play.write(play.say("too late"))


class TestStream:
    async def test_the_chunks_come_as_the_model_writes_and_comments_while_it_is_silent(
        self, api: Api, player: Player
    ) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            found = [await chunk(reader), await chunk(reader)]
            assert await reader.frame() == b": keepalive\n\n"
            await play.said(" there")
            found.append(await chunk(reader))
            await play.finished()
            found += await lines_of(reader)
        deltas = [choice["delta"] for each in found for choice in each["choices"]]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {"content": " there"}, {}]
        assert [each["choices"][0]["finish_reason"] for each in found] == [None, None, None, "stop"]
        assert all("usage" not in each and "obfuscation" not in each for each in found)
        assert reader.response.headers["x-longhaul-response"].partition("_")[2] == found[0]["id"].partition("-")[2]

        options = {"include_usage": True, "include_obfuscation": True}
        async with streaming(api, player, stream_options=options) as (reader, play):
            await (await play.said("Hi")).finished()
            *others, last = await lines_of(reader)
        assert [each["usage"] for each in others] == [None] * len(others)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)
        assert all(isinstance(each["obfuscation"], str) for each in others)


class TestKept:
    """With `store` true, the header names a response with which everything works that works with others."""

    async def test_it_can_be_read_streamed_again_and_cancelled(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            kept = await post(api, store=True, metadata={"a": "b"})
        (choice,) = kept.json()["choices"]
        assert (kept.json()["object"], choice["finish_reason"]) == ("chat.completion", "stop")
        assert choice["message"]["content"] == "Hi" and kept.json()["usage"]["completion_tokens"] > 0
        found = await api.get(kept.headers["x-longhaul-response"])
        assert (found.status_code, found.json()["metadata"]) == (200, {"a": "b"})
        assert kept.json()["id"].partition("-")[2] == found.json()["id"].partition("_")[2]

        async with streaming(api, player, store=True) as (reader, play):
            await (await play.said("Hi", " there")).finished()
            await lines_of(reader)
        async with api.resuming(reader.response.headers["x-longhaul-response"]) as again:
            assert (await again.until_event("response.completed"))["response"]["store"] is True
        async with api.resuming(play.id, starting_after=5) as rest:
            assert (await rest.until_event("response.output_text.delta"))["delta"] == " there"

        async with streaming(api, player, store=True) as (reader, play):
            await play.said("Hi")
            assert (await api.client.post(f"/v1/responses/{play.id}/cancel")).json()["status"] == "cancelled"
            *_, last = await lines_of(reader)
        assert last["error"]["code"] == "response_cancelled"
        asking = asyncio.create_task(post(api, store=True))
        play = await player.begin()
        assert (await api.client.post(f"/v1/responses/{play.id}/cancel")).json()["status"] == "cancelled"
        answer = await asking
        assert (answer.status_code, error_of(answer)["code"]) == (400, "response_cancelled")


async def test_a_request_that_is_repeated_with_its_key_gets_the_same_answer_and_goes_on_without_its_client(
    api: Api, player: Player
) -> None:
    object_, stream, left, response = ({"Idempotency-Key": key} for key in ("object", "stream", "left", "response"))
    async with player.at_work("Hi", " there"):
        first = await post(api, object_)
        assert (await post(api, object_)).json() == first.json()
        streamed = await post(api, stream, stream=True)
        assert (await post(api, stream, stream=True)).text == streamed.text
        body = {"model": MODEL, "input": HELLO, "store": False}
        assert (await api.client.post("/v1/responses", json=body, headers=response)).status_code == 200
    for refused in (await post(api, object_, stream=True), await post(api, response)):
        assert (refused.status_code, error_of(refused)["code"]) == (400, "idempotency_key_reused")
    asking = asyncio.create_task(post(api, left))
    play = await player.begin()
    asking.cancel()
    await play.said("Hi")
    again = asyncio.create_task(post(api, left))
    await play.finished()
    assert (await again).json()["choices"][0]["message"]["content"] == "Hi"


async def test_what_others_than_the_translation_refuse_names_chats_fields(api: Api, player: Player) -> None:
    """tests/unit/chat has the rest."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    for fields, status, code, param in (
        ({"messages": [{"role": "user", "content": "x" * BODY}]}, 413, "request_too_large", None),
        ({"model": "none"}, 404, "model_not_found", "model"),
        ({"messages": [*HELLO, {"role": "user", "content": [image]}]}, 400, None, "messages[1].content[0]"),
        ({"verbosity": "high"}, 400, None, "verbosity"),
        ({"messages": [{"role": "tool", "tool_call_id": "\0", "content": ""}]}, 400, None, "messages[0].tool_call_id"),
    ):
        answer = await post(api, **fields)
        error = error_of(answer)
        assert (answer.status_code, error["param"]) == (status, param), error
        assert code in (None, error["code"])
        assert param is None or f"'{param}'" in error["message"] or status == 404, error
    asking = asyncio.create_task(post(api, messages=[{"role": "user", "content": "a\0b"}]))
    play = await player.begin()
    assert play.row.request["input"][0]["content"][0]["text"] == "a\0b"
    await play.finished()
    assert (await asking).status_code == 200
