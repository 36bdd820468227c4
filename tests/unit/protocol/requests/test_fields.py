"""Every field of a request is honoured, or refused by a sentence that names it."""

from __future__ import annotations

import json
import typing
from typing import Any

import orjson
import pytest
from openai.types.responses import ResponseCreateParams, ResponseIncludable

from app.protocol.errors import InvalidRequest
from app.protocol.include import REFUSED_INCLUDES, SUPPORTED_INCLUDES
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.protocol.requests.fields import MAX_OPAQUE_BYTES
from app.protocol.response import response_object
from tests.support.requests import parse_request

PLAIN = {"model": "m", "input": "Hello!"}


def parse(**fields: Any) -> ResponseRequest:
    return parse_request(json.dumps({**PLAIN, **fields}).encode())


def stored(**fields: Any) -> dict[str, Any]:
    return parse(**fields).stored("resp_1", {})


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    return caught.value


def openai_fields() -> set[str]:
    """The fields of every variant of openai's ResponseCreateParams."""
    variants = typing.get_args(ResponseCreateParams)
    return {name for variant in variants for name in variant.__annotations__}


def test_every_field_of_the_openai_package_is_known() -> None:
    assert openai_fields() - set(CreateResponse.model_fields) == set()


def test_every_other_field_is_a_documented_extra() -> None:
    others = set(CreateResponse.model_fields) - openai_fields()
    assert others == {
        *ENGINE_PARAMS,
        *("presence_penalty", "frequency_penalty", "queue_timeout", "run_timeout"),
        *("previous_input_messages", "enable_response_messages", "client_metadata", "reasoning_effort"),
    }


def test_every_value_of_include_is_known() -> None:
    assert set(typing.get_args(ResponseIncludable)) == {*REFUSED_INCLUDES} | set(SUPPORTED_INCLUDES)


@pytest.mark.parametrize("field", sorted(set(CreateResponse.model_fields) - {"model", "input"}))
def test_null_means_not_sent(field: str) -> None:
    assert stored(**{field: None}) == stored()


DEFAULTS = [
    ("stream_options", {"include_obfuscation": False}),
    ("reasoning", {"mode": "standard"}),
    ("context_management", []),
    ("access_programs", {}),
    ("access_programs", {"cyber": "standard"}),
    ("image", {"context_compression": "auto"}),
    ("prompt_cache_options", {"mode": "implicit", "ttl": "30m"}),
    ("prompt_cache_options", {"mode": "explicit", "ttl": "12h"}),
    ("stream_options", {"reasoning_summary_delivery": "sequential_cutoff"}),
    ("include", ["file_search_call.results", "computer_call_output.output.image_url"]),
    ("background_options", {"completion_window": "soonest"}),
]


@pytest.mark.parametrize(("field", "value"), DEFAULTS)
def test_a_value_that_asks_for_the_default_is_accepted(field: str, value: Any) -> None:
    parse(**{field: value})


@pytest.mark.parametrize("compression", ["auto", "disabled"])
def test_what_was_applied_of_cache_and_images_is_shown(compression: str) -> None:
    document = stored(prompt_cache_options={"mode": "implicit"}, image={"context_compression": compression})
    shown = response_object(document, response_id="resp_1", created_at=1)
    assert shown["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m"}
    assert shown["image"] == {"context_compression": "disabled"}


def test_a_request_that_continues_something_needs_no_input() -> None:
    for context in ({"previous_response_id": "resp_0"}, {"conversation": "conv_0"}):
        kept = parse_request(orjson.dumps({"model": "m", **context})).stored("resp_1", {})
        assert kept["input"] == []


class TestFingerprint:
    def test_the_same_value_in_other_bytes_has_the_same_fingerprint(self) -> None:
        one = parse_request(b'{"model":"m","input":"x","metadata":{"a":"1","b":"2"}}')
        same = parse_request(b'{ "input": "x", "metadata": {"b": "2", "a": "1"},  "model": "m"}')
        assert one.fingerprint() == same.fingerprint()
        assert len(one.fingerprint()) == 32

    def test_another_body_has_another_fingerprint(self) -> None:
        assert parse().fingerprint() != parse(stream=True).fingerprint()


def test_min_tokens_may_be_all() -> None:
    parse(min_tokens=4, max_output_tokens=4)


