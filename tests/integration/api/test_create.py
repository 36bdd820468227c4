"""`POST /v1/responses` in its four forms."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from app.api.docs import schemas
from app.protocol.events import frames
from app.protocol.status import Status
from app.queue.message import Kind, worker_list
from app.store.database import Database
from app.streaming.pubsub import PubSub
from tests.support import grammar
from tests.support.api import MODEL, Api, Reader, serving, settings_for
from tests.support.player import Player, ids, one, row_of
from tests.support.rows import WORKER, alive
from tests.support.waiting import until


async def repeated(reader: Reader) -> tuple[str, int, str]:
    """The next event of a silent stream: its type, its number and its response's status."""
    frame = await reader.frame()
    assert frame is not None
    (event,) = frames.decode(frame)
    TypeAdapter(ResponseStreamEvent).validate_python(event)
    return event["type"], event["sequence_number"], event["response"]["status"]


class TestBackground:
    async def test_a_background_response_is_queued_at_once_and_completed_later(
        self, client: openai.AsyncOpenAI, player: Player
    ) -> None:
        created = await client.responses.create(model=MODEL, input="Hello!", background=True)
        assert (created.status, created.output, created.background) == ("queued", [], True)
        assert (await client.responses.retrieve(created.id)).status == "queued"

        play = await player.begin(created.id)
        assert (await client.responses.retrieve(created.id)).status == "in_progress"

        await (await play.said("Hi", " there")).finished()
        final = await client.responses.retrieve(created.id)
        assert (final.status, final.output_text) == ("completed", "Hi there")
        assert final.completed_at is not None
        assert final.usage is not None

    async def test_the_message_is_in_the_list_of_a_worker(self, api: Api, db: Database, pubsub: PubSub) -> None:
        await alive(db, model=MODEL)
        response_id = await api.background()

        async def is_there() -> bool:
            own = worker_list(f"model.{MODEL}", WORKER)
            return any(response_id.encode() in message for message in await _messages(pubsub, own))

        await until(is_there, what="its message")

    async def test_the_row_holds_the_request(self, api: Api, db: Database) -> None:
        row = await row_of(db, await api.background(input="Hi", metadata={"a": "b"}, store=False, top_k=3))
        assert (row.project, row.model, row.queue, row.priority) == ("default", MODEL, f"model.{MODEL}", 6)
        assert (row.status, row.background, row.stream, row.store) == (Status.QUEUED, True, False, False)
        assert row.request["metadata"] == {"a": "b"}
        assert row.request["extra"] == {"top_k": 3}
        assert row.request["temperature"] == 0.5, "the model's own default"

    async def test_polls_show_the_output_so_far(self, api: Api, player: Player) -> None:
        response_id = await api.background()
        await (await player.begin(response_id)).said("Once", " upon")
        body = (await api.get(response_id)).json()
        (item,) = body["output"]
        assert (body["status"], item["status"], item["content"][0]["text"]) == (
            "in_progress",
            "in_progress",
            "Once upon",
        )

    async def test_answers_say_when_to_poll_again_until_the_response_is_final(self, api: Api, player: Player) -> None:
        created = await api.post(background=True)
        assert int(created.headers["openai-poll-after-ms"]) > 0
        response_id = created.json()["id"]
        assert "openai-poll-after-ms" in (await api.get(response_id)).headers
        await player.answer("Hi", response_id=response_id)
        assert "openai-poll-after-ms" not in (await api.get(response_id)).headers

    async def test_every_state_has_every_documented_field(self, api: Api, player: Player) -> None:
        response_id = await api.background()
        schemas.Response.model_validate((await api.get(response_id)).json())
        play = await player.begin(response_id)
        await play.said("Hi")
        schemas.Response.model_validate((await api.get(response_id)).json())
        await play.finished()
        schemas.Response.model_validate((await api.get(response_id)).json())

    async def test_two_hundred_at_once_get_two_hundred_ids(self, api: Api, db: Database) -> None:
        created = await asyncio.gather(*(api.background() for _ in range(200)))
        assert len(set(created)) == 200
        assert sorted(await ids(db)) == sorted(created)


