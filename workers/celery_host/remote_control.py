"""Celery's remote control where ours differs: what a worker does for a message on its broker's channel.

Whoever has REDIS_URL can write there. So commands that change something are signed (app/queue/commands.py), or gone:
only those stay that a process of this deployment sends. Those that only tell something stay as they are. A command that
is refused does nothing, and is logged at the 1st, 10th, 100th time.

Celery's own revoke notes the ids in the memory of the workers that run at this moment, and with `terminate` it cancels
those tasks that it finds running. Here a revoke says that the rows are final, so a worker that receives one also

* terminates even if it was not asked to;
* terminates by its own list of jobs, because Celery's list forgets an id when a duplicate of it was dropped.

A worker never runs an id again that is in `celery.worker.state.revoked` (for 3 h, and REVOKED_KEPT ids at most).
This holds back no response that still has to run: only a revoke puts an id there, after its row was committed as
final. A failover of Postgres may lose that commit; a worker that discards the message because of its set gets
`task_revoked`, and cancels the row then. Releasing a response at shutdown revokes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery.worker import control as celery_control
from celery.worker import state as worker_state
from celery.worker.control import Panel

from app.protocol.text import is_worth_a_line, shortened
from app.queue.commands import Command, Forged, verify
from workers.celery_host.tasks import current_runner

log = logging.getLogger("longhaul.commands")

REVOKED_KEPT = 10_000
"""Celery keeps 0.3 KiB for each. An id that is dropped earlier costs one claim, which finds that the row is final."""

TELLING = frozenset(
    {
        *("active", "active_queues", "clock", "conf", "ping", "query_task", "registered", "report", "reserved"),
        *("revoked", "scheduled", "stats"),
        *("dump_active", "dump_reserved", "dump_revoked", "dump_schedule", "dump_tasks"),
    }
)
"""Celery's commands that change nothing, and cost little."""

Handler = Callable[..., Any]


class Commands(dict[str, Handler]):
    """The worker's action for each name."""

    def __init__(self, telling: Mapping[str, Handler], signed: Mapping[Command, Handler]) -> None:
        super().__init__(telling)
        self.refused = 0
        self.update({command.value: partial(self._run, command, handler) for command, handler in signed.items()})

    def __missing__(self, name: str) -> Handler:
        return partial(self._refuse, name, "no process of this deployment sends it")

    def _run(self, command: Command, handler: Handler, state: Any, /, signature: Any = None, **arguments: Any) -> Any:
        try:
            key = state.consumer.pool.runner.command_key
            verify(key, command, arguments, signature, state.hostname)
        except Forged as reason:
            return self._refuse(command, str(reason))
        return handler(state, **arguments)

    def _refuse(self, name: str, reason: str, *_: Any, **__: Any) -> dict[str, str]:
        self.refused += 1
        if is_worth_a_line(self.refused):
            said = "refused %d commands from Redis, the last one was %r: %s. Who can write to it?"
            log.warning(said, self.refused, shortened(name), reason)
        return {"error": f"refused: {reason}"}


def install() -> None:
    """Replaces Celery's commands in this process, and bounds the memory of its revokes."""
    signed: dict[Command, Handler] = {Command.REVOKE: revoke, Command.SHUTDOWN: shutdown, Command.COUNT: count}
    Panel.data = Commands({name: Panel.data[name] for name in TELLING}, signed)
    worker_state.revoked.maxlen = REVOKED_KEPT
    logging.getLogger("celery.worker.control").addFilter(_not_about_results)


def revoke(state: Any, task_id: Any) -> dict[str, Any]:
    """Revokes and terminates a list of ids, whose rows are final."""
    task_ids = _ids(task_id)
    reply: dict[str, Any] = celery_control.revoke(state, list(task_ids), terminate=True)
    state.consumer.pool.revoke(task_ids)
    return reply


def shutdown(state: Any) -> dict[str, Any]:
    """Celery would raise WorkerShutdown here, and so lose the last events of running tasks."""
    state.consumer.controller.shut_down()
    return {"ok": "shutting down"}


def count(state: Any, key: str, project: str) -> None:
    """Counts the tokens of a prompt beside all that the pool runs."""
    state.consumer.pool.run_in_background(_count(key, project))


async def _count(key: str, project: str) -> None:
    await current_runner.get().counter.count(key, project)


def discard(consumer: Any, response_id: str) -> None:
    """Cancels the row of a message that Celery discarded, and tells the runner. Returns at once."""
    consumer.pool.run_in_background(_discard(response_id))


async def _discard(response_id: str) -> None:
    runner = current_runner.get()
    # Kept until Postgres answers or this worker stops.
    await runner.revoke((response_id,))
    await runner.discarded(response_id)


def _ids(task_id: Any) -> tuple[str, ...]:
    ids = task_id if isinstance(task_id, list | tuple) else [task_id]
    return tuple(sorted({i for i in ids if isinstance(i, str) and i}))


def _not_about_results(record: logging.LogRecord) -> bool:
    """Celery warns at each revoke that it cannot note it in a result backend. There is none, on purpose."""
    return not record.getMessage().startswith("Failed to mark task")
