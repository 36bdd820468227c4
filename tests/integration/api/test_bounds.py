"""What one request may bring in: references, chains and conversations have bounds, and no item comes twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.responses.create import continuation
from app.responses.create.references import MAX_REFERENCES
from app.store.database import Database
from tests.integration.api.common import change, sdk_of
from tests.support.api import MODEL, Api, events, serving, settings_for
from tests.support.logs import row_of
from tests.support.player import Player, ids

Json = dict[str, Any]

BODY = 20_000
CONTEXT = 30_000
SETTINGS: Json = {"max_body_bytes": BODY, "max_context_bytes": CONTEXT}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuation, "MAX_CHAIN_LENGTH", 3)
    monkeypatch.setattr(continuation, "MAX_CONVERSATION_ITEMS", 25)


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
        for words in (*["x" * 6000 + end] * 4, *["x" * 16_000 + end] * 2):
            answered = await player.answer("A", response_id=await api.background(input=[said("a" + end), said(words)]))
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
        sdk_of(api) as client,
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


async def test_items_that_come_at_once_keep_the_bound_of_their_conversation(api: Api) -> None:
    conversation, path = await conversation_of(api)
    sent = {"items": [said(f"{number}") for number in range(10)]}
    answers = await asyncio.gather(*(api.client.post(path, json=sent) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [400] * 6
    refused(await api.client.post(path, json=sent), "items", "context_too_large", 25)
    assert len((await api.client.get(path, params={"limit": 100})).json()["data"]) == 20
    assert (await api.client.post(path, json={"items": sent["items"][:5]})).status_code == 200
    assert (await api.post(conversation=conversation, background=True)).status_code == 200


async def test_chains_and_conversations_have_bounded_bytes(api: Api, player: Player) -> None:
    conversation, path = await conversation_of(api)
    for field, value in (("previous_response_id", None), ("conversation", conversation)):
        for _ in range(2):
            asked = await api.background(input="x" * 16_000, **({} if value is None else {field: value}))
            answered = await player.answer("A", response_id=asked)
            value = value if field == "conversation" else answered
        refused(await api.post(background=True, **{field: value}), field, "context_too_large", CONTEXT)
    refused(await api.client.post(path, json={"items": [said("a")]}), "items", "context_too_large", CONTEXT)


# -- the same item twice, which OpenAI's API refuses, too


def msg(item_id: str | None, words: str = "Hi") -> Json:
    return said(words) if item_id is None else said(words, id=item_id)


async def refused_twice(api: Api, item_id: str, **fields: Any) -> None:
    """The request is refused because of this id."""
    answer = await api.post(**fields)
    words = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
    refused(answer, "input", "duplicate_item", words)


async def test_an_input_with_the_same_id_twice_is_refused_on_every_route(api: Api, db: Database) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    for form in ({}, {"background": True}, {"stream": True}):
        for twice in (
            [msg("msg_1"), msg("msg_1", "other")],
            [msg("msg_1"), {"type": "function_call", "id": "msg_1", "call_id": "c", "name": "f", "arguments": "{}"}],
            [msg("msg_1"), reference("msg_1")],
            [reference("msg_x"), msg(None), reference("msg_x")],
            [thought, msg(None), thought],
        ):
            await refused_twice(api, str(twice[-1]["id"]), input=[msg("first"), *twice], **form)
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        body = {"model": "scripted", "input": [msg("msg_1"), msg("msg_1")]}
        answer = await api.client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "duplicate_item"), path
    assert await ids(db) == []


async def test_an_item_of_the_chain_is_refused_and_a_new_one_is_not(api: Api, db: Database, player: Player) -> None:
    first = await player.answer("A", response_id=await api.background(input=[msg("msg_1"), msg(None)]))
    [output] = (await row_of(db, first)).output or []
    [_, made] = (await row_of(db, first)).request["input"]
    second = await player.answer(
        "B", response_id=await api.background(input=[msg("msg_2")], previous_response_id=first)
    )
    known = await ids(db)
    for item_id in ("msg_1", "msg_2", made["id"], output["id"]):
        for item in (msg(item_id), reference(item_id)):
            await refused_twice(api, item_id, input=[msg("msg_3"), item], previous_response_id=second)
    assert await ids(db) == known
    await refused_twice(api, "msg_1", input=[msg("msg_1")], previous_response_id=first)
    again = await api.post(input=[msg("msg_2")], previous_response_id=first, background=True)
    assert again.status_code == 200, "another branch has that item"
    await change(db, "UPDATE responses SET request = '{}'")
    await refused_twice(api, "msg_1", input=[msg("msg_1")], previous_response_id=second)  # No item is read for that.


async def test_a_client_that_resends_everything_continues_nothing_and_is_answered(
    api: Api, db: Database, player: Player
) -> None:
    first = await player.answer("A", response_id=await api.background(input=[msg("msg_1")]))
    output = (await api.get(first)).json()["output"]
    for history in ([msg("msg_1"), *output, msg("msg_2")], [msg("msg_1"), reference(output[0]["id"]), msg(None)]):
        assert (await api.post(input=history, background=True)).status_code == 200
    # What was sent again is an item of the second chain, too.
    second = await player.answer("B", response_id=await api.background(input=[msg("msg_1"), *output]))
    await refused_twice(api, output[0]["id"], input=output, previous_response_id=second)


async def test_an_item_of_the_conversation_is_refused_and_none_is_lost(api: Api, db: Database, player: Player) -> None:
    made = await api.client.post("/v1/conversations", json={"items": [msg("msg_0")]})
    conversation = made.json()["id"]
    await refused_twice(api, "msg_0", input=[msg("msg_0")], conversation=conversation)
    first = await player.answer("A", response_id=await api.background(input=[msg("msg_1")], conversation=conversation))
    [output] = (await row_of(db, first)).output or []
    for item_id in ("msg_1", output["id"]):
        for item in (msg(item_id), reference(item_id)):
            await refused_twice(api, item_id, input=[item], conversation=conversation)
    other = (await api.client.post("/v1/conversations", json={})).json()["id"]
    assert (await api.post(input=[msg("msg_1")], conversation=other, background=True)).status_code == 200
    await player.answer("B", response_id=await api.background(input=[msg(None), msg(None)], conversation=conversation))
    listed = (await api.client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    assert len(listed) == 6
