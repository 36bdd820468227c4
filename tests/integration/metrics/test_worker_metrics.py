"""What a worker counts, against the rows of the responses that it ran."""

from __future__ import annotations

import pytest

from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.logs import whole
from tests.support.rows import queued
from tests.support.scrapes import Scrape, scrape_of
from tests.support.worker import SLOW, Worker, committed, worker
from workers.generation.outcome import Cancelled, Outcome, ResponseFailed


def shown(w: Worker) -> Scrape:
    return scrape_of(w.registry)


async def test_a_response_counts_once_in_each_of_its_times(db: Database, pubsub: PubSub) -> None:
    response_id = await queued(db, input="/say Hello", background=True)
    async with worker(db, pubsub) as w:
        assert await w.run(response_id) is Outcome.COMPLETED
    row, found = await whole(db, response_id), shown(w)
    assert row.usage is not None
    assert row.started_at is not None
    waited = (row.started_at - row.inserted_at).total_seconds()
    labels = {"model": "scripted", "tier": "default", "mode": "background"}
    assert found.value("longhaul_queue_wait_seconds_count", **labels) == 1
    assert found.value("longhaul_queue_wait_seconds_sum", **labels) == pytest.approx(waited)
    assert found.value("longhaul_first_token_seconds_count", **labels) == 1
    assert found.value("longhaul_first_token_seconds_sum") >= waited
    assert found.value("longhaul_run_seconds_count", status="completed") == 1
    assert found.value("longhaul_attempt_seconds_count", outcome="completed") == 1
    assert found.value("longhaul_generated_tokens_total") == row.usage["output_tokens"]
    assert found.value("longhaul_prompt_tokens_total") == row.usage["input_tokens"]
    assert found.value("longhaul_takeovers_total") == 0


async def test_a_response_that_another_attempt_continues_has_one_wait_one_run_and_one_takeover(
    db: Database, pubsub: PubSub
) -> None:
    response_id = await queued(db, input="/count 60")
    async with worker(db, pubsub, **SLOW) as w:
        job = w.start(response_id)
        await committed(db, response_id, 8, job)
        assert await job.stop(Cancelled.SHUTDOWN) is Outcome.RELEASED
        assert await w.run(response_id) is Outcome.COMPLETED
        found = shown(w)
    assert found.value("longhaul_queue_wait_seconds_count") == 1
    assert found.value("longhaul_first_token_seconds_count") == 1
    assert found.value("longhaul_attempt_seconds_count", outcome="released") == 1
    assert found.value("longhaul_attempt_seconds_count", outcome="completed") == 1
    assert found.value("longhaul_run_seconds_count") == 1
    assert found.value("longhaul_run_seconds_sum") >= found.value("longhaul_attempt_seconds_sum") * 0.9
    assert found.value("longhaul_takeovers_total", reason="release") == 1
    assert found.value("longhaul_takeovers_total", reason="yield") == 0


async def test_a_response_that_fails_counts_as_failed(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub) as w:
        with pytest.raises(ResponseFailed):
            await w.run(await queued(db, input="/fail 3"))
        assert shown(w).value("longhaul_run_seconds_count", status="failed") == 1
        assert shown(w).value("longhaul_attempt_seconds_count", outcome="failed") == 1
