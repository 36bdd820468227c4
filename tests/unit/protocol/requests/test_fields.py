"""The fields of a request: which there are, and those that depend on one another."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from openai.types.responses import ResponseIncludable

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.include import REFUSED_INCLUDES, SUPPORTED_INCLUDES
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.protocol.requests.fields import MAX_OPAQUE_BYTES
from app.protocol.response import response_object
from tests.support.requests import parse_request
from tests.support.sdk import openai_fields

PLAIN = {"model": "m", "input": "Hello!"}


def parse(**fields: Any) -> ResponseRequest:
    return parse_request(json.dumps({**PLAIN, **fields}).encode())


def error(**fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value.error


def test_the_fields_are_those_of_the_openai_package_and_documented_extras() -> None:
    known = set(CreateResponse.model_fields)
    assert openai_fields() <= known
    assert known - openai_fields() == {
        *ENGINE_PARAMS,
        *("presence_penalty", "frequency_penalty", "queue_timeout", "run_timeout"),
        *("previous_input_messages", "enable_response_messages", "client_metadata", "reasoning_effort"),
    }
    assert set(typing.get_args(ResponseIncludable)) == {*REFUSED_INCLUDES} | set(SUPPORTED_INCLUDES)


@pytest.mark.parametrize("compression", ["auto", "disabled"])
def test_what_was_applied_of_cache_and_images_is_shown(compression: str) -> None:
    for options in ({"mode": "implicit"}, {"mode": "explicit", "ttl": "12h"}):
        request = parse(prompt_cache_options=options, image={"context_compression": compression})
        shown = response_object(request.stored("resp_1", {}), response_id="resp_1", created_at=1)
        assert shown["prompt_cache_options"] == {"ttl": "30m", **options}
        assert shown["image"] == {"context_compression": "disabled"}


def test_a_missing_field_is_named() -> None:
    for missing in PLAIN:
        with pytest.raises(InvalidRequest) as caught:
            parse_request(json.dumps({name: value for name, value in PLAIN.items() if name != missing}).encode())
        assert caught.value.error.message == f"Missing required parameter: '{missing}'."
        assert caught.value.error.code == "missing_required_parameter"


def test_a_long_key_of_metadata_is_refused_and_not_repeated_in_full() -> None:
    message = error(metadata={"k" * 65: "v"}).message
    assert "at most 64 characters" in message
    assert "k" * 65 not in message


def test_a_plain_request_is_stored_with_every_field() -> None:
    part = {"type": "input_text", "text": "Hello!"}
    item = {"type": "message", "id": "msg_1_in0", "status": "completed", "role": "user", "content": [part]}
    absent = (
        *("instructions", "max_output_tokens", "conversation", "reasoning", "max_tool_calls", "continuation_id"),
        *("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "image", "user"),
        *("previous_response_id", "previous_input_messages", "compaction", "summary_tokens", "task"),
    )
    assert parse().stored("resp_1", {}) == {
        **dict.fromkeys(absent),
        **dict.fromkeys(("stream", "background", "enable_response_messages", "leaves_room"), False),
        "metadata": {},
        "extra": {},
        "secrets": {},
        "include": [],
        "tools": [],
        "omitted_tools": [],
        "model": "m",
        "input": [item],
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "store": True,
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_logprobs": 0,
        "service_tier": "default",
    }


def test_client_metadata_has_a_bound_in_bytes() -> None:
    frame = len('{"a":""}')
    parse(client_metadata={"a": "b" * (MAX_OPAQUE_BYTES - frame)})
    found = error(client_metadata={"a": "é" * (MAX_OPAQUE_BYTES // 2)})
    assert (found.param, found.code) == ("client_metadata", "object_above_max_size")
    size = MAX_OPAQUE_BYTES + frame
    assert found.message == (
        f"Invalid 'client_metadata': expected at most {MAX_OPAQUE_BYTES} bytes of JSON, but got {size} instead."
    )


def test_the_fingerprint_is_that_of_the_values_but_for_what_is_opaque() -> None:
    one = parse_request(b'{"model":"m","input":"x","metadata":{"a":"1","b":"2"}}').fingerprint()
    same = parse_request(b'{ "input": "x", "metadata": {"b": "2", "a": "1"},  "model": "m"}').fingerprint()
    assert one == same and len(one) == 32
    assert parse().fingerprint() != parse(stream=True).fingerprint()
    item = {"role": "user", "content": "Hi"}
    marked = {**item, "internal_chat_message_metadata_passthrough": {"turn": 1}}
    first = parse(input=[item]).fingerprint()
    assert parse(input=[marked], client_metadata={"session_id": "s"}).fingerprint() == first
    assert parse(input=[{**item, "content": "Ho"}]).fingerprint() != first


@pytest.mark.parametrize(
    ("fields", "need"),
    [
        ({}, "'background' to be true"),
        ({"background": True, "stream": True}, "'stream' to be false"),
        ({"background": True, "service_tier": "flex"}, "'service_tier' to be 'default'"),
    ],
)
def test_a_completion_window_is_for_background_responses(fields: Any, need: str) -> None:
    for window in ("2h", "8h"):
        parse(background=True, background_options={"completion_window": window})
    found = error(background_options={"completion_window": "2h"}, **fields)
    assert found.param == "background_options.completion_window"
    assert found.message == f"Invalid 'background_options.completion_window': '2h' needs {need}."


def test_a_continuation_is_for_background_responses_with_any_window_and_stream() -> None:
    for window in (None, "soonest", "8h"):
        options = {"completion_window": window, "continuation_id": "agent-7"}
        assert parse(background=True, background_options=options).fields.continuation_id == "agent-7"
    assert parse(background=True, stream=True, background_options={"continuation_id": "c"}).fields.stream
    message = error(background_options={"continuation_id": "c"}).message
    assert message == "'background_options.continuation_id' needs 'background' to be true."


def test_obfuscation_is_off_unless_it_is_asked_for() -> None:
    assert parse(stream=True, stream_options={"include_obfuscation": True}).obfuscation
    for options in (None, {}, {"include_obfuscation": None}, {"include_obfuscation": False}):
        assert not parse(stream=True, stream_options=options).obfuscation
