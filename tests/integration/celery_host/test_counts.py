"""Counts beside answers in a real `celery worker`: a command brings them, so they wait for no place."""

from __future__ import annotations

import asyncio
from typing import Any

from app.queue.publisher import COUNT_SECONDS
from tests.support.celery_bench import Bench

ANSWERS = ["hold-1", "hold-2", "hold-3"]


def test_a_worker_counts_a_prompt_while_answers_have_every_place(bench: Bench, start: Any) -> None:
    start(concurrency=3).ready()
    start("other").ready()
    bench.send(*ANSWERS)
    bench.wait_for_log(*(f"start {each}" for each in ANSWERS))
    bench.count("queue#resp_1", "mine", "sealed")
    bench.wait_for_log("count queue#resp_1 mine")
    assert 0 < bench.broker.ttl("queue#resp_1") <= COUNT_SECONDS
    assert [line for line in bench.log if line.startswith("count")] == ["count queue#resp_1 mine"], "one of them"


def test_a_prompt_is_taken_once(bench: Bench) -> None:
    bench.count("queue#resp_1", "mine", "sealed")

    async def twice() -> list[bytes | None]:
        queue = bench.queue()
        try:
            return [await queue.take_prompt("queue#resp_1") for _ in range(2)]
        finally:
            await queue.close()

    assert asyncio.run(twice()) == [b"sealed", None]
