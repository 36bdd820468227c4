"""Items of a response's context to steps: what was said, thought, called and returned, in any format of prompts.

Tools that items bring are in the list of tools, and a list of an MCP server's tools is none of the model's business:
such items make no step. A call that needed approval is shown in the position of its request; before the client has
answered, it is not shown.

Clients of other servers send back answers with their thoughts in `<think>`: these are steps of their own. Otherwise a
template could not leave out the thoughts of earlier answers, because marks in a text are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.protocol.item_types import (
    ADDITIONAL_TOOLS,
    APPROVAL_REQUEST,
    APPROVAL_RESPONSE,
    CLIENT_CALLS,
    CLIENT_OUTPUTS,
    HOSTED_CALLS,
    MCP_CALL,
    MCP_LIST_TOOLS,
    MESSAGE,
    REASONING,
    SERVER,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
)
from app.protocol.local_kinds import LOCAL_CALLS
from workers.engine.base import InvalidPrompt
from workers.formats.calls.client_tools import TOOL_SEARCH, ClientTools, loaded_text
from workers.formats.calls.hosted import NameStyle, ShownCall
from workers.formats.calls.hosted_formats import result_of, shown_call
from workers.formats.calls.local_tools import BY_OUTPUT, shown_arguments, shown_output
from workers.formats.calls.string_argument import INPUT_ARGUMENT
from workers.formats.content import Result, text_of

Item = Mapping[str, Any]

_THOUGHTS = re.compile(r"\s*<((?:\w+:)?think\w*)>(.*?)</\1>\s*", re.DOTALL)
_DENIED = "The user did not allow this call."
_ABOUT_APPROVAL = frozenset({APPROVAL_REQUEST, APPROVAL_RESPONSE, MCP_CALL})
_NOT_SHOWN = frozenset({ADDITIONAL_TOOLS, MCP_LIST_TOOLS, APPROVAL_RESPONSE})
_CALLS = frozenset({APPROVAL_REQUEST, *CLIENT_CALLS, *HOSTED_CALLS})


@dataclass(frozen=True, slots=True)
class Said:
    """A message."""

    role: str
    content: Result
    phase: str | None
    """Phase of the model's message, if the item has one."""
    leads_to_call: bool
    """Whether a call is the next item after this one and reasoning."""


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning of the model; the text may be empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The model's call of a tool that the client runs."""

    call_id: str
    name: str
    """What the model calls the tool."""
    arguments: str


@dataclass(frozen=True, slots=True)
class Returned:
    """The output of a client's tool."""

    call_id: str
    """Id of its call. For an output that nothing called for: the id of the item."""
    name: str | None
    """What the model calls the tool; None: the call is not there."""
    output: Result


@dataclass(frozen=True, slots=True)
class Ran:
    """The model's call of a hosted tool, and its result."""

    id: str
    call: ShownCall
    result: Result
    turn: int | None
    """Calls of one turn were written together; None: unknown."""


Step = Said | Thought | Called | Returned | Ran


def steps_of(items: Sequence[Item], style: NameStyle, client: ClientTools) -> Iterator[Step]:
    """The steps of these items, one by one: a context may have many thousands.

    Raises InvalidPrompt if no model takes one of them.
    `style`: how the model's format names tools. `client` has the names of the tools that the items call.
    """
    walk = _Walk(items, style, client)
    for item, leads_to_call in zip(items, _leading_to_calls(items), strict=True):
        if (step := walk.step(item, leads_to_call)) is not None:
            yield from _apart(step) if isinstance(step, Said) and step.role == "assistant" else [step]


def _apart(answer: Said) -> Iterator[Step]:
    """The thoughts at the head of an answer, and the answer."""
    text = text_of(answer.content)
    if (thoughts := _THOUGHTS.match(text)) is None:
        yield answer
        return
    yield Thought(thoughts[2].strip())
    if rest := text[thoughts.end() :]:
        yield replace(answer, content=rest)


def _leading_to_calls(items: Sequence[Item]) -> list[bool]:
    """For each item: whether the next item, reasoning aside, is a call."""
    leads, is_call = [False] * len(items), False
    for index in range(len(items) - 1, -1, -1):
        leads[index] = is_call
        if items[index]["type"] != REASONING:
            is_call = items[index]["type"] in _CALLS
    return leads


