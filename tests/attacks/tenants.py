"""Attacks of one tenant on others, and on what all share: keys, limits, queues, storage, slots."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from sqlalchemy import text

from app.access.caller import OPERATOR_SCOPES
from app.access.secret import new_secret
from config.settings import Settings
from tests.attacks.attack import attack
from tests.attacks.memory import LARGE, WALLED, Demand
from tests.attacks.projects import UNTRUSTED, with_limits
from tests.attacks.target import ANSWER_SECONDS, Json, Target, bearer
from tests.support.tenants import tenant
from tests.support.waiting import until

TURN_SECONDS = 20.0
"""More than a response of a long queue takes (15 s): whoever comes waits until one of them leaves its slot."""
FIRST_TOKEN_SECONDS = 0.5
"""How much later than alone a stream's first token may come behind a backlog."""
FULL_SECONDS = 20.0
"""How long the engine stays full: longer than what runs is left alone before it may yield."""
HOLD_SECONDS = 10.0
"""How long an attack holds what it has, in its full form."""
AT_ONCE = 6
_LARGE = "i" * 7_000_000
_PAGE = [{"role": "user", "content": "x" * 340_000}] * 20
"""7 MB of items."""
_HANGS: Json = {"input": "/hang 1", "max_output_tokens": 3000, "ignore_eos": True}
"""A response that never ends on the scripted engine, and ends late on others."""
_PASSED_BY = text(
    """
    SELECT count(*) FROM responses a JOIN responses b ON b.id = :id
    WHERE a.project <> b.project AND a.created_at < b.created_at AND a.started_at BETWEEN b.created_at AND b.started_at
    """
)
_RUNNING = text("SELECT count(*) FROM responses WHERE project = :project AND status = 'in_progress'")
_PROJECTS = "/v1/organization/projects"
_FILL = text(
    """
    INSERT INTO projects (id, name, created_at)
    SELECT 'proj_filler_' || lpad(n::text, 6, '0'), repeat('n', 200), now() FROM generate_series(1, :count) n
    """
)
_EMPTY = text("UPDATE projects SET archived_at = now() WHERE id LIKE 'proj\\_filler\\_%'")
"""No process may delete a project."""


@attack("keys that nobody has", 5000, 50, {"401"}, demand=Demand(connections=64))
async def guessed_keys(target: Target, count: int) -> None:
    """Keys of the right form that nobody has, in requests and in handshakes of WebSockets."""

    async def guess(number: int) -> None:
        headers = bearer(new_secret())
        if number % 10:
            await target.send("POST", "/v1/responses", headers=headers, json={"model": target.model, "input": "x"})
            return
        async with target.websocket(headers=headers):
            target.seen["opened"] += 1

    await target.repeat(count, guess, parallel=64)


@attack("keys made and revoked", 500, 10, {"200"}, demand=WALLED, limits=UNTRUSTED)
async def churn_of_keys(target: Target, count: int) -> None:
    """Keys that are made, used once and revoked, one after the other: every process hears of each."""
    async with target.projects.administration() as admin:
        own = await tenant(admin, "churns")

        async def one(number: int) -> None:
            made = await tenant(admin, f"key {number}", project=own.project)
            await target.send("GET", "/v1/models", headers=made.headers)
            await admin.revoke_key(made.key.row.id)

        await target.repeat(count, one, parallel=8)
        await admin.archive_project(own.project)


@attack(
    "requests over the limits that do not wait",
    5000,
    200,
    {"200", "429"},
    demand=Demand(connections=64, readers=64),
    limits=UNTRUSTED,
)
async def refusal_storm(target: Target, count: int) -> None:
    """A tenant that is over its limits and repeats without waiting."""
    await target.repeat(count, lambda _: target.create(background=True), parallel=64)


@attack(
    "the lock of limits",
    200,
    10,
    {"200"},
    demand=LARGE,
    limits={"queued_bytes": 2**40, "unfinished_responses": 10**6},
)
async def large_reservations(target: Target, count: int) -> None:
    """Requests of 7 MB, whose inserts hold the limits of their project, among small ones of the same project."""

    async def one(number: int) -> None:
        await target.create(input=_LARGE if number % 5 == 0 else "x", background=True)

    await target.repeat(count, one, parallel=32)


