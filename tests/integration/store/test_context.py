"""What a response continues: chains and conversations on a real Postgres."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, text

from app.protocol.requests import strict_json
from app.sizes import LARGE_BYTES
from app.store.context import contents
from app.store.context.contents import ContextGone, chain_items, context_items
from app.store.database import Database
from app.store.responses import endings, logs
from app.store.rows import ResponseRow
from app.store.tables import conversations
from tests.support.requests import message
from tests.support.rows import Writer, claimed


async def turn(db: Database, said: str, answer: str, **request: object) -> ResponseRow:
    """A finished response to one message."""
    row = await claimed(db, input=[message(said)], **request)
    writer = Writer(row)
    for entry in (writer.begin(), writer.say(answer, 1)):
        await logs.append(db, [entry])
    final = writer.finish()
    last = logs.Entry(final.worker, final.chunk, final.ending, row.conversation_input)
    assert await logs.append(db, [last]) == {row.id}
    return row


def texts(items: list[dict[str, object]]) -> list[str]:
    return [part["text"] for item in items for part in item["content"]]  # type: ignore[attr-defined, index]


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


async def test_a_deleted_response_in_a_chain_raises_context_gone(db: Database) -> None:
    root = await turn(db, "a", "A")
    second = await turn(db, "b", "B", previous_response_id=root.id)
    await endings.delete(db, "default", root.id)
    with pytest.raises(ContextGone):
        await chain_items(db, "default", second.id)


async def test_a_chain_does_not_reach_into_another_project(db: Database) -> None:
    root = await turn(db, "a", "A")
    with pytest.raises(ContextGone):
        await chain_items(db, "theirs", root.id)


async def test_the_row_of_a_response_does_not_grow_with_its_chain(db: Database) -> None:
    previous = await turn(db, "a", "A")
    for _ in range(49):
        previous = await turn(db, "a", "A", previous_response_id=previous.id)
    size = "SELECT octet_length(request::text) + octet_length(output::text) AS size FROM responses ORDER BY created_at"
    async with db.begin() as connection:
        sizes = list((await connection.execute(text(size))).scalars())
    assert len(await chain_items(db, "default", previous.id)) == 100
    assert sizes[-1] == sizes[1]


async def test_a_conversation_keeps_input_and_output_of_a_deleted_response(db: Database) -> None:
    async with db.begin() as connection:
        await connection.execute(
            insert(conversations).values(id="conv_1", project="default", metadata={}, created_at=datetime.now(UTC))
        )
    first = await turn(db, "a", "A", conversation={"id": "conv_1"})
    await endings.delete(db, "default", first.id)
    asked = [message("b") | {"id": "msg_b"}]
    second = await claimed(db, conversation={"id": "conv_1"}, input=asked)
    assert texts(await context_items(db, second)) == ["a", "A"]
    await endings.cancel(db, second.id, None)
    assert texts(await context_items(db, second)) == ["a", "A"]


@pytest.mark.parametrize(("length", "on_the_loop"), [(100, True), (LARGE_BYTES, False)])
async def test_a_large_context_is_parsed_beside_the_event_loop(
    db: Database, monkeypatch: pytest.MonkeyPatch, length: int, on_the_loop: bool
) -> None:
    parsed = []

    def recorded(raw: bytes) -> Any:
        parsed.append((type(raw), threading.current_thread() is threading.main_thread()))
        return strict_json.loads(raw)

    monkeypatch.setattr(contents, "loads", recorded)
    said = "\u00fc" * length
    chained = await turn(db, said, "A")
    async with db.begin() as connection:
        await connection.execute(
            insert(conversations).values(id="conv_1", project="default", metadata={}, created_at=datetime.now(UTC))
        )
    await turn(db, said, "A", conversation={"id": "conv_1"})
    row = await claimed(db, conversation={"id": "conv_1"})
    assert texts(await chain_items(db, "default", chained.id)) == texts(await context_items(db, row)) == [said, "A"]
    assert set(parsed) == {(bytes, on_the_loop)}
