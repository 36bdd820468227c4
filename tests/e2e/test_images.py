"""Images through the API to the real engine: the tiny vision model says what it sees.

One installation serves them all; its worker is killed once, in the middle of an answer.
"""

from __future__ import annotations

import base64
import io
import json
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from PIL import Image

from tests.models.pictures import COUNT, GREETING, HELLO, Picture, data_url, draw
from tests.support import grammar
from tests.support.installations import VISION, VISION_MODEL, running
from tests.support.longhaul import Longhaul
from tests.support.services import open_folder
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.vllm, pytest.mark.long]

Json = dict[str, Any]

WHAT = "What is in this image?"
RED, BLUE = Picture("red", "square"), Picture("blue", "triangle")
LONG = 3000
"""Tokens of an answer that takes seconds."""


@pytest.fixture(scope="module")
def vision() -> Iterator[Longhaul]:
    """`longhaul up` with the tiny vision model."""
    with open_folder() as folder:
        models = folder / "models.toml"
        models.write_text(VISION)
        with running(Longhaul(folder / "home", models)) as installation:
            yield installation


@pytest.fixture(scope="module")
def client(vision: Longhaul) -> Iterator[OpenAI]:
    with vision.client() as opened:
        yield opened


def image(picture: Picture, width: int = 80, height: int = 80, form: str = "PNG") -> Json:
    return image_of(draw(picture, width, height), form)


def image_of(drawn: Image.Image, form: str = "PNG") -> Json:
    return {"type": "input_image", "image_url": data_url(drawn, form)}


def user(text: str, *images: Json) -> Json:
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *images]}


def ask(client: OpenAI, items: Sequence[Json], **fields: Any) -> Any:
    return client.responses.create(model=VISION_MODEL, input=list(items), **fields)


def final(client: OpenAI, response_id: str) -> Any:
    def ended() -> Any:
        response = client.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return until_sync(ended, 120, f"{response_id} is final")


def test_the_answer_is_about_the_picture_in_every_format_and_size(client: OpenAI) -> None:
    seen = [(picture, "PNG") for picture in (BLUE, Picture("green", "triangle"), Picture("yellow", "square"))]
    for picture, form in (*seen, *((RED, form) for form in ("PNG", "JPEG", "GIF", "WEBP"))):
        response = ask(client, [user(WHAT, image(picture, form=form))])
        assert (response.status, response.output_text) == ("completed", picture.sentence), form
    for width, height in ((24, 24), (300, 200), (2000, 2000)):
        assert ask(client, [user("What colour is it?", image(RED, width, height))]).output_text == "Red."
    assert client.responses.create(model=VISION_MODEL, input=HELLO).output_text == GREETING


