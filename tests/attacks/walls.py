"""Attacks of one tenant, with the limits of a project that nobody trusts, on what all tenants share."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Set
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from app.store.tenants import usage
from tests.attacks.attack import Attack
from tests.attacks.memory import WALLED
from tests.attacks.projects import UNTRUSTED
from tests.attacks.target import ANSWER_SECONDS, Ended, Json, Target
from tests.support.tenants import tenant
from tests.support.waiting import until

HOLD_SECONDS = 10.0
"""How long an attack holds what it has, in its full form."""
_PAGE = [{"role": "user", "content": "x" * 340_000}] * 20
"""7 MB of items."""
_HANGS: Json = {"input": "/hang 1", "max_output_tokens": 3000, "ignore_eos": True}
"""A response that never ends on the scripted engine, and ends late on others."""
_READ_TOKENS = 300
_LOGGED = text(
    "SELECT coalesce(sum(octet_length(c.tokens)) / 4, 0) FROM chunks c JOIN responses r ON r.id = c.response_id"
    " WHERE r.project = :project"
)
_UNFINISHED = text("SELECT count(*) FROM responses WHERE project = :project AND finished_at IS NULL")


async def _conversation(target: Target, pages: int) -> str:
    """The path of a new conversation with so many times 7 MB."""
    path = f"/v1/conversations/{(await target.send('POST', '/v1/conversations', json={}))['id']}"
    body = json.dumps({"items": _PAGE}).encode()
    for _ in range(pages):
        await target.body(body, f"{path}/items")
    return path


def _seconds(count: int, full: int) -> float:
    return HOLD_SECONDS if count == full else 1.0


# -- storage and reads -----------------------------------------------------------------------------------------------


async def conversations_without_end(target: Target, count: int) -> None:
    """`count` conversations of 7 MB, which nobody deletes."""
    body = json.dumps({"items": _PAGE}).encode()
    await target.repeat(count, lambda _: target.body(body, "/v1/conversations"), parallel=8)


async def refused_outputs(target: Target, count: int) -> None:
    """Outputs of no call, in a conversation of 54 MB: whoever looks for the call may look through all of it."""
    path = await _conversation(target, 8 if count > 24 else 1)
    output = {"type": "function_call_output", "call_id": "call_nobody", "output": "x"}
    fields = {"conversation": path.rsplit("/", 1)[1], "input": [output]}
    await target.repeat(count, lambda _: target.create(**fields), parallel=24)
    await target.send("DELETE", path)


async def large_pages(target: Target, count: int) -> None:
    """Pages of 34 MB, 24 at once."""
    path = await _conversation(target, 5 if count > 24 else 1)
    await target.repeat(count, lambda _: target.send("GET", f"{path}/items?limit=100"), parallel=24)
    await target.send("DELETE", path)


async def reads_without_end(target: Target, count: int) -> None:
    created = await target.create(input="x" * 50_000)
    paths = [f"/v1/responses/{created['id']}{rest}" for rest in ("", "/input_items", "?stream=true")]
    await target.repeat(count, lambda number: target.send("GET", paths[number % 2]), parallel=64)


# -- what is held ----------------------------------------------------------------------------------------------------


async def many_readers(target: Target, count: int) -> None:
    """`count` streams of one response that does not end, each on a connection of its own."""
    body = {"model": target.model, "background": True, "stream": True, **_HANGS}
    path = f"/v1/responses/{target.first_id(await target.raw(target.post('/v1/responses', body)))}"
    request = target.head(f"GET {path}?stream=true HTTP/1.1") + b"\r\n"
    await _many_connections(target, count, request)
    await target.send("POST", f"{path}/cancel")


async def many_connections(target: Target, count: int) -> None:
    """`count` connections by one key, each of which asks something before it waits."""
    await _many_connections(target, count, target.head("GET /v1/models HTTP/1.1") + b"\r\n")


async def hanging_compactions(target: Target, count: int) -> None:
    """Compactions whose model does not come to an end."""
    items = [{"role": "user", "content": text} for text in ("/summary /hang 1", "x")]
    request = target.post("/v1/responses/compact", {"model": target.model, "input": items})
    await _many_connections(target, count, request, hold=_seconds(count, 16))


async def foreground_flood(target: Target, count: int) -> None:
    """Streams that do not end, in the foreground: what is kept for the foreground must not be one project's."""
    request = target.post("/v1/responses", {"model": target.model, "stream": True, **_HANGS})
    await _many_connections(target, count, request, linger=_seconds(count, 500))


