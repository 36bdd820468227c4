"""Questions about the order of the queue. Fairness is counted in claims and tokens, not in seconds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy import text

from app.queue.message import Priority
from app.store.rows import ResponseRow
from tests.bench.fair.rig import PATIENCE, SLOTS, Rig
from tests.support.slot_worker import late
from tests.support.waiting import until
from tests.support.waiting_rows import waiting, weigh

TENANTS = (1, 10, 100)
QUEUED = 50_000
FLUSHED = 10_000
FLUSHES = 5
KEYS = 10
TURN_SECONDS = 0.2
TOKENS = {"a": 400, "b": 50}
"""What each response takes; all are estimated at 100."""


async def passing(rig: Rig) -> None:
    """A project's single request behind what others have queued."""
    for tenants in TENANTS:
        await rig.empty()
        queued = rig.count(QUEUED, 8 * max(tenants, SLOTS))
        for number in range(tenants):
            await waiting(rig.db, f"a{number}", queued // tenants)
        async with rig.worker() as worker:
            await rig.claims(worker, max(4 * SLOTS, 2 * tenants))
            worker.turn.clear()
            await until(lambda: worker.is_full, what="the slots are full")
            begun = len(worker.claimed)
            (single,) = await waiting(rig.db, "b")
            worker.turn.set()
            await until(lambda single=single: single in _ids(worker.claimed), timeout=PATIENCE, what="its claim")
            passed = _ids(worker.claimed[begun:]).index(single)
        of = f"{queued:,} queued by {tenants} others, {SLOTS} slots"
        wanted = f"at most {2 * SLOTS}: one turn of the slots, after what was sent ahead of them"
        rig.found("claims before a single request", of, str(passed), wanted, met=passed <= 2 * SLOTS)


async def weights(rig: Rig) -> None:
    """Two projects with different weights, and estimates that are wrong in different ways."""
    await weigh(rig.db, "a", 3.0)
    for project in TOKENS:
        await waiting(rig.db, project, rig.count(4_000, 800))
    taken = await _claimed(rig, rig.count(3_000, 600), TOKENS)
    of = f"{len(taken):,} responses, estimates wrong by 4 and by 1/2"
    ratio = _ratio(taken)
    rig.found("tokens of weight 3 / tokens of weight 1", of, f"{ratio:.2f}", "2.7 to 3.3", met=2.7 <= ratio <= 3.3)


async def split(rig: Rig) -> None:
    """Two equal projects; one of them spreads its responses over many keys."""
    shares = {}
    for keys in (1, KEYS):
        await rig.empty()
        for project in TOKENS:
            await waiting(rig.db, project, rig.count(4_000, 800))
        async with rig.db.begin() as connection:
            spread = f"UPDATE responses SET key_id = 'key_' || abs(hashtext(id)) % {keys} WHERE project = 'a'"
            await connection.execute(text(spread))
        shares[keys] = _ratio(await _claimed(rig, rig.count(2_000, 600), TOKENS))
    found = f"{shares[1]:.2f} with one key, {shares[KEYS]:.2f} with {KEYS}"
    met = abs(shares[KEYS] / shares[1] - 1) <= 0.05
    rig.found("tokens of a project / tokens of another", "equal weights", found, "the same (±5 %)", met=met)


async def classes(rig: Rig) -> None:
    """All classes of one project, each with more than enough queued."""
    for priority in (Priority.FOREGROUND, Priority.BACKGROUND, Priority.FLEX):
        await waiting(rig.db, "a", rig.count(4_000, 800), priority=priority)
    taken = await _claimed(rig, rig.count(3_000, 600), {})
    flex = sum(row.priority == Priority.FLEX for row in taken) / len(taken)
    of = "beside a full default, foreground and background"
    rig.found("share of flex", of, f"{flex:.1%}", "at least 2 %", met=flex >= 0.02)


async def alone(rig: Rig) -> None:
    """One project, beside what its slots can do."""
    rates = []
    for _ in range(3):
        await rig.empty()
        rates.append(await _rate(rig, rig.count(1_000, 320)))
    best, most = max(rates), SLOTS / TURN_SECONDS
    of = f"{SLOTS} slots, turns of {TURN_SECONDS} s: {best:.1f}/s of {most:g}/s"
    rig.found("throughput of a project alone", of, f"{best / most:.1%}", "at least 98 %", met=best / most >= 0.98)


async def flushes(rig: Rig) -> None:
    """Redis loses everything, again and again."""
    ids = await waiting(rig.db, "a", rig.count(FLUSHED))
    async with rig.maintenance(), rig.worker() as worker:
        for number in range(FLUSHES):
            await rig.claims(worker, (number + 1) * len(ids) // (FLUSHES + 1))
            await worker.redis.flushall()
        await rig.claims(worker, len(ids))
    places = {response_id: place for place, response_id in enumerate(ids)}
    moved = late([places[row.id] for row in worker.claimed], 2 * SLOTS)
    once = sorted(_ids(worker.claimed)) == sorted(ids)
    of = f"{len(ids):,} queued, Redis flushed {FLUSHES} times"
    found = f"{len(worker.claimed):,}, {moved} after their turn"
    most = 2 * SLOTS * FLUSHES
    rig.found(
        "responses that ran", of, found, f"all, once each, {most} after their turn at most", met=once and moved <= most
    )


async def _claimed(rig: Rig, count: int, tokens: Mapping[str, int]) -> Sequence[ResponseRow]:
    async with rig.worker() as worker:
        worker.tokens = dict(tokens)
        await rig.claims(worker, count)
        return worker.claimed[:count]


async def _rate(rig: Rig, count: int) -> float:
    await waiting(rig.db, "a", count)
    async with rig.worker() as worker:
        worker.seconds = TURN_SECONDS
        begun = time.monotonic()
        await rig.claims(worker, count)
        return count / (time.monotonic() - begun)


def _ids(rows: Sequence[ResponseRow]) -> list[str]:
    return [row.id for row in rows]


def _ratio(taken: Sequence[ResponseRow]) -> float:
    counts = Counter(row.project for row in taken)
    return counts["a"] * TOKENS["a"] / (counts["b"] * TOKENS["b"])
