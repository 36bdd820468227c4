"""`GET /v1/responses/{id}?stream=true`: any reader, from any event, gets the same bytes."""

from __future__ import annotations

import json
from typing import Any

from app.protocol.events import frames
from app.store.database import Database
from app.store.responses import logs
from tests.integration.api.common import change, rest_of
from tests.support.api import Api
from tests.support.player import Player

BAD_QUERIES: list[tuple[dict[str, Any], str]] = [
    *(({"starting_after": sent, "stream": "true"}, "starting_after") for sent in ("-1", "1.5", "", " 1", "1_0", "٣")),
    ({"starting_after": "1"}, "starting_after"),
    ({"stream": ["true", "false"]}, "stream"),
    ({"include[]": "file_search_call.everything"}, "include[]"),
    ({"include_obfuscation": "yes", "stream": "true"}, "include_obfuscation"),
    ({"limit": "1"}, "limit"),
]


async def test_a_response_is_streamed_from_any_number_and_past_its_end(api: Api, db: Database, player: Player) -> None:
    response_id = await api.background(stream=True)
    play = await player.begin(response_id)
    async with api.resuming(response_id, starting_after=2) as reader:  # of what has not ended it waits for new events
        await (await play.said(*map(str, range(20)))).finished()
        assert (await reader.event() or {})["sequence_number"] == 3
        await reader.rest()
    log = frames.split(b"".join(chunk.frames for chunk in (await logs.read(db, response_id)).chunks))
    for after in (-1, *range(len(log)), 10_000, 2**31, 10**30):
        query = {} if after < 0 else {"starting_after": after}
        answer = await api.get(response_id, stream="true", **query)
        assert (answer.status_code, answer.content) == (200, b"".join(log[after + 1 :]) + frames.DONE)
    for query, named in BAD_QUERIES:
        refused = await api.get(response_id, **query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, named), query


async def test_only_what_was_streamed_and_has_its_events_can_be_streamed_again(
    api: Api, db: Database, player: Player
) -> None:
    async with player.at_work("Hi"):
        async with api.streaming() as reader:
            first = await reader.rest()
        foreground = (await api.post()).json()["id"]
    streamed = json.loads(frames.split(first)[0].split(b"data: ", 1)[1])["response"]["id"]
    assert await api.streamed(streamed) == first
    for response_id in (foreground, await player.answer("Hi", response_id=await api.background())):
        refused = await api.get(response_id, stream="true")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "response_not_streamable")
    for changed in ("finished_at = now() - interval '25 hours'", "log = 'deleted'"):
        response_id = await player.answer("Hi", response_id=await api.background(stream=True))
        await change(db, f"UPDATE responses SET {changed} WHERE id = :id", id=response_id)
        refused = await api.get(response_id, stream="true")
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "events_expired")
        assert (await api.get(response_id)).status_code == 200


async def test_a_reader_that_asks_for_obfuscation_gets_the_same_events_padded(api: Api, player: Player) -> None:
    asked: dict[str, Any] = {"stream_options": {"include_obfuscation": True}}
    async with api.streaming(background=True, **asked) as reader:
        first = await reader.event()
        assert first is not None
        response_id = first["response"]["id"]
        play = await player.begin(response_id)
        await (await play.said("One", " two")).finished()
        padded = [first, *await rest_of(reader)]
    async with api.resuming(response_id) as reader:
        plain = await rest_of(reader)
    async with api.resuming(response_id, include_obfuscation="true", starting_after=3) as reader:
        resumed = await rest_of(reader)
    deltas = [event for event in padded if event["type"].endswith(".delta")]
    assert deltas
    assert all(event.pop("obfuscation") for event in deltas)
    assert padded == plain, "the log has no padding"
    assert [{**event, "obfuscation": None} for event in resumed] == [
        {**each, "obfuscation": None} for each in plain[4:]
    ]
    assert all(("obfuscation" in event) == event["type"].endswith(".delta") for event in resumed)
