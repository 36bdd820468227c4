"""Limits under many clients at once: what was let through, counted."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import openai
from openai.types.responses import Response

from tests.tenants.tenants import Tenant, Trial, expect, until

CLIENTS = 64
ATTEMPTS = 3
"""Requests of each client, one after another."""
MAX_REQUESTS = 40
"""A minute."""
MAX_TOKENS = 4000
"""A minute."""
PLENTY = 1_000_000
MAX_OUTPUT = 64
HOLDS_SECONDS = 10.0
"""Within 5 seconds a new limit holds, even without Redis."""
HEADERS = {
    unit: frozenset(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset"))
    for unit in ("requests", "tokens")
}


@dataclass(slots=True)
class Burst:
    """What became of many requests."""

    began: float
    admitted: list[Response]
    refused: list[openai.RateLimitError]
    seconds: float = 0.0
    """From before the limit was set to the last answer: what it refilled in that time may be used, too."""

    def bound(self, a_minute: int) -> float:
        """The most that a limit may let through."""
        return a_minute * (1 + self.seconds / 60)


async def requests_a_minute_hold(trial: Trial) -> str:
    burst = await _burst(trial, trial.red, MAX_REQUESTS, PLENTY)
    admitted, bound = len(burst.admitted), burst.bound(MAX_REQUESTS)
    expect(MAX_REQUESTS <= admitted <= bound, f"{admitted} requests were admitted; {bound:.1f} are right")
    _check_refusals(burst, "requests")
    return f"{CLIENTS} clients: {admitted} of {CLIENTS * ATTEMPTS} admitted in {burst.seconds:.1f} s, overshoot 0"


async def tokens_a_minute_hold(trial: Trial) -> str:
    burst = await _burst(trial, trial.blue, PLENTY, MAX_TOKENS)
    tokens = sum(trial.blue.used[response.id].total_tokens for response in burst.admitted)
    bound = burst.bound(MAX_TOKENS)
    expect(0 < tokens <= bound, f"{tokens} tokens were used; {bound:.0f} are right")
    _check_refusals(burst, "tokens")
    return f"{CLIENTS} clients: {tokens} tokens used by {len(burst.admitted)} in {burst.seconds:.1f} s, overshoot 0"


async def _burst(trial: Trial, tenant: Tenant, requests: int, tokens: int) -> Burst:
    burst = Burst(time.monotonic(), [], [])
    limits = trial.admin.admin.organization.projects.rate_limits
    await limits.update_rate_limit(
        f"rl-{tenant.model}",
        project_id=tenant.project,
        max_requests_per_1_minute=requests,
        max_tokens_per_1_minute=tokens,
    )
    await until(lambda: _is_limited(tenant, burst), HOLDS_SECONDS, "the limit to hold")
    await asyncio.gather(*(_client(tenant, burst) for _ in range(CLIENTS)))
    burst.seconds = time.monotonic() - burst.began
    await asyncio.gather(*(tenant.ended(response) for response in burst.admitted))
    return burst


async def _is_limited(tenant: Tenant, burst: Burst) -> bool:
    """Sends a request. One that was limited counts in the burst."""
    raw = await tenant.client.responses.with_raw_response.create(
        model=tenant.model, input="Count from 1 to 60.", max_output_tokens=MAX_OUTPUT, background=True
    )
    response = raw.parse()
    if is_limited := set(raw.headers) >= HEADERS["requests"] | HEADERS["tokens"]:
        burst.admitted.append(response)
    else:
        await tenant.ended(response)
    return is_limited


async def _client(tenant: Tenant, burst: Burst) -> None:
    for _ in range(ATTEMPTS):
        try:
            response = await tenant.client.responses.create(
                model=tenant.model, input="Count from 1 to 60.", max_output_tokens=MAX_OUTPUT, background=True
            )
        except openai.RateLimitError as error:
            burst.refused.append(error)
        else:
            burst.admitted.append(response)


def _check_refusals(burst: Burst, unit: str) -> None:
    expect(burst.refused, "no request was refused")
    for error in burst.refused:
        told, headers = (error.code, error.type), error.response.headers
        expect(told == ("rate_limit_exceeded", unit), f"a refusal says {told}")
        missing = HEADERS[unit] - set(headers)
        expect(not missing, f"a refusal has no {', '.join(sorted(missing))}")
        expect(1 <= int(headers["retry-after"]) <= 120, f"a refusal says Retry-After: {headers['retry-after']}")
