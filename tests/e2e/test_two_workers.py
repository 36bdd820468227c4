"""Two workers behind one queue, as processes; the scripted engine, so that both start fast."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from openai import NotFoundError
from openai.types.responses import Response

from tests.e2e.conftest import counted
from tests.support.longhaul import Longhaul, send_all
from tests.support.scripted import models_of
from tests.support.waiting import until, until_sync

MODEL = "scripted"


async def test_a_burst_of_requests_is_shared_out_equally(pair: Longhaul, both: list[str]) -> None:
    burst = 12
    async with pair.async_client() as client:
        asked = (client.responses.create(model=MODEL, input="/hang 5", background=True) for _ in range(burst))
        ids = {response.id for response in await asyncio.gather(*asked)}
        with pair.flower as flower:

            def workers() -> Counter[str] | None:
                tasks = flower.get("/api/tasks", params={"limit": 1000, "state": "STARTED"}).json()
                started = [tasks[each]["worker"] for each in ids if each in tasks]
                return Counter(started) if len(started) == burst else None

            shares = until_sync(workers, what="Flower shows all of them running")
        assert shares is not None
        assert sorted(shares.values()) == [burst / 2] * 2
        await asyncio.gather(*(client.responses.cancel(each) for each in ids))


async def test_flower_revokes_a_queued_response(pair: Longhaul) -> None:
    async with pair.async_client() as client:
        endless = [
            (await client.responses.create(model=MODEL, input="/hang 5", background=True)).id for _ in range(90)
        ]  # more than both workers run at once
        with pair.flower as flower:
            assert flower.post(f"/api/task/revoke/{endless[-1]}").status_code == 200

        async def revoked() -> Response | None:
            response = await client.responses.retrieve(endless[-1])
            return response if response.status == "cancelled" else None

        assert (await until(revoked)).output == []
        await asyncio.gather(*(client.responses.cancel(each) for each in endless))


async def test_streams_and_background_responses_go_on_in_the_middle_when_their_worker_is_killed(
    pair: Longhaul, both: list[str]
) -> None:
    """Nothing is lost, and nothing comes twice."""
    messages: list[Any] = [{"role": "user", "content": "/count 300"}]
    async with pair.async_client() as client:
        streams = [await client.chat.completions.create(model=MODEL, messages=messages, stream=True) for _ in range(8)]
        background = await client.responses.create(model=MODEL, input="/count 300", background=True)
        texts = [""] * len(streams)

        async def read(index: int, until_chars: int | None = None) -> str | None:
            async for chunk in streams[index]:
                texts[index] += chunk.choices[0].delta.content or ""
                if chunk.choices[0].finish_reason or (until_chars and len(texts[index]) >= until_chars):
                    return chunk.choices[0].finish_reason
            return None

        assert await asyncio.gather(*(read(index, 100) for index in range(8))) == [None] * 8
        send_all(pair.named(["celeryd"]), signal.SIGKILL)
        assert await asyncio.gather(*(read(index) for index in range(8))) == ["stop"] * 8

        async def completed() -> Response | None:
            response = await client.responses.retrieve(background.id)
            return response if response.status == "completed" else None

        assert (await until(completed)).output_text == counted(300)
    assert texts == [counted(300)] * 8


@pytest.mark.long
def test_a_machine_that_shuts_down_loses_nothing_and_streams_read_the_same_afterwards(pair: Longhaul) -> None:
    """Every process gets SIGTERM at once, services included."""
    numbers, running = 600, 8
    with pair.client() as client, pair.http() as http:
        *_, last = client.responses.create(model=MODEL, input="/count 60", stream=True, background=True)
        ended = last.response.id
        before, response = raw_stream(pair, ended), client.responses.retrieve(ended)
        assert response.output_text == counted(60)
        body = {"model": MODEL, "input": f"/count {numbers}", "background": True}
        ids = [http.post("/v1/responses", json=body).json()["id"] for _ in range(running)]

        def responses() -> list[dict[str, Any]]:
            return [http.get(f"/v1/responses/{response_id}").json() for response_id in ids]

        def statuses() -> set[str]:
            return {each["status"] for each in responses()}

        until_sync(lambda: "queued" not in statuses(), what="all have begun", pause=0.25)
        pair.terminate_all()
        pair.start()
        assert raw_stream(pair, ended) == before
        assert before.endswith(raw_stream(pair, ended, after=20))
        assert client.responses.retrieve(ended).to_dict() == response.to_dict()
        until_sync(lambda: not statuses() & {"queued", "in_progress"}, 120, "all end", pause=0.25)
        assert [(each["status"], each["error"]) for each in responses()] == [("completed", None)] * running
        assert {each["output"][0]["content"][0]["text"] for each in responses()} == {counted(numbers)}


@contextmanager
def changed(pair: Longhaul, change: Callable[[str], str]) -> Iterator[None]:
    """Changes the models file for the length of the block."""
    models = pair.home.parent / "models.toml"
    before = models.read_text()
    models.write_text(change(before))
    try:
        yield
    finally:
        models.write_text(before)


async def test_a_stream_runs_on_while_another_model_is_added_and_answers(pair: Longhaul, both: list[str]) -> None:
    def serving() -> set[int]:
        return {process.pid for words in ("longhaul api", "celeryd") for process in pair.named([words])}

    async with pair.async_client() as client:
        before = serving()
        async with await client.responses.create(model=MODEL, input="/count 100000", stream=True) as stream:
            numbers = [(await anext(stream)).sequence_number]
            with changed(pair, lambda text: text + models_of("added")):

                async def answer() -> Response | None:
                    try:
                        return await client.responses.create(model="added", input="/say hello")
                    except NotFoundError:  # The API has not looked yet.
                        return None

                answered = await until(answer, 120, pair.tail)
                numbers += [(await anext(stream)).sequence_number for _ in range(50)]
        assert answered.output_text == "hello"
        assert numbers == list(range(51))
        assert len(before) > 2
        assert before <= serving()


@pytest.mark.long
async def test_a_stream_goes_on_at_the_next_worker_when_the_entry_of_its_model_changes(
    pair: Longhaul, both: list[str]
) -> None:
    asked = {"model": MODEL, "input": "/count 1000", "background": True, "stream": True}
    async with pair.async_client() as client, await client.responses.create(**asked) as stream:  # type: ignore[call-overload]
        events = [await anext(stream) for _ in range(10)]
        before = {process.pid for process in pair.named(["celeryd"])}
        with changed(pair, lambda text: text.replace("= 400.0", "= 4000.0")):
            events += [event async for event in stream]
            after = {process.pid for process in pair.named(["celeryd"])}
    numbers = dict.fromkeys(event.sequence_number for event in events)  # A silent stream repeats one.
    assert list(numbers) == list(range(len(numbers)))
    assert events[-1].response.status == "completed"
    assert events[-1].response.output_text == counted(1000)
    assert before.isdisjoint(after)


def raw_stream(installation: Longhaul, response_id: str, after: int = -1) -> bytes:
    parameters = {"stream": "true", **({"starting_after": str(after)} if after >= 0 else {})}
    return httpx.get(f"{installation.url}/v1/responses/{response_id}", params=parameters, timeout=60).content
