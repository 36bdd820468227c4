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
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from celery import Celery
from celery.exceptions import Ignore

from app.protocol.text import type_and_places
from app.queue.message import TASK
from workers.generation.outcome import Outcome, ResponseFailed, current_job
from workers.generation.slots import Slots

log = logging.getLogger("longhaul.tasks")

_DONE = frozenset({Outcome.COMPLETED, Outcome.INCOMPLETE})


class Counter(Protocol):
    """The part of `workers.generation.turns.counter` that the remote control uses."""

    async def count(self, key: str, project: str) -> None: ...


class Runner(Protocol):
    """The part of `workers.generation.runner` that the task, the pool and the remote control use."""

    @property
    def slots(self) -> Slots:
        """How many responses the pool may take."""

    @property
    def node(self) -> str:
        """The worker's name: the pool takes messages from its lists."""

    @property
    def command_key(self) -> bytes:
        """The key that signs commands to the worker."""

    @property
    def counter(self) -> Counter:
        """Counts the tokens of prompts."""

    async def run(self, response_id: str) -> Outcome:
        """Claims the response, generates it and finishes it. Raises ResponseFailed if the response failed."""

    async def revoke(self, response_ids: Sequence[str]) -> Collection[str]:
        """Cancels these rows, whichever worker has them, and notifies their readers. Waits for Postgres.

        Returns the ids that this call cancelled: neither unknown ones nor those that were final.
        """

    async def discarded(self, response_id: str) -> object:
        """Celery discarded the message of this response, because its id was revoked."""


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
