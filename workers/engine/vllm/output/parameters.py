"""Parameters of functions, as vLLM's parsers can read arguments by them.

In some forms of calls every argument is text, and a parser makes a value of it by the property's `type`. It follows no
reference and knows no `const`, so here each schema gets the types that it has by these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from app.protocol.types import Json
from workers.engine.schemas.documents import parts_of

MAX_SCHEMAS = 4096
MAX_DEPTH = 16
"""What is looked at, references followed; the rest stays as it is."""
_TYPES = {"NoneType": "null", "bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array"}


def readable(parameters: Mapping[str, Any]) -> Json:
    """The parameters with `type`, `properties` and `items` where they follow from other keywords."""
    made: Json = _Reading(parameters).schema(parameters, 0)
    return made


class _Reading:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def schema(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        parts = list(self._parts(schema, depth, frozenset()))
        made: Json = dict(schema)
        if types := sorted({name for part in parts for name in _types(part)}):
            made["type"] = types if len(types) > 1 else types[0]
        if properties := {
            name: it for part in reversed(parts) for name, it in _mapping(part.get("properties")).items()
        }:
            made["properties"] = {name: self.schema(it, depth + 1) for name, it in properties.items()}
        if items := next(filter(None, (_mapping(part.get("items")) for part in parts)), None):
            made["items"] = self.schema(items, depth + 1)
        return made

    def _parts(self, schema: Any, depth: int, followed: frozenset[str]) -> Iterator[Mapping[str, Any]]:
        """The schema, and those that it refers to or combines."""
        if not isinstance(schema, Mapping) or self._left <= 0 or depth > MAX_DEPTH:
            return
        self._left -= 1
        yield schema
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#") and reference not in followed:
            yield from self._parts(self._target(reference), depth + 1, followed | {reference})
        for keyword in ("allOf", "anyOf", "oneOf"):
            for part in schema[keyword] if isinstance(schema.get(keyword), list) else ():
                yield from self._parts(part, depth + 1, followed)

    def _target(self, pointer: str) -> Any:
        found: Any = self._root
        for name in parts_of(unquote(pointer)):
            if isinstance(found, list):
                found = {str(index): each for index, each in enumerate(found)}
            found = _mapping(found).get(name)
        return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _types(schema: Mapping[str, Any]) -> list[str]:
    if "type" in schema:
        stated = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return [name for name in stated if isinstance(name, str)]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return [_TYPES.get(type(value).__name__, "object") for value in values]
    return ["object"] if "properties" in schema else ["array"] if "items" in schema else []
