"""The JSON schemas in a structural tag, as grammars that hold all they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from app.protocol.types import Json
from workers.engine.schemas.branches import SCALARS, Branches, scalar
from workers.engine.schemas.documents import Node, Refused
from workers.engine.schemas.languages import both, is_empty
from workers.engine.schemas.schema_grammar import Grammar

_PLACE = "longhaul-place-"
_NUMBER = 7_301_000_000_000
_PLACES = re.compile(rf'"(?:{_PLACE}|{_NUMBER // 10**6})0*(\d+)"')
_END = re.compile(r'excludes=\(("(?:[^"\\]|\\.)*")')

Printed = Callable[[Json], str]
"""xgrammar's grammar of a format, as EBNF."""


def held(node: Any, printed: Printed, known: dict[str, str] | None = None) -> Any:
    """The tag with grammars in place of JSON schemas. Raises Refused, with the path in a schema.

    `known` has the grammars so far: a tag may begin a call in many ways.
    """
    known = {} if known is None else known
    if isinstance(node, list):
        return [held(each, printed, known) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") != "json_schema":
        return {key: held(value, printed, known) for key, value in node.items()}
    if (key := json.dumps(node)) not in known:
        is_json = node.get("style", "json") == "json"
        made = Grammar(node["json_schema"], node.get("excludes", ())) if is_json else _Parameters(node, printed)
        known[key] = made.text()
    return {"type": "grammar", "grammar": known[key]}


def nodes_in(node: Any) -> Iterator[Json]:
    """The nodes of a tag, or of a part of it; schemas are not searched."""
    if isinstance(node, list):
        for each in node:
            yield from nodes_in(each)
    elif isinstance(node, dict):
        yield node
        if node.get("type") != "json_schema":
            yield from nodes_in(list(node.values()))


def definitions(tag: Json) -> Iterator[str]:
    """The grammars that a tag has before its schemas are held: those of definitions that callers sent."""
    return (node["grammar"] for node in nodes_in(tag) if node.get("type") == "grammar")


class _Parameters:
    """Arguments that a model writes one by one, as XML: strings as they are, other values as JSON.

    xgrammar makes the frame, with a place for each value. There are no arguments but those that the schema names.
    """

    def __init__(self, node: Json, printed: Printed) -> None:
        self._node = node
        self._printed = printed
        self._any_object = printed({**node, "json_schema": {"type": "object"}})
        ends = [json.loads(end) for end in _END.findall(self._any_object)]
        self._grammar = Grammar(node["json_schema"], {*ends, *node.get("excludes", ())})
        self._rules: list[str] = []

    def text(self) -> str:
        root = self._grammar.document.root
        found = Branches(self._grammar.document, "object", self._grammar.possible).of([root])
        if found == [[]]:
            return self._any_object
        if len(found) != 1:
            raise Refused(root.path, "this model's calls can only be held to one kind of object")
        if counted := next((each for each in found[0] if {"minProperties", "maxProperties"} & each.keys()), None):
            raise Refused(counted.path, "this model's calls cannot be held to a number of properties")
        named, rest = self._grammar.members(found[0], self._place)
        if rest and not named:
            raise Refused(root.path, "this model's calls can only be held to properties that are named")
        frame = {
            "type": "object",
            "properties": {name: place for name, place, _ in named},
            "required": [name for name, _, must in named if must],
            "additionalProperties": False,
        }
        ebnf = self._printed({**self._node, "json_schema": frame})
        return _PLACES.sub(lambda place: self._rules[int(place[1])], ebnf) + "\n" + self._grammar.printed(self._rules)

    def _place(self, nodes: list[Node]) -> Json | None:
        """A schema that stands for a value; None if there is none."""
        grammar = self._grammar
        places: list[Json] = []
        texts = both(scalar(grammar.document, nodes, "string"), grammar.strings)
        if texts is grammar.strings:
            places.append({"type": "string"})
        elif not is_empty(texts):
            places.append({"const": f"{_PLACE}{len(self._rules):06}"})
            self._rules.append(grammar.language(texts))
        others = [grammar.scalar(kind, scalar(grammar.document, nodes, kind)) for kind in SCALARS if kind != "string"]
        others += [grammar.composite(kind, nodes) for kind in ("array", "object")]
        if (rule := grammar.rule(list(chain(*others)))) is not None:
            places.append({"const": _NUMBER + len(self._rules)})
            self._rules.append(rule)
        return {"anyOf": places} if len(places) > 1 else next(iter(places), None)
