"""Tools that are left out, and what a request asks of its model."""

from __future__ import annotations

from typing import Any, get_args

import orjson
import pytest
from openai.types.responses import ToolChoiceTypesParam, ToolParam

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.hosted_kinds import KIND_OF_TOOL
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.bodies.conversation import CreateItems
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.capabilities import Capabilities, check_capabilities
from app.protocol.requests.items.any_item import stored_items
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS
from app.protocol.requests.tools.choice import UNSUPPORTED_CHOICES
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.requests.validation import validate
from app.protocol.response import response_object
from config.settings import ConfigError, OmittableTool, load_settings
from tests.support.refusals import ADDED, CALL, CUSTOM, FOUND, FUNCTION, IMAGE, SEARCHED
from tests.support.requests import parse_request
from tests.support.sdk import kinds_of

Json = dict[str, Any]

TAKEN = {"function", "custom", "namespace", "tool_search", *LOCAL_TOOLS, *KIND_OF_TOOL}
"""The types of tools that the server knows."""


def stored(**fields: Any) -> Json:
    return parse_request(orjson.dumps({"model": "m", "input": "x", **fields})).stored("resp_1", {})


def test_the_types_of_tools_and_choices_are_those_of_the_openai_package() -> None:
    assert kinds_of(ToolParam) == UNSUPPORTED_TOOLS | TAKEN
    assert kinds_of(ToolChoiceTypesParam) <= UNSUPPORTED_CHOICES | set(KIND_OF_TOOL)


# -- tools that are left out -------------------------------------------------------------------------------------

WEB: Json = {"type": "web_search", "external_web_access": False, "search_content_types": ["text", "image"]}
INDEXED: Json = {"type": "web_search", "external_web_access": True, "indexed_web_access": True}


def without(omitted: set[str], **fields: Any) -> ResponseRequest:
    return checked_request(omit_tools({"model": "m", "input": "x", **fields}, omitted))


@pytest.mark.parametrize(
    ("omitted", "tools", "kept", "left_out"),
    [
        (
            {"web_search"},
            [FUNCTION, WEB, {"type": "web_search_preview", "x": 1}],
            ["function"],
            ["web_search", "web_search_preview"],
        ),
        (set(), [FUNCTION, WEB], ["function"], ["web_search"]),
        (set(), [{**WEB, "type": "web_search_2025_08_26"}], [], ["web_search_2025_08_26"]),
        (set(), [INDEXED], [], ["web_search"]),
        (set(), [{**INDEXED, "indexed_web_access": False}], ["web_search"], []),
        (set(), [{"type": "web_search", "external_web_access": None}], ["web_search"], []),
        *(({kind}, [{"type": kind, "x": {}}], [], [kind]) for kind in sorted({*UNSUPPORTED_TOOLS, *LOCAL_TOOLS})),
    ],
)
def test_a_tool_is_left_out_with_all_its_fields_and_named(
    omitted: set[str], tools: list[Json], kept: list[str], left_out: list[str]
) -> None:
    document = without(omitted, tools=tools).stored("r", {})
    assert ([tool["type"] for tool in document["tools"]], document["omitted_tools"]) == (kept, left_out)
    shown = response_object(document, response_id="r", created_at=1)
    assert shown.get("omitted_tools") == (left_out or None)


def test_tools_of_items_are_left_out_too() -> None:
    added, found = {**ADDED, "tools": [WEB, FUNCTION]}, {**FOUND, "tools": [WEB, FUNCTION]}
    for document in (
        without({"web_search"}, input=[added]).stored("r_1", {}),
        without(set(), input=[added]).stored("r_1", {}),
        without({"web_search"}, input=[SEARCHED, found]).stored("r_1", {}),
    ):
        assert [tool["type"] for tool in document["input"][-1]["tools"]] == ["function"]
        assert document["omitted_tools"] == ["web_search"]
    (item,) = stored_items(validate(CreateItems, omit_tools({"items": [added]}, {"web_search"})).items, "1")
    assert [tool["type"] for tool in item["tools"]] == ["function"]


def refused(omitted: set[str], **fields: Any) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as caught:
        without(omitted, **fields)
    return caught.value.error.param, caught.value.error.code


def test_a_choice_of_an_omitted_tool_is_refused() -> None:
    for omitted in ({"web_search"}, set[str]()):
        sent = {"tools": [FUNCTION, WEB], "tool_choice": {"type": "web_search"}}
        assert refused(omitted, **sent) == ("tool_choice.type", "invalid_value")
    some = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search_preview"}]}
    found = refused({"web_search"}, tools=[FUNCTION, WEB], tool_choice=some)
    assert found == ("tool_choice.tools[0].type", "invalid_value")
    with pytest.raises(InvalidRequest, match="leaves out all"):
        without({"web_search"}, tools=[WEB], tool_choice="required")