class _Walk:
    """Makes the step of one item, and knows the items around it."""

    def __init__(self, items: Iterable[Item], style: NameStyle, client: ClientTools) -> None:
        self._style = style
        self._client = client
        self._names: dict[str, str] = {}
        """Id of a call so far -> name of the client's tool."""
        self._searched: str | None = None
        """The id of the newest search on the server, which the next output of one answers."""
        self._requests: set[str] = set()
        self._answers: dict[str, Item] = {}
        self._approved: dict[str, Item] = {}
        """Calls, and before them the client's answers, by the id of their approval request."""
        for item in items:
            if item["type"] in _ABOUT_APPROVAL:
                self._note(item)

    def step(self, item: Item, leads_to_call: bool) -> Step | None:
        """None: the model is not shown this item."""
        kind = item["type"]
        if kind in _NOT_SHOWN:
            return None
        if kind == MESSAGE:
            return Said(item["role"], item["content"], item.get("phase"), leads_to_call)
        if kind == REASONING:
            return Thought(text_of(item.get("content") or ()) or text_of(item.get("summary") or ()))
        if kind == APPROVAL_REQUEST:
            return self._approval(item)
        if kind in HOSTED_CALLS:
            return self._ran(item)
        if kind in CLIENT_CALLS:
            return self._called(item, *self._call_of(item))
        if kind in CLIENT_OUTPUTS:
            return self._returned(item)
        raise InvalidPrompt(f"this model takes no item of type {kind!r}")

    def _note(self, item: Item) -> None:
        kind = item["type"]
        if kind == APPROVAL_REQUEST:
            self._requests.add(item["id"])
        elif kind == APPROVAL_RESPONSE:
            self._answers[item["approval_request_id"]] = item
        elif item.get("approval_request_id"):
            self._approved[item["approval_request_id"]] = item

    def _call_of(self, item: Item) -> tuple[str, str]:
        """The name and the arguments of a client's tool, as the model would have written them."""
        kind = item["type"]
        if kind in LOCAL_CALLS:
            return LOCAL_CALLS[kind].function, shown_arguments(item)
        if kind == "function_call":
            return self._client.called_name(item), item["arguments"]
        if kind == TOOL_SEARCH_CALL:
            return TOOL_SEARCH, json.dumps(item["arguments"], ensure_ascii=False)
        return self._client.called_name(item), json.dumps({INPUT_ARGUMENT: item["input"]}, ensure_ascii=False)

    def _called(self, item: Item, name: str, arguments: str) -> Step:
        if item.get("execution") == SERVER:
            self._searched = item["id"]
            return Called(item["id"], name, arguments)
        self._names[item["call_id"]] = name
        return Called(item["call_id"], name, arguments)

    def _returned(self, item: Item) -> Step:
        if item["type"] == TOOL_SEARCH_OUTPUT:
            output: Result = loaded_text(item, self._client)
            if item.get("execution") == SERVER:
                return Returned(self._searched or item["id"], TOOL_SEARCH, output)
        else:
            output = shown_output(item) if item["type"] in BY_OUTPUT else item["output"]
        call_id = item.get("call_id")
        if call_id is None:  # nothing called for it
            return Returned(item["id"], self._client.called_name(item), output)
        return Returned(call_id, self._names.get(call_id), output)

    def _ran(self, item: Item) -> Step | None:
        if item.get("approval_request_id") in self._requests:
            return None
        turn = (item.get("call") or {}).get("turn")
        return Ran(item["id"], shown_call(item, self._style), result_of(item), turn)

    def _approval(self, item: Item) -> Step | None:
        if (call := self._approved.get(item["id"])) is not None:
            result = result_of(call)
        elif (answer := self._answers.get(item["id"])) is not None and not answer["approve"]:
            result = f"{_DENIED} {answer.get('reason') or ''}".strip()
        else:
            return None
        return Ran(item["id"], shown_call({**item, "type": MCP_CALL}, self._style), result, None)
