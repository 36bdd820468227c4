"""The task: a response's id in, nothing out.

how it ended           what Flower shows          how
completed, incomplete  SUCCESS                    the task returns
failed                 FAILURE, code and message  it raises ResponseFailed, which it may (`throws`): no traceback
cancelled              REVOKED                    Celery announced it when it terminated the task; else we do
released, not claimed, what another worker says   Ignore: no event. It stays STARTED until the next worker
lost                                              reports; a state that is final already stays (events.State)
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from pathlib import PurePath
from typing import Any

from celery import Celery
from celery.exceptions import Ignore

from app.queue.celery_app import TASK
from workers.celery_host.bridge import aio_await
from workers.generation.cancellation import current_job, current_runner
from workers.generation.outcome import Outcome, ResponseFailed

log = logging.getLogger("longhaul.tasks")

_DONE = frozenset({Outcome.COMPLETED, Outcome.INCOMPLETE})


def register(celery: Celery) -> None:
    """Gives the app its task."""
    celery.task(name=TASK, throws=(ResponseFailed,), ignore_result=True)(generate)


def generate(response_id: str, model: str) -> None:
    """Runs one response. `model` is there for operators to read. Never waits for Celery, never returns a value."""
    end = aio_await(_run(response_id))
    if isinstance(end, ResponseFailed):
        raise end
    if end is Outcome.CANCELLED:
        _announce_revoked()
    if end not in _DONE:
        raise Ignore


async def _run(response_id: str) -> Outcome | ResponseFailed:
    """What the runner makes of it. Failures are fresh exceptions: Flower gets a traceback with no causes in it."""
    try:
        outcome = await current_runner().run(response_id)
    except ResponseFailed as error:
        return ResponseFailed(error.code, error.message)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # The text of an unforeseen exception may quote a prompt; where it happened does not.
        log.error("%s: %s at %s", response_id, type(error).__name__, _places(error))
        return ResponseFailed("server_error", type(error).__name__)
    return ResponseFailed("server_error", "no reason known") if outcome is Outcome.FAILED else outcome


def _places(error: Exception) -> str:
    """Where it came through, innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return " < ".join(f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)


def _announce_revoked() -> None:
    job: Any = current_job.get()
    if job is not None and job.request is not None and job.cancelled is None:
        job.request.send_event("task-revoked", terminated=True, signum=None, expired=False)
