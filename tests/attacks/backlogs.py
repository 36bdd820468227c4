"""Attacks by work that waits or never ends, while a bystander sits in front of a screen."""

from __future__ import annotations

import asyncio
import contextlib

from sqlalchemy import text

from tests.attacks.attack import Attack
from tests.attacks.memory import Demand
from tests.attacks.target import ANSWER_SECONDS, Json, Target
from tests.support.waiting import until

FIRST_TOKEN_SECONDS = 0.5
"""How much later than alone a stream's first token may come behind a backlog."""
FULL_SECONDS = 20.0
"""How long the engine stays full: longer than what runs is left alone before it may yield."""
_LONG: Json = {"input": "/hang 1", "max_output_tokens": 3000, "ignore_eos": True, "background": True}
_RUNNING = text("SELECT count(*) FROM responses WHERE project = :project AND status = 'in_progress'")


async def full_engine(target: Target, count: int) -> None:
    """`count` long background responses, more than an engine has slots. They end when it was full for long."""
    created: list[Json] = []

    async def start(_: int) -> None:
        created.append(await target.create(**_LONG))

    try:
        await target.repeat(count, start, parallel=64)
        await _wait_until_full(target, count)
    finally:
        await target.projects.cancel(created)


async def _wait_until_full(target: Target, count: int) -> None:
    """Waits until most of the slots are the attacker's, and then for FULL_SECONDS; less in the short form."""
    project = target.projects.attacker.project
    async with target.projects.database() as db:

        async def running() -> int:
            async with db.autocommit() as connection:
                return int((await connection.execute(_RUNNING, {"project": project})).scalar_one())

        async def is_full() -> bool:
            return await running() >= min(count, 200)

        await until(is_full, ANSWER_SECONDS, "the engine is full")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FULL_SECONDS if count > 100 else 1.0):
            await asyncio.Event().wait()


ATTACKS = (
    Attack(
        "full-engine",
        "K: foreground first",
        full_engine,
        400,
        20,
        {"200"},
        demand=Demand(connections=64, readers=64),
        first_token=FIRST_TOKEN_SECONDS,
        seconds=180,
    ),
)
