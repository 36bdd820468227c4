"""Items of a response's context to messages for a chat template.

* Instructions come first. System and developer messages at the head join them in one system message, because most
  templates take a single one, and only there. Later ones stay in their positions.
* What the model wrote between two inputs is one assistant message: reasoning, text, calls. The template decides
  whether earlier reasoning is shown again.
* A custom tool's call is a call of the function that stands for it (`string_argument.py`).
* A hosted call is a call; the results follow after all the calls of its turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.protocol.item_types import (
    ADDITIONAL_TOOLS,
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    CLIENT_CALLS,
    HOSTED_CALLS,
    MCP_LIST_TOOLS,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
)
from app.protocol.types import Json
from workers.engine.base import InvalidPrompt, Message
from workers.formats.calls.client_tools import NO_CLIENT_TOOLS, TOOL_SEARCH, ClientTools, loaded_text
from workers.formats.calls.hosted import as_object
from workers.formats.calls.hosted_items import Approvals, RenderedCall, Result, rendered_call
from workers.formats.calls.string_argument import INPUT_ARGUMENT
from workers.formats.content import part_text, text_of

Item = Mapping[str, Any]

_ROLES = {"developer": "system"}
"""Roles that chat templates do not know, and their roles there."""


def messages_of(
    items: Iterable[Item],
    instructions: str | None = None,
    tool_parser: str | None = None,
    client: ClientTools = NO_CLIENT_TOOLS,
) -> list[Message]:
    """The messages of these items. Raises InvalidPrompt if a chat template cannot show one.

    `tool_parser` names the model's format of calls: some show call ids in a form of their own. `client` has the names
    of the tools that the items call.
    """
    items = list(items)
    builder = _Builder(tool_parser, Approvals(items), client)
    if instructions:
        builder.message("system", instructions)
    for item in items:
        builder.add(item)
    builder.add_results()
    builder.close()
    return list(builder.messages)


class _Builder:
    def __init__(self, tool_parser: str | None, approvals: Approvals, client: ClientTools) -> None:
        self._client = client
        self.messages: list[Json] = []
        self._approvals = approvals
        self._results: list[tuple[str, Result]] = []
        """Of hosted calls in the open assistant message."""
        self._turn: int | None = None
        """The turn of these calls."""
        self._id_of = _ID_STYLES.get(tool_parser or "", _unchanged)
        self._ids: dict[str, str] = {}
        """Call ids as the template shows them."""
        self._texts: dict[str, list[str]] = {}
        """By field, the texts of the last message. They are joined once: a message may have many thousands."""

    def add(self, item: Item) -> None:
        handler = _HANDLERS.get(item["type"])
        if handler is None:
            raise InvalidPrompt(f"this model takes no item of type {item['type']!r}")
        if item["type"] not in _BEFORE_RESULTS:
            self.add_results()
        handler(self, item)

    def add_results(self) -> None:
        """Adds the results of the hosted calls in the open assistant message."""
        results, self._results = self._results, []
        for call_id, result in results:
            self._result(call_id, result)

    def message(self, role: str, content: str | list[Json]) -> None:
        head = self.messages[0] if len(self.messages) == 1 else None
        if (
            role == "system"
            and head
            and head["role"] == "system"
            and isinstance(content, str)
            and isinstance(head["content"], str)
        ):
            self._texts.setdefault("content", [head["content"]]).append(content)
        else:
            self._append({"role": role, "content": content})

    def close(self) -> None:
        """Joins the texts of the last message."""
        for field, texts in self._texts.items():
            self.messages[-1][field] = _JOINTS[field].join(texts)
        self._texts.clear()

    def _append(self, message: Json) -> None:
        self.close()
        self.messages.append(message)

    def _message(self, item: Item) -> None:
        role: str = item["role"]
        role = _ROLES.get(role, role)
        if role == "assistant":
            self._assistant("content", text_of(item["content"]))
        else:
            self.message(role, content_of(item["content"]))

    def _reasoning(self, item: Item) -> None:
        text = text_of(item.get("content") or ()) or text_of(item.get("summary") or ())
        self._assistant("reasoning", text)

    def _function_call(self, item: Item) -> None:
        self._call(item["call_id"], self._client.called_name(item), as_object(item["arguments"]))

    def _custom_call(self, item: Item) -> None:
        arguments = json.dumps({INPUT_ARGUMENT: item["input"]}, ensure_ascii=False)
        self._call(item["call_id"], self._client.called_name(item), arguments)

    def _search(self, item: Item) -> None:
        self._call(item["call_id"], TOOL_SEARCH, json.dumps(item["arguments"], ensure_ascii=False))

    def _found(self, item: Item) -> None:
        self._result(item["call_id"], loaded_text(item, self._client))

    def _output(self, item: Item) -> None:
        self._result(item["call_id"], item["output"])

    def _result(self, call_id: str, output: Result) -> None:
        content = output if isinstance(output, str) else content_of(output)
        shown = self._ids.get(call_id, call_id)
        self._append({"role": "tool", "tool_call_id": shown, "content": content})

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        shown = self._ids[call_id] = self._id_of(call_id, name, len(self._ids))
        call = {"id": shown, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _hosted_call(self, item: Item) -> None:
        if not self._approvals.is_shown_with_request(item):
            self._call_with_result(rendered_call(item))

    def _approval(self, item: Item) -> None:
        if (call := self._approvals.call_of(item)) is not None:
            self._call_with_result(call)

    def _call_with_result(self, call: RenderedCall) -> None:
        if call.turn != self._turn:
            self.add_results()
        self._turn = call.turn
        self._call(call.id, call.name, call.arguments)
        self._results.append((call.id, call.result))

    def _nothing(self, item: Item) -> None:
        """The model is not shown this item."""

    def _assistant(self, field: str, text: str) -> None:
        turn = self._open_turn()
        if text:
            turn.setdefault(field, "")
            self._texts.setdefault(field, []).append(text)

    def _open_turn(self) -> Json:
        """The open assistant message, or a new one."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self._append({"role": "assistant", "content": ""})
        return self.messages[-1]


