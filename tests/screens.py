"""Takes the picture of Flower in docs/operations.md.

    python -m tests.screens        # a minute; writes docs/img/flower-tasks.png

The processes are real, the engine is the scripted one, and the browser is the one of tests/integration/flower.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path

from PIL import Image

from config.settings import CHECKOUT
from tests.faults.member import Role
from tests.support.browser import browser
from tests.support.flower_client import FlowerClient, at_flower
from tests.support.waiting import until

FILE = CHECKOUT / "docs" / "img" / "flower-tasks.png"
WIDTH, HEIGHT = 1920, 880
COLORS = 256
"""Colours of a picture, which is half as large then."""
TIERS = ("default", "flex", "priority")


async def two(flower: FlowerClient, statement: str, killed: str) -> bool:
    (row,) = await flower.rows(statement, killed=killed)
    return bool(row.n == len(flower.fleet.of(Role.WORKER)))


async def work(flower: FlowerClient) -> str:
    """Responses in all states; returns one whose first worker was killed."""
    for n, tier in enumerate(TIERS * 2):
        await flower.wait_for(await flower.send(f"/say {n}", service_tier=tier), state="SUCCESS")
    await flower.wait_for(await flower.send("/fail 5"), state="FAILURE")
    response_id = await flower.send("/count 3000", service_tier="priority")
    killed = (await flower.wait_for(response_id, state="STARTED"))["worker"]
    busiest = await until(flower.fleet.busiest, what="chunks")
    assert busiest is not None
    busiest[0].signal_all(signal.SIGKILL)
    alive = "SELECT count(*) AS n FROM workers WHERE node <> :killed"
    await until(lambda: two(flower, alive, killed), what="another worker")
    (row,) = await flower.rows("SELECT sent_to FROM responses WHERE id = :id", id=response_id)
    await flower.wait_for(response_id, state="STARTED", args="attempt 2", worker=row.sent_to)
    cancelled = await flower.send("/count 3000")
    await flower.wait_for(cancelled, state="STARTED")
    await flower.http.post(f"/api/task/revoke/{cancelled}")
    for _ in range(3):
        await flower.wait_for(await flower.send("/count 3000", service_tier="flex"), state="STARTED")
    return response_id


async def main() -> None:
    with tempfile.TemporaryDirectory() as profile:
        async with at_flower(workers=2, maintenances=1) as flower, browser(Path(profile)) as page:
            response_id = await work(flower)
            await page.sign_in(*flower.auth)
            await page.size(WIDTH, HEIGHT)
            await page.open(f"{flower.url}/tasks")
            await page.wait_for(response_id, "#tasks-table")
            await page.picture(FILE)
            Image.open(FILE).convert("RGB").quantize(COLORS).save(FILE, optimize=True)


if __name__ == "__main__":
    asyncio.run(main())
