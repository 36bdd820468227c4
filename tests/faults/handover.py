"""How long streams stand still when their worker goes and others are ready: measured in peace, one at a time."""

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
from tests.faults.seldom import seldom
from tests.faults.streams import Streams
from tests.support.waiting import until

STREAMS = 12
NUMBERS = 3000
SECONDS = 60.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM)

Say = Callable[[str], None]


async def measure(plan: Plan, rounds: int, say: Say = lambda _: None) -> dict[str, list[float]]:
    """Signal -> seconds that the readers of each stream of the worker waited from it to the next event.

    Workers get no grace at a SIGTERM: all that they run is handed over.
    """
    found: dict[str, list[float]] = defaultdict(list)
    async with (
        running(plan) as fleet,
        httpx.AsyncClient(timeout=10, verify=False) as http,
        Streams(http, fleet.urls, Random(plan.seed), STREAMS, NUMBERS) as streams,
    ):
        await until(seldom(lambda: _is_remembered(fleet)), SECONDS, "a Postgres that was not just started")
        for number in range(rounds):
            await streams.begin(f"handover {number}")
            how = SIGNALS[number % len(SIGNALS)]
            waits = await _strike(fleet, streams, how)
            found[how.name] += waits
            say(f"{how.name}: {len(waits)} streams went on within {max(waits):.2f} s")
            await streams.cancel()  # and begins afresh, so that every ready worker has a share
            await fleet.whole(SECONDS, "all workers are back")
    return found


async def _is_remembered(fleet: Fleet) -> bool:
    """Right after a start of Postgres nobody is taken for dead who is not present yet (app.store.workers)."""
    statement = text("SELECT pg_postmaster_start_time() < now() - interval '11 seconds'")
    async with fleet.db.autocommit() as connection:
        return bool((await connection.execute(statement)).scalar_one())


async def _strike(fleet: Fleet, streams: Streams, how: signal.Signals) -> list[float]:
    """Signals the worker that has the most, and waits until each of its streams has an event of another worker."""
    member, owned = await fleet.busiest() or (None, {})
    assert member is not None, "no worker is at work"
    struck = time.time()
    member.signal(how)
    resumed = await until(seldom(lambda: _taken(fleet, owned)), SECONDS, "every response has another owner")
    waits = []
    for response_id, first in resumed.items():
        seen = streams.seen[response_id]
        await until(lambda s=seen, f=first: len(s.arrivals) > f, SECONDS, "its stream goes on")
        waits.append(seen.arrivals[first] - struck)
    return waits


async def _taken(fleet: Fleet, owned: dict[str, int]) -> dict[str, int] | None:
    """The first event that another attempt wrote, for each; None until all have one."""
    statement = text(
        "SELECT c.response_id, min(c.first) AS first FROM chunks c JOIN unnest(CAST(:ids AS text[]), CAST(:attempts AS"
        " int[])) AS o(id, attempt) ON o.id = c.response_id AND c.attempt > o.attempt GROUP BY 1"
    )
    values = {"ids": list(owned), "attempts": list(owned.values())}
    async with fleet.db.autocommit() as connection:
        found = {row.response_id: row.first for row in await connection.execute(statement, values)}
    return found if len(found) == len(owned) else None
