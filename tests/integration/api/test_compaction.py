"""Token counts, compactions and sealed reasoning: with a real runner on a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import CompactedResponse

from app.api.docs import schemas
from app.protocol.events import frames
from app.protocol.status import Status
from app.protocol.tasks import COUNT
from app.protocol.unsealing import SUMMARY_HEAD
from app.store import keys
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import SealedKind
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from tests.support import grammar
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.logs import whole
from tests.support.player import ids, one, row_of
from tests.support.sdk import check
from tests.support.services import AS_OWNER
from tests.support.worker import Worker, worker
from workers.engine.base import PromptTooLong
from workers.generation.outcome import Outcome, ResponseFailed
from workers.generation.turns.inputs import Inputs


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path) -> AsyncIterator[Api]:
    model = replace(served(), tool_parser="hermes", reasoning_parser="qwen3")
    async with serving(settings_for(services, tmp_path), ModelCatalog((model,))) as running:
        yield running


@pytest.fixture
async def w(db: Database, pubsub: PubSub) -> AsyncIterator[Worker]:
    async with worker(db, pubsub) as running:
        yield running


async def served_by(w: Worker, db: Database, asking: asyncio.Task[Any]) -> Any:
    """Returns the API's answer, after the worker has run the response behind it."""
    await w.run(await one(db, "queued"))
    return await asking


@pytest.mark.parametrize(("stops", "status"), [(False, 400), (True, 503)])
@pytest.mark.parametrize("path", ["input_tokens", "compact"])
async def test_work_that_an_operator_cancels_is_not_asked_for_again(
    api: Api, db: Database, path: str, stops: bool, status: int
) -> None:
    asking = asyncio.create_task(api.client.post(f"/v1/responses/{path}", json={"model": MODEL, "input": "Hello!"}))
    response_id = await one(db, "queued")
    if stops:
        api.runtime.shutdown.over.set()
    await api.runtime.canceller.cancel_abandoned(response_id)
    assert (await asking).status_code == status


