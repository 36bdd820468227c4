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
        *("previous_input_messages", "enable_response_messages", "client_metadata"),
        *({"background_options"} - openai_fields()),  # since openai 3.54
    }


def test_every_value_of_include_is_known() -> None:
    assert set(typing.get_args(ResponseIncludable)) == REFUSED_INCLUDES | set(SUPPORTED_INCLUDES)


@pytest.mark.parametrize("field", sorted(set(CreateResponse.model_fields) - {"model", "input"}))
def test_null_means_not_sent(field: str) -> None:
    assert stored(**{field: None}) == stored()


DEFAULTS = [
    ("stream_options", {"include_obfuscation": False}),
    ("reasoning", {"mode": "standard"}),
    ("context_management", []),
    ("access_programs", {}),
    ("image", {"context_compression": "auto"}),
    ("prompt_cache_options", {"mode": "implicit"}),
    ("background_options", {"completion_window": "soonest"}),
]


@pytest.mark.parametrize(("field", "value"), DEFAULTS)
def test_a_value_that_asks_for_the_default_is_accepted(field: str, value: Any) -> None:
    parse(**{field: value})


UNSUPPORTED = [
    ("reasoning", {"mode": "pro"}, "reasoning.mode"),
    ("prompt", {"id": "pmpt_1"}, "prompt"),
    ("moderation", {"model": "m"}, "moderation"),
    ("access_programs", {"cyber": "standard"}, "access_programs"),
    ("image", {"context_compression": "enabled"}, "image.context_compression"),
    ("prompt_cache_options", {"mode": "explicit"}, "prompt_cache_options.mode"),
    ("prompt_cache_options", {"ttl": "30m"}, "prompt_cache_options.ttl"),
    ("prompt_cache_options", {"prewarm": True}, "prompt_cache_options.prewarm"),
    ("background_options", {"continuation_id": "c"}, "background_options.continuation_id"),
]


@pytest.mark.parametrize(("field", "value", "path"), UNSUPPORTED)
def test_an_unsupported_value_is_refused_by_name(field: str, value: Any, path: str) -> None:
    error = refusal(**{field: value}).error
    assert (error.param, error.code) == (path, "unsupported_parameter")
    assert error.message.startswith(f"'{path}' is not supported yet")


@pytest.mark.parametrize("value", sorted(REFUSED_INCLUDES))
def test_an_unsupported_include_is_refused_with_its_path(value: str) -> None:
    error = refusal(include=["message.output_text.logprobs", value]).error
    assert (error.param, error.code) == ("include[1]", "unsupported_parameter")
    assert value in error.message


RANGES = [
    ("temperature", 2, 2.01, "decimal_above_max_value"),
    ("temperature", 0, -0.1, "decimal_below_min_value"),
    ("top_p", 1, 1.5, "decimal_above_max_value"),
    ("top_p", 0.01, 0, "decimal_below_min_value"),
    ("presence_penalty", -2, -2.5, "decimal_below_min_value"),
    ("frequency_penalty", 2, 3, "decimal_above_max_value"),
    ("max_output_tokens", 1, 0, "integer_below_min_value"),
    ("max_output_tokens", 2**31 - 1, 2**31, "integer_above_max_value"),
    ("top_k", -1, -2, "integer_below_min_value"),
    ("min_p", 1, 1.1, "decimal_above_max_value"),
    ("repetition_penalty", 0.5, 0, "decimal_below_min_value"),
    ("seed", -(2**63), 2**63, "integer_above_max_value"),
    ("min_tokens", 0, -1, "integer_below_min_value"),
    ("top_logprobs", 20, 21, "integer_above_max_value"),
    ("max_tool_calls", 1, 0, "integer_below_min_value"),
    ("thinking_token_budget", 0, -1, "integer_below_min_value"),
    ("priority", -5, 2**31, "integer_above_max_value"),
    ("queue_timeout", 0.5, 0, "decimal_below_min_value"),
    ("run_timeout", 60, -1, "decimal_below_min_value"),
]


