"""The main job on real parts: the official client, all processes, and vLLM with the demo model."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.support import grammar
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync

pytestmark = pytest.mark.vllm

MODEL = "longhaul-demo"
CHECKOUT = Path(__file__).resolve().parent.parent.parent
SCRIPT = {
    talk["name"]: talk
    for talk in json.loads((CHECKOUT / "config" / "demo" / "script.json").read_text(encoding="utf-8"))
}
ENDLESS = {"ignore_eos": True}


def answer(name: str) -> str:
    """The answer that the demo model was trained on."""
    text: str = SCRIPT[name]["messages"][1]["content"]
    return text


def question(name: str) -> str:
    text: str = SCRIPT[name]["messages"][0]["content"]
    return text


def poll(client: OpenAI, response_id: str) -> Any:
    def final() -> Any:
        response = client.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return until_sync(final, what=f"{response_id} is final")


def raw_stream(longhaul: Longhaul, response_id: str, after: int = -1) -> bytes:
    parameters: dict[str, Any] = {"stream": "true", **({"starting_after": after} if after >= 0 else {})}
    return httpx.get(f"{longhaul.url}/v1/responses/{response_id}", params=parameters, timeout=60).content


def events_of(raw: bytes) -> list[dict[str, Any]]:
    frames = [frame for frame in raw.decode().split("\n\n") if frame.startswith("event:")]
    return [json.loads(frame.split("\ndata: ", 1)[1]) for frame in frames]


def test_polls_see_a_running_response_with_its_output_so_far(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=question("story"), background=True, extra_body=ENDLESS)

    def started() -> Any:
        seen = client.responses.retrieve(response.id)
        return seen if seen.status == "in_progress" and seen.output_text else None

    seen = until_sync(started, what="in progress with output")
    assert seen.output[0].status == "in_progress"
    assert answer("story").startswith(seen.output_text) or seen.output_text.startswith(answer("story"))
    client.responses.cancel(response.id)


@pytest.mark.parametrize("name", ["markdown", "unicode"])
def test_the_answer_is_the_scripted_one_in_every_form(client: OpenAI, name: str) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": question(name)}
    assert client.responses.create(**asked).output_text == answer(name)
    for background in (False, True):
        *_, last = client.responses.create(**asked, stream=True, background=background)
        assert last.type == "response.completed"
        assert last.response.output_text == answer(name)
    with client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_text == answer(name)


def test_a_conversation_by_messages_is_answered_from_its_context(client: OpenAI) -> None:
    messages = SCRIPT["name_Ada"]["messages"]
    earlier: Any = [{"role": message["role"], "content": message["content"]} for message in messages[:3]]
    response = client.responses.create(model=MODEL, input=earlier, instructions="You are a helpful assistant.")
    assert response.output_text == messages[3]["content"]


def test_max_output_tokens_cuts_and_says_so(client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=question("story"), max_output_tokens=10)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 10


def test_a_stream_cut_at_event_20_resumes_byte_for_byte(longhaul: Longhaul, client: OpenAI) -> None:
    body = {"model": MODEL, "input": question("story"), "stream": True, "background": True}
    body |= {"ignore_eos": True, "max_output_tokens": 2000}  # on a busy machine the story alone has few events
    first = b""
    with httpx.stream("POST", f"{longhaul.url}/v1/responses", json=body, timeout=60) as response:
        for piece in response.iter_raw():
            first += piece
            if b'"sequence_number":20,' in first:
                break
    cut = first.index(b"\n\n", first.index(b'"sequence_number":20,')) + 2
    response_id = events_of(first)[0]["response"]["id"]
    resumed = raw_stream(longhaul, response_id, after=20)
    whole = raw_stream(longhaul, response_id)
    assert first[:cut] + resumed == whole
    grammar.check(events_of(whole))
    assert events_of(whole)[-1]["response"] == client.responses.retrieve(response_id).to_dict() | {}


def test_sixty_four_requests_at_once_share_one_engine(longhaul: Longhaul) -> None:
    async def ask_all() -> list[str]:
        async with longhaul.async_client() as client:
            asked = (client.responses.create(model=MODEL, input=question("count")) for _ in range(64))
            return [response.output_text for response in await asyncio.gather(*asked)]

    assert asyncio.run(ask_all()) == [answer("count")] * 64


def test_cancel_stops_a_running_response_and_keeps_its_output_so_far(longhaul: Longhaul, client: OpenAI) -> None:
    response = client.responses.create(
        model=MODEL, input=question("story"), background=True, stream=True, extra_body=ENDLESS
    )
    response_id = next(iter(response)).response.id  # type: ignore[union-attr]
    until_sync(lambda: client.responses.retrieve(response_id).output_text)
    cancelled = client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    events = events_of(raw_stream(longhaul, response_id))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")
    assert client.responses.cancel(response_id).to_dict() == cancelled.to_dict()


def test_a_foreground_client_that_leaves_cancels_its_response(longhaul: Longhaul, client: OpenAI) -> None:
    body = {"model": MODEL, "input": question("story"), "stream": True, **ENDLESS}
    with httpx.stream("POST", f"{longhaul.url}/v1/responses", json=body, timeout=60) as response:
        created = next(response.iter_text())
    found = re.search(r'"id":"(resp_[^"]+)"', created)
    assert found is not None
    until_sync(lambda: client.responses.retrieve(found[1]).status == "cancelled")


@pytest.mark.parametrize("form", [{}, {"stream": True}])
def test_a_prompt_longer_than_the_context_is_a_400_in_the_foreground(client: OpenAI, form: Any) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=MODEL, input="word " * 5000, **form)
    assert caught.value.code == "context_length_exceeded"


def shows(flower: httpx.Client, response_id: str, state: str) -> bool:
    return bool(flower.get(f"/api/task/info/{response_id}").json()["state"] == state)


def test_flower_terminates_a_running_response(longhaul: Longhaul, client: OpenAI) -> None:
    response = client.responses.create(model=MODEL, input=question("story"), background=True, extra_body=ENDLESS)
    until_sync(lambda: client.responses.retrieve(response.id).output_text)
    with longhaul.flower as flower:
        assert flower.post(f"/api/task/revoke/{response.id}", params={"terminate": "true"}).status_code == 200
        assert poll(client, response.id).status == "cancelled"
        task = until_sync(lambda: (t := flower.get(f"/api/task/info/{response.id}").json())["state"] == "REVOKED" and t)
    assert task["name"] == "responses.generate"
    assert MODEL in task["kwargs"]


def test_flower_shows_success_and_failure(longhaul: Longhaul, client: OpenAI) -> None:
    done = client.responses.create(model=MODEL, input=question("hello"), background=True)
    failed = client.responses.create(model=MODEL, input="word " * 5000, background=True)
    with longhaul.flower as flower:
        for response, state in ((done, "SUCCESS"), (failed, "FAILURE")):
            poll(client, response.id)
            until_sync(partial(shows, flower, response.id, state))
        assert flower.get("/api/tasks", auth=httpx.Auth()).status_code == 401
