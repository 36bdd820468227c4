"""A project's webhook endpoints, and what was delivered to them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NoReturn, TypeVar

import orjson

from app.bounds import Bound
from app.ids import new_id
from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.requests.bodies.webhooks import CreateEndpoint, UpdateEndpoint
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.paging import Encoded, encoded_list
from app.store import retention
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.paging import Page
from app.store.responses.lookup import Hold
from app.store.sealing import SealedKind
from app.store.webhooks import deliveries, endpoints
from app.store.webhooks.endpoints import EndpointRow
from app.streaming.pubsub import ENDINGS, PubSub
from app.webhooks.objects import delivery_object, endpoint_object
from app.webhooks.sender import ANSWER_BYTES, Sender
from app.webhooks.signing import SECRET_BYTES, hint_of, secret_of

T = TypeVar("T")

MAX_ENDPOINTS = 32
"""Most endpoints of a project."""
TESTS = 32
"""Tests that an API process makes at once: each waits for its answer."""
KEEP_SECONDS = 86400.0
"""How long an old secret signs, too, if the rotation asks for it."""
DELIVERY_BYTES = 1024 + deliveries.MAX_ATTEMPTS * (ANSWER_BYTES + 128)
"""Largest size of a delivery in a list."""


class WebhookService:
    """For the API. Its methods raise NotFound, InvalidRequest, StoreUnavailable and BoundReached."""

    def __init__(self, db: Database, pubsub: PubSub, sealer: SharedSealer, sender: Sender, *, shares: bool) -> None:
        self._db = db
        self._pubsub = pubsub
        self._sealer = sealer
        self._sender = sender
        self.tests = Bound("webhook tests", TESTS, shares=shares)

    async def create(self, project: str, sent: CreateEndpoint) -> Json:
        secret, sealed = await self._new_secret(project)
        values = {"id": new_id("we"), "project": project, "secret": sealed, "hint": hint_of(secret)}
        row = await endpoints.create(self._db, {**sent.stored(), **values, "most": MAX_ENDPOINTS})
        if row is None:
            message = f"The project has {MAX_ENDPOINTS} webhook endpoints already; delete one."
            raise InvalidRequest(message, code="too_many_webhook_endpoints")
        return endpoint_object(row, secret)

    async def page(self, project: str, page: Page) -> Encoded:
        return _listed(await endpoints.find_page(self._db, project, page), endpoint_object)

    async def get(self, project: str, endpoint_id: str) -> Json:
        return endpoint_object(await self._find(project, endpoint_id))

    async def update(self, project: str, endpoint_id: str, sent: UpdateEndpoint) -> Json:
        row = await endpoints.update(self._db, project, endpoint_id, sent.stored())
        return endpoint_object(row or _unknown(endpoint_id))

    async def delete(self, project: str, endpoint_id: str) -> Json:
        if not await endpoints.delete(self._db, project, endpoint_id):
            _unknown(endpoint_id)
        return {"id": endpoint_id, "object": "webhook_endpoint.deleted", "deleted": True}

    async def rotate(self, project: str, endpoint_id: str, *, keep_old: bool) -> Json:
        secret, sealed = await self._new_secret(project)
        keep_seconds = KEEP_SECONDS if keep_old else 0.0
        row = await endpoints.rotate(self._db, project, endpoint_id, sealed, hint_of(secret), keep_seconds)
        return endpoint_object(row or _unknown(endpoint_id), secret)

    async def test(self, project: str, endpoint_id: str, event_type: str) -> Json:
        """Sends a sample of the event, once, whether the endpoint is disabled or not."""
        row = await self._find(project, endpoint_id)
        event_id, now = new_id("evt"), (await retention.now(self._db)).timestamp()
        about = {"id": new_id("batch" if event_type.startswith("batch.") else "resp")}
        body = {"id": event_id, "object": "event", "created_at": int(now), "type": event_type, "data": about}
        with self.tests.take(project):
            outcome = await self._sender.send(row, event_id, orjson.dumps(body).decode(), now)
        if outcome.status is None:
            message = f"The endpoint did not answer: {outcome.error}"
            raise InvalidRequest(message, code="webhook_endpoint_unreachable")
        tested = {"event_type": event_type, "webhook_endpoint_id": endpoint_id}
        return {"object": "webhook_endpoint.test", "status_code": outcome.status, "success": True, **tested}

    async def deliveries(self, project: str, endpoint_id: str, page: Page, hold: Hold) -> Encoded:
        """The newest events first."""
        await self._find(project, endpoint_id)
        await hold(page.limit * DELIVERY_BYTES)
        return _listed(await deliveries.find_page(self._db, project, endpoint_id, page), delivery_object)

    async def replay(self, project: str, endpoint_id: str, event_id: str) -> Json:
        """Sends an event once more, as if it had never been sent."""
        row = await self._find(project, endpoint_id)
        if row.disabled_at is not None:
            raise InvalidRequest("The webhook endpoint is disabled; enable it first.", code="webhook_endpoint_disabled")
        found = await deliveries.replay(self._db, project, endpoint_id, event_id)
        if found is None:
            raise NotFound(f"No such delivery: '{shortened(event_id)}'.", code="webhook_delivery_not_found")
        await self._pubsub.ring(ENDINGS)
        return delivery_object(found)

    async def _find(self, project: str, endpoint_id: str) -> EndpointRow:
        return await endpoints.find(self._db, project, endpoint_id) or _unknown(endpoint_id)

    async def _new_secret(self, project: str) -> tuple[str, str]:
        """A secret, and what the store keeps of it."""
        secret = secret_of(secrets.token_bytes(SECRET_BYTES))
        return secret, (await self._sealer.get(project)).seal(SealedKind.WEBHOOK_SECRET, secret)


def _listed(found: tuple[list[T], bool], shown: Callable[[T], Json]) -> Encoded:
    objects = map(shown, found[0])
    return encoded_list([(each["id"], orjson.dumps(each)) for each in objects], has_more=found[1])


def _unknown(endpoint_id: str) -> NoReturn:
    raise NotFound(f"No such webhook endpoint: '{shortened(endpoint_id)}'.", code="webhook_endpoint_not_found")
