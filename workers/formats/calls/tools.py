"""The tools of a request: those that the model is shown, and those that it may call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from app.protocol.item_types import SERVER
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.tools.any_tool import CLIENT_TYPES
from app.protocol.types import Json
from workers.engine.base import InvalidSampling
from workers.engine.output_format import OutputSpec, Tool, ToolChoice
from workers.formats.calls import local_tools, tool_search
from workers.formats.calls.client_tools import (
    TOOL_SEARCH,
    ClientName,
    ClientTool,
    ClientTools,
    client_tools_of,
)
from workers.formats.calls.hosted import HostedTool, HostedTools
from workers.formats.calls.hosted_formats import chosen_names
from workers.formats.calls.local_tools import BY_TYPE
from workers.formats.calls.router import CallableTools
from workers.formats.calls.string_argument import CUSTOM_TOOL_PARAMETERS

_CHOICES = {"none": ToolChoice.NONE, "auto": ToolChoice.AUTO, "required": ToolChoice.REQUIRED}
_FORCED = (ToolChoice.REQUIRED, ToolChoice.NAMED)


@dataclass(frozen=True, slots=True)
class Tools:
    """`tools` and `tool_choice` of a request. With choice NONE the model is shown no tools and calls none."""

    choice: ToolChoice = ToolChoice.NONE
    all: tuple[Tool, ...] = ()
    allowed: tuple[Tool, ...] = ()
    callable: CallableTools = field(default_factory=CallableTools)
    """The allowed ones, sorted by what becomes of their calls."""

    @property
    def closed(self) -> bool:
        """Whether the model is shown tools that it may not call."""
        return self.choice is not ToolChoice.NAMED and len(self.allowed) < len(self.all)


def is_hosted(tool: Tool, hosted: HostedTools) -> bool:
    """Whether this is a hosted tool: in harmony a client's function may have the same name, in another namespace."""
    return tool.name in hosted and hosted[tool.name].field == tool.field


def tools_of(
    request: Mapping[str, Any],
    hosted: HostedTools = MappingProxyType({}),
    client: ClientTools | None = None,
    *,
    later: bool = False,
) -> Tools:
    """The tools of a stored request (app/protocol/requests/bodies/request.py): its `hosted` ones, and its `client`'s.

    `later`: for a turn after the first, in which no call is forced any more.
    Raises InvalidSampling if the request chooses a tool that does not exist.
    """
    client = client_tools_of(request, (), hosted) if client is None else client
    tools = tuple(_tools(request, hosted, client))
    choice, names = _choice(request["tool_choice"], hosted, client)
    if later and choice in _FORCED:
        choice, names = ToolChoice.AUTO, names if _limits(request["tool_choice"]) else None
    allowed = tuple(tool for tool in tools if names is None or tool.name in names)
    if choice is ToolChoice.NONE or not allowed:
        return Tools()
    single = choice is ToolChoice.NAMED or not request["parallel_tool_calls"]
    return Tools(choice, tools, allowed, _callable(allowed, hosted, client, single=single))


def _callable(allowed: Sequence[Tool], hosted: HostedTools, client: ClientTools, *, single: bool) -> CallableTools:
    specs = {client.name_of(tool.name): tool.spec for tool in client.tools}
    own = {tool.name: specs[tool.name]["type"] for tool in allowed if not is_hosted(tool, hosted)}
    by_server = TOOL_SEARCH in own.values() and specs[TOOL_SEARCH].get("execution") == SERVER
    return CallableTools(
        functions=frozenset(name for name, kind in own.items() if kind == "function"),
        custom=frozenset(name for name, kind in own.items() if kind == "custom"),
        names=client.called,
        search=TOOL_SEARCH in own.values() and not by_server,
        searched=tool_search.ToolIndex(client.deferred) if by_server else None,
        local={name: BY_TYPE[kind] for name, kind in own.items() if kind in BY_TYPE},
        hosted={tool.name: hosted[tool.name] for tool in allowed if is_hosted(tool, hosted)},
        single=single,
    )


def output_spec_of(request: Mapping[str, Any], tools: Tools, template_args: Mapping[str, Any]) -> OutputSpec:
    """The request's rules for the form of its output."""
    extra = request["extra"]
    stop_tokens = () if extra.get("include_stop_str_in_output") else extra.get("stop_token_ids") or ()
    return OutputSpec(
        tools=tools.allowed,
        choice=tools.choice,
        single=tools.callable.single,
        closed=tools.closed,
        text_format=request["text"]["format"],
        template_args=template_args,
        stop_tokens=tuple(stop_tokens),
        special_tokens=extra.get("skip_special_tokens") is False,
    )


