"""What a line is about follows the work, and no other."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from app.batching import Batcher
from config.logging import context as log_context
from config.logging.context import about, note_response, of_nobody
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


def test_work_for_a_response_keeps_the_request_that_led_to_it() -> None:
    with logged() as lines, about(request_id="req_1"):
        with about("resp_2", attempt=1):
            log.info("cancelled")
        log.info("answered")
    assert fields_of(lines.all[0]) == {"response_id": "resp_2", "attempt": 1, "request_id": "req_1"}
    assert fields_of(lines.all[1]) == {"request_id": "req_1"}


async def test_what_a_request_turns_out_to_be_about_is_known_in_all_of_its_tasks() -> None:
    async def create() -> None:
        note_response("resp_3")

    with logged() as lines, about(request_id="req_1"):
        await asyncio.create_task(create())
        log.info("answered")
    assert fields_of(lines.all[0]) == {"response_id": "resp_3", "request_id": "req_1"}


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


def test_a_line_of_a_worker_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_context, "_process", log_context._Process("worker", "qwen-1@gpu-7"))
    with logged() as lines:
        log.info("loading")
        with about("resp_1", worker="another"):
            log.info("taken from another")
    assert [line["worker"] for line in lines.all] == ["qwen-1@gpu-7", "another"]
    assert {line["process"] for line in lines.all} == {"worker"}
