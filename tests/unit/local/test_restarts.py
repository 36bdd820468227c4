"""When a process that dies is restarted, and what is said of it."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from app.aio import end_tasks
from app.local.restarts import (
    MAX_DELAY_SECONDS,
    SHORT_LIFE_SECONDS,
    DeathRecord,
    StopRequest,
    Supervised,
    describe,
    supervise,
)
from config.worker_readiness import PART_DIED


class Life:
    """A program's life: how it ends."""

    def __init__(self, status: int, last_line: str = "") -> None:
        self.status, self.last_line = status, last_line

    async def wait(self) -> int:
        return self.status


async def lived(*lives: Life, is_needed: bool = False) -> tuple[str | None, list[str]]:
    """Why a program must not run on, and what the log says of these lives."""
    said: list[str] = []
    stopping, left = StopRequest(), iter(lives)

    async def start() -> Any:
        if (life := next(left, None)) is None:
            stopping.set()
            await asyncio.Event().wait()
        return life

    program = Supervised(start, said.append, 0.0, is_needed, lambda _: asyncio.sleep(0))
    supervision = asyncio.create_task(supervise(program, stopping))
    await asyncio.wait({supervision, asyncio.create_task(stopping.wait())}, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.sleep(0)
    if not supervision.done():
        await end_tasks(supervision)
        return None, said
    return supervision.result(), said


def after(*deaths: tuple[int, float]) -> DeathRecord:
    record = DeathRecord()
    for status, lifetime in deaths:
        record.died(status, lifetime)
    return record


@pytest.mark.parametrize("status", [1, 2, 78, 127, 0, -signal.SIGKILL, -signal.SIGSEGV])
async def test_whatever_a_program_dies_of_and_however_often_it_is_started_again(status: int) -> None:
    reason, said = await lived(*[Life(status)] * 20)
    assert reason is None
    assert len(said) == 20
    assert said[-1] == f"ended with {describe(status)} again; starting again in {MAX_DELAY_SECONDS:g} s"


@pytest.mark.parametrize("status", [2, 78, 126, 127])
async def test_a_needed_program_whose_first_start_has_a_wrong_configuration_must_not_run(status: int) -> None:
    assert await lived(Life(status, "LONGHAUL_X: no"), is_needed=True) == (
        f"ended with status {status}: LONGHAUL_X: no",
        [],
    )
    reason, said = await lived(Life(1), Life(status), is_needed=True)
    assert (reason, len(said)) == (None, 2)


async def test_why_a_program_ended_is_said_again_only_if_it_changes() -> None:
    _, said = await lived(Life(78, "no file 77"), Life(78, "no file 99"), Life(78, "no such device"))
    assert said == [
        "ended with status 78: no file 77; starting again in 0 s",
        "ended with status 78 again; starting again in 0.5 s",
        "ended with status 78: no such device; starting again in 1 s",
    ]


def test_the_first_restart_is_at_once_and_delays_grow_to_a_limit_until_a_long_life() -> None:
    pauses = [after(*[(-9, 0.1)] * deaths).delay for deaths in range(1, 10)]
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 32, MAX_DELAY_SECONDS]
    assert after(*[(-9, 0.1)] * 9, (-9, SHORT_LIFE_SECONDS)).delay == 0


def test_a_worker_that_was_ready_before_it_died_starts_at_once() -> None:
    assert after(*[(78, 0.1)] * 9, *[(PART_DIED, 0.1)] * 9).delay == 0


def test_statuses_in_words() -> None:
    assert [describe(3), describe(-9), describe(-77)] == ["status 3", "SIGKILL", "signal 77"]


async def test_one_program_can_be_stopped_alone_and_all_together() -> None:
    whole = StopRequest()
    one, other = whole.part(), whole.part()
    one.set()
    assert (bool(whole), bool(one), bool(other)) == (False, True, False)
    whole.set_immediate()
    assert whole
    assert other
    await other.wait_immediate()
    assert whole.part()