class TestInputTokens:
    async def test_counted_tokens_equal_the_input_tokens_of_the_response(
        self, client: openai.AsyncOpenAI, db: Database, w: Worker
    ) -> None:
        asking: Any = {"model": MODEL, "input": "Hello!", "instructions": "Be brief."}
        counted = await served_by(w, db, asyncio.create_task(client.responses.input_tokens.count(**asking)))
        assert counted.object == "response.input_tokens"
        response = await served_by(w, db, asyncio.create_task(client.responses.create(**asking)))
        assert counted.input_tokens == response.usage.input_tokens > 0

    async def test_counting_generates_nothing_and_stores_nothing(self, api: Api, db: Database, w: Worker) -> None:
        asking = asyncio.create_task(api.client.post("/v1/responses/input_tokens", json={"input": "Hello!"}))
        answer = await served_by(w, db, asking)
        schemas.InputTokens.model_validate(answer.json())
        row = await whole(db, await one(db))
        assert (row.status, row.output, row.store, row.priority) == (Status.COMPLETED, [], False, 0)
        assert row.request["task"] == COUNT

    async def test_the_previous_response_is_counted_too(self, api: Api, db: Database, w: Worker) -> None:
        async def count(**fields: Any) -> int:
            asking = asyncio.create_task(api.client.post("/v1/responses/input_tokens", json={"model": MODEL, **fields}))
            tokens: int = (await served_by(w, db, asking)).json()["input_tokens"]
            return tokens

        first = await api.background(input="/say A")
        await w.run(first)
        assert await count(input="b", previous_response_id=first) > await count(input="b")
        assert await count(previous_response_id=first) > 0

    async def test_a_prompt_longer_than_the_context_is_counted(self, api: Api, db: Database, pubsub: PubSub) -> None:
        async with worker(db, pubsub, context_length=64) as small:
            sent = {"input": "x" * 500}
            asking = asyncio.create_task(api.client.post("/v1/responses/input_tokens", json=sent))
            assert (await served_by(small, db, asking)).json()["input_tokens"] > 500

    async def test_a_prompt_that_is_not_counted_to_its_end_is_refused(
        self, api: Api, db: Database, w: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def render(*_: Any) -> Any:
            raise PromptTooLong(None, 4096)

        monkeypatch.setattr(w.engine, "render", render)
        asking = asyncio.create_task(api.client.post("/v1/responses/input_tokens", json={"input": "x"}))
        with pytest.raises(ResponseFailed):
            await served_by(w, db, asking)
        answer = await asking
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert "more than 4096 tokens" in error["message"]

    async def test_a_client_that_leaves_cancels_the_count(self, api: Api, db: Database) -> None:
        from tests.support.waiting import until

        asking = asyncio.create_task(api.client.post("/v1/responses/input_tokens", json={"input": "x"}))
        response_id = await one(db, "queued")
        asking.cancel()
        await until(lambda: ids(db, "cancelled"))
        assert await ids(db) == [response_id]


class TestCompact:
    async def test_the_compaction_item_stands_for_the_conversation(
        self, client: openai.AsyncOpenAI, api: Api, db: Database, pubsub: PubSub
    ) -> None:
        async with worker(db, pubsub) as w:
            first = await api.background(input="/say A")
            await w.run(first)
            asking = asyncio.create_task(client.responses.compact(model=MODEL, previous_response_id=first))
            compacted = await served_by(w, db, asking)
        assert compacted.object == "response.compaction"
        (item,) = compacted.output
        assert item.type == "compaction"
        seal = await SharedSealer(db).get("default")
        assert seal.unseal(SealedKind.COMPACTION, item.encrypted_content) == "Summary of: /say A"

        sent: Any = [item, {"role": "user", "content": "b"}]
        response_id = (await client.responses.create(model=MODEL, input=sent, background=True)).id
        kept = (await row_of(db, response_id)).request["input"][0]
        assert kept == item.model_dump(exclude_none=True) | {"status": "completed"}

        async with worker(db, pubsub) as w:
            seen = await Inputs(db).unseal("default", [kept])
            assert await w.run(response_id) is Outcome.COMPLETED
        assert seen[0]["role"] == "user"
        assert seen[0]["content"][0]["text"] == f"{SUMMARY_HEAD}Summary of: /say A"

    async def test_text_and_items_can_be_compacted(self, api: Api, db: Database, w: Worker) -> None:
        for sent in ("a", [{"role": "user", "content": "a"}]):
            body = {"model": MODEL, "input": sent}
            asking = asyncio.create_task(api.client.post("/v1/responses/compact", json=body))
            answer = await served_by(w, db, asking)
            assert answer.status_code == 200, answer.text
            schemas.Compaction.model_validate(answer.json())
            check(CompactedResponse, answer.content)

    async def test_the_fields_that_codex_sends_are_taken(self, api: Api, db: Database, w: Worker) -> None:
        body = {
            "model": MODEL,
            "input": [{"role": "user", "content": "a"}],
            "instructions": "Be kind.",
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium"},
            "text": {"verbosity": "medium"},
            "service_tier": "auto",
            "prompt_cache_key": "k",
        }
        answer = await served_by(w, db, asyncio.create_task(api.client.post("/v1/responses/compact", json=body)))
        assert answer.status_code == 200, answer.text


TRIGGERED = [{"role": "user", "content": "a"}, {"type": "compaction_trigger"}]


class TestTrigger:
    """`compaction_trigger` as the last item of `input`."""

    async def test_a_stream_has_exactly_one_compaction(
        self, client: openai.AsyncOpenAI, db: Database, w: Worker
    ) -> None:
        sent: Any = TRIGGERED

        async def read() -> list[Any]:
            stream = await client.responses.create(model=MODEL, input=sent, stream=True, store=False)
            return [event async for event in stream]

        events = await served_by(w, db, asyncio.create_task(read()))
        grammar.check([event.to_dict() for event in events])
        assert {"response.output_item.added", "response.compaction.compacting"} <= {event.type for event in events}
        final = events[-1].response
        assert [item.type for item in final.output] == ["compaction"]
        assert final.usage.output_tokens > 0

    async def test_a_client_that_waits_gets_the_compaction(
        self, client: openai.AsyncOpenAI, db: Database, w: Worker
    ) -> None:
        sent: Any = TRIGGERED
        response = await served_by(w, db, asyncio.create_task(client.responses.create(model=MODEL, input=sent)))
        schemas.Response.model_validate(response.to_dict())
        assert [item.type for item in response.output] == ["compaction"]
        listed = await client.responses.input_items.list(response.id)
        assert [item.type for item in listed.data] == ["message"]

    async def test_a_background_stream_can_be_resumed_at_every_event(self, api: Api, db: Database, w: Worker) -> None:
        response_id = await api.background(input=TRIGGERED, stream=True)
        await w.run(response_id)
        async with api.resuming(response_id) as reader:
            whole_log = await reader.rest()
        count = len(frames.split(whole_log)) - 1  # and [DONE]
        assert count > 5
        for after in range(count):
            async with api.resuming(response_id, starting_after=after) as reader:
                assert await reader.rest() == b"".join(frames.split(whole_log)[after + 1 :])

    async def test_a_context_that_does_not_fit_is_a_400(self, api: Api, db: Database, pubsub: PubSub) -> None:
        async with worker(db, pubsub, context_length=64) as small:
            asking = asyncio.create_task(api.post(input=[{"role": "user", "content": "x" * 99}, TRIGGERED[-1]]))
            response_id = await one(db, "queued")
            with pytest.raises(ResponseFailed):
                await small.run(response_id)
            answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")

    async def test_the_tokens_of_a_compaction_are_not_counted(self, api: Api) -> None:
        answer = await api.client.post("/v1/responses/input_tokens", json={"input": TRIGGERED})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[1]")


class TestSealedReasoning:
    async def test_reasoning_comes_with_its_encrypted_content(self, api: Api, db: Database, w: Worker) -> None:
        fields = {"include": ["reasoning.encrypted_content"], "store": False}
        response_id = await api.background(input="/raw <think>Hm.</think>Hi", **fields)
        await w.run(response_id)
        thought, answer = (await api.get(response_id)).json()["output"]
        seal = await SharedSealer(db).get("default")
        assert seal.unseal(SealedKind.REASONING, thought["encrypted_content"]) == "Hm."
        assert answer["content"][0]["text"] == "Hi"

    @pytest.mark.parametrize("kind", ["reasoning", "compaction"])
    async def test_encrypted_content_of_another_server_is_a_400(self, api: Api, kind: str) -> None:
        items = [{"role": "user", "content": "x"}, {"type": kind, "encrypted_content": "lh1_AAAA"}]
        answer = await api.post(input=items)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "input[1].encrypted_content")
        assert error["code"] == "invalid_encrypted_content"

    async def test_sealed_reasoning_is_unsealed_for_the_model(self, api: Api, db: Database, w: Worker) -> None:
        token = (await SharedSealer(db).get("default")).seal(SealedKind.REASONING, "Hm.")
        sent = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": token}
        row = await row_of(db, await api.background(input=[sent, {"role": "user", "content": "x"}]))
        assert row.request["input"][0]["encrypted_content"] == token
        (seen, _) = await Inputs(db).unseal("default", row.request["input"])
        assert seen["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert await w.run(row.id) is Outcome.COMPLETED

    async def test_without_its_key_a_response_with_sealed_items_fails(self, api: Api, db: Database, w: Worker) -> None:
        from sqlalchemy import text

        token = (await SharedSealer(db).get("default")).seal(SealedKind.REASONING, "Hm.")
        sent = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": token}
        response_id = await api.background(input=[sent, {"role": "user", "content": "x"}])
        async with db.begin() as connection:
            await connection.execute(text(AS_OWNER))
            await connection.execute(text("DELETE FROM keys WHERE name LIKE 'seal%'"))
            await connection.run_sync(keys.make_missing)
        with pytest.raises(ResponseFailed, match="encrypted_content"):
            await w.run(response_id)

    async def test_every_process_has_the_same_sealing_key(self, db: Database) -> None:
        seals = await asyncio.gather(*(SharedSealer(db).get("default") for _ in range(10)))
        assert len({seal.seal(SealedKind.REASONING, "x") for seal in seals}) == 1