@attack("many tenants at once", 1000, 20, {"200"}, demand=Demand(connections=200, readers=200), seconds=180)
async def many_projects(target: Target, count: int) -> None:
    """`count` projects with limits, each of which asks once, all at the same time."""
    async with target.projects.administration() as admin:
        made: list[str] = []

        async def make(number: int) -> None:
            made.append((await with_limits(admin, f"one of many {number}", UNTRUSTED)).key.secret)

        await target.repeat(count, make, parallel=8)

    async def ask(number: int) -> None:
        body = {"model": target.model, "input": "x", "max_output_tokens": 4}
        await target.send("POST", "/v1/responses", json=body, headers=bearer(made[number]))

    await target.repeat(count, ask, parallel=200)


@attack(
    "a queue of ten thousand",
    10000,
    50,
    {"200", "in turn"},
    demand=Demand(connections=64, readers=64),
    latency=TURN_SECONDS,
    seconds=180,
)
async def long_queue(target: Target, count: int) -> None:
    """A tenant queues `count` responses of some seconds each. Another one's must start within one turn of the slots."""
    async with _created(target, count, input="/repeat 500 word ", max_output_tokens=None):
        await _one_of_another(target)


async def _one_of_another(target: Target) -> None:
    """Counts whether the bystander's single response started `in turn`."""
    async with target.caller(target.projects.bystander.key.secret, counted=False) as owner:
        created = await owner.create(background=True)

        async def ended() -> bool:
            found = await owner.send("GET", f"/v1/responses/{created['id']}")
            return found.get("status") not in ("queued", "in_progress")

        await until(ended, ANSWER_SECONDS, "the bystander's response")
    async with target.projects.database() as db, db.autocommit() as connection:
        passed_by = (await connection.execute(_PASSED_BY, {"id": created["id"]})).scalar_one()
    target.seen["in turn" if passed_by <= Settings().worker_concurrency else f"after {passed_by} others"] += 1


@attack("stored bytes", 340, 2, {"200"}, full_only={"429"}, demand=WALLED, limits=UNTRUSTED)
async def conversations_without_end(target: Target, count: int) -> None:
    """`count` conversations of 7 MB, which nobody deletes."""
    body = json.dumps({"items": _PAGE}).encode()
    await target.repeat(count, lambda _: target.body(body, "/v1/conversations"), parallel=8)


async def _conversation(target: Target, pages: int) -> str:
    """The path of a new conversation with so many times 7 MB."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    body = json.dumps({"items": _PAGE}).encode()
    for _ in range(pages):
        await target.body(body, f"{path}/items")
    return path


@attack(
    "what is searched for a call",
    200,
    4,
    {"200", "400 input"},
    full_only={"429"},
    demand=WALLED,
    limits=UNTRUSTED,
)
async def refused_outputs(target: Target, count: int) -> None:
    """Outputs of no call, in a conversation of 54 MB: whoever looks for the call may look through all of it."""
    path = await _conversation(target, 8 if count > 24 else 1)
    output = {"type": "function_call_output", "call_id": "call_nobody", "output": "x"}
    fields = {"conversation": path.rsplit("/", 1)[1], "input": [output]}
    await target.repeat(count, lambda _: target.create(**fields), parallel=24)
    await target.send("DELETE", path)


@attack("large answers", 200, 4, {"200"}, demand=WALLED, limits=UNTRUSTED)
async def large_pages(target: Target, count: int) -> None:
    """Pages of 34 MB, 24 at once."""
    path = await _conversation(target, 5 if count > 24 else 1)
    await target.repeat(count, lambda _: target.send("GET", f"{path}/items?limit=100"), parallel=24)
    await target.send("DELETE", path)


@attack("every reader and connection", 4200, 20, {"200"}, full_only={"429"}, demand=WALLED, limits=UNTRUSTED)
async def many_readers(target: Target, count: int) -> None:
    """`count` streams of one response that does not end, each on a connection of its own."""
    body = {"model": target.model, "background": True, "stream": True, **_HANGS}
    path = f"/v1/responses/{target.first_id(await target.raw(target.post('/v1/responses', body)))}"
    request = target.head(f"GET {path}?stream=true HTTP/1.1") + b"\r\n"
    await _many_connections(target, count, request)
    await target.send("POST", f"{path}/cancel")


@attack(
    "what is kept for the foreground",
    500,
    20,
    {"200"},
    full_only={"429"},
    demand=WALLED,
    limits=UNTRUSTED,
)
async def foreground_flood(target: Target, count: int) -> None:
    """Streams that do not end, in the foreground: what is kept for the foreground must not be one project's."""
    request = target.post("/v1/responses", {"model": target.model, "stream": True, **_HANGS})
    await _many_connections(target, count, request, linger=HOLD_SECONDS if count == 500 else 1.0)


