"""Responses whose scripted models call hosted tools."""

from __future__ import annotations

from typing import Any

from app.protocol.status import Status
from app.store.database import Database
from app.store.rows import ResponseRow
from app.streaming.pubsub import PubSub
from config.tools import McpServer
from tests.support.logs import whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.tool_servers import (
    tool_sessions,
    turns,
)
from tests.support.worker import worker

DONE = "It said: {results}"
FUNCTION = {"type": "function", "name": "mine", "parameters": None, "strict": None, "description": None}


async def answer(
    db: Database,
    pubsub: PubSub,
    servers: tuple[McpServer, ...],
    *script: str,
    status: Status = Status.COMPLETED,
    result_bytes: int = 65536,
    **request: Any,
) -> ResponseRow:
    """A response whose scripted model answers with these turns, each after the results of the one before."""
    response_id = await queued(db, **{"input": [message(turns(*script))], **request})
    async with worker(db, pubsub, mcp_sessions=tool_sessions(servers, result_bytes)) as w:
        await w.run(response_id)
    return await whole(db, response_id, status)
