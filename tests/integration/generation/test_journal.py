"""The journal on a real Postgres that refuses what one response writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.logs import text_of, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.services import AS_OWNER
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.worker import worker
from workers.generation.outcome import Outcome, ResponseFailed

REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON chunks FOR EACH ROW
        WHEN (NEW.response_id = '{id}' AND NEW.first > 5 AND NOT NEW.final) EXECUTE FUNCTION refuse();
"""
ADMIT = "DROP TRIGGER refuse ON chunks; DROP FUNCTION refuse();"


@asynccontextmanager
async def refusing(db: Database, response_id: str, code: str) -> AsyncIterator[None]:
    """Raises this error for the text of this response, but not for its beginning and its end."""
    async with db.driver_connection() as connection, connection.transaction():
        await connection.execute(AS_OWNER)
        await connection.execute(REFUSE.format(code=code, id=response_id))
    try:
        yield
    finally:
        async with db.driver_connection() as connection, connection.transaction():
            await connection.execute(AS_OWNER)
            await connection.execute(ADMIT)


async def test_an_error_that_postgres_raises_for_one_response_fails_it_alone(db: Database, pubsub: PubSub) -> None:
    good, bad = [await queued(db, input=[message("/count 200")], stream=True) for _ in range(2)]
    async with (
        refusing(db, bad, "P0001"),
        worker(db, pubsub, tokens_per_second=400.0) as w,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        results = await asyncio.gather(w.run(good), w.run(bad), return_exceptions=True)
    assert results[0] is Outcome.COMPLETED
    assert isinstance(results[1], ResponseFailed)
    assert results[1].code == "server_error"
    assert text_of(await whole(db, good)) == " ".join(str(number + 1) for number in range(200))
    await whole(db, bad, Status.FAILED)