def _choice(choice: Any, hosted: HostedTools, client: ClientTools) -> tuple[ToolChoice, frozenset[str] | None]:
    """The choice, and the names that may be called; None: all."""
    if isinstance(choice, str):
        return _CHOICES[choice], None
    if choice["type"] == "allowed_tools":
        found = (name for tool in choice["tools"] for name in _names(tool, hosted, client))
        return _CHOICES[choice["mode"]], frozenset(found)
    names = _names(choice, hosted, client)
    if not names:
        reason = "no search has loaded" if choice["type"] in CLIENT_TYPES else "its server does not offer"
        raise InvalidSampling(f"tool_choice names a tool that {reason}")
    return ToolChoice.NAMED if len(names) == 1 else ToolChoice.REQUIRED, names


def _limits(choice: Any) -> bool:
    """Whether the choice limits what may be called, not only what must be."""
    return isinstance(choice, dict) and choice["type"] == "allowed_tools"


def _names(choice: Json, hosted: HostedTools, client: ClientTools) -> frozenset[str]:
    if (kind := LOCAL_TOOLS.get(choice["type"])) is not None:
        return frozenset(tool.name.name for tool in client.tools if tool.name == ClientName(None, kind.function))
    if choice["type"] not in CLIENT_TYPES:
        return chosen_names(choice, hosted)
    # A name with a dot may be a function's own, or say its namespace: then the function outside of namespaces is meant.
    found = [tool.name for tool in client.tools if tool.name.qualified == choice["name"]]
    return frozenset(client.name_of(name) for name in sorted(found, key=lambda name: name.namespace is not None)[:1])


def _tools(request: Mapping[str, Any], hosted: HostedTools, client: ClientTools) -> Iterator[Tool]:
    """In the order of the request's entries, an entry may stand for several tools; those that items bring follow."""
    of_client: defaultdict[int | None, list[ClientTool]] = defaultdict(list)
    of_server: defaultdict[str, list[HostedTool]] = defaultdict(list)
    for mine in client.tools:
        of_client[mine.entry].append(mine)
    for each in hosted.values():
        of_server[each.field].append(each)
    for index in range(len(request["tools"])):
        yield from (_tool(mine, client) for mine in of_client[index])
        yield from map(_hosted_tool, of_server[f"tools[{index}]"])
    yield from (_tool(mine, client) for mine in of_client[None])


def _hosted_tool(tool: HostedTool) -> Tool:
    description = _joined(_about(tool.server_label, tool.about), tool.description)
    return Tool(tool.name, description, tool.parameters, False, tool.field)


def _about(tools_of: str | None, text: str | None) -> str | None:
    """The beginning of the description of a namespace's, or of a server's, first tool."""
    return f"About the tools of {tools_of}: {text}" if text else None


def _tool(tool: ClientTool, client: ClientTools) -> Tool:
    name, spec, field = client.name_of(tool.name), tool.spec, tool.field
    about = _about(tool.name.namespace, tool.about)
    if (local := BY_TYPE.get(spec["type"])) is not None:
        return Tool(name, local_tools.description_of(local, spec), local.parameters, False, field)
    if spec["type"] == TOOL_SEARCH:
        return _search_tool(tool, client)
    if spec["type"] == "function":
        description = _joined(about, spec.get("description"))
        return Tool(name, description, spec.get("parameters"), bool(spec.get("strict")), field)
    format_ = spec.get("format") or {"type": "text"}
    if format_["type"] == "text":
        return Tool(name, _joined(about, spec.get("description")), CUSTOM_TOOL_PARAMETERS, False, field)
    syntax, definition = format_["syntax"], format_["definition"]
    rule = f"Its input must fit this grammar ({syntax}):\n{definition}"
    description = _joined(about, spec.get("description"), rule)
    return Tool(name, description, CUSTOM_TOOL_PARAMETERS, True, field, grammar=(syntax, definition))


def _search_tool(tool: ClientTool, client: ClientTools) -> Tool:
    given = tool.spec.get("description")
    if tool.spec.get("execution") == SERVER:
        about = tool_search.description_of(given, client.deferred)
        return Tool(TOOL_SEARCH, about, tool_search.PARAMETERS, False, tool.field)
    parameters = tool.spec.get("parameters") or {"type": "object"}
    return Tool(TOOL_SEARCH, given or "Finds more tools.", parameters, False, tool.field)


def _joined(*texts: str | None) -> str | None:
    """The texts that there are, as paragraphs; an empty text stays what it is if it is the only one."""
    found = [text for text in texts if text is not None]
    return "\n\n".join(filter(None, found)) if found else None
