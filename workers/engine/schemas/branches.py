"""The rules of schemas that hold together for one type of value.

Scalars are languages, which combine freely. Arrays and objects are branches: lists of nodes without choices.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from workers.engine.schemas import numbers
from workers.engine.schemas.documents import KEPT, Document, Node, Refused
from workers.engine.schemas.formats import FORMATS
from workers.engine.schemas.languages import (
    ANY_CHAR,
    ANYTHING,
    NOTHING,
    Language,
    both,
    either,
    literal,
    repeated,
    without,
)
from workers.engine.schemas.patterns import pattern

MAX_BRANCHES = 512
SCALARS = ("null", "boolean", "number", "string")
_UNIVERSES = {
    "null": literal("null"),
    "boolean": either(literal("true"), literal("false")),
    "number": numbers.DECIMAL,
    "string": ANYTHING,
}
_OPPOSITES = {"minItems": "maxItems", "maxItems": "minItems", "minProperties": "maxProperties"}
_OPPOSITES["maxProperties"] = "minProperties"


def type_of(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def types_of(node: Node) -> list[str]:
    """Empty: all."""
    types = node.get("type", [])
    return types if isinstance(types, list) else [types]


def text_of(values: object) -> str:
    return json.dumps(values, ensure_ascii=False)


def admits(node: Node, kind: str) -> bool:
    types = types_of(node)
    return not types or kind in types or (kind == "number" and "integer" in types)


def _values(node: Node) -> list[list[Any]]:
    """The values of `const` and `enum`, a list for each."""
    return [[node[name]] if name == "const" else node[name] for name in ("const", "enum") if name in node]


def scalar(document: Document, nodes: Iterable[Node], kind: str) -> Language:
    """The texts of this type (of a string: its characters) that all of these admit."""
    return both(_UNIVERSES[kind], *(_scalar(document, node, kind, frozenset()) for node in nodes))


def _scalar(document: Document, node: Node, kind: str, seen: frozenset[str]) -> Language:
    if not admits(node, kind):
        return NOTHING

    def of(child: Node, seen: frozenset[str] = seen) -> Language:
        return _scalar(document, child, kind, seen)

    parts = [numbers.INTEGER] if kind == "number" and "number" not in (types_of(node) or ["number"]) else []
    try:
        parts += _held(node, kind)
    except Refused:
        raise
    except ValueError as error:
        raise Refused(node.path, str(error)) from None
    if "$ref" in node and node["$ref"] not in seen:
        parts.append(of(document.target(node["$ref"], seen), seen | {node["$ref"]}))
    parts += [of(child) for child in node.get("allOf", ())]
    if "anyOf" in node:
        parts.append(either(*map(of, node["anyOf"])))
    if "oneOf" in node:
        parts.append(_one_of([of(child) for child in node["oneOf"]]))
    if "not" in node:
        parts.append(without(of(node["not"])))
    return both(*parts)


def _one_of(each: list[Language]) -> Language:
    others = ([other for place, other in enumerate(each) if place != index] for index in range(len(each)))
    return either(*(both(one, *map(without, rest)) for one, rest in zip(each, others, strict=True)))


def _held(node: Node, kind: str) -> list[Language]:
    """The languages of the node, by the keywords of this type."""
    parts = []
    for values in _values(node):
        parts.append(either(*(_text(value, kind) for value in values if type_of(value) == kind)))
    if kind == "number":
        parts += numbers.held(node)
    if kind == "string":
        for keyword, read in (("pattern", pattern), ("format", _format)):
            try:
                parts += [read(node[keyword])] if keyword in node else []
            except ValueError as error:
                raise Refused(node.path, str(error), keyword) from None
        if "minLength" in node or "maxLength" in node:
            least, most = node.get("minLength", 0), node.get("maxLength")
            parts.append(NOTHING if most is not None and most < least else repeated(ANY_CHAR, least, most))
    return parts


def _text(value: Any, kind: str) -> Language:
    if kind == "number":
        return numbers.equal_to(value)
    return literal(value if kind == "string" else text_of(value))


def _format(name: str) -> Language:
    if name not in FORMATS:
        raise ValueError(f"of formats, {', '.join(FORMATS)} can be held, but not {name!r}")
    return pattern(f"^({FORMATS[name]})$")


Possible = Callable[[str, list[Node]], bool]


@dataclass(slots=True)
class Branches:
    """The branches of arrays or objects (`kind`) that nodes admit together.

    `possible` says whether there may be such a value. Raises Refused for what cannot be told apart.
    """

    document: Document
    kind: str
    possible: Possible

    def of(self, nodes: Iterable[Node]) -> list[list[Node]]:
        """Nodes with keywords of this kind only; an empty list admits all values."""
        found: dict[str, list[Node]] = {}
        for branch in self._expanded(list(nodes), [], [], frozenset()):
            found.setdefault(text_of(branch), branch)
            if not branch:
                return [[]]
            if len(found) > MAX_BRANCHES:
                raise Refused(branch[0].path, f"it has more than {MAX_BRANCHES} combinations")
        return list(found.values())

    def _expanded(
        self, todo: list[Node], flat: list[Node], nots: list[Node], seen: frozenset[str]
    ) -> Iterator[list[Node]]:
        todo, flat, nots = list(todo), list(flat), list(nots)
        while todo:
            node = todo.pop(0)
            if not admits(node, self.kind):
                return
            if own := {keyword: value for keyword, value in node.items() if KEPT.get(keyword) == self.kind}:
                flat.append(node.made(own))
            nots += [node["not"]] if "not" in node else []
            todo[:0] = node.get("allOf", ())
            if "$ref" in node and node["$ref"] not in seen:
                todo.insert(0, self.document.target(node["$ref"], seen))
                seen |= {node["$ref"]}
            choices = list(self._choices(node))
            for others in choices[1:]:
                todo.append(node.made({"anyOf": others}))
            if choices:
                for choice in choices[0]:
                    yield from self._expanded([choice, *todo], flat, nots, seen)
                return
        yield from self._settled(flat, nots, seen)

    def _choices(self, node: Node) -> Iterator[list[Node]]:
        for values in _values(node):
            yield [_exactly(node, value) for value in values if type_of(value) == self.kind]
        if "anyOf" in node:
            yield node["anyOf"]
        if "oneOf" in node:
            each = node["oneOf"]
            yield [
                one.made({"allOf": [one, *(one.made({"not": other}) for other in each if other is not one)]})
                for one in each
            ]

    def _settled(self, flat: list[Node], nots: list[Node], seen: frozenset[str]) -> Iterator[list[Node]]:
        """Without what must not be."""
        if not nots:
            yield flat
        elif not self.possible(self.kind, [*flat, nots[0]]):
            yield from self._settled(flat, nots[1:], seen)
        else:
            for opposite in self._opposites(nots[0]):
                yield from self._expanded([opposite, *flat], [], nots[1:], seen)

    def _opposites(self, node: Node, seen: frozenset[str] = frozenset()) -> list[Node]:
        """The opposite of a keyword is a node that admits what the keyword does not. A value that the node does not
        admit fails at least one keyword, so it fits one of these."""
        if not admits(node, self.kind):
            return [Node()]
        found: list[Node] = []
        for keyword, value in node.items():
            if KEPT.get(keyword, "") not in ("", self.kind):
                continue
            match keyword:
                case "$ref" if value not in seen:
                    found += self._opposites(self.document.target(value, seen), seen | {value})
                case "$ref":
                    pass  # a schema that is part of itself says nothing more
                case "allOf":
                    found += [opposite for child in value for opposite in self._opposites(child, seen)]
                case "anyOf":
                    found.append(node.made({"allOf": [child.made({"not": child}) for child in value]}))
                case "not":
                    found.append(value)
                case "const" | "enum" if not any(type_of(each) == self.kind for each in _values(node)[0]):
                    return [Node()]
                case "required":
                    found += [node.made({"properties": {name: node.made({"not": Node()})}}) for name in value]
                case "properties":
                    for name, child in value.items():
                        other = {"required": [name], "properties": {name: child.made({"not": child})}}
                        found.append(node.made(other))
                case "items" if not {"prefixItems"} & node.keys():
                    found.append(node.made({"contains": value.made({"not": value})}))
                case "contains" if not {"minContains", "maxContains"} & node.keys():
                    found.append(node.made({"items": value.made({"not": value})}))
                case "minItems" | "minProperties" | "maxItems" | "maxProperties":
                    bound = value - 1 if keyword.startswith("min") else value + 1
                    found += [node.made({_OPPOSITES[keyword]: bound})] if bound >= 0 else []
                case _ if keyword != "type":
                    raise Refused(f"{node.path}/{keyword}", "it cannot be held where it must not apply")
        return found


def _exactly(node: Node, value: Any) -> Node:
    """The schema of this array or object alone."""
    if isinstance(value, list):
        items = [node.made({"const": each}) for each in value]
        return node.made({"prefixItems": items, "items": node.made({"not": Node()}), "minItems": len(value)})
    properties = {name: node.made({"const": each}) for name, each in value.items()}
    closed = {"properties": properties, "required": list(value), "additionalProperties": node.made({"not": Node()})}
    return node.made(closed)
