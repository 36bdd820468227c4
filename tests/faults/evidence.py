"""Everything that the checker compares, collected when all responses are final: rows, logs, replays, audits, Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
from tests.faults.member import Role
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
    """Streamed background response -> the bytes that GET with `stream` returns, a status code other than 200, or 0
    if the stream did not end."""
    transitions: dict[str, list[Transition]] = field(default_factory=dict)
    writes: dict[str, list[Write]] = field(default_factory=dict)
    batch_stories: list[BatchStory] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)
    crashes: list[float] = field(default_factory=list)
    """When Postgres crashed (monotonic seconds)."""
    api_stops: list[float] = field(default_factory=list)
    """When an API process got SIGTERM (monotonic seconds)."""
    accounts: list[Entry] = field(default_factory=list)
    """For a plan with keys: what Postgres recorded about waiting, reservations and usage."""
    ledger: Ledger | None = None
    """What the admin API says that projects used; None: the plan has no keys."""
    limits: list[LimitState] = field(default_factory=list)
    """The limits of all projects, and what is taken of them when everything has ended."""
    stored: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Project -> the bytes that it stores, as they are counted, and as its rows have them."""
    is_one_day: bool = True
    """Whether the run had no midnight (UTC)."""
    left_in_redis: list[str] = field(default_factory=list)
    """Messages and channels that remain in Redis."""
    unknown_workers: list[str] = field(default_factory=list)
    """Rows of `workers` without a live process."""
    busy: list[str] = field(default_factory=list)
    """Workers whose pools still hold jobs."""
    unsettled: list[str] = field(default_factory=list)
    """Responses and batches that did not become final."""
    error_lines: list[str] = field(default_factory=list)
    """Log lines at ERROR or above, each after the name of its process."""
    left_behind: list[str] = field(default_factory=list)
    """Processes that outlived the fleet."""


async def _left(look: Callable[[], Awaitable[list[str]]], seconds: float) -> list[str]:
    """What `look` finds until it finds nothing, or after `seconds`."""
    found: list[str] = []

    async def nothing() -> bool:
        nonlocal found
        found = await look()
        return not found

    with suppress(AssertionError):
        await until(with_pause(nothing), seconds)
    return found


async def settled(fleet: Fleet, seconds: float) -> list[str]:
    """Waits until every response and batch is final; returns those that are not after `seconds`."""
    unfinished = text(
        "SELECT id, status FROM responses WHERE status IN ('queued', 'in_progress')"
        f" UNION ALL SELECT id, status FROM batches WHERE status IN ({UNFINISHED_BATCHES})"
    )

    async def look() -> list[str]:
        return [f"{row.id} is {row.status}" for row in await fleet.db.execute(unfinished)]

    return await _left(look, seconds)


async def gather(fleet: Fleet, evidence: Evidence) -> None:
    """Fills in the evidence. Call it when all responses are final, all readers are gone and all processes run."""
    evidence.transitions = await audit.transitions(fleet.db)
    evidence.writes = await audit.writes(fleet.db)
    evidence.rows = await _rows(fleet.db)
    for response_id in evidence.rows:
        evidence.logs[response_id] = (await logs.read(fleet.db, response_id)).chunks
    evidence.api_stops = [at for member in fleet.of(Role.API) for at in member.stopped_at]
    evidence.replays = await _replays(fleet, evidence.rows.values())
    evidence.batches = await batches.gather(fleet)
    if fleet.tenants is not None:
        evidence.accounts = await accounts.entries(fleet.db)
        evidence.ledger = await tenants.ledger(fleet.urls[0], fleet.tenants, fleet.began)
        evidence.limits = [
            state for each in fleet.tenants.projects for state in await limits.states(fleet.db, each.project)
        ]
        stored = await fleet.db.execute(text(STORED))
        evidence.stored = {row.project: (row.counted, row.occupied) for row in stored}
        evidence.is_one_day = int(fleet.began // DAY) == int(time.time() // DAY)
    async with fleet.valkey as client:
        evidence.left_in_redis = await _left(partial(_in_redis, fleet.db, client), DRAIN_SECONDS)
    await fleet.wait_until_whole()  # a worker whose idle engine was killed starts again
    evidence.busy = await _left(partial(_busy, fleet), DRAIN_SECONDS)
    pids = {member.pid for member in fleet.of(Role.WORKER)}
    workers = await fleet.db.execute(text("SELECT id, pid FROM workers"))
    evidence.unknown_workers = [row.id for row in workers if row.pid not in pids]


async def _rows(db: Database) -> dict[str, ResponseRow]:
    found = [await lookup.find(db, row.id) for row in await db.execute(text("SELECT id FROM responses"))]
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


async def _in_redis(db: Database, client: redis.asyncio.Redis) -> list[str]:
    """Messages and channels that remain in Redis.

    Unacknowledged messages do not count. All responses are final, so such a message is a duplicate: Celery delivers it
    again after its visibility timeout, and a worker drops it. What a dead worker has in its lists ends with them.
    """
    found = []
    nodes = {row.node for row in await db.execute(text("SELECT node FROM workers"))}
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
    """Workers whose pools hold jobs, although no response is in progress, or do not answer."""
    active = await pools(fleet)
    jobs = {member.name: active.get(member.pid or 0) for member in fleet.of(Role.WORKER)}
    return [f"{name} has {count} jobs" for name, count in jobs.items() if count != 0]
