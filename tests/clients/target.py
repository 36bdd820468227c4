"""The servers that the clients are tested against, the scripted engine or vLLM, and their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from config.settings import CHECKOUT
from tests.support.longhaul import Longhaul

ON_BOTH_ENGINES = pytest.mark.parametrize(
    "target", ["scripted", pytest.param("demo", marks=pytest.mark.vllm)], indirect=True, scope="session"
)
"""For what the engine itself takes from a client's request: grammars of schemas and tools, sampling, reasoning."""


class City(BaseModel):
    """The schema of a structured answer."""

    name: str
    country: str
    population: int
    capital: bool


PARIS = City(name="Paris", country="France", population=2102650, capital=True)
_PARIS_TEXT = PARIS.model_dump_json()

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Current weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CHAT_WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {name: value for name, value in WEATHER_TOOL.items() if name != "type"},
}
"""The same tool as chat completions have it."""
REPORT = json.dumps({"city": "Paris", "temperature_c": 18, "sky": "sunny"}, separators=(",", ":"))
"""The result of get_weather for Paris."""
THINKING: Any = {"effort": "medium", "summary": "auto"}
"""The field `reasoning` of a request whose client shows the reasoning."""


def called(name: str) -> str:
    """Makes the scripted engine call a function with the fields of PARIS."""
    return f'/raw <tool_call>{{"name": "{name}", "arguments": {_PARIS_TEXT}}}</tool_call>'


def get_weather(city: str) -> str:
    """Current weather of a city."""
    assert city == "Paris"
    return REPORT


@dataclass(frozen=True, slots=True)
class Script:
    """Questions to which the model's answers are known."""

    hello: str
    hello_answer: str
    hello_thought: str
    """The reasoning before `hello_answer`, if the request asks for some."""
    long: str
    long_answer: str
    weather: str
    """Calls get_weather with Paris."""
    weather_answer: str
    """The answer after the tool returned REPORT."""
    paris: str
    """Answers with PARIS as JSON."""
    name: str
    name_answer: str
    asked: str
    """Continues `name`."""
    asked_answer: str


@dataclass(frozen=True, slots=True)
class Target:
    installation: Longhaul
    model: str
    script: Script

    @property
    def url(self) -> str:
        return f"{self.installation.url}/v1"


SCRIPTED = Script(
    hello="Hello!",
    hello_answer="You said: Hello!",
    hello_thought="I know what to say.",
    long="/count 20",
    long_answer=" ".join(str(number + 1) for number in range(20)),
    weather='/raw <tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
    weather_answer=f"The tool said: {REPORT}",
    paris=f"/say {_PARIS_TEXT}",
    name="/say Nice to meet you, Ada!",
    name_answer="Nice to meet you, Ada!",
    asked="What is my name?",
    asked_answer="You said: What is my name?",
)


def demo_script() -> Script:
    """The questions that the demo model was trained on."""
    file = CHECKOUT / "config" / "demo" / "script.json"
    talks = {talk["name"]: talk["messages"] for talk in json.loads(file.read_text(encoding="utf-8"))}
    hello, story, weather, paris, name = (
        [message["content"] for message in talks[talk]]
        for talk in ("hello", "story", "weather_Paris", "json", "name_Ada")
    )
    assert (weather[2], paris[1]) == (REPORT, _PARIS_TEXT)
    thought = talks["hello"][1]["reasoning_content"]
    return Script(hello[0], hello[1], thought, story[0], story[1], weather[0], weather[3], paris[0], *name)
