"""`/v1/conversations` and their items."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.api.docs import schemas
from app.store.database import Database
from tests.integration.api.common import error_of
from tests.support.api import Api
from tests.support.logs import row_of
from tests.support.player import Player

Json = dict[str, Any]
USER = {"type": "message", "role": "user", "content": "Hello!"}


async def created(api: Api, **fields: Any) -> str:
    answer = await api.client.post("/v1/conversations", json=fields)
    assert answer.status_code == 200, answer.text
    schemas.Conversation.model_validate(answer.json())
    conversation_id: str = answer.json()["id"]
    return conversation_id


async def test_bad_fields_and_unknown_ids_are_named_and_nothing_is_made(api: Api, db: Database) -> None:
    for body, named in (
        ({"items": [{"role": "user"}]}, "items[0].content"),
        ({"items": [USER] * 21}, "items"),
        ({"items": [{"id": "msg_none"}]}, "items[0].id"),
        ({"items": [{**USER, "id": "a"}, USER, {**USER, "id": "a"}]}, "items[2].id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
    ):
        answer = await api.client.post("/v1/conversations", json=body)
        assert answer.status_code in (400, 404)
        assert error_of(answer)["param"] == named
    [row] = await db.execute(text("SELECT count(*) AS number FROM conversations"))
    assert row.number == 0
    for conversation_id in ("conv_none", "%00", "a" * 3000):
        url = f"/v1/conversations/{conversation_id}"
        answers = [
            await api.client.get(url),
            await api.client.post(url, json={"metadata": {}}),
            await api.client.delete(url),
            await api.client.get(f"{url}/items"),
            await api.client.post(f"{url}/items", json={"items": [USER]}),
            await api.client.get(f"{url}/items/msg_1"),
            await api.client.delete(f"{url}/items/msg_1"),
        ]
        assert {answer.status_code for answer in answers} == {404}
        assert {error_of(answer)["code"] for answer in answers} == {"conversation_not_found"}


class TestItems:
    async def test_the_sdk_adds_reads_lists_and_deletes_items(self, client: openai.AsyncOpenAI) -> None:
        conversation = await client.conversations.create(items=[{"role": "user", "content": "a"}])
        items = client.conversations.items
        added = await items.create(
            conversation.id,
            items=[
                {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "42"},
            ],
        )
        assert [item.type for item in added.data] == ["function_call", "function_call_output"]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[1].id, False)
        order = ["message", "function_call", "function_call_output"]
        for sent, expected in (({"order": "asc"}, order), ({"order": "desc"}, order[::-1]), ({}, order[::-1])):
            pages: Any = items.list(conversation.id, limit=1, **sent)  # type: ignore[arg-type]
            assert [item.type async for item in pages] == expected
        call_id = added.data[0].id
        assert call_id is not None
        found = await items.retrieve(call_id, conversation_id=conversation.id)
        assert found.type == "function_call"
        left = await items.delete(call_id, conversation_id=conversation.id)
        assert left.id == conversation.id
        with pytest.raises(openai.NotFoundError) as caught:
            await items.retrieve(call_id, conversation_id=conversation.id)
        assert caught.value.code == "item_not_found"

    async def test_an_item_is_found_by_whatever_id_its_client_gave_it(self, api: Api) -> None:
        url = f"/v1/conversations/{await created(api, items=[{**USER, 'id': 'my item.é'}])}/items/my item.é"
        assert (await api.client.get(url)).json()["id"] == "my item.é"
        assert (await api.client.delete(url)).status_code == 200
        assert (await api.client.get(url)).status_code == 404

    async def test_items_added_together_stay_together_in_order_or_are_not_added(self, api: Api) -> None:
        url = f"/v1/conversations/{await created(api, items=[{**USER, 'id': 'msg_a'}])}/items"

        async def add(name: str) -> None:
            items = [{"role": "user", "content": f"{name}{number}"} for number in range(5)]
            assert (await api.client.post(url, json={"items": items})).status_code == 200

        await asyncio.gather(*(add(name) for name in "abcd"))
        listed = (await api.client.get(url, params={"order": "asc", "limit": 100})).json()["data"]
        words = [item["content"][0]["text"] for item in listed]
        for name in "abcd":
            assert [word for word in words if word.startswith(name)] == [f"{name}{number}" for number in range(5)]
        answer = await api.client.post(url, json={"items": [USER, {**USER, "id": "msg_a"}]})
        error = error_of(answer)
        assert (answer.status_code, error["param"], error["code"]) == (400, "items[1].id", "duplicate_item")
        assert len((await api.client.get(url, params={"limit": 100})).json()["data"]) == 21
        answer = await api.client.get(url, params={"after": "msg_x"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "after")

    async def test_items_of_responses_and_of_conversations_are_referred_to(
        self, api: Api, db: Database, player: Player
    ) -> None:
        response_id = await player.answer("A", response_id=await api.background(input="a"))
        output = (await row_of(db, response_id)).output
        assert output is not None
        url = f"/v1/conversations/{await created(api)}/items"
        sent = [{"type": "item_reference", "id": output[0]["id"]}]
        assert (await api.client.post(url, json={"items": sent})).json()["data"] == output
        [user] = (await api.client.post(url, json={"items": [USER]})).json()["data"]
        referring = await api.background(input=[{"type": "item_reference", "id": user["id"]}])
        assert (await row_of(db, referring)).request["input"][0]["content"][0]["text"] == "Hello!"
