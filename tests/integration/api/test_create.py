"""`POST /v1/responses` in its four forms."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from app.api.docs import schemas
from app.protocol.events import frames
from app.protocol.events.deltas import Reasoning
from app.protocol.status import Status
from app.store.database import Database
from app.store.responses import logs
from app.streaming.pubsub import PubSub
from tests.support import grammar
from tests.support.api import MODEL, Api, Reader, serving, settings_for
from tests.support.logs import row_of
from tests.support.player import Play, Player, one

FAILURES: list[tuple[str, int, str, str | None]] = [
    ("context_length_exceeded", 400, "invalid_request_error", "input"),
    ("invalid_prompt", 400, "invalid_request_error", "input"),
    ("previous_response_not_found", 400, "invalid_request_error", "previous_response_id"),
    ("queue_timeout", 503, "server_error", None),
    ("run_timeout", 504, "server_error", None),
    ("server_error", 500, "server_error", None),
]
"""The code of a response that fails, and what its client gets: status, type and param."""


async def repeated(reader: Reader) -> tuple[str, int, str]:
    """The next event of a silent stream: its type, its number and its response's status."""
    frame = await reader.frame()
    assert frame is not None
    (event,) = frames.decode(frame)
    TypeAdapter(ResponseStreamEvent).validate_python(event)
    return event["type"], event["sequence_number"], event["response"]["status"]


class TestBackground:
    async def test_it_is_queued_at_once_shows_its_output_so_far_and_is_completed_later(
        self, client: openai.AsyncOpenAI, api: Api, player: Player
    ) -> None:
        created = await client.responses.create(model=MODEL, input="Hello!", background=True)
        assert (created.status, created.output, created.background) == ("queued", [], True)

        async def polled(status: str) -> Any:
            answer = await api.get(created.id)
            assert answer.json()["status"] == status
            schemas.Response.model_validate(answer.json())
            assert (int(answer.headers.get("openai-poll-after-ms", 0)) > 0) is (status != "completed")
            return answer.json()

        await polled("queued")
        play = await player.begin(created.id)
        await play.said("Once", " upon")
        [item] = (await polled("in_progress"))["output"]
        assert (item["status"], item["content"][0]["text"]) == ("in_progress", "Once upon")
        await play.finished()
        await polled("completed")
        final = await client.responses.retrieve(created.id)
        assert (final.status, final.output_text) == ("completed", "Once upon")
        assert final.completed_at is not None and final.usage is not None


class TestSync:
    async def test_the_answer_is_the_finished_response_which_goes_first_and_can_be_read_later(
        self, api: Api, db: Database, player: Player
    ) -> None:
        waiting = asyncio.create_task(api.post())
        assert (await row_of(db, await one(db))).priority == 3, "before background work"
        response_id = await player.answer("Hi", " there")
        body = (await waiting).json()
        assert (body["id"], body["status"]) == (response_id, "completed")
        assert body["output"][0]["content"][0]["text"] == "Hi there"
        assert (await api.get(response_id)).json() == body

    async def test_a_failure_is_an_error_also_of_a_stream_that_has_no_event_yet(self, api: Api, player: Player) -> None:
        for code, status, kind, param in FAILURES:
            for form in ({}, {"stream": True}) if status == 400 else ({},):
                waiting = asyncio.create_task(api.post(**form))
                await (await player.take()).failed(code, "It has 5000 tokens.")
                answer = await waiting
                assert answer.status_code == status
                assert answer.headers["content-type"] == "application/json"
                error = {"message": "It has 5000 tokens.", "type": kind, "param": param, "code": code}
                assert answer.json()["error"] == error

    async def test_one_that_is_deleted_is_a_404_and_one_that_an_operator_cancels_is_returned(
        self, api: Api, db: Database
    ) -> None:
        waiting = asyncio.create_task(api.post())
        assert (await api.client.delete(f"/v1/responses/{await one(db)}")).status_code == 200
        assert (await waiting).status_code == 404
        waiting = asyncio.create_task(api.post())
        # As a worker does after Terminate in Flower.
        await api.runtime.canceller.cancel_abandoned(await one(db))
        answer = await waiting
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


class TestStream:
    async def test_events_come_as_they_are_generated_and_the_last_has_what_get_returns(
        self, api: Api, player: Player
    ) -> None:
        playing = asyncio.create_task(player.begin())
        async with api.streaming() as reader:
            play = await playing
            assert reader.status == 200
            assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
            for word in ("one", "two", "three"):
                await play.said(word)
                assert (await reader.until_event("response.output_text.delta"))["delta"] == word
            await play.finished()
            final = (await reader.until_event("response.completed"))["response"]
            assert await reader.rest() == b"data: [DONE]\n\n"
        assert (await api.get(final["id"])).json() == final

    async def test_a_client_that_waits_in_the_queue_is_kept_alive(
        self, services: Any, db: Database, pubsub: PubSub, tmp_path: Path
    ) -> None:
        settings = settings_for(services, tmp_path, keepalive_seconds=0.1)
        async with serving(settings) as api, api.streaming() as reader:
            assert reader.status == 200, "headers do not wait for a worker for ever"
            assert (await reader.event() or {})["type"] == "response.created"
            assert (await reader.event() or {})["type"] == "response.queued"
            for _ in range(2):
                assert await repeated(reader) == ("response.queued", 1, "queued")
            play = await Player(db, pubsub).begin()
            await play.said("Hi")
            said = await reader.until_event("response.output_text.delta")
            assert await repeated(reader) == ("response.in_progress", said["sequence_number"], "in_progress")
            await play.finished()
            assert (await reader.until_event("response.completed"))["sequence_number"] > said["sequence_number"]

    async def test_one_in_the_background_starts_before_any_worker_and_goes_on_without_its_client(
        self, api: Api, db: Database, player: Player
    ) -> None:
        async with api.streaming(background=True) as reader:
            first = await reader.event() or {}
            assert (first["type"], first["sequence_number"]) == ("response.created", 0)
            play = await player.begin(first["response"]["id"])
            await reader.until_event("response.in_progress")
        await (await play.said("Hi")).finished()
        assert (await row_of(db, play.id)).status is Status.COMPLETED


async def test_an_empty_input_is_answered_as_lm_studios_preload_needs_it(api: Api, player: Player) -> None:
    async with player.at_work("H"):
        preload = await api.post(input="", max_output_tokens=1, prompt_cache_retention="24h")
    assert preload.status_code == 200, preload.text
    assert preload.json()["prompt_cache_retention"] == "24h"
    assert (await api.get(preload.json()["id"])).json() == preload.json()
    (item,) = (await api.client.get(f"/v1/responses/{preload.json()['id']}/input_items")).json()["data"]
    assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": ""}])


async def think(play: Play, text: str) -> None:
    await play.write(play.entry(play.stream.feed(Reasoning(text))))


async def test_the_snapshot_and_the_answer_have_the_summary_and_a_cancel_closes_it(
    api: Api, db: Database, player: Player
) -> None:
    asked = {"reasoning": {"summary": "detailed"}}
    response_id, other = await api.background(**asked), await api.background(stream=True, **asked)
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
