"""Attacks of one tenant on another: forged keys, ids of others, limits that are reached, long queues."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import text

from app.access.secret import new_secret
from app.responses.ids import new_conversation_id, new_response_id
from config.settings import Settings
from tests.attacks.attack import Attack
from tests.attacks.memory import LARGE, Demand
from tests.attacks.projects import MIB, UNTRUSTED, with_limits
from tests.attacks.target import ANSWER_SECONDS, Json, Target, bearer
from tests.support.tenants import tenant
from tests.support.waiting import until

TURN_SECONDS = 20.0
"""More than a response of a long queue takes (15 s): whoever comes waits until one of them leaves its slot."""
_LARGE = "i" * 7_000_000
_PART = b"a" * 65536
_ENDLESS: Json = {"input": "/hang 1", "max_output_tokens": None, "background": True}
_PASSED_BY = text(
    """
    SELECT count(*) FROM responses a JOIN responses b ON b.id = :id
    WHERE a.project <> b.project AND a.created_at < b.created_at AND a.started_at BETWEEN b.created_at AND b.started_at
    """
)


# -- keys ------------------------------------------------------------------------------------------------------------


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


async def malformed_keys(target: Target, count: int) -> None:
    """Headers that hold no key, or a key with one character wrong."""
    own = target.projects.attacker.key.secret
    values = (b"", b"Bearer", b"Basic eDp5", own.encode(), b"Bearer \xff" + own.encode()[1:])
    values += (b"Bearer " + own[:-1].encode(), b"Bearer " + own.encode() + b"0", b"Bearer " + b"k" * 60_000)
    values += (b"Bearer " + own.swapcase().encode(), b"Bearer sk-lh-" + b"A" * 49, b"Bearer " + own.encode() + b" x")
    await target.repeat(
        count * len(values),
        lambda number: target.send("GET", "/v1/models", headers={b"authorization": values[number % len(values)]}),
    )
    stranger = target.caller(None)
    for headers in ([f"Authorization: Bearer {own}"] * 2, ["Authorization: Bearer "], []):
        await stranger.raw(stranger.head("GET /v1/models HTTP/1.1", *headers) + b"\r\n")


async def ended_keys(target: Target, count: int) -> None:
    """Keys that worked until just now: revoked, rotated, and those of a project that was archived."""
    async with target.projects.administration() as admin:
        made = [await tenant(admin, name) for name in ("revoked", "rotated", "archived")]
        revoked, rotated, archived = made
        for each in made:
            async with target.caller(each.key.secret, counted=False) as caller:
                await caller.send("GET", "/v1/models")
        await admin.revoke_key(revoked.key.row.id)
        await admin.rotate_key(rotated.key.row.id, 0)
        await admin.archive_project(archived.project)
    for each in made:
        async with target.caller(each.key.secret, counted=False) as caller:

            async def is_refused(caller: Target = caller) -> bool:
                await caller.send("GET", "/v1/models")
                return bool(caller.seen["401"])

            await until(is_refused)
    await target.repeat(
        count, lambda number: target.send("GET", "/v1/models", headers=made[number % len(made)].headers)
    )


async def bodies_of_strangers(target: Target, count: int) -> None:
    """Connections without a key that announce 8 MB and send half of them."""
    stranger = target.caller(None)
    request = stranger.head("POST /v1/responses HTTP/1.1", "Content-Length: 8000000") + b"\r\n" + _PART * 61
    await stranger.repeat(count, lambda _: stranger.raw(request), parallel=count)


# -- what belongs to others ------------------------------------------------------------------------------------------


def _ways(response: str, conversation: str, item: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Requests that name what belongs to another project."""
    named: list[Json] = [
        {"previous_response_id": response},
        {"conversation": conversation},
        {"input": [{"type": "item_reference", "id": item}]},
    ]
    one, items = f"/v1/responses/{response}", f"/v1/conversations/{conversation}/items"
    return [
        ("GET", one, {}),
        ("GET", f"{one}?stream=true&starting_after=1", {"headers": {"last-event-id": "1"}}),
        ("GET", f"{one}/input_items?limit=100", {}),
        ("POST", f"{one}/cancel", {}),
        ("DELETE", one, {}),
        ("GET", items, {}),
        ("DELETE", f"/v1/conversations/{conversation}", {}),
        *(("POST", "/v1/responses", {"json": fields}) for fields in named),
    ]


async def ids_of_others(target: Target, count: int) -> None:
    """Everything large that the bystander has, by all its names. It must cost no more than what is not there."""
    other = target.projects.bystander
    async with target.caller(other.key.secret, counted=False) as owner:
        async with owner.websocket() as opened:
            response = (await owner.turn(opened, generate=False, input="i" * 3_000_000))["response"]["id"]
        item = (await owner.send("GET", f"/v1/responses/{response}/input_items"))["data"][0]["id"]
        conversation = (
            await owner.send("POST", "/v1/conversations", json={"items": [{"role": "user", "content": "x"}]})
        )["id"]
        theirs, nobodys = (response, conversation, item), (new_response_id(), new_conversation_id(), "msg_nobody")
        for mine, none in zip(_ways(*theirs), _ways(*nobodys), strict=True):
            answers = [await _answer(target, each, ids) for each, ids in ((mine, theirs), (none, nobodys))]
            if answers[0] != answers[1]:
                target.seen[f"told apart: {mine[0]} {mine[1]}"] += 1
        ways = _ways(*theirs)
        await target.repeat(count, lambda number: _send(target, ways[number % len(ways)]))
        await target.send("GET", "/v1/models", headers={"openai-project": other.project})
        if not await owner.send("GET", f"/v1/responses/{response}"):
            target.seen["changed"] += 1
        for path in (f"/v1/responses/{response}", f"/v1/conversations/{conversation}"):
            await owner.send("DELETE", path)
        target.seen.update({f"the owner got {status}": 1 for status in owner.seen if status != "200"})


