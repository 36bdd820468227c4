"""One worker put together: whatever fails on the way, the parts that were started are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.models import ServedModel
from config.settings import Settings
from config.shaping.proof import AS_IT_IS
from config.worker_readiness import PART_DIED, WorkerReadiness, is_ready, waits_for
from tests.support.waiting import until
from workers import worker as module
from workers.engine.base import EngineDead, Sampling
from workers.worker import registered_as, worker_lifespan


class Part:
    """Any part of a worker. Records that it was closed; fails where it is told to."""

    def __init__(self, name: str, closed: list[str], fails: str) -> None:
        self.name = name
        self._closed = closed
        self._fails = fails
        self.context_length = self.slots = 1
        self.on_cpu, self.cache_tokens, self.device = False, None, None
        self.efforts, self.proof = None, AS_IT_IS
        self.node = name
        self.check_error: Exception | None = None
        self.can_force = True

    def _do(self, what: str) -> None:
        if self._fails == f"{self.name}.{what}":
            raise ValueError(self._fails)

    async def start(self) -> None:
        self._do("start")

    async def close(self) -> None:
        self._closed.append(self.name)
        self._do("close")

    stop = close

    def open(self) -> None:
        pass

    def renew_now(self) -> None:
        pass

    def can_continue(self, sampling: Sampling) -> bool:
        return self.can_force or "seed" not in sampling.extra

    async def check(self) -> None:
        if self.check_error is not None:
            raise self.check_error


async def no_changes(_: object) -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


Played = Callable[[str], tuple[list[str], dict[str, Part]]]


@pytest.fixture
def told() -> list[int]:
    """What the slots were told that the engine has."""
    return []


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, told: list[int]) -> Played:
    """Replaces the parts of a worker; returns the names of those closed, in order, and the parts."""

    def play(fails: str) -> tuple[list[str], dict[str, Part]]:
        closed: list[str] = []
        parts = {name: Part(name, closed, fails) for name in ("db", "pubsub", "queue", "engine", "journal", "lease")}
        made = {"Database": "db", "PubSub": "pubsub", "TaskQueue": "queue", "make_engine": "engine"}
        for factory, name in {**made, "Journal": "journal", "Lease": "lease"}.items():
            monkeypatch.setattr(module, factory, lambda *_, name=name, **__: parts[name])
        model = ServedModel("played", "", "model.played", "vllm")
        monkeypatch.setattr(module, "resolved", lambda model: (model, ""))
        file = SimpleNamespace(catalog=SimpleNamespace(choose=lambda _: model, tools=()), changes=no_changes)
        silent = dict.fromkeys(("require_folders", "freeze_gc", "name_worker"))
        for name, value in {"ModelsFile": file, **silent}.items():
            monkeypatch.setattr(module, name, lambda *_, value=value: value)
        monkeypatch.setattr(module, "McpSessions", lambda *_, **__: Part("other", [], ""))
        slots = SimpleNamespace(engine_has=told.append)
        monkeypatch.setattr(module, "Runner", lambda *_, **__: SimpleNamespace(slots=slots, node="node"))
        monkeypatch.setattr(module, "pubsub_key", lambda _: partial(asyncio.sleep, 0, b"key"))
        monkeypatch.setattr(module, "wait_for_schema", lambda *_: asyncio.sleep(0))
        monkeypatch.setattr(module, "CHECK_SECONDS", 0.0)
        monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
        return closed, parts

    return play


def settings() -> Settings:
    return Settings(database_url="postgresql://nobody@nowhere/none", redis_url="redis://nowhere")


@pytest.mark.parametrize("fails", ["lease.start", "lease.close", "journal.close", ""])
async def test_every_part_is_closed_whichever_of_them_fails_and_who_leaves_in_peace_stops_nothing(
    played: Played, fails: str
) -> None:
    closed, _ = played(fails)
    codes: list[Any] = []
    try:
        async with worker_lifespan(settings(), codes.append, WorkerReadiness(), "node"):
            await asyncio.sleep(0)
    except ValueError as error:
        assert str(error) == fails
    else:
        assert not fails and not codes
    assert closed == ["lease", "journal", "engine", "queue", "pubsub", "db"]


@pytest.mark.parametrize("error", [EngineDead("gone"), ValueError("a bug")])
async def test_a_watch_that_ends_stops_the_worker(played: Played, error: Exception) -> None:
    _, parts = played("")
    codes: list[Any] = []
    async with worker_lifespan(settings(), codes.append, WorkerReadiness(), "node"):
        parts["engine"].check_error = error
        await until(lambda: codes)
    assert codes == [PART_DIED]


async def test_an_engine_that_is_away_gives_no_slots_and_the_worker_stays_not_ready(
    played: Played, told: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, parts = played("")
    codes: list[Any] = []
    readiness = WorkerReadiness(tmp_path / "ready")
    async with worker_lifespan(settings(), codes.append, readiness, "node"):
        for slots, ready in ((1, True), (0, False), (3, True)):
            parts["engine"].slots = slots
            await until(lambda slots=slots: told[-1:] == [slots])
            readiness.show(60.0)
            assert is_ready(tmp_path / "ready") is ready
            assert waits_for(tmp_path / "ready") == ("" if ready else "its engine is away")
            if not ready:
                monkeypatch.setattr(module, "CHECK_SECONDS", 3600.0)  # its return has a clock of its own
    assert codes == [] and told == [1, 0, 3]


@pytest.mark.parametrize("can_force", [True, False])
def test_an_engine_that_cannot_continue_what_has_a_state_says_so_among_its_refusals(can_force: bool) -> None:
    engine: Any = Part("engine", [], "")
    engine.can_force = can_force
    refusals = registered_as(ServedModel("played", "", "model.played", "vllm"), engine).refusals
    assert ("continuation" in refusals) is not can_force
