"""The real engine with one slot: a background response yields to a stream, and ends as if it had not."""

from __future__ import annotations

import asyncio

import pytest

from app.store.database import Database
from app.store.keys import pubsub_key
from app.store.migrate import migrate
from app.streaming.pubsub import PubSub
from tests.engine.cases import COUNTED, Case, demo_model
from tests.integration.generation.test_yields import in_foreground
from tests.support.logs import events_of, row_of, text_of, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.services import Services
from tests.support.waiting import until
from tests.support.worker import Worker
from workers.generation import slots as slots_module
from workers.generation.outcome import Outcome

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="package")]


async def test_a_background_response_yields_to_a_stream_and_ends_token_exact(
    vllm_case: Case, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "STEADY_SECONDS", 0.0)
    owner, db, model = Database(services.owner_url, 1), Database(services.database_url, 10), demo_model()
    await migrate(owner)
    await owner.close()
    pubsub = PubSub(services.redis_url, pubsub_key(db))
    await pubsub.start()
    w = Worker(db, pubsub, model, 60.0, engine=vllm_case.engine, limit=1)
    await w.lease.start()
    try:
        response_id = await queued(db, input=[message(vllm_case.counting)], model=model.name)
        job = w.start(response_id)

        async def has_text() -> bool:
            return any(event["type"] == "response.output_text.delta" for event in await events_of(db, response_id))

        await until(has_text, 60)
        streams = [w.start(await in_foreground(db, vllm_case.counting, model=model.name)) for _ in range(2)]
        assert await job.task is Outcome.YIELDED
        assert await asyncio.gather(*(stream.task for stream in streams)) == [Outcome.COMPLETED] * 2
        assert await w.run(response_id) is Outcome.COMPLETED
        assert text_of(await whole(db, response_id)) == COUNTED
        row = await row_of(db, response_id)
        assert (row.yields, row.crashes, row.attempt) == (1, 0, 2)
    finally:
        await w.lease.close()
        await w.journal.close()
        await pubsub.close()
        await db.close()
