"""No field of the openai package's request types is taken and ignored, unless docs/protocol.md lists it as a hint.

A request that another room reads has its row in `REQUESTS`, and its table of hints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

import orjson
import pytest
from openai.types.chat import completion_create_params
from openai.types.responses import ResponseCreateParams

from app.chat.translation import chat_request
from app.protocol.errors import InvalidRequest
from tests.support.refusals import CODE, CUSTOM, FUNCTION, IMAGE, MCP, SAID, SCHEMA, SEARCH, WEB
from tests.support.requests import parse_request
from tests.support.sdk_fields import Json, Refused, Walk
from tests.unit.docs.test_protocol_page import table


def of_response(body: Json) -> Hashable:
    """What is stored of a request for a response, and what of it is heeded before."""
    try:
        request = parse_request(orjson.dumps({"model": "m", "input": "x", **body}))
    except InvalidRequest as error:
        raise Refused(error.error.code, error.error.param) from None
    fields = request.fields
    heeded = [request.secrets(), request.obfuscation, fields.completion_window, fields.continuation_id]
    return orjson.dumps([request.stored("resp_1", {}), heeded], option=orjson.OPT_SORT_KEYS)


def of_chat(body: Json) -> Hashable:
    """The same of a chat request."""
    try:
        request = chat_request({"model": "m", "messages": [{"role": "user", "content": "x"}], **body})
    except InvalidRequest as error:
        raise Refused(error.error.code, error.error.param) from None
    heeded = [request.obfuscation, request.include_usage, request.include_reasoning]
    return orjson.dumps([request.stored("resp_1", {}), heeded], option=orjson.OPT_SORT_KEYS)


AROUND: Sequence[Json] = (
    {},
    {"input": [SAID]},
    {"stream": True},
    {"background": True},
    {"tools": [SEARCH]},
    *({"tools": [{**tool, "name": name} for name in "xy"]} for tool in (FUNCTION, CUSTOM)),
    {"tools": [{"type": "shell"}, {"type": "apply_patch"}]},
    {"tools": [CODE, WEB, *({**MCP, "server_label": name} for name in "xy")]},
)
SAMPLES: Mapping[str, Sequence[Any]] = {
    "image_url": (IMAGE["image_url"], "https://x.example/"),
    "file_url": ("https://x.example/a", "https://x.example/b"),
    "schema": ({"type": "object"}, SCHEMA),
    "parameters": ({"type": "object"}, SCHEMA),
    "compact_threshold": (1000, 2000),
    "context_management[].type": ("compaction",),
    "tool_choice[allowed_tools].tools": [[{"type": "function", "name": name}] for name in "xy"],
}
_IMAGE_NEEDS = {"image_url": IMAGE["image_url"], "detail": "auto"}
_FILE_NEEDS = {"text": "x", "filename": "a"}
_CALL_NEEDS = {"call_id": "x"}
NEEDS: Mapping[str, Json] = {
    "ResponseInputImageParam": _IMAGE_NEEDS,
    "ResponseInputImageContentParam": _IMAGE_NEEDS,
    "ResponseInputFileParam": _FILE_NEEDS,
    "ResponseInputFileContentParam": _FILE_NEEDS,
    "FunctionCallOutput": _CALL_NEEDS,
    "ToolSearchCall": _CALL_NEEDS,
    "ResponseToolSearchOutputItemParamParam": _CALL_NEEDS,
    "CodeInterpreter": {"container": {"type": "auto"}},
    "ContextManagement": {"type": "compaction"},
    "ToolChoiceAllowedParam": {"tools": SAMPLES["tool_choice[allowed_tools].tools"][0]},
}


CHAT_TOOLS = [{"type": "function", "function": {"name": name}} for name in "xy"]
CHAT_AROUND: Sequence[Json] = (
    {},
    {"stream": True},
    {"logprobs": True},
    {
        "messages": [
            {
                "role": "assistant",
                "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            }
        ]
    },
    *({"tools": [{"type": kind, kind: {"name": name}} for name in "xy"]} for kind in ("function", "custom")),
)
CHAT_SAMPLES: Mapping[str, Sequence[Any]] = {
    "parameters": ({"type": "object"}, SCHEMA),
    "schema": ({"type": "object"}, SCHEMA),
    "image_url.url": (IMAGE["image_url"], "https://x.example/"),
    "logit_bias": ({"1": 1.0}, {"2": 1.0}),
    "allowed_tools.tools": ([CHAT_TOOLS[0]], [CHAT_TOOLS[1]]),
}
CHAT_NEEDS: Mapping[str, Json] = {
    "ImageURL": {"url": IMAGE["image_url"]},
    "FileFile": {"file_data": "eA==", "filename": "a"},
    "ChatCompletionAssistantMessageParam": {"content": "x"},
    "JSONSchema": {"schema": {"type": "object"}},
    "ChatCompletionAllowedToolsParam": {"tools": [CHAT_TOOLS[0]]},
}


@dataclass(frozen=True)
class Request:
    """A type of the package's, what the server makes of one, and the heading of its hints in docs/protocol.md."""

    kind: Any
    heed: Callable[[Json], Hashable]
    heading: str
    around: Sequence[Json] = AROUND
    samples: Mapping[str, Sequence[Any]] = field(default_factory=lambda: SAMPLES)
    needs: Mapping[str, Json] = field(default_factory=lambda: NEEDS)


REQUESTS = {
    "responses": Request(get_args(ResponseCreateParams)[0], of_response, "Hints"),
    "chat": Request(
        completion_create_params.CompletionCreateParamsNonStreaming,
        of_chat,
        "Hints of chat requests",
        CHAT_AROUND,
        CHAT_SAMPLES,
        CHAT_NEEDS,
    ),
}


@cache
def walked(name: str) -> Walk:
    request = REQUESTS[name]
    walk = Walk(request.heed, request.around, request.samples, request.needs)
    walk.walk(request.kind)
    return walk


@cache
def hints(name: str) -> set[str]:
    return {path for row in table(REQUESTS[name].heading) for path in re.findall(r"`([^`]+)`", row[0])}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_field_that_is_ignored_is_a_hint(name: str) -> None:
    silent = walked(name).silent
    assert silent - hints(name) == set()
    assert len(silent) > 3, "the walk finds none"


@pytest.mark.parametrize("name", REQUESTS)
def test_every_hint_is_a_field_that_there_is(name: str) -> None:
    assert {hint.partition(":")[0] for hint in hints(name)} <= walked(name).seen


@pytest.mark.parametrize("name", REQUESTS)
def test_each_field_is_taken_or_refused_as_such(name: str) -> None:
    """Otherwise a sample is wrong, and nobody knows what becomes of the field: add to SAMPLES or NEEDS."""
    assert walked(name).unknown == {}


def test_the_walk_reaches_what_is_deep_inside() -> None:
    assert {
        "reasoning.effort",
        "tool_choice[allowed_tools].mode",
        "tools[namespace].tools[custom].format[grammar].definition",
        "input[message].content[input_image].detail",
        "input[tool_search_output].tools[namespace].tools[function].defer_loading",
        "input[function_call_output].output[input_text].text",
    } <= walked("responses").seen
