"""The tools that the client runs, and the names by which models know them.

Chat templates and parsers know one flat list of functions. A tool in a namespace is `<namespace>__<name>` there, and
its calls get both names back. The name is cut, and ends in a hash, if it is too long, has characters that functions
must not have, or is another tool's name. It depends on the request and its items alone, so every attempt and every
later turn shows the same one. The description of a namespace is shown with its first tool.

Tools that items bring (what a tool search found, `additional_tools`) follow those of the request. Chat templates take
tools at the head of the prompt only, so loading some costs the prefix cache of what comes after the tools, once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from app.protocol.item_types import ADDITIONAL_TOOLS, SERVER, TOOL_SEARCH_OUTPUT, TOOL_SOURCES
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.tools.any_tool import CLIENT_TYPES
from app.protocol.types import Json
from workers.formats.calls.hosted import MAX_NAME_CHARS, HostedTools, function_name

TOOL_SEARCH = "tool_search"
"""The type, and the name, of a tool search."""
_HASH_CHARS = 8

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientName:
    """A tool as the client knows it."""

    namespace: str | None
    name: str

    @property
    def qualified(self) -> str:
        """The tool as `tool_choice` names it."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the model may be shown."""

    name: ClientName
    spec: Json
    """The tool as the request is stored."""
    entry: int | None
    """The position in the request's `tools` of the tool, or of its namespace; None: an item brought it."""
    field: str
    """The tool's position in the request (`tools[0].tools[1]`), for messages."""
    about: str | None = None
    """The description of the namespace that begins with this tool."""

    @property
    def is_deferred(self) -> bool:
        """Whether the tool is not shown before a search found it."""
        return bool(self.spec.get("defer_loading"))


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The client's tools of a request, and the names that the model knows them by."""

    tools: tuple[ClientTool, ...] = ()
    names: Mapping[ClientName, str] = field(default_factory=dict)
    """Names of the tools in namespaces: those that there are, and those that earlier calls name."""
    called: Mapping[str, ClientName] = field(default_factory=dict)
    """What the calls of a tool are named, by its name for the model, if that is not its own name alone."""
    deferred: tuple[ClientTool, ...] = ()
    """Tools that a search on the server may find, loaded or not."""

    def name_of(self, tool: ClientName) -> str:
        return self.names.get(tool, tool.name)

    def called_name(self, call: Item) -> str:
        """The model's name for the tool of this item."""
        return self.name_of(_called(call))


NO_CLIENT_TOOLS = ClientTools()


def client_tools_of(
    request: Mapping[str, Any], items: Iterable[Item] = (), hosted: HostedTools | None = None
) -> ClientTools:
    """The client's tools of a stored request. `items` are those of the prompt; `hosted` have their names already."""
    items = list(items)
    tools = tuple(_tools(request, items))
    taken = {*(hosted or ()), *(tool.name.name for tool in tools if tool.name.namespace is None)}
    named = [tool.name for tool in tools]
    called = {_called(item) for item in items if item.get("namespace") is not None}.difference(named)
    names: dict[ClientName, str] = {}
    for name in (*named, *(name for name in map(_called, items) if name in called)):
        if name.namespace is not None and name not in names:
            is_plain = name in called and name.namespace == name.name  # see `_found_by_server`
            names[name] = name.name if is_plain else _flat_name(name.namespace, name.name, taken)
            taken.add(names[name])
    shown = {names[name]: name for name in named if name.namespace is not None}
    found = {name: ClientName(name, name) for name in _found_by_server(request, items)}
    return ClientTools(tools, names, {**shown, **found}, tuple(_deferred_tools(request, items)))


def _found_by_server(request: Mapping[str, Any], items: Iterable[Item]) -> set[str]:
    """The names of the tools outside of namespaces that searches on the server found.

    As in OpenAI's API, a call of such a tool has its name as its namespace, too. The openai-agents package finds the
    tool by that.
    """
    searched = (item for item in items if item["type"] == TOOL_SEARCH_OUTPUT and item.get("execution") == SERVER)
    found = {tool.name.name for item in searched for tool in _of_item(item) if tool.name.namespace is None}
    return found.difference(tool.name.name for tool in _own_tools(request) if tool.name.namespace is None)


