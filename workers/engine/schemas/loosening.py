"""A schema without what no grammar can hold.

It admits whatever the schema admits, and more. Without one of its keywords, a `not` or an `if` would forbid values
that the schema admits. So there the whole condition is left out.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from app.protocol.types import Json
from workers.engine.schemas.documents import NoSchema, Refused, children, parts_of
from workers.engine.schemas.schema_grammar import schema_grammar

MAX_LEFT_OUT = 100
_FIRST = ("uniqueItems", "maxLength", "minLength", "multipleOf", "minProperties", "maxProperties", "format", "pattern")
"""Keywords in the order in which they leave a node that is too large."""
_WHOLE = frozenset({"unevaluatedProperties", "unevaluatedItems", "extends", "disallow", "enum", "required"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions"})
_CHOICE = ("if", "then", "else")
_BEYOND: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_CHOICE, _CHOICE),
    "not": ("not",),
    "contains": ("contains", "minContains", "maxContains"),
}
"""Conditions in which less is no looser, each with the keywords that go with it."""
_REFERENCES = ('"$ref"', '"$dynamicRef"')


def loosened(schema: Json) -> Json:
    """Raises NoSchema, and Refused if too much would have to go."""
    for count in range(MAX_LEFT_OUT):
        try:
            schema_grammar(schema)
            return schema
        except NoSchema:
            raise
        except Refused as refused:
            before, schema = schema, deepcopy(schema)
            if not count:
                _leave_out_conditions(schema)  # what is left out below may be what they refer to
            _leave_out(schema, refused)
            if schema == before:
                raise
    raise Refused("#", f"more than {MAX_LEFT_OUT} of its keywords cannot be held")


def _leave_out(schema: Json, refused: Refused) -> None:
    """Takes what was refused out of the schema, in place."""
    at: Any = schema
    path, in_schema = parts_of(refused.path), True
    for index, part in enumerate(path):
        if in_schema:
            if not isinstance(at, dict) or part not in at:
                break  # a node that stands for what is written otherwise
            if _is_condition(part):
                return _leave_out_condition(at, part)
            if part == "patternProperties" and index == len(path) - 1:
                for name in ("patternProperties", "additionalProperties", "unevaluatedProperties"):
                    at.pop(name, None)
                return None
            if part in _WHOLE or not isinstance(at[part], dict | list):
                del at[part]
                return None
        elif (isinstance(at, list) and not part.isdecimal()) or (isinstance(at, dict) and part not in at):
            break
        holder, key = at, int(part) if isinstance(at, list) else part
        at = holder[key]
        in_schema = not (in_schema and (isinstance(at, list) or part in _MAPS))
    _leave_out_of(at, refused.keyword)
    return None


def _leave_out_of(node: Any, keyword: str) -> None:
    """Takes a keyword out of a node, or what may be too much, or all but its type."""
    if not isinstance(node, dict):
        return
    if found := next((name for name in (keyword, *_FIRST) if name in node), None):
        del node[found]
        return
    kept = {name: node[name] for name in ("type", "$defs", "definitions") if name in node}
    if len(kept) == len(node):
        kept.pop("type", None)
    node.clear()
    node.update(kept)


def _is_condition(keyword: str) -> bool:
    return keyword in _BEYOND or keyword == "oneOf"


def _leave_out_condition(node: Json, keyword: str) -> None:
    if keyword == "oneOf":
        node["allOf"] = [*node.get("allOf", ()), {"anyOf": node.pop("oneOf")}]
        return
    for name in _BEYOND[keyword]:
        node.pop(name, None)


def _leave_out_conditions(schema: Any) -> None:
    """Takes out all conditions that refer to something."""
    if not isinstance(schema, dict):
        return
    for keyword in filter(_is_condition, list(schema)):
        if keyword in schema and any(name in json.dumps(schema[keyword]) for name in _REFERENCES):
            _leave_out_condition(schema, keyword)
    for keyword, value in schema.items():
        for _, child in children(keyword, value):
            _leave_out_conditions(child)
