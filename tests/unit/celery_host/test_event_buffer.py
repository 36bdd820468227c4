"""When the events of a worker's tasks are sent, on a dispatcher and a hub that record what is asked of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from workers.celery_host.event_buffer import FLUSH_SECONDS, MAX_BATCHES, MAX_EVENTS, EventBuffer


class Hub:
    """Calls at once what is to be called soon, and keeps what is to be called later."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds == FLUSH_SECONDS
        self.later.append(function)

    def tick(self) -> None:
        due, self.later = self.later, []
        for function in due:
            function()


class Dispatcher:
    """As much of Celery's as the buffer uses."""

    def __init__(self) -> None:
        self._group_buffer: dict[str, list[str]] = {"task": []}
        self._outbound_buffer: deque[list[str]] = deque()
        self.buffer_limit = 24.0
        self.on_send_buffered: Callable[[], None] = lambda: None
        self.published: list[list[str]] = []

    def send(self, event: str) -> None:
        assert len(self._group_buffer["task"]) < self.buffer_limit
        self._group_buffer["task"].append(event)
        self.on_send_buffered()

    def flush(self) -> None:
        self.published.append([*self._group_buffer["task"]])
        self._group_buffer["task"].clear()


@pytest.fixture
def hub() -> Hub:
    return Hub()


def started(buffer: EventBuffer, hub: Hub) -> Dispatcher:
    dispatcher = Dispatcher()
    buffer.start(SimpleNamespace(event_dispatcher=dispatcher, hub=hub))
    return dispatcher


def test_the_events_of_a_moment_are_published_together_and_by_the_hub_alone(hub: Hub) -> None:
    dispatcher = started(EventBuffer(SimpleNamespace()), hub)
    for number in range(100):
        dispatcher.send(str(number))
    assert not dispatcher.published
    hub.tick()
    assert dispatcher.published == [[str(number) for number in range(100)]]
    dispatcher.send("next")
    hub.tick()
    assert dispatcher.published[1:] == [["next"]]


def test_a_lost_connection_loses_no_events(hub: Hub) -> None:
    buffer = EventBuffer(SimpleNamespace())
    started(buffer, hub).send("before")
    hub.later.clear()  # The hub of the lost connection is gone.
    after = started(buffer, hub)
    hub.tick()
    assert after.published == [["before"]]


def test_while_redis_is_away_the_oldest_events_go(hub: Hub) -> None:
    """For hours: its hub is gone, and nothing is flushed."""
    buffer = EventBuffer(SimpleNamespace())
    dispatcher = started(buffer, hub)
    for number in range(3 * MAX_EVENTS):
        dispatcher.send(str(number))
    assert len(dispatcher._group_buffer["task"]) == MAX_EVENTS
    dispatcher._outbound_buffer.extend([[str(number)] for number in range(2 * MAX_BATCHES)])
    assert len(dispatcher._outbound_buffer) == MAX_BATCHES
    hub.later.clear()
    after = started(buffer, hub)
    hub.tick()
    assert after.published == [[str(number) for number in range(2 * MAX_EVENTS, 3 * MAX_EVENTS)]]
