"""What a job may know about its own end, and how code on the pool's loop reaches the pool.

Why was I cancelled? The runner asks in its clean-up:

    except asyncio.CancelledError:
        match why_cancelled():
            case Cancelled.REVOKED: ...   # an operator or a client: the row becomes `cancelled`
            case Cancelled.SHUTDOWN: ...  # release the row
            case None: ...                # not the pool: the runner's own doing, a lost lease
        return Outcome.CANCELLED          # or RELEASED, ...; to raise again is fine too

A library may swallow a CancelledError (redis-py 8.1 does while it connects), so `why_cancelled` is
worth a look before long work, too. The pool cancels a job once: no second reason interrupts its
clean-up. (Others may cancel the task as well; a clean-up that must not break shields itself.) It
waits for the clean-up, up to `workers.celery_host.jobs.CLEANUP_SECONDS`, before it calls the job gone. The
answer travels in a context variable: it holds in every asyncio task that the job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from enum import Enum
from typing import Any, Protocol, cast

from workers.generation.outcome import Outcome


class Cancelled(Enum):
    """Why the pool cancelled a job."""

    REVOKED = "revoked"
    """Revoke or Terminate in Flower, or the API's cancel."""
    SHUTDOWN = "shutdown"
    """This worker stops; the response is another's to go on with."""


class Runner(Protocol):
    """What the tasks and the remote control need of `workers.generation.runner`."""

    async def run(self, response_id: str) -> Outcome:
        """Claims, generates, finishes. Raises ResponseFailed where the response ended failed."""

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        """Cancels these rows, whoever has them, and tells their readers. Raises StoreUnavailable.

        Returns the ids that this call cancelled: unknown and final ones are not among them.
        """


class JobState(Protocol):
    """The part of a pool's job that the job itself may look at."""

    cancelled: Cancelled | None
    request: Any
    """Celery's Request (celery.worker.request); None outside a worker."""


current_job: ContextVar[JobState | None] = ContextVar("current_job", default=None)
current_lifespan: ContextVar[object | None] = ContextVar("current_lifespan", default=None)
current_leave: ContextVar[Callable[[int], None] | None] = ContextVar("current_leave", default=None)


def why_cancelled() -> Cancelled | None:
    """Why the pool cancelled the current job; None where it did not, or outside a job."""
    job = current_job.get()
    return None if job is None else job.cancelled


def current_runner() -> Runner:
    """The runner that the pool's lifespan gave. Raises RuntimeError outside the pool's loop."""
    if (runner := current_lifespan.get()) is None:
        raise RuntimeError("there is a runner only in a job of workers.celery_host.pool.TaskPool")
    return cast(Runner, runner)


def leave(exit_code: int) -> None:
    """Ends this worker from within (its engine died, say): no grace, jobs are cancelled with SHUTDOWN.

    For code on the pool's loop that descends from the lifespan or from a job; returns at once.
    """
    if (function := current_leave.get()) is None:
        raise RuntimeError("there is no worker to leave here")
    function(exit_code)
