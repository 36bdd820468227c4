"""Answers to approval requests: each is to a request that was made, once, and runs a tool that the request has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.protocol.errors import InvalidRequest
from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL
from app.protocol.text import shortened
from app.protocol.types import Json


def has_answers(items: Iterable[Json]) -> bool:
    return any(item["type"] == APPROVAL_RESPONSE for item in items)


def check_approvals(context: Sequence[Json], items: Sequence[Json], tools: Iterable[Json]) -> None:
    """`items` is the stored input, `context` what is before it, `tools` the stored tools. Raises InvalidRequest."""
    asked: dict[str, Json] = {item["id"]: item for item in context if item["type"] == APPROVAL_REQUEST}
    answered = {found for item in context if (found := _answered(item)) is not None}
    ran = {item.get("approval_request_id") for item in items if item["type"] == MCP_CALL}
    labels = {tool["server_label"] for tool in tools if tool["type"] == "mcp"}
    for index, item in enumerate(items):
        if item["type"] == APPROVAL_REQUEST:
            asked[item["id"]] = item
        elif item["type"] == APPROVAL_RESPONSE:
            request_id = item["approval_request_id"]
            _check(f"input[{index}].approval_request_id", request_id, asked, answered)
            if item["approve"] and request_id not in ran:
                _check_tool(index, asked[request_id]["server_label"], labels)
            answered.add(request_id)


def _answered(item: Json) -> str | None:
    """The approval request that an item answered, or whose call it is."""
    return item.get("approval_request_id") if item["type"] in (APPROVAL_RESPONSE, MCP_CALL) else None


def _check(where: str, request_id: str, asked: dict[str, Json], answered: set[str]) -> None:
    if request_id not in asked:
        message = f"Invalid '{where}': there is no approval request with the id '{shortened(request_id)}' before it."
        raise InvalidRequest(message, where, "invalid_value")
    if request_id in answered:
        message = f"Invalid '{where}': the approval request '{shortened(request_id)}' was answered before."
        raise InvalidRequest(message, where, "approval_already_given")


def _check_tool(index: int, label: str, labels: set[str]) -> None:
    if label not in labels:
        where = f"input[{index}].approval_request_id"
        message = f"Invalid '{where}': what it approves needs the mcp tool '{label}' in 'tools'."
        raise InvalidRequest(message, where, "invalid_value")
