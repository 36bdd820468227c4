"""Every list of a request has a bound, which the OpenAPI document shows and a refusal says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.compaction import Compact
from app.protocol.requests.bodies.conversation import CreateConversation, CreateItems, UpdateConversation
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.input_tokens import CountTokens
from app.protocol.requests.strict_json import MAX_VALUES
from tests.support.requests import parse_request

BODIES = (Compact, CountTokens, CreateConversation, CreateItems, CreateResponse, UpdateConversation)


def unbounded(node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "array" and "maxItems" not in node:
            yield path
        for key, child in node.items():
            yield from unbounded(child, f"{path}.{key}")
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from unbounded(child, f"{path}[{index}]")


def test_every_array_of_a_body_has_a_bound_that_its_schema_shows() -> None:
    nested = set[str]()
    for model in BODIES:
        schema = model.model_json_schema()
        assert list(unbounded(schema, model.__name__)) == []
        nested |= set(schema.get("$defs", {}))
    assert {"InputMessage", "OutputText", "NamespaceTool", "AllowedTools", "SearchAction"} <= nested


def test_numbers_and_short_strings_count_among_the_values_of_a_body() -> None:
    rows = {f"k{index}": [0] * 40_000 for index in range(1 + MAX_VALUES // 40_000)}
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": rows}
    with pytest.raises(InvalidRequest) as caught:
        parse_request(orjson.dumps({"model": "m", "input": [call]}))
    found = caught.value.error
    assert (found.param, found.message) == ("input", f"Invalid 'input': the body has more than {MAX_VALUES} values.")
