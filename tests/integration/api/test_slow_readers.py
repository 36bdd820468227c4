"""Clients that ask for a long log and never read: what the API process holds for them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sqlalchemy import text

from app.protocol.events import frames
from app.protocol.events.chunk import Chunk, size_of
from app.store.database import Database
from app.store.responses import logs
from app.store.responses.final_rows import INSERT_CHUNKS
from app.store.rows import CHUNKS, LOG_PAGE_BYTES
from app.streaming.follow import READER_BYTES
from tests.support.api import Api
from tests.support.rows import Writer, claimed, merge_all
from tests.support.waiting import until

READERS = 20
EVENT_BYTES = 8 * 1024
LOG_BYTES = 8 * 1024 * 1024
"""READERS that read all of it would hold four times what they may."""
OF_CONNECTION = 1024 * 1024
"""Buffers of a connection that docs/operations.md states, rounded up."""


@pytest.fixture
def api(api: Api) -> Api:
    api.runtime.reader.readers.total = READERS
    return api


async def long_log(db: Database) -> str:
    """A finished background stream of LOG_BYTES."""
    row = await claimed(db, background=True, stream=True)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    await logs.append(db, [writer.finish()])
    last = (await logs.read(db, row.id)).chunks[-1].last
    end = last + LOG_BYTES // EVENT_BYTES
    events = [
        {"type": "response.output_text.delta", "sequence_number": number, "delta": "x" * EVENT_BYTES}
        for number in range(last + 1, end + 1)
    ]
    chunks = [
        Chunk(row.id, number, number, 1, (), frames.encode_all([event]), final=number == end)
        for number, event in enumerate(events, last + 1)
    ]
    async with db.begin() as connection:
        await connection.execute(text("UPDATE chunks SET final = false WHERE response_id = :id"), {"id": row.id})
        await connection.execute(INSERT_CHUNKS, CHUNKS.named_parameters(chunks))
    return row.id


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def deaf(api: Api, response_id: str) -> asyncio.StreamWriter:
    """A client that asks for all events and reads none."""
    _, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rsplit(":", 1)[1]), limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    return writer


async def test_readers_that_never_read_hold_a_page_each_of_a_log_that_is_whole_page_by_page(
    api: Api, db: Database
) -> None:
    response_id = await long_log(db)
    whole = await in_pages(db, response_id)
    assert len(whole) > LOG_BYTES
    await hold_a_page_each(api, response_id)
    assert await merge_all(db) == 1
    assert await in_pages(db, response_id) == whole
    await hold_a_page_each(api, response_id)


async def hold_a_page_each(api: Api, response_id: str) -> None:
    await until(lambda: api.runtime.reader.readers.held == 0)
    before = resident()
    clients = [await deaf(api, response_id) for _ in range(READERS)]
    try:
        await until(lambda: api.runtime.reader.readers.held == READERS)
        refused = await api.get(response_id, stream="true")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_readers")
        assert (await api.get(response_id)).status_code == 200
        for _ in range(20):
            await api.client.get("/health/live")
            assert resident() - before < READERS * (READER_BYTES + OF_CONNECTION)
    finally:
        for client in clients:
            client.transport.abort()


async def in_pages(db: Database, response_id: str) -> bytes:
    """The whole log, read page by page."""
    found, position, ended = b"", -1, False
    while not ended:
        page = await logs.read_page(db, response_id, position)
        assert size_of(page.chunks) <= LOG_PAGE_BYTES + 2 * EVENT_BYTES
        found += b"".join(chunk.frames for chunk in page.chunks)
        position, ended = page.chunks[-1].last, page.ended
    assert found == b"".join(chunk.frames for chunk in (await logs.read(db, response_id)).chunks)
    return found