class TestSync:
    async def test_the_answer_is_the_finished_response(self, client: openai.AsyncOpenAI, player: Player) -> None:
        async with player.at_work("Hi", " there"):
            response = await client.responses.create(model=MODEL, input="Hello!")
        assert (response.status, response.output_text) == ("completed", "Hi there")

    async def test_a_foreground_response_goes_before_background_work(
        self, api: Api, db: Database, player: Player
    ) -> None:
        waiting = asyncio.create_task(api.post())
        response_id = await one(db)
        assert (await row_of(db, response_id)).priority == 3
        await player.answer("Hi")
        await waiting

    async def test_a_foreground_response_can_be_read_later(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            body = (await api.post()).json()
        assert (await api.get(body["id"])).json() == body

    @pytest.mark.parametrize("code", ["context_length_exceeded", "invalid_prompt"])
    async def test_a_prompt_that_cannot_be_answered_is_a_400(self, api: Api, player: Player, code: str) -> None:
        waiting = asyncio.create_task(api.post())
        await (await player.take()).failed(code, "the prompt has 5000 tokens")
        answer = await waiting
        assert answer.status_code == 400
        assert answer.json()["error"] == {
            "message": "the prompt has 5000 tokens",
            "type": "invalid_request_error",
            "param": "input",
            "code": code,
        }

    async def test_any_other_failure_is_a_500(self, api: Api, player: Player) -> None:
        waiting = asyncio.create_task(api.post())
        await (await player.begin()).failed("server_error", "the engine died")
        answer = await waiting
        assert answer.status_code == 500
        assert answer.json()["error"] == {
            "message": "the engine died",
            "type": "server_error",
            "param": None,
            "code": "server_error",
        }

    async def test_a_response_deleted_while_its_client_waits_is_a_404(self, api: Api, db: Database) -> None:
        waiting = asyncio.create_task(api.post())
        assert (await api.client.delete(f"/v1/responses/{await one(db)}")).status_code == 200
        assert (await waiting).status_code == 404

    async def test_a_response_that_an_operator_cancels_is_returned_as_cancelled(self, api: Api, db: Database) -> None:
        waiting = asyncio.create_task(api.post())
        # As a worker does after Terminate in Flower.
        await api.runtime.canceller.cancel_abandoned(await one(db))
        answer = await waiting
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")


class TestStream:
    async def test_the_sdk_reads_the_stream(self, client: openai.AsyncOpenAI, player: Player) -> None:
        async with player.at_work("Hi", " there"):
            stream = await client.responses.create(model=MODEL, input="Hello!", stream=True)
            events = [event async for event in stream]
        grammar.check([event.model_dump() for event in events])
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == "Hi there"

    async def test_the_sdks_accumulator_reads_the_stream(self, client: openai.AsyncOpenAI, player: Player) -> None:
        async with (
            player.at_work("Hi", " there"),
            client.responses.stream(model=MODEL, input="Hello!") as stream,
        ):
            final = await stream.get_final_response()
        assert final.output_text == "Hi there"

    async def test_events_come_as_they_are_generated(self, api: Api, player: Player) -> None:
        playing = asyncio.create_task(player.begin())
        async with api.streaming() as reader:
            play = await playing
            assert reader.status == 200
            assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
            for word in ("one", "two", "three"):
                await play.said(word)
                assert (await reader.until_event("response.output_text.delta"))["delta"] == word
            await play.finished()
            assert (await reader.rest()).endswith(b"\n\ndata: [DONE]\n\n")

    async def test_the_terminal_event_is_what_get_returns(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"), api.streaming() as reader:
            final = (await reader.until_event("response.completed"))["response"]
            assert await reader.event() is None
        assert (await api.get(final["id"])).json() == final

    async def test_a_prompt_that_cannot_be_answered_is_a_400_before_any_event(self, api: Api, player: Player) -> None:
        waiting = asyncio.create_task(api.post(stream=True))
        await (await player.take()).failed("invalid_prompt", "too long")
        answer = await waiting
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_prompt")
        assert answer.headers["content-type"] == "application/json"

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
            assert await repeated(reader) == ("response.queued", 1, "queued")
            assert await repeated(reader) == ("response.queued", 1, "queued")
            play = await Player(db, pubsub).begin()
            await play.said("Hi")
            said = await reader.until_event("response.output_text.delta")
            assert await repeated(reader) == ("response.in_progress", said["sequence_number"], "in_progress")
            await play.finished()
            assert (await reader.until_event("response.completed"))["sequence_number"] > said["sequence_number"]


class TestBackgroundStream:
    async def test_the_stream_starts_before_any_worker(self, api: Api, player: Player) -> None:
        async with api.streaming(background=True) as reader:
            first = await reader.event() or {}
            assert (first["type"], first["sequence_number"]) == ("response.created", 0)
            await player.answer("Hi", response_id=first["response"]["id"])
            grammar_tail = await reader.until_event("response.completed")
            assert grammar_tail["response"]["status"] == "completed"

    async def test_the_response_goes_on_when_its_client_leaves(self, api: Api, db: Database, player: Player) -> None:
        async with api.streaming(background=True) as reader:
            response_id = (await reader.event() or {})["response"]["id"]
            play = await player.begin(response_id)
            await reader.until_event("response.in_progress")
        await (await play.said("Hi")).finished()
        assert (await row_of(db, response_id)).status is Status.COMPLETED

    async def test_the_sdk_reads_the_stream(self, client: openai.AsyncOpenAI, player: Player) -> None:
        async with player.at_work("Hi"):
            stream = await client.responses.create(model=MODEL, input="Hello!", stream=True, background=True)
            events = [event async for event in stream]
        assert events[-1].type == "response.completed"


async def _messages(pubsub: PubSub, queue: str) -> list[bytes]:
    """Returns the messages of a Celery queue, those of counts last."""
    client, lists = pubsub._client, [f"{queue}{kind}" for kind in Kind]
    return [message for list_ in lists for message in await client.lrange(list_, 0, -1)]


class TestSmallFields:
    """Fields of real clients that were refused once."""

    async def test_lm_studios_preload_is_answered(self, api: Api, player: Player) -> None:
        async with player.at_work("H"):
            answer = await api.post(input="", max_output_tokens=1)
        assert answer.status_code == 200, answer.text
        (item,) = (await api.client.get(f"/v1/responses/{answer.json()['id']}/input_items")).json()["data"]
        assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": ""}])

    async def test_the_response_shows_its_cache_retention(self, api: Api, player: Player) -> None:
        async with player.at_work("Hi"):
            answer = (await api.post(prompt_cache_retention="24h")).json()
        assert answer["prompt_cache_retention"] == "24h"
        assert (await api.get(answer["id"])).json() == answer

    async def test_opaque_metadata_is_accepted_wherever_codex_sends_it(self, api: Api, player: Player) -> None:
        metadata = {"client_metadata": {"session_id": "s" * 2000}}
        async with player.at_work("Hi"):
            for path in ("responses", "responses/compact"):
                answer = await api.client.post(f"/v1/{path}", json={"model": MODEL, "input": "Hello!", **metadata})
                assert answer.status_code == 200, answer.text
        bad = {"model": MODEL, "input": "Hello!", "client_metadata": {"a": "b" * 100_000}}
        for path in ("responses", "responses/compact", "responses/input_tokens"):
            answer = await api.client.post(f"/v1/{path}", json=bad)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "client_metadata")
            assert "at most 65536 bytes" in answer.json()["error"]["message"]
