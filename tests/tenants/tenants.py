"""The two projects of a trial: how they are made, what they used, and how they are archived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseUsage

POLL_SECONDS = 0.25
NO_LIMIT = 2**53 - 1
"""What the admin API says where there is no limit."""
MAX_WAIT_SECONDS = 120.0
"""For a response to end, however slow the model is."""
FINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})


class CheckFailed(Exception):
    """The installation did something else than it promises."""


@dataclass(slots=True)
class Tenant:
    """A project with a key, and what its responses used."""

    name: str
    project: str
    created_at: int
    """By the server's clock."""
    account: str
    key_id: str
    client: AsyncOpenAI
    model: str
    used: dict[str, ResponseUsage] = field(default_factory=dict)
    """By the id of the response."""

    async def ask(self, prompt: str, **fields: Any) -> Response:
        """Creates a response, waits for its end and notes its usage."""
        made = await self.client.responses.create(model=self.model, input=prompt, **fields)
        return await self.ended(made)

    async def ended(self, response: Response) -> Response:
        """Waits for the end of the response, and notes its usage."""

        async def final() -> Response | None:
            found = response if response.status in FINAL else await self.client.responses.retrieve(response.id)
            return found if found.status in FINAL else None

        return self.note(await until(final, MAX_WAIT_SECONDS, f"the end of {response.id}"))

    def note(self, response: Response) -> Response:
        if response.usage is not None:
            self.used[response.id] = response.usage
        return response

    @property
    def tokens(self) -> int:
        return sum(usage.total_tokens for usage in self.used.values())


@dataclass(frozen=True, slots=True)
class Trial:
    """What every check has: the operator's client and both tenants."""

    admin: AsyncOpenAI
    red: Tenant
    blue: Tenant

    @property
    def tenants(self) -> tuple[Tenant, Tenant]:
        return self.red, self.blue


@asynccontextmanager
async def two_projects(admin: AsyncOpenAI, model: str) -> AsyncIterator[Trial]:
    """Makes two projects with a key each, and archives them at the end."""
    async with AsyncExitStack() as stack:
        red = await stack.enter_async_context(_tenant(admin, "trial: red", model))
        blue = await stack.enter_async_context(_tenant(admin, "trial: blue", model))
        yield Trial(admin, red, blue)


@asynccontextmanager
async def _tenant(admin: AsyncOpenAI, name: str, model: str) -> AsyncIterator[Tenant]:
    projects = admin.admin.organization.projects
    project = await projects.create(name=name)
    try:
        await projects.rate_limits.update_rate_limit(  # The limits of new projects would be in the way.
            "rl-*", project_id=project.id, max_requests_per_1_minute=NO_LIMIT, max_tokens_per_1_minute=NO_LIMIT
        )
        account = await projects.service_accounts.create(project.id, name=name)
        if account.api_key is None:
            raise CheckFailed("a service account was made without a key")
        key = account.api_key
        async with client_of(admin, key.value) as client:
            yield Tenant(name, project.id, project.created_at, account.id, key.id, client, model)
    finally:
        await projects.archive(project.id)


def client_of(admin: AsyncOpenAI, key: str) -> AsyncOpenAI:
    """A client of the same server that sends no request twice by itself."""
    return AsyncOpenAI(base_url=admin.base_url, api_key=key, admin_api_key="", max_retries=0)


async def until(condition: Callable[[], Coroutine[Any, Any, Any]], seconds: float, what: str) -> Any:
    """Returns the first result that is true. Raises CheckFailed."""
    end = time.monotonic() + seconds
    while not (found := await condition()):
        expect(time.monotonic() < end, f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(POLL_SECONDS)
    return found


def expect(condition: object, message: str) -> None:
    """Raises CheckFailed unless the condition is true."""
    if not condition:
        raise CheckFailed(message)