@pytest.mark.parametrize(("field", "good", "bad", "code"), RANGES)
def test_a_number_out_of_range_is_refused_with_its_bound(field: str, good: float, bad: float, code: str) -> None:
    parse(**{field: good})
    error = refusal(**{field: bad}).error
    assert (error.param, error.code) == (field, code)
    assert error.message.startswith(f"Invalid '{field}': expected a value ")
    assert f"got {bad} instead" in error.message


WRONG_TYPES = [
    ("temperature", "0.5", "a number", "a string"),
    ("temperature", True, "a number", "a boolean"),
    ("max_output_tokens", 1.5, "an integer", "a decimal number"),
    ("max_output_tokens", 10**30, "an integer", "a decimal number"),
    ("seed", "1", "an integer", "a string"),
    ("ignore_eos", 1, "a boolean", "an integer"),
    ("stream", "true", "a boolean", "a string"),
    ("background", 1, "a boolean", "an integer"),
    ("store", "no", "a boolean", "a string"),
    ("instructions", ["x"], "a string", "an array"),
    ("metadata", [], "an object", "an array"),
    ("model", 5, "a string", "an integer"),
    ("user", {}, "a string", "an object"),
    ("text", "text", "an object", "a string"),
    ("reasoning", [], "an object", "an array"),
    ("tools", {}, "an array", "an object"),
    ("tool_choice", 1, "a string or an object", "an integer"),
    ("conversation", 1, "a string or an object", "an integer"),
    ("previous_response_id", 1, "a string", "an integer"),
    ("include", "message.output_text.logprobs", "an array", "a string"),
    ("top_logprobs", False, "an integer", "a boolean"),
    ("stop", 1, "a string or an array", "an integer"),
    ("chat_template_kwargs", [], "an object", "an array"),
]


@pytest.mark.parametrize(("field", "value", "expected", "got"), WRONG_TYPES)
def test_a_wrong_type_is_refused(field: str, value: Any, expected: str, got: str) -> None:
    error = refusal(**{field: value}).error
    assert error.message == f"Invalid type for '{field}': expected {expected}, but got {got} instead."
    assert (error.param, error.code) == (field, "invalid_type")


BAD_EXTRAS = [
    ({"stop": []}, "stop"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop_token_ids": [1, "2"]}, "stop_token_ids[1]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"bad_words": ["a", 1]}, "bad_words[1]"),
    ({"logit_bias": {"a": 1}}, "logit_bias.a"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"chat_template_kwargs": {"a": 1, "chat_template": "{{ x }}"}}, "chat_template_kwargs.chat_template"),
    ({"run_timeout": 10**10}, "run_timeout"),
]


@pytest.mark.parametrize(("sent", "path"), BAD_EXTRAS)
def test_a_bad_extra_is_refused_with_its_path(sent: dict[str, Any], path: str) -> None:
    error = refusal(**sent).error
    assert error.param == path
    assert f"'{path}'" in error.message


def test_an_unknown_field_is_refused_by_name() -> None:
    error = refusal(max_tokens=5).error
    assert (error.message, error.param) == ("Unknown parameter: 'max_tokens'.", "max_tokens")
    assert error.code == "unknown_parameter"


def test_unknown_fields_inside_are_named_with_their_path() -> None:
    assert refusal(text={"shape": 1}).error.param == "text.shape"


def test_a_request_that_continues_something_needs_no_input() -> None:
    for context in ({"previous_response_id": "resp_0"}, {"conversation": "conv_0"}):
        kept = parse_request(orjson.dumps({"model": "m", **context})).stored("resp_1", {})
        assert kept["input"] == []


def test_a_response_continues_one_thing() -> None:
    error = refusal(previous_response_id="resp_0", conversation="conv_0").error
    assert (error.param, error.code) == ("conversation", "mutually_exclusive_parameters")
    assert refusal(conversation="conv_0", previous_response_id="resp_0").error.param == "previous_response_id"


class TestFingerprint:
    def test_the_same_value_in_other_bytes_has_the_same_fingerprint(self) -> None:
        one = parse_request(b'{"model":"m","input":"x","metadata":{"a":"1","b":"2"}}')
        same = parse_request(b'{ "input": "x", "metadata": {"b": "2", "a": "1"},  "model": "m"}')
        assert one.fingerprint() == same.fingerprint()
        assert len(one.fingerprint()) == 32

    def test_another_body_has_another_fingerprint(self) -> None:
        assert parse().fingerprint() != parse(stream=True).fingerprint()


