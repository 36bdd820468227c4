"""What is asked, as lines of a batch and as requests, and the answer that is right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

Json = dict[str, Any]

RESPONSES = "/v1/responses"
CHAT = "/v1/chat/completions"

_WEATHER: Json = {
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
_PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "birth_year": {"type": "integer"},
        "city": {"type": "string"},
    },
    "required": ["name", "birth_year", "city"],
    "additionalProperties": False,
}
_DEMO = Path(__file__).resolve().parents[3] / "config" / "demo" / "script.json"


@dataclass(frozen=True, slots=True)
class Question:
    prompt: str
    text: str | None = None
    """The answer, if it is a text."""
    call: Json | None = None
    """The arguments of the call of `get_weather`, if the answer is one."""
    schema: Json | None = None
    """What a structured answer is held to."""

    def body(self, endpoint: str, model: str) -> Json:
        """Returns the request of the endpoint."""
        if endpoint == RESPONSES:
            body: Json = {"model": model, "input": self.prompt}
            if self.call is not None:
                body["tools"] = [{"type": "function", **_WEATHER}]
            if self.schema is not None:
                form = {"type": "json_schema", "name": "person", "schema": self.schema, "strict": True}
                body["text"] = {"format": form}
            return body
        body = {"model": model, "messages": [{"role": "user", "content": self.prompt}]}
        if self.call is not None:
            body["tools"] = [{"type": "function", "function": _WEATHER}]
        if self.schema is not None:
            named = {"name": "person", "schema": self.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body

    def is_answered_by(self, body: Json) -> bool:
        """Whether a response, or a chat completion, is the right answer."""
        text, call = _said(body)
        return (text or None, call) == (self.text, self.call)


def _said(body: Json) -> tuple[str | None, Json | None]:
    """The text, and the arguments of the call of a function."""
    if body["object"] == "chat.completion":
        message = body["choices"][0]["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
        text = message.get("content")
    else:
        parts = [part for item in body["output"] if item["type"] == "message" for part in item["content"]]
        calls = [item["arguments"] for item in body["output"] if item["type"] == "function_call"]
        text = "".join(part["text"] for part in parts)
    return text, json.loads(calls[0]) if calls else None


def line(custom_id: str, endpoint: str, body: Json) -> Json:
    return {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body}


def scripted() -> Sequence[Question]:
    """For the scripted engine."""
    call = json.dumps({"name": "get_weather", "arguments": {"city": "Oslo"}})
    person = json.dumps({"name": "Ada", "birth_year": 1815, "city": "London"})
    return (
        Question("/count 40", " ".join(map(str, range(1, 41)))),
        Question(f"/raw <tool_call>{call}</tool_call>", call={"city": "Oslo"}),
        Question(f"/say {person}", person, schema=_PERSON),
        Question("/say Good morning, 世界", "Good morning, 世界"),
    )


def of_demo() -> Sequence[Question]:
    """For the demo model: what it knows by heart."""
    talks: Mapping[str, Json] = {talk["name"]: talk for talk in json.loads(_DEMO.read_text(encoding="utf-8"))}

    def asked(name: str, **more: Any) -> Question:
        question, answer, *_ = talks[name]["messages"]
        called = [call["function"]["arguments"] for call in answer.get("tool_calls", ())]
        return Question(question["content"], answer["content"] or None, called[0] if called else None, **more)

    plain = (asked(name) for name in ("hello", "mult", "capital", "capital2", "unicode", "stop"))
    tools = (asked(f"weather_{city}") for city in ("Paris", "Oslo", "Tokyo"))
    return (*plain, *tools, asked("person", schema=_PERSON))


def repeated(questions: Sequence[Question], count: int) -> list[Question]:
    return list(islice(cycle(questions), count))


def bad_lines(model: str) -> list[str]:
    """Twenty lines, each wrong in its own way or with its own name; `custom_id` "good-1" is taken already."""
    good = line("x", RESPONSES, {"model": model, "input": "Hi"})

    def changed(number: int, **more: Any) -> str:
        return json.dumps({**good, "custom_id": f"bad-{number}", **more})

    def body(number: int, **more: Any) -> str:
        return changed(number, body={**good["body"], **more})

    return [
        "{",
        "not JSON",
        "[]",
        "null",
        json.dumps({"custom_id": "bad-4"}),
        changed(5, custom_id="good-1"),
        changed(6, custom_id=""),
        changed(7, custom_id=7),
        changed(8, method="GET"),
        changed(9, url=CHAT),
        changed(10, url="/v1/embeddings"),
        changed(11, body="Hi"),
        changed(12, more=True),
        body(13, model="nobody's"),
        body(14, temperature="hot"),
        body(15, temperature=9),
        body(16, stream=True),
        body(17, tools=[{"type": "file_search", "vector_store_ids": ["vs_1"]}]),
        body(18, input=[{"role": "user", "content": [{"type": "input_file", "file_id": "file_none"}]}]),
        body(19, frequenzy_penalty=1),
    ]
