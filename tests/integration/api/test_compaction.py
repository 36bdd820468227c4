"""Compactions and sealed reasoning: with a real runner on a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse
from sqlalchemy import text

from app.api.docs import schemas
from app.protocol.unsealing import SUMMARY_HEAD
from app.store import keys
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import SealedKind
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from tests.support import grammar
from tests.support.api import MODEL, Api, served
from tests.support.logs import row_of
from tests.support.player import one
from tests.support.sdk import check
from tests.support.services import AS_OWNER
from tests.support.worker import NO_LIMIT, Worker, worker
from workers.generation.outcome import Outcome, ResponseFailed
from workers.generation.turns.inputs import Inputs

MODELS = ModelCatalog((replace(served(), tool_parser="hermes", reasoning_parser="qwen3"),))


@pytest.fixture
async def w(db: Database, pubsub: PubSub) -> AsyncIterator[Worker]:
    async with worker(db, pubsub) as running:
        yield running


async def served_by(w: Worker, db: Database, asking: asyncio.Task[Any]) -> Any:
    """Returns the API's answer, after the worker has run the response behind it."""
    await w.run(await one(db, "queued"))
    return await asking


async def test_work_that_an_operator_cancels_is_not_asked_for_again(api: Api, db: Database) -> None:
    async def cancelled(status: int, stops: bool) -> None:
        body = {"model": MODEL, "input": "Hello!"}
        asking = asyncio.create_task(api.client.post("/v1/responses/compact", json=body))
        queued = await one(db, "queued")
        if stops:
            api.runtime.shutdown.end_grace()
        await api.runtime.canceller.cancel_abandoned(queued)
        assert (await asking).status_code == status

    await cancelled(400, stops=False)
    await cancelled(503, stops=True)


async def test_a_compaction_item_stands_for_the_conversation(
    client: openai.AsyncOpenAI, api: Api, db: Database, w: Worker
) -> None:
    first = await api.background(input="/say A")
    await w.run(first)
    asking = asyncio.create_task(client.responses.compact(model=MODEL, previous_response_id=first))
    compacted = await served_by(w, db, asking)
    schemas.Compaction.model_validate(compacted.to_dict())
    check(CompactedResponse, compacted.to_dict())
    (item,) = compacted.output
    assert item.type == "compaction"
    seal = await SharedSealer(db).get("default")
    assert seal.unseal(SealedKind.COMPACTION, item.encrypted_content) == "Summary of: /say A"

    sent: Any = [item, {"role": "user", "content": "b"}]
    response_id = (await client.responses.create(model=MODEL, input=sent, background=True)).id
    kept = (await row_of(db, response_id)).request["input"][0]
    assert kept == item.model_dump(exclude_none=True) | {"status": "completed"}
    (seen,) = await Inputs(db, NO_LIMIT, NO_LIMIT).unseal("default", [kept])
    assert (seen["role"], seen["content"][0]["text"]) == ("user", f"{SUMMARY_HEAD}Summary of: /say A")
    assert await w.run(response_id) is Outcome.COMPLETED


TRIGGERED: Any = [{"role": "user", "content": "a"}, {"type": "compaction_trigger"}]


async def test_the_answer_to_a_trigger_is_one_compaction_whose_tokens_are_not_counted(
    client: openai.AsyncOpenAI, db: Database, w: Worker
) -> None:
    create = partial(client.responses.create, model=MODEL, input=TRIGGERED)
    response = await served_by(w, db, asyncio.create_task(create()))
    schemas.Response.model_validate(response.to_dict())
    assert [item.type for item in response.output] == ["compaction"]
    listed = await client.responses.input_items.list(response.id)
    assert [item.type for item in listed.data] == ["message"]

    async def read() -> list[Any]:
        return [event async for event in await create(stream=True, store=False)]

    events = await served_by(w, db, asyncio.create_task(read()))
    grammar.check([event.to_dict() for event in events])
    assert {"response.output_item.added", "response.compaction.compacting"} <= {event.type for event in events}
    final = events[-1].response
    assert [item.type for item in final.output] == ["compaction"]
    assert final.usage.output_tokens > 0
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.input_tokens.count(input=TRIGGERED)
    assert caught.value.param == "input[1]"


class TestSealedReasoning:
    async def test_reasoning_comes_sealed_and_is_unsealed_for_the_model(
        self, api: Api, db: Database, w: Worker
    ) -> None:
        fields = {"include": ["reasoning.encrypted_content"], "store": False}
        response_id = await api.background(input="/raw <think>Hm.</think>Hi", **fields)
        await w.run(response_id)
        thought, answer = (await api.get(response_id)).json()["output"]
        assert answer["content"][0]["text"] == "Hi"
        sent = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": thought["encrypted_content"]}
        row = await row_of(db, await api.background(input=[sent, {"role": "user", "content": "x"}]))
        assert row.request["input"][0]["encrypted_content"] == thought["encrypted_content"]
        (seen, _) = await Inputs(db, NO_LIMIT, NO_LIMIT).unseal("default", row.request["input"])
        assert seen["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert await w.run(row.id) is Outcome.COMPLETED

    async def test_what_another_server_sealed_is_a_400_and_without_its_key_a_response_fails(
        self, api: Api, db: Database, w: Worker
    ) -> None:
        user = {"role": "user", "content": "x"}
        for kind in ("reasoning", "compaction"):
            answer = await api.post(input=[user, {"type": kind, "encrypted_content": "lh1_AAAA"}])
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, "input[1].encrypted_content")
            assert error["code"] == "invalid_encrypted_content"
        token = (await SharedSealer(db).get("default")).seal(SealedKind.REASONING, "Hm.")
        sent = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": token}
        response_id = await api.background(input=[sent, user])
        async with db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text("DELETE FROM keys WHERE name LIKE 'seal%'"))
            await connection.run_sync(keys.make_missing)
        with pytest.raises(ResponseFailed, match="encrypted_content"):
            await w.run(response_id)