@pytest.mark.parametrize("missing", ["model", "input"])
def test_a_missing_field_is_named(missing: str) -> None:
    body = {name: value for name, value in PLAIN.items() if name != missing}
    with pytest.raises(InvalidRequest) as caught:
        parse_request(orjson.dumps(body))
    assert caught.value.error.message == f"Missing required parameter: '{missing}'."
    assert caught.value.error.code == "missing_required_parameter"


class TestMetadata:
    def test_it_is_kept(self) -> None:
        metadata = {f"k{i}": "v" * 512 for i in range(16)}
        assert stored(metadata=metadata)["metadata"] == metadata

    def test_a_long_key_is_refused_and_not_repeated_in_full(self) -> None:
        error = refusal(metadata={"k" * 65: "v"}).error
        assert "at most 64 characters" in error.message
        assert "k" * 65 not in error.message


class TestStored:
    def test_a_plain_request(self) -> None:
        part = {"type": "input_text", "text": "Hello!"}
        item = {"type": "message", "id": "msg_1_in0", "status": "completed", "role": "user", "content": [part]}
        assert stored() == {
            "model": "m",
            "input": [item],
            "instructions": None,
            "temperature": 1.0,
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_output_tokens": None,
            "conversation": None,
            "include": [],
            "metadata": {},
            "store": True,
            "stream": False,
            "background": False,
            "tools": [],
            "omitted_tools": [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": {"type": "text"}},
            "top_logprobs": 0,
            "reasoning": None,
            "max_tool_calls": None,
            "service_tier": "default",
            "continuation_id": None,
            "safety_identifier": None,
            "prompt_cache_key": None,
            "prompt_cache_retention": None,
            "prompt_cache_options": None,
            "image": None,
            "user": None,
            "previous_response_id": None,
            "extra": {},
            "previous_input_messages": None,
            "enable_response_messages": False,
            "secrets": {},
            "compaction": None,
            "summary_tokens": None,
            "task": None,
        }

    def test_every_field_that_was_sent_is_stored(self) -> None:
        sent = {
            "instructions": "Be brief.",
            "temperature": 0.25,
            "top_p": 0.5,
            "presence_penalty": 1.0,
            "frequency_penalty": -1.0,
            "max_output_tokens": 7,
            "store": False,
            "stream": True,
            "background": True,
            "user": "u",
            "safety_identifier": "s",
            "prompt_cache_key": "p",
            "prompt_cache_retention": "24h",
            "tool_choice": "none",
            "parallel_tool_calls": False,
            "max_tool_calls": 3,
            "truncation": "auto",
            "top_logprobs": 2,
            "include": ["message.output_text.logprobs"],
            "previous_response_id": "resp_0",
            "service_tier": "flex",
            "enable_response_messages": True,
        }
        kept = stored(**sent)
        assert {name: kept[name] for name in sent} == sent

    @pytest.mark.parametrize(
        ("sent", "kept"),
        [
            (None, "default"),
            ("auto", "default"),
            ("default", "default"),
            ("flex", "flex"),
            ("priority", "priority"),
            ("fast", "priority"),
            ("ultrafast", "priority"),
            ("scale", "default"),
        ],
    )
    def test_the_service_tier_is_the_one_that_serves(self, sent: str | None, kept: str) -> None:
        assert stored(service_tier=sent)["service_tier"] == kept

    @pytest.mark.parametrize("sent", ["conv_1", {"id": "conv_1"}])
    def test_a_conversation_is_an_id_or_an_object(self, sent: Any) -> None:
        assert stored(conversation=sent)["conversation"] == {"id": "conv_1"}

    def test_top_logprobs_include_log_probabilities(self) -> None:
        assert stored(top_logprobs=2)["include"] == ["message.output_text.logprobs"]
        assert stored(top_logprobs=0)["include"] == []

    def test_extras_are_stored_only_if_sent(self) -> None:
        assert stored(top_k=5, seed=0, ignore_eos=False)["extra"] == {"top_k": 5, "seed": 0, "ignore_eos": False}

    def test_every_extra_is_kept(self) -> None:
        sent: dict[str, Any] = {
            "top_k": 5,
            "min_p": 0.1,
            "repetition_penalty": 1.1,
            "seed": 1,
            "min_tokens": 1,
            "ignore_eos": True,
            "stop": ["a", "b"],
            "include_stop_str_in_output": True,
            "stop_token_ids": [1],
            "bad_words": ["x"],
            "logit_bias": {"5": -100},
            "allowed_token_ids": [1, 2],
            "skip_special_tokens": False,
            "thinking_token_budget": 10,
            "chat_template_kwargs": {"enable_thinking": False},
            "cache_salt": "s",
            "priority": -1,
        }
        assert set(sent) == set(ENGINE_PARAMS)
        assert stored(**sent)["extra"] == sent
        assert stored(stop="a")["extra"] == {"stop": ["a"]}

    def test_the_models_defaults_fill_absent_fields(self) -> None:
        kept = parse(top_p=0.5).stored("resp_1", {"temperature": 0.6, "top_p": 0.95})
        assert (kept["temperature"], kept["top_p"], kept["presence_penalty"]) == (0.6, 0.5, 0.0)

    def test_it_is_json(self) -> None:
        assert orjson.loads(orjson.dumps(stored(temperature=1))) == stored(temperature=1)


METADATA = {"session_id": "s", "x-codex-turn-metadata": json.dumps({"workspaces": "w" * 4000})}


def test_client_metadata_may_be_long_and_is_kept_nowhere() -> None:
    assert stored(client_metadata=METADATA) == stored()


def test_client_metadata_has_a_bound_in_bytes() -> None:
    frame = len('{"a":""}')
    parse(client_metadata={"a": "b" * (MAX_OPAQUE_BYTES - frame)})
    error = refusal(client_metadata={"a": "é" * (MAX_OPAQUE_BYTES // 2)}).error
    assert (error.param, error.code) == ("client_metadata", "object_above_max_size")
    size = MAX_OPAQUE_BYTES + frame
    assert error.message == (
        f"Invalid 'client_metadata': expected at most {MAX_OPAQUE_BYTES} bytes of JSON, but got {size} instead."
    )


def test_a_repeated_request_may_differ_in_what_is_opaque() -> None:
    item = {"role": "user", "content": "Hi"}
    marked = {**item, "internal_chat_message_metadata_passthrough": {"turn": 1}}
    first = parse(input=[item]).fingerprint()
    assert parse(input=[marked], client_metadata=METADATA).fingerprint() == first
    assert parse(input=[{**item, "content": "Ho"}]).fingerprint() != first


@pytest.mark.parametrize("retention", ["in_memory", "24h"])
def test_the_cache_retention_is_stored(retention: str) -> None:
    assert stored(prompt_cache_retention=retention)["prompt_cache_retention"] == retention


@pytest.mark.parametrize("window", ["2h", "8h"])
def test_a_completion_window_is_for_background_responses(window: str) -> None:
    parse(background=True, background_options={"completion_window": window})


@pytest.mark.parametrize(
    ("fields", "need"),
    [
        ({}, "'background' to be true"),
        ({"background": True, "stream": True}, "'stream' to be false"),
        ({"background": True, "service_tier": "flex"}, "'service_tier' to be 'default'"),
    ],
)
def test_a_completion_window_elsewhere_is_refused_with_what_it_needs(fields: Any, need: str) -> None:
    error = refusal(background_options={"completion_window": "2h"}, **fields).error
    assert error.param == "background_options.completion_window"
    assert error.message == f"Invalid 'background_options.completion_window': '2h' needs {need}."


def test_a_continuation_is_for_background_responses_with_any_window_and_stream() -> None:
    for window in (None, "soonest", "8h"):
        options = {"completion_window": window, "continuation_id": "agent-7"}
        assert parse(background=True, background_options=options).fields.continuation_id == "agent-7"
    assert parse(background=True, stream=True, background_options={"continuation_id": "c"}).fields.stream
    error = refusal(background_options={"continuation_id": "c"}).error
    assert error.message == "'background_options.continuation_id' needs 'background' to be true."


def test_soonest_is_what_every_response_gets() -> None:
    assert stored(stream=True, background_options={"completion_window": "soonest"}) == stored(stream=True)


def test_obfuscation_is_off_unless_it_is_asked_for() -> None:
    assert parse(stream=True, stream_options={"include_obfuscation": True}).obfuscation
    for options in (None, {}, {"include_obfuscation": None}, {"include_obfuscation": False}):
        assert not parse(stream=True, stream_options=options).obfuscation


class TestContextManagement:
    @pytest.mark.parametrize(
        ("sent", "stored"),
        [
            (None, None),
            ([], None),
            ([{"type": "compaction"}], {"threshold": None}),
            ([{"type": "compaction", "compact_threshold": None}], {"threshold": None}),
            ([{"type": "compaction", "compact_threshold": 1000}], {"threshold": 1000}),
        ],
    )
    def test_a_threshold_is_stored(self, sent: Any, stored: Any) -> None:
        assert parse(context_management=sent).stored("resp_ab", {})["compaction"] == stored
