"""`POST /v1/chat/completions`: the response behind it, and what its client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from app.protocol.events import frames
from app.protocol.events.deltas import CallArguments, CallStart, Reasoning, Text
from app.protocol.events.machine import ResponseStream
from app.store.database import Database
from app.store.responses import logs
from config.models import ModelCatalog
from tests.support.api import MODEL, Api, Reader, served, serving, settings_for
from tests.support.player import Play, Player, one
from tests.support.rows import release_all
from tests.support.waiting import until

Json = dict[str, Any]
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    """Its model calls tools and reasons."""
    model = replace(served(), tool_parser="hermes", reasoning_parser="qwen3")
    async with serving(settings_for(services, tmp_path), ModelCatalog((model,))) as running:
        yield running


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


def error_of(answer: Any) -> Json:
    error: Json = answer.json()["error"]
    return error


async def feed(play: Play, *deltas: Any) -> None:
    for delta in deltas:
        await play.write(play.entry(play.stream.feed(delta)))


class TestObject:
    async def test_the_answer_is_a_completion(self, client: openai.AsyncOpenAI, player: Player) -> None:
        async with player.at_work("Hi", " there"):
            answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
        (choice,) = answer.choices
        assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hi there", "stop")
        assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", MODEL, "chatcmpl-")
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (1, 2, 3)

    async def test_calls_and_reasoning_are_in_the_message(self, client: openai.AsyncOpenAI, player: Player) -> None:
        asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=HELLO, tools=[TOOL]))
        play = await player.begin()
        await feed(play, Reasoning("Hm."), CallStart("look"), CallArguments('{"a":'), CallArguments("1}"))
        await play.finished()
        (choice,) = (await asking).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.to_dict()["reasoning_content"] == "Hm."
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        assert (call.function.name, call.function.arguments) == ("look", '{"a":1}')

    async def test_it_is_not_kept_unless_store_is_true(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            unkept = await post(api)
            kept = await post(api, store=True, metadata={"a": "b"})
        assert (await api.get(unkept.headers["x-longhaul-response"])).status_code == 404
        found = await api.get(kept.headers["x-longhaul-response"])
        assert (found.status_code, found.json()["metadata"]) == (200, {"a": "b"})
        assert kept.json()["id"].partition("-")[2] == found.json()["id"].partition("_")[2]

    async def test_a_prompt_that_does_not_fit_is_a_400_in_chats_terms(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(post(api))
        await (await player.begin()).failed("context_length_exceeded", "The prompt has 9 tokens; the model takes 8.")
        answer = await asking
        assert (answer.status_code, error_of(answer)["param"]) == (400, "messages")

    async def test_a_failure_is_an_error(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(post(api))
        await (await player.begin()).failed("server_error", "it broke")
        answer = await asking
        assert (answer.status_code, error_of(answer)["message"]) == (500, "it broke")

    async def test_a_cancelled_one_is_an_error(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(post(api, store=True))
        play = await player.begin()
        assert (await api.client.post(f"/v1/responses/{play.id}/cancel")).json()["status"] == "cancelled"
        answer = await asking
        assert (answer.status_code, error_of(answer)["code"]) == (400, "response_cancelled")

    async def test_a_client_that_leaves_cancels_it(self, api: Api, db: Database, player: Player) -> None:
        asking = asyncio.create_task(post(api))
        play = await player.begin()
        asking.cancel()
        await until(lambda: one(db, "cancelled"), what="a cancelled response")
        assert not await play.write(play.say("too late"))


class TestStream:
    async def test_the_sdk_puts_the_chunks_together(self, client: openai.AsyncOpenAI, player: Player) -> None:
        options: Any = {"include_usage": True}
        async with (
            player.at_work("Hi", " there"),
            client.chat.completions.stream(model=MODEL, messages=HELLO, stream_options=options) as stream,
        ):
            answer = await stream.get_final_completion()
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Hi there", "stop")
        assert answer.usage is not None
        assert answer.usage.total_tokens == 3

    async def test_the_chunks_come_as_the_model_writes(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await feed(play, Text("Hi"))
            found = [await chunk(reader), await chunk(reader)]
            await feed(play, Text(" there"))
            found.append(await chunk(reader))
            await play.finished()
            found += await lines_of(reader)
        deltas = [choice["delta"] for each in found for choice in each["choices"]]
        assert deltas == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {"content": " there"}, {}]
        assert [each["choices"][0]["finish_reason"] for each in found] == [None, None, None, "stop"]
        assert all("usage" not in each for each in found)
        assert reader.response.headers["x-longhaul-response"].partition("_")[2] == found[0]["id"].partition("-")[2]

    async def test_usage_comes_last_if_it_is_asked_for(self, api: Api, player: Player) -> None:
        async with streaming(api, player, stream_options={"include_usage": True}) as (reader, play):
            await (await play.said("Hi")).finished()
            *others, last = await lines_of(reader)
        assert [each["usage"] for each in others] == [None] * len(others)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2)

    async def test_a_silent_stream_has_comments(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await chunk(reader)
            assert await reader.frame() == b": keepalive\n\n"
            await play.finished()
            await lines_of(reader)

    async def test_a_failure_in_the_stream_is_a_line_before_its_end(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            await play.failed("server_error", "it broke")
            *_, last = await lines_of(reader)
        assert last == {"error": {"message": "it broke", "type": "server_error", "param": None, "code": "server_error"}}

    async def test_the_sdk_raises_an_error_in_the_stream(self, client: openai.AsyncOpenAI, player: Player) -> None:
        playing = asyncio.create_task(player.begin())
        stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
        await (await (await playing).said("Hi")).failed("server_error", "it broke")
        with pytest.raises(openai.APIError, match="it broke"):
            async for _ in stream:
                pass

    async def test_a_prompt_that_does_not_fit_is_a_400_before_the_stream(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(post(api, stream=True))
        await (await player.take()).failed("invalid_prompt", "input[0].content: is wrong")
        answer = await asking
        assert answer.status_code == 400
        assert (error_of(answer)["param"], error_of(answer)["message"]) == (
            "messages[0].content",
            "messages[0].content: is wrong",
        )

    async def test_a_client_that_leaves_cancels_it(self, api: Api, db: Database, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            await chunk(reader)
        await until(lambda: one(db, "cancelled"), what="a cancelled response")

    async def test_a_takeover_loses_and_repeats_nothing(self, api: Api, db: Database, player: Player) -> None:
        async with streaming(api, player) as (reader, first):
            await first.said("one", " two")
            await release_all(db, first.worker)
            second = await player.take(first.id)
            log = await logs.read(db, first.id)
            second.stream = ResponseStream.restore(frames.decode(b"".join(each.frames for each in log.chunks)))
            await (await second.said(" three")).finished()
            found = await lines_of(reader)
        said = [choice["delta"].get("content") for each in found for choice in each["choices"]]
        assert said == ["", "one", " two", " three", None]

    async def test_deltas_are_padded_if_it_is_asked_for(self, api: Api, player: Player) -> None:
        async with streaming(api, player, stream_options={"include_obfuscation": True}) as (reader, play):
            await (await play.said("Hi")).finished()
            found = await lines_of(reader)
        assert all(isinstance(each["obfuscation"], str) for each in found)


class TestKept:
    """With `store` true, the header names a response with which everything works that works with others."""

    async def test_its_stream_can_be_read_again_as_a_response(self, api: Api, player: Player) -> None:
        async with streaming(api, player, store=True) as (reader, play):
            await (await play.said("Hi", " there")).finished()
            chunks = await lines_of(reader)
        said = [choice["delta"].get("content") or "" for each in chunks for choice in each["choices"]]
        async with api.resuming(reader.response.headers["x-longhaul-response"]) as again:
            assert (await again.until_event("response.completed"))["response"]["store"] is True
        async with api.resuming(play.id, starting_after=5) as rest:
            deltas = [(await rest.until_event("response.output_text.delta"))["delta"]]
        assert (said, deltas) == (["", "Hi", " there", ""], [" there"])

    async def test_it_can_be_cancelled_and_its_client_is_told(self, api: Api, player: Player) -> None:
        async with streaming(api, player, store=True) as (reader, play):
            await play.said("Hi")
            response_id = reader.response.headers["x-longhaul-response"]
            assert (await api.client.post(f"/v1/responses/{response_id}/cancel")).json()["status"] == "cancelled"
            *_, last = await lines_of(reader)
        assert last["error"]["code"] == "response_cancelled"

    async def test_without_it_nobody_else_gets_it(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            for answer in (
                await api.get(play.id),
                await api.get(play.id, stream="true"),
                await api.client.post(f"/v1/responses/{play.id}/cancel"),
            ):
                assert answer.status_code == 404
            await play.finished()
            await lines_of(reader)


KEY = {"Idempotency-Key": "once"}


class TestIdempotency:
    async def test_a_repeated_request_gets_the_same_answer_in_either_form(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi", " there"):
            first = await post(api, KEY)
        assert (await post(api, KEY)).json() == first.json()
        other = await post(api, KEY, stream=True)
        assert (other.status_code, error_of(other)["code"]) == (400, "idempotency_key_reused")

    async def test_a_stream_is_repeated_from_its_first_chunk(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi", " there"):
            first = await post(api, KEY, stream=True)
        assert (await post(api, KEY, stream=True)).text == first.text

    async def test_it_goes_on_without_its_client(self, api: Api, player: Player) -> None:
        asking = asyncio.create_task(post(api, KEY))
        play = await player.begin()
        asking.cancel()
        await play.said("Hi")
        again = asyncio.create_task(post(api, KEY))
        await play.finished()
        assert (await again).json()["choices"][0]["message"]["content"] == "Hi"

    async def test_a_key_of_a_response_is_no_key_of_a_completion(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            body = {"model": MODEL, "input": HELLO, "store": False}
            assert (await api.client.post("/v1/responses", json=body, headers=KEY)).status_code == 200
            refused = await post(api, KEY)
        assert (refused.status_code, error_of(refused)["code"]) == (400, "idempotency_key_reused")


class TestRefusals:
    """What is refused by others than the translation (tests/unit/chat) names chat's fields all the same."""

    async def test_a_message_larger_than_a_body_may_be_is_a_413(self, api: Api) -> None:
        answer = await post(api, messages=[{"role": "user", "content": "x" * 60_000_000}])
        assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")

    async def test_what_the_model_cannot_do_is_a_400_that_names_the_field(self, api: Api) -> None:
        url = "data:image/png;base64," + PIXEL
        image = {"type": "image_url", "image_url": {"url": url}}
        for fields, param in (
            ({"messages": [*HELLO, {"role": "user", "content": [image]}]}, "messages[1].content[0]"),
            ({"verbosity": "high"}, "verbosity"),
        ):
            answer = await post(api, **fields)
            assert (answer.status_code, error_of(answer)["param"]) == (400, param)
            assert f"'{param}'" in error_of(answer)["message"]

    async def test_an_unknown_model_is_a_404(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="none", messages=HELLO)
        assert caught.value.code == "model_not_found"

    async def test_text_may_have_nul(self, api: Api, db: Database, player: Player) -> None:
        asking = asyncio.create_task(post(api, messages=[{"role": "user", "content": "a\0b"}]))
        play = await player.begin()
        assert play.row.request["input"][0]["content"][0]["text"] == "a\0b"
        await play.finished()
        assert (await asking).status_code == 200
        assert (await post(api, messages=[{"role": "tool", "tool_call_id": "\0", "content": ""}])).status_code == 400
