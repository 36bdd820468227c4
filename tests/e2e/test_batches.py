"""Batches on real processes, by the official client, while a worker is killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, cast

import httpx2
import pytest
from openai import OpenAI, Stream
from openai.types import Batch

from tests.e2e.conftest import counted
from tests.support.longhaul import Longhaul
from tests.support.tool_servers import call

MODEL = "scripted"
LINES = 100
"""Lines of both batches together."""
CUT = 20
"""Results after which a reader is cut, and resumes."""
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
Json = dict[str, Any]
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA: Json = {"name": "city", "schema": {**CITY, "additionalProperties": False}, "strict": True}


@dataclass(frozen=True, slots=True)
class Question:
    prompt: str
    text: str = ""
    """The answer, if it is a text."""
    calls: bool = False
    """Whether the answer is a call of get_weather for Oslo."""
    structured: bool = False

    def body(self, endpoint: str) -> Json:
        """Returns the request of the endpoint."""
        tool = {"name": "get_weather", "parameters": CITY}
        if endpoint == RESPONSES:
            tools = {"tools": [{"type": "function", **tool}]} if self.calls else {}
            form = {"text": {"format": {"type": "json_schema", **SCHEMA}}} if self.structured else {}
            return {"model": MODEL, "input": self.prompt, **tools, **form}
        tools = {"tools": [{"type": "function", "function": tool}]} if self.calls else {}
        form = {"response_format": {"type": "json_schema", "json_schema": SCHEMA}} if self.structured else {}
        return {"model": MODEL, "messages": [{"role": "user", "content": self.prompt}], **tools, **form}

    def is_answered_by(self, body: Json) -> bool:
        """Whether a response, or a chat completion, is the right answer."""
        if body["object"] == "chat.completion":
            message = body["choices"][0]["message"]
            calls = [each["function"]["arguments"] for each in message.get("tool_calls") or ()]
            text = message.get("content") or ""
        else:
            calls = [item["arguments"] for item in body["output"] if item["type"] == "function_call"]
            messages = (item for item in body["output"] if item["type"] == "message")
            text = "".join(part["text"] for item in messages for part in item["content"])
        return (text, list(map(json.loads, calls))) == (self.text, [{"city": "Oslo"}] * self.calls)


OSLO = json.dumps({"city": "Oslo"})
QUESTIONS = (
    Question("/count 40", counted(40)),
    Question(f"/raw {call('get_weather', city='Oslo')}", calls=True),
    Question(f"/say {OSLO}", OSLO, structured=True),
    Question("/say Good morning, 世界", "Good morning, 世界"),
)


@pytest.fixture
def client(pair: Longhaul) -> Iterator[OpenAI]:
    with pair.client().with_options(timeout=120) as client:
        yield client


def created(client: OpenAI, asked: Sequence[Question], endpoint: Any) -> Batch:
    lines = [
        {"custom_id": str(place), "method": "POST", "url": endpoint, "body": each.body(endpoint)}
        for place, each in enumerate(asked)
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("requests.jsonl", data), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def results(client: OpenAI, batch_id: str, after: int) -> Iterator[Json]:
    options: Any = {"params": {"after": after}}
    path = f"/batches/{batch_id}/results"
    answer = client.get(path, cast_to=httpx2.Response, stream=True, stream_cls=Stream[Any], options=options)
    with closing(cast(httpx2.Response, answer)) as opened:
        yield from (json.loads(each) for each in opened.iter_lines() if each.strip())


def followed(client: OpenAI, batch_id: str, in_the_middle: Callable[[], None] | None) -> list[Json]:
    """The results of the batch as they end; the reader is cut again and again, and goes on behind the last one."""
    seen: list[Json] = []
    while True:
        for read, each in enumerate(results(client, batch_id, len(seen)), 1):
            if "batch" in each:
                return seen
            seen.append(each)
            if in_the_middle is not None and len(seen) >= LINES // 8:
                in_the_middle()
                in_the_middle = None
            if read == CUT:
                break


def check(client: OpenAI, batch_id: str, asked: Sequence[Question], followed: Sequence[Json]) -> None:
    """Every line has its answer once: in what was followed, in the file, in the counts and in the usage."""
    batch = client.batches.retrieve(batch_id, extra_query={"wait": 30})
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None), batch
    counts, usage = batch.request_counts, batch.usage
    assert counts is not None and usage is not None and batch.output_file_id is not None
    assert (counts.total, counts.completed, counts.failed) == (len(asked), len(asked), 0)
    assert [each.pop("number") for each in followed] == list(range(1, len(asked) + 1))
    output = [json.loads(each) for each in client.files.content(batch.output_file_id).iter_lines()]
    assert [each["custom_id"] for each in output] == [str(place) for place in range(len(asked))]
    assert output == sorted(followed, key=lambda each: int(each["custom_id"]))
    for question, each in zip(asked, output, strict=True):
        assert each["response"]["status_code"] == 200 and question.is_answered_by(each["response"]["body"]), each
    used = [each["response"]["body"]["usage"] for each in output]
    assert usage.total_tokens == sum(each["total_tokens"] for each in used)


def test_two_batches_are_followed_while_a_worker_is_killed(pair: Longhaul, client: OpenAI, both: list[str]) -> None:
    asked = list(islice(cycle(QUESTIONS), LINES // 2))
    batches = {endpoint: created(client, asked, endpoint).id for endpoint in (RESPONSES, CHAT)}
    with ThreadPoolExecutor(2) as pool:
        kill = pair.named(["celeryd"])[0].kill
        following = {
            batch: pool.submit(followed, client, batch, kill if endpoint == RESPONSES else None)
            for endpoint, batch in batches.items()
        }
        for batch, found in following.items():
            check(client, batch, asked, found.result())
