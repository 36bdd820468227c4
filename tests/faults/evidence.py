"""Everything that the checker compares, collected when all responses are final: rows, logs, replays, audits, Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis.asyncio
from sqlalchemy import text

from app.protocol.events.chunk import Chunk
from app.protocol.limits import LimitState
from app.queue.celery_app import make_celery
from app.store.database import Database
from app.store.responses import logs, lookup
from app.store.rows import ResponseRow
from app.store.tables import UNFINISHED_BATCHES
from app.store.tenants import limits
from app.streaming.pubsub import CHANNEL
from config.settings import load_settings
from tests.faults import accounts, audit, batches, tenants
from tests.faults.accounts import Entry, Ledger
from tests.faults.audit import Transition, Write
from tests.faults.batches import Batch
from tests.faults.fleet import Fleet
from tests.faults.member import Member, Role
from tests.faults.polling import with_pause
from tests.faults.records import BatchStory, Story
from tests.faults.tenants import DAY
from tests.support.stored import STORED
from tests.support.waiting import until

AT_ONCE = 16
DRAIN_SECONDS = 30.0
POOLS_SECONDS = 10.0
REPLAY_SECONDS = 10.0


@dataclass(slots=True)
class Evidence:
    """Everything the checker looks at."""

    stories: list[Story]
    rows: dict[str, ResponseRow] = field(default_factory=dict)
    logs: dict[str, tuple[Chunk, ...]] = field(default_factory=dict)
    replays: dict[str, bytes | int] = field(default_factory=dict)
    """Of streamed background responses: the bytes that GET with `stream` returns, a status code other than 200, or 0
    if the stream did not end."""
    transitions: dict[str, list[Transition]] = field(default_factory=dict)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    batch_stories: list[BatchStory] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Responses whose rows were damaged on purpose: id -> key of its story, or a line's `custom_id`. They have no log
    and no replay here."""
    crashes: list[float] = field(default_factory=list)
    """When Postgres crashed (monotonic seconds)."""
    api_stops: list[float] = field(default_factory=list)
    """When an API process got SIGTERM (monotonic seconds)."""
    accounts: list[Entry] = field(default_factory=list)
    """Of a plan with keys: what Postgres recorded about waiting, reservations and usage."""
    ledger: Ledger | None = None
    """What the admin API says that projects used; None: the plan has no keys."""
    limits: list[LimitState] = field(default_factory=list)
    """The limits of all projects, and what is taken of them when everything has ended."""
    conversations: dict[str, set[str]] = field(default_factory=dict)
    """The ids of the items of each conversation."""
    stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Project -> the bytes that it stores, as they are counted, and as its rows have them."""
    visible: list[str] = field(default_factory=list)
    """Responses, batches and files that are not a 404 to another project's key: the id, and what was answered."""
    is_one_day: bool = True
    """Whether the run had no midnight (UTC)."""
    left_in_redis: list[str] = field(default_factory=list)
    """Messages and channels that remain in Redis."""
    unknown_workers: list[str] = field(default_factory=list)
    """Rows of `workers` without a live process."""
    busy: list[str] = field(default_factory=list)
    """Workers whose pools still hold jobs."""
    doorbell_failures: list[str] = field(default_factory=list)
    """Workers that do not publish, and API processes that do not receive."""
    wrong_gauges: list[str] = field(default_factory=list)
    """Metrics that are not what the rows say."""
    unsettled: list[str] = field(default_factory=list)
    """Responses and batches that did not become final."""
    error_lines: list[str] = field(default_factory=list)
    """Log lines at ERROR or above, each after the name of its process."""
    left_behind: list[str] = field(default_factory=list)
    """Processes that outlived the fleet."""


