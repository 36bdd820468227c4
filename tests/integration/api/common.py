"""What several files of this folder share: clients, requests on WebSockets, statements, and tables."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
from sqlalchemy import text
from websockets.asyncio.client import ClientConnection, connect

from app.store.database import Database
from config.models import ModelCatalog
from config.tools import McpServer
from tests.support.api import CATALOG, MODEL, Api, Reader

Json = dict[str, Any]

SAID = {"role": "user", "content": "x"}
ASKED = {"model": MODEL, "input": "x"}
BODIES: list[tuple[str, Json]] = [
    ("/v1/responses", ASKED),
    ("/v1/responses/input_tokens", ASKED),
    ("/v1/responses/compact", ASKED),
    ("/v1/conversations", {"items": [SAID]}),
    ("/v1/conversations/conv_1", {"metadata": {}}),
    ("/v1/conversations/conv_1/items", {"items": [SAID]}),
]
"""POST routes with a body, and one that is right."""
ROUTES = [
    ("GET", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
    ("DELETE", "/v1/responses/resp_1"),
    ("POST", "/v1/responses/resp_1/cancel"),
    ("GET", "/v1/conversations/conv_1"),
    ("DELETE", "/v1/conversations/conv_1"),
    ("GET", "/v1/conversations/conv_1/items"),
    ("GET", "/v1/conversations/conv_1/items/msg_1"),
    ("DELETE", "/v1/conversations/conv_1/items/msg_1"),
]
"""Those without one, of things that are not there."""


def error_of(answer: Any) -> Json:
    error: Json = answer.json()["error"]
    return error


def sdk_of(api: Api, key: str = "none", retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key=key, max_retries=retries)


def socket_of(api: Api, headers: dict[str, str] | None = None, query: str = "", **more: Any) -> connect:
    url = f"{api.url.replace('http', 'ws', 1)}/v1/responses{query}"
    return connect(url, additional_headers=headers, max_size=None, **more)


def creation(**fields: Any) -> str:
    return json.dumps({"type": "response.create", "model": MODEL, "input": "Hello!", **fields})


async def event_of(socket: ClientConnection, *kinds: str) -> Json:
    """Returns the next event, or the next one of these kinds."""
    event: Json = json.loads(await socket.recv())
    while kinds and event["type"] not in kinds:
        event = json.loads(await socket.recv())
    return event


async def answer_to(socket: ClientConnection, sent: str | bytes) -> Json:
    await socket.send(sent)
    return await event_of(socket)


async def rest_of(reader: Reader) -> list[Json]:
    events = []
    while (event := await reader.event()) is not None:
        events.append(event)
    return events


async def change(db: Database, statement: str, **values: Any) -> None:
    await db.execute(text(statement), values)


async def count(db: Database, table: str) -> int:
    [row] = await db.execute(text(f"SELECT count(*) AS rows FROM {table}"))
    return int(row.rows)


def tooled() -> ModelCatalog:
    """Models that call tools, and two servers of hosted tools."""
    url = "http://127.0.0.1:1/mcp"
    models = tuple(replace(model, tool_parser="hermes") for model in CATALOG.models)
    return ModelCatalog(models, (McpServer("python", "python", url), McpServer("docs", "mcp", url)))
