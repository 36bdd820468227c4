"""The server's tool search: it finds tools of the request that load later, by the words of a query.

It is a function of the request's tools and the query alone: whoever reads the same call finds the same tools, in the
first attempt at a response and in any later one.
"""

from __future__ import annotations

import math
import re
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
_IN_NAME, _IN_TEXT = 3.0, 1.0


def description_of(given: str | None, deferred: Iterable[ClientTool]) -> str:
    """What the model is told of the search: the names of namespaces, and of tools outside of them."""
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


def search(arguments: Mapping[str, Any], deferred: Sequence[ClientTool]) -> tuple[Json, ...]:
    """The tools that fit best, as the item `tool_search_output` has them: those of a namespace in it."""
    query = _words(" ".join(value for value in arguments.values() if isinstance(value, str)))
    texts = [(_words(_name_of(tool)), _words(_text_of(tool))) for tool in deferred]
    weights = {word: _rarity(word, texts) for word in query}
    scores = [sum(_score(word, *text) * weight for word, weight in weights.items()) for text in texts]
    best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:MAX_FOUND]
    return _grouped(deferred[index] for index in best if scores[index] > 0)


def _grouped(tools: Iterable[ClientTool]) -> tuple[Json, ...]:
    found: list[Json] = []
    namespaces: dict[str, Json] = {}
    for tool in tools:
        name = tool.name.namespace
        if name is None:
            found.append(dict(tool.spec))
        elif name in namespaces:
            namespaces[name]["tools"].append(dict(tool.spec))
        else:
            namespaces[name] = {
                "type": "namespace",
                "name": name,
                "description": tool.about,
                "tools": [dict(tool.spec)],
            }
            found.append(namespaces[name])
    return tuple(found)


def _rarity(word: str, texts: Sequence[tuple[frozenset[str], frozenset[str]]]) -> float:
    """A word that few tools have says more."""
    having = sum(1 for text in texts if _score(word, *text) > 0)
    return math.log(1 + len(texts) / having) if having else 0.0


def _score(word: str, name: frozenset[str], text: frozenset[str]) -> float:
    if _has(name, word):
        return _IN_NAME
    return _IN_TEXT if _has(text, word) else 0.0


def _has(words: frozenset[str], wanted: str) -> bool:
    return wanted in words or any(_alike(word, wanted) for word in words)


def _alike(one: str, other: str) -> bool:
    """Whether one word is the beginning of the other: `forecast`, `forecasts`."""
    return min(len(one), len(other)) >= _STEM and (one.startswith(other) or other.startswith(one))


def _name_of(tool: ClientTool) -> str:
    return f"{tool.name.namespace or ''} {tool.name.name}"


def _text_of(tool: ClientTool) -> str:
    parameters = (tool.spec.get("parameters") or {}).get("properties")
    names = parameters if isinstance(parameters, Mapping) else ()
    return " ".join([tool.spec.get("description") or "", tool.about or "", *map(str, names)])


def _words(text: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(_HUMP.sub(" ", text)))
