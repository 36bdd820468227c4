"""The Celery task: it takes the id of a response, runs the response and returns nothing.

outcome of the runner      what Flower shows          how
completed, incomplete      SUCCESS                    the task returns
failed                     FAILURE, code and message  it raises ResponseFailed, which Celery expects (`throws`)
cancelled                  REVOKED                    Celery sent the event if it terminated the task; else we do
released, yielded,         no change                  it raises Ignore, so there is no event. The state stays STARTED
not claimed, fenced                                   until the next worker reports, or final if it was final before
"""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.exceptions import Ignore

from app.protocol.text import type_and_places
from app.queue.message import TASK
from workers.generation.outcome import Outcome, ResponseFailed, current_job

if TYPE_CHECKING:  # the app must be made before the runner's libraries are loaded
    from workers.generation.runner import Runner

log = logging.getLogger("longhaul.tasks")

_DONE = frozenset({Outcome.COMPLETED, Outcome.INCOMPLETE})

current_runner: ContextVar[Runner] = ContextVar("current_runner")
"""The runner of this worker. The pool sets it for its jobs and its background work."""


def register(celery: Celery) -> None:
    """Gives the app its task. Only TaskPool can run it: the task is a coroutine function."""
    celery.task(name=TASK, throws=(ResponseFailed,), ignore_result=True)(generate)


async def generate(response_id: str) -> None:
    """Runs one response. Raises ResponseFailed or Ignore: see the table."""
    end = await _run(response_id)
    if isinstance(end, ResponseFailed):
        raise end
    if end is Outcome.CANCELLED:
        _announce_revoked()
    if end not in _DONE:
        raise Ignore


async def _run(response_id: str) -> Outcome | ResponseFailed:
    """Returns failures as fresh exceptions: Flower shows a traceback, and this one has no causes in it."""
    try:
        return await current_runner.get().run(response_id)
    except ResponseFailed as error:
        return ResponseFailed(error.code, error.message)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        log.error("the response went wrong: %s", type_and_places(error))
        return ResponseFailed("server_error", type(error).__name__)


def _announce_revoked() -> None:
    job: Any = current_job.get()
    if job is not None and job.cancelled is None:
        job.request.send_event("task-revoked", terminated=True, signum=None, expired=False)
