"""Bodies that are not JSON, or JSON that only an attacker sends."""

from __future__ import annotations

import contextlib
import gc
import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.requests.strict_json import MAX_CONTAINERS, MAX_DEPTH, MAX_KEYS, decode_object
from app.sizes import LARGE_BYTES
from tests.support.refusals import CALL, OUTPUT
from tests.support.requests import parse_request


def error(body: bytes) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(body)
    return caught.value.error


NO_OBJECTS = (
    *(b"", b"  ", b"{", b"nonsense", b'{"model": "m",}', b"[]", b'"text"', b"null", b"1"),
    *(b'{"model": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e999}'),
    *(b"\xff\xfe", b'{"model": "\xff"}', b"\xef\xbb\xbf{}", b'{"model": "\xed\xa0\x80"}'),
    *(b'{"model": "\\ud800"}', b'{"model": "\\udc00\\ud800"}'),
    *(b"[" * 100_000, b'{"a":' * 100_000),
)


def test_a_body_that_is_no_json_object_is_refused() -> None:
    for body in NO_OBJECTS:
        found = error(body)
        assert (found.param, found.code) == (None, "invalid_json"), body[:40]
        assert len(found.message) < 200 and "\n" not in found.message
    assert error(b"").message == "The body is empty; a JSON object is expected."


def test_the_last_of_equal_keys_counts() -> None:
    assert parse_request(b'{"model": "a", "input": "x", "model": "b"}').model == "b"


@pytest.mark.parametrize(
    "fields",
    [
        *({"input": [{"role": role, "content": "a\0b"}]} for role in ("user", "developer", "assistant")),
        {"input": [{"role": "developer", "content": [{"type": "input_text", "text": "\0"}]}]},
        {"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "\0"}]}]},
        {"input": [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "\0"}]}]},
        {"input": [CALL | {"name": "f\0", "arguments": "\0"}, OUTPUT | {"output": "a\0b"}]},
        {"input": [CALL, OUTPUT | {"output": [{"type": "input_text", "text": "a\0b"}]}]},
        {"input": "a\0b", "instructions": "a\0b"},
        {"input": "x", "previous_input_messages": [{"role": "user", "content": "\0"}]},
        {"input": "x", "client_metadata": {"a\0": "\0"}},
    ],
)
def test_text_may_have_the_nul_character(fields: dict[str, Any]) -> None:
    parse_request(orjson.dumps({"model": "m", **fields}))
    # An escaped backslash before u0000 is none.
    assert parse_request(rb'{"model": "m", "input": "\\u0000"}').fields.input == r"\u0000"


def nested(depth: int) -> bytes:
    return b'{"model": "m", "input": "x", "foo": ' + b"[" * depth + b"]" * depth + b"}"


def test_deep_nesting_is_refused_without_recursion() -> None:
    assert error(nested(MAX_DEPTH)).code == "unknown_parameter"
    found = error(nested(MAX_DEPTH + 1))
    assert found.message == f"Invalid 'foo': nested deeper than {MAX_DEPTH} levels."
    error(nested(1000))


def test_an_object_with_too_many_keys_is_refused() -> None:
    many = {f"k{i}": 1 for i in range(MAX_KEYS + 1)}
    assert error(orjson.dumps(many)).message == f"Invalid body: an object with more than {MAX_KEYS} keys."
    assert error(orjson.dumps({"model": "m", "input": "x", "metadata": many})).param == "metadata"


def test_a_body_with_too_many_values_is_refused() -> None:
    for value in (1, {}, []):
        found = error(orjson.dumps({"model": "m", "input": [value] * (MAX_CONTAINERS + 1)}))
        assert found.message == f"Invalid 'input': more than {MAX_CONTAINERS} values."


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_json = st.recursive(_scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
_fields = st.sampled_from(["model", "input", "metadata", "temperature", "text", "tools", "stream", "role", "content"])


_items = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call"]) | _json,
        "role": st.sampled_from(["user", "assistant"]) | _json,
        "content": st.text() | st.lists(st.fixed_dictionaries({"type": st.just("input_text"), "text": _json})) | _json,
        "id": _json,
    },
)
_bodies = st.dictionaries(_fields | st.text(), _json, max_size=8) | st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.lists(_items | _json, max_size=4)}
)


@settings(max_examples=70)
@given(_bodies)
def test_any_json_body_is_parsed_or_refused_in_one_line(body: dict[str, Any]) -> None:
    try:
        stored = parse_request(json.dumps(body).encode()).stored("resp_1", {})
    except InvalidRequest as refusal:
        message = refusal.error.message
        assert message and "\n" not in message and "\0" not in message
    else:
        orjson.dumps(stored)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    try:
        decode_object(body)
    except InvalidRequest as refusal:
        assert refusal.error.message


@pytest.mark.parametrize("body", [b'{"a": "%s"}' % (b"x" * LARGE_BYTES), b"[" * (LARGE_BYTES + 1)])
def test_a_large_body_leaves_the_garbage_collector_as_it_was(body: bytes) -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with contextlib.suppress(InvalidRequest):
                decode_object(body)
            assert gc.isenabled() is enabled
        finally:
            gc.enable()
