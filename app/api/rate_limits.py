"""What a project's limits leave, and how long to wait, as OpenAI's headers."""

from __future__ import annotations

import math

from app.protocol.errors import ApiError, LimitReached, ModelPaused, ShareUsed
from app.protocol.limits import RESPONSES, Allowance, LimitState

RETRY_AFTER_SECONDS = 1
"""After a refusal that lasts as long as others hold something, which nobody knows."""

PAUSED_SECONDS = 30
"""After a refusal that lasts until operators resume what they have paused."""

HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}" for unit in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)


def headers_of(allowance: Allowance | None) -> dict[str, str]:
    """Returns the headers for what the project's limits leave; those of a limit that it does not have are missing."""
    if allowance is None:
        return {}
    headers: dict[str, str] = {}
    for unit, state in (("requests", allowance.requests), ("tokens", allowance.tokens)):
        if state is not None:
            headers |= _headers(unit, state, state.reset_seconds)
    return headers


def headers_of_error(error: ApiError) -> dict[str, str]:
    """Returns the headers that belong to the error itself: how long to wait, and what is left."""
    if isinstance(error, ModelPaused):
        return {"retry-after": str(PAUSED_SECONDS)}
    if isinstance(error, ShareUsed):
        return {"retry-after": str(RETRY_AFTER_SECONDS)}
    if not isinstance(error, LimitReached):
        return {}
    headers, limit, wait = headers_of(error.shortage.allowance), error.shortage.limit, error.shortage.wait_seconds
    if limit.kind in RESPONSES:
        headers |= _headers("requests", limit, wait or 0.0)
    if wait is None:
        return {**headers, "x-should-retry": "false"}
    return {**headers, "retry-after": str(max(1, math.ceil(wait))), "retry-after-ms": str(math.ceil(1000 * wait))}


def duration(seconds: float) -> str:
    """Returns a time as OpenAI writes it: `60ms`, `1s`, `6m0s`, `2h0m3.5s`."""
    milliseconds = math.ceil(1000 * seconds)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    ahead = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{ahead}{rest / 1000:g}s"


def _headers(unit: str, state: LimitState, reset_seconds: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{unit}": str(state.value),
        f"x-ratelimit-remaining-{unit}": str(state.remaining),
        f"x-ratelimit-reset-{unit}": duration(reset_seconds),
    }
