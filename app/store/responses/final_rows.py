"""The statements that end responses from outside: their last chunks, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.events.chunk import Chunk
from app.store.columns import Column, Columns, named_arrays, names
from app.store.guards import LOG_STATE
from app.store.rows import CHUNKS, ENDING, Ending
from app.store.tables import RESPONSE_EVENT


@dataclass(frozen=True, slots=True)
class FinalRow:
    """What ends one response: its ending, without results of tools, and the chunk with its terminal event."""

    id: str
    ending: Ending
    chunk: Chunk


_ENDED: Columns[FinalRow] = Columns(Column("ended_id", "text", of="id"))

INSERT_CHUNKS = text(
    f"""
    INSERT INTO chunks ({CHUNKS.names})
    SELECT {CHUNKS.select("b")} FROM unnest({named_arrays(CHUNKS)}) AS b({CHUNKS.names})
    """
)
_UPDATE_ENDED = text(
    f"""
    UPDATE responses r SET {ENDING.assign("e")}, worker = NULL, event_id = {RESPONSE_EVENT}, log_bytes = l.bytes,
        log = {LOG_STATE.format("l.bytes")}
    FROM unnest({named_arrays(_ENDED, ENDING)}) AS e({names(_ENDED, ENDING)}) CROSS JOIN LATERAL (
        SELECT coalesce(sum(c.bytes), 0) AS bytes FROM chunks c WHERE c.response_id = e.ended_id
    ) l
    WHERE r.id = e.ended_id
    """
)


async def write(connection: AsyncConnection, rows: Sequence[FinalRow]) -> None:
    """Ends responses that the transaction has locked. They are not final, and have no events after these."""
    await connection.execute(INSERT_CHUNKS, CHUNKS.named_parameters([row.chunk for row in rows]))
    endings = ENDING.named_parameters([row.ending for row in rows])
    await connection.execute(_UPDATE_ENDED, {**_ENDED.named_parameters(rows), **endings})
