"""Each tenant does its work, and neither sees the other's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import openai
from openai import AsyncOpenAI

from tests.tenants.tenants import Tenant, Trial, expect

MAX_OUTPUT = 64


async def each_does_its_work(trial: Trial) -> str:
    """In the foreground, as a stream, in the background, in a conversation, one after another."""
    for tenant in trial.tenants:
        client = tenant.client
        expect(tenant.model in [model.id async for model in client.models.list()], "the model is not listed")
        first = await tenant.ask("Hello!", max_output_tokens=MAX_OUTPUT)
        await tenant.ask("Again!", max_output_tokens=MAX_OUTPUT, previous_response_id=first.id)
        await tenant.ask("Hello!", max_output_tokens=MAX_OUTPUT, background=True)
        await _streams(tenant)
        conversation = await client.conversations.create()
        await tenant.ask("Hello!", max_output_tokens=MAX_OUTPUT, conversation=conversation.id)
        items = [item async for item in client.conversations.items.list(conversation.id)]
        expect(len(items) >= 2, "the conversation has no items")
        await client.conversations.delete(conversation.id)
        deleted = await tenant.ask("Hello!", max_output_tokens=MAX_OUTPUT)
        await client.responses.delete(deleted.id)  # What it used counts all the same.
    return f"{sum(len(tenant.used) for tenant in trial.tenants)} responses"


async def _streams(tenant: Tenant) -> None:
    last = None
    stream = await tenant.client.responses.create(
        model=tenant.model, input="Count from 1 to 60.", max_output_tokens=MAX_OUTPUT, stream=True
    )
    async for event in stream:
        last = event
    expect(last is not None and last.type in ("response.completed", "response.incomplete"), "the stream has no end")
    tenant.note(last.response)  # type: ignore[union-attr]


async def neither_sees_the_other(trial: Trial) -> str:
    """Whatever names another project's thing gets the answer of a thing that is not there."""
    tried = 0
    for tenant, other in (trial.tenants, reversed(trial.tenants)):
        theirs = await other.ask("Hello!", max_output_tokens=MAX_OUTPUT, background=True)
        conversation = await other.client.conversations.create()
        for name, attempt, target in (
            *((name, attempt, theirs.id) for name, attempt in _ON_RESPONSES.items()),
            *((name, attempt, conversation.id) for name, attempt in _ON_CONVERSATIONS.items()),
        ):
            told, of_nothing = (
                await _refusal(tenant, attempt, target),
                await _refusal(tenant, attempt, _nobodys(target)),
            )
            expect(told == of_nothing, f"{name}: another project's id gets {told}, an id of nothing {of_nothing}")
            expect(told[0] == 404 or name.startswith("create"), f"{name}: {told} instead of 404")
            tried += 1
        kept = await other.client.responses.retrieve(theirs.id)
        expect(kept.status == theirs.status and kept.output == theirs.output, "the other project's response changed")
        await other.client.conversations.delete(conversation.id)
    return f"{tried} ways tried"


_Attempt = Callable[[AsyncOpenAI, str, str], Awaitable[Any]]

_ON_RESPONSES: dict[str, _Attempt] = {
    "retrieve": lambda client, model, target: client.responses.retrieve(target),
    "stream": lambda client, model, target: client.responses.retrieve(target, stream=True),
    "cancel": lambda client, model, target: client.responses.cancel(target),
    "delete": lambda client, model, target: client.responses.delete(target),
    "list its input": lambda client, model, target: _first(client.responses.input_items.list(target)),
    "create: continue": lambda client, model, target: client.responses.create(
        model=model, input="Again!", previous_response_id=target
    ),
}
_ON_CONVERSATIONS: dict[str, _Attempt] = {
    "retrieve a conversation": lambda client, model, target: client.conversations.retrieve(target),
    "change a conversation": lambda client, model, target: client.conversations.update(target, metadata={"a": "b"}),
    "delete a conversation": lambda client, model, target: client.conversations.delete(target),
    "list a conversation": lambda client, model, target: _first(client.conversations.items.list(target)),
    "create: in a conversation": lambda client, model, target: client.responses.create(
        model=model, input="Again!", conversation=target
    ),
}


async def _first(page: Awaitable[Any]) -> Any:
    return await page


async def _refusal(tenant: Tenant, attempt: _Attempt, target: str) -> tuple[int, str | None, str]:
    """The status, the code and the message, in which the id is a star."""
    try:
        await attempt(tenant.client, tenant.model, target)
    except openai.APIStatusError as error:
        return error.status_code, error.code, str(error.body).replace(target, "*")
    return 200, None, ""


def _nobodys(target: str) -> str:
    """Returns an id of the same form that nobody has."""
    return target[:-8] + target[-8:].translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))


async def keys_do_what_their_scopes_say(trial: Trial) -> str:
    """A key that reads creates nothing, a project's key manages nothing, an admin key creates no response."""
    tenant = trial.red
    accounts = trial.admin.admin.organization.projects.service_accounts
    reader = await accounts.api_keys.create(tenant.account, project_id=tenant.project, scopes=["read"], name="reader")
    as_reader = tenant.client.with_options(api_key=reader.value)
    await as_reader.responses.retrieve(next(iter(tenant.used)))
    await _forbidden(as_reader.responses.create(model=tenant.model, input="Hello!"), "a key with the scope 'read'")
    as_admin = tenant.client.with_options(admin_api_key=tenant.client.api_key)
    await _forbidden(_first(as_admin.admin.organization.projects.list()), "a project's key")
    as_tenant = tenant.client.with_options(api_key=trial.admin.admin_api_key)
    await _forbidden(as_tenant.responses.create(model=tenant.model, input="Hello!"), "an admin key")
    return "read, responses, admin"


async def _forbidden(request: Awaitable[Any], who: str) -> None:
    try:
        await request
    except openai.PermissionDeniedError:
        return
    expect(False, f"{who} may do what its scopes do not allow")
