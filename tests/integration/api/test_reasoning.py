"""Reasoning with a summary; tests/unit/protocol/events has its events, tests/clients what clients make of them."""

from __future__ import annotations

from app.protocol.events import frames
from app.protocol.events.deltas import Reasoning
from app.protocol.types import Json
from app.store.database import Database
from app.store.responses import logs
from tests.support import grammar
from tests.support.api import Api
from tests.support.player import Play, Player

ASKED: Json = {"reasoning": {"summary": "detailed"}}


async def think(play: Play, text: str) -> None:
    await play.write(play.entry(play.stream.feed(Reasoning(text))))


async def test_the_snapshot_and_the_answer_have_the_summary_and_a_cancel_closes_it(
    api: Api, db: Database, player: Player
) -> None:
    response_id, other = await api.background(**ASKED), await api.background(stream=True, **ASKED)
    play, cancelled = await player.begin(response_id), await player.begin(other)
    for each in (play, cancelled):
        await think(each, "Two ")
    running = (await api.get(response_id)).json()
    assert running["output"][0]["summary"] == [{"type": "summary_text", "text": "Two "}]
    await think(play, "and two.")
    await play.finished()
    answered = (await api.get(response_id)).json()
    assert answered["reasoning"] == {"effort": None, "summary": "detailed"}
    assert answered["output"][0]["summary"] == [{"type": "summary_text", "text": "Two and two."}]
    assert answered["output"][0]["content"] == [{"type": "reasoning_text", "text": "Two and two."}]
    await api.client.post(f"/v1/responses/{other}/cancel")
    events = [e for chunk in (await logs.read(db, other)).chunks for e in frames.decode(chunk.frames)]
    grammar.check(events)
    assert events[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "Two "}]
