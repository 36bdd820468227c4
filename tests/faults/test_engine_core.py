"""A short run with real vLLM: engines are killed and workers stop, alone or with their control group, and the text is
that of an undisturbed run."""

from __future__ import annotations

import pytest

from tests.faults.driver import run
from tests.faults.plan import Plan

KINDS = frozenset(
    {
        "engine: EngineCore killed",
        "worker: SIGTERM",
        "worker: SIGTERM to its control group",
        "worker: SIGINT to its control group",
    }
)


@pytest.mark.long
@pytest.mark.vllm
async def test_killed_engine_cores_and_stopped_workers_lose_no_token() -> None:
    plan = Plan(
        seed=5,
        faults=len(KINDS),
        responses=16,
        pause=4,
        at_once=6,
        apis=1,
        workers=2,
        maintenances=1,
        flower=False,
        in_turn=True,
        until_taken_over=True,
        kinds=KINDS,
        demo=True,
    )
    report = await run(plan)
    assert report.ok, "\n".join(report.lines())
    assert report.faults.keys() == KINDS
    assert report.attempts >= len(KINDS)
