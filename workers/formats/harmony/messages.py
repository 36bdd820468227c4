"""Items of a response's context to harmony messages.

* Reasoning goes to the analysis channel, preambles and calls to commentary, answers to final. The hosted python and
  browser are called in analysis, as gpt-oss was trained.
* Reasoning before an answer is dropped, with the python and browser calls in it. Reasoning after the last answer
  stays: it belongs to the current tool loop.
* Instructions and the system and developer items after them are one developer message, with the tools. Later ones are
  developer messages of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openai_harmony import Author, DeveloperContent, Message, Role

from app.protocol.item_types import (
    ADDITIONAL_TOOLS,
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    CLIENT_CALLS,
    HOSTED_CALLS,
    MCP_CALL,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
)
from workers.engine.base import InvalidPrompt
from workers.engine.harmony_vocabulary import ANALYSIS, ASSISTANT, COMMENTARY, FINAL
from workers.formats.calls.client_tools import NO_CLIENT_TOOLS, TOOL_SEARCH, ClientTools, loaded_text
from workers.formats.calls.hosted_formats import BY_ITEM_TYPE
from workers.formats.calls.hosted_items import Approvals, Result, result_of
from workers.formats.calls.string_argument import INPUT_ARGUMENT
from workers.formats.content import text_of

Item = Mapping[str, Any]

FUNCTIONS = "functions."
PYTHON, BROWSER = "python", "browser"
_INSTRUCTION_ROLES = ("system", "developer")
_CALLS = frozenset({APPROVAL_REQUEST, *CLIENT_CALLS, *HOSTED_CALLS})


def head_of(items: Sequence[Item], instructions: str | None) -> tuple[str | None, Sequence[Item]]:
    """The instructions with those of the items at the head, and the items after these."""
    texts = [instructions] if instructions else []
    items = [item for item in items if item["type"] != ADDITIONAL_TOOLS]  # they are in the list of tools
    index = 0
    while index < len(items) and items[index].get("role") in _INSTRUCTION_ROLES:
        texts.append(text_of(items[index]["content"]))
        index += 1
    return "\n\n".join(filter(None, texts)) or None, items[index:]


def messages_of(items: Sequence[Item], client: ClientTools = NO_CLIENT_TOOLS) -> list[Message]:
    """The messages of these items, all reasoning included. Raises InvalidPrompt if harmony cannot show one.

    `client` has the names of the tools that the items call.
    """
    calls = (item for item in items if item["type"] in CLIENT_CALLS)
    names = {item["call_id"]: client.called_name(item) for item in calls}
    approvals = Approvals(items)
    leads = _leading_to_calls(items)
    made: list[Message] = []
    for index, item in enumerate(items):
        handler = _HANDLERS.get(item["type"])
        if handler is None:
            raise InvalidPrompt(f"this model takes no item of type {item['type']!r}")
        made += handler(item, _Position(leads[index], names, approvals, client))
    return made


def without_old_reasoning(messages: Sequence[Message]) -> list[Message]:
    """The messages without the analysis before the last answer."""
    answers = (index for index, message in enumerate(messages) if _is_answer(message))
    last = max(answers, default=-1)
    return [message for index, message in enumerate(messages) if index > last or message.channel != ANALYSIS]


def result_message(name: str, text: str, channel: str) -> Message:
    """The result of a tool of this name."""
    message = Message.from_author_and_content(Author.new(Role.TOOL, name), text)
    return message.with_channel(channel).with_recipient(ASSISTANT)


def channel_of(name: str) -> str:
    """The channel in which a tool of this name is called."""
    return ANALYSIS if name.split(".")[0] in (PYTHON, BROWSER) else COMMENTARY


def developer(text: str) -> Message:
    return Message.from_role_and_content(Role.DEVELOPER, DeveloperContent.new().with_instructions(text))


class _Position:
    """The position of an item among the others."""

    def __init__(
        self,
        leads_to_call: bool,
        names: Mapping[str, str],
        approvals: Approvals,
        client: ClientTools,
    ) -> None:
        self.leads_to_call = leads_to_call
        """Whether a call is the next item after this one and reasoning."""
        self._names = names
        self.approvals = approvals
        self.client = client

    def function(self, call_id: str) -> str:
        """The recipient of a client's call."""
        return FUNCTIONS + self._names[call_id] if call_id in self._names else FUNCTIONS.rstrip(".")


