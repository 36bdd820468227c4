"""A call while the model writes it: its deltas, piece by piece.

a client's function           CallStart, CallArguments...
a custom tool                 CustomStart, CustomInput...   (the string in its JSON)
the client's tool search      ToolSearch                    (whole)
a hosted tool                 see `python.py`, `browser.py`, `mcp.py`
a name that may not be called Text: the JSON that the model wrote, if the request has no hosted tools
"""

from __future__ import annotations

import json
from typing import Protocol

from app.protocol.events.deltas import CallArguments, CallStart, CustomInput, CustomStart, Delta, Text, ToolSearch
from workers.formats.calls.client_tools import ClientName
from workers.formats.calls.hosted import HostedCall, HostedTool, arguments_of
from workers.formats.calls.string_argument import StringArgumentReader


class OpenCall(Protocol):
    """A call that the model is writing."""

    hosted_call: HostedCall | None
    """The call that the server has to run; set by `finish`."""

    def start(self) -> list[Delta]: ...

    def feed(self, text: str) -> list[Delta]:
        """Characters of its arguments."""

    def finish(self, *, cut: bool) -> list[Delta]:
        """What was held back. `cut`: the model was interrupted, perhaps within the call."""


class FunctionCall:
    """A call of one of the client's functions."""

    hosted_call: HostedCall | None = None

    def __init__(self, name: ClientName) -> None:
        self._name = name

    def start(self) -> list[Delta]:
        return [CallStart(self._name.name, self._name.namespace)]

    def feed(self, text: str) -> list[Delta]:
        return [CallArguments(text)]

    def finish(self, *, cut: bool) -> list[Delta]:
        return []


class CustomCall:
    """A call of one of the client's custom tools."""

    hosted_call: HostedCall | None = None

    def __init__(self, name: ClientName) -> None:
        self._name = name
        self._reader = StringArgumentReader()

    def start(self) -> list[Delta]:
        return [CustomStart(self._name.name, self._name.namespace)]

    def feed(self, text: str) -> list[Delta]:
        value = self._reader.feed(text)
        return [CustomInput(value)] if value else []

    def finish(self, *, cut: bool) -> list[Delta]:
        rest = self._reader.flush()
        return [CustomInput(rest)] if rest else []


class CollectedCall:
    """The base of calls that show nothing until they are complete."""

    hosted_call: HostedCall | None = None

    def __init__(self) -> None:
        self._arguments = ""

    def start(self) -> list[Delta]:
        return []

    def feed(self, text: str) -> list[Delta]:
        self._arguments += text
        return []

    def finish(self, *, cut: bool) -> list[Delta]:
        return []


class SearchCall(CollectedCall):
    """A call of the client's tool search: a ToolSearch, once it is complete. Half a call shows nothing.

    Arguments that are no JSON object become the string `arguments` in one.
    """

    def finish(self, *, cut: bool) -> list[Delta]:
        arguments = arguments_of(self._arguments)
        if cut and not (self._arguments and arguments is not None):
            return []
        return [ToolSearch({"arguments": self._arguments} if arguments is None else arguments)]


class DisallowedCall(CollectedCall):
    """A call of a name that may not be called, shown as text."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def start(self) -> list[Delta]:
        return [Text(f'{{"name": {json.dumps(self._name, ensure_ascii=False)}, "arguments": ')]

    def feed(self, text: str) -> list[Delta]:
        super().feed(text)
        return [Text(text)]

    def finish(self, *, cut: bool) -> list[Delta]:
        return [Text("}")] if _is_json(self._arguments) else []


class OpenHostedCall(CollectedCall):
    """The base of calls that the server runs; this one shows nothing."""

    def __init__(self, tool: HostedTool) -> None:
        super().__init__()
        self._tool = tool

    def finish(self, *, cut: bool) -> list[Delta]:
        self.hosted_call = HostedCall.of(self._tool, self._arguments)
        return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
