"""Erasing projects whose time has come. Maintenance does it, in any number of copies."""

from __future__ import annotations

import logging

from app.access.changes import AuditType, Changes
from app.announcer import Announcer
from app.protocol.status import BatchStatus
from app.store.batches import changes as batch_changes
from app.store.database import Database, StoreUnavailable
from app.store.files import expiry
from app.store.responses import endings
from app.store.rows import EndResult
from app.store.tenants.erasure import DELETIONS, SETTLE_SECONDS, Erasure, due
from app.streaming.pubsub import PubSub

log = logging.getLogger("longhaul.maintenance")

BATCH = 500
"""Rows of a statement."""


async def erase_due(db: Database, pubsub: PubSub, announcer: Announcer, seconds: float = SETTLE_SECONDS) -> None:
    """Erases everything of the projects that were to be erased `seconds` ago, until nothing is found any more.

    A process that is killed meanwhile leaves the rest to the next call. Raises StoreUnavailable.
    """
    for erasure in await due(db, seconds):
        while found := await _erase(db, announcer, erasure):
            log.info("erased %d responses, batches, conversations and files of %s", found, erasure.project)
        async with Changes(db, pubsub).begin() as change:
            if await erasure.finish(change.connection):
                await change.note(AuditType.PROJECT_DELETED, erasure.project, erasure.project)
                log.info("%s is erased", erasure.project)


async def end_batches(db: Database, erasure: Erasure) -> None:
    """None of its batches makes a response any more. Those that are finalizing make none already."""
    async with db.begin() as connection:
        for batch_id in await erasure.lock_unfinished_batches(connection):
            for status in (BatchStatus.CANCELLING, BatchStatus.CANCELLED):
                await batch_changes.move(connection, batch_id, status)


async def _erase(db: Database, announcer: Announcer, erasure: Erasure) -> int:
    """Cancels and deletes what there is; returns how many responses, batches, conversations and files were deleted."""
    await end_batches(db, erasure)
    while unfinished := await erasure.unfinished(db, endings.MAX_CANCELLED):
        results = await endings.cancel_all(db, unfinished, erasure.project)
        await announcer.tell(*(result for result in results if isinstance(result, EndResult)))
        for result in results:
            if isinstance(result, StoreUnavailable):
                raise result
    found = 0
    for what in DELETIONS:
        while deleted := await erasure.delete(db, what, BATCH):
            found += 0 if what == "deliveries" else deleted
    await expiry.delete_dropped(db)
    return found
