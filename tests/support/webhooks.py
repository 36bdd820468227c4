"""Webhook endpoints for tests, receivers that verify what they get, and what delivers to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import openai
import orjson
from sqlalchemy import Row, text
from standardwebhooks import Webhook

from app.fetching.resolving import Resolve
from app.metrics.instruments import MaintenanceMetrics
from app.protocol.status import Status
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.responses import queued as many
from app.store.roles.rights import MAINTENANCE
from app.store.sealing import SealedKind
from app.store.tables import DEFAULT_PROJECT
from app.store.webhooks import endpoints
from app.streaming.pubsub import PubSub
from app.webhooks.deliverer import Deliverer
from app.webhooks.sender import Sender
from app.webhooks.signing import hint_of, secret_of
from tests.support.little_web import Answer, Asked, LittleWeb
from tests.support.roles import as_role
from tests.support.rows import queued

LOOPBACK = (ip_network("127.0.0.0/8"),)
TYPES = ["response.completed", "response.failed", "response.cancelled", "response.incomplete", "batch.completed"]
KEY = b"k" * 32


async def endpoint(
    db: Database, url: str = "http://127.0.0.1:1/", project: str = DEFAULT_PROJECT, name: str = "a", types: Any = TYPES
) -> str:
    """Makes an endpoint, whose secret is `secret_of(KEY)`; returns its id."""
    secret = secret_of(KEY)
    sealed = (await SharedSealer(db).get(project)).seal(SealedKind.WEBHOOK_SECRET, secret)
    values = {"id": f"we_{name}", "project": project, "name": name, "url": url, "event_types": types, "most": 32}
    row = await endpoints.create(db, {**values, "secret": sealed, "hint": hint_of(secret)})
    assert row is not None
    return row.id


async def rows(db: Database, **where: str) -> list[Row[Any]]:
    """All deliveries, by endpoint and event."""
    found = await db.execute(text("SELECT * FROM webhook_deliveries ORDER BY endpoint, event_id"))
    return [row for row in found if all(getattr(row, name) == value for name, value in where.items())]


class Receiver:
    """A receiver of webhooks that verifies every delivery with both libraries, and notes its event."""

    def __init__(self, web: LittleWeb, secret: str = "", path: str = "/hook") -> None:
        self.secret = secret or secret_of(KEY)
        self.url = f"{web.url}{path}"
        self.status = 200
        self.got: Counter[str] = Counter()
        """By the id of the event, what was taken."""
        self.events: list[dict[str, Any]] = []
        self.tried: Counter[str] = Counter()
        self.forged: list[str] = []
        self._client = openai.OpenAI(api_key="none", webhook_secret=self.secret)
        web.answers[path] = self.answer

    def fails(self, event_id: str) -> int:
        """The status to answer with; a test may replace it."""
        return self.status

    def answer(self, asked: Asked) -> Answer:
        headers = {name.lower(): value for name, value in asked.headers.items()}
        try:
            event = self._client.webhooks.unwrap(asked.body, headers, secret=self.secret)
            Webhook(self.secret).verify(asked.body, headers)
        except Exception as error:
            self.forged.append(repr(error))
            return Answer(status=401)
        assert event.id == headers["webhook-id"] == orjson.loads(asked.body)["id"]
        self.tried[event.id] += 1
        if (status := self.fails(event.id)) == 200:
            self.got[event.id] += 1
            self.events.append(orjson.loads(asked.body))
        return Answer(b"thanks", status)


def deliverer(
    db: Database, pubsub: PubSub, resolve: Resolve | None = None, networks: Any = LOOPBACK, role: str = MAINTENANCE
) -> Deliverer:
    own = as_role(db, role)
    return Deliverer(own, pubsub, Sender(networks, SharedSealer(own), resolve), MaintenanceMetrics())


@asynccontextmanager
async def delivering(made: Deliverer) -> AsyncIterator[Deliverer]:
    """Delivers, as maintenance does, until the block is left."""

    async def repeat() -> None:
        while True:
            await made.deliver()
            await made.wait()

    task = asyncio.create_task(repeat())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.close()


async def make_due(db: Database) -> None:
    """Whatever waits for another try is due now."""
    statement = "UPDATE webhook_deliveries SET due_at = now() WHERE due_at IS NOT NULL AND sent_at IS NULL"
    await db.execute(text(statement))


async def ended(db: Database, count: int, project: str = DEFAULT_PROJECT) -> list[str]:
    """So many background responses that were cancelled in one statement; returns their ids, sorted."""
    ids = [await queued(db, project=project, background=True) for _ in range(count)]
    async with db.begin() as connection:
        assert len(await many.end(connection, ids, Status.CANCELLED)) == count
    return sorted(ids)
