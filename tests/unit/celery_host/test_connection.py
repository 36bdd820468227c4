"""Which errors of Celery's consumer are forgiven: a lost connection always, a bug a few times."""

from __future__ import annotations

from typing import Any, cast

import pytest
from celery.exceptions import WorkerShutdown
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from workers.celery_host.connection import MAX_BUGS, ReconnectingConsumer


def consumer() -> Any:
    made = cast(Any, ReconnectingConsumer.__new__(ReconnectingConsumer))
    made._known = (OperationalError, RedisConnectionError, OSError)
    made._bugs = []
    return made


def test_a_lost_connection_is_forgiven_for_ever() -> None:
    made = consumer()
    for error in (OperationalError(), RedisConnectionError(), OSError()):
        for _ in range(3 * MAX_BUGS):
            made._judge(error)


def test_a_bug_that_repeats_stops_the_worker() -> None:
    made = consumer()
    for _ in range(MAX_BUGS - 1):
        made._judge(AttributeError("a bug"))
    with pytest.raises(WorkerShutdown):
        made._judge(TypeError("a bug"))


def test_a_bug_of_long_ago_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    made, now = consumer(), 0.0
    monkeypatch.setattr("workers.celery_host.connection.monotonic", lambda: now)
    for _ in range(3 * MAX_BUGS):
        now += 60.0
        made._judge(AttributeError("a bug"))
