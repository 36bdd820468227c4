"""Checks of approvals: each answers a request that was made, only once, and for a tool that the request has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.protocol.errors import InvalidRequest
from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL
from app.protocol.text import shortened
from app.protocol.types import Json


def has_approvals(items: Iterable[Json]) -> bool:
    return any(item["type"] == APPROVAL_RESPONSE for item in items)


def check_approvals(context: Sequence[Json], items: Sequence[Json], tools: Iterable[Json]) -> None:
    """Checks the approvals among `items`, the stored input. Raises InvalidRequest.

    `context` holds the items before the input, and `tools` the request's stored tools.
    """
    requested: dict[str, Json] = {item["id"]: item for item in context if item["type"] == APPROVAL_REQUEST}
    answered = {request_id for item in context if (request_id := _answered(item)) is not None}
    called = {item.get("approval_request_id") for item in items if item["type"] == MCP_CALL}
    labels = {tool["server_label"] for tool in tools if tool["type"] == "mcp"}
    for index, item in enumerate(items):
        if item["type"] == APPROVAL_REQUEST:
            requested[item["id"]] = item
        elif item["type"] == APPROVAL_RESPONSE:
            where, request_id = f"input[{index}].approval_request_id", item["approval_request_id"]
            _check_request(where, request_id, requested, answered)
            if item["approve"] and request_id not in called:
                _check_tool(where, requested[request_id]["server_label"], labels)
            answered.add(request_id)


def _answered(item: Json) -> str | None:
    """Returns the id of the approval request that the item answers, or whose call the item is."""
    return item.get("approval_request_id") if item["type"] in (APPROVAL_RESPONSE, MCP_CALL) else None


def _check_request(where: str, request_id: str, requested: dict[str, Json], answered: set[str]) -> None:
    if request_id not in requested:
        message = f"Invalid '{where}': there is no approval request with the id '{shortened(request_id)}' before it."
        raise InvalidRequest(message, where, "invalid_value")
    if request_id in answered:
        message = f"Invalid '{where}': the approval request '{shortened(request_id)}' was answered already."
        raise InvalidRequest(message, where, "approval_already_given")


def _check_tool(where: str, label: str, labels: set[str]) -> None:
    if label not in labels:
        message = f"Invalid '{where}': the approved call needs the mcp tool '{label}' in 'tools'."
        raise InvalidRequest(message, where, "invalid_value")
