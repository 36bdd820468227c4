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
def test_a_completion_window_says_when_the_response_is_due(name: str, seconds: float | None) -> None:
    assert deadlines(background_options=window(name)) == Deadlines(None, None, seconds)


def test_a_window_takes_the_place_of_the_queue_timeout_of_the_settings() -> None:
    assert deadlines(60, background_options=window("2h")) == Deadlines(None, None, 7200.0)
    assert deadlines(60, background_options=window("soonest")).queue_seconds == 60


def test_a_request_may_set_a_queue_timeout_within_its_window() -> None:
    assert deadlines(60, background_options=window("2h"), queue_timeout=600) == Deadlines(600, None, 7200.0)


def test_elsewhere_a_request_sets_no_longer_queue_timeout_than_the_settings() -> None:
    with pytest.raises(InvalidRequest) as caught:
        deadlines(3600, queue_timeout=3601)
    assert caught.value.error.param == "queue_timeout"
    assert "at most 3600 seconds" in caught.value.error.message
