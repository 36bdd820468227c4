"""The tools that the client runs, and the names by which models know them.

Chat templates and parsers know one flat list of functions. A tool in a namespace is `<namespace>__<name>` there, and
its calls get both names back. The name is cut, and ends in a hash, if it is too long, has characters that functions
must not have, or is another tool's name. It depends on the request and its items alone, so every attempt and every
later turn shows the same one. The description of a namespace is shown with its first tool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from app.protocol.types import Json
from workers.formats.calls.hosted import MAX_NAME_CHARS, HostedTools, function_name

CLIENT_TYPES = ("function", "custom")
"""Types of tools that the client runs."""
NAMESPACE = "namespace"
_HASH_CHARS = 8

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClientName:
    """A tool as the client knows it."""

    namespace: str | None
    name: str

    @property
    def qualified(self) -> str:
        """As `tool_choice` names the tool."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the model may be shown."""

    name: ClientName
    spec: Json
    """As the request is stored."""
    entry: int
    """The position in the request's `tools` of the tool, or of its namespace."""
    field: str
    """Its position in the request (`tools[0].tools[1]`), for messages."""
    about: str | None = None
    """The description of the namespace that begins with this tool."""


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The client's tools of a request, and the names that the model knows them by."""

    tools: tuple[ClientTool, ...] = ()
    names: Mapping[ClientName, str] = field(default_factory=dict)
    """Of the tools in namespaces: those that there are, and those that earlier calls name."""

    def name_of(self, tool: ClientName) -> str:
        return self.names.get(tool, tool.name)

    def called_name(self, call: Item) -> str:
        """What the model called the tool of this item."""
        return self.name_of(_called(call))


NO_CLIENT_TOOLS = ClientTools()


def client_tools_of(
    request: Mapping[str, Any], items: Iterable[Item] = (), hosted: HostedTools | None = None
) -> ClientTools:
    """The client's tools of a stored request. `items` are those of the prompt; `hosted` have their names already."""
    tools = tuple(_tools(request))
    taken = {*(hosted or ()), *(tool.name.name for tool in tools if tool.name.namespace is None)}
    called = (_called(item) for item in items if item.get("namespace") is not None)
    names: dict[ClientName, str] = {}
    for name in (*(tool.name for tool in tools), *called):
        if name.namespace is not None and name not in names:
            names[name] = _flat_name(name.namespace, name.name, taken)
            taken.add(names[name])
    return ClientTools(tools, names)


def _tools(request: Mapping[str, Any]) -> Iterator[ClientTool]:
    for index, entry in enumerate(request["tools"]):
        if entry["type"] in CLIENT_TYPES:
            yield ClientTool(ClientName(None, entry["name"]), entry, index, f"tools[{index}]")
        elif entry["type"] == NAMESPACE:
            about = entry.get("description")
            for position, tool in enumerate(entry["tools"]):
                where = f"tools[{index}].tools[{position}]"
                yield ClientTool(ClientName(entry["name"], tool["name"]), tool, index, where, about)
                about = None


def _called(item: Item) -> ClientName:
    return ClientName(item.get("namespace"), item["name"])


def _flat_name(namespace: str, name: str, taken: set[str]) -> str:
    whole = f"{namespace}__{name}"
    made = function_name(whole)
    if made == whole and made not in taken:
        return made
    head = made[: MAX_NAME_CHARS - _HASH_CHARS - 1]
    hashes = (hashlib.sha256(f"{namespace}\0{name}\0{salt}".encode()).hexdigest() for salt in count())
    return next(found for digest in hashes if (found := f"{head}_{digest[:_HASH_CHARS]}") not in taken)
