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


class TestReferences:
    @pytest.mark.parametrize("end", ["", "\0"])
    async def test_all_items_that_are_referred_to_count(self, api: Api, db: Database, player: Player, end: str) -> None:
        responses = [
            await player.answer("A", response_id=await api.background(input=[said("x" * 6000 + end)])) for _ in range(4)
        ]
        sent = [reference(f"msg_{each.removeprefix('resp_')}_in0") for each in responses]
        assert (await api.post(input=sent[:3], background=True)).status_code == 200
        answer = await api.post(input=[said("y"), *sent], background=True)
        refused(answer, "input[4]", "references_too_large", BODY)
        assert len(await ids(db)) == 5

    async def test_so_do_those_of_a_conversations_new_items(self, api: Api) -> None:
        items = [said("x" * 6000, id="msg_mine")]
        conversation = (await api.client.post("/v1/conversations", json={"items": items})).json()["id"]
        sent = {"items": [reference("msg_mine")] * 20}
        refused(await api.client.post("/v1/conversations", json=sent), "items[3]", "references_too_large", BODY)
        path = f"/v1/conversations/{conversation}/items"
        refused(await api.client.post(path, json=sent), "items[3]", "references_too_large", BODY)

    @pytest.mark.parametrize("text", ["a", "\0"])
    async def test_what_is_searched_for_them_is_bounded(self, api: Api, player: Player, text: str) -> None:
        """Of a request with U+0000 Postgres cannot find one item alone."""
        responses = [
            await player.answer("A", response_id=await api.background(input=[said(text), said("x" * 16_000)]))
            for _ in range(2)
        ]
        sent = [reference(f"msg_{each.removeprefix('resp_')}_in0") for each in responses]
        assert (await api.post(input=sent[:1], background=True)).status_code == 200
        refused(await api.post(input=sent, background=True), "input[0]", "references_too_large", CONTEXT)

    async def test_a_request_refers_to_a_bounded_number_of_items(
        self, services: Any, db: Database, tmp_path: Path
    ) -> None:
        async with serving(settings_for(services, tmp_path)) as api:
            sent = [said("a"), *(reference(f"msg_{number}") for number in range(MAX_REFERENCES + 1))]
            refused(await api.post(input=sent), f"input[{MAX_REFERENCES + 1}]", "references_too_large", MAX_REFERENCES)


class TestChains:
    async def test_a_chain_has_a_bounded_length_and_can_still_be_compacted(self, api: Api, player: Player) -> None:
        previous = await player.answer("A", response_id=await api.background())
        for _ in range(2):
            sent = {"previous_response_id": previous}
            previous = await player.answer("A", response_id=await api.background(**sent))
        answer = await api.post(previous_response_id=previous, background=True)
        refused(answer, "previous_response_id", "context_too_large", "3 responses", "/v1/responses/compact")
        trigger = [{"type": "compaction_trigger"}]
        answer = await api.post(input=trigger, previous_response_id=previous, background=True)
        assert answer.status_code == 200

    async def test_a_chain_has_bounded_bytes(self, api: Api, player: Player) -> None:
        first = await player.answer("A", response_id=await api.background(input="x" * 16_000))
        second = await player.answer(
            "A", response_id=await api.background(input="x" * 16_000, previous_response_id=first)
        )
        answer = await api.post(previous_response_id=second, background=True)
        refused(answer, "previous_response_id", "context_too_large", CONTEXT)

    async def test_what_only_prepares_a_prompt_counts_too(self, api: Api, player: Player) -> None:
        async with (
            openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client,
            client.responses.connect() as socket,
            player.at_work("A"),
        ):
            previous: Json = {}
            for _ in range(3):
                await socket.response.create(model=MODEL, input="a", generate=False, **previous)
                previous = {"previous_response_id": (await events(socket))[-1]["response"]["id"]}
            await socket.response.create(model=MODEL, input="a", **previous)
            (answer,) = await events(socket)
            assert answer["error"]["code"] == "context_too_large"


class TestConversations:
    async def test_a_conversation_has_a_bounded_number_of_items(self, api: Api) -> None:
        items = [said("a")] * 20
        conversation = (await api.client.post("/v1/conversations", json={"items": items})).json()["id"]
        path = f"/v1/conversations/{conversation}/items"
        refused(await api.client.post(path, json={"items": items}), "items", "context_too_large", 25)
        assert (await api.client.post(path, json={"items": items[:5]})).status_code == 200
        assert (await api.post(conversation=conversation, background=True)).status_code == 200

    async def test_items_that_come_at_once_keep_the_bound(self, api: Api) -> None:
        conversation = (await api.client.post("/v1/conversations", json={})).json()["id"]
        path = f"/v1/conversations/{conversation}/items"
        sent = {"items": [said(f"{number}") for number in range(10)]}
        answers = await asyncio.gather(*(api.client.post(path, json=sent) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] * 2 + [400] * 6
        listed = await api.client.get(path, params={"limit": 100})
        assert len(listed.json()["data"]) == 20

    async def test_a_conversation_has_bounded_bytes(self, api: Api, player: Player) -> None:
        conversation = (await api.client.post("/v1/conversations", json={})).json()["id"]
        for _ in range(2):
            response_id = await api.background(input="x" * 16_000, conversation=conversation)
            await player.answer("A", response_id=response_id)
        answer = await api.post(conversation=conversation, background=True)
        refused(answer, "conversation", "context_too_large", CONTEXT)
        path = f"/v1/conversations/{conversation}/items"
        refused(await api.client.post(path, json={"items": [said("a")]}), "items", "context_too_large", CONTEXT)
