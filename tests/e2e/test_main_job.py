"""The main job on real parts: the official client, all processes, and vLLM with the demo model.

What else a client does on vLLM is in tests/clients.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from config.settings import CHECKOUT
from tests.e2e.conftest import events_of, raw_stream
from tests.support import grammar
from tests.support.longhaul import Longhaul
from tests.support.waiting import until_sync

pytestmark = pytest.mark.vllm

MODEL = "longhaul-demo"
SCRIPT = {
    talk["name"]: [message["content"] for message in talk["messages"]]
    for talk in json.loads((CHECKOUT / "config" / "demo" / "script.json").read_text(encoding="utf-8"))
}
ENDLESS = {"ignore_eos": True}
STORY = {"model": MODEL, "input": SCRIPT["story"][0]}
TOO_LONG = {"model": MODEL, "input": "word " * 5000}


def test_polls_see_the_output_so_far_and_flower_terminates_the_response(longhaul: Longhaul, client: OpenAI) -> None:
    with client.responses.create(**STORY, background=True, stream=True, extra_body=ENDLESS) as stream:
        response_id = next(iter(stream)).response.id

    def started() -> Any:
        seen = client.responses.retrieve(response_id)
        return seen if seen.status == "in_progress" and seen.output_text else None

    seen = until_sync(started, what="in progress with output")
    assert seen.output[0].status == "in_progress"
    story = SCRIPT["story"][1]
    assert story.startswith(seen.output_text) or seen.output_text.startswith(story)
    with longhaul.flower as flower:
        assert flower.post(f"/api/task/revoke/{response_id}", params={"terminate": "true"}).status_code == 200
        until_sync(lambda: client.responses.retrieve(response_id).status == "cancelled")
        task = until_sync(lambda: (t := flower.get(f"/api/task/info/{response_id}").json())["state"] == "REVOKED" and t)
    assert task["name"] == "responses.generate"
    assert MODEL in task["kwargs"]
    events = events_of(raw_stream(longhaul, response_id))
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "cancelled")


def test_a_stream_cut_at_event_20_resumes_byte_for_byte(longhaul: Longhaul, client: OpenAI) -> None:
    body = {**STORY, "stream": True, "background": True}
    body |= {"ignore_eos": True, "max_output_tokens": 500}  # on a busy machine the story alone has few events
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
    last = events_of(whole)[-1]["response"]
    assert last == client.responses.retrieve(response_id).to_dict() | {}
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["usage"]["output_tokens"] == 500


def test_a_prompt_longer_than_the_context_is_a_400_and_a_failure_in_flower(longhaul: Longhaul, client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(**TOO_LONG)
    assert caught.value.code == "context_length_exceeded"
    failed = client.responses.create(**TOO_LONG, background=True)
    done = client.responses.create(model=MODEL, input=SCRIPT["hello"][0], background=True)

    def shows(response_id: str, state: str) -> bool:
        return bool(flower.get(f"/api/task/info/{response_id}").json()["state"] == state)

    with longhaul.flower as flower:
        for response, status, state in ((done, "completed", "SUCCESS"), (failed, "failed", "FAILURE")):
            until_sync(lambda each=response, to=status: client.responses.retrieve(each.id).status == to)
            until_sync(partial(shows, response.id, state))
        assert flower.get("/api/tasks", auth=httpx.Auth()).status_code == 401
