"""The parts of items that later requests look for: calls that the client runs, approvals, and ids that clients gave.

A few short fields tell it. They are stored beside the items, so that whoever looks for one reads no context.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, CLIENT_CALLS, COMPACTION, MCP_CALL
from app.protocol.types import Json

MAX_CALL_ID_CHARS = 128
"""Longest id of a call that an output may name."""
_APPROVALS = frozenset({APPROVAL_REQUEST, APPROVAL_RESPONSE, COMPACTION, MCP_CALL})
_FIELDS = ("id", "type", "server_label", "approval_request_id")


def call_id_of(item: Json) -> str | None:
    """Returns the id of the item if it is a call whose output the client may send."""
    call_id = item.get("call_id") or "" if item["type"] in CLIENT_CALLS else ""
    # A model may write any id, and an output can name no other than these.
    return call_id if 0 < len(call_id) <= MAX_CALL_ID_CHARS and "\0" not in call_id else None


def approval_of(item: Json) -> str | None:
    """Returns the item as JSON if it is an approval, the request of one, a call that may need one, or a compaction.

    It has only the keys that say what belongs to what.
    """
    if item["type"] not in _APPROVALS:
        return None
    return orjson.dumps({name: item.get(name) for name in _FIELDS}).decode()


def call_ids(items: Iterable[Json]) -> list[str]:
    """Returns `call_id_of` the items that have one."""
    return [call_id for item in items if (call_id := call_id_of(item)) is not None]


def given_ids(items: Iterable[Json], response_id: str) -> list[str]:
    """Returns the ids of the response's input but those that were made for it."""
    made = f"_{response_id.partition('_')[2]}_in"
    return [item_id for item in items if (item_id := item.get("id")) and made not in item_id]


def approvals(items: Iterable[Json]) -> list[str]:
    """Returns `approval_of` the items that have one."""
    return [approval for item in items if (approval := approval_of(item)) is not None]
