"""Hosted calls in a context: their names, arguments and results, as prompts show them.

An item that this server made holds them as `call`. For an item that a client wrote, or whose response is gone, they are
taken from what the item shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL
from workers.formats.calls.hosted import McpServerKind, as_object, function_name
from workers.formats.calls.hosted_formats import BY_ITEM_TYPE

Item = Mapping[str, Any]
Result = str | Sequence[Item]
"""Text, or parts of a message's content."""

_DENIED = "The user did not allow this call."


@dataclass(frozen=True, slots=True)
class RenderedCall:
    """One call as a chat template takes it."""

    id: str
    name: str
    arguments: str
    """A JSON object."""
    result: Result
    turn: int | None
    """Calls of one turn belong to one message; None: unknown."""


class Approvals:
    """Approval requests in these items, with the client's answers. A call is shown in the position of its request."""

    def __init__(self, items: Iterable[Item]) -> None:
        items = list(items)
        self._requests = {item["id"] for item in items if item["type"] == APPROVAL_REQUEST}
        self._answers = {item["approval_request_id"]: item for item in items if item["type"] == APPROVAL_RESPONSE}
        calls = (item for item in items if item["type"] == MCP_CALL)
        self._calls = {item["approval_request_id"]: item for item in calls if item.get("approval_request_id")}

    def is_shown_with_request(self, call: Item) -> bool:
        return call.get("approval_request_id") in self._requests

    def call_of(self, request: Item) -> RenderedCall | None:
        """The call of an approval request; None while the client has not answered."""
        call = self._calls.get(request["id"])
        if call is not None:
            result = result_of(call)
        elif (answer := self._answers.get(request["id"])) is not None and not answer["approve"]:
            result = f"{_DENIED} {answer.get('reason') or ''}".strip()
        else:
            return None
        name = chat_name({**request, "type": MCP_CALL})
        return RenderedCall(request["id"], name, as_object(request["arguments"], ascii_only=True), result, None)


def rendered_call(item: Item) -> RenderedCall:
    """The call of an item."""
    arguments = BY_ITEM_TYPE[item["type"]].chat_arguments(item)
    turn = (item.get("call") or {}).get("turn")
    return RenderedCall(item["id"], chat_name(item), arguments, result_of(item), turn)


def chat_name(item: Item) -> str:
    """The name by which a chat model knows the tool of this call."""
    call = item.get("call") or {}
    if call.get("kind") == McpServerKind.NONE.value:
        return function_name(call["name"])
    return BY_ITEM_TYPE[item["type"]].chat_name(item)


def result_of(item: Item) -> Result:
    """The result that the model read, or would have read."""
    if (call := item.get("call")) is not None:
        result: Result = call["result"]
        return result
    return BY_ITEM_TYPE[item["type"]].shown_result(item)
