"""The server's tool search: it finds tools of the request that load later, by the words of a query.

It is a function of the request's tools and the query alone: whoever reads the same call finds the same tools, in the
first attempt at a response and in any later one.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.protocol.types import Json
from workers.formats.calls.client_tools import ClientTool

MAX_FOUND = 8
"""Tools that one search finds. Each takes some hundred tokens of the prompt."""
MAX_NAMED = 100
"""Names in the search's own description."""

PARAMETERS: Json = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What the tool must do, in a few words."}},
    "required": ["query"],
    "additionalProperties": False,
}
_DESCRIPTION = (
    "Finds tools by what they do. A tool that is not listed here as a function can be called once it is found."
)

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_STEM = 4
"""Letters that two words must have in common at their beginnings, if one of them is longer than the other."""
MAX_QUERY_CHARS = 1_000
"""Longest query of a model."""
_Words = dict[str, dict[str, set[int]]]
"""The first letters of words -> the words -> the numbers of the tools that have them."""
_IN_NAME, _IN_TEXT = 3.0, 1.0


def description_of(given: str | None, deferred: Iterable[ClientTool]) -> str:
    """The description of the search for the model: the names of namespaces, and of tools outside of them."""
    namespaces: dict[str, str | None] = {}
    names: list[str] = []
    for tool in deferred:
        namespace = tool.name.namespace
        if namespace is None:
            names.append(tool.name.name)
        else:
            namespaces[namespace] = namespaces.get(namespace) or tool.about
    lines = [f"- {name}: {about}" if about else f"- {name}" for name, about in namespaces.items()]
    lines += [f"- {name}" for name in names]
    more = [f"- and {len(lines) - MAX_NAMED} more"] if len(lines) > MAX_NAMED else []
    listed = "\n".join(["There are:", *lines[:MAX_NAMED], *more]) if lines else ""
    return "\n\n".join(filter(None, (given or _DESCRIPTION, listed)))


class ToolIndex:
    """Tools by the words of their names, and of what is said of them.

    It is made once for a turn, where a large request is read. A search then looks at the words that begin alike alone:
    it runs on the event loop, in the middle of an answer.
    """

    def __init__(self, tools: Sequence[ClientTool]) -> None:
        self._tools = tools
        self._names: _Words = {}
        self._texts: _Words = {}
        for index, tool in enumerate(tools):
            _add(self._names, _words(_name_of(tool)), index)
            _add(self._texts, _words(_text_of(tool)), index)

    def search(self, arguments: Mapping[str, Any]) -> tuple[Json, ...]:
        """Returns the tools that fit best, as the item `tool_search_output` has them: those of a namespace in it."""
        query = " ".join(value for value in arguments.values() if isinstance(value, str))[:MAX_QUERY_CHARS]
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(_words(query)):
            named = _having(self._names, word)
            told = _having(self._texts, word) - named
            if having := len(named) + len(told):
                rarity = math.log(1 + len(self._tools) / having)  # a word that few tools have says more
                for found, score in ((named, _IN_NAME), (told, _IN_TEXT)):
                    for index in found:
                        scores[index] += score * rarity
        best = heapq.nsmallest(MAX_FOUND, scores, key=lambda index: (-scores[index], index))
        return _grouped(self._tools[index] for index in best)


def _add(words: _Words, more: Iterable[str], index: int) -> None:
    for word in more:
        words.setdefault(word[:_STEM], {}).setdefault(word, set()).add(index)


def _having(words: _Words, wanted: str) -> set[int]:
    """The tools that have this word, or one that begins like it (`forecast`, `forecasts`)."""
    alike = words.get(wanted[:_STEM], {})
    return set().union(*(has for word, has in alike.items() if word.startswith(wanted) or wanted.startswith(word)))


def _grouped(tools: Iterable[ClientTool]) -> tuple[Json, ...]:
    found: list[Json] = []
    namespaces: dict[str, Json] = {}
    for tool in tools:
        name = tool.name.namespace
        if name is None:
            found.append(dict(tool.spec))
            continue
        if name not in namespaces:
            namespaces[name] = {"type": "namespace", "name": name, "description": tool.about, "tools": []}
            found.append(namespaces[name])
        namespaces[name]["tools"].append(dict(tool.spec))
    return tuple(found)


def _name_of(tool: ClientTool) -> str:
    return f"{tool.name.namespace or ''} {tool.name.name}"


def _text_of(tool: ClientTool) -> str:
    parameters = (tool.spec.get("parameters") or {}).get("properties")
    names = parameters if isinstance(parameters, Mapping) else ()
    return " ".join([tool.spec.get("description") or "", tool.about or "", *map(str, names)])


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text)))
