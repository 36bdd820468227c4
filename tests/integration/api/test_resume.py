"""`GET /v1/responses/{id}?stream=true`: any reader, from any event, gets the same bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from sqlalchemy import text

from app.protocol.events import frames
from app.store.database import Database
from app.store.responses import logs
from tests.support.api import Api, Reader
from tests.support.player import Player

WORDS = [f"w{number} " for number in range(20)]
BAD_QUERIES: list[tuple[dict[str, Any], str]] = [
    ({"starting_after": "-1", "stream": "true"}, "starting_after"),
    ({"starting_after": "1.5", "stream": "true"}, "starting_after"),
    ({"starting_after": "one", "stream": "true"}, "starting_after"),
    ({"starting_after": "", "stream": "true"}, "starting_after"),
    ({"starting_after": " 1", "stream": "true"}, "starting_after"),
    ({"starting_after": "1_0", "stream": "true"}, "starting_after"),
    ({"starting_after": "٣", "stream": "true"}, "starting_after"),
    ({"starting_after": "1"}, "starting_after"),
    ({"starting_after": "1", "stream": "false"}, "starting_after"),
    ({"stream": "yes"}, "stream"),
    ({"stream": ["true", "false"]}, "stream"),
    ({"include": "web_search_call.results"}, "include"),
    ({"include[]": "file_search_call.everything"}, "include[]"),
    ({"include_obfuscation": "true"}, "include_obfuscation"),
    ({"include_obfuscation": "yes", "stream": "true"}, "include_obfuscation"),
    ({"limit": "1"}, "limit"),
]


async def log_of(db: Database, response_id: str) -> list[bytes]:
    """Returns the committed frames, one by one."""
    reading = await logs.read(db, response_id)
    return frames.split(b"".join(chunk.frames for chunk in reading.chunks))


async def test_a_response_is_streamed_from_any_number_and_past_its_end(api: Api, db: Database, player: Player) -> None:
    response_id = await api.background(stream=True)
    play = await player.begin(response_id)
    async with api.resuming(response_id, starting_after=2) as reader:  # of what has not ended it waits for new events
        await (await play.said(*WORDS)).finished()
        assert (await reader.event() or {})["sequence_number"] == 3
        await reader.rest()
    log = await log_of(db, response_id)
    for after in (-1, *range(len(log)), 10_000, 2**31, 10**30):
        query = {} if after < 0 else {"starting_after": after}
        answer = await api.get(response_id, stream="true", **query)
        assert (answer.status_code, answer.content) == (200, b"".join(log[after + 1 :]) + frames.DONE)
    for query, named in BAD_QUERIES:
        refused = await api.get(response_id, **query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, named), query


async def test_readers_that_join_at_different_times_get_the_same_bytes(api: Api, db: Database, player: Player) -> None:
    response_id = await api.background(stream=True)

    async def read(after: int | None) -> bytes:
        query = {} if after is None else {"starting_after": after}
        return await api.streamed(response_id, **query)

    readers = [asyncio.create_task(read(None)) for _ in range(5)]
    play = await player.begin(response_id)
    for word in WORDS:
        await play.said(word)
        readers.append(asyncio.create_task(read(play.stream.next_sequence - 2)))
        readers.append(asyncio.create_task(read(None)))
    await play.finished()

    whole = b"".join(await log_of(db, response_id)) + frames.DONE
    for content in await asyncio.gather(*readers):
        assert whole.endswith(content)
        assert content.endswith(frames.DONE)
        assert content.startswith(b"event: response.")
    assert [task.result() for task in readers[:5]] == [whole] * 5


async def test_readers_without_redis_messages_poll_postgres(api: Api, db: Database) -> None:
    deaf = Player(db, None)
    response_id = await api.background(stream=True)
    reading = asyncio.create_task(api.streamed(response_id))
    await deaf.answer("Hi", response_id=response_id)
    assert await reading == b"".join(await log_of(db, response_id)) + frames.DONE


async def test_a_stream_ends_when_its_response_is_cancelled_or_deleted(api: Api, player: Player) -> None:
    response_id = await api.background(stream=True)
    play = await player.begin(response_id)
    async with api.resuming(response_id) as reader:
        await reader.until_event("response.in_progress")
        await play.said("Hi")
        await reader.until_event("response.output_text.delta")
        assert (await api.client.post(f"/v1/responses/{response_id}/cancel")).status_code == 200
        assert (await reader.until_event("response.failed"))["response"]["status"] == "cancelled"
        assert await reader.frame() == frames.DONE
    response_id = await api.background(stream=True)
    await player.begin(response_id)
    async with api.resuming(response_id) as reader:
        await reader.until_event("response.in_progress")
        assert (await api.client.delete(f"/v1/responses/{response_id}")).status_code == 200
        assert (await reader.rest()).endswith(frames.DONE)


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
    for change in ("finished_at = now() - interval '25 hours'", "log = 'deleted'"):
        response_id = await player.answer("Hi", response_id=await api.background(stream=True))
        async with db.begin() as connection:
            await connection.execute(text(f"UPDATE responses SET {change} WHERE id = :id"), {"id": response_id})
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
        padded = [first, *await _rest(reader)]
    async with api.resuming(response_id) as reader:
        plain = await _rest(reader)
    async with api.resuming(response_id, include_obfuscation="true", starting_after=3) as reader:
        resumed = await _rest(reader)
    deltas = [event for event in padded if event["type"].endswith(".delta")]
    assert deltas
    assert all(event.pop("obfuscation") for event in deltas)
    assert padded == plain, "the log has no padding"
    assert [{**event, "obfuscation": None} for event in resumed] == [
        {**each, "obfuscation": None} for each in plain[4:]
    ]
    assert all(("obfuscation" in event) == event["type"].endswith(".delta") for event in resumed)


async def _rest(reader: Reader) -> list[dict[str, Any]]:
    events = []
    while (event := await reader.event()) is not None:
        events.append(event)
    return events
