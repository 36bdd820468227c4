"""Every field of the installed SDK's Messages request is honoured, a hint that a page names, or refused by name."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic.types import (
    ContentBlockParam,
    MessageCountTokensParams,
    MessageCreateParams,
    OutputConfigParam,
    ThinkingConfigParam,
    ToolChoiceParam,
    ToolUnionParam,
)
from anthropic.types.beta import (
    BetaContentBlockParam,
    BetaOutputConfigParam,
    BetaThinkingConfigParam,
    BetaToolChoiceParam,
    BetaToolUnionParam,
)
from anthropic.types.beta import MessageCountTokensParams as BetaCountParams
from anthropic.types.beta import MessageCreateParams as BetaCreateParams
from typing_extensions import get_type_hints, is_typeddict

from app.messages import blocks, tools
from app.messages.request import HINTS, REFUSED, SAME, CountMessageTokens, CreateMessage, OutputConfig, Thinking
from app.messages.translation import count_request, messages_request
from app.protocol.errors import InvalidRequest
from tests.support.pages import table

Json = dict[str, Any]

PLAIN: Json = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]}


def shapes(union: Any) -> Iterator[Any]:
    """The TypedDicts in a type."""
    if is_typeddict(union):
        yield union
    for inner in typing.get_args(union):
        yield from shapes(inner)


def fields(*unions: Any) -> set[str]:
    return {name for union in unions for shape in shapes(union) for name in get_type_hints(shape)}


def types(*unions: Any) -> dict[str, set[str]]:
    """The fields of each block or tool, by its type."""
    found: dict[str, set[str]] = {}
    for shape in (shape for union in unions for shape in shapes(union)):
        hints = get_type_hints(shape)
        for kind in [each for each in _literals(hints["type"]) if isinstance(each, str)]:
            found.setdefault(kind, set()).update(hints)
    return found


def _literals(hint: Any) -> list[Any]:
    inner = typing.get_args(hint)
    return (
        [each for arg in inner for each in _literals(arg)] if inner and not isinstance(inner[0], str) else list(inner)
    )


def test_every_field_of_the_anthropic_package_is_known() -> None:
    known = {*CreateMessage.model_fields, *HINTS, *REFUSED}
    assert len(fields(MessageCreateParams)) > 15
    assert fields(MessageCreateParams, BetaCreateParams, MessageCountTokensParams, BetaCountParams) <= known
    counted = {*CountMessageTokens.model_fields, *HINTS, *REFUSED}
    assert fields(MessageCountTokensParams, BetaCountParams) <= counted


def test_every_setting_of_the_anthropic_package_is_known() -> None:
    for model, *params in (
        (Thinking, ThinkingConfigParam, BetaThinkingConfigParam),
        (OutputConfig, OutputConfigParam, BetaOutputConfigParam),
        (tools.ToolChoice, ToolChoiceParam, BetaToolChoiceParam),
    ):
        assert fields(*params) <= set(model.model_fields), model


def test_every_type_of_block_is_taken_or_refused_by_name() -> None:
    for kind in types(ContentBlockParam, BetaContentBlockParam):
        taken = 0
        for role in ("user", "assistant", "system"):
            sent = {"role": role, "content": [{"type": kind}]}
            try:
                messages_request({**PLAIN, "messages": [sent, *PLAIN["messages"]]})
                taken += 1
            except InvalidRequest as caught:
                error = caught.error
                named = error.param == "messages.0.content.0.type"
                taken += not named
                if kind in blocks.REFUSED_BLOCKS and role != "system":
                    assert named and f"'{kind}' is not supported yet; " in error.message
        assert bool(taken) != (kind in blocks.REFUSED_BLOCKS), kind


BLOCK_HINTS = {"cache_control", "caller", "citations", "encrypted_content", "signature", "tool_changes", "toolset_name"}
"""Fields of blocks that change no prompt."""


@pytest.mark.parametrize(
    "model",
    [
        blocks.TextBlock,
        blocks.ImageBlock,
        blocks.DocumentBlock,
        blocks.SearchResultBlock,
        blocks.ThinkingBlock,
        blocks.RedactedThinkingBlock,
        blocks.ToolUseBlock,
        blocks.ToolResultBlock,
        blocks.CompactionBlock,
    ],
)
def test_every_field_of_a_block_is_honoured_or_a_hint(model: Any) -> None:
    (kind,) = typing.get_args(model.model_fields["type"].annotation)
    found = types(ContentBlockParam, BetaContentBlockParam)[kind]
    assert found <= {*model.model_fields, *BLOCK_HINTS, *(["transformations"] if kind == "image" else [])}


def test_every_type_of_tool_is_taken_or_refused_by_name() -> None:
    for kind, known in types(ToolUnionParam, BetaToolUnionParam).items():
        sent = {"type": kind, "name": "t", "input_schema": {}, "mcp_server_name": "s"}
        server = {"type": "url", "name": "s", "url": "http://s.example"}
        body = {**PLAIN, "tools": [sent], "mcp_servers": [server]}
        if tools.undated(kind) in tools.REFUSED_TOOLS:
            with pytest.raises(InvalidRequest) as caught:
                messages_request(body)
            said = caught.value.error.message
            assert re.match(rf"^'tools\.0\.type': '{kind}' is not supported yet; .+\.$", said)
        else:
            assert messages_request(body).fields.tools, kind
        assert known


TOOL_HINTS = {"allowed_callers", "cache_control", "eager_input_streaming", "input_examples"}


def test_every_field_of_a_tool_is_honoured_or_a_hint() -> None:
    found = types(ToolUnionParam, BetaToolUnionParam)
    assert found["custom"] <= {*tools.OwnTool.model_fields, *TOOL_HINTS}
    server = {"defer_loading", "max_uses", "response_inclusion", "strict"}
    assert found["web_search_20250305"] <= {*tools.ServerTool.model_fields, *TOOL_HINTS, *server}
    assert found["mcp_toolset"] <= {*tools.McpToolset.model_fields, *TOOL_HINTS, "tools"}


def test_the_page_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", row[0]) for row in table("Fields of a Messages request")]
    ours = set(CreateMessage.model_fields) - SAME - {"model"}
    assert sorted(name for names in rows for name in names) == sorted(
        ours - {"chat_template_kwargs"} | set(REFUSED) | HINTS
    )


def test_every_field_that_is_refused_says_what_to_do() -> None:
    for name in REFUSED:
        with pytest.raises(InvalidRequest) as caught:
            messages_request({**PLAIN, name: {"x": 1}})
        error = caught.value.error
        assert (error.param, error.code) == (name, "unsupported_parameter")
        assert re.match(rf"'{name}' is not supported yet( \(.*\))?; .+\.$", error.message)


def test_a_hint_and_null_change_nothing() -> None:
    plain = messages_request(PLAIN).stored("resp_1", {})
    for name in {*CreateMessage.model_fields, *REFUSED, *HINTS} - PLAIN.keys():
        assert messages_request({**PLAIN, name: None}).stored("resp_1", {}) == plain, name
    for name in HINTS:
        assert messages_request({**PLAIN, name: {"x": [1]}}).stored("resp_1", {}) == plain, name


def test_what_is_counted_is_the_prompt_of_the_message() -> None:
    more: Json = {
        "system": "Be brief.",
        "tools": [{"name": "f", "input_schema": {}}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
        "chat_template_kwargs": {"a": 1},
    }
    message, counted = messages_request({**PLAIN, **more}), count_request({**PLAIN, **more, "stream": True})
    about = ("input", "instructions", "tools", "tool_choice", "reasoning", "text", "extra")
    assert {name: message.stored("resp_1", {})[name] for name in about} == {
        name: counted.stored("resp_1", {})[name] for name in about
    }
    assert (counted.task, message.task) == ("count", None)