_JOINTS = {"content": "\n\n", "reasoning": "\n"}
"""What is between the texts of a message."""

_HANDLERS: Mapping[str, Callable[[_Builder, Item], None]] = {
    "message": _Builder._message,
    "reasoning": _Builder._reasoning,
    "function_call": _Builder._function_call,
    "custom_tool_call": _Builder._custom_call,
    "function_call_output": _Builder._output,
    "custom_tool_call_output": _Builder._output,
    TOOL_SEARCH_CALL: _Builder._search,
    TOOL_SEARCH_OUTPUT: _Builder._found,
    ADDITIONAL_TOOLS: _Builder._nothing,
    **dict.fromkeys(HOSTED_CALLS, _Builder._hosted_call),
    APPROVAL_REQUEST: _Builder._approval,
    APPROVAL_RESPONSE: _Builder._nothing,
    MCP_LIST_TOOLS: _Builder._nothing,
}
_BEFORE_RESULTS = frozenset({*CLIENT_CALLS, *HOSTED_CALLS, APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_LIST_TOOLS})
"""Items that may be in one turn with hosted calls; the results of these calls come after them."""


def content_of(parts: Iterable[Item]) -> str | list[Json]:
    """The text, if all parts are text; otherwise a list of parts."""
    made = [_part(part) for part in parts]
    if all(part["type"] == "text" for part in made):
        return "".join(part["text"] for part in made)
    return made


def _part(part: Item) -> Json:
    if part["type"] == "input_image":
        image = {"url": part["image_url"], "detail": part.get("detail") or "auto"}
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": part_text(part)}


def _unchanged(call_id: str, _name: str, _index: int) -> str:
    return call_id


def _nine_characters(call_id: str, _name: str, _index: int) -> str:
    """Mistral's templates require nine characters."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _name_and_index(_call_id: str, name: str, index: int) -> str:
    return f"functions.{name}:{index}"


_ID_STYLES = {"mistral": _nine_characters, "kimi_k2": _name_and_index}
