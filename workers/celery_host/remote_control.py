"""Celery's remote control, where ours differs: revoke, terminate and shutdown (Flower's buttons, the API's cancel).

Celery's own revoke notes the ids in the memory of the workers of this moment, and with
`terminate` cancels what it finds running. For us a revoke is a decision about the response, so
whoever hears one also

* terminates without being asked to: an operator who presses Revoke on a running response wants it ended;
* terminates by our own list of jobs, since Celery's forgets an id when a duplicate of it was dropped;
* cancels the row, so that a queued response ends now, not when some worker has a slot for it.

Ids in `celery.worker.state.revoked` never run again in this worker (for 3 h, and REVOKED_KEPT of them).
That holds back no response that still has to run: an id gets there by a revoke alone, and the row
of a revoked response is final, or becomes it here. Where that could not be written (the worker
died, say), maintenance sends the message again; the worker that discards it by its list is told
(`task_revoked`) and cancels the row then; one that never heard of the revoke runs it. Releasing a
response at shutdown revokes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Any

from celery.worker import control as celery_control
from celery.worker import state as worker_state
from celery.worker.control import Panel

from app.store.database import StoreUnavailable
from workers.generation.cancellation import current_runner

RETRY_SECONDS = 1.0
REVOKED_KEPT = 10_000
"""Of each, Celery keeps 0.3 KiB. One that is forgotten earlier costs a claim, which finds the row to be final."""


def install() -> None:
    """Replaces the three commands in this process (their names, arguments and help stay), and bounds their memory."""
    Panel.data |= {"revoke": revoke, "terminate": terminate, "shutdown": shutdown}
    worker_state.revoked.maxlen = REVOKED_KEPT
    logging.getLogger("celery.worker.control").addFilter(_not_about_results)


def revoke(state: Any, task_id: Any, terminate: bool = False, signal: Any = None, **_: Any) -> dict[str, Any]:
    """Revokes and terminates one id or a list. `signal` means nothing here: jobs are no processes."""
    task_ids = _ids(task_id)
    reply: dict[str, Any] = celery_control.revoke(state, list(task_ids), terminate=True)
    state.consumer.pool.revoke(task_ids)
    cancel_rows(state.consumer, task_ids)
    return reply


def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> dict[str, Any]:
    return revoke(state, task_id, terminate=True)


def shutdown(state: Any, msg: str = "", **_: Any) -> dict[str, Any]:
    """Celery raises WorkerShutdown here, and so loses the last events of running tasks."""
    state.consumer.controller.shut_down()
    return {"ok": "shutting down"}


def cancel_rows(consumer: Any, task_ids: Sequence[str]) -> None:
    """Hands the ids to the runner, on the pool's loop. Returns at once."""
    if task_ids:
        consumer.pool.errand(_cancel_rows(consumer, task_ids))


async def _cancel_rows(consumer: Any, task_ids: Sequence[str]) -> None:
    for response_id in await _patiently(task_ids):
        dispatcher = consumer.event_dispatcher
        # A running job's end is announced by Celery. A queued one would look queued in Flower until its turn.
        if dispatcher is not None and dispatcher.enabled and not consumer.pool.runs(response_id):
            dispatcher.send("task-revoked", uuid=response_id, terminated=False, signum=None, expired=False)


async def _patiently(task_ids: Sequence[str]) -> Collection[str]:
    """Until Postgres answers, or this worker stops: nobody else may have heard of it."""
    while True:
        try:
            return await current_runner().revoke(task_ids)
        except StoreUnavailable:
            await asyncio.sleep(RETRY_SECONDS)


def _ids(task_id: Any) -> tuple[str, ...]:
    ids = task_id if isinstance(task_id, list | tuple) else [task_id]
    return tuple(sorted({i for i in ids if isinstance(i, str) and i}))


def _not_about_results(record: logging.LogRecord) -> bool:
    """Celery warns at each revoke that it cannot note it in a result backend; there is none, on purpose."""
    return not record.getMessage().startswith("Failed to mark task")
