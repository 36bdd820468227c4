"""What the operator reads afterwards: usage and the audit log; and how a key ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import openai
from openai.types.responses import ResponseUsage

from tests.tenants.tenants import Tenant, Trial, client_of, expect, until

END_SECONDS = 5.0
"""Without Redis; with it, a key ends within a second."""
WIDTHS: tuple[Literal["1m", "1h", "1d"], ...] = ("1m", "1h", "1d")


async def usage_is_exact(trial: Trial) -> str:
    """What the server counted is what the responses said, to the token."""
    for tenant in trial.tenants:
        expected = _total_of(tenant.used.values())
        for width in WIDTHS:
            counted = await _usage(trial, width, "project_id", tenant)
            expect(counted == {tenant.project: expected}, f"{width}: {tenant.name} used {expected}, not {counted}")
        for group, value in (("api_key_id", tenant.key_id), ("user_id", tenant.account), ("model", tenant.model)):
            counted = await _usage(trial, "1h", group, tenant)
            expect(counted == {value: expected}, f"by {group}: {tenant.name} used {expected}, not {counted}")
    return ", ".join(f"{len(tenant.used)} responses with {tenant.tokens} tokens" for tenant in trial.tenants)


def _total_of(usages: Iterable[ResponseUsage]) -> Counter[str]:
    total = Counter[str]()
    for usage in usages:
        total["responses"] += 1
        total["input"] += usage.input_tokens
        total["cached"] += usage.input_tokens_details.cached_tokens
        total["output"] += usage.output_tokens
    return total


async def _usage(trial: Trial, width: Literal["1m", "1h", "1d"], group: str, tenant: Tenant) -> dict[str, Counter[str]]:
    """The project's usage since it was made, by the values of `group`."""
    totals: dict[str, Counter[str]] = {}
    query: dict[str, Any] = {"start_time": tenant.created_at, "bucket_width": width, "group_by": [group]}
    query["project_ids"] = [tenant.project]
    while True:
        page = await trial.admin.admin.organization.usage.completions(**query)
        for result in (result for bucket in page.data for result in bucket.results):
            expect(result.object == "organization.usage.completions.result", f"usage has a {result.object}")
            found: Any = result
            total = totals.setdefault(getattr(found, group), Counter())
            total["responses"] += found.num_model_requests
            total["input"] += found.input_tokens
            total["cached"] += found.input_cached_tokens
            total["output"] += found.output_tokens
        if page.next_page is None:
            return totals
        query["page"] = page.next_page


async def an_ended_key_is_refused(trial: Trial) -> str:
    """A second key ends when it is deleted; the first one works on."""
    tenant, projects = trial.blue, trial.admin.admin.organization.projects
    second = await projects.service_accounts.api_keys.create(tenant.account, project_id=tenant.project, name="second")
    async with client_of(trial.admin, second.value) as client:
        await client.models.list()
        await projects.api_keys.delete(second.id, project_id=tenant.project)
        began = time.monotonic()

        async def is_refused() -> bool:
            try:
                await client.models.list()
            except openai.AuthenticationError:
                return True
            return False

        await until(is_refused, END_SECONDS, "a deleted key to be refused")
    await tenant.client.models.list()
    return f"after {time.monotonic() - began:.2f} s"


async def the_audit_log_has_it_all(trial: Trial) -> str:
    """Both projects with their accounts, keys and limits."""
    entries = 0
    for tenant in trial.tenants:
        query = trial.admin.admin.organization.audit_logs.list(project_ids=[tenant.project], limit=100)
        types = Counter([entry.type async for entry in query])
        for kind in ("project.created", "service_account.created", "api_key.created", "rate_limit.updated"):
            expect(types[kind] >= 1, f"the audit log has no {kind} of {tenant.name}")
        entries += types.total()
    return f"{entries} entries"
