"""Calls that ran on the server, in a context: who called what with which arguments, and what it was told.

An item of ours has that as `call`; one that a client made up, or whose response is gone, is asked for what it shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE
from workers.formats.calls.hosted import HostedKind, arguments_of, chat_name
from workers.formats.calls.open_calls import CODE

Item = Mapping[str, Any]
Result = str | Sequence[Item]
"""Text, or parts of a message's content."""

NOTHING = "There is no result: the call was not carried out, or what it gave is not kept any more."
_DENIED = "The user did not allow this call."


@dataclass(frozen=True, slots=True)
class RenderedCall:
    """One call in the words of a chat template."""

    id: str
    name: str
    arguments: str
    """A JSON object."""
    result: Result
    turn: int | None
    """Calls of one turn are one message's; None: not known."""


class Approvals:
    """What was asked of the client in these items, and what it said: a call stands where it was asked for."""

    def __init__(self, items: Iterable[Item]) -> None:
        items = list(items)
        self._requests = {item["id"] for item in items if item["type"] == APPROVAL_REQUEST}
        self._answers = {item["approval_request_id"]: item for item in items if item["type"] == APPROVAL_RESPONSE}
        calls = (item for item in items if item["type"] == "mcp_call")
        self._calls = {item["approval_request_id"]: item for item in calls if item.get("approval_request_id")}

    def is_shown_with_request(self, call: Item) -> bool:
        """The call is told with its request."""
        return call.get("approval_request_id") in self._requests

    def told(self, request: Item) -> RenderedCall | None:
        """None where nobody has answered."""
        call = self._calls.get(request["id"])
        if call is not None:
            result = result_of(call)
        elif (answer := self._answers.get(request["id"])) is not None and not answer["approve"]:
            result = f"{_DENIED} {answer.get('reason') or ''}".strip()
        else:
            return None
        name = chat_name({**request, "type": "mcp_call"})
        return RenderedCall(request["id"], name, _object(request["arguments"]), result, None)


def told(item: Item) -> RenderedCall:
    """A call that ran on the server."""
    turn = (item.get("call") or {}).get("turn")
    return RenderedCall(item["id"], chat_name(item), _arguments(item), result_of(item), turn)


def result_of(item: Item) -> Result:
    """What the model was told, or would have been."""
    if (call := item.get("call")) is not None:
        result: Result = call["result"]
        return result
    if item["type"] == "mcp_call":
        return item.get("output") or _error_text(item.get("error")) or NOTHING
    if item["type"] == "code_interpreter_call":
        logs = [output["logs"] for output in item.get("outputs") or () if output["type"] == "logs"]
        return "\n".join(logs) or NOTHING
    return NOTHING


def _arguments(item: Item) -> str:
    if item["type"] == "code_interpreter_call":
        return json.dumps({CODE: item.get("code") or ""}, ensure_ascii=False)
    if item["type"] == "mcp_call":
        return _object(item["arguments"])
    call = item.get("call") or {}
    if call.get("kind") == HostedKind.BROWSER.value and arguments_of(call["arguments"]) is not None:
        return _object(call["arguments"])
    return json.dumps(_browser_arguments(item["action"]), ensure_ascii=False)


def _browser_arguments(action: Item) -> Item:
    if action["type"] == "open_page":
        return {"id": action.get("url")} if action.get("url") else {}
    if action["type"] == "find_in_page":
        return {"pattern": action["pattern"]}
    return {"query": action.get("query") or ""}


def _error_text(error: Any) -> str | None:
    if isinstance(error, str):
        return error
    if not isinstance(error, Mapping):
        return None
    if "message" in error:
        return str(error["message"])
    content = error.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _object(arguments: str) -> str:
    """Templates ask for a JSON object; what is none goes into one as the string it is."""
    return (arguments or "{}") if arguments_of(arguments) is not None else json.dumps({"arguments": arguments})
