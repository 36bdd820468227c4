"""What one request may bring in: references, chains and conversations have bounds, and a refusal says them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from app.responses.create import continuation
from app.responses.create.references import MAX_REFERENCES
from app.store.database import Database
from tests.integration.api.test_websocket import events
from tests.support.api import MODEL, Api, serving, settings_for
from tests.support.player import Player, ids

Json = dict[str, Any]

BODY = 20_000
CONTEXT = 30_000
SETTINGS: Json = {"max_body_bytes": BODY, "max_context_bytes": CONTEXT}


@pytest.fixture
async def api(services: Any, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    monkeypatch.setattr(continuation, "MAX_CHAIN_LENGTH", 3)
    monkeypatch.setattr(continuation, "MAX_CONVERSATION_ITEMS", 25)
    async with serving(settings_for(services, tmp_path, **SETTINGS)) as running:
        yield running


def refused(answer: Any, param: str, code: str, *said: object) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code), error
    assert all(str(each) in error["message"] for each in said), error


def said(text: str, **fields: Any) -> Json:
    return {"type": "message", "role": "user", "content": text, **fields}


def reference(item_id: str) -> Json:
    return {"type": "item_reference", "id": item_id}


async def conversation_of(api: Api, *items: Json) -> tuple[str, str]:
    """The id of a new one, and the path of its items."""
    made = (await api.client.post("/v1/conversations", json={"items": items})).json()["id"]
    return made, f"/v1/conversations/{made}/items"


async def test_all_items_that_are_referred_to_count_and_what_is_searched_for_them(
    api: Api, db: Database, player: Player
) -> None:
    for end in ("", "\0"):  # Of a request with U+0000 Postgres cannot find one item alone.
        sent = []
        for text in (*["x" * 6000 + end] * 4, *["x" * 16_000 + end] * 2):
            answered = await player.answer("A", response_id=await api.background(input=[said("a" + end), said(text)]))
            sent += [reference(f"msg_{answered.removeprefix('resp_')}_in{place}") for place in (0, 1)]
        small, first, second = sent[1:8:2], sent[8], sent[10]
        for input_ in (small[:3], [first]):
            assert (await api.post(input=input_, background=True)).status_code == 200
        known = await ids(db)
        answer = await api.post(input=[said("y"), *small], background=True)
        refused(answer, "input[4]", "references_too_large", BODY)
        refused(await api.post(input=[first, second], background=True), "input[0]", "references_too_large", CONTEXT)
        assert await ids(db) == known
    _, path = await conversation_of(api, said("x" * 6000, id="msg_mine"))
    for to in (path, "/v1/conversations"):
        answer = await api.client.post(to, json={"items": [reference("msg_mine")] * 20})
        refused(answer, "items[3]", "references_too_large", BODY)


async def test_a_request_refers_to_a_bounded_number_of_items(services: Any, db: Database, tmp_path: Path) -> None:
    async with serving(settings_for(services, tmp_path)) as api:
        sent = [said("a"), *(reference(f"msg_{number}") for number in range(MAX_REFERENCES + 1))]
        refused(await api.post(input=sent), f"input[{MAX_REFERENCES + 1}]", "references_too_large", MAX_REFERENCES)


async def test_a_chain_has_a_bounded_length_and_can_still_be_compacted(api: Api, player: Player) -> None:
    fields: Json = {}
    for _ in range(3):
        previous = await player.answer("A", response_id=await api.background(**fields))
        fields = {"previous_response_id": previous}
    answer = await api.post(**fields, background=True)
    refused(answer, "previous_response_id", "context_too_large", "3 responses", "/v1/responses/compact")
    assert (await api.post(input=[{"type": "compaction_trigger"}], **fields, background=True)).status_code == 200
    async with (  # What only prepares a prompt counts, too.
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.connect() as socket,
        player.at_work("A"),
    ):
        fields = {}
        for _ in range(3):
            await socket.response.create(model=MODEL, input="a", generate=False, **fields)
            fields = {"previous_response_id": (await events(socket))[-1]["response"]["id"]}
        await socket.response.create(model=MODEL, input="a", **fields)
        (error,) = await events(socket)
        assert error["error"]["code"] == "context_too_large"


async def test_a_chain_has_bounded_bytes(api: Api, player: Player) -> None:
    fields: Json = {}
    for _ in range(2):
        previous = await player.answer("A", response_id=await api.background(input="x" * 16_000, **fields))
        fields = {"previous_response_id": previous}
    refused(await api.post(**fields, background=True), "previous_response_id", "context_too_large", CONTEXT)


async def test_items_that_come_at_once_keep_the_bound_of_their_conversation(api: Api) -> None:
    conversation, path = await conversation_of(api)
    sent = {"items": [said(f"{number}") for number in range(10)]}
    answers = await asyncio.gather(*(api.client.post(path, json=sent) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [400] * 6
    refused(await api.client.post(path, json=sent), "items", "context_too_large", 25)
    assert len((await api.client.get(path, params={"limit": 100})).json()["data"]) == 20
    assert (await api.client.post(path, json={"items": sent["items"][:5]})).status_code == 200
    assert (await api.post(conversation=conversation, background=True)).status_code == 200


async def test_a_conversation_has_bounded_bytes(api: Api, player: Player) -> None:
    conversation, path = await conversation_of(api)
    for _ in range(2):
        await player.answer("A", response_id=await api.background(input="x" * 16_000, conversation=conversation))
    answer = await api.post(conversation=conversation, background=True)
    refused(answer, "conversation", "context_too_large", CONTEXT)
    refused(await api.client.post(path, json={"items": [said("a")]}), "items", "context_too_large", CONTEXT)