async def settled(fleet: Fleet, seconds: float) -> list[str]:
    """Waits until every response and batch is final; returns those that are not after `seconds`."""
    unfinished = text(
        "SELECT id, status FROM responses WHERE status IN ('queued', 'in_progress')"
        f" UNION ALL SELECT id, status FROM batches WHERE status IN ({UNFINISHED_BATCHES})"
    )

    async def left() -> list[str]:
        async with fleet.db.autocommit() as connection:
            return [f"{row.id} is {row.status}" for row in await connection.execute(unfinished)]

    async def none_left() -> bool:
        return not await left()

    try:
        await until(with_pause(none_left), seconds)
    except AssertionError:
        return await left()
    return []


async def gather(fleet: Fleet, evidence: Evidence) -> None:
    """Fills in the evidence. Call it when all responses are final, all readers are gone and all processes run."""
    evidence.transitions = await audit.transitions(fleet.db)
    evidence.writes = await audit.writes(fleet.db)
    evidence.rows = await _rows(fleet.db)
    readable = [row for row in evidence.rows.values() if row.id not in evidence.damaged]
    for response_id in (row.id for row in readable):
        evidence.logs[response_id] = (await logs.read(fleet.db, response_id)).chunks
    evidence.api_stops = [at for member in fleet.of(Role.API) for at in member.stopped_at]
    evidence.replays = await _replays(fleet, readable)
    evidence.batches = await batches.gather(fleet)
    if fleet.tenants is not None:
        evidence.accounts = await accounts.entries(fleet.db)
        evidence.ledger = await tenants.ledger(fleet.urls[0], fleet.tenants, fleet.began)
        evidence.limits = [
            state for each in fleet.tenants.projects for state in await limits.states(fleet.db, each.project)
        ]
        evidence.conversations = await _conversations(fleet.db)
        evidence.stored = await _stored(fleet.db)
        owners = {f"responses/{row.id}": row.project for row in evidence.rows.values()}
        owners |= {path: each.row.project for each in evidence.batches.values() for path in each.paths}
        evidence.visible = await _visible(fleet, owners)
        evidence.is_one_day = int(fleet.began // DAY) == int(time.time() // DAY)
    evidence.left_in_redis = await _left_in_redis(fleet)
    evidence.busy = await _busy(fleet)
    evidence.unknown_workers = await _unknown_workers(fleet, fleet.of(Role.WORKER))


async def _rows(db: Database) -> dict[str, ResponseRow]:
    async with db.autocommit() as connection:
        ids = list((await connection.execute(text("SELECT id FROM responses"))).scalars())
    found = [await lookup.find(db, response_id) for response_id in ids]
    return {row.id: row for row in found if row is not None}


async def _replays(fleet: Fleet, rows: Iterable[ResponseRow]) -> dict[str, bytes | int]:
    found: dict[str, bytes | int] = {}
    slots = asyncio.Semaphore(AT_ONCE)

    async def replay(client: httpx.AsyncClient, number: int, row: ResponseRow) -> None:
        url = f"{fleet.urls[number % len(fleet.urls)]}/v1/responses/{row.id}"
        try:
            async with slots, asyncio.timeout(REPLAY_SECONDS):
                answer = await client.get(url, params={"stream": "true"}, headers=fleet.headers_of(row.project))
            found[row.id] = answer.content if answer.status_code == httpx.codes.OK else answer.status_code
        except TimeoutError:
            found[row.id] = 0

    async with httpx.AsyncClient(timeout=30, verify=False) as client, asyncio.TaskGroup() as group:
        for number, row in enumerate(rows):
            if row.background and row.stream:
                group.create_task(replay(client, number, row))
    return found


async def _conversations(db: Database) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    async with db.autocommit() as connection:
        for row in await connection.execute(text("SELECT conversation_id, id FROM conversation_items")):
            found.setdefault(row.conversation_id, set()).add(row.id)
    return found


async def _stored(db: Database) -> dict[str, tuple[int, int]]:
    async with db.autocommit() as connection:
        return {row.project: (row.counted, row.occupied) for row in await connection.execute(text(STORED))}


async def _visible(fleet: Fleet, owners: Mapping[str, str]) -> list[str]:
    """What of these things (path -> project) another project's key can see."""
    assert fleet.tenants is not None
    found, slots = [], asyncio.Semaphore(AT_ONCE)

    async def look(client: httpx.AsyncClient, number: int, path: str, headers: Mapping[str, str]) -> None:
        async with slots:
            answer = await client.get(f"{fleet.urls[number % len(fleet.urls)]}/v1/{path}", headers=headers)
        if answer.status_code != httpx.codes.NOT_FOUND:
            found.append(f"{path.partition('/')[2]} is a {answer.status_code} to another project")

    async with httpx.AsyncClient(timeout=30, verify=False) as client, asyncio.TaskGroup() as group:
        for number, (path, owner) in enumerate(owners.items()):
            for other in fleet.tenants.projects:
                if other.project != owner:
                    group.create_task(look(client, number, path, other.headers))
    return found


async def _left_in_redis(fleet: Fleet) -> list[str]:
    """Messages and channels that remain in Redis after DRAIN_SECONDS.

    Unacknowledged messages do not count. All responses are final, so such a message is a duplicate: Celery delivers it
    again after its visibility timeout, and a worker drops it. What a dead worker has in its lists ends with them.
    """
    async with fleet.valkey as client:

        async def empty() -> bool:
            return not await _contents(fleet.db, client)

        try:
            await until(empty, DRAIN_SECONDS)
        except AssertionError:
            return await _contents(fleet.db, client)
    return []


async def _contents(db: Database, client: redis.asyncio.Redis) -> list[str]:
    found = []
    async with db.autocommit() as connection:
        nodes = set((await connection.execute(text("SELECT node FROM workers"))).scalars())
    async for key in client.scan_iter(_type="list"):
        node = key.decode().partition("#")[0].partition("@")[2]
        if not node or node in nodes or await client.ttl(key) == -1:
            found.append(f"{await client.llen(key)} messages in {key!r}")
    channels = [name.decode() for name in await client.pubsub_channels(f"{CHANNEL}*")]
    of_processes = f"{CHANNEL}doorbell."  # there for as long as a process runs
    left = [name for name in channels if name != CHANNEL and not name.startswith(of_processes)]
    return found + [f"channel {name}" for name in left]


async def pools(fleet: Fleet) -> dict[int, int]:
    """Each worker's pid -> how many jobs its pool has. Without the workers that do not answer within POOLS_SECONDS."""
    celery = make_celery(load_settings(REDIS_URL=fleet.services.redis_url))
    inspect = celery.control.inspect(timeout=POOLS_SECONDS, limit=len(fleet.of(Role.WORKER)))
    stats: dict[str, Any] = await asyncio.to_thread(lambda: inspect.stats() or {})
    return {each["pid"]: each["pool"]["active"] for each in stats.values()}


async def _busy(fleet: Fleet) -> list[str]:
    """Workers whose pools hold jobs after DRAIN_SECONDS, although no response is in progress, or do not answer."""
    workers, active = fleet.of(Role.WORKER), dict[int, int]()

    async def idle() -> bool:
        nonlocal active
        active = await pools(fleet)
        return all(active.get(worker.pid or 0) == 0 for worker in workers)

    try:
        await fleet.wait_until_whole(fleet.plan.whole_seconds)  # a worker whose idle engine was killed starts again
        await until(with_pause(idle), DRAIN_SECONDS)
    except AssertionError:
        return [
            f"{worker.name} " + (f"runs {active[worker.pid]}" if worker.pid in active else "does not answer")
            for worker in workers
            if active.get(worker.pid or 0) != 0
        ]
    return []


async def _unknown_workers(fleet: Fleet, workers: list[Member]) -> list[str]:
    known = {member.pid for member in workers}
    async with fleet.db.autocommit() as connection:
        rows = await connection.execute(text("SELECT id, pid FROM workers"))
        return [row.id for row in rows if row.pid not in known]
