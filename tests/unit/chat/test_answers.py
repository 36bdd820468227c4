"""Completions and chunks: openai's types, and the same answer in both."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from app.api.docs import schemas
from app.chat.completion import completion
from app.chat.stream import ChatStream
from app.protocol.events import frames
from app.protocol.events.deltas import (
    CallArguments,
    CallCut,
    CallStart,
    CustomInput,
    CustomStart,
    Delta,
    Finish,
    FinishReason,
    Reasoning,
    Refusal,
    Text,
)
from app.protocol.response import error_object
from app.protocol.usage import Usage
from app.translation.names import Names, rules
from tests.support.deltas import deltas, end, endings, fed, new_stream, play

Json = dict[str, Any]

NAMES = Names({}, rules((r"input\b", "messages")))
LOGPROB: Json = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}


def chunks_of(events: list[Json], **options: bool) -> list[Json]:
    """The data of the lines that a client gets; the events come one by one."""
    writer = ChatStream(NAMES, **{"include_usage": True, **options})
    lines = [line for event in events for line in writer.frames(frames.encode(event))]
    assert lines == ChatStream(NAMES, **{"include_usage": True, **options}).frames(frames.encode_all(events))
    return [orjson.loads(line.removeprefix(b"data: ").removesuffix(b"\n\n")) for line in lines]


def accumulated(chunks: list[Json]) -> Json:
    """The completion that a client puts together, as openai's documentation tells."""
    message: Json = {"role": None, "content": None, "refusal": None}
    calls: list[Json] = []
    tokens: list[Json] = []
    reason = used = None
    for chunk in chunks:
        used = chunk["usage"] or used
        for choice in chunk["choices"]:
            reason = choice["finish_reason"] or reason
            tokens += (choice["logprobs"] or {}).get("content", [])
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    _add_call(calls, value[0])
                else:
                    message[name] = (message.get(name) or "") + value
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": reason}
    choice["logprobs"] = {"content": tokens, "refusal": None} if tokens else None
    head = {name: chunks[0][name] for name in ("id", "created", "model", "service_tier", "system_fingerprint")}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": used}


def _add_call(calls: list[Json], piece: Json) -> None:
    if piece["index"] == len(calls):
        calls.append({name: value for name, value in piece.items() if name != "index"})
        return
    call = calls[piece["index"]]
    kind, field = ("function", "arguments") if call["type"] == "function" else ("custom", "input")
    call[kind][field] += piece[kind][field]


def without_nothing(found: Json) -> Json:
    """A stream says "" before it is known that there is no text: both are nothing."""
    message = found["choices"][0]["message"]
    message["content"] = message["content"] or None
    return found


@settings(max_examples=60)
@given(deltas(), endings)
def test_the_chunks_have_openais_types_and_are_the_completion_in_pieces(said: list[Delta], ending: str) -> None:
    stream, events = play(said, ending)
    chunks = chunks_of(events)
    for chunk in chunks:
        if "error" not in chunk:
            _check_type(chunk)
    if ending in ("stop", "length"):
        found = completion(stream.response)
        ChatCompletion.model_validate(found, strict=True)
        schemas.ChatCompletion.model_validate(found)
        assert without_nothing(accumulated(chunks)) == without_nothing(found)


def _check_type(chunk: Json) -> None:
    known = orjson.loads(orjson.dumps(chunk))
    for choice in known["choices"]:
        for call in choice["delta"].get("tool_calls", ()):
            if call.pop("custom", None) is not None:  # The SDK's chunks have no custom calls, OpenAI's have.
                call.pop("type", None)
    ChatCompletionChunk.model_validate(known, strict=True)


