"""What a line is about follows the work, and no other."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from app.batching import Batcher
from config.logging.context import about, of_nobody
from tests.support.log_lines import logged

log = logging.getLogger("a.b")


def fields_of(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("request_id", "response_id", "attempt", "worker") if name in line}


def test_a_line_names_what_the_work_around_it_is_about() -> None:
    with logged() as lines:
        log.info("before")
        with about("resp_1", attempt=2, request_id="req_1", worker="w"):
            log.info("within")
        log.info("after")
    named = {"response_id": "resp_1", "attempt": 2, "request_id": "req_1", "worker": "w"}
    assert [fields_of(line) for line in lines.all] == [{}, named, {}]


async def test_a_task_of_nobody_names_none() -> None:
    async def work() -> None:
        log.info("for several")

    with logged() as lines, about("resp_1"):
        await asyncio.get_running_loop().create_task(work(), context=of_nobody())
    assert fields_of(lines.all[0]) == {}


async def test_a_batch_does_not_name_the_response_that_began_it() -> None:
    async def perform(items: Any) -> Any:
        log.info("a batch")
        return items

    batcher: Batcher[int, int] = Batcher(perform)
    with logged() as lines, about("resp_1"):
        await batcher.submit(1)
    await batcher.close()
    assert fields_of(lines.of("a.b")[0]) == {}
