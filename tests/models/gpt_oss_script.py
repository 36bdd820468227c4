"""The tiny gpt-oss's transcripts as requests, contexts and turns: what it is asked, and what it has to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.item_types import HOSTED_CALLS
from tests.models.gpt_oss_folder import script
from tests.support.deltas import play
from tests.support.requests import message, stored_request
from workers.engine import harmony_vocabulary as harmony
from workers.formats.answer import AnswerRules
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.turn import PastTurn, TurnContext

Json = dict[str, Any]

CREATED = 1790000000
"""2026-09-21, in seconds: a day that training showed no more than others."""


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
SEEN = TurnContext(CREATED, {"library": LISTED})


def asked(said: str, **fields: Any) -> Json:
    """A stored request; `fields` may be any of it."""
    return {**stored_request(said), **fields}


def tools_for(offers: Sequence[str]) -> list[Json]:
    """What a request offers, as it is sent."""
    return [tool for offer in offers for tool in TOOLS[offer]]


@dataclass(frozen=True, slots=True)
class Point:
    """A turn of a transcript, about to be written."""

    name: str
    request: Json
    items: tuple[Json, ...]
    past: tuple[PastTurn, ...]
    text: str
    """What has to come."""

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
    for place, step in enumerate(steps):
        if "asked" in step:
            items, past = [*items, message(step["asked"])], []
        elif "said" in step:
            yield Point(f"{name}[{place}]", request, tuple(items), tuple(past), step["said"])
            made, open_calls = _answered(request, step["said"], _told(steps, place))
            if open_calls or not any("call" in item for item in made):
                items = [*items, *(item for turn in past for item in turn.items), *made, *open_calls]
                past = []
            else:
                past = [*past, PastTurn(tuple(encoded(step["said"])), tuple(made))]


def _told(steps: Sequence[Json], place: int) -> list[Json]:
    told = []
    for step in steps[place + 1 :]:
        if "told" not in step:
            break
        told.append(step["told"])
    return told


def _answered(request: Json, text: str, told: list[Json]) -> tuple[list[Json], list[Json]]:
    """The items of a turn, the results of the server's calls in them, and the outputs of the client's."""
    hosted = hosted_tools_of(request, SEEN.listings, NameStyle.HARMONY)
    functions = frozenset(tool["name"] for tool in request["tools"] if tool["type"] == "function")
    custom = frozenset(tool["name"] for tool in request["tools"] if tool["type"] == "custom")
    parser = HarmonyParser(AnswerRules(functions=functions, custom=custom, hosted=hosted))
    deltas = [*parser.feed(encoded(text)).deltas, *parser.flush().deltas]
    stream, _ = play(deltas, "stop")
    items, calls, outputs = stream.response["output"], list(parser.calls), []
    for item in items:
        if item["type"] in HOSTED_CALLS:
            call = calls.pop(0)
            item["call"] = {**call.as_json(), "result": _result(told, call.name)}
        elif "call_id" in item:
            output = _result(told, f"functions.{item['name']}")
            outputs.append({"type": f"{item['type']}_output", "call_id": item["call_id"], "output": output})
    return items, outputs


def _result(told: list[Json], name: str) -> str:
    place = next(index for index, step in enumerate(told) if step["name"] == name)
    text: str = told.pop(place)["text"]
    return text


def shown_again(point: Point) -> Point:
    """The same turn, its response's earlier turns shown as items of another response."""
    return replace(point, items=(*point.items, *(item for turn in point.past for item in turn.items)), past=())
