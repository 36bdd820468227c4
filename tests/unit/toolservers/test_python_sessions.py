"""The interpreters of sessions, without sandboxes: when they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.waiting import until
from workers.toolservers.python.answer import CallOutcome, StopReason
from workers.toolservers.python.errors import SandboxError
from workers.toolservers.python.sandbox import Sandbox
from workers.toolservers.python.session import SandboxPool, Session


class PaperSandbox:
    """Runs a cell until `go_on` is set."""

    def __init__(self) -> None:
        self.alive = True
        self.running = asyncio.Event()
        self.go_on = asyncio.Event()

    async def run(self, code: str, stop: asyncio.Event) -> CallOutcome:
        self.running.set()
        await self.go_on.wait()
        return CallOutcome(result=code)

    async def close(self) -> None:
        self.alive = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[PaperSandbox]:
    """The sandboxes made so far."""
    made: list[PaperSandbox] = []

    async def start(spec: Any) -> PaperSandbox:
        made.append(PaperSandbox())
        return made[-1]

    monkeypatch.setattr(Sandbox, "start", start)
    return made


async def test_an_interpreter_ends_when_idle_also_if_the_last_call_was_cancelled_while_it_waited(
    made: list[PaperSandbox],
) -> None:
    session = Session(SandboxPool(spec=None, max_sandboxes=1, idle_seconds=0.05))  # type: ignore[arg-type]
    first = asyncio.create_task(session.call("1"))
    await until(lambda: made and made[0].running.is_set(), what="the first call runs")
    second = asyncio.create_task(session.call("2"))
    await asyncio.sleep(0)  # it waits for the first one
    second.cancel()
    made[0].go_on.set()
    assert await first == (CallOutcome(result="1"), False)
    await until(lambda: not made[0].alive, what="the idle interpreter has ended")


async def test_a_call_that_comes_before_the_idle_time_is_over_keeps_the_interpreter(made: list[PaperSandbox]) -> None:
    session = Session(SandboxPool(spec=None, max_sandboxes=1, idle_seconds=3600))  # type: ignore[arg-type]
    calls = [asyncio.create_task(session.call(code)) for code in ("1", "2")]
    await until(lambda: made and made[0].running.is_set(), what="the first call runs")
    made[0].go_on.set()
    assert await asyncio.gather(*calls) == [(CallOutcome(result="1"), False), (CallOutcome(result="2"), False)]
    assert len(made) == 1 and made[0].alive
    await session.close()
    assert not made[0].alive


async def test_a_call_that_was_cancelled_while_it_waited_does_not_run(made: list[PaperSandbox]) -> None:
    session = Session(SandboxPool(spec=None, max_sandboxes=1, idle_seconds=3600))  # type: ignore[arg-type]
    (stop := asyncio.Event()).set()
    assert await session._call("1", stop) == (CallOutcome(killed=StopReason.CANCELLED), False)
    assert made == []


async def test_the_first_call_of_a_renewed_session_says_that_names_are_lost(made: list[PaperSandbox]) -> None:
    session = Session(SandboxPool(spec=None, max_sandboxes=1, idle_seconds=3600), renewed=True)  # type: ignore[arg-type]
    calls = [asyncio.create_task(session.call(code)) for code in ("1", "2")]
    await until(lambda: made and made[0].running.is_set(), what="the first call runs")
    made[0].go_on.set()
    assert [names_lost for _, names_lost in await asyncio.gather(*calls)] == [True, False]
    await session.close()


async def test_a_project_gets_an_interpreter_that_another_holds_and_does_not_use(made: list[PaperSandbox]) -> None:
    pool = SandboxPool(spec=None, max_sandboxes=4, idle_seconds=3600)  # type: ignore[arg-type]
    greedy = [Session(pool, "greedy") for _ in range(4)]
    others = [Session(pool, name) for name in ("a", "b", "c")]

    async def call(session: Session) -> bool:
        """Whether the names of earlier calls are lost."""
        count = len(made)
        running = asyncio.create_task(session.call("1"))
        await until(lambda: running.done() or len(made) > count)
        for sandbox in made[count:]:
            sandbox.go_on.set()
        return (await running)[1]

    for session in greedy[:3]:
        await call(session)
    with pytest.raises(SandboxError, match="all 4 interpreters of this server are in use, or kept for other projects"):
        await call(greedy[3])
    for session in others[:2]:
        await call(session)
    assert [sandbox.alive for sandbox in made] == [False, True, True, True, True]
    made[1].go_on.clear()
    busy = asyncio.create_task(greedy[1].call("2"))
    await until(lambda: greedy[1]._lock.locked())
    await call(others[2])
    assert [sandbox.alive for sandbox in made] == [False, True, False, True, True, True]
    with pytest.raises(SandboxError):  # nobody holds more than it
        await call(Session(pool, "b"))
    made[1].go_on.set()
    await busy
    for other in others[:2]:
        await other.close()
    assert await call(greedy[0])
    await pool.close()
    assert not any(sandbox.alive for sandbox in made)
