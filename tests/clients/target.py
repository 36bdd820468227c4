"""What the clients talk to, and what they are told there: the scripted engine, or vLLM with the demo model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from tests.support.longhaul import Longhaul


class City(BaseModel):
    """The form of a structured answer."""

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
WEATHER = {"city": "Paris", "temperature_c": 18, "sky": "sunny"}
REPORT = json.dumps(WEATHER, separators=(",", ":"))
"""What get_weather says about Paris."""


@dataclass(frozen=True, slots=True)
class Script:
    """Questions, and what the model was told to answer."""

    hello: str
    hello_answer: str
    long: str
    long_answer: str
    weather: str
    """Calls get_weather with Paris."""
    weather_answer: str
    """After the tool has said REPORT."""
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


_CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
_COUNTED = " ".join(str(number + 1) for number in range(200))

SCRIPTED = Script(
    hello="Hello!",
    hello_answer="You said: Hello!",
    long="/count 200",
    long_answer=_COUNTED,
    weather=f"/raw {_CALL}",
    weather_answer=f"The tool said: {REPORT}",
    paris=f"/say {_PARIS_TEXT}",
    name="/say Nice to meet you, Ada!",
    name_answer="Nice to meet you, Ada!",
    asked="What is my name?",
    asked_answer="You said: What is my name?",
)


def demo_script(talks: dict[str, list[dict[str, Any]]]) -> Script:
    """What the demo model was taught; `talks` are its conversations' messages by name."""
    hello, story, weather, paris, name = (
        [message["content"] for message in talks[talk]]
        for talk in ("hello", "story", "weather_Paris", "json", "name_Ada")
    )
    assert weather[2] == REPORT
    assert paris[1] == _PARIS_TEXT
    return Script(hello[0], hello[1], story[0], story[1], weather[0], weather[3], paris[0], *name)
