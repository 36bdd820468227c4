"""How long streams stand still when their worker goes and others are ready: measured in peace, one at a time."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random

import httpx
from sqlalchemy import text

from app.protocol import frames
from tests.faults.fleet import Fleet, running
from tests.faults.member import Member, Role
from tests.faults.plan import Plan
from tests.faults.questions import counting
from tests.faults.readers import frames_of, resume
from tests.faults.records import Seen
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
    async with running(plan) as fleet, httpx.AsyncClient(timeout=10, verify=False) as http:
        streams = _Streams(http, fleet.urls, Random(plan.seed))
        await until(lambda: _is_remembered(fleet), SECONDS, "a Postgres that was not just started")
        try:
            for number in range(rounds):
                await streams.fill(number)
                how = SIGNALS[number % len(SIGNALS)]
                waits = await _strike(fleet, streams, how)
                found[how.name] += waits
                say(f"{how.name}: {len(waits)} streams went on within {max(waits):.2f} s")
                await until(fleet.is_whole, SECONDS, "all workers are back")
        finally:
            await streams.close()
    return found


async def _is_remembered(fleet: Fleet) -> bool:
    """Right after a start of Postgres nobody is taken for dead who is not present yet (app.store.workers)."""
    statement = text("SELECT pg_postmaster_start_time() < now() - interval '11 seconds'")
    async with fleet.db.autocommit() as connection:
        return bool((await connection.execute(statement)).scalar_one())


class _Streams:
    """Long responses, each with a reader that stays connected."""

    def __init__(self, http: httpx.AsyncClient, urls: list[str], random: Random) -> None:
        self._http = http
        self._urls = urls
        self._random = random
        self._readers: list[asyncio.Task[None]] = []
        self.seen: dict[str, Seen] = {}

    async def fill(self, number: int) -> None:
        """Cancels what ran, and starts as much afresh, so that every ready worker has a share."""
        await self.close()
        for place in range(STREAMS):
            body = counting(NUMBERS).body(f"handover {number} {place}") | {"background": True, "stream": True}
            async with self._http.stream("POST", f"{self._urls[0]}/v1/responses", json=body) as answer:
                assert answer.status_code == httpx.codes.OK, await answer.aread()
                first = await anext(frames_of(answer.aiter_raw()))
            response_id = frames.decode(first)[0]["response"]["id"]
            seen = self.seen[response_id] = Seen()
            reading = resume(self._http, self._urls, response_id, seen, self._random, restless=0)
            self._readers.append(asyncio.create_task(reading))
        await until(lambda: all(len(seen.frames) > 10 for seen in self.seen.values()), SECONDS, "all streams run")

    async def close(self) -> None:
        for response_id in self.seen:
            await self._http.post(f"{self._urls[0]}/v1/responses/{response_id}/cancel")
        await asyncio.gather(*self._readers)
        self._readers, self.seen = [], {}


async def _strike(fleet: Fleet, streams: _Streams, how: signal.Signals) -> list[float]:
    """Signals the worker that has the most, and waits until each of its streams has an event of another worker."""
    member, owned = await _busiest(fleet)
    struck = time.monotonic()
    member.signal(how)
    resumed = await until(lambda: _taken(fleet, owned), SECONDS, "every response has another owner")
    waits = []
    for response_id, first in resumed.items():
        seen = streams.seen[response_id]
        await until(lambda s=seen, f=first: len(s.arrivals) > f, SECONDS, "its stream goes on")
        waits.append(seen.arrivals[first] - struck)
    return waits


async def _busiest(fleet: Fleet) -> tuple[Member, dict[str, int]]:
    """The worker with the most responses, and their attempts."""
    statement = text("SELECT w.pid, r.id, r.attempt FROM responses r JOIN workers w ON w.id = r.worker")
    async with fleet.db.autocommit() as connection:
        owned: dict[int, dict[str, int]] = defaultdict(dict)
        for row in await connection.execute(statement):
            owned[row.pid][row.id] = row.attempt
    pid = max(owned, key=lambda pid: len(owned[pid]))
    return next(member for member in fleet.of(Role.WORKER) if member.pid == pid), owned[pid]


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
