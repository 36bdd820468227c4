"""The same item twice: in a request's own input, and in what it continues. OpenAI's API refuses both."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from app.store.database import Database
from tests.support.api import Api
from tests.support.player import Player, ids, row_of

Json = dict[str, Any]


def said(item_id: str | None, words: str = "Hi", role: str = "user") -> Json:
    item = {"type": "message", "role": role, "content": words}
    return item if item_id is None else {**item, "id": item_id}


def called(item_id: str, call_id: str) -> Json:
    return {"type": "function_call", "id": item_id, "call_id": call_id, "name": "f", "arguments": "{}"}


def reference(item_id: str) -> Json:
    return {"type": "item_reference", "id": item_id}


async def refused(api: Api, item_id: str, **fields: Any) -> None:
    """The request is refused because of this id, and nothing is stored."""
    answer = await api.post(**fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "input")
    words = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
    assert (error["message"], error["code"]) == (words, "duplicate_item")


async def test_an_input_with_the_same_id_twice_is_refused_on_every_route(api: Api, db: Database) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    for form in ({}, {"background": True}, {"stream": True}):
        for twice in (
            [said("msg_1"), said("msg_1", "other")],
            [said("msg_1"), called("msg_1", "c")],
            [said("msg_1"), reference("msg_1")],
            [reference("msg_x"), said(None), reference("msg_x")],
            [thought, said(None), thought],
        ):
            await refused(api, str(twice[-1]["id"]), input=[said("first"), *twice], **form)
    for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
        body = {"model": "scripted", "input": [said("msg_1"), said("msg_1")]}
        answer = await api.client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "duplicate_item"), path
    assert await ids(db) == []


async def test_an_item_of_the_chain_is_refused_and_a_new_one_is_not(api: Api, db: Database, player: Player) -> None:
    first = await player.answer("A", response_id=await api.background(input=[said("msg_1"), said(None)]))
    [output] = (await row_of(db, first)).output or []
    [_, made] = (await row_of(db, first)).request["input"]
    second = await player.answer(
        "B", response_id=await api.background(input=[said("msg_2")], previous_response_id=first)
    )
    known = await ids(db)
    for item_id in ("msg_1", "msg_2", made["id"], output["id"]):
        for item in (said(item_id), reference(item_id)):
            await refused(api, item_id, input=[said("msg_3"), item], previous_response_id=second)
    assert await ids(db) == known
    await refused(api, "msg_1", input=[said("msg_1")], previous_response_id=first)
    again = await api.post(input=[said("msg_2")], previous_response_id=first, background=True)
    assert again.status_code == 200, "another branch has that item"
    async with db.begin() as connection:
        await connection.execute(text("UPDATE responses SET request = '{}'"))
    await refused(api, "msg_1", input=[said("msg_1")], previous_response_id=second)  # No item is read for that.


async def test_a_client_that_resends_everything_continues_nothing_and_is_answered(
    api: Api, db: Database, player: Player
) -> None:
    first = await player.answer("A", response_id=await api.background(input=[said("msg_1")]))
    output = (await api.get(first)).json()["output"]
    for history in ([said("msg_1"), *output, said("msg_2")], [said("msg_1"), reference(output[0]["id"]), said(None)]):
        assert (await api.post(input=history, background=True)).status_code == 200
    # What was sent again is an item of the second chain, too.
    second = await player.answer("B", response_id=await api.background(input=[said("msg_1"), *output]))
    await refused(api, output[0]["id"], input=output, previous_response_id=second)


async def test_an_item_of_the_conversation_is_refused_and_none_is_lost(api: Api, db: Database, player: Player) -> None:
    made = await api.client.post("/v1/conversations", json={"items": [said("msg_0")]})
    conversation = made.json()["id"]
    await refused(api, "msg_0", input=[said("msg_0")], conversation=conversation)
    first = await player.answer("A", response_id=await api.background(input=[said("msg_1")], conversation=conversation))
    [output] = (await row_of(db, first)).output or []
    for item_id in ("msg_1", output["id"]):
        for item in (said(item_id), reference(item_id)):
            await refused(api, item_id, input=[item], conversation=conversation)
    other = (await api.client.post("/v1/conversations", json={})).json()["id"]
    assert (await api.post(input=[said("msg_1")], conversation=other, background=True)).status_code == 200
    await player.answer(
        "B", response_id=await api.background(input=[said(None), said(None)], conversation=conversation)
    )
    listed = (await api.client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    assert len(listed) == 6