@pytest.mark.parametrize("missing", ["model", "input"])
def test_a_missing_field_is_named(missing: str) -> None:
    body = {name: value for name, value in PLAIN.items() if name != missing}
    with pytest.raises(InvalidRequest) as caught:
        parse_request(orjson.dumps(body))
    assert caught.value.error.message == f"Missing required parameter: '{missing}'."
    assert caught.value.error.code == "missing_required_parameter"


def test_the_first_of_several_faults_as_written_is_named() -> None:
    assert refusal(zzz=1, temperature=9).error.param == "zzz"
    assert refusal(temperature=9, zzz=1).error.param == "temperature"
    with pytest.raises(InvalidRequest) as caught:
        parse_request(b'{"input": [{"role": "user", "content": 1}, {"x": 1}], "model": 5}')
    assert caught.value.error.param == "input[0].content"


def test_min_tokens_above_max_output_tokens_is_refused() -> None:
    parse(min_tokens=4, max_output_tokens=4)
    assert refusal(min_tokens=5, max_output_tokens=4).error.param == "min_tokens"


class TestMetadata:
    def test_it_is_kept(self) -> None:
        metadata = {f"k{i}": "v" * 512 for i in range(16)}
        assert stored(metadata=metadata)["metadata"] == metadata

    def test_seventeen_keys_are_refused(self) -> None:
        error = refusal(metadata={f"k{i}": "" for i in range(17)}).error
        assert error.message == "Invalid 'metadata': expected at most 16 keys, but got 17 instead."

    def test_a_long_key_is_refused_and_not_repeated_in_full(self) -> None:
        error = refusal(metadata={"k" * 65: "v"}).error
        assert "at most 64 characters" in error.message
        assert "k" * 65 not in error.message

    def test_a_long_value_is_refused(self) -> None:
        assert refusal(metadata={"a": "v" * 513}).error.param == "metadata.a"

    def test_values_are_strings(self) -> None:
        assert refusal(metadata={"a": 1}).error.param == "metadata.a"
        assert refusal(metadata={"a b": None}).error.param == "metadata['a b']"


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
            "safety_identifier": None,
            "prompt_cache_key": None,
            "prompt_cache_retention": None,
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


@pytest.mark.parametrize(("value", "path"), [({"a": 1}, "client_metadata.a"), ("a", "client_metadata")])
def test_client_metadata_is_an_object_of_strings(value: Any, path: str) -> None:
    error = refusal(client_metadata=value).error
    assert (error.param, error.code) == (path, "invalid_type")


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


def test_soonest_is_what_every_response_gets() -> None:
    assert stored(stream=True, background_options={"completion_window": "soonest"}) == stored(stream=True)


def test_obfuscation_is_off_unless_it_is_asked_for() -> None:
    assert parse(stream=True, stream_options={"include_obfuscation": True}).obfuscation
    for options in (None, {}, {"include_obfuscation": None}, {"include_obfuscation": False}):
        assert not parse(stream=True, stream_options=options).obfuscation


def test_obfuscation_needs_a_stream() -> None:
    error = refusal(stream_options={"include_obfuscation": True}).error
    assert (error.param, error.code) == ("stream_options.include_obfuscation", "invalid_value")


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

    @pytest.mark.parametrize(
        ("sent", "path"),
        [
            ([{"type": "compaction", "compact_threshold": 999}], "context_management[0].compact_threshold"),
            ([{"type": "compaction", "compact_threshold": "many"}], "context_management[0].compact_threshold"),
            ([{"type": "compaction", "keep": 1}], "context_management[0].keep"),
            ([{"type": "forget"}], "context_management[0].type"),
            ([{"compact_threshold": 1000}], "context_management[0].type"),
            ([{"type": "compaction"}, {"type": "compaction"}], "context_management"),
            ({"type": "compaction"}, "context_management"),
        ],
    )
    def test_any_other_form_is_refused_with_its_path(self, sent: Any, path: str) -> None:
        assert refusal(context_management=sent).error.param == path