def test_a_picture_that_was_uploaded_is_seen_in_a_request_and_in_a_batch(client: OpenAI) -> None:
    bodies = []
    for picture, purpose in ((RED, "vision"), (BLUE, "user_data")):
        png = io.BytesIO()
        draw(picture, 80, 80).save(png, "PNG")
        file = client.files.create(file=("a.png", png.getvalue()), purpose=purpose)  # type: ignore[arg-type]
        said = user(WHAT, {"type": "input_image", "file_id": file.id, "detail": "auto"})
        assert ask(client, [said]).output_text == picture.sentence
        bodies.append({"model": VISION_MODEL, "input": [said]})
    url = "/v1/responses"
    lines = [{"custom_id": str(place), "method": "POST", "url": url, "body": body} for place, body in enumerate(bodies)]
    sent = client.files.create(file=("a.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=sent.id, endpoint="/v1/responses", completion_window="24h")

    def output() -> str | None:
        return client.batches.retrieve(batch.id).output_file_id

    written = client.files.content(until_sync(output, 120, "the batch has its file") or "").text.splitlines()
    answers = [json.loads(each)["response"]["body"]["output"][-1]["content"][0]["text"] for each in written]
    assert answers == [RED.sentence, BLUE.sentence]


def test_two_pictures_are_told_apart_and_a_function_s_output_can_be_one(client: OpenAI) -> None:
    for pictures, text in (
        ((RED, BLUE), "A red square and a blue triangle."),
        ((BLUE, RED), "A blue triangle and a red square."),
    ):
        assert ask(client, [user("What are these?", *map(image, pictures))]).output_text == text
    call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [image(BLUE)]}
    assert ask(client, [user(WHAT), call, output]).output_text == BLUE.sentence


def test_a_picture_counts_as_its_tokens(client: OpenAI) -> None:
    one, two = [user(WHAT, image(RED))], [user(WHAT, image(RED), image(BLUE))]
    counts = [client.responses.input_tokens.count(model=VISION_MODEL, input=items).input_tokens for items in (one, two)]  # type: ignore[arg-type]
    assert counts == [ask(client, items).usage.input_tokens for items in (one, two)]
    assert counts[1] - counts[0] == 7  # four of the image, and three around it


def test_the_prefix_cache_tells_pictures_apart(client: OpenAI) -> None:
    filler = "Look at this picture. " * 20
    cached = []
    for picture in (RED, RED, BLUE):
        response = ask(client, [user(filler, image(picture)), user("What colour is it? " * 30), user(WHAT)])
        cached.append(response.usage.input_tokens_details.cached_tokens)
    again = ask(client, [user(filler, image(BLUE)), user("What colour is it? " * 30), user(WHAT)])
    assert again.usage.input_tokens_details.cached_tokens == cached[1]
    assert 0 < cached[2] < cached[1]  # the text before the picture is the same, what follows is not


def test_a_damaged_image_is_refused_or_fails_and_the_engine_goes_on(client: OpenAI) -> None:
    whole = base64.b64decode(image(RED, 500, 500)["image_url"].partition(",")[2])
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(whole[:600]).decode()}"}
    for mode in ({}, {"stream": True}):
        with pytest.raises(BadRequestError) as refused:
            ask(client, [user(WHAT, part)], **mode)
        assert (refused.value.code, refused.value.param) == ("invalid_prompt", "input[0].content[1]"), mode
    source = {"type": "base64", "media_type": "image/png", "data": part["image_url"].partition(",")[2]}
    content = [{"type": "text", "text": WHAT}, {"type": "image", "source": source}]
    body = {"model": VISION_MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": content}]}
    with pytest.raises(BadRequestError, match=r"messages\.0\.content\.1: the messages cannot be rendered"):
        client.post("/messages", cast_to=object, body=body)
    response = final(client, ask(client, [user(WHAT, part)], background=True).id)
    assert (response.status, response.error.code) == ("failed", "invalid_prompt")
    assert ask(client, [user(WHAT, image(RED))]).output_text == RED.sentence


def test_an_answer_goes_on_with_its_picture_after_the_worker_was_killed(vision: Longhaul, client: OpenAI) -> None:
    """`ignore_eos` makes the answer long, so that the kill comes in its middle; it begins with what is seen."""
    fields = {"max_output_tokens": LONG, "extra_body": {"ignore_eos": True}}
    items = [user(COUNT, image(BLUE))]
    undisturbed = ask(client, items, **fields).output_text
    worker = vision.named(["celeryd"])[0]
    events, before = [], ""
    for event in ask(client, items, stream=True, background=True, **fields):
        events.append(event.to_dict())
        if event.type == "response.output_text.delta" and not before:
            worker.send_signal(signal.SIGKILL)
            worker.wait(30)
            running = client.responses.retrieve(events[0]["response"]["id"])  # type: ignore[index]
            assert running.status == "in_progress"
            before = running.output_text
    grammar.check(events)
    text = events[-1]["response"]["output"][0]["content"][0]["text"]  # type: ignore[index]
    assert text == undisturbed
    assert "blue" in text.removeprefix(before)