async def _many_connections(target: Target, count: int, request: bytes, linger: float = 0.0) -> None:
    """Opens all of them before it reads any answer: the server closes those that are quiet for long.

    Holds them until `linger` seconds after each has an answer.
    """
    async with contextlib.AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []

        async def ask(_: int) -> None:
            try:
                reader, writer = await stack.enter_async_context(target.connection())
            except ConnectionError:
                target.seen["closed"] += 1
                return
            writer.write(request)
            readers.append(reader)

        await target.repeat(count, ask, parallel=500)
        await asyncio.gather(*(target.read_answer(reader) for reader in readers))
        await asyncio.sleep(linger)


@attack(
    "an engine that is full",
    400,
    20,
    {"200"},
    demand=Demand(connections=64, readers=64),
    first_token=FIRST_TOKEN_SECONDS,
    seconds=180,
)
async def full_engine(target: Target, count: int) -> None:
    """`count` long background responses, more than an engine has slots. They end when it was full for long."""
    async with _created(target, count, **_HANGS):
        await _wait_until_full(target, count)


@contextlib.asynccontextmanager
async def _created(target: Target, count: int, **fields: Any) -> AsyncIterator[None]:
    """Creates so many background responses, and cancels them at the end of the block."""
    created: list[Json] = []

    async def create(_: int) -> None:
        created.append(await target.create(background=True, **fields))

    try:
        await target.repeat(count, create, parallel=64)
        yield
    finally:
        await target.projects.cancel(created)


async def _wait_until_full(target: Target, count: int) -> None:
    """Waits until most of the slots are the attacker's, and then for FULL_SECONDS; less in the short form."""
    project = target.projects.attacker.project
    async with target.projects.database() as db:

        async def running() -> int:
            async with db.autocommit() as connection:
                return int((await connection.execute(_RUNNING, {"project": project})).scalar_one())

        async def is_full() -> bool:
            return await running() >= min(count, 200)

        await until(is_full, ANSWER_SECONDS, "the engine is full")
    await asyncio.sleep(FULL_SECONDS if count > 100 else 1.0)


_numbers = itertools.count()
"""No schema is sent twice: what was compiled or refused once may be remembered."""


def _quadratic() -> Iterator[Json]:
    """Schemas of one property whose compilation takes from 5 to 45 seconds."""
    for number in _numbers:
        pattern = f"^[a-z]{{0,{(10_000, 20_000)[number % 2] + number}}}$"
        yield {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}


@attack(
    "grammars that take 45 s (on vLLM: --model demo)",
    30,
    AT_ONCE,
    {"200"},
    demand=WALLED,
    limits=UNTRUSTED,
)
async def burning_schemas(target: Target, count: int) -> None:
    """Six at once, in the foreground."""
    schemas = _quadratic()

    async def one(_: int) -> None:
        form = {"type": "json_schema", "name": "s", "schema": next(schemas), "strict": True}
        await target.create(text={"format": form})

    await target.repeat(count, one, parallel=AT_ONCE)


@attack("long lists of the admin API", 8000, 300, {"200"})
async def admin_pages(target: Target, count: int) -> None:
    """Thousands of projects, which are all listed page by page, and used by nobody."""
    async with target.projects.database() as db:
        async with db.autocommit() as connection:
            await connection.execute(_FILL, {"count": count})
        try:
            async with target.projects.administration() as admin:
                key = await admin.create_key(None, "operator", OPERATOR_SCOPES)
                async with target.caller(key.secret) as operator:
                    await operator.repeat(4, lambda _: _list_all(operator))
                await admin.revoke_key(key.row.id)
        finally:
            async with db.autocommit() as connection:
                await connection.execute(_EMPTY)


async def _list_all(operator: Target) -> None:
    after = ""
    while True:
        page = await operator.send("GET", f"{_PROJECTS}?limit=100&include_archived=true{after}")
        if not page.get("has_more"):
            return
        after = f"&after={page['last_id']}"
