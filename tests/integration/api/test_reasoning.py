"""Reasoning with a summary, in every form in which a response is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai

from app.protocol.events import frames
from app.protocol.events.deltas import Reasoning
from app.protocol.types import Json
from app.store.database import Database
from app.store.responses import logs
from tests.support import grammar
from tests.support.api import MODEL, Api, Reader
from tests.support.player import Play, Player

ASKED: Json = {"reasoning": {"summary": "detailed"}}
THOUGHT = "Two and two."


async def think(play: Play) -> Play:
    for piece in ("Two ", "and two."):
        await play.write(play.entry(play.stream.feed(Reasoning(piece))))
    return await play.said("4")


async def answer(player: Player, response_id: str | None = None) -> str:
    """Answers one response, the next queued one if none is given."""
    play = await player.begin(response_id)
    await (await think(play)).finished()
    return play.id


async def all_events(reader: Reader) -> list[Json]:
    return [event async for event in iter_events(reader)]


async def iter_events(reader: Reader) -> AsyncIterator[Json]:
    while (event := await reader.event()) is not None:
        yield event


def shapes(events: list[Json]) -> list[tuple[str, Any, Any]]:
    return [(event["type"], event.get("delta"), event.get("summary_index")) for event in events]


async def test_a_stream_and_a_socket_show_the_same_summary(api: Api, player: Player) -> None:
    async with api.streaming(**ASKED) as reader:
        answering = asyncio.create_task(answer(player))
        streamed = await all_events(reader)
        await answering
    async with (
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client,
        client.responses.connect() as socket,
    ):
        await socket.response.create(model=MODEL, input="x", reasoning={"summary": "detailed"})
        answering = asyncio.create_task(answer(player))
        over_socket: list[Json] = []
        while not over_socket or over_socket[-1]["type"] != "response.completed":
            over_socket.append(json.loads(await socket.recv_bytes()))
        await answering
    grammar.check(streamed)
    grammar.check(over_socket)
    assert shapes(streamed) == shapes(grammar.without_repeats(over_socket))
    assert ("response.reasoning_summary_text.delta", "Two ", 0) in shapes(streamed)


async def test_a_stream_with_a_summary_is_resumed_at_every_event(api: Api, db: Database, player: Player) -> None:
    response_id = await answer(player, await api.background(stream=True, **ASKED))
    log = [frame for chunk in (await logs.read(db, response_id)).chunks for frame in frames.split(chunk.frames)]
    for after in range(len(log)):
        rest = await api.get(response_id, stream="true", starting_after=after)
        assert rest.content == b"".join(log[after + 1 :]) + frames.DONE


async def test_the_answer_and_the_snapshot_of_a_running_response_have_the_summary(api: Api, player: Player) -> None:
    response_id = await api.background(**ASKED)
    play = await player.begin(response_id)
    await play.write(play.entry(play.stream.feed(Reasoning("Two "))))
    running = (await api.get(response_id)).json()
    assert running["output"][0]["summary"] == [{"type": "summary_text", "text": "Two "}]
    await play.write(play.entry(play.stream.feed(Reasoning("and two."))))
    await play.finished()
    answered = (await api.get(response_id)).json()
    assert answered["reasoning"] == {"effort": None, "summary": "detailed"}
    assert answered["output"][0]["summary"] == [{"type": "summary_text", "text": THOUGHT}]
    assert answered["output"][0]["content"] == [{"type": "reasoning_text", "text": THOUGHT}]


async def test_a_cancel_within_the_reasoning_closes_its_summary(api: Api, db: Database, player: Player) -> None:
    response_id = await api.background(stream=True, **ASKED)
    play = await player.begin(response_id)
    await play.write(play.entry(play.stream.feed(Reasoning("Two "))))
    await api.client.post(f"/v1/responses/{response_id}/cancel")
    events = [e for chunk in (await logs.read(db, response_id)).chunks for e in frames.decode(chunk.frames)]
    grammar.check(events)
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "Two "}]
