"""How soon clients learn of the end of a response that each of them waits for (`GET /v1/responses/{id}?wait=`).

The clients are connections of one process that does nothing else, and that goes before all others where it may: theirs
are machines of their own. All of them wait before the first response begins. Responses of different lengths end as
those of real work do; those of one length end in waves of all slots, which is the worst that they can do.

A notice ends with the last byte of the answer. It is counted from two moments:

* from the commit that ends the response: by the time that Postgres notes when it writes the commit's record, before
  the disk has it (`track_commit_timestamp`). Nobody may be told earlier.
* from `finished_at`, which the worker sets once it has the engine's last token. The worker's clock for it is that of
  Postgres at the response's claim, and what has passed since the claim's rows were read: too early by the time between
  the two, 8 ms in the median. So what a user waits from the last token is a little less.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
from sqlalchemy import text

from app.streaming.pubsub import CHANNEL
from tests.bench.contenders.base import CannotStart
from tests.bench.contenders.longhaul import Longhaul
from tests.bench.contenders.models import NAME as MODEL
from tests.bench.load import Load, Mode
from tests.bench.numbers import quantiles
from tests.bench.processes import Role
from tests.support.waiting import until

PAUSES = "/v1/operator/pauses"
WAIT_SECONDS = 300
"""As long as a client may wait."""
_ENDS = text(
    """
    SELECT id, CAST(extract(epoch FROM pg_xact_commit_timestamp(xmin)) AS float8) AS committed,
        CAST(extract(epoch FROM finished_at) AS float8) AS finished
    FROM responses WHERE id = ANY(:ids)
    """
)


@dataclass(frozen=True, slots=True)
class _Notices:
    """Of one load: quantiles in milliseconds."""

    from_commit: dict[str, float]
    from_finish: dict[str, float]
    ends_per_second: float
    cores: float
    """Of the API."""


async def measure(
    client: httpx.AsyncClient, longhaul: Longhaul, waiters: int, prompt: str, body: Mapping[str, Any]
) -> dict[str, Any]:
    """Of so many responses of up to twice the `max_output_tokens` of `body`, and of as many that all have that many."""
    random, mean = Random(1), body["max_output_tokens"]
    sent = {"model": MODEL, "input": prompt, "background": True, **body}
    spread = await _measure(client, longhaul, sent, [random.randint(1, 2 * mean) for _ in range(waiters)])
    waves = await _measure(client, longhaul, sent, [mean] * waiters)
    return {
        "waiters": waiters,
        "ends a second": f"{spread.ends_per_second:.0f}",
        "told after the commit (median)": f"{spread.from_commit['p50']:.1f} ms",
        "p95": f"{spread.from_commit['p95']:.1f} ms",
        "p95 after `finished_at`": f"{spread.from_finish['p95']:.1f} ms",
        "cores of the API": f"{spread.cores:.2f}",
        "p95 in waves": f"{waves.from_commit['p95']:.1f} ms",
        "after `finished_at` in waves": f"{waves.from_finish['p95']:.1f} ms",
    }


async def _measure(
    client: httpx.AsyncClient, longhaul: Longhaul, body: Mapping[str, Any], lengths: Sequence[int]
) -> _Notices:
    # Nothing ends before all of them wait. A worker that is held still would be taken for one that leaves its work.
    (await client.post(PAUSES, json={"model": MODEL})).raise_for_status()
    ids = [
        (await client.post("/v1/responses", json={**body, "max_output_tokens": each})).raise_for_status().json()["id"]
        for each in lengths
    ]
    paths = [f"/v1/responses/{each}?wait={WAIT_SECONDS}" for each in ids]
    load = Load("", Mode.WAIT, 1, len(ids), paths=paths, patience=2 * WAIT_SECONDS)
    async with longhaul.client(load) as go:
        await until(lambda: _all_wait(longhaul, len(ids)), what="all clients wait")
        cpu, begun = longhaul.cpu()[Role.API], time.perf_counter()
        (await client.delete(PAUSES, params={"model": MODEL})).raise_for_status()
        figures = await go()
        seconds, used = time.perf_counter() - begun, longhaul.cpu()[Role.API] - cpu
    if figures.errors:
        raise CannotStart(f"{figures.errors} clients that wait got errors: {figures.complaints[0]}")
    ends = {row.id: row for row in await longhaul.db.execute(_ENDS, {"ids": ids})}
    told = dict(zip(ids, figures.answered, strict=True))
    return _Notices(
        from_commit=quantiles([at - ends[each].committed for each, at in told.items()]),
        from_finish=quantiles([at - ends[each].finished for each, at in told.items()]),
        ends_per_second=len(ids) / seconds,
        cores=used / seconds,
    )


async def _all_wait(longhaul: Longhaul, waiters: int) -> bool:
    """Whether the API has subscribed to the ends of so many responses."""
    redis = longhaul.redis
    try:
        return len(await redis.pubsub_channels(f"{CHANNEL}resp_*")) >= waiters
    finally:
        await redis.aclose()
