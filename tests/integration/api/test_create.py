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
from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support.api import MODEL, Api, Reader, serving, settings_for
from tests.support.player import Player, one, row_of

FAILURES: list[tuple[str, int, str, str | None]] = [
    ("context_length_exceeded", 400, "invalid_request_error", "input"),
    ("invalid_prompt", 400, "invalid_request_error", "input"),
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

    async def test_the_row_holds_the_request(self, api: Api, db: Database) -> None:
        created = await api.post(background=True, input="Hi", metadata={"a": "b"}, store=False, top_k=3)
        assert int(created.headers["openai-poll-after-ms"]) > 0
        row = await row_of(db, created.json()["id"])
        assert (row.project, row.model, row.queue, row.priority) == ("default", MODEL, f"model.{MODEL}", 6)
        assert (row.status, row.background, row.stream, row.store) == (Status.QUEUED, True, False, False)
        assert (row.request["metadata"], row.request["extra"]) == ({"a": "b"}, {"top_k": 3})
        assert row.request["temperature"] == 0.5, "the model's own default"


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

    async def test_a_later_failure_is_an_event(self, api: Api, player: Player) -> None:
        waiting = asyncio.create_task(api.post(stream=True))
        play = await player.begin()
        await play.said("Hi")
        await play.failed("server_error", "the engine died")
        answer = await waiting
        assert answer.status_code == 200
        assert b"event: error\n" in answer.content
        assert b"event: response.failed\n" in answer.content

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
