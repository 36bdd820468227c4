"""The state of a delivery after an attempt. Pure.

The schedule is that of Standard Webhooks: ten tries within 75 hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from app.store.webhooks.deliveries import Noted

SCHEDULE = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)
"""Seconds before each try, after the one before."""
JITTER = 0.2
"""A delay is up to a tenth shorter or longer, so that what failed together does not come together again."""
MAX_RETRY_AFTER = 86400.0
FAILING_SECONDS = 5 * 86400.0
"""An endpoint is disabled at a failure so long after the first one, if there was no success between ..."""
FAILING_TRIES = 3
"""... and the delivery has failed so often: one blip is not the end of an endpoint that gets an event a month."""
GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an attempt."""

    status: int | None
    """HTTP status of the answer. None: there was none."""
    error: str | None = None
    """One sentence, if there was no answer."""
    body: str = ""
    """The beginning of the answer's."""
    retry_after: float | None = None
    """Seconds that the answer asks to wait."""

    @property
    def is_success(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def noted(outcome: Outcome, tries: int, failing_seconds: float, chance: float) -> Noted:
    """Returns what becomes of a delivery after so many `tries`, whose endpoint has failed for so long; `chance`, from 0
    to 1, is the jitter."""
    if outcome.is_success:
        return Noted("delivered", None, None)
    if outcome.status == GONE:
        return Noted("failed", None, "gone")
    disable = "failing" if failing_seconds >= FAILING_SECONDS and tries >= FAILING_TRIES else None
    if tries >= len(SCHEDULE):
        return Noted("failed", None, disable)
    delay = SCHEDULE[tries] * (1 - JITTER / 2 + JITTER * chance)
    return Noted("pending", max(delay, outcome.retry_after or 0.0), disable)


def retry_after(value: str | None, now: float) -> float | None:
    """Returns the seconds that a `Retry-After` asks to wait at `now`, in epoch seconds; None: it says nothing."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        seconds = float(value[:12])
    else:
        try:
            date = parsedate_to_datetime(value)
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
