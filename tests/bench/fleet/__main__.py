"""A process of paper workers: one `Squad` as JSON on its standard input.

It says `ready` when all is claimed, begins at `go`, says what it has counted, and ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import orjson

from app.store.database import Database
from config.settings import load_settings
from tests.bench.fleet.rig import model
from tests.bench.fleet.worker import PaperWorker, Squad, summed

POOL = 2
"""Connections of a worker: one proves that it is there."""


async def _work() -> None:
    loop = asyncio.get_running_loop()

    async def heard() -> bytes:
        return await loop.run_in_executor(None, sys.stdin.buffer.readline)

    squad, settings = Squad(**orjson.loads(await heard())), load_settings()
    workers = [PaperWorker(settings.database_dsn, settings.broker_url, model(), POOL) for _ in squad.ids]
    try:
        await _start(workers, squad, Database(settings.database_dsn, 1))
        _say(b"ready")
        if await heard():
            late = 1 / squad.rate / len(workers)
            await asyncio.gather(*(each.run(squad.rate, squad.tokens, n * late) for n, each in enumerate(workers)))
            _say(orjson.dumps(summed([worker.counts for worker in workers])))
            await heard()  # the connections stay until all is measured
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


async def _start(workers: Sequence[PaperWorker], squad: Squad, claims: Database) -> None:
    """`claims` is closed behind it: the connections that are left are those that are measured."""
    try:
        for worker, ids in zip(workers, squad.ids, strict=True):
            await worker.start(ids, claims)
    finally:
        await claims.close()


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_work())
