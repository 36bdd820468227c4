"""Two projects with keys and limits of their own, and what the admin API says about them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from app.access.caller import OPERATOR_SCOPES
from app.access.new_keys import CreatedKey
from app.protocol.limits import LimitKind
from app.store.database import Database
from app.store.keys import pubsub_key
from app.streaming.pubsub import PubSub
from tests.faults.accounts import Ledger, Usage
from tests.faults.polling import with_pause
from tests.support.tenants import Tenant, administration, tenant
from tests.support.waiting import until

LARGE = 10**9
LIMITS: Mapping[str, Mapping[LimitKind, int]] = {
    "free": {},
    "tight": {LimitKind.TOKENS_PER_MINUTE: 100_000, LimitKind.QUEUED_RESPONSES: 6, LimitKind.UNFINISHED_RESPONSES: 9},
}
"""Project -> its limits; LARGE for other kinds. Clients of `tight` are refused now and then, and repeat the request."""
SECONDS = 30.0
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Tenants:
    """The projects of a run, and a key of the operators."""

    projects: tuple[Tenant, ...]
    operator: CreatedKey

    def headers_of(self, project: str) -> dict[str, str]:
        return next(each.headers for each in self.projects if each.project == project)


async def create(db: Database, redis_url: str) -> Tenants:
    pubsub = PubSub(redis_url, pubsub_key(db))
    admin = administration(db, pubsub)
    try:
        made = [await tenant(admin, name) for name in LIMITS]
        for each, limits in zip(made, LIMITS.values(), strict=True):
            await admin.set_limits(each.project, "*", dict.fromkeys(LimitKind, LARGE) | dict(limits))
        await admin.change_project(made[0].project, top_tier="priority")
        return Tenants(tuple(made), await admin.create_key(None, "operator", OPERATOR_SCOPES))
    finally:
        await pubsub.close()


async def ledger(url: str, tenants: Tenants, since: float) -> Ledger:
    """What projects used since then, as the admin API says it."""
    groups = ["project_id", "api_key_id"]
    end = int(time.time()) + DAY  # the clock of Postgres dates the ledger
    query: dict[str, Any] = {
        "start_time": int(since) - DAY,
        "end_time": end,
        "bucket_width": "1d",
        "limit": 31,
        "group_by": groups,
    }
    headers = {"authorization": f"Bearer {tenants.operator.secret}"}

    async def answer() -> httpx.Response | None:
        async with httpx.AsyncClient(timeout=10, verify=False, headers=headers) as http:
            got = await http.get(f"{url}/v1/organization/usage/completions", params=query)
        return None if got.status_code == httpx.codes.SERVICE_UNAVAILABLE else got

    got = await until(with_pause(answer), SECONDS, "the ledger is answered")
    assert got is not None and got.status_code == httpx.codes.OK, got
    found: Ledger = {}
    for bucket in got.json()["data"]:
        for each in bucket["results"]:
            key = (each["project_id"], each["api_key_id"] or "")
            usage = Usage(
                each["num_model_requests"],
                each["input_tokens"],
                each["input_cached_tokens"],
                each["output_tokens"],
                each["output_reasoning_tokens"],
            )
            found[key] = found[key] + usage if key in found else usage
    return found
