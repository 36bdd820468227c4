"""What a context holds about approvals, found by Postgres: in order, by the keys that matter, whatever the text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from app.store.context.approvals import approvals_in_chain, approvals_in_conversation
from app.store.context.conversations import ConversationRow, create
from app.store.database import Database
from tests.support.requests import message
from tests.support.rows import queued

Json = dict[str, Any]

ASKED: Json = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "t", "arguments": "\0{}"}
GIVEN: Json = {"id": "mcpa_1", "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
CALLED: Json = {"id": "mcp_1", "type": "mcp_call", "server_label": "s", "approval_request_id": "mcpr_1", "output": "x"}
SUMMED: Json = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
ODD = {**message('"mcp_call" \0'), "id": "msg_odd"}

KEYS = ("id", "type", "server_label", "approval_request_id")


def brief(*items: Json) -> list[Json]:
    return [{key: item.get(key) for key in KEYS} for item in items]


async def test_a_chain_has_them_in_order(db: Database) -> None:
    first = await queued(db, input=[message("a"), ASKED, ODD])
    second = await queued(db, input=[GIVEN, CALLED], previous_response_id=first)
    third = await queued(db, input=[message("b")], previous_response_id=second)
    fourth = await queued(db, input=[SUMMED], previous_response_id=third)
    assert await approvals_in_chain(db, "default", fourth) == brief(ASKED, GIVEN, CALLED, SUMMED)
    assert await approvals_in_chain(db, "default", first) == brief(ASKED)
    assert await approvals_in_chain(db, "theirs", fourth) == []


async def test_a_conversation_has_them_up_to_a_position(db: Database) -> None:
    conversation = ConversationRow("conv_1", "default", {}, datetime.now(UTC))
    await create(db, conversation, [ODD, ASKED, message("a"), GIVEN])
    found = await approvals_in_conversation(db, conversation.id, 2**62)
    assert found == brief(ASKED, GIVEN)
    assert await approvals_in_conversation(db, conversation.id, 0) == []
