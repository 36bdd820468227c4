"""Every fault of a request is refused by one sentence that names the field, as the client wrote it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from app.protocol.errors import ErrorObject, InvalidRequest
from app.protocol.include import REFUSED_INCLUDES
from app.protocol.item_types import UNSUPPORTED_ITEMS
from app.protocol.requests.bodies.compaction import compact_request
from app.protocol.requests.bodies.input_tokens import count_request
from app.protocol.requests.items.content import UNSUPPORTED_PARTS
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS
from app.protocol.requests.tools.choice import UNSUPPORTED_CHOICES
from app.protocol.response import error_object
from tests.support.refusals import BOUNDS, CASES, ITEMS, NUL, RANGES, SAID, TRIGGER, UNSUPPORTED, WRONG_TYPES, Json
from tests.support.requests import parse_request


def error(**fields: Any) -> ErrorObject:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(json.dumps({"model": "m", "input": "x", **fields}).encode())
    return caught.value.error


def count(sent: Json) -> Any:
    return count_request(sent, "m")


def test_the_field_at_fault_is_named_as_the_client_wrote_it() -> None:
    for sent, code, path in CASES:
        found = error(**sent)
        assert (found.code, found.param) == (code, path)
        assert f"'{path}'" in found.message
        assert "\n" not in found.message and "\0" not in found.message
        assert not re.search(r"<\w+>", found.message), "a tag of a union"


def grown(value: Any, by: str) -> Iterator[Any]:
    """Yields `value` once for each text and key in it, which `by` follows there."""
    if isinstance(value, str):
        yield value + by
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for larger in grown(child, by):
            copy = value.copy()
            copy[key] = larger
            yield copy
        if isinstance(key, str):
            yield {**value, key + by: child}


def test_no_error_repeats_what_was_sent_however_long_it_is() -> None:
    refused = 0
    for sent, _, _ in CASES:
        if len(json.dumps(sent)) < 1000:
            for larger in grown(sent, 2000 * "{path}"):
                try:
                    parse_request(json.dumps({"model": "m", "input": "x", **larger}).encode())
                except InvalidRequest as caught:
                    refused += 1
                    assert len(json.dumps(caught.error.body())) < 2500
    assert refused > 2000
    failed = error_object("queue_timeout", "x" * 5000 + " Send less.")
    assert len(failed["message"]) == 1000 and failed["message"].endswith("x Send less.")


def test_what_is_not_supported_is_called_by_its_name() -> None:
    known = (*UNSUPPORTED_ITEMS, *UNSUPPORTED_PARTS, *UNSUPPORTED_TOOLS, *UNSUPPORTED_CHOICES, *REFUSED_INCLUDES)
    messages = " ".join(error(**sent).message for sent, code, _ in CASES if code == UNSUPPORTED)
    assert [name for name in known if f"'{name}'" not in messages] == []


def test_a_number_out_of_range_is_refused_with_its_bound() -> None:
    for field, good, bad, _ in RANGES:
        parse_request(json.dumps({"model": "m", "input": "x", field: good}).encode())
        message = error(**{field: bad}).message
        assert message.startswith(f"Invalid '{field}': expected a value ")
        assert f"got {bad} instead" in message


def test_a_wrong_type_is_refused_with_the_right_one() -> None:
    for field, value, expected, got in WRONG_TYPES:
        message = error(**{field: value}).message
        assert message == f"Invalid type for '{field}': expected {expected}, but got {got} instead."


def test_what_is_too_long_is_refused_with_its_bound() -> None:
    limits = ("10000 items", "1024 items", "16384 items", "1024 items", "64 items", "256 characters", "16 keys")
    for (sent, _, _), limit in zip(BOUNDS, limits, strict=True):
        assert f"at most {limit}, " in error(**sent).message


def test_the_nul_character_is_refused_in_names_and_settings() -> None:
    for sent, _, path in NUL:
        assert error(**sent).message == f"Invalid '{path}': the character U+0000 is not allowed."


OWN: list[tuple[Callable[[Json], Any], Json, str]] = [
    (count, {}, "input"),
    (count, {"input": "x", "temperature": 1}, "temperature"),
    (count, {"input": "x", "personality": "friendly"}, "personality"),
    (count, {"input": "x", "tool_choice": "required"}, "tool_choice"),
    (count, {"input": [SAID, TRIGGER]}, "input[1]"),
    (compact_request, {"input": "x"}, "model"),
    (compact_request, {"model": "m"}, "input"),
    (compact_request, {"model": "m", "input": "x", "stream": True}, "stream"),
    (compact_request, {"model": "m", "input": "x", "tools": [{"type": "function"}]}, "tools[0].name"),
]


@pytest.mark.parametrize(("read", "sent", "path"), OWN)
def test_the_bodies_of_counts_and_compactions_have_fields_of_their_own(
    read: Callable[[Json], Any], sent: Json, path: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(sent)
    assert caught.value.error.param == path


@pytest.mark.parametrize("read", [count, compact_request])
def test_counts_and_compactions_refuse_what_a_response_refuses_of_its_input(read: Callable[[Json], Any]) -> None:
    for sent, code, path in ITEMS:
        if "trigger" not in str(sent["input"]):
            with pytest.raises(InvalidRequest) as caught:
                read({"model": "m", **sent})
            assert (caught.value.error.code, caught.value.error.param) == (code, path)
