"""The shortest deadline counts, and no request may extend what the operator set."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.request import checked_request
from app.responses.create.deadlines import Deadlines, deadlines_of
from config.settings import load_settings
from tests.support.api import served


def deadlines(limit: float | None = None, **fields: Any) -> Deadlines:
    settings = load_settings(DATABASE_URL="postgresql://x/x", REDIS_URL="redis://x", queue_timeout_seconds=limit)
    body = {"model": "m", "input": "x", "background": True, **fields}
    return deadlines_of(checked_request(body).fields, served(), settings)


def window(name: str) -> dict[str, str]:
    return {"completion_window": name}


@pytest.mark.parametrize(("name", "seconds"), [("soonest", None), ("2h", 7200.0), ("8h", 28800.0)])
def test_a_completion_window_is_a_deadline_for_the_queue(name: str, seconds: float | None) -> None:
    assert deadlines(background_options=window(name)) == Deadlines(seconds, None)


def test_the_shortest_of_window_and_queue_timeout_counts() -> None:
    assert deadlines(background_options=window("2h"), queue_timeout=60).queue_seconds == 60
    assert deadlines(background_options=window("2h"), queue_timeout=9000).queue_seconds == 7200
    assert deadlines(9000, background_options=window("2h")).queue_seconds == 7200
    assert deadlines(60, background_options=window("soonest")).queue_seconds == 60


def test_a_window_longer_than_the_server_allows_is_refused_with_the_bound() -> None:
    with pytest.raises(InvalidRequest) as caught:
        deadlines(3600, background_options=window("8h"))
    assert caught.value.error.param == "background_options.completion_window"
    assert "at most 3600 seconds" in caught.value.error.message
