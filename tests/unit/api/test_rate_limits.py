"""The headers that tell clients what their limits leave."""

from __future__ import annotations

import pytest

from app.api.errors import refuse
from app.api.middleware import EXPOSED
from app.api.rate_limits import HEADERS, duration, headers_of, headers_of_error
from app.protocol.errors import LimitReached, NotFound
from app.protocol.limits import Allowance, LimitKind, LimitState, Reservation, Shortage, admit

REQUESTS = LimitState("proj_a", "*", LimitKind.REQUESTS_PER_MINUTE, 60, 30)
TOKENS = LimitState("proj_a", "*", LimitKind.TOKENS_PER_MINUTE, 1000, 999)
QUEUED = LimitState("proj_a", "*", LimitKind.QUEUED_RESPONSES, 8, 8, drained_per_second=0.25)
DAY = LimitState("proj_a", "*", LimitKind.TOKENS_PER_DAY, 500, 400, day_seconds=3600)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0s"), (0.0601, "61ms"), (1, "1s"), (8.64, "8.64s"), (360, "6m0s"), (3600, "1h0m0s"), (90061.5, "25h1m1.5s")],
)
def test_a_duration_is_written_as_openai_does(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_there_are_six_headers_and_web_pages_may_read_them() -> None:
    assert headers_of(Allowance(REQUESTS, TOKENS)) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "30",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1",
        "x-ratelimit-reset-tokens": "59.94s",
    }
    assert set(HEADERS) == set(headers_of(Allowance(REQUESTS, TOKENS))) <= set(EXPOSED)


def test_the_tightest_limit_is_told() -> None:
    found = headers_of(Allowance.of([DAY, REQUESTS]))
    assert found["x-ratelimit-limit-tokens"] == "500" and found["x-ratelimit-reset-tokens"] == "1h0m0s"
    assert headers_of(Allowance.of([DAY, TOKENS]))["x-ratelimit-limit-tokens"] == "1000"


def test_a_limit_that_is_not_there_has_no_headers() -> None:
    assert headers_of(None) == headers_of(Allowance(None, None)) == {}
    assert set(headers_of(Allowance(REQUESTS, None))) == {name for name in HEADERS if name.endswith("requests")}


def _refused(*states: LimitState, tokens: int = 100) -> LimitReached:
    shortage = admit(states, "proj_a", "m", Reservation(tokens, 0, 1))
    assert isinstance(shortage, Shortage)
    return LimitReached(shortage)


@pytest.mark.parametrize("states", [(QUEUED,), (REQUESTS, QUEUED)])
def test_without_room_in_the_queue_the_headers_for_requests_tell_its_limit(states: tuple[LimitState, ...]) -> None:
    headers = headers_of_error(_refused(*states))
    assert headers == {
        "x-ratelimit-limit-requests": "8",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "4s",
        "retry-after": "4",
        "retry-after-ms": "4000",
    }


def test_a_refusal_has_all_headers_and_says_when_to_come_again() -> None:
    answer = refuse(_refused(REQUESTS, TOKENS))
    assert answer.status_code == _refused(TOKENS).status == 429
    assert set(HEADERS) <= set(answer.headers)
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("6", "5940")
    assert "x-should-retry" not in answer.headers


def test_a_spent_quota_tells_the_true_time() -> None:
    assert refuse(_refused(DAY, tokens=101)).headers["retry-after"] == "3600"


def test_a_client_does_not_repeat_what_never_fits() -> None:
    answer = refuse(_refused(TOKENS, tokens=1001))
    assert answer.headers["x-should-retry"] == "false" and "retry-after" not in answer.headers


def test_other_errors_have_none_of_these_headers() -> None:
    assert not set(refuse(NotFound("no")).headers) & {*HEADERS, "retry-after"}
