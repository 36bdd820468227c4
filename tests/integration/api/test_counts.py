"""`POST /v1/responses/input_tokens`: with a real counter on a scripted engine, and with workers that fail it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
import redis.asyncio

from app.api.docs import schemas
from app.responses.create import counter
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.models import ModelCatalog
from tests.integration.api.common import error_of
from tests.support.api import MODEL, Api, served
from tests.support.counts import counting, prompts
from tests.support.player import ids
from tests.support.waiting import until
from tests.support.worker import Worker
from workers.engine.base import EngineDead, PromptTooLong

MODELS = ModelCatalog((replace(served(), tool_parser="hermes", reasoning_parser="qwen3"),))
PATH = "/v1/responses/input_tokens"
HELLO = {"model": MODEL, "input": "Hello!"}


@pytest.fixture
async def w(db: Database, pubsub: PubSub, services: Any) -> AsyncIterator[Worker]:
    async with counting(db, pubsub, services.redis_url) as running:
        yield running


async def count(api: Api, **fields: Any) -> int:
    answer = await api.client.post(PATH, json=fields)
    assert answer.status_code == 200, answer.text
    return schemas.InputTokens.model_validate(answer.json()).input_tokens


async def test_a_message_is_counted_as_its_response(api: Api, w: Worker) -> None:
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "system": "Be brief."}
    async with anthropic.AsyncAnthropic(base_url=api.url, api_key="none", max_retries=0) as sdk:
        counted = await sdk.messages.count_tokens(**asked)
        with pytest.raises(anthropic.BadRequestError, match="'messages'"):
            await sdk.messages.count_tokens(**{**asked, "messages": []})
    assert counted.input_tokens == await count(api, **HELLO, instructions="Be brief.")
    told = await api.client.post("/v1/messages/count_tokens?beta=true", json={**asked, "metadata": {"user_id": "u"}})
    assert (told.status_code, told.json()) == (200, {"input_tokens": counted.input_tokens})


async def test_an_end_of_a_count_names_the_fields_of_the_message(
    api: Api, w: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, w, PromptTooLong(None, 4096))
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]}
    told = await api.client.post("/v1/messages/count_tokens", json=asked)
    assert (told.status_code, told.json()["error"]["type"]) == (400, "invalid_request_error")
    assert told.json()["error"]["message"].startswith("prompt is too long: ")


def failing(monkeypatch: pytest.MonkeyPatch, w: Worker, error: Exception) -> None:
    async def render(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(w.engine, "render", render)


async def test_what_is_counted_is_what_the_response_reads_and_nothing_is_stored(
    api: Api, client: openai.AsyncOpenAI, db: Database, w: Worker, services: Any
) -> None:
    assert await count(api, input="Hello!") > 0, "the only model needs no name"
    asked: Any = {**HELLO, "instructions": "Be brief."}
    counted = await client.responses.input_tokens.count(**asked)
    assert (await ids(db), await prompts(services.redis_url)) == ([], [])
    creating = asyncio.create_task(client.responses.create(**asked))
    (response_id,) = await until(partial(ids, db, "queued"))
    await w.run(response_id)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == (await creating).usage.input_tokens > 0
    first = await api.background(input="/say A")
    await w.run(first)
    assert await count(api, input="b", previous_response_id=first) > await count(api, input="b")
    assert await count(api, previous_response_id=first) > 0


async def test_a_conversation_is_counted_and_a_prompt_longer_than_the_context_too(
    api: Api, db: Database, pubsub: PubSub, services: Any
) -> None:
    items = [{"role": "user", "content": "x" * 500}]
    made = (await api.client.post("/v1/conversations", json={"items": items})).json()
    async with counting(db, pubsub, services.redis_url, context_length=64):
        assert await count(api, input="a", conversation=made["id"]) > 500


async def test_what_is_not_counted_has_an_error(api: Api, w: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, status, code, words in (
        (PromptTooLong(None, 4096), 400, "context_length_exceeded", "more than 4096 tokens"),
        (EngineDead("it died"), 503, "queue_timeout", "send the request again"),
        (ValueError("a bug"), 500, "server_error", "the server had an error"),
    ):
        failing(monkeypatch, w, error)
        answer = await api.client.post(PATH, json=HELLO)
        assert (answer.status_code, error_of(answer)["code"]) == (status, code)
        assert words in error_of(answer)["message"]


async def test_a_caller_whose_worker_does_not_reply_is_told_to_ask_again(
    api: Api, db: Database, w: Worker, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        pass

    monkeypatch.setattr(type(w.counter), "count", lost)
    monkeypatch.setattr(counter, "COUNT_SECONDS", 0.2)
    answer = await api.client.post(PATH, json=HELLO)
    assert (answer.status_code, error_of(answer)["code"]) == (504, "count_timeout")
    await until(lambda: _gone(services.redis_url))


async def test_without_a_worker_a_caller_waits_until_one_is_there(
    api: Api, db: Database, pubsub: PubSub, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counter, "LOOK_SECONDS", 0.01)
    asking = asyncio.create_task(api.client.post(PATH, json=HELLO))
    async with counting(db, pubsub, services.redis_url):
        assert (await asking).status_code == 200


async def test_a_worker_that_did_not_hear_is_asked_again(api: Api, w: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has just registered does not listen to commands yet."""
    count_it, asked = w.counter.count, 0

    async def second(_: Any, **what: str) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            await count_it(**what)

    monkeypatch.setattr(counter, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(type(w.counter), "count", second)
    assert await count(api, **HELLO) > 0


async def test_a_worker_that_stops_says_so(api: Api, w: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def render(*_: Any) -> Any:
        begun.set()
        raise asyncio.CancelledError

    monkeypatch.setattr(w.engine, "render", render)
    answer = await api.client.post(PATH, json=HELLO)
    assert begun.is_set()
    assert (answer.status_code, error_of(answer)["code"]) == (503, "queue_timeout")


async def test_a_prompt_whose_client_left_is_gone(
    api: Api, db: Database, w: Worker, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nobody counts it who comes to it late."""
    began = asyncio.Event()

    async def late(*_: Any, **__: Any) -> None:
        began.set()

    monkeypatch.setattr(type(w.counter), "count", late)
    asking = asyncio.create_task(api.client.post(PATH, json=HELLO))
    await until(began.is_set)
    assert len(await prompts(services.redis_url)) == 1
    asking.cancel()
    await until(lambda: _gone(services.redis_url))


async def test_a_prompt_in_redis_is_sealed_and_counts_for_its_own_project_alone(
    api: Api, w: Worker, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_it = w.counter.count

    async def for_another(_: Any, key: str, project: str) -> None:
        async with redis.asyncio.from_url(services.redis_url) as client:
            assert b"Hello" not in await client.get(key)
        await count_it(key, "another")

    monkeypatch.setattr(type(w.counter), "count", for_another)
    answer = await api.client.post(PATH, json=HELLO)
    assert (answer.status_code, error_of(answer)["code"]) == (500, "server_error")


async def _gone(url: str) -> bool:
    return not await prompts(url)
