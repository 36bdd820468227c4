"""U+0000 in text: tools return it, models write it, and clients replay both. Postgres cannot look into such JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from app.store.context.contents import chain_items, context_items
from app.store.database import Database
from tests.support.api import MODEL, Api
from tests.support.player import Player, row_of

Json = dict[str, Any]

NUL = 'a\0b, "\\u0000" in letters, \\\0'
ITEMS: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": NUL}]},
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": NUL}],
        "content": [{"type": "reasoning_text", "text": NUL}],
        "encrypted_content": None,
    },
    {"type": "function_call", "call_id": "call_1", "name": f"f{NUL}", "arguments": NUL},
    {"type": "function_call_output", "call_id": "call_1", "output": NUL},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "sh", "input": NUL},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": NUL}]},
]


def plain(items: list[Json]) -> list[Json]:
    """The items without what the server adds."""
    return [{key: value for key, value in item.items() if key not in ("id", "status")} for item in items]


async def listed(api: Api, path: str) -> list[Json]:
    page = await api.client.get(path, params={"order": "asc"})
    assert page.status_code == 200, page.text
    data: list[Json] = page.json()["data"]
    return data


async def test_u0000_is_stored_listed_streamed_and_continued(api: Api, db: Database, player: Player) -> None:
    first = await player.answer(NUL, response_id=await api.background(input=ITEMS, instructions=NUL, stream=True))
    assert (await api.get(first)).json()["instructions"] == NUL
    async with api.resuming(first) as reader:
        said = [event["delta"] async for event in _events(reader) if event["type"] == "response.output_text.delta"]
    assert "".join(said) == NUL, "the stream is replayed"
    assert plain(await listed(api, f"/v1/responses/{first}/input_items")) == ITEMS

    output = (await api.get(first)).json()["output"]
    again = await row_of(db, await api.background(input=[*output, {"role": "user", "content": "More!"}]))
    assert again.request["input"][0] == output[0], "the server takes back its own output"
    second = await player.answer("B", response_id=await api.background(input="b", previous_response_id=first))
    context = await context_items(db, await row_of(db, second))
    assert plain(context) == plain([*ITEMS, *output])
    third = await row_of(db, await api.background(input="c", previous_response_id=second))
    assert (await context_items(db, third))[: len(context)] == context


async def test_a_conversation_keeps_u0000(api: Api, db: Database, player: Player) -> None:
    created = await api.client.post("/v1/conversations", json={"items": ITEMS})
    assert created.status_code == 200, created.text
    path = f"/v1/conversations/{created.json()['id']}/items"
    assert plain(await listed(api, path)) == ITEMS

    sent = {"role": "user", "content": NUL}
    fields: Json = {"input": [sent], "conversation": created.json()["id"]}
    first = await player.answer(NUL, response_id=await api.background(**fields))
    *_, message, answer = await listed(api, path)
    assert (message["content"][0]["text"], answer["content"][0]["text"]) == (NUL, NUL)
    item = (await api.client.get(f"{path}/{message['id']}")).json()
    assert item == message
    second = await row_of(db, await api.background(**fields))
    assert plain(await context_items(db, second)) == plain([*ITEMS, message, answer])
    assert len(await chain_items(db, "default", first)) == 2


async def test_items_with_u0000_and_their_neighbours_can_be_referenced(api: Api, db: Database, player: Player) -> None:
    sent = [*ITEMS, {"role": "user", "content": "no such character"}]
    first = await player.answer(NUL, response_id=await api.background(input=sent))
    row = await row_of(db, first)
    stored = [*row.request["input"], *(row.output or [])]
    references = [{"type": "item_reference", "id": item["id"]} for item in stored]
    second = await row_of(db, await api.background(input=references))
    assert second.request["input"] == stored


async def test_u0000_in_an_id_or_a_query_is_refused(api: Api, player: Player) -> None:
    conversation = (await api.client.post("/v1/conversations", json={"items": ITEMS})).json()["id"]
    response_id = await player.answer("A", response_id=await api.background())
    for path in (f"conversations/{conversation}/items", f"responses/{response_id}/input_items"):
        answer = await api.client.get(f"/v1/{path}?after=%00")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")
    for method in ("GET", "DELETE"):
        answer = await api.client.request(method, f"/v1/conversations/{conversation}/items/%00")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "item_not_found")
    call = {"type": "function_call", "call_id": "\0", "name": "f", "arguments": "{}"}
    for path, field in (("responses", "input"), (f"conversations/{conversation}/items", "items")):
        answer = await api.client.post(
            f"/v1/{path}", json={field: [call], **({"model": MODEL} if field == "input" else {})}
        )
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"{field}[0].call_id")


async def _events(reader: Any) -> AsyncIterator[Json]:
    while (event := await reader.event()) is not None:
        yield event
