"""What many of these tests do: plain SQL, locks, and responses that a worker runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, text

from app.scheduling.decisions import Sending
from app.store.context import conversations
from app.store.context.conversations import ConversationRow, NewItem
from app.store.database import Database
from app.store.responses import logs
from app.store.responses.inserts import Inserter
from app.store.responses.logs import Entry
from app.store.responses.new_rows import NewResponse
from app.store.rows import ResponseRow
from app.store.tables import DEFAULT_PROJECT
from tests.support.requests import message
from tests.support.rows import Writer, claimed
from tests.support.waiting import until


async def sql(db: Database, statement: str, **values: Any) -> Sequence[Row[Any]]:
    """The rows of one statement, which commits by itself."""
    return await db.execute(text(statement), values)


async def scalar(db: Database, statement: str, **values: Any) -> Any:
    (row,) = await sql(db, statement, **values)
    return row[0]


async def blocked(db: Database, number: int = 1) -> None:
    """Waits until so many sessions wait for locks."""

    async def are_waiting() -> bool:
        found = await scalar(db, "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return bool(found >= number)

    await until(are_waiting, what=f"{number} sessions wait for locks")


@asynccontextmanager
async def held(db: Database, *response_ids: str) -> AsyncIterator[None]:
    """Another transaction has locked these rows."""
    async with db.begin() as other:
        ids = {"ids": list(response_ids)}
        await other.execute(text("SELECT FROM responses WHERE id = ANY(:ids) FOR UPDATE"), ids)
        yield


async def placed(db: Database, *made: NewResponse) -> list[Sending]:
    """Inserts responses together; returns what becomes of each."""
    found: dict[str, Sending] = {}

    def note(new: NewResponse, sending: Sending) -> None:
        found[new.id] = sending

    inserter = Inserter(db, note)
    await asyncio.gather(*map(inserter.create, made))
    await inserter.close()
    return [found[new.id] for new in made]


async def begun(db: Database, *said: str, **request: Any) -> Writer:
    """A response that a worker runs, and that has said so much: each text is a chunk of its own, and a token."""
    writer = Writer(await claimed(db, **request))
    for entry in (writer.begin(), *(writer.say(each, 1) for each in said)):
        assert await logs.append(db, [entry]) == {writer.row.id}
    return writer


async def answered(db: Database, *said: str, **request: Any) -> Writer:
    """A response that has ended with these texts."""
    writer = await begun(db, *said, **request)
    assert await logs.append(db, [writer.finish()]) == {writer.row.id}
    return writer


def last_of(writer: Writer, **changes: Any) -> Entry:
    """The last entry of a response, whose ending says something else."""
    last = writer.finish()
    assert last.ending is not None
    return replace(last, ending=replace(last.ending, **changes))


async def conversation(
    db: Database, *items: dict[str, Any], conversation_id: str = "conv_1", project: str = DEFAULT_PROJECT
) -> str:
    row = ConversationRow(conversation_id, project, {}, datetime.now(UTC))
    await conversations.create(db, row, [NewItem.of(item) for item in items])
    return row.id


async def turn(db: Database, said: str, answer: str, **request: Any) -> ResponseRow:
    """A finished response to one message."""
    return (await answered(db, answer, input=[message(said)], **request)).row
