"""A caller's JSON schema (draft 2020-12, or 6 to 2019-09) as nodes with keywords that `schema_grammar.py` knows.

A node has no annotations, its references lead to nodes, and `if`, `dependentRequired` and the like are written as
`anyOf` and `not`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for

from app.protocol.types import Json

KEPT = {
    "type": "", "enum": "", "const": "",
    "minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number",
    "multipleOf": "number",
    "minLength": "string", "maxLength": "string", "pattern": "string", "format": "string",
    "minItems": "array", "maxItems": "array", "uniqueItems": "array", "minContains": "array", "maxContains": "array",
    "prefixItems": "array", "items": "array", "contains": "array",
    "minProperties": "object", "maxProperties": "object", "required": "object", "properties": "object",
    "patternProperties": "object", "additionalProperties": "object", "propertyNames": "object",
    "allOf": "", "anyOf": "", "oneOf": "", "not": "",
}  # fmt: skip
"""The keywords of a node, besides `$ref`, each with the type of value that it is about."""
_ONE = frozenset({"not", "items", "contains", "additionalProperties", "propertyNames"})
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_OTHERS = frozenset({"if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "additionalItems"})
_COUNTS = frozenset(keyword for keyword in KEPT if keyword[3:] in ("Length", "Items", "Contains", "Properties"))
_REFUSED = ("$recursiveRef", "extends", "disallow")
_DIALECTS = ("draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema")
MAX_REFERENCES = 100
"""References that are followed at one place of a value."""
_OTHER_TYPES = ["null", "boolean", "number", "string", "array"]


class Node(dict[str, Any]):
    """`path` is a JSON pointer to where it comes from, for messages."""

    def __init__(self, keywords: Mapping[str, Any] = {}, path: str = "#") -> None:
        super().__init__(keywords)
        self.path = path

    def made(self, keywords: Mapping[str, Any]) -> Node:
        """Another node, from the same place."""
        return Node(keywords, self.path)


class Refused(ValueError):
    """`keyword` of the node at `path` is at fault, or the node, or what stands there."""

    def __init__(self, path: str, reason: str, keyword: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path != "#" else reason)
        self.path = path
        self.keyword = keyword


class NoSchema(Refused):
    """The schema is wrong in itself: a part of it would be wrong, too."""


class Document:
    """Raises NoSchema for what is no schema, or refers to another document, and Refused for what cannot be held."""

    def __init__(self, schema: Json | bool) -> None:
        dialect = str(schema.get("$schema", "")).rstrip("#") if isinstance(schema, dict) else ""
        if dialect and not dialect.endswith(_DIALECTS):
            raise NoSchema("#/$schema", f"the dialect {dialect!r} is not known")
        checker: Any = validator_for(schema, default=Draft202012Validator)
        if (error := best_match(checker(checker.META_SCHEMA).iter_errors(schema))) is not None:
            raise NoSchema("#" + "".join(f"/{_escaped(part)}" for part in error.absolute_path), error.message[:200])
        self._schemas: dict[str, tuple[Any, str]] = {"": (schema, "#")}
        """By absolute URI: what stands there, and its path."""
        self._dynamic: list[str] = []
        self._bases: dict[int, str] = {}
        """By the identity of a schema."""
        self._nodes: dict[str, Node] = {}
        """What references lead to, by their target's path."""
        self._scan(schema, "", "#")
        self._todo: list[tuple[Any, str]] = []
        """What references lead to, and is no node yet: a chain of references may be long."""
        self.root = self._node(schema, "#")
        while self._todo:
            found, where = self._todo.pop()
            self._nodes[where].update(self._node(found, where))

    def target(self, reference: str, followed: frozenset[str]) -> Node:
        """Raises Refused if too many references were `followed` to come here."""
        if len(followed) >= MAX_REFERENCES:
            raise Refused(reference, f"more than {MAX_REFERENCES} references lead to each other")
        return self._nodes[reference]

    def _scan(self, schema: Any, base: str, path: str) -> None:
        if not isinstance(schema, dict) or id(schema) in self._bases:
            return
        if isinstance(named := schema.get("$id"), str):
            base = urljoin(base, urldefrag(named)[0]) or base
            self._schemas[base] = schema, path
        self._bases[id(schema)] = base
        for keyword in ("$anchor", "$dynamicAnchor"):
            if keyword in schema:
                self._schemas[f"{base}#{schema[keyword]}"] = schema, path
        self._dynamic += [schema["$dynamicAnchor"]] if "$dynamicAnchor" in schema else []
        for keyword, value in schema.items():
            for part, child in children(keyword, value):
                self._scan(child, base, f"{path}/{part}")

    def _resolved(self, reference: str, schema: Json, path: str) -> str:
        """The path of what it leads to, of which there is a node then."""
        base = self._bases[id(schema)]
        uri, fragment = urldefrag(base + reference if reference.startswith("#") else urljoin(base, reference))
        fragment = unquote(fragment)
        known = uri if not fragment or fragment.startswith("/") else f"{uri}#{fragment}"
        if known not in self._schemas:
            raise NoSchema(f"{path}/$ref", f"{reference!r} is not in this document")
        found, where = self._schemas[known]
        base = uri
        for key in parts_of(fragment) if fragment.startswith("/") else ():
            if isinstance(found, dict) and id(found) in self._bases:
                base = self._bases[id(found)]
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise NoSchema(f"{path}/$ref", f"{reference!r} is not in this document") from None
            where += f"/{_escaped(key)}"
        if not isinstance(found, dict | bool):
            raise NoSchema(f"{path}/$ref", f"{reference!r} is no schema")
        self._scan(found, base, where)
        if where not in self._nodes:
            self._nodes[where] = Node(path=where)
            self._todo.append((found, where))
        return where

    def _node(self, schema: Any, path: str) -> Node:
        node = Node({"not": Node()} if schema is False else {}, path)
        if isinstance(schema, bool):
            return node
        for keyword, value in schema.items():
            if keyword in _REFUSED:
                raise Refused(f"{path}/{keyword}", "it cannot be held")
            if keyword in _COUNTS:
                node[keyword] = int(value)  # it may be 2.0
            elif keyword in KEPT:
                made = [self._node(child, f"{path}/{part}") for part, child in children(keyword, value)]
                if keyword in _NAMED:
                    node[keyword] = dict(zip(value, made, strict=True))
                else:
                    node[keyword] = value if not (made or value == []) else made if isinstance(value, list) else made[0]
        more: list[Json] = []
        if "$ref" in schema:
            node["$ref"] = self._resolved(schema["$ref"], schema, path)
        if "$dynamicRef" in schema:
            more.append(Node({"$ref": self._followed(schema["$dynamicRef"], schema, path)}, path))
        self._old_items(node, schema, path)
        self._unevaluated(node, schema, path)
        more += self._implications(schema, path)
        if more:
            node["allOf"] = [*node.get("allOf", ()), *more]
        return node

    def _followed(self, reference: str, schema: Json, path: str) -> str:
        if self._dynamic.count(urldefrag(reference)[1]) > 1:
            raise Refused(f"{path}/$dynamicRef", "it cannot be held if several schemas have its anchor")
        return self._resolved(reference, schema, path)

    def _old_items(self, node: Node, schema: Json, path: str) -> None:
        """A list of `items` and `additionalItems`, as before 2020-12."""
        if isinstance(schema.get("items"), list):
            node["prefixItems"] = node.pop("items")
            if "additionalItems" in schema:
                node["items"] = self._node(schema["additionalItems"], f"{path}/additionalItems")

    def _unevaluated(self, node: Node, schema: Json, path: str) -> None:
        beside = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"} & schema.keys()
        for keyword, like in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
            if schema.get(keyword, True) is True or like in node:
                continue
            if beside or (like == "items" and "contains" in schema):
                raise Refused(
                    f"{path}/{keyword}", f"it cannot be held beside {', '.join(sorted(beside)) or 'contains'}"
                )
            node[like] = self._node(schema[keyword], f"{path}/{keyword}")

    def _implications(self, schema: Json, path: str) -> list[Json]:
        """`if`, and what the presence of a property asks for, as choices."""
        made: list[Json] = []
        if "if" in schema and ("then" in schema or "else" in schema):
            test, then, other = (
                self._node(schema.get(name, True), f"{path}/{name}") for name in ("if", "then", "else")
            )
            choices = [
                Node({"allOf": [test, then]}, path),
                Node({"allOf": [Node({"not": test}, path), other]}, path),
            ]
            made.append(Node({"anyOf": choices}, path))
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, value in schema.get(keyword, {}).items():
                asked = {"required": [name, *value]} if isinstance(value, list) else {"required": [name]}
                if not isinstance(value, list):
                    asked["allOf"] = [self._node(value, f"{path}/{keyword}/{_escaped(name)}")]
                absent = {"type": "object", "properties": {name: self._node(False, path)}}
                cases: list[Json] = [{"type": _OTHER_TYPES}, absent, {"type": "object", **asked}]
                made.append(Node({"anyOf": [Node(case, path) for case in cases]}, path))
        return made


def children(keyword: str, value: Any) -> list[tuple[str, Any]]:
    """The schemas in a keyword's value, each with its path from here."""
    if keyword in _NAMED and isinstance(value, dict):
        return [(f"{keyword}/{_escaped(name)}", child) for name, child in value.items()]
    if isinstance(value, list) and (keyword in _LISTS or keyword == "items"):
        return [(f"{keyword}/{index}", child) for index, child in enumerate(value)]
    return [(keyword, value)] if keyword in _ONE | _OTHERS else []


def parts_of(pointer: str) -> list[str]:
    """What a JSON pointer leads through, each by its name."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _escaped(part: object) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")
