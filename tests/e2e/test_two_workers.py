"""Two workers behind one queue, as processes; the scripted engine, so that both start fast."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError
from openai.types.responses import Response

from tests.support.longhaul import Longhaul
from tests.support.scripted import models_of
from tests.support.waiting import until, until_sync

MODEL = "scripted"


async def final(client: AsyncOpenAI, response_id: str) -> str:
    async def status() -> str | None:
        response = await client.responses.retrieve(response_id)
        return response.status if response.status not in ("queued", "in_progress") else None

    return await until(status, 120, f"{response_id} is final") or ""


@pytest.mark.long
async def test_two_hundred_background_responses_all_complete(pair: Longhaul) -> None:
    async with pair.async_client() as client:
        asked = (client.responses.create(model=MODEL, input=f"/count {n}", background=True) for n in range(200))
        ids = [response.id for response in await asyncio.gather(*asked)]
        assert [await final(client, response_id) for response_id in ids] == ["completed"] * 200
        texts = [(await client.responses.retrieve(response_id)).output_text for response_id in ids]
    assert texts == [counted(numbers) for numbers in range(200)]


def wait_until_both_take_messages(pair: Longhaul) -> None:
    """One worker is enough for an installation to be ready."""

    def answering() -> int:
        """Flower knows workers that have died, too: an answer to this question has a new timestamp."""
        asked = time.time()
        found = flower.get("/api/workers", params={"refresh": 1}).json()
        return sum(worker["timestamp"] >= asked for worker in found.values())

    with pair.flower as flower:
        until_sync(lambda: answering() == 2, what="two workers")


async def test_a_burst_of_requests_is_shared_out_equally(pair: Longhaul) -> None:
    burst = 12
    wait_until_both_take_messages(pair)
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


async def test_more_responses_than_one_worker_runs_are_shared_and_flower_revokes_a_queued_one(pair: Longhaul) -> None:
    async with pair.async_client() as client:
        endless = [
            await client.responses.create(model=MODEL, input="/hang 5", background=True) for _ in range(90)
        ]  # more than both workers run at once
        last = endless[-1].id
        with pair.flower as flower:

            def both_run_some() -> bool:
                tasks = flower.get("/api/tasks", params={"limit": 1000, "state": "STARTED"}).json()
                return len({task["worker"] for task in tasks.values()}) == 2

            until_sync(both_run_some, what="Flower shows both workers running responses")
            assert flower.post(f"/api/task/revoke/{last}").status_code == 200
        assert await final(client, last) == "cancelled"
        assert (await client.responses.retrieve(last)).output == []
        await asyncio.gather(*(client.responses.cancel(response.id) for response in endless))


async def test_responses_of_a_killed_worker_complete_on_the_other(pair: Longhaul) -> None:
    async with pair.async_client() as client:
        asked = (client.responses.create(model=MODEL, input="/count 300", background=True) for _ in range(20))
        ids = [response.id for response in await asyncio.gather(*asked)]
        until_sync(lambda: pair.named(["celeryd"]))
        pair.named(["celeryd"])[0].send_signal(signal.SIGKILL)
        assert [await final(client, response_id) for response_id in ids] == ["completed"] * 20
        assert {(await client.responses.retrieve(response_id)).output_text for response_id in ids} == {counted(300)}


async def test_a_chat_stream_goes_on_in_the_middle_when_its_worker_is_killed(pair: Longhaul) -> None:
    """Nothing is lost, and nothing comes twice."""
    wait_until_both_take_messages(pair)
    messages: list[Any] = [{"role": "user", "content": "/count 300"}]
    async with pair.async_client() as client:
        streams = [await client.chat.completions.create(model=MODEL, messages=messages, stream=True) for _ in range(8)]
        texts = [""] * len(streams)

        async def read(index: int, until_chars: int | None = None) -> str | None:
            async for chunk in streams[index]:
                texts[index] += chunk.choices[0].delta.content or ""
                if chunk.choices[0].finish_reason or (until_chars and len(texts[index]) >= until_chars):
                    return chunk.choices[0].finish_reason
            return None

        assert await asyncio.gather(*(read(index, 100) for index in range(8))) == [None] * 8
        pair.named(["celeryd"])[0].send_signal(signal.SIGKILL)
        assert await asyncio.gather(*(read(index) for index in range(8))) == ["stop"] * 8
    assert texts == [counted(300)] * 8


@pytest.mark.long
def test_a_machine_that_shuts_down_loses_nothing_and_streams_read_the_same_afterwards(pair: Longhaul) -> None:
    """Every process gets SIGTERM at once, services included."""
    numbers, running = 1000, 16
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
def changed(models: Path, change: Callable[[str], str]) -> Iterator[None]:
    """Changes the models file for the length of the block."""
    before = models.read_text()
    models.write_text(change(before))
    try:
        yield
    finally:
        models.write_text(before)


def with_another_model(text: str) -> str:
    return text + models_of("added")


def with_a_faster_model(text: str) -> str:
    return text.replace("tokens_per_second = 400.0", "tokens_per_second = 4000.0")


async def test_a_stream_runs_on_while_another_model_is_added_and_answers(pair: Longhaul, scripted_models: Path) -> None:
    def serving() -> set[int]:
        return {process.pid for words in ("longhaul api", "celeryd") for process in pair.named([words])}

    wait_until_both_take_messages(pair)
    async with pair.async_client() as client:
        before = serving()
        async with await client.responses.create(model=MODEL, input="/count 100000", stream=True) as stream:
            numbers = [(await anext(stream)).sequence_number]
            with changed(scripted_models, with_another_model):

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
    pair: Longhaul, scripted_models: Path
) -> None:
    asked = {"model": MODEL, "input": "/count 3000", "background": True, "stream": True}
    async with pair.async_client() as client, await client.responses.create(**asked) as stream:  # type: ignore[call-overload]
        events = [await anext(stream) for _ in range(10)]
        before = {process.pid for process in pair.named(["celeryd"])}
        with changed(scripted_models, with_a_faster_model):
            events += [event async for event in stream]
            after = {process.pid for process in pair.named(["celeryd"])}
    numbers = dict.fromkeys(event.sequence_number for event in events)  # A silent stream repeats one.
    assert list(numbers) == list(range(len(numbers)))
    assert events[-1].response.status == "completed"
    assert events[-1].response.output_text == counted(3000)
    assert before.isdisjoint(after)


def counted(numbers: int) -> str:
    return " ".join(str(number + 1) for number in range(numbers))


def raw_stream(installation: Longhaul, response_id: str, after: int = -1) -> bytes:
    parameters = {"stream": "true", **({"starting_after": str(after)} if after >= 0 else {})}
    return httpx.get(f"{installation.url}/v1/responses/{response_id}", params=parameters, timeout=60).content
