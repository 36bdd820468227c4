"""The same with real vLLM, smaller: its EngineCore is killed, its worker too, and the text is that of a quiet run."""

from __future__ import annotations

import pytest

from tests.faults.driver import run
from tests.faults.plan import Plan

KINDS = frozenset({"engine: EngineCore killed", "worker: SIGTERM"})


@pytest.mark.vllm
async def test_killed_engine_cores_lose_no_token() -> None:
    plan = Plan(
        seed=5,
        faults=3,
        responses=16,
        pause=8,
        at_once=8,
        apis=1,
        workers=2,
        maintenances=1,
        flower=False,
        kinds=KINDS,
        demo=True,
    )
    report = await run(plan)
    assert report.ok, "\n".join(report.lines())
    assert report.attempts > 0
