"""Draining workers: what an operator does before a machine is stopped, or with a device that fails.

Functions raise StoreUnavailable, and NothingThere, which names the workers that there are.
"""

from __future__ import annotations

from app.access.changes import AuditType, Change, Changes, NothingThere
from app.operations.words import some_of
from app.store.queue import drains, redelivery
from app.store.queue.drains import Node


async def drain(changes: Changes, name: str, reason: str | None = None) -> Node:
    """Sends the worker nothing from now on: what it runs goes on to its end, and what it has not claimed goes back in
    line. Changes nothing if it is drained already."""
    async with changes.begin() as change:
        worker = await _worker(change, name)
        if await drains.drain(change.connection, name, reason, change.operator.key_id):
            returned = await redelivery.take_back(change.connection, name)
            await change.note(AuditType.WORKER_DRAINED, name, None, {"reason": reason, "returned": returned})
    return worker


async def undrain(changes: Changes, name: str, reason: str | None = None) -> Node:
    """Lets the worker be sent responses again. Changes nothing if it is not drained."""
    async with changes.begin() as change:
        worker = await _worker(change, name)
        if await drains.undrain(change.connection, name):
            await change.note(AuditType.WORKER_UNDRAINED, name, None, {"reason": reason})
    return worker


async def _worker(change: Change, name: str) -> Node:
    nodes = await drains.nodes(change.connection)
    if name not in nodes:
        raise NothingThere(f"there is no worker '{name}'; the workers are: {some_of(nodes)}", "name")
    return nodes[name]
