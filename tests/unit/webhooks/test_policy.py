"""What becomes of a delivery, and how it is signed."""

from __future__ import annotations

import base64
import json
import time

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from app.store.webhooks.deliveries import Noted
from app.webhooks.policy import FAILING_SECONDS, JITTER, MAX_RETRY_AFTER, SCHEDULE, Outcome, noted, retry_after
from app.webhooks.signing import headers_of, hint_of, secret_of

BODY = '{"id":"evt_1","object":"event","created_at":1,"type":"response.completed","data":{"id":"resp_1"}}'
NOW = 1_764_374_400.0
"""2025-11-29 00:00:00 UTC."""


@pytest.mark.parametrize(
    ("outcome", "tries", "failing", "expected"),
    [
        (Outcome(200), 1, 0, Noted("delivered", None, None)),
        (Outcome(204), 9, FAILING_SECONDS, Noted("delivered", None, None)),
        (Outcome(500), 1, 0, Noted("pending", 5, None)),
        (Outcome(302), 2, 0, Noted("pending", 300, None)),
        (Outcome(None, "it hangs"), 9, 0, Noted("pending", 86400, None)),
        (Outcome(500), 10, 0, Noted("failed", None, None)),
        (Outcome(410), 1, 0, Noted("failed", None, "gone")),
        (Outcome(500), 3, FAILING_SECONDS - 1, Noted("pending", 1800, None)),
        (Outcome(500), 3, FAILING_SECONDS, Noted("pending", 1800, "failing")),
        (Outcome(500), 2, 9 * FAILING_SECONDS, Noted("pending", 300, None)),
        (Outcome(None, "it hangs"), 10, FAILING_SECONDS, Noted("failed", None, "failing")),
        (Outcome(429, retry_after=60), 1, 0, Noted("pending", 60, None)),
        (Outcome(503, retry_after=60), 3, 0, Noted("pending", 1800, None)),
    ],
)
def test_what_becomes_of_a_delivery(outcome: Outcome, tries: int, failing: float, expected: Noted) -> None:
    assert noted(outcome, tries, failing, 0.5) == expected


@given(st.integers(1, 12), st.floats(0, 1), st.integers(100, 599) | st.none())
def test_every_delivery_ends_and_no_delay_leaves_its_bounds(tries: int, chance: float, status: int | None) -> None:
    found = noted(Outcome(status), tries, 0, chance)
    assert (found.delay is None) == (found.status != "pending")
    if found.delay is not None:
        assert tries < len(SCHEDULE)
        assert (1 - JITTER / 2) * SCHEDULE[tries] <= found.delay <= (1 + JITTER / 2) * SCHEDULE[tries]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120),
        (" 7 ", 7),
        ("99999999999999999999", MAX_RETRY_AFTER),
        ("-5", None),
        ("soon", None),
        ("Sat, 29 Nov 2025 00:01:00 GMT", 60),
        ("Fri, 28 Nov 2025 00:01:00 GMT", 0),
        ("Sat, 29 Nov 9999 00:01:00 GMT", MAX_RETRY_AFTER),
        ("Sat, 29 Nov 2025 00:01:00 -0000", 60),
        ("Sat Nov 29 00:01:00 2025", 60),
        ("Saturday, 29-Nov-25 00:01:00 GMT", 60),
        ("+60", None),
        ("60, 120", None),
        ("1e9", None),
        ("١٢", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(
    value: str | None, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert retry_after(value, NOW) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


def verify(headers: dict[str, str], secret: str) -> None:
    """Raises what either library does."""
    Webhook(secret).verify(BODY, headers)
    openai.OpenAI(api_key="none").webhooks.unwrap(BODY, headers, secret=secret)


@given(st.binary(min_size=24, max_size=64), st.binary(min_size=24, max_size=64))
def test_both_libraries_take_a_signature_of_the_secret_or_of_the_one_before(key: bytes, other: bytes) -> None:
    secret, old = secret_of(key), secret_of(other)
    headers = headers_of("evt_1", int(time.time()), BODY, [secret, old])
    for each in (secret, old):
        verify(headers, each)
    if key != other:
        alone = headers_of("evt_1", int(time.time()), BODY, [secret])
        with pytest.raises(WebhookVerificationError):
            Webhook(old).verify(BODY, alone)


def test_a_signature_holds_for_its_id_its_time_and_its_body_alone() -> None:
    secret = secret_of(b"k" * 32)
    headers = headers_of("evt_1", int(time.time()), BODY, [secret])
    for name, value in (("webhook-id", "evt_2"), ("webhook-timestamp", str(int(time.time()) - 1))):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(BODY, {**headers, name: value})
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(json.dumps({}), headers)


def test_a_hint_shows_four_characters_of_the_secret() -> None:
    secret = secret_of(b"k" * 32)
    assert hint_of(secret) == f"whsec_...{secret[-4:]}" and base64.b64decode(secret.removeprefix("whsec_")) == b"k" * 32
