"""A process of paper workers (worker.py), which reads one `Squad` as JSON from its standard input.

It writes `ready` when every response is claimed, begins at `go`, writes its counts, and ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import orjson

from app.store.database import Database
from config.settings import load_settings
from tests.bench.fleet.rig import model
from tests.bench.fleet.worker import POOL, PaperWorker, Squad, summed


async def _work() -> None:
    loop = asyncio.get_running_loop()

    async def read_line() -> bytes:
        return await loop.run_in_executor(None, sys.stdin.buffer.readline)

    squad, settings = Squad(**orjson.loads(await read_line())), load_settings()
    workers = [PaperWorker(settings.database_dsn, settings.broker_url, model(), POOL) for _ in squad.ids]
    try:
        await _start(workers, squad, Database(settings.database_dsn, 1))
        _write_line(b"ready")
        if await read_line():
            late = 1 / squad.rate / len(workers)
            await asyncio.gather(*(each.run(squad.rate, squad.tokens, n * late) for n, each in enumerate(workers)))
            _write_line(orjson.dumps(summed([worker.counts for worker in workers])))
            await read_line()  # the connections stay until all is measured
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


async def _start(workers: Sequence[PaperWorker], squad: Squad, claims: Database) -> None:
    """Starts the workers and closes `claims`, so that only the connections to be measured remain."""
    try:
        for worker, ids in zip(workers, squad.ids, strict=True):
            await worker.start(ids, claims)
    finally:
        await claims.close()


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    asyncio.run(_work())
