"""The tiny gpt-oss's transcripts as requests, contexts and turns, with the text that it has to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from app.protocol.events.deltas import TurnEnd
from app.protocol.item_types import HOSTED_CALLS
from tests.models.gpt_oss_folder import script
from tests.support.deltas import play
from tests.support.requests import message, stored_request
from workers.engine import harmony_vocabulary as harmony
from workers.formats.answer import AnswerRules
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.router import CallableTools
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.turn import PastTurn

Json = dict[str, Any]

CREATED = 1790000000
"""2026-09-21, in seconds: no special day in training."""


def _function(name: str, description: str, parameter: str) -> Json:
    schema: Json = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
        "additionalProperties": False,
    }
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": None}


FUNCTIONS: list[Json] = [
    _function("get_weather", "Current weather of a city.", "city"),
    _function("lookup", "Looks something up in a handbook.", "query"),
    {"type": "custom", "name": "shell", "description": "Runs a shell command.", "format": {"type": "text"}},
]
PYTHON: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
BROWSER: Json = {"type": "web_search"}
LIBRARY: Json = {"type": "mcp", "server_label": "library", "require_approval": "never"}
TOOLS: dict[str, list[Json]] = {"functions": FUNCTIONS, "python": [PYTHON], "browser": [BROWSER], "library": [LIBRARY]}
LISTED: list[Json] = [
    {
        "name": name,
        "description": description,
        "input_schema": _function(name, description, parameter)["parameters"],
        "annotations": None,
    }
    for name, description, parameter in (
        ("find_book", "Finds a book of the library.", "topic"),
        ("lend_book", "Lends a book of the library.", "title"),
    )
]
LISTINGS = {"library": LISTED}


def asked(user_text: str, **fields: Any) -> Json:
    """A stored request; `fields` overrule its own."""
    return {**stored_request(user_text), **fields}


def tools_for(offers: Sequence[str]) -> list[Json]:
    """The tools of a request, as a client sends them."""
    return [tool for offer in offers for tool in TOOLS[offer]]


@dataclass(frozen=True, slots=True)
class Point:
    """A turn of a transcript that the model has to write."""

    name: str
    request: Json
    items: tuple[Json, ...]
    past: tuple[PastTurn, ...]
    text: str
    """The text that the model has to write."""

    @property
    def tokens(self) -> list[int]:
        return encoded(self.text)


def encoded(text: str) -> list[int]:
    tokens: list[int] = harmony.encoding().encode(text, allowed_special="all")
    return tokens


def points(**fields: Any) -> Iterator[Point]:
    """Every turn of every transcript."""
    for name in script():
        yield from points_of(name, **fields)


def points_of(name: str, **fields: Any) -> Iterator[Point]:
    transcript = script()[name]
    request = asked("", tools=tools_for(transcript["offers"]), **fields)
    items: list[Json] = []
    past: list[PastTurn] = []
    steps = transcript["steps"]
    for index, step in enumerate(steps):
        if "user" in step:
            items, past = [*items, message(step["user"])], []
        elif "model" in step:
            yield Point(f"{name}[{index}]", request, tuple(items), tuple(past), step["model"])
            made, open_calls = _answered(request, step["model"], _tool_answers(steps, index))
            if open_calls or not any("call" in item for item in made):
                items = [*items, *(item for turn in past for item in turn.items), *made, *open_calls]
                past = []
            else:
                past = [*past, PastTurn(tuple(encoded(step["model"])), tuple(made))]


def _tool_answers(steps: Sequence[Json], index: int) -> list[Json]:
    answers = []
    for step in steps[index + 1 :]:
        if "tool" not in step:
            break
        answers.append(step["tool"])
    return answers


def _answered(request: Json, text: str, answers: list[Json]) -> tuple[list[Json], list[Json]]:
    """The items of a turn, with the results of hosted calls, and the outputs of the client's calls."""
    hosted = hosted_tools_of(request, LISTINGS, NameStyle.HARMONY)
    functions = frozenset(tool["name"] for tool in request["tools"] if tool["type"] == "function")
    custom = frozenset(tool["name"] for tool in request["tools"] if tool["type"] == "custom")
    parser = HarmonyParser(AnswerRules(tools=CallableTools(functions=functions, custom=custom, hosted=hosted)))
    deltas = [*parser.feed(encoded(text)).deltas, *parser.flush().deltas]
    stream, _ = play([*deltas, TurnEnd()], "cancel")  # the turn has ended, and not the response
    items, calls, outputs = stream.response["output"], list(parser.calls), []
    for item in items:
        if item["type"] in HOSTED_CALLS:
            call = calls.pop(0)
            item["call"] = {**asdict(call), "result": _result(answers, call.name)}
        elif "call_id" in item:
            output = _result(answers, f"functions.{item['name']}")
            outputs.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": output})
    return items, outputs


def _result(answers: list[Json], name: str) -> str:
    index = next(index for index, step in enumerate(answers) if step["name"] == name)
    text: str = answers.pop(index)["text"]
    return text


def shown_again(point: Point) -> Point:
    """The same turn, with its earlier turns as items of another response."""
    return replace(point, items=(*point.items, *(item for turn in point.past for item in turn.items)), past=())
