"""What a chat request becomes, and what its errors name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.chat.translation import ChatRequest, chat_request
from app.protocol.errors import ErrorObject, ErrorType, InvalidRequest
from app.protocol.include import LOGPROBS
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.tools.omitted import omit_tools

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "Hello!"}
FUNCTION: Json = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
CUSTOM: Json = {
    "type": "custom",
    "custom": {
        "name": "write",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}},
    },
}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CUSTOM_CALL: Json = {"id": "call_2", "type": "custom", "custom": {"name": "write", "input": "x"}}
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def parse(*sent: Json, **fields: Any) -> ChatRequest:
    return chat_request(decode_object(orjson.dumps({"model": "m", "messages": sent or [USER], **fields})))


def stored(*messages: Json, **fields: Any) -> Json:
    return parse(*messages, **fields).stored("resp_1", {})


def items(*messages: Json) -> list[Json]:
    """The items of `input`, without ids and statuses."""
    return [{k: v for k, v in item.items() if k not in ("id", "status")} for item in stored(*messages)["input"]]


def refusal(*messages: Json, **fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        parse(*messages, **fields)
    return caught.value.error


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


class TestMessages:
    def test_roles_and_their_order_stay(self) -> None:
        sent = [{"role": role, "content": role} for role in ("system", "user", "developer", "user", "system")]
        assert [(item["role"], item["content"]) for item in items(*sent)] == [
            (each["role"], [text(each["content"])]) for each in sent
        ]

    def test_parts_become_parts(self) -> None:
        parts = [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}},
        ]
        (item,) = items({"role": "user", "content": parts})
        assert item["content"] == [text("What?"), {"type": "input_image", "image_url": PIXEL, "detail": "high"}]

    def test_an_answer_becomes_its_reasoning_its_text_and_its_calls(self) -> None:
        answer = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [CALL, CUSTOM_CALL]}
        thought, said, called, written = items(answer, USER)[:4]
        assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert (said["role"], said["content"][0]["text"]) == ("assistant", "So.")
        assert (called["type"], called["call_id"], called["name"]) == ("function_call", "call_1", "look")
        assert (written["type"], written["call_id"], written["input"]) == ("custom_tool_call", "call_2", "x")

    def test_fields_that_clients_add_are_dropped(self) -> None:
        own = {"x_own": {"a": 1}}
        call, tool = {**CALL, **own, "function": {**CALL["function"], **own}}, {**FUNCTION, **own}
        result, part = {"role": "tool", "tool_call_id": "call_1", "content": "4"}, {"type": "text", "text": "x"}
        plain = stored(user([part]), calling(CALL), result, tools=[FUNCTION])
        sent = [user([{**part, **own}], **own), calling(call, **own), {**result, **own}]
        assert stored(*sent, tools=[{**tool, "function": {**tool["function"], **own}}]) == plain

    def test_an_answer_without_text_is_its_calls_or_an_empty_message(self) -> None:
        for content in (None, ""):
            sent = {"role": "assistant", "content": content, "tool_calls": [CALL]}
            assert [item["type"] for item in items(sent, USER)] == ["function_call", "message"]
            answer, _ = items({"role": "assistant", "content": content}, USER)
            assert (answer["type"], answer["role"]) == ("message", "assistant")

    def test_a_refusal_is_a_part(self) -> None:
        answer, _ = items({"role": "assistant", "content": None, "refusal": "No."}, USER)
        assert answer["content"] == [{"type": "refusal", "refusal": "No."}]

    def test_what_a_tool_returned_answers_the_call_of_its_kind(self) -> None:
        text_4 = [{"type": "text", "text": "4"}]
        told = [{"role": "tool", "tool_call_id": f"call_{n}", "content": text_4} for n in (1, 2)]
        results = items({"role": "assistant", "tool_calls": [CALL, CUSTOM_CALL]}, *told)[2:]
        ids = [("function_call_output", "call_1"), ("custom_tool_call_output", "call_2")]
        assert [(item["type"], item["call_id"]) for item in results] == ids
        assert results[0]["output"] == [text("4")]

    def test_what_other_servers_and_clients_write_beside_is_accepted(self) -> None:
        """Clients send an answer back as they got it, with whatever their own types have."""
        hint = {"cache_control": {"type": "ephemeral"}}
        empty = dict.fromkeys(("refusal", "audio", "function_call", "name"))
        answer = {
            **empty,
            "role": "assistant",
            "content": "Hi",
            "annotations": [],
            "images": [],
            "thinking_blocks": None,
            "provider_specific_fields": {"x": 1},
            "parsed": {"x": 1},
            "tool_calls": [{**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {"x": 1}}}],
        }
        user = {"role": "user", "name": "ann", "type": "text", "content": [{"type": "text", "text": "Go", **hint}]}
        plain = {"role": "assistant", "content": "Hi", "tool_calls": [CALL]}
        assert items(answer, user) == items(plain, {"role": "user", "content": [{"type": "text", "text": "Go"}]})

    def test_reasoning_is_read_by_either_name(self) -> None:
        answer = {"role": "assistant", "content": "x"}
        assert items({**answer, "reasoning": "Hm."}) == items({**answer, "reasoning_content": "Hm."})
        refused = refusal({**answer, "reasoning": "Hm.", "reasoning_content": "Ah."})
        assert (refused.param, refused.code) == ("messages[0].reasoning", "mutually_exclusive_parameters")


NAMED = {"type": "function", "function": {"name": "look"}}
SCHEMA_SENT = {"name": "a", "schema": {"type": "object", "properties": {}}}
FLAT = {"type": "function", "name": "look"}
CHOICES: list[tuple[Any, Any]] = [
    *((each, each) for each in ("auto", "required")),
    (NAMED, FLAT),
    ({"type": "custom", "custom": {"name": "write"}}, {"type": "custom", "name": "write"}),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        {"type": "allowed_tools", "mode": "auto", "tools": [FLAT]},
    ),
]
SAME: Json = {
    "temperature": 0.5,
    "top_p": 0.5,
    "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "user": "u",
    "safety_identifier": "s",
    "parallel_tool_calls": False,
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
}
EXTRA: Json = {"seed": 5, "chat_template_kwargs": {"a": 1}}
ASKED = {"reasoning": {"effort": "low", "summary": None}}
FIELDS: list[tuple[Json, Json]] = [
    (SAME, SAME),
    ({**EXTRA, "stop": "x", "logit_bias": {"5": 1}}, {"extra": {**EXTRA, "stop": ["x"], "logit_bias": {"5": 1.0}}}),
    *(({"tools": [FUNCTION, CUSTOM], "tool_choice": sent}, {"tool_choice": made}) for sent, made in CHOICES),
    (
        {
            "response_format": {"type": "json_schema", "json_schema": {**SCHEMA_SENT, "strict": None}},
            "verbosity": "low",
        },
        {
            "text": {
                "format": {"type": "json_schema", **SCHEMA_SENT, "strict": False, "description": None},
                "verbosity": "low",
            }
        },
    ),
    *(({name: 7}, {"max_output_tokens": 7}) for name in ("max_tokens", "max_completion_tokens")),
    ({"logprobs": True, "top_logprobs": 3}, {"include": [LOGPROBS], "top_logprobs": 3}),
    ({"logprobs": True}, {"include": [LOGPROBS]}),
    ({"logprobs": False, "top_logprobs": 0}, {"include": []}),
    ({"reasoning_effort": "low"}, ASKED),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, ASKED),
    # Nothing is kept unless it is asked for.
    *(({"store": sent}, {"store": bool(sent)}) for sent in (None, True)),
    ({}, {"store": False}),
]


class TestFields:
    def test_tools_become_flat(self) -> None:
        made = stored(tools=[FUNCTION, CUSTOM])["tools"]
        assert [(tool["type"], tool["name"]) for tool in made] == [("function", "look"), ("custom", "write")]
        assert (made[0]["strict"], made[1]["format"]["definition"]) == (True, "start: WORD")

    def test_what_becomes_of_a_chat_field(self) -> None:
        for sent, kept in FIELDS:
            made = stored(**sent)
            assert {name: made[name] for name in kept} == kept

    def test_what_clients_send_for_nothing_is_nothing(self) -> None:
        for sent in ({"stop": []}, {"stop": None}, {"logit_bias": {}}, {"tools": []}, {"n": 1}):
            assert stored(**sent) == stored()

    def test_the_fingerprint_is_that_of_the_chat_request(self) -> None:
        assert parse().fingerprint() == parse(USER).fingerprint() != parse(USER, seed=1).fingerprint()

    def test_tools_of_a_type_that_this_server_leaves_out_are_left_out(self) -> None:
        body = {"model": "m", "messages": [USER], "tools": [{"type": "web_search"}, FUNCTION]}
        made = chat_request(omit_tools(body, {"web_search"})).stored("resp_1", {})
        assert ([tool["name"] for tool in made["tools"]], made["omitted_tools"]) == (["look"], ["web_search"])


IMAGE = {"type": "image_url", "image_url": {"url": "ftp://x"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}
UNKNOWN = {"type": "function", "function": {"name": "q"}}
ODD_GRAMMAR = {"type": "grammar", "grammar": {"syntax": "x"}}


def user(content: Any, **more: Any) -> Json:
    return {"role": "user", "content": content, **more}


def function(name: str, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, **more}}


def calling(*calls: Json, **more: Any) -> Json:
    return {"role": "assistant", "tool_calls": list(calls), **more}


BAD_MESSAGES: list[tuple[list[Json], str]] = [
    ([{"role": "alien", "content": "x"}], "messages[0].role"),
    ([{"content": "x"}], "messages[0].role"),
    ([{"role": "function", "name": "f", "content": "x"}], "messages[0].role"),
    ([{"role": "user"}], "messages[0].content"),
    ([{"role": "assistant"}], "messages[0].content"),
    ([USER, {"role": "tool", "tool_call_id": "call_1", "content": "x"}], "messages[1].tool_call_id"),
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "system", "content": [IMAGE]}], "messages[0].content[0].type"),
    ([{"role": "assistant", "content": [IMAGE]}], "messages[0].content[0].type"),
    ([user([{"type": "refusal", "refusal": "x"}])], "messages[0].content[0].type"),
    ([user([{"type": "input_audio", "input_audio": {}}])], "messages[0].content[0].type"),
    ([USER, user([IMAGE])], "messages[1].content[0].image_url.url"),
    ([user([{**IMAGE, "image_url": "x"}])], "messages[0].content[0].image_url"),
    ([calling(CALL, {**CALL, "id": ""}, reasoning_content="y")], "messages[0].tool_calls[1].id"),
    (
        [calling({**CALL, "function": {"name": "f", "arguments": {}}})],
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        [calling(CALL), {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "x"}, IMAGE]}],
        "messages[1].content[1].image_url.url",
    ),
]
BAD_FIELDS: list[tuple[Json, str]] = [
    ({"tools": [function("a b")]}, "tools[0].function.name"),
    ({"tools": [FUNCTION, function("b", parameters={"type": "array"})]}, "tools[1].function.parameters"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (
        {"tools": [{"type": "custom", "custom": {"name": "a", "format": ODD_GRAMMAR}}]},
        "tools[0].custom.format.grammar.syntax",
    ),
    ({"tool_choice": UNKNOWN}, "tool_choice.function.name"),
    (
        {
            "tools": [FUNCTION],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [UNKNOWN]}},
        },
        "tool_choice.allowed_tools.tools[0].function.name",
    ),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
    ({"response_format": SCHEMA}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 5}, "max_tokens"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 50}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"temperature": 5}, "temperature"),
    ({"n": 2}, "n"),
    ({"functions": [{}]}, "functions"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"input": "x"}, "input"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"messages": []}, "messages"),
]


def test_an_error_names_the_field_as_chat_has_it() -> None:
    for fields, param in [*(({"messages": sent}, param) for sent, param in BAD_MESSAGES), *BAD_FIELDS]:
        refused = refusal(**fields)
        assert refused.param == param
        assert f"'{param}'" in refused.message
        assert "input[" not in refused.message


def test_a_value_that_looks_like_a_field_stays_as_it_was_sent() -> None:
    assert refusal({"role": "input", "content": ""}).message.startswith(
        "Invalid value for 'messages[0].role': 'input'."
    )
    names = parse(USER).names
    for sent in ("input", "input[0].content", "text.format", "'input[0]' \\g<9>"):
        missing = ErrorObject(f"The model '{sent}' does not exist.", ErrorType.INVALID_REQUEST, "model")
        assert names.error(missing) == missing


def test_what_a_worker_says_of_the_response_is_said_of_the_chat_request() -> None:
    calling = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    names = parse(USER, calling, max_tokens=5, tools=[FUNCTION]).names
    for path, named in {
        "input": "messages",
        "input[0].content[0].image_url": "messages[0].content[0].image_url.url",
        "input[1]": "messages[1].reasoning_content",
        "input[2].content": "messages[1].content",
        "input[3].arguments": "messages[1].tool_calls[0].function.arguments",
        "tools": "tools",
        "tools[0].parameters": "tools[0].function.parameters",
        "text.format.schema": "response_format.json_schema.schema",
        "text.verbosity": "verbosity",
        "include[0]": "logprobs",
        "max_output_tokens": "max_tokens",
        "min_tokens": "min_tokens",
    }.items():
        assert names.of(path) == named