def _tools(request: Mapping[str, Any], items: Iterable[Item]) -> Iterable[ClientTool]:
    """The tools that the model may be shown, each by its newest definition."""
    found: dict[ClientName, ClientTool] = {}
    told: set[str] = set()
    for tool in (*_own_tools(request), *_loaded_tools(items)):
        namespace = tool.name.namespace
        if namespace in told:
            tool = replace(tool, about=None)
        elif namespace is not None:
            told.add(namespace)
        if (older := found.get(tool.name)) is not None:
            tool = replace(tool, entry=older.entry, about=older.about)
        found[tool.name] = tool
    return found.values()


def _own_tools(request: Mapping[str, Any]) -> Iterator[ClientTool]:
    return (tool for tool in _all_own_tools(request) if not tool.is_deferred)


def _all_own_tools(request: Mapping[str, Any]) -> Iterator[ClientTool]:
    for index, entry in enumerate(request["tools"]):
        yield from _of_entry(entry, f"tools[{index}]", index)


def _deferred_tools(request: Mapping[str, Any], items: Iterable[Item]) -> Iterable[ClientTool]:
    """The tools of the request, and of items `additional_tools`, that load later: each by its newest definition."""
    added = (tool for item in items if item["type"] == ADDITIONAL_TOOLS for tool in _of_item(item))
    found = {tool.name: tool for tool in (*_all_own_tools(request), *added) if tool.is_deferred}
    return found.values()


def _loaded_tools(items: Iterable[Item]) -> Iterator[ClientTool]:
    """What a search found is loaded; other tools are not, if they say so."""
    for item in items:
        if item["type"] in TOOL_SOURCES:
            searched = item["type"] == TOOL_SEARCH_OUTPUT
            for tool in _of_item(item):
                if searched or not tool.is_deferred:
                    yield tool


def _of_item(item: Item) -> Iterator[ClientTool]:
    for index, entry in enumerate(item["tools"]):
        yield from _of_entry(entry, f"{item['id']}.tools[{index}]", None)


def _of_entry(entry: Json, where: str, index: int | None) -> Iterator[ClientTool]:
    if entry["type"] in CLIENT_TYPES:
        yield ClientTool(ClientName(None, entry["name"]), entry, index, where)
    elif entry["type"] == TOOL_SEARCH:
        yield ClientTool(ClientName(None, TOOL_SEARCH), entry, index, where)
    elif (kind := LOCAL_TOOLS.get(entry["type"])) is not None:
        yield ClientTool(ClientName(None, kind.function), entry, index, where)
    elif entry["type"] == "namespace":
        for position, tool in enumerate(entry["tools"]):
            name = ClientName(entry["name"], tool["name"])
            yield ClientTool(name, tool, index, f"{where}.tools[{position}]", entry.get("description"))


def loaded_text(item: Item, client: ClientTools) -> str:
    """The text for the model about the tools that a search found."""
    names = [client.name_of(tool.name) for tool in _of_item(item)]
    return f"These tools can be called now: {', '.join(names)}." if names else "No tools were found."


def _called(item: Item) -> ClientName:
    return ClientName(item.get("namespace"), item.get("name", TOOL_SEARCH))


def _flat_name(namespace: str, name: str, taken: set[str]) -> str:
    whole = f"{namespace}__{name}"
    made = function_name(whole)
    if made == whole and made not in taken:
        return made
    head = made[: MAX_NAME_CHARS - _HASH_CHARS - 1]
    hashes = (hashlib.sha256(f"{namespace}\0{name}\0{salt}".encode()).hexdigest() for salt in count())
    return next(found for digest in hashes if (found := f"{head}_{digest[:_HASH_CHARS]}") not in taken)