async def _many_connections(
    target: Target, count: int, request: bytes, hold: float | None = None, linger: float = 0.0
) -> None:
    """Opens all of them before it reads any answer: the server closes those that are quiet for long.

    Holds them for `hold` seconds and counts those that have no answer by then; None: until `linger` seconds after
    each has one.
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
        reading = [asyncio.ensure_future(target.read_answer(reader)) for reader in readers]
        if hold is None:
            await asyncio.wait(reading)
            await asyncio.sleep(linger)
            return
        _, waiting = await asyncio.wait({*reading, ever := asyncio.Future[bytes]()}, timeout=hold)
        waiting.discard(ever)
        for each in waiting:
            each.cancel()
        target.seen.update({"left": len(waiting)} if waiting else {})


async def hanging_counts(target: Target, count: int) -> None:
    """Counts of 7 MB, as many at once as the limits let through."""
    body = json.dumps({"model": target.model, "input": "ab " * 2_300_000}).encode()
    await target.repeat(count, lambda _: target.body(body, "/v1/responses/input_tokens"), parallel=16)


# -- usage and keys --------------------------------------------------------------------------------------------------


async def leaving_early(target: Target, count: int) -> None:
    """Clients that read most of an answer and leave before its usage is known. The ledger must have it all the same."""
    async with target.projects.administration() as admin:
        own = await tenant(admin, "leaves early")
    async with target.caller(own.key.secret) as caller:
        body = {"model": caller.model, "input": f"/hang {_READ_TOKENS}", "stream": True}
        request = caller.post("/v1/responses", body)

        async def one(_: int) -> None:
            async with caller.connection() as (reader, writer):
                writer.write(request)
                read = b""
                async with asyncio.timeout(ANSWER_SECONDS):
                    while read.count(b"event: response.output_text.delta") < 1:
                        if not (more := await reader.read(65536)):
                            raise Ended
                        read += more
            caller.seen["left"] += 1

        await caller.repeat(count, one)
    await _compare_with_ledger(target, own.project, count)


async def _compare_with_ledger(target: Target, project: str, count: int) -> None:
    async with target.projects.database() as db:

        async def have_ended() -> bool:
            async with db.autocommit() as connection:
                return not (await connection.execute(_UNFINISHED, {"project": project})).scalar_one()

        await until(have_ended, ANSWER_SECONDS, "the responses whose clients left have ended")
        async with db.autocommit() as connection:
            generated = int((await connection.execute(_LOGGED, {"project": project})).scalar_one())
        now = datetime.fromtimestamp(time.time(), UTC)
        wanted = usage.UsageFilter(now - timedelta(days=1), now + timedelta(days=1), "day", projects=[project])
        totals = await usage.read(db, wanted, 10)
    used, prompts, requests = (
        sum(getattr(total, name) for total in totals) for name in ("output_tokens", "input_tokens", "requests")
    )
    is_whole = used == generated > 0 and requests == count and prompts > 0 == prompts % count
    found = f"nothing: the ledger has {used} of {generated} tokens, {prompts} of {requests} prompts"
    target.seen["ledger" if is_whole else found] += 1


async def churn_of_keys(target: Target, count: int) -> None:
    """Keys that are made, used once and revoked, one after the other: every process hears of each."""
    async with target.projects.administration() as admin:
        own = await tenant(admin, "churns")

        async def one(number: int) -> None:
            made = await tenant(admin, f"key {number}", project=own.project)
            headers = made.headers
            await target.send("GET", "/v1/models", headers=headers)
            await admin.revoke_key(made.key.row.id)

        await target.repeat(count, one, parallel=8)
        await admin.archive_project(own.project)


def _attack(
    name: str,
    run: Callable[[Target, int], Awaitable[None]],
    full: int,
    small: int,
    expected: Set[str],
    full_only: Set[str] = frozenset(),
) -> Attack:
    return Attack(
        name,
        "K: walls between tenants",
        run,
        full,
        small,
        expected,
        full_only=full_only,
        demand=WALLED,
        limits=UNTRUSTED,
    )


ATTACKS = (
    _attack("conversations-without-end", conversations_without_end, 340, 2, {"200"}, {"429"}),
    _attack("refused-outputs", refused_outputs, 200, 4, {"200", "400 input"}, {"429"}),
    _attack("large-pages", large_pages, 200, 4, {"200"}),
    _attack("reads-without-end", reads_without_end, 5000, 50, {"200"}, {"429"}),
    _attack("many-readers", many_readers, 4200, 20, {"200"}, {"429"}),
    _attack("many-connections", many_connections, 4200, 20, {"200"}, {"429"}),
    _attack("hanging-compactions", hanging_compactions, 16, 4, {"left"}),
    _attack("hanging-counts", hanging_counts, 100, 1, {"200"}, {"429"}),
    _attack("foreground-flood", foreground_flood, 500, 20, {"200"}, {"429"}),
    _attack("leaving-early", leaving_early, 100, 10, {"left", "ledger"}),
    _attack("churn-of-keys", churn_of_keys, 500, 10, {"200"}),
)
