"""Routes the model's calls by name: to the client, to the server, or nowhere. Deltas come piece by piece.

a client's function           CallStart, CallArguments...
a custom tool                 CustomStart, CustomInput...   (the string in its JSON)
a tool search                 ToolSearch                    (whole)
a local tool                  LocalCall                     (whole)
a hosted tool                 see `python.py`, `browser.py`, `mcp.py`

* A call of a name that may not be called never becomes a call that the client does not know or did not allow. If the
  request has hosted tools, it fails as a call of an unknown tool, and the model continues. Otherwise nothing could tell
  the model, and the call becomes text: the JSON that the model wrote.
* If one call is the maximum, the answer ends when a second one begins.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from app.protocol.events.deltas import (
    CallArguments,
    CallCut,
    CallStart,
    CustomInput,
    CustomStart,
    Delta,
    Text,
    ToolSearch,
)
from workers.formats.calls.client_tools import TOOL_SEARCH, ClientName
from workers.formats.calls.hosted import HostedCall, HostedTools, NameStyle, OpenCall, arguments_of
from workers.formats.calls.hosted_formats import open_hosted_call
from workers.formats.calls.local_tools import LocalToolFormat, OpenLocalCall
from workers.formats.calls.mcp import unknown_tool
from workers.formats.calls.string_argument import State, StringArgumentReader
from workers.formats.calls.tool_search import ToolIndex


@dataclass(frozen=True, slots=True)
class CallableTools:
    """The tools that the model may call, by the names that it uses."""

    functions: Collection[str] = ()
    """The client's functions."""
    custom: Collection[str] = ()
    """The client's custom tools."""
    names: Mapping[str, ClientName] = field(default_factory=dict)
    """What the client calls its tools, if that is not the name for the model: those in namespaces have two."""
    search: bool = False
    """Whether a tool search of the client's is among them."""
    searched: ToolIndex | None = None
    """The tools that a search on the server searches; None: there is no such search."""
    local: Mapping[str, LocalToolFormat] = field(default_factory=dict)
    """The local tools."""
    hosted: HostedTools = field(default_factory=dict)
    """The tools that the server runs."""
    single: bool = False
    """Whether the model may make one call at most."""


class CallRouter:
    """Routes the calls of one answer."""

    def __init__(self, tools: CallableTools) -> None:
        self._tools = tools
        self._called = False
        self._open: OpenCall | None = None
        self.hosted: list[HostedCall] = []
        """The complete calls that the server has to run."""
        self.searched = False
        """Whether the server has searched for tools: the model may call what it found in its next turn."""
        self.ended = False

    def feed(self, deltas: Iterable[Delta]) -> list[Delta]:
        routed: list[Delta] = []
        for delta in deltas:
            if self.ended:
                break
            routed += self._route(delta)
        return routed

    def flush(self, *, cut: bool = False, stopped: bool = False) -> list[Delta]:
        """`cut`: a limit ended the answer, and so the response; `stopped`: a stop string did."""
        deltas = [] if self.ended else self._finish(cut=cut or stopped)
        return [delta for delta in deltas if not (cut and isinstance(delta, CallCut))]

    def _route(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, CallArguments):
            return [delta] if self._open is None else self._open.feed(delta.text)
        finished = self._finish()
        if not isinstance(delta, CallStart):
            return [*finished, delta]
        if self._tools.single and self._called:
            self.ended = True
            return finished
        self._open = self._open_call(delta.name)
        self._called = self._called or not isinstance(self._open, DisallowedCall)
        return finished + self._open.start()

    def _open_call(self, name: str) -> OpenCall:
        if name in self._tools.hosted:
            return open_hosted_call(self._tools.hosted[name])
        if (call := self._client_call(name)) is not None:
            return call
        return open_hosted_call(unknown_tool(name, NameStyle.CHAT)) if self._tools.hosted else DisallowedCall(name)

    def _client_call(self, name: str) -> OpenCall | None:
        own = self._tools.names.get(name, ClientName(None, name))
        if name == TOOL_SEARCH and (self._tools.search or self._tools.searched is not None):
            return SearchCall(self._tools.searched)
        if (local := self._tools.local.get(name)) is not None:
            return OpenLocalCall(local)
        if name in self._tools.custom:
            return CustomCall(own)
        return FunctionCall(own) if name in self._tools.functions else None

    def _finish(self, *, cut: bool = False) -> list[Delta]:
        """Finishes the open call, if there is one."""
        call, self._open = self._open, None
        if call is None:
            return []
        deltas = call.finish(cut=cut)
        self.searched = self.searched or any(
            isinstance(delta, ToolSearch) and delta.found is not None for delta in deltas
        )
        if call.hosted_call is not None:
            self.hosted.append(call.hosted_call)
        return deltas


class FunctionCall(OpenCall):
    """A call of one of the client's functions. If its arguments are no JSON object, it ends with CallCut."""

    def __init__(self, name: ClientName) -> None:
        super().__init__()
        self._name = name

    def start(self) -> list[Delta]:
        return [CallStart(self._name.name, self._name.namespace)]

    def feed(self, text: str) -> list[Delta]:
        super().feed(text)
        return [CallArguments(text)]

    def finish(self, *, cut: bool) -> list[Delta]:
        whole = arguments_of(self._arguments) is not None and not (cut and not self._arguments)
        return [] if whole else [CallCut()]


class CustomCall(OpenCall):
    """A call of one of the client's custom tools. If its input is cut, it ends with CallCut."""

    def __init__(self, name: ClientName) -> None:
        super().__init__()
        self._name = name
        self._reader = StringArgumentReader()

    def start(self) -> list[Delta]:
        return [CustomStart(self._name.name, self._name.namespace)]

    def feed(self, text: str) -> list[Delta]:
        value = self._reader.feed(text)
        return [CustomInput(value)] if value else []

    def finish(self, *, cut: bool) -> list[Delta]:
        rest = self._reader.flush()
        deltas: list[Delta] = [CustomInput(rest)] if rest else []
        whole = self._reader.state is not State.STRING and (not cut or self._reader.state is State.DONE)
        return deltas if whole else [*deltas, CallCut()]


class SearchCall(OpenCall):
    """A call of a tool search: a ToolSearch, once it is complete. Half a call shows nothing.

    Arguments that are no JSON object become the string `arguments` in one. `searched`: what the server searches, if it
    does.
    """

    def __init__(self, searched: ToolIndex | None = None) -> None:
        super().__init__()
        self._searched = searched

    def finish(self, *, cut: bool) -> list[Delta]:
        arguments = arguments_of(self._arguments)
        if cut and not (self._arguments and arguments is not None):
            return []
        asked = {"arguments": self._arguments} if arguments is None else arguments
        return [ToolSearch(asked, None if self._searched is None else self._searched.search(asked))]


class DisallowedCall(OpenCall):
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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
