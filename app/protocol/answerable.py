"""What later items answer: calls that the client runs, and approvals of calls, told by a few short fields.

They are stored beside the items, so that whoever looks for one reads no context.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from app.protocol.item_types import APPROVAL_REQUEST, APPROVAL_RESPONSE, CLIENT_CALLS, COMPACTION, MCP_CALL
from app.protocol.types import Json

MAX_CALL_ID_CHARS = 128
"""Of the call that an output names."""
_APPROVALS = frozenset({APPROVAL_REQUEST, APPROVAL_RESPONSE, COMPACTION, MCP_CALL})
_FIELDS = ("id", "type", "server_label", "approval_request_id")


def call_ids(items: Iterable[Json]) -> list[str]:
    """Returns the ids of the calls among `items` whose outputs the client may send."""
    calls = (item.get("call_id") or "" for item in items if item["type"] in CLIENT_CALLS)
    # A model may write any id, and an output can name no other than these.
    return [call_id for call_id in calls if 0 < len(call_id) <= MAX_CALL_ID_CHARS and "\0" not in call_id]


def approvals(items: Iterable[Json]) -> list[str]:
    """Returns the approvals, their requests, calls and compactions among `items`, each as JSON.

    Each has only the keys that say what belongs to what.
    """
    found = (item for item in items if item["type"] in _APPROVALS)
    return [orjson.dumps({name: item.get(name) for name in _FIELDS}).decode() for item in found]
