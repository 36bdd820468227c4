"""web_search: the hosted tools that search the web and read pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.protocol.events.deltas import Delta, WholeCall
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.types import Json
from workers.formats.calls.hosted import (
    HostedTool,
    HostedToolFormat,
    Item,
    Listings,
    NameStyle,
    OpenHostedCall,
    ShownCall,
    arguments_of,
)

NAMESPACE = "browser"
SEARCH, OPEN, FIND = "search", "open", "find"

_TOOL_OF_ACTION = {"search": SEARCH, "open_page": OPEN, "find_in_page": FIND}
"""By the `action.type` of a web_search_call."""
_CURSOR = {"type": "integer", "description": "Number of a page shown before; the newest one where it is left out."}
_TOOLS: Mapping[str, tuple[str, Json]] = {
    SEARCH: (
        "Searches the web. Shows numbered results, which `open` takes by their numbers.",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for."},
                "topn": {"type": "integer", "description": "How many results to show."},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    ),
    OPEN: (
        "Opens a page: a link by its number on a page shown before, or a URL. Cite what you use from it as "
        "【cursor†L1-L2】, with the page's cursor and the numbers of its lines.",
        {
            "type": "object",
            "properties": {
                "id": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "description": "Number of a link, or a URL; without it the page is shown from another line.",
                },
                "cursor": _CURSOR,
                "loc": {"type": "integer", "description": "The first line to show."},
                "num_lines": {"type": "integer", "description": "How many lines to show."},
            },
            "additionalProperties": False,
        },
    ),
    FIND: (
        "Finds exact text in a page shown before.",
        {
            "type": "object",
            "properties": {"pattern": {"type": "string", "description": "The text."}, "cursor": _CURSOR},
            "required": ["pattern"],
            "additionalProperties": False,
        },
    ),
}


class BrowserCall(OpenHostedCall):
    """WholeCall, once the call is complete; a call that was cut within its arguments shows nothing."""

    def finish(self, *, cut: bool) -> list[Delta]:
        tool, arguments = self._tool, self._arguments
        if cut and not (arguments and arguments_of(arguments) is not None):
            return []
        super().finish(cut=cut)
        return [WholeCall(WEB_SEARCH, tool.name, arguments, {"action": action_of(tool.tool, arguments)})]


def action_of(tool: str, arguments: str) -> Json:
    """The `action` of a web_search_call, as far as the arguments of its call tell."""
    given = arguments_of(arguments) or {}
    if tool == OPEN:
        url = given.get("id")
        return {"type": "open_page", "url": url if isinstance(url, str) else None}
    if tool == FIND:
        return {"type": "find_in_page", "pattern": _text(given.get("pattern")), "url": ""}
    query = _text(given.get("query"))
    return {"type": "search", "query": query, "queries": [query]}


def search_options(tools: Iterable[Json]) -> Json:
    """What a request asks of the browser's searches, as `_meta` of a call has it (SEARCH_META); empty: nothing."""
    spec = next((tool for tool in tools if tool["type"] in WEB_SEARCH.tool_types), {})
    size, country = spec.get("search_context_size", "medium"), (spec.get("user_location") or {}).get("country")
    return {
        **({} if size == "medium" else {"context_size": size}),
        **(spec.get("filters") or {}),
        **({"country": country} if country else {}),
    }


def unknown_option(tools: Sequence[Json]) -> str | None:
    """The field of the first option that only a browser can honour which knows options; None: there is none.

    Where the user is, the model is told in any case.
    """
    for index, tool in enumerate(tools):
        if tool["type"] in WEB_SEARCH.tool_types:
            if tool.get("search_context_size", "medium") != "medium":
                return f"tools[{index}].search_context_size"
            return next((f"tools[{index}].filters.{name}" for name in tool.get("filters") or ()), None)
    return None


def place_of(tools: Iterable[Json]) -> str | None:
    """The text for the model about where the user is; None: the request does not say."""
    spec = next((tool for tool in tools if tool["type"] in WEB_SEARCH.tool_types), {})
    told = [(spec.get("user_location") or {}).get(name) for name in ("city", "region", "country", "timezone")]
    places = ", ".join(filter(None, told))
    return f"For searches: the user is approximately in {places}." if places else None


def _tools(entry: Json, field: str, _listings: Listings, style: NameStyle) -> Iterable[HostedTool]:
    place = place_of([entry])
    for tool, (description, parameters) in _TOOLS.items():
        if tool == SEARCH and place is not None:
            description = f"{description} {place}"
        yield HostedTool(_name(tool, style), "browser", None, tool, description, parameters, field)


def _shown_call(item: Item, style: NameStyle) -> ShownCall:
    action, call = item.get("action") or {}, item.get("call") or {}
    name = _name(_TOOL_OF_ACTION.get(action.get("type", ""), SEARCH), style)
    if style is NameStyle.HARMONY:
        return ShownCall(name, call.get("arguments") or _arguments_of(action), "code")
    if call.get("kind") == "browser" and arguments_of(call["arguments"]) is not None:
        return ShownCall(name, call["arguments"] or "{}")
    return ShownCall(name, _arguments_of(action))


def _arguments_of(action: Item) -> str:
    """The arguments of a call of which only the action is known."""
    given = {"id" if name == "url" else name: action.get(name) for name in ("query", "pattern", "url")}
    return json.dumps({name: value for name, value in given.items() if value}, ensure_ascii=False)


def _name(tool: str, style: NameStyle) -> str:
    return f"{NAMESPACE}_{tool}" if style is NameStyle.CHAT else f"{NAMESPACE}.{tool}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


BROWSER = HostedToolFormat(
    kind=WEB_SEARCH,
    tools=_tools,
    open_call=BrowserCall,
    shown_call=_shown_call,
)
