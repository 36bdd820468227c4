"""Draining workers: what an operator does before a machine is stopped, or with a device that fails."""

from __future__ import annotations

from app.access.changes import AuditType, Change, Changes, NothingThere
from app.operations.words import some_of
from app.store.queue import drains, redelivery
from app.store.queue.drains import Node


class Drains:
    """Every method raises NothingThere, with the workers that there are, and StoreUnavailable."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def drain(self, name: str, reason: str | None = None) -> Node:
        """From now on the worker is sent nothing: what it runs goes on to its end, and what it has not claimed goes
        back in line. Changes nothing if it is drained already."""
        async with self._changes.begin() as change:
            worker = await _worker(change, name)
            if await drains.drain(change.connection, name, reason, change.operator.key_id):
                returned = await redelivery.take_back(change.connection, name)
                await change.note(AuditType.WORKER_DRAINED, name, None, {"reason": reason, "returned": returned})
        return worker

    async def undrain(self, name: str, reason: str | None = None) -> Node:
        """The worker is sent responses again. Changes nothing if it is not drained."""
        async with self._changes.begin() as change:
            worker = await _worker(change, name)
            if await drains.undrain(change.connection, name):
                await change.note(AuditType.WORKER_UNDRAINED, name, None, {"reason": reason})
        return worker


async def _worker(change: Change, name: str) -> Node:
    nodes = await drains.nodes(change.connection)
    if name not in nodes:
        raise NothingThere(f"there is no worker '{name}'; the workers are: {some_of(nodes)}", "name")
    return nodes[name]
