"""Items of a response's context -> messages for a chat template.

* Instructions come first; system and developer messages at the head join them in one system message (most
  templates take a single one, and only there). Later ones stay where they are.
* What the model said between two inputs is one assistant message: reasoning, text, calls. The template
  decides whether earlier reasoning is shown again.
* A custom tool's call is a call of the function that stands for it (`custom.py`).
* A call that ran on the server is a call and what it gave, once all the calls of its turn are told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, HOSTED_CALLS
from workers.engine.base import EngineError, Message
from workers.formats.calls.hosted_items import Approvals, RenderedCall, Result, told
from workers.formats.calls.string_argument import INPUT_ARGUMENT

Json = dict[str, Any]
Item = Mapping[str, Any]

_ROLES = {"developer": "system"}
"""Roles that chat templates do not know, and what they are called there."""


def messages_of(
    items: Iterable[Item], instructions: str | None = None, tool_parser: str | None = None
) -> list[Message]:
    """The messages of these items. Raises EngineError where a chat template has no place for one.

    `tool_parser` names the model's format of calls: some show call ids, of a form of their own.
    """
    items = list(items)
    builder = _Builder(tool_parser, Approvals(items))
    if instructions:
        builder.message("system", instructions)
    for item in items:
        builder.add(item)
    builder.settle()
    return list(builder.messages)


class _Builder:
    def __init__(self, tool_parser: str | None, approvals: Approvals) -> None:
        self.messages: list[Json] = []
        self._approvals = approvals
        self._results: list[tuple[str, Result]] = []
        """Of calls in the open assistant message that ran on the server."""
        self._turn: int | None = None
        """Theirs."""
        self._id_of = _ID_STYLES.get(tool_parser or "", _as_it_is)
        self._ids: dict[str, str] = {}
        """Call ids as the template shows them."""

    def add(self, item: Item) -> None:
        handler = _HANDLERS.get(item["type"])
        if handler is None:
            raise EngineError(f"this model's chat template has no place for an item of type {item['type']!r}")
        if item["type"] not in _BESIDE_RESULTS:
            self.settle()
        handler(self, item)

    def settle(self) -> None:
        """The calls that ran on the server get their results."""
        results, self._results = self._results, []
        for call_id, result in results:
            self._result(call_id, result)

    def message(self, role: str, content: str | list[Json]) -> None:
        head = self.messages[0] if len(self.messages) == 1 else None
        if role == "system" and head and head["role"] == "system" and isinstance(content, str):
            head["content"] += "\n\n" + content
        else:
            self.messages.append({"role": role, "content": content})

    def _message(self, item: Item) -> None:
        said: str = item["role"]
        role = _ROLES.get(said, said)
        if role == "assistant":
            self._assistant("content", _text(item["content"]), "\n\n")
        else:
            self.message(role, content_of(item["content"]))

    def _reasoning(self, item: Item) -> None:
        said = _text(item.get("content") or ()) or _text(item.get("summary") or ())
        self._assistant("reasoning", said, "\n")

    def _function_call(self, item: Item) -> None:
        self._call(item, _object(item["arguments"]))

    def _custom_call(self, item: Item) -> None:
        self._call(item, json.dumps({INPUT_ARGUMENT: item["input"]}, ensure_ascii=False))

    def _output(self, item: Item) -> None:
        self._result(item["call_id"], item["output"])

    def _result(self, call_id: str, output: Result) -> None:
        content = output if isinstance(output, str) else content_of(output)
        shown = self._ids.get(call_id, call_id)
        self.messages.append({"role": "tool", "tool_call_id": shown, "content": content})

    def _call(self, item: Item, arguments: str) -> None:
        self._made(item["call_id"], item["name"], arguments)

    def _made(self, call_id: str, name: str, arguments: str) -> None:
        shown = self._ids[call_id] = self._id_of(call_id, name, len(self._ids))
        call = {"id": shown, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open_turn().setdefault("tool_calls", []).append(call)

    def _ran(self, item: Item) -> None:
        if not self._approvals.is_shown_with_request(item):
            self._told(told(item))

    def _approval(self, item: Item) -> None:
        if (call := self._approvals.told(item)) is not None:
            self._told(call)

    def _told(self, call: RenderedCall) -> None:
        if call.turn != self._turn:
            self.settle()
        self._turn = call.turn
        self._made(call.id, call.name, call.arguments)
        self._results.append((call.id, call.result))

    def _nothing(self, item: Item) -> None:
        """Not the model's business."""

    def _assistant(self, field: str, text: str, joint: str) -> None:
        turn = self._open_turn()
        if text:
            turn[field] = joint.join(filter(None, (turn.get(field), text)))

    def _open_turn(self) -> Json:
        """The assistant message that goes on."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


_HANDLERS: Mapping[str, Callable[[_Builder, Item], None]] = {
    "message": _Builder._message,
    "reasoning": _Builder._reasoning,
    "function_call": _Builder._function_call,
    "custom_tool_call": _Builder._custom_call,
    "function_call_output": _Builder._output,
    "custom_tool_call_output": _Builder._output,
    **dict.fromkeys(HOSTED_CALLS, _Builder._ran),
    APPROVAL_REQUEST: _Builder._approval,
    APPROVAL_RESPONSE: _Builder._nothing,
    "mcp_list_tools": _Builder._nothing,
}
_BESIDE_RESULTS = frozenset(
    {*HOSTED_CALLS, APPROVAL_REQUEST, APPROVAL_RESPONSE, "mcp_list_tools", "function_call", "custom_tool_call"}
)
"""They may be in one turn with calls that ran on the server: those get their results behind them."""


def content_of(parts: Iterable[Item]) -> str | list[Json]:
    """Text where there is nothing else, else a list of parts."""
    made = [_part(part) for part in parts]
    if all(part["type"] == "text" for part in made):
        return "".join(part["text"] for part in made)
    return made


def _part(part: Item) -> Json:
    if part["type"] == "input_image":
        image = {"url": part["image_url"], "detail": part.get("detail") or "auto"}
        return {"type": "image_url", "image_url": image}
    return {"type": "text", "text": _words(part)}


def _text(parts: Iterable[Item]) -> str:
    return "".join(map(_words, parts))


def _words(part: Item) -> str:
    if "text" not in part and "refusal" not in part:
        raise EngineError(f"this model's chat template has no place for a part of type {part['type']!r}")
    text: str = part["text"] if "text" in part else part["refusal"]
    return text


def _object(arguments: str) -> str:
    """Arguments as a JSON object, which templates ask for; a cut call's go into one as the string they are."""
    try:
        if isinstance(json.loads(arguments or "{}"), dict):
            return arguments or "{}"
    except ValueError:
        pass
    return json.dumps({"arguments": arguments}, ensure_ascii=False)


def _as_it_is(call_id: str, _name: str, _index: int) -> str:
    return call_id


def _nine_letters(call_id: str, _name: str, _index: int) -> str:
    """What Mistral's templates insist on."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _name_and_number(_call_id: str, name: str, index: int) -> str:
    return f"functions.{name}:{index}"


_ID_STYLES = {"mistral": _nine_letters, "kimi_k2": _name_and_number}
