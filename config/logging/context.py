"""The subject of a line of the log: one context variable, which every process sets, and a filter that reads it.

Whoever begins to work for a request or a response says so once (`about`). All lines that are logged meanwhile, and in
the tasks that are started meanwhile, then name it. A task that works for several responses belongs to none
(`of_nobody`).
"""

from __future__ import annotations

import contextvars
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Subject:
    """The request and the response that lines are about. Whoever learns more of it sets it."""

    request_id: str | None = None
    response_id: str | None = None
    attempt: int | None = None
    worker: str | None = None
    """Worker of the attempt. None: the worker that logs, if it is one."""

    def fields(self) -> dict[str, str | int]:
        """The known fields, in the order of a line."""
        known = {
            "response_id": self.response_id,
            "attempt": self.attempt,
            "worker": self.worker or (_process.worker if self.response_id else None),
            "request_id": self.request_id,
        }
        return {name: value for name, value in known.items() if value is not None}


@dataclass(slots=True)
class _Process:
    """The fields of every line of this process, and of those that it starts."""

    name: str | None = None
    worker: str | None = None


_WORKER = "_LONGHAUL_LOG_WORKER"
"""The variable that tells the processes of an engine which worker they are of."""
_SUBJECT: ContextVar[Subject | None] = ContextVar("subject", default=None)
_process = _Process(worker=os.environ.get(_WORKER))


@contextmanager
def about(
    response_id: str | None = None,
    *,
    attempt: int | None = None,
    request_id: str | None = None,
    worker: str | None = None,
) -> Iterator[Subject]:
    """Around the work for one response, or one request. A request that leads to other work stays named."""
    if request_id is None and (outer := _SUBJECT.get()) is not None:
        request_id = outer.request_id
    subject = Subject(request_id, response_id, attempt, worker)
    token = _SUBJECT.set(subject)
    try:
        yield subject
    finally:
        _SUBJECT.reset(token)


def note_response(response_id: str) -> None:
    """The work that goes on turns out to be about this response."""
    if (subject := _SUBJECT.get()) is not None:
        subject.response_id = response_id


def of_nobody() -> contextvars.Context:
    """A context for a task that works for several responses: its lines must not name the first of them."""
    context = contextvars.copy_context()
    context.run(_SUBJECT.set, None)
    return context


def name_process(name: str | None) -> None:
    """Says what this process is: `api`, `worker`, `maintenance`, ..."""
    _process.name = name


def name_worker(worker: str) -> None:
    """Says which worker this process is; the processes that it starts belong to it."""
    _process.worker = os.environ[_WORKER] = worker


def process_name(record: logging.LogRecord) -> str:
    """What the process is that has logged this; vLLM names those of its engines."""
    return _process.name or getattr(record, "vllm_process_name", None) or record.processName or ""


def worker_name() -> str | None:
    """The worker that this process is, or belongs to."""
    return _process.worker


class SubjectFilter(logging.Filter):
    """Gives each record what it is about, as `subject`."""

    def filter(self, record: logging.LogRecord) -> bool:
        subject = _SUBJECT.get()
        record.subject = {} if subject is None else subject.fields()
        return True