@pytest.mark.parametrize(
    ("said", "finish", "reason"),
    [
        ([Text("Hi")], FinishReason.STOP, "stop"),
        ([Text("Hi")], FinishReason.LENGTH, "length"),
        ([], FinishReason.STOP, "stop"),
        ([Reasoning("Hm.")], FinishReason.LENGTH, "length"),
        ([CallStart("f"), CallArguments("{}")], FinishReason.STOP, "tool_calls"),
        ([Text("Hi"), CustomStart("f"), CustomInput("x")], FinishReason.STOP, "tool_calls"),
        ([CallStart("f"), CallArguments("{")], FinishReason.LENGTH, "length"),
        ([CallStart("f"), CallArguments("{"), CallCut()], FinishReason.STOP, "tool_calls"),
    ],
)
def test_the_reason_of_the_end(said: list[Delta], finish: FinishReason, reason: str) -> None:
    stream, events = fed(*said)
    events += stream.finish(Finish(finish, Usage(3, 0, 5)), 1_700_000_009)
    assert {choice["finish_reason"] for chunk in chunks_of(events) for choice in chunk["choices"]} - {None} == {reason}
    assert completion(stream.response)["choices"][0]["finish_reason"] == reason


def test_texts_of_several_items_stand_on_lines_of_their_own() -> None:
    said = [Reasoning("a"), Text("b", phase="commentary"), Reasoning("c"), Text("d", phase="final_answer"), Text("e")]
    stream, events = play([*said[:-1]], "stop")
    message = completion(stream.response)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("a\nc", "b\nd")
    assert accumulated(chunks_of(events))["choices"][0]["message"]["content"] == "b\nd"


def test_log_probabilities_come_with_their_text() -> None:
    stream, events = play([Text("a", (LOGPROB,)), Text("b", (LOGPROB,))], "stop")
    assert completion(stream.response)["choices"][0]["logprobs"] == {"content": [LOGPROB, LOGPROB], "refusal": None}
    found = [choice["logprobs"] for chunk in chunks_of(events) for choice in chunk["choices"]]
    assert found == [None, *[{"content": [LOGPROB], "refusal": None}] * 2, None]


def test_reasoning_can_be_left_out() -> None:
    stream, events = play([Reasoning("a"), Text("b")], "stop")
    assert "reasoning_content" not in completion(stream.response, include_reasoning=False)["choices"][0]["message"]
    assert "reasoning_content" not in str(chunks_of(events, include_reasoning=False))


def test_tools_that_the_server_leaves_out_are_named() -> None:
    stream, events = play([Text("a")], "stop")
    for event in events:
        if "response" in event:
            event["response"]["omitted_tools"] = ["web_search"]
    assert {str(chunk["omitted_tools"]) for chunk in chunks_of(events)} == {"['web_search']"}
    answer = completion({**stream.response, "omitted_tools": ["web_search"]})
    assert answer["omitted_tools"] == ["web_search"]


def test_a_refusal_is_no_content() -> None:
    stream, _ = play([Refusal("No.")], "stop")
    message = completion(stream.response)["choices"][0]["message"]
    assert (message["content"], message["refusal"]) == (None, "No.")


@pytest.mark.parametrize(
    ("ending", "kind", "code"),
    [("fail", "server_error", "server_error"), ("cancel", "invalid_request_error", "response_cancelled")],
)
def test_an_end_that_is_no_answer_is_an_error_and_the_last_line(ending: str, kind: str, code: str) -> None:
    _, events = play([Text("a")], ending)
    *before, last = chunks_of(events)
    assert all("error" not in chunk for chunk in before)
    assert (last["error"]["type"], last["error"]["code"], last.keys()) == (kind, code, {"error"})


def test_an_error_in_the_stream_names_the_field_as_chat_has_it() -> None:
    stream, events = fed()
    events += stream.fail(error_object("context_length_exceeded", "The prompt is too long."))
    assert chunks_of(events)[-1]["error"]["param"] == "messages"


def test_opening_events_say_nothing() -> None:
    stream = new_stream()
    assert chunks_of(stream.accept()) == []
    assert end(stream, "cancel")