def _leading_to_calls(items: Sequence[Item]) -> list[bool]:
    """Of each item, whether a call is the next item after it and reasoning."""
    leads, is_call = [False] * len(items), False
    for index in range(len(items) - 1, -1, -1):
        leads[index] = is_call
        if items[index]["type"] != "reasoning":
            is_call = items[index]["type"] in _CALLS
    return leads


def _is_answer(message: Message) -> bool:
    return message.author.role is Role.ASSISTANT and message.channel == FINAL


def _assistant(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def _message(item: Item, position: _Position) -> list[Message]:
    text, role = text_of(item["content"]), item["role"]
    if role in _INSTRUCTION_ROLES:
        return [developer(text)] if text else []
    if role != ASSISTANT:
        return [Message.from_role_and_content(Role.USER, text)]
    if not text:
        return []  # it stands for an answer that is missing: what came before it is still needed
    phase = item.get("phase") or (COMMENTARY if position.leads_to_call else FINAL)
    return [_assistant(text, COMMENTARY if phase == COMMENTARY else FINAL)]


def _reasoning(item: Item, _: _Position) -> list[Message]:
    text = text_of(item.get("content") or ()) or text_of(item.get("summary") or ())
    return [_assistant(text, ANALYSIS)] if text else []


def _call(name: str, text: str, kind: str = "json") -> Message:
    return _assistant(text, channel_of(name)).with_recipient(name).with_content_type(kind)


def _function_call(item: Item, position: _Position) -> list[Message]:
    return [_call(FUNCTIONS + position.client.called_name(item), item["arguments"])]


def _custom_call(item: Item, position: _Position) -> list[Message]:
    arguments = json.dumps({INPUT_ARGUMENT: item["input"]}, ensure_ascii=False)
    return [_call(FUNCTIONS + position.client.called_name(item), arguments)]


def _search(item: Item, _: _Position) -> list[Message]:
    return [_call(FUNCTIONS + TOOL_SEARCH, json.dumps(item["arguments"], ensure_ascii=False))]


def _found(item: Item, position: _Position) -> list[Message]:
    text = loaded_text(item, position.client)
    return [result_message(position.function(item["call_id"]), text, COMMENTARY)]


def _output(item: Item, position: _Position) -> list[Message]:
    return [result_message(position.function(item["call_id"]), text_of(item["output"]), COMMENTARY)]


def _hosted_call(item: Item, position: _Position) -> list[Message]:
    if position.approvals.is_shown_with_request(item):
        return []
    return _call_with_result(item, result_of(item))


def _approval_request(item: Item, position: _Position) -> list[Message]:
    call = position.approvals.call_of(item)
    return [] if call is None else _call_with_result({**item, "type": MCP_CALL}, call.result)


def _call_with_result(item: Item, result: Result) -> list[Message]:
    """A hosted call and its result."""
    call = BY_ITEM_TYPE[item["type"]].harmony_call(item)
    message = _call(call.name, call.text, call.content_type)
    return [message, result_message(call.name, text_of(result), channel_of(call.name))]


def _nothing(_item: Item, _: _Position) -> list[Message]:
    return []


_HANDLERS: Mapping[str, Callable[[Item, _Position], list[Message]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _function_call,
    "custom_tool_call": _custom_call,
    "function_call_output": _output,
    "custom_tool_call_output": _output,
    TOOL_SEARCH_CALL: _search,
    TOOL_SEARCH_OUTPUT: _found,
    ADDITIONAL_TOOLS: _nothing,
    **dict.fromkeys(HOSTED_CALLS, _hosted_call),
    "mcp_list_tools": _nothing,
    APPROVAL_REQUEST: _approval_request,
    APPROVAL_RESPONSE: _nothing,
}
