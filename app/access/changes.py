"""What operators change: one transaction with its entries in the audit log, and the doorbell after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from app.access.directory import DOORBELL
from app.ids import new_id
from app.store.database import Connection, Database
from app.store.tenants import audit, projects
from app.store.tenants.audit import NewEntry
from app.streaming.pubsub import PubSub


class AuditType(Enum):
    """What operators do, by OpenAI's names: its client refuses others."""

    PROJECT_CREATED = "project.created"
    PROJECT_UPDATED = "project.updated"
    PROJECT_ARCHIVED = "project.archived"
    PROJECT_DELETED = "project.deleted"
    ACCOUNT_CREATED = "service_account.created"
    ACCOUNT_UPDATED = "service_account.updated"
    ACCOUNT_DELETED = "service_account.deleted"
    KEY_CREATED = "api_key.created"
    KEY_UPDATED = "api_key.updated"
    KEY_DELETED = "api_key.deleted"
    RATE_LIMIT_UPDATED = "rate_limit.updated"
    WORKER_DRAINED = "worker.drained"
    """This one and those below are our own: OpenAI's log has nothing like them."""
    WORKER_UNDRAINED = "worker.undrained"
    MODEL_PAUSED = "model.paused"
    MODEL_RESUMED = "model.resumed"
    RESPONSES_CANCELLED = "responses.cancelled"
    RESPONSES_RETRIED = "responses.retried"
    BULK_ACTION_CANCELLED = "bulk_action.cancelled"
    RESPONSE_CANCELLED = "response.cancelled"
    WORKER_STOPPED = "worker.stopped"


class AdministrationError(Exception):
    """The change is not possible. The message is one line for the operator; `param` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NothingThere(AdministrationError):
    """No project, service account or key has that id."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who makes a change: the holder of a key, or (None) somebody without one, or `longhaul migrate`."""

    key_id: str | None = None
    address: str | None = None
    request_id: str | None = None


COMMAND_LINE = Operator()
FLOWER = "flower"
"""The actor of what is done in Flower, whose one password all operators have."""


class Change:
    """One transaction of an operator."""

    def __init__(self, connection: Connection, operator: Operator) -> None:
        self.connection = connection
        self.operator = operator

    async def note(
        self, kind: AuditType, resource: str, project: str | None, details: Mapping[str, Any] | None = None
    ) -> None:
        """Adds an entry about `resource` to the audit log."""
        by = self.operator
        entry = NewEntry(
            new_id("audit_log"), kind.value, by.key_id, project, resource, details or {}, by.address, by.request_id
        )
        await audit.add(self.connection, entry)


@asynccontextmanager
async def changing(db: Database, operator: Operator = COMMAND_LINE) -> AsyncIterator[Change]:
    """A change that no process has to learn of at once. Raises StoreUnavailable."""
    async with db.begin() as connection:
        await projects.lock_operators(connection)
        yield Change(connection, operator)


class Changes:
    """Makes changes for one operator."""

    def __init__(self, db: Database, pubsub: PubSub, operator: Operator = COMMAND_LINE) -> None:
        self.db = db
        self._pubsub = pubsub
        self._operator = operator

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Change]:
        """Raises StoreUnavailable. Once it is committed, every process looks again at what it knows."""
        async with changing(self.db, self._operator) as change:
            yield change
        await self._pubsub.ring(DOORBELL)  # Without Redis every process looks a few seconds later.
