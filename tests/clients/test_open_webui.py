"""Open WebUI: the requests of a real session in both of its API types, and the answers as it reads them.

tests/data/open_webui.json has what Open WebUI sent when a person in a browser talked, stopped, regenerated, used a
tool, set parameters and saw reasoning and titles (docs/clients.md says how; its own descriptions of tools are left
out). Open WebUI itself is a gigabyte. How it reads answers is in its utils/middleware.py and utils/response.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.target import REPORT, Target
from tests.support.waiting import until_sync

SESSION = json.loads((Path(__file__).parents[1] / "data" / "open_webui.json").read_text(encoding="utf-8"))
SHOWN = {
    "chat": "Nice to meet you, Ada!",
    "chat goes on": "You said: What is my name?",
    "after a stop": "I go on.",
    "tool result": f"The tool said: {REPORT}",
    "after a tool": "After the tool.",
    "parameters": "You said: Hello!",
    "reasoning": "You said: Hello!",
    "after reasoning": "You said: Bye!",
    "title": '{"title": "A talk with Ada"}',
    "follow_ups": '{"follow_ups": ["Go on."]}',
    "tags": '{"tags": ["talk"]}',
}
"""The text that a person sees, or that Open WebUI reads a title, questions and tags from."""


@dataclass
class Shown:
    """What Open WebUI has read of an answer."""

    text: str = ""
    thought: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: Any = None

    def read(self, lines: Iterable[str]) -> Shown:
        """Reads a stream line by line: no line depends on one before it, such as `event:`."""
        for line in lines:
            if line.startswith("data:") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data:"))
                (self._event if event.get("type", "").startswith("response.") else self._chunk)(event)
        return self

    def _chunk(self, chunk: dict[str, Any]) -> None:
        """Open WebUI looks for an error only where there are no choices, and takes llama.cpp's `timings` for an
        object."""
        self.usage.update(chunk.get("usage") or {}, **chunk.get("timings", {}))
        if not chunk.get("choices"):
            self.error = chunk.get("error")
            return
        delta = chunk["choices"][0]["delta"]
        self.text += delta.get("content") or ""
        self.thought += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or []:
            kept = self.calls.setdefault(call["index"], {"name": "", "arguments": "", "call_id": call.get("id")})
            for name in ("name", "arguments"):
                kept[name] += call["function"].get(name) or ""

    def _event(self, event: dict[str, Any]) -> None:
        kind, item = event["type"], event.get("item", {})
        if kind == "response.output_text.delta":
            self.text += event["delta"]
        elif kind == "response.reasoning_text.delta":
            self.thought += event["delta"]
        elif kind == "response.output_item.done" and item["type"] == "function_call":
            self.calls[event["output_index"]] = item
        elif kind == "response.completed":
            self.usage.update(event["response"]["usage"])
        elif kind == "response.failed":
            self.error = event["response"]["error"]


@pytest.fixture(params=["chat", "responses"])
def api(request: pytest.FixtureRequest) -> str:
    """Open WebUI's API type of the connection."""
    return str(request.param)


@pytest.fixture
def http(scripted_target: Target) -> Iterator[httpx.Client]:
    with scripted_target.installation.http() as opened:
        yield opened


def recorded(api: str, step: str, **changed: Any) -> dict[str, Any]:
    (request,) = [each for each in SESSION["requests"] if (each["api"], each["step"]) == (api, step)]
    tools = {"tools": SESSION["tools"][api]} if "tools" in request["body"] else {}
    body = {**request["body"], **tools, **changed}
    return {"method": "POST", "url": request["path"], "headers": SESSION["headers"], "json": body}


def asked(http: httpx.Client, api: str, step: str) -> Shown:
    """Sends a recorded request, and returns what its answer shows."""
    request = recorded(api, step)
    answer = http.request(**request)
    assert answer.status_code == 200, answer.text
    if request["json"]["stream"]:
        return Shown().read(answer.text.splitlines())
    body = answer.json()
    if api == "chat":
        return Shown(body["choices"][0]["message"]["content"])
    return Shown("".join(p["text"] for item in body["output"] if item["type"] == "message" for p in item["content"]))


def test_every_request_of_the_session_is_answered(http: httpx.Client, scripted_target: Target, api: str) -> None:
    """Talks, a regeneration, the results of one of 37 tools, titles and tags; reasoning apart from the text."""
    shown = {step: asked(http, api, step) for step in (*SHOWN, "tool")}
    assert {step: (each.text, each.error) for step, each in shown.items() if step in SHOWN} == {
        step: (text, None) for step, text in SHOWN.items()
    }
    assert shown["chat"].usage["total_tokens"] > 0
    (call,) = shown["tool"].calls.values()
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"})
    assert call["call_id"].startswith("call_")
    assert shown["reasoning"].thought.strip() == scripted_target.script.hello_thought
    if api == "chat":
        assert "reasoning_content" in recorded("chat", "after reasoning")["json"]["messages"][1]


def test_a_stop_cancels_the_response(http: httpx.Client, api: str) -> None:
    """Stored, so that its status can be read."""
    with http.stream(**recorded(api, "stop", store=True)) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(line for line in lines if line.startswith("data:")).removeprefix("data:"))
        assert any('"1' in line for line in lines)
    response = answer.headers["x-longhaul-response"] if api == "chat" else first["response"]["id"]
    until_sync(lambda: http.get(f"/v1/responses/{response}").json()["status"] == "cancelled")


def test_a_parameter_of_ollama_is_refused_by_name(http: httpx.Client, api: str) -> None:
    """Open WebUI offers Ollama's for every model, sends those that are set, and shows the person this error."""
    answer = http.request(**recorded(api, "ollama"))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "num_ctx")
    assert "num_ctx" in error["message"]


def test_an_error_in_a_stream_is_shown(http: httpx.Client, api: str) -> None:
    said: Any = {"messages": [{"role": "user", "content": "/fail 3"}]} if api == "chat" else {"input": "/fail 3"}
    shown = Shown().read(http.request(**recorded(api, "stop", **said)).text.splitlines())
    assert shown.text
    assert shown.error["message"]
