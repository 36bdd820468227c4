"""`/v1/conversations` and their items."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from sqlalchemy import text

from app.api.docs import schemas
from app.store.context import conversations as store
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.api import MODEL, Api
from tests.support.player import Player, row_of

Json = dict[str, Any]
USER = {"type": "message", "role": "user", "content": "Hello!"}


async def created(api: Api, **fields: Any) -> str:
    answer = await api.client.post("/v1/conversations", json=fields)
    assert answer.status_code == 200, answer.text
    schemas.Conversation.model_validate(answer.json())
    conversation_id: str = answer.json()["id"]
    return conversation_id


def error_of(answer: Any) -> Json:
    error: Json = answer.json()["error"]
    return error


class TestConversation:
    async def test_the_sdk_creates_reads_updates_and_deletes_a_conversation(self, client: openai.AsyncOpenAI) -> None:
        made = await client.conversations.create(metadata={"topic": "a"})
        assert (made.object, made.metadata) == ("conversation", {"topic": "a"})
        assert made.id.startswith("conv_")
        assert await client.conversations.retrieve(made.id) == made
        changed = await client.conversations.update(made.id, metadata={"topic": "b"})
        assert changed.metadata == {"topic": "b"}
        assert changed.created_at == made.created_at
        gone = await client.conversations.delete(made.id)
        assert (gone.id, gone.deleted, gone.object) == (made.id, True, "conversation.deleted")
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)

    async def test_a_conversation_is_created_without_a_body(self, api: Api) -> None:
        assert (await api.client.post("/v1/conversations")).json()["metadata"] == {}
        assert (await api.client.post("/v1/conversations", json={})).status_code == 200

    async def test_metadata_can_be_removed(self, api: Api) -> None:
        url = f"/v1/conversations/{await created(api, metadata={'a': 'b'})}"
        assert (await api.client.post(url, json={"metadata": None})).json()["metadata"] == {}

    async def test_a_bad_field_is_named_and_no_conversation_is_created(self, api: Api, db: Database) -> None:
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
        async with db.autocommit() as connection:
            assert (await connection.execute(text("SELECT count(*) FROM conversations"))).scalar_one() == 0

    async def test_unknown_ids_are_404s(self, api: Api) -> None:
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

    async def test_another_projects_conversation_is_unknown(self, api: Api, db: Database) -> None:
        async with db.autocommit() as connection:
            await connection.execute(text("INSERT INTO projects (id, name, created_at) VALUES ('theirs', 'a', now())"))
        await store.create(db, store.ConversationRow("conv_theirs", "theirs", {}, datetime.now(UTC)), [])
        assert (await api.client.get("/v1/conversations/conv_theirs")).status_code == 404
        assert (await api.client.delete("/v1/conversations/conv_theirs")).status_code == 404
        assert (await api.post(conversation="conv_theirs")).status_code == 404


class TestItems:
    async def test_the_sdk_adds_reads_lists_and_deletes_items(self, client: openai.AsyncOpenAI) -> None:
        conversation = await client.conversations.create(items=[{"role": "user", "content": "a"}])
        added = await client.conversations.items.create(
            conversation.id,
            items=[
                {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "call_1", "output": "42"},
            ],
        )
        assert [item.type for item in added.data] == ["function_call", "function_call_output"]
        assert (added.first_id, added.last_id, added.has_more) == (added.data[0].id, added.data[1].id, False)
        listed = [item async for item in client.conversations.items.list(conversation.id, limit=1)]
        assert [item.type for item in listed] == ["function_call_output", "function_call", "message"]

        call_id = added.data[0].id
        assert call_id is not None
        found = await client.conversations.items.retrieve(call_id, conversation_id=conversation.id)
        assert found.type == "function_call"
        left = await client.conversations.items.delete(call_id, conversation_id=conversation.id)
        assert left.id == conversation.id
        with pytest.raises(openai.NotFoundError) as caught:
            await client.conversations.items.retrieve(call_id, conversation_id=conversation.id)
        assert caught.value.code == "item_not_found"

    @pytest.mark.parametrize(("order", "expected"), [("asc", "abcde"), ("desc", "edcba")])
    async def test_pages_follow_the_requested_order(
        self, client: openai.AsyncOpenAI, order: Any, expected: str
    ) -> None:
        conversation = await client.conversations.create(items=[{"role": "user", "content": word} for word in "abcde"])
        seen = [item async for item in client.conversations.items.list(conversation.id, limit=2, order=order)]
        assert "".join(item.content[0].text for item in seen) == expected  # type: ignore[union-attr]

    async def test_items_added_together_stay_together_in_order(self, client: openai.AsyncOpenAI) -> None:
        conversation = await client.conversations.create()

        async def add(name: str) -> None:
            items: Any = [{"role": "user", "content": f"{name}{number}"} for number in range(5)]
            await client.conversations.items.create(conversation.id, items=items)

        await asyncio.gather(*(add(name) for name in "abcd"))
        seen = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        words = [item.content[0].text for item in seen]  # type: ignore[union-attr]
        for name in "abcd":
            assert [word for word in words if word.startswith(name)] == [f"{name}{number}" for number in range(5)]

    async def test_a_duplicate_id_adds_none_of_the_items(self, api: Api) -> None:
        url = f"/v1/conversations/{await created(api, items=[{**USER, 'id': 'msg_a'}])}/items"
        answer = await api.client.post(url, json={"items": [USER, {**USER, "id": "msg_a"}]})
        error = error_of(answer)
        assert (answer.status_code, error["param"], error["code"]) == (400, "items[1].id", "duplicate_item")
        assert len((await api.client.get(url)).json()["data"]) == 1

    async def test_an_item_of_a_response_can_be_added_by_reference(
        self, api: Api, db: Database, pubsub: PubSub
    ) -> None:
        response_id = await Player(db, pubsub).answer("A", response_id=await api.background(input="a"))
        output = (await row_of(db, response_id)).output
        assert output is not None
        url = f"/v1/conversations/{await created(api)}/items"
        added = (await api.client.post(url, json={"items": [{"type": "item_reference", "id": output[0]["id"]}]})).json()
        assert added["data"] == output

    async def test_an_item_of_a_conversation_can_be_referenced(
        self, api: Api, client: openai.AsyncOpenAI, db: Database
    ) -> None:
        conversation = await client.conversations.create()
        added = await client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "a"}])
        sent: Any = [{"type": "item_reference", "id": added.data[0].id}]
        response = await client.responses.create(model=MODEL, input=sent, background=True)
        assert (await row_of(db, response.id)).request["input"][0]["content"][0]["text"] == "a"

    async def test_an_unknown_cursor_is_a_400(self, api: Api) -> None:
        answer = await api.client.get(f"/v1/conversations/{await created(api)}/items", params={"after": "msg_x"})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "after")


async def test_deleting_a_conversation_while_responses_end_fails_none_of_them(
    api: Api, db: Database, pubsub: PubSub, client: openai.AsyncOpenAI
) -> None:
    player = Player(db, pubsub)
    conversations = [await created(api) for _ in range(10)]
    plays = [await player.begin(await api.background(conversation=conversation)) for conversation in conversations]
    await asyncio.gather(
        *(play.finished() for play in plays),
        *(client.conversations.delete(conversation) for conversation in conversations),
    )
    assert {(await row_of(db, play.id)).status.value for play in plays} == {"completed"}
