"""U+0000 in text: tools return it, models write it, and clients replay both. Postgres cannot look into such JSON."""

from __future__ import annotations

from typing import Any

from app.store.context.contents import chain_items, context_items
from app.store.database import Database
from tests.integration.api.common import rest_of
from tests.support.api import Api
from tests.support.logs import row_of
from tests.support.player import Player

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
        said = [event["delta"] for event in await rest_of(reader) if event["type"] == "response.output_text.delta"]
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