async def _send(target: Target, way: tuple[str, str, dict[str, Any]]) -> Json:
    method, path, options = way
    if "json" in options:
        options = {"json": {"model": target.model, "input": "x", "background": True, **options["json"]}}
    return await target.send(method, path, **options)


async def _answer(target: Target, way: tuple[str, str, dict[str, Any]], ids: tuple[str, ...]) -> str:
    """The answer's body, whichever ids it names."""
    answer = json.dumps(await _send(target, way))
    for each in ids:
        answer = answer.replace(each, "ID")
    return answer


# -- limits ----------------------------------------------------------------------------------------------------------


async def refusal_storm(target: Target, count: int) -> None:
    """A tenant that is over its limits and repeats without waiting."""
    await target.repeat(count, lambda _: target.create(background=True), parallel=64)


async def refused_turns(target: Target, count: int) -> None:
    """The same over one WebSocket."""
    async with target.websocket() as opened:
        for _ in range(count):
            await target.turn(opened)


async def large_reservations(target: Target, count: int) -> None:
    """Requests of 7 MB, whose inserts hold the limits of their project, among small ones of the same project."""

    async def one(number: int) -> None:
        await target.create(input=_LARGE if number % 5 == 0 else "x", background=True)

    await target.repeat(count, one, parallel=32)


async def endless_responses(target: Target, count: int) -> None:
    """As many responses that never end as the limits allow: other projects need free slots."""
    created = []

    async def start(_: int) -> None:
        created.append(await target.create(**_ENDLESS))

    await target.repeat(count, start)
    await target.projects.cancel(created)


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


# -- queues ----------------------------------------------------------------------------------------------------------


async def long_queue(target: Target, count: int) -> None:
    """A tenant queues `count` responses of some seconds each. Another one's must start within one turn of the slots."""
    created: list[Json] = []

    async def start(_: int) -> None:
        created.append(await target.create(background=True, input="/repeat 500 word ", max_output_tokens=None))

    try:
        await target.repeat(count, start, parallel=64)
        await _one_of_another(target)
    finally:
        await target.projects.cancel(created)


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


ATTACKS = (
    Attack("guessed-keys", "keys: guesses", guessed_keys, 5000, 50, {"401"}, demand=Demand(connections=64)),
    Attack("malformed-keys", "keys: none", malformed_keys, 300, 2, {"401"}),
    Attack("ended-keys", "keys: revoked, expired, archived", ended_keys, 3000, 30, {"401"}),
    Attack(
        "bodies-of-strangers",
        "keys: none, with a body",
        bodies_of_strangers,
        200,
        4,
        {"401"},
        demand=Demand(connections=200),
    ),
    Attack(
        "ids-of-others",
        "another project's things",
        ids_of_others,
        2000,
        20,
        {"400 previous_response_id", "401", "404"},
    ),
    Attack(
        "refusal-storm",
        "limits: requests that do not wait",
        refusal_storm,
        5000,
        200,
        {"200", "429"},
        demand=Demand(connections=64, readers=64),
        limits=UNTRUSTED,
    ),
    Attack(
        "refused-turns",
        "limits: over a WebSocket",
        refused_turns,
        1000,
        20,
        {"200", "429"},
        limits={**UNTRUSTED, "requests_per_minute": 6},
    ),
    Attack(
        "large-reservations",
        "limits: their lock",
        large_reservations,
        200,
        10,
        {"200"},
        demand=LARGE,
        limits={"queued_bytes": 2**40, "unfinished_responses": 10**6},
    ),
    Attack("endless-responses", "limits: all slots", endless_responses, 500, 80, {"200", "429"}, limits=UNTRUSTED),
    Attack(
        "many-projects",
        "many tenants at once",
        many_projects,
        1000,
        20,
        {"200"},
        demand=Demand(connections=200, readers=200),
        seconds=180,
    ),
    Attack(
        "long-queue",
        "a queue of ten thousand",
        long_queue,
        10_000,
        50,
        {"200", "in turn"},
        demand=Demand(connections=64, readers=64),
        latency=TURN_SECONDS,
        seconds=180,
    ),
    Attack(
        "long-queue-within-limits",
        "a queue as long as limits allow",
        long_queue,
        6000,
        50,
        {"200", "in turn"},
        full_only={"429"},
        demand=Demand(connections=64, readers=64),
        limits={"queued_responses": 2000, "queued_bytes": 64 * MIB},
        latency=TURN_SECONDS,
        seconds=180,
    ),
)
