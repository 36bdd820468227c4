"""`POST /v1/messages` and `/v1/messages/count_tokens`: the response behind them, and what its client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson

from app.protocol.events import frames
from app.store.database import Database
from tests.support.api import MODEL, Api, Reader
from tests.support.player import Play, Player, one
from tests.support.waiting import until

Json = dict[str, Any]
BODY = 1_000_000
HELLO: list[Any] = [{"role": "user", "content": "Hello!"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SETTINGS = {"max_body_bytes": BODY}
VERSION = {"anthropic-version": "2023-06-01"}


async def post(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    body = {"model": MODEL, "max_tokens": 64, "messages": HELLO, **fields}
    return await api.client.post("/v1/messages?beta=true", json=body, headers=headers)


def error_of(answer: Any) -> Json:
    body = answer.json()
    assert (body.keys(), body["type"]) == ({"type", "error", "request_id"}, "error")
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    found: Json = body["error"]
    return found


async def event(reader: Reader) -> Json:
    """The next event; pings are passed over."""
    while True:
        frame = await reader.frame()
        assert frame is not None, "the stream ended"
        (found,) = frames.decode(frame)
        if found["type"] != "ping":
            return found


async def rest_of(reader: Reader) -> list[Json]:
    """The events up to the end: nothing follows the last one."""
    found = [await event(reader)]
    while found[-1]["type"] not in ("message_stop", "error"):
        found.append(await event(reader))
    assert await reader.frame() is None
    return found


@asynccontextmanager
async def streaming(api: Api, player: Player, **fields: Any) -> AsyncIterator[tuple[Reader, Play]]:
    """A stream whose response a worker has begun."""
    playing = asyncio.create_task(player.begin())
    body = {"model": MODEL, "max_tokens": 64, "messages": HELLO, **fields, "stream": True}
    async with api.client.stream("POST", "/v1/messages", json=body) as response:
        yield Reader(response), await playing


class TestAnswer:
    async def test_an_end_without_an_answer_is_an_error_in_anthropics_terms(self, api: Api, player: Player) -> None:
        for fields, code, message, status, error in (
            ({}, "context_length_exceeded", "It is long.", 400, "prompt is too long: It is long."),
            ({}, "server_error", "it broke", 500, "it broke"),
            ({}, "queue_timeout", "it waited", 529, "it waited"),
            (
                {"stream": True},
                "invalid_prompt",
                "input[0].content: is wrong",
                400,
                "messages.0.content: is wrong",
            ),
        ):
            asking = asyncio.create_task(post(api, **fields))
            await (await player.take()).failed(code, message)
            answer = await asking
            assert (answer.status_code, error_of(answer)["message"]) == (status, error)

    async def test_a_client_that_leaves_cancels_it(self, api: Api, db: Database, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            await event(reader)
        assert await until(lambda: one(db, "cancelled")) == play.id

    async def test_a_stream_is_events_as_they_come_and_ends_without_a_mark(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            assert (await event(reader))["type"] == "message_start"
            await play.said("Hi", " there")
            found = [await event(reader) for _ in range(3)]
            assert [each["type"] for each in found] == ["content_block_start", *["content_block_delta"] * 2]
            await play.finished()
            stopped, delta, last = await rest_of(reader)
        assert (stopped, last) == ({"type": "content_block_stop", "index": 0}, {"type": "message_stop"})
        assert (delta["delta"]["stop_reason"], delta["usage"]["output_tokens"]) == ("end_turn", 2)
        headers = reader.response.headers
        assert headers["x-longhaul-response"] == play.id and headers["request-id"] == headers["x-request-id"]

    async def test_an_error_in_the_middle_is_an_event(self, api: Api, player: Player) -> None:
        async with streaming(api, player) as (reader, play):
            await play.said("Hi")
            await play.failed("server_error", "it broke")
            *_, last = await rest_of(reader)
        assert last["error"] == {"type": "api_error", "message": "it broke"}
        assert last["request_id"] == reader.response.headers["request-id"]


async def test_a_message_can_be_kept_and_repeated(api: Api, player: Player) -> None:
    async with player.at_work("Hi", " there"):
        kept = await post(api, {"Idempotency-Key": "k"}, store=True)
        assert (await post(api, {"Idempotency-Key": "k"}, store=True)).json() == kept.json()
    body = kept.json()
    assert (body["type"], body["role"], body["stop_reason"]) == ("message", "assistant", "end_turn")
    assert body["content"] == [{"type": "text", "text": "Hi there", "citations": None}]
    found = await api.get(kept.headers["x-longhaul-response"])
    assert (found.status_code, body["id"].partition("_")[2]) == (200, found.json()["id"].partition("_")[2])


async def test_what_others_than_the_translation_refuse_names_the_senders_fields(api: Api) -> None:
    """tests/unit/messages has the rest."""
    foreign = {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}
    orphan = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"}]}
    for fields, status, kind, named in (
        ({"messages": [{"role": "user", "content": "x" * BODY}]}, 413, "request_too_large", ""),
        ({"model": "none"}, 404, "not_found_error", "'none'"),
        ({"messages": [*HELLO, foreign, *HELLO]}, 400, None, "'messages.1.content.0.data'"),
        ({"messages": [*HELLO, orphan]}, 400, None, "'messages.1.content.0.tool_use_id'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, None, "'tools'"),
    ):
        answer = await post(api, **fields)
        error = error_of(answer)
        assert (answer.status_code, error["type"]) == (status, kind or "invalid_request_error"), error
        assert named in error["message"], error
    broken = await api.client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert (broken.status_code, error_of(broken)["type"]) == (400, "invalid_request_error")
    for method, path, headers, expected in (
        ("GET", "/v1/messages/none", {}, (404, "not_found_error")),
        ("GET", "/v1/messages", {}, (405, "invalid_request_error")),
        ("POST", "/v1/messages?alpha=true", {}, (400, "invalid_request_error")),
        ("POST", "/v1/messages", {"host": "elsewhere.example"}, (421, "invalid_request_error")),
        ("POST", "/v1/messages", {"content-encoding": "br"}, (415, "invalid_request_error")),
        ("POST", "/v1/messages", {"content-type": "text/plain"}, (415, "invalid_request_error")),
        ("GET", "/v1/none", VERSION, (404, "not_found_error")),
    ):
        answer = await api.client.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
        assert (answer.status_code, error_of(answer)["type"]) == expected, (method, path, headers)


async def test_what_the_model_cannot_be_shown_is_left_out_and_the_model_is_told(api: Api, player: Player) -> None:
    """An agent sends it again with each request: what is refused once ends the session."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    used = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    seen = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    scan = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAEC"}}
    turns = ("user", [{"type": "text", "text": "Look!"}, image]), ("assistant", [used]), ("user", [seen, scan])
    async with player.at_work("Hi"):
        asked = [{"role": role, "content": content} for role, content in turns]
        answer = await post(api, messages=asked, store=True)
        assert answer.status_code == 200
        items = await api.client.get(f"/v1/responses/{answer.headers['x-longhaul-response']}/input_items?order=asc")
    said = {"type": "input_text", "text": f"[An image was left out here: the model '{MODEL}' takes no images.]"}
    first, _, last, document = items.json()["data"]
    assert (first["content"][1], last["output"]) == (said, [said])
    assert document["content"][0]["text"].startswith("[The file was left out: the file 'document.pdf' cannot be used: ")


async def test_models_and_errors_have_the_form_of_the_api_that_the_caller_speaks(api: Api) -> None:
    ours = (await api.client.get("/v1/models")).json()
    theirs = (await api.client.get("/v1/models?limit=1000&beta=true", headers=VERSION)).json()
    assert [each["id"] for each in theirs["data"]] == [each["id"] for each in ours["data"]]
    assert (theirs["has_more"], theirs["last_id"]) == (False, theirs["data"][-1]["id"])
    assert (await api.client.get("/v1/models/none")).json()["error"]["code"] == "model_not_found"
    assert error_of(await api.client.get("/v1/models/none", headers=VERSION))["type"] == "not_found_error"


async def test_a_head_of_nothing_in_particular_answers(api: Api) -> None:
    assert (await api.client.head("/")).status_code == 200


async def test_a_message_is_no_other_request_of_the_same_key(api: Api, player: Player) -> None:
    key = {"Idempotency-Key": "k"}
    async with player.at_work("Hi"):
        assert (await post(api, key)).status_code == 200
        chat = await api.client.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO}, headers=key)
    assert (chat.status_code, orjson.loads(chat.content)["error"]["code"]) == (400, "idempotency_key_reused")
