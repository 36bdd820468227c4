"""Celery's remote control where ours differs: revoke, terminate and shutdown (Flower's buttons, the API's cancel).

Celery's own revoke notes the ids in the memory of the workers that run at this moment, and with `terminate` it cancels
those tasks that it finds running. Here a revoke is a decision about the response, so a worker that receives one also

* terminates even if it was not asked to: an operator who presses Revoke on a running response wants it to end;
* terminates by its own list of jobs, because Celery's list forgets an id when a duplicate of it was dropped;
* cancels the row, so that a queued response ends now, not when a worker has a slot for it. The API has `committed` its
  cancels before it sends a revoke, so no worker looks at those rows.

A worker never runs an id again that is in `celery.worker.state.revoked` (for 3 h, and REVOKED_KEPT ids at most).
This holds back no response that still has to run: only a revoke puts an id there, and the row of a revoked response is
final or becomes final here. If the row could not be written (the worker died, say), maintenance sends the message
again. A worker that discards the message because of its set gets `task_revoked` and cancels the row then; a worker that
never received the revoke runs the response. Releasing a response at shutdown revokes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from celery.worker import control as celery_control
from celery.worker import state as worker_state
from celery.worker.control import Panel

from workers.celery_host.tasks import current_runner

REVOKED_KEPT = 10_000
"""Celery keeps 0.3 KiB for each. An id that is dropped earlier costs one claim, which finds that the row is final."""


def install() -> None:
    """Replaces the three commands in this process (their names, arguments and help stay), and bounds their memory."""
    Panel.data |= {"revoke": revoke, "terminate": terminate, "shutdown": shutdown}
    worker_state.revoked.maxlen = REVOKED_KEPT
    logging.getLogger("celery.worker.control").addFilter(_not_about_results)


def revoke(
    state: Any, task_id: Any, terminate: bool = False, signal: Any = None, committed: bool = False, **_: Any
) -> dict[str, Any]:
    """Revokes and terminates one id or a list of ids. `signal` has no meaning here: jobs are not processes.

    `committed`: the sender has cancelled the rows.
    """
    task_ids = _ids(task_id)
    reply: dict[str, Any] = celery_control.revoke(state, list(task_ids), terminate=True)
    state.consumer.pool.revoke(task_ids)
    if not committed:
        cancel_rows(state.consumer, task_ids)
    return reply


def terminate(state: Any, signal: Any, task_id: Any, **_: Any) -> dict[str, Any]:
    return revoke(state, task_id, terminate=True)


def shutdown(state: Any, msg: str = "", **_: Any) -> dict[str, Any]:
    """Celery would raise WorkerShutdown here, and so lose the last events of running tasks."""
    state.consumer.controller.shut_down()
    return {"ok": "shutting down"}


def cancel_rows(consumer: Any, task_ids: Sequence[str]) -> None:
    """Hands the ids to the runner, on the pool's loop. Returns at once."""
    if task_ids:
        consumer.pool.run_in_background(_cancel_rows(consumer, task_ids))


def discard(consumer: Any, response_id: str) -> None:
    """Cancels the row of a message that Celery discarded, and tells the runner. Returns at once."""
    consumer.pool.run_in_background(_discard(consumer, response_id))


async def _discard(consumer: Any, response_id: str) -> None:
    await _cancel_rows(consumer, (response_id,))
    await current_runner.get().discarded(response_id)


async def _cancel_rows(consumer: Any, task_ids: Sequence[str]) -> None:
    runner = current_runner.get()
    # No other worker may have received this revoke, so it is kept until Postgres answers or this worker stops.
    for response_id in await runner.revoke(task_ids):
        dispatcher = consumer.event_dispatcher
        # Celery announces the end of a running job. A queued response would stay PENDING in Flower without this event.
        if dispatcher is not None and dispatcher.enabled and not consumer.pool.runs(response_id):
            dispatcher.send("task-revoked", uuid=response_id, terminated=False, signum=None, expired=False)


def _ids(task_id: Any) -> tuple[str, ...]:
    ids = task_id if isinstance(task_id, list | tuple) else [task_id]
    return tuple(sorted({i for i in ids if isinstance(i, str) and i}))


def _not_about_results(record: logging.LogRecord) -> bool:
    """Celery warns at each revoke that it cannot note it in a result backend. There is none, on purpose."""
    return not record.getMessage().startswith("Failed to mark task")