def test_tools_of_other_types_are_refused_as_before_in_their_own_positions() -> None:
    assert refused({"web_search"}, tools=[WEB, {"type": "image_generation"}])[0] == "tools[1].type"


@pytest.mark.parametrize("sent", [{}, {"type": []}, {"type": {"a": 1}}])
def test_a_client_that_sends_our_own_mark_crashes_nothing(sent: Json) -> None:
    tool = {"type": "omitted", "sent": sent}
    assert refused(set(), tools=[tool])[0] == "tools[0].sent"
    assert refused(set(), input=[{**ADDED, "tools": [tool]}])[0] == "input[0].tools[0].sent"


def test_the_setting_knows_every_type() -> None:
    assert set(get_args(OmittableTool)) == UNSUPPORTED_TOOLS | {"web_search", "code_interpreter", *LOCAL_TOOLS}
    assert load_settings(omit_tools="web_search, shell").omit_tools == {"web_search", "shell"}
    with pytest.raises(ConfigError, match="LONGHAUL_OMIT_TOOLS"):
        load_settings(omit_tools="function")


# -- what a model can do -----------------------------------------------------------------------------------------

ABLE = Capabilities(images=True, tools=True, reasoning=True, verbosity=True)
HARMONY = Capabilities(images=False, tools=True, reasoning=True, verbosity=False, harmony=True)
PLAIN = Capabilities(images=False, tools=False, reasoning=False, verbosity=False)
PARTS = [{"type": "input_text", "text": "x"}, IMAGE]
SENT = [{"role": "user", "content": "x"}]
IDENTITY = {"model_identity": "You are Ada.", "reasoning_effort": "low"}


def error(request: Json, model: Capabilities) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        check_capabilities(request, model)
    return caught.value.error


@pytest.mark.parametrize(
    ("sent", "path", "able", "unable"),
    [
        ({"input": [{"role": "user", "content": PARTS}]}, "input[0].content[1]", ABLE, PLAIN),
        (
            {"input": [CALL, {"type": "function_call_output", "call_id": "call_1", "output": [IMAGE]}]},
            "input[1].output[0]",
            ABLE,
            PLAIN,
        ),
        ({"tools": [FUNCTION, CUSTOM]}, "tools", ABLE, PLAIN),
        ({"input": [ADDED]}, "input[0].tools", ABLE, PLAIN),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort", ABLE, PLAIN),
        ({"text": {"verbosity": "high"}}, "text.verbosity", ABLE, PLAIN),
        ({"previous_input_messages": SENT}, "previous_input_messages", HARMONY, ABLE),
        ({"enable_response_messages": True}, "enable_response_messages", HARMONY, ABLE),
        ({"top_logprobs": 2}, "top_logprobs", ABLE, HARMONY),
        ({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]}, "include[1]", ABLE, HARMONY),
        *(
            ({"reasoning": {"effort": each}}, "reasoning.effort", ABLE, HARMONY)
            for each in ("none", "minimal", "xhigh")
        ),
        ({"skip_special_tokens": False}, "skip_special_tokens", ABLE, HARMONY),
        ({"thinking_token_budget": 0}, "thinking_token_budget", ABLE, HARMONY),
        ({"chat_template_kwargs": {"builtin_tools": []}}, "chat_template_kwargs.builtin_tools", ABLE, HARMONY),
    ],
)
def test_a_field_that_the_model_cannot_honour_is_refused_with_its_path(
    sent: Json, path: str, able: Capabilities, unable: Capabilities
) -> None:
    check_capabilities(stored(**sent), able)
    found = error(stored(**sent), unable)
    assert (found.param, found.code) == (path, "unsupported_parameter")
    assert f"'{path}'" in found.message and "'m'" in found.message


def test_a_request_that_asks_for_what_the_model_has_is_accepted() -> None:
    for sent in (
        {"tools": [FUNCTION, CUSTOM], "tool_choice": "none"},
        {"reasoning": {"effort": "none"}},
        {"text": {"verbosity": "medium"}},
    ):
        check_capabilities(stored(**sent), PLAIN)
    for sent in (
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"effort": None, "summary": None}},
        {"chat_template_kwargs": IDENTITY, "skip_special_tokens": True, "cache_salt": "x"},
    ):
        check_capabilities(stored(**sent), HARMONY)
