"""The prompt that a worker makes: the chain, the conversation, and no more than fits."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from app.protocol.status import Status
from app.store.context import conversations
from app.store.context.conversations import ConversationRow, NewItem
from app.store.database import Database
from app.store.paging import Page
from app.store.responses import endings, lookup
from app.store.tables import DEFAULT_PROJECT
from app.streaming.pubsub import PubSub
from tests.support.logs import text_of, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.worker import Worker, items_of, scripted_model, worker
from workers.formats.builder import build_turn, plan_turn
from workers.generation.outcome import Outcome, ResponseFailed


async def prompt_of(w: Worker, db: Database, response_id: str) -> str:
    """The text of the prompt: the scripted engine's tokens are bytes, and marks above 255."""
    row = await lookup.find(db, response_id)
    assert row is not None
    items = await items_of(db, row)
    turn = await build_turn(await plan_turn(w.engine, scripted_model(), row.request, items, (), 0, {}), items)
    return bytes(token for token in turn.prompt if token < 256).decode()


async def test_the_prompt_holds_a_chain_from_its_first_response_on(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub) as w:
        first = await queued(db, input="/say Uno")
        await w.run(first)
        second = await queued(db, input="/say Due", previous_response_id=first)
        await w.run(second)
        third = await queued(db, input="/say Tre", previous_response_id=second)
        prompt = await prompt_of(w, db, third)
        assert [prompt.index(word) for word in ("/say Uno", "/say Due", "/say Tre")] == sorted(
            prompt.index(word) for word in ("/say Uno", "/say Due", "/say Tre")
        )
        assert prompt.count("Uno") == prompt.count("Due") == 2
        assert await w.run(third) is Outcome.COMPLETED
    assert text_of(await whole(db, third)) == "Tre"


async def test_the_prompt_holds_the_conversation_which_grows_with_each_response(db: Database, pubsub: PubSub) -> None:
    kind = [NewItem.of(message("Be kind."))]
    await conversations.create(db, ConversationRow("conv_1", "default", {}, datetime.now(UTC)), kind)
    async with worker(db, pubsub) as w:
        first = await queued(db, input=[{**message("/say Uno"), "id": "msg_1"}], conversation={"id": "conv_1"})
        assert "Be kind." in await prompt_of(w, db, first)
        await w.run(first)
        second = await queued(db, input=[{**message("/say Due"), "id": "msg_2"}], conversation={"id": "conv_1"})
        assert (await prompt_of(w, db, second)).count("Uno") == 2
        await w.run(second)
    listed, _ = await conversations.list_items(db, DEFAULT_PROJECT, "conv_1", Page(100))
    texts = [json.loads(item)["content"][0]["text"] for _, item in listed]
    assert texts == ["Be kind.", "/say Uno", "Uno", "/say Due", "Due"]


async def test_a_chain_with_a_gap_fails_and_says_why(db: Database, pubsub: PubSub) -> None:
    async with worker(db, pubsub) as w:
        first = await queued(db, input="/say Uno")
        await w.run(first)
        second = await queued(db, input="/say Due", previous_response_id=first)
        await endings.delete(db, "default", first)
        with pytest.raises(ResponseFailed) as caught:
            await w.run(second)
    assert caught.value.code == "previous_response_not_found"
    await whole(db, second, Status.FAILED)


class TestTruncation:
    LONG = 40
    """Characters of each message; the context holds only a few messages."""

    async def chain(self, w: Worker, db: Database) -> str:
        previous = None
        for number in range(8):
            text = f"/say {number}".ljust(self.LONG, ".")
            previous = await queued(db, input=text, previous_response_id=previous, truncation="auto")
            if number < 7:
                await w.run(previous)
        assert previous is not None
        return previous

    async def test_auto_drops_the_oldest_turns_and_keeps_the_instructions(self, db: Database, pubsub: PubSub) -> None:
        async with worker(db, pubsub, context_length=400) as w:
            last = await self.chain(w, db)
            prompt = await prompt_of(w, db, last)
            assert "/say 7" in prompt
            assert "/say 0" not in prompt
            assert await w.run(last) is Outcome.COMPLETED
        assert text_of(await whole(db, last)).startswith("7")
