"""Measures how long streams pause when their worker goes and others are ready, one worker at a time."""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random

import httpx
from sqlalchemy import text

from tests.faults.fleet import Fleet, running
from tests.faults.plan import Plan
from tests.faults.polling import with_pause
from tests.faults.streams import Streams
from tests.support.waiting import until

STREAMS = 12
NUMBERS = 3000
SECONDS = 60.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM)

Say = Callable[[str], None]


async def measure(plan: Plan, rounds: int, say: Say = lambda _: None) -> dict[str, list[float]]:
    """Signal -> seconds from the signal until each stream of the worker had its next event.

    The plan should give workers no grace, so that they hand over everything at a SIGTERM.
    """
    found: dict[str, list[float]] = defaultdict(list)
    async with (
        running(plan) as fleet,
        httpx.AsyncClient(timeout=10, verify=False) as http,
        Streams(http, fleet.urls, Random(plan.seed), STREAMS, NUMBERS) as streams,
    ):
        await until(with_pause(lambda: _started_long_ago(fleet)), SECONDS, "Postgres started more than 11 s ago")
        for number in range(rounds):
            await streams.begin(f"handover {number}")
            sent = SIGNALS[number % len(SIGNALS)]
            waits = await _strike(fleet, streams, sent)
            found[sent.name] += waits
            say(f"{sent.name}: {len(waits)} streams continued within {max(waits):.2f} s")
            await streams.cancel()  # the next round starts new ones, so that every ready worker has a share
            await fleet.wait_until_whole(SECONDS, "all workers are back")
    return found


async def _started_long_ago(fleet: Fleet) -> bool:
    """Whether Postgres has run for 11 s: before, no absent worker counts as dead (app.store.queue.workers)."""
    statement = text("SELECT pg_postmaster_start_time() < now() - interval '11 seconds'")
    async with fleet.db.autocommit() as connection:
        return bool((await connection.execute(statement)).scalar_one())


async def _strike(fleet: Fleet, streams: Streams, number: signal.Signals) -> list[float]:
    """Signals the busiest worker; returns how many seconds each of its streams waited for another worker's event."""
    member, owned = await fleet.busiest() or (None, {})
    assert member is not None, "no worker is at work"
    struck = time.time()
    member.signal(number)
    resumed = await until(with_pause(lambda: _taken(fleet, owned)), SECONDS, "every response has another owner")
    waits = []
    for response_id, first in resumed.items():
        seen = streams.seen[response_id]
        await until(lambda s=seen, f=first: len(s.arrivals) > f, SECONDS, "its stream continues")
        waits.append(seen.arrivals[first] - struck)
    return waits


async def _taken(fleet: Fleet, owned: dict[str, int]) -> dict[str, int] | None:
    """Response id -> first event of a later attempt; None until all have one."""
    statement = text(
        "SELECT c.response_id, min(c.first) AS first FROM chunks c JOIN unnest(CAST(:ids AS text[]), CAST(:attempts AS"
        " int[])) AS o(id, attempt) ON o.id = c.response_id AND c.attempt > o.attempt GROUP BY 1"
    )
    values = {"ids": list(owned), "attempts": list(owned.values())}
    async with fleet.db.autocommit() as connection:
        found = {row.response_id: row.first for row in await connection.execute(statement, values)}
    return found if len(found) == len(owned) else None
