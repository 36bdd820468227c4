"""Chains and conversations on a real Postgres."""

from __future__ import annotations

from typing import Any

import pytest

from app.store.context.contents import ContextGone, chain_items, context_items
from app.store.database import Database
from app.store.responses import endings
from tests.integration.store.common import conversation, sql, turn
from tests.support.requests import message
from tests.support.rows import claimed


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for item in items for part in item["content"]]


async def test_a_chain_returns_the_items_of_every_response_in_order(db: Database) -> None:
    first = await turn(db, "a", "A")
    second = await turn(db, "b", "B", previous_response_id=first.id)
    third = await claimed(db, previous_response_id=second.id)
    assert texts(await context_items(db, third)) == ["a", "A", "b", "B"]
    assert await context_items(db, first) == []


async def test_branches_share_their_past_and_nothing_else(db: Database) -> None:
    root = await turn(db, "a", "A")
    left = await turn(db, "l", "L", previous_response_id=root.id)
    right = await turn(db, "r", "R", previous_response_id=root.id)
    assert texts(await chain_items(db, "default", left.id)) == ["a", "A", "l", "L"]
    assert texts(await chain_items(db, "default", right.id)) == ["a", "A", "r", "R"]


async def test_a_chain_with_a_deleted_response_and_one_of_another_project_are_gone(db: Database) -> None:
    root = await turn(db, "a", "A")
    second = await turn(db, "b", "B", previous_response_id=root.id)
    with pytest.raises(ContextGone):
        await chain_items(db, "theirs", second.id)
    await endings.delete(db, "default", root.id)
    with pytest.raises(ContextGone):
        await chain_items(db, "default", second.id)


async def test_the_row_of_a_response_does_not_grow_with_its_chain(db: Database) -> None:
    previous = await turn(db, "a", "A")
    for _ in range(5):
        previous = await turn(db, "a", "A", previous_response_id=previous.id)
    size = "octet_length(CAST(request AS text)) + octet_length(CAST(output AS text))"
    sizes = [row.size for row in await sql(db, f"SELECT {size} AS size FROM responses ORDER BY position")]
    assert len(await chain_items(db, "default", previous.id)) == 12
    assert sizes[-1] == sizes[1]


async def test_a_conversation_keeps_input_and_output_of_a_deleted_response(db: Database) -> None:
    made = {"id": await conversation(db)}
    first = await turn(db, "a", "A", conversation=made)
    await endings.delete(db, "default", first.id)
    second = await claimed(db, conversation=made, input=[message("b") | {"id": "msg_b"}])
    assert texts(await context_items(db, second)) == ["a", "A"]
    await endings.cancel(db, second.id, None)
    assert texts(await context_items(db, second)) == ["a", "A"]
