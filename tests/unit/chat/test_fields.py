"""Every field of the installed SDK's chat request is honoured, a hint that a page names, or refused by name."""

from __future__ import annotations

import re
import typing
from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartRefusalParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionCustomToolParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageCustomToolCallParam,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
    CompletionCreateParams,
)
from openai.types.shared_params import FunctionDefinition as SdkFunction
from pydantic import BaseModel

from app.chat import messages, request, tools
from app.chat.request import REFUSED, SAME, CreateChatCompletion
from app.chat.translation import chat_request
from app.protocol.errors import InvalidRequest
from tests.unit.docs.test_protocol_page import PAGE, table

PLAIN: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}


def openai_fields() -> set[str]:
    return {name for variant in typing.get_args(CompletionCreateParams) for name in typing.get_type_hints(variant)}


def test_every_field_of_the_openai_package_is_known() -> None:
    assert openai_fields() <= {*CreateChatCompletion.model_fields, *REFUSED}


PARTS: list[tuple[Any, type[BaseModel]]] = [
    (ChatCompletionSystemMessageParam, messages.SystemMessage),
    (ChatCompletionDeveloperMessageParam, messages.SystemMessage),
    (ChatCompletionUserMessageParam, messages.UserMessage),
    (ChatCompletionAssistantMessageParam, messages.AssistantMessage),
    (ChatCompletionToolMessageParam, messages.ToolMessage),
    (ChatCompletionContentPartTextParam, messages.TextPart),
    (ChatCompletionContentPartImageParam, messages.ImagePart),
    (ChatCompletionContentPartRefusalParam, messages.RefusalPart),
    (ChatCompletionMessageFunctionToolCallParam, messages.ChatFunctionToolCall),
    (ChatCompletionMessageCustomToolCallParam, messages.ChatCustomToolCall),
    (ChatCompletionFunctionToolParam, tools.ChatFunctionTool),
    (ChatCompletionCustomToolParam, tools.ChatCustomTool),
    (ChatCompletionStreamOptionsParam, request.ChatStreamOptions),
    (SdkFunction, tools.FunctionDefinition),
]


@pytest.mark.parametrize(("theirs", "ours"), PARTS, ids=[theirs.__name__ for theirs, _ in PARTS])
def test_every_field_of_a_part_is_known(theirs: Any, ours: type[BaseModel]) -> None:
    assert set(typing.get_type_hints(theirs)) <= set(ours.model_fields)


def test_the_page_has_every_field() -> None:
    rows = [re.findall(r"`(\w+)`", row[0]) for row in table("Fields of a chat request")]
    ours = set(CreateChatCompletion.model_fields) - SAME - {"model"}
    assert sorted(name for names in rows for name in names) == sorted(ours | set(REFUSED))


def test_the_page_names_what_is_as_in_a_response() -> None:
    section = PAGE.split("# Fields of a chat request\n", 1)[1].split("| field |", 1)[0]
    named = set(re.findall(r"`(\w+)`", section)) | {
        "presence_penalty",
        "frequency_penalty",
        "queue_timeout",
        "run_timeout",
    }
    assert SAME - {row[0].strip("`") for row in table("vLLM's parameters")} <= named


def test_the_page_names_every_field_of_a_message() -> None:
    section = PAGE.split("# Messages of a chat request\n", 1)[1].split("\n### Namespaces", 1)[0]
    every = {name for _, model in PARTS[:10] for name in model.model_fields}
    shown = set(re.findall(r"\b(\w+)\b", section))
    assert every - {"role", "text", "id", "function", "custom", "audio", "function_call"} <= shown | {"image_url"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_every_field_that_is_refused_says_what_to_do(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request({**PLAIN, name: {"x": 1}})
    error = caught.value.error
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert re.match(rf"'{name}' is not supported yet( \(.*\))?; .+\.$", error.message)
    chat_request({**PLAIN, name: None})


@pytest.mark.parametrize("name", sorted(set(CreateChatCompletion.model_fields) - {"model", "messages"}))
def test_null_means_not_sent(name: str) -> None:
    assert chat_request({**PLAIN, name: None}).stored("resp_1", {}) == chat_request(PLAIN).stored("resp_1", {})
