"""`WS /v1/responses`: the official client on a real socket, and frames that it would never send."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.resources.responses.responses import AsyncResponsesConnection
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.api.websocket import streams
from app.responses import service
from app.store.context.contents import context_items
from app.store.database import Database
from tests.integration.api.common import answer_to, creation, event_of, rest_of, sdk_of, socket_of
from tests.support import grammar
from tests.support.api import FINAL, MODEL, Api, events
from tests.support.logs import row_of
from tests.support.player import Player, ids, one
from tests.support.waiting import until

Json = dict[str, Any]

SETTINGS = {"max_body_bytes": 20_000}


@pytest.fixture
async def socket(api: Api) -> AsyncIterator[AsyncResponsesConnection]:
    """A socket of the official client."""
    async with sdk_of(api) as client, client.responses.connect() as connection:
        yield connection


@pytest.fixture
async def raw(api: Api) -> AsyncIterator[ClientConnection]:
    async with socket_of(api) as connection:
        yield connection


async def turn(socket: AsyncResponsesConnection, sent: Any = "Hi", **fields: Any) -> Json:
    """Creates a response, and returns the last event."""
    await socket.response.create(model=MODEL, input=sent, **fields)
    return (await events(socket))[-1]


def text_of(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


class TestTurns:
    async def test_a_silent_response_repeats_its_status_and_takes_no_output_back(
        self, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        await socket.response.create(model=MODEL, input="Hi", stream_id="a")
        (*_, queued) = await events(socket, ("response.queued",))
        (again,) = await events(socket, ("response.queued",))
        assert (again["sequence_number"], again["stream_id"], again["response"]["output"]) == (1, "a", [])
        assert again["response"]["id"] == queued["response"]["id"]
        play = await player.begin()
        await play.said("Hi")
        (*_, said) = await events(socket, ("response.output_text.delta",))
        (again,) = await events(socket, ("response.in_progress",))
        assert (again["sequence_number"], again["response"]["status"]) == (said["sequence_number"], "in_progress")
        assert "output" not in again["response"]
        await play.finished()
        assert text_of((await events(socket))[-1]["response"]) == "Hi"

    async def test_the_events_are_those_of_the_sse_stream(
        self, api: Api, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        async with player.at_work("Hel", "lo"):
            await socket.response.create(model=MODEL, input="Hi", metadata={"a": "b"})
            over_socket = grammar.without_repeats(await events(socket))
            async with api.streaming(input="Hi", metadata={"a": "b"}) as reader:
                over_http = await rest_of(reader)
        grammar.check(over_socket)
        assert [event["type"] for event in over_socket] == [event["type"] for event in over_http]
        assert [set(event) for event in over_socket] == [set(event) for event in over_http]
        answer = over_socket[-1]["response"]
        assert (await api.get(answer["id"])).json() == answer
        assert text_of(answer) == "Hello"

    async def test_u0000_comes_and_goes_padded_if_asked_and_opaque_fields_of_codex_are_kept_nowhere(
        self, db: Database, player: Player, raw: ClientConnection
    ) -> None:
        item = {"role": "user", "content": "c\0d", "internal_chat_message_metadata_passthrough": {"turn": "opaque"}}
        async with player.at_work("a\0b"):
            padded = {"include_obfuscation": True}
            await raw.send(creation(input=[item], client_metadata={"id": "opaque" * 200}, stream_options=padded))
            while (event := json.loads(await raw.recv()))["type"] not in FINAL:
                assert "opaque" not in json.dumps(event)
                assert ("obfuscation" in event) == event["type"].endswith(".delta")
        assert text_of(event["response"]) == "a\0b"
        row = await row_of(db, event["response"]["id"])
        assert row.request["input"][0]["content"][0]["text"] == "c\0d"
        assert "opaque" not in json.dumps(row.request)

    async def test_turns_on_one_socket_continue_each_other_also_where_they_are_not_stored(
        self, api: Api, db: Database, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        async with player.at_work("Yes"):
            first = (await turn(socket))["response"]["id"]
            second = (await turn(socket, previous_response_id=first))["response"]["id"]
            third = (await turn(socket, previous_response_id=second, store=False, stream_id="main"))["response"]["id"]
            assert len(await context_items(db, await row_of(db, third))) == 4
            elsewhere = await api.post(previous_response_id=third)
            assert elsewhere.json()["error"]["code"] == "previous_response_not_found"
            for stream_id in ("critic", "main"):  # a branch in another stream
                last = await turn(socket, previous_response_id=third, store=False, stream_id=stream_id)
                assert (last["type"], last["stream_id"]) == ("response.completed", stream_id)
            refused = await turn(socket, previous_response_id=third)
            assert refused["error"]["code"] == "previous_response_not_found", "only the latest"

    async def test_a_refused_continuation_forgets_the_unstored_response(
        self, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        output = [{"type": "function_call_output", "call_id": "call_missing", "output": "x"}]
        async with player.at_work("Yes"):
            for sent, fields, param in (("B", {"temperature": 7}, "temperature"), (output, {}, "input[0].call_id")):
                first = (await turn(socket, store=False))["response"]["id"]
                await socket.response.create(model=MODEL, input=sent, previous_response_id=first, store=False, **fields)  # type: ignore[arg-type]
                (refused,) = await events(socket)
                assert (refused["status"], refused["error"]["param"]) == (400, param), "before any event"
                gone = await turn(socket, store=False, previous_response_id=first)
                assert gone["error"]["code"] == "previous_response_not_found"

    async def test_a_request_waits_for_the_previous_request_of_its_stream(
        self, db: Database, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        for word in ("one", "two"):
            await socket.response.create(model=MODEL, input=word)
        play = await player.begin()
        assert (await events(socket, ("response.in_progress",)))[0]["response"]["id"] == play.id
        assert await ids(db) == [play.id], "the second is not even accepted"
        await play.finished()
        assert (await events(socket))[-1]["response"]["id"] == play.id
        async with player.at_work("Yes"):
            assert text_of((await events(socket))[-1]["response"]) == "Yes"


class TestStreams:
    async def test_streams_run_side_by_side_and_their_events_carry_the_stream_id(
        self, db: Database, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        for stream_id in ("planner", "a.b_c-1"):
            await socket.response.create(model=MODEL, input=stream_id, stream_id=stream_id)
        await until(lambda: _count(db, 2), what="both in progress")
        async with player.at_work("Yes"):
            seen = [*await events(socket, ("response.completed",)), *await events(socket, ("response.completed",))]
        for stream_id in ("planner", "a.b_c-1"):
            mine = [event for event in seen if event["stream_id"] == stream_id]
            grammar.check([{name: value for name, value in event.items() if name != "stream_id"} for event in mine])

    async def test_the_named_streams_of_a_socket_are_limited(
        self, raw: ClientConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streams, "MAX_NAMED", 1)
        assert (await answer_to(raw, creation(stream_id="a", model="x")))["error"]["code"] == "model_not_found"
        answer = await answer_to(raw, creation(stream_id="b"))
        assert (answer["error"]["code"], answer["stream_id"]) == ("websocket_stream_limit_reached", "b")
        assert (await answer_to(raw, creation(model="x")))["error"]["code"] == "model_not_found", (
            "the unnamed stream is free"
        )

    async def test_the_active_responses_of_a_socket_are_limited(
        self, db: Database, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        for number in range(streams.MAX_ACTIVE + 2):
            await socket.response.create(model=MODEL, input="Hi", stream_id=f"stream{number}")
        await until(lambda: _count(db, streams.MAX_ACTIVE), what="as many as may run")
        assert len(await ids(db)) == streams.MAX_ACTIVE
        async with player.at_work("Yes"):
            for _ in range(streams.MAX_ACTIVE + 2):
                await events(socket, ("response.completed",))

    async def test_pending_requests_are_limited_by_number_and_by_size(
        self, db: Database, raw: ClientConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await raw.send(creation())
        await one(db, "queued")
        await raw.send(creation(input="x" * 12_000))
        answer = await answer_to(raw, creation(input="x" * 12_000, stream_id="other"))
        assert (answer["status"], answer["error"]["code"]) == (503, "websocket_queue_full")
        assert (answer["stream_id"], answer["headers"]) == ("other", {"retry-after": "1"})
        assert answer["error"]["headers"] == answer["headers"], "openai's clients read one, Codex the other"
        monkeypatch.setattr(streams, "MAX_PENDING", 1)
        assert (await answer_to(raw, creation()))["error"]["code"] == "websocket_queue_full"


class TestErrors:
    async def test_a_bad_frame_gets_an_error_event_and_the_socket_goes_on(
        self, player: Player, raw: ClientConnection
    ) -> None:
        options = {"completion_window": "2h"}
        for sent, code, param in (
            ("{", "invalid_json", None),
            ("", "invalid_json", None),
            ("[]", "invalid_json", None),
            (b"{}", "invalid_frame", None),
            ("{}", "missing_required_parameter", "type"),
            ('{"type": "response.cancel"}', "invalid_value", "type"),
            ('{"type": 5}', "invalid_value", "type"),
            (creation(background=True), "unsupported_parameter", "background"),
            (creation(background_options=options), "invalid_value", "background_options.completion_window"),
            (creation(stream=False), "unsupported_parameter", "stream"),
            (creation(generate=1), "invalid_type", "generate"),
            (creation(model="no"), "model_not_found", "model"),
            (creation(temperature=9), "decimal_above_max_value", "temperature"),
            (creation(input="x" * 20_000), "request_too_large", None),
            (creation(previous_response_id="resp_no"), "previous_response_not_found", "previous_response_id"),
            ('{"type": "response.steer", "previous_response_id": "resp_a", "input": "Stop"}', "invalid_value", "type"),
            *((creation(stream_id=bad), "invalid_stream_id", "stream_id") for bad in ("", "é", "x" * 257, 5, None)),
        ):
            answer = await answer_to(raw, sent)
            assert answer["type"] == "error"
            assert answer["status"] in (400, 404, 413)
            assert answer["error"]["type"] == "invalid_request_error"
            assert (answer["error"]["code"], answer["error"]["param"]) == (code, param)
            assert "\n" not in answer["error"]["message"]
        async with player.at_work("Yes"):
            assert (await answer_to(raw, creation()))["type"] == "response.created"
            await event_of(raw, "response.completed")

    async def test_a_frame_beyond_twice_the_limit_closes_the_socket(self, raw: ClientConnection, api: Api) -> None:
        await raw.send("x" * (api.server.config.ws_max_size + 1))
        with pytest.raises(ConnectionClosed) as caught:
            await raw.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009

    async def test_a_failure_is_an_error_and_then_failed_and_a_bad_prompt_an_error_without_a_response(
        self, api: Api, player: Player, socket: AsyncResponsesConnection
    ) -> None:
        await socket.response.create(model=MODEL, input="Hi", stream_id="a")
        play = await player.begin()
        await play.said("Hi")
        await play.failed("server_error", "It broke.")
        error = (await events(socket))[-1]
        assert error["error"] == {"type": "server_error", "code": "server_error", "message": "It broke.", "param": None}
        assert error["stream_id"] == "a"
        (failed,) = await events(socket)
        assert failed["type"] == "response.failed"
        assert failed["sequence_number"] == error["sequence_number"] + 1

        await socket.response.create(model=MODEL, input="Hi")
        await (await player.take()).failed("context_length_exceeded", "Too long.")
        (error,) = await events(socket)
        assert (error["status"], error["error"]["param"]) == (400, "input")

        await socket.response.create(model=MODEL, input="Hi")
        play = await player.begin()
        await events(socket, ("response.in_progress",))
        assert (await api.client.post(f"/v1/responses/{play.id}/cancel")).status_code == 200
        last = (await events(socket))[-1]
        assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")

    async def test_a_bug_is_a_500_without_its_message_and_the_log_has_no_prompt(
        self, socket: AsyncResponsesConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        prompt = "my prompt"

        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError(prompt)

        monkeypatch.setattr(service.ResponseService, "attach", broken)
        with caplog.at_level(logging.INFO):
            await socket.response.create(model=MODEL, input=prompt)
            (error,) = await events(socket)
        assert (error["status"], error["error"]["code"]) == (500, "server_error")
        assert "builtins.RuntimeError" in caplog.text
        assert prompt not in caplog.text + json.dumps(error)


class TestLeaving:
    async def test_closing_the_socket_cancels_its_running_responses_and_keeps_those_that_have_ended(
        self, api: Api, db: Database, player: Player
    ) -> None:
        async with socket_of(api) as socket:
            async with player.at_work("Yes"):
                await socket.send(creation())
                await event_of(socket, "response.completed")
            for stream_id in ("a", "b"):
                await socket.send(creation(stream_id=stream_id))
            await socket.send(creation(stream_id="a", input="never accepted"))
            await until(lambda: _count(db, 3))
            play = await player.begin((await ids(db, "queued"))[0])
            await play.said("Hi")
        await until(lambda: _count(db, 2, "cancelled"), what="both cancelled")
        assert (len(await ids(db)), len(await ids(db, "completed"))) == (3, 1)
        row = await row_of(db, play.id)
        assert row.output is not None
        assert row.output[0]["status"] == "incomplete"
        broken = await socket_of(api)
        await broken.send(creation())
        await one(db, "queued")
        broken.transport.abort()
        await until(lambda: _count(db, 3, "cancelled"), what="that of a broken connection, too")
        await broken.wait_closed()


async def _count(db: Database, wanted: int, status: str | None = None) -> bool:
    return len(await ids(db, status)) == wanted


async def test_a_handshake_is_refused_as_a_request_is_and_has_a_request_id(api: Api) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await socket_of(api, query="?model=x")
    assert caught.value.response.status_code == 400
    assert json.loads(caught.value.response.body)["error"]["param"] == "model"
    async with socket_of(api, {"x-request-id": "mine"}, origin=api.url) as opened:
        assert opened.response is not None
        assert opened.response.headers["x-request-id"] == "mine"


async def test_a_client_that_reads_nothing_keeps_only_itself_waiting(
    api: Api, db: Database, player: Player, socket: AsyncResponsesConnection
) -> None:
    """The server's buffers stay bounded, and other sockets go on."""
    await socket.response.create(model=MODEL, input="Hi")
    play = await player.begin()
    await play.said(*(["x" * 50_000] * 40))
    async with socket_of(api) as other:
        await other.send(creation())
        async with player.at_work("Yes"):
            await event_of(other, "response.completed")
    await play.finished()
    seen = await events(socket)
    assert len(text_of(seen[-1]["response"])) == 2_000_000
