"""Messages and their events: anthropic's types, and the same answer in both."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from anthropic.types import Message, ModelInfo, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from hypothesis import given, settings
from pydantic import TypeAdapter

from app.api.docs import schemas
from app.api.routes.translated import translated_frames
from app.messages.answer import AnswerShape, message
from app.messages.errors import TOO_LONG, error_body, message_status
from app.messages.hosted import object_of
from app.messages.models import model_info, model_list
from app.messages.stream import PING, MessageStream
from app.messages.translation import messages_request
from app.protocol.errors import (
    ApiError,
    Forbidden,
    InvalidRequest,
    NotFound,
    ServerFault,
    ShareUsed,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from app.protocol.events import frames
from app.protocol.events.chunk import Chunk
from app.protocol.events.deltas import (
    Annotation,
    CallArguments,
    CallCut,
    CallStart,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
)
from app.protocol.response import error_object
from app.protocol.usage import Usage
from tests.support.deltas import CITED, deltas, endings, fed, new_stream, play
from workers.engine.base import PromptTooLong

Json = dict[str, Any]

NAMES = messages_request({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}).names
SHOWN = AnswerShape(shows_thoughts=True)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
BETA_EVENT: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)


def events_of(events: list[Json], shape: AnswerShape = SHOWN) -> list[Json]:
    """The events that a client gets; those of the response come one by one."""
    writer = MessageStream(NAMES, shape, "req_1")
    lines = [line for event in events for line in writer.frames(frames.encode(event))]
    assert lines == MessageStream(NAMES, shape, "req_1").frames(frames.encode_all(events))
    found = frames.decode(b"".join(lines))
    assert [line.partition(b"\n")[0] for line in lines] == [f"event: {each['type']}".encode() for each in found]
    return found


def accumulated(events: list[Json]) -> Json:
    """The message that a client puts together, as Anthropic's documentation tells."""
    found: Json = {}
    inputs: dict[int, str] = {}
    for event in events:
        EVENT.validate_python(event)
        kind = event["type"]
        if kind == "message_start":
            found = {**event["message"], "content": []}
        elif kind == "content_block_start":
            found["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            _add(found["content"][event["index"]], event["delta"], inputs, event["index"])
        elif kind == "message_delta":
            found |= {**event["delta"], "usage": {**found["usage"], **event["usage"]}}
    for index, text in inputs.items():
        found["content"][index]["input"] = object_of(text)
    return found


def _add(block: Json, delta: Json, inputs: dict[int, str], index: int) -> None:
    if delta["type"] == "input_json_delta":
        inputs[index] = inputs.get(index, "") + delta["partial_json"]
    elif delta["type"] == "citations_delta":
        block["citations"] = [*(block["citations"] or ()), delta["citation"]]
    else:
        field = delta["type"].removesuffix("_delta")
        block[field] += delta[field]


def plain(found: Json) -> Json:
    """What both forms of an answer must say. In a stream, calls that the server ran come when they have ended."""
    blocks = [{k: v for k, v in each.items() if v is not None} for each in found["content"]]
    blocks.sort(key=_hosted)
    about = ("id", "role", "model", "stop_reason", "stop_sequence")
    used = {name: found["usage"][name] for name in ("input_tokens", "output_tokens", "cache_read_input_tokens")}
    return {**{name: found[name] for name in about}, "content": blocks, "usage": used}


def _hosted(block: Json) -> tuple[str, bool]:
    """The id of the call that the server ran; nothing for other blocks, which keep their order."""
    if block["type"] in ("server_tool_use", "mcp_tool_use"):
        return block["id"], False
    return block.get("tool_use_id", ""), True


@settings(max_examples=60)
@given(deltas(), endings)
def test_events_have_anthropics_types_and_are_the_message_in_pieces(said: list[Delta], ending: str) -> None:
    stream, events = play(said, ending)
    found = events_of(events)
    indexes = [event["index"] for event in found if event["type"] == "content_block_start"]
    assert indexes == list(range(len(indexes)))
    assert len(indexes) == sum(event["type"] == "content_block_stop" for event in found) or ending not in (
        "stop",
        "length",
    )
    for event in found:
        if event["type"] != "error":
            BETA_EVENT.validate_python(event)
    if ending in ("stop", "length"):
        whole = message(orjson.loads(orjson.dumps(stream.response)), SHOWN)
        BetaMessage.model_validate(whole)
        schemas.Message.model_validate(whole)
        if not any(block["type"].startswith("mcp_") for block in whole["content"]):
            Message.model_validate(whole)
            assert plain(accumulated(found)) == plain(whole)


@pytest.mark.parametrize(
    ("said", "finish", "reason"),
    [
        ([Text("Hi")], FinishReason.STOP, "end_turn"),
        ([Text("Hi")], FinishReason.LENGTH, "max_tokens"),
        ([], FinishReason.STOP, "end_turn"),
        ([Reasoning("Hm.")], FinishReason.LENGTH, "max_tokens"),
        ([CallStart("f"), CallArguments("{}")], FinishReason.STOP, "tool_use"),
        ([Text("Hi"), CallStart("f"), CallArguments("{")], FinishReason.LENGTH, "max_tokens"),
        ([CallStart("f"), CallArguments("{"), CallCut()], FinishReason.STOP, "tool_use"),
        ([Refusal("No.")], FinishReason.STOP, "refusal"),
    ],
)
def test_the_reason_of_the_end(said: list[Delta], finish: FinishReason, reason: str) -> None:
    stream, events = fed(*said)
    events += stream.finish(Finish(finish, Usage(30, 20, 5, 2)), 1_700_000_009)
    *_, delta, last = events_of(events)
    whole = message(stream.response, SHOWN)
    assert (delta["delta"]["stop_reason"], last) == (reason, {"type": "message_stop"})
    assert whole["stop_reason"] == reason
    assert delta["usage"] == whole["usage"]
    used = whole["usage"]
    assert (used["input_tokens"], used["cache_read_input_tokens"], used["output_tokens"]) == (10, 20, 5)
    assert used["output_tokens_details"] == {"thinking_tokens": 2}


@pytest.mark.parametrize(("asked", "reason"), [(2, "max_tokens"), (6, "model_context_window_exceeded")])
def test_a_full_context_is_told_from_the_limit_that_was_asked_for(asked: int, reason: str) -> None:
    stream, _ = fed(Text("Hi"))
    stream.finish(Finish(FinishReason.LENGTH, Usage(30, 20, 2, 0)), 1_700_000_009)
    assert message({**stream.response, "max_output_tokens": asked}, SHOWN)["stop_reason"] == reason


def test_an_empty_text_is_no_block() -> None:
    stream, events = play([], "stop")
    assert message(stream.response, SHOWN)["content"] == []
    assert [event["type"] for event in events_of(events)] == ["message_start", "message_delta", "message_stop"]


@pytest.mark.parametrize(
    ("shape", "thought", "signature"),
    [
        (SHOWN, "Hm.", "sealed(Hm.)"),
        (AnswerShape(shows_thoughts=True, omits_thoughts=True), "", "sealed(Hm.)"),
        (AnswerShape(),) * 3,
    ],
)
def test_thoughts_come_with_their_seal_if_they_were_asked_for(shape: AnswerShape, thought: Any, signature: Any) -> None:
    stream = new_stream()
    stream.seal_reasoning(lambda text: f"sealed({text})")
    events = [*stream.accept(), *stream.begin()]
    for delta in (Reasoning("H"), Reasoning("m."), Text("So.")):
        events += stream.feed(delta)
    events += stream.finish(Finish(FinishReason.STOP), 1)
    found = [block for block in message(stream.response, shape)["content"] if block["type"] == "thinking"]
    assert plain(accumulated(events_of(events, shape))) == plain(message(stream.response, shape))
    if not shape.shows_thoughts:
        assert found == []
        return
    assert found == [{"type": "thinking", "thinking": thought, "signature": signature}]


STOPS = AnswerShape(stops=("END", "ND", "\n\n"))


@pytest.mark.parametrize(
    ("pieces", "text", "stop"),
    [
        (["a", "b END"], "ab ", "END"),
        (["a", "ND"], "a", "ND"),
        (["END"], "", "END"),
        (["a", "\n\n"], "a", "\n\n"),
        (["\n\n", "a"], "\n\na", None),
        (["a END", " b"], "a END b", None),
        (["a E"], "a E", None),
    ],
)
def test_a_stop_sequence_is_told_and_is_no_text(pieces: list[str], text: str, stop: str | None) -> None:
    stream, events = play([Text(piece) for piece in pieces], "stop")
    whole = message(stream.response, STOPS)
    assert "".join(block["text"] for block in whole["content"]) == text
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence" if stop else "end_turn", stop)
    assert plain(accumulated(events_of(events, STOPS))) == plain(whole)


def test_text_before_a_call_ends_with_no_stop_sequence() -> None:
    stream, events = play([Text("a END"), CallStart("f"), CallArguments("{}")], "stop")
    whole = message(stream.response, STOPS)
    assert (whole["content"][0]["text"], whole["stop_reason"]) == ("a END", "tool_use")
    assert plain(accumulated(events_of(events, STOPS))) == plain(whole)


def test_what_a_text_cites_comes_with_it() -> None:
    stream, events = play([Text("ab"), Annotation(CITED)], "stop")
    (block,) = message(stream.response, SHOWN)["content"]
    (cited,) = block["citations"]
    assert (cited["url"], cited["cited_text"]) == (CITED["url"], "a")
    assert plain(accumulated(events_of(events))) == plain(message(stream.response, SHOWN))


@pytest.mark.parametrize(("ending", "kind"), [("fail", "api_error"), ("cancel", "invalid_request_error")])
def test_an_end_that_is_no_answer_is_an_error_event_and_the_last(ending: str, kind: str) -> None:
    _, events = play([Text("a")], ending)
    *before, last = events_of(events)
    assert all(event["type"] != "error" for event in before)
    assert (last["type"], last["error"]["type"], last["request_id"]) == ("error", kind, "req_1")


def test_a_prompt_that_is_too_long_says_so_in_the_words_that_claude_code_looks_for() -> None:
    stream, events = fed()
    events += stream.fail(error_object("context_length_exceeded", "input: it has 9 tokens."))
    (_, last) = events_of(events)
    assert last["error"] == {"type": "invalid_request_error", "message": f"{TOO_LONG}messages: it has 9 tokens."}


def test_a_prompt_that_is_too_long_says_by_how_much_as_claude_code_reads_it() -> None:
    for error, said in (
        (PromptTooLong(25000, 24576, leaves_room=True), "25000 tokens > 24576 maximum"),
        (PromptTooLong(40000, 32768), "40000 tokens > 32768 maximum"),
        (PromptTooLong(None, 32768), "the input has more than 32768 tokens, but the model's context holds 32768"),
    ):
        told = error_body(InvalidRequest(str(error), "messages", "context_length_exceeded"), None)
        assert told["error"]["message"] == TOO_LONG + said


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("Invalid 'tools[0]': x.", "tools[0]"), 400, "invalid_request_error"),
        (Unauthorized("x"), 401, "authentication_error"),
        (Forbidden("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (TooLarge("x"), 413, "request_too_large"),
        (ShareUsed("x"), 429, "rate_limit_error"),
        (ServerFault("x"), 500, "api_error"),
        (Unavailable("x"), 529, "overloaded_error"),
        (TimedOut("x"), 504, "timeout_error"),
    ],
)
def test_errors_have_anthropics_types_and_statuses(error: ApiError, status: int, kind: str) -> None:
    body = error_body(error, "req_1")
    schemas.MessageError.model_validate(body)
    assert (message_status(error), body["type"], body["error"]["type"]) == (status, "error", kind)
    assert body["error"]["message"] == str(error).replace("tools[0]", "tools.0")


def test_models_have_anthropics_types() -> None:
    listed = [model_info("a", 4096), model_info("b", None)]
    for each in listed:
        ModelInfo.model_validate(each)
    assert model_list(listed) == {"data": listed, "has_more": False, "first_id": "a", "last_id": "b"}
    assert model_list([])["first_id"] is None


def test_a_silent_stream_pings() -> None:
    """While nothing comes, and for a status that is repeated."""
    assert PING == b'event: ping\ndata: {"type":"ping"}\n\n'
    writer = MessageStream(NAMES, SHOWN)
    for silent in (None, Chunk("resp_1", 5, 4, 0, (), b"")):
        assert translated_frames(writer.frames, PING, silent) == PING
