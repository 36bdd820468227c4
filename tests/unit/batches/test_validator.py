"""A batch's file, checked before any line runs."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.batches.jsonl import LineSplitter
from app.batches.line import BatchLine
from app.batches.validator import MAX_ERRORS, Validation
from app.protocol.requests.bodies.batch import CHAT, RESPONSES

_BODY = {
    RESPONSES: {"model": "m", "input": "Hello"},
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
}


def _line(custom_id: Any = "a", endpoint: str = RESPONSES, body: Any = None, **others: Any) -> bytes:
    sent = {
        "custom_id": custom_id,
        "method": "POST",
        "url": endpoint,
        "body": _BODY[endpoint] if body is None else body,
    }
    return orjson.dumps({key: value for key, value in (sent | others).items() if value is not ...})


def _validated(*lines: bytes, endpoint: str = RESPONSES, max_lines: int = 5000) -> tuple[Validation, list[BatchLine]]:
    validation, splitter = Validation(endpoint, max_lines, max_line_bytes=4096), LineSplitter(4096)
    raw = [*splitter.feed(b"\n".join(lines)), *splitter.end()]
    read = [line for each in raw if (line := validation.add(each)) is not None]
    return validation, read


@pytest.mark.parametrize("endpoint", [RESPONSES, CHAT])
def test_a_good_line_is_a_request(endpoint: str) -> None:
    validation, lines = _validated(_line("one", endpoint), _line("two", endpoint), endpoint=endpoint)
    assert not validation.problems()
    assert [(line.custom_id, line.request.model) for line in lines] == [("one", "m"), ("two", "m")]
    assert validation.models == {"m"}


def test_tools_that_are_left_out_of_requests_are_left_out_of_lines() -> None:
    """One of them must not access the web, so it is none that a server could run."""
    tools = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
    validation = Validation(RESPONSES, 10, 4096, omitted={"image_generation"})
    [raw] = LineSplitter(4096).feed(_line(body={**_BODY[RESPONSES], "tools": tools}) + b"\n")
    line = validation.add(raw)
    assert line is not None, validation.errors
    document = line.request.stored("resp_1", {})
    assert (document["tools"], document["omitted_tools"]) == ([], ["web_search", "image_generation"])


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"no json", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b'{"custom_id": "\\ud83d"}', "invalid_json_line", None),
        (_line(...), "missing_required_parameter", "custom_id"),
        (_line(""), "empty_string", "custom_id"),
        (_line("x" * 513), "string_above_max_length", "custom_id"),
        (_line("a\0b"), "invalid_value", "custom_id"),
        (_line(7), "invalid_type", "custom_id"),
        (_line(method="GET"), "invalid_value", "method"),
        (_line(url="/v1/embeddings"), "mismatched_endpoint", "url"),
        (_line(url=CHAT), "mismatched_endpoint", "url"),
        (_line(body=...), "missing_required_parameter", "body"),
        (_line(body="text"), "invalid_type", "body"),
        (_line(body={"input": "Hello"}), "missing_required_parameter", "body.model"),
        (
            _line(body={"model": "m", "input": [{"role": "user", "content": 7}]}),
            "invalid_type",
            "body.input[0].content",
        ),
        (_line(body={"model": "m", "input": "a", "stream": True}), "unsupported_parameter", "body.stream"),
        (_line(other=1), "unknown_parameter", "other"),
        (_line(body={"model": "m", "input": "x" * 5000}), "line_too_long", None),
    ],
)
def test_a_bad_line_is_named(line: bytes, code: str, param: str | None) -> None:
    validation, read = _validated(_line("before"), line, _line("after"))
    assert [(error.line, error.code, error.param) for error in validation.problems()] == [(2, code, param)]
    assert [each.custom_id for each in read] == ["before", "after"]


def test_what_is_wrong_with_the_json_of_a_line_is_said_of_the_line() -> None:
    for line, message in (
        (_line("a") + b",", "The line is not valid JSON: unexpected content after document: column "),
        (b"[]", "The line must be a JSON object."),
        (_line("a").decode().encode("utf-16"), "The line is not in UTF-8."),
    ):
        assert _validated(line)[0].problems()[0].message.startswith(message)


def test_the_field_of_a_chat_line_is_called_as_chat_calls_it() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "audio"}]}]}
    validation, _ = _validated(_line("a", CHAT, body), endpoint=CHAT)
    assert [error.param for error in validation.problems()] == ["body.messages[0].content[0].type"]


def test_a_custom_id_that_comes_twice_names_the_first_line() -> None:
    validation, _ = _validated(_line("a"), _line("b"), b"", _line("a"))
    (error,) = validation.problems()
    assert (error.line, error.code) == (4, "duplicate_custom_id")
    assert "line 1" in error.message


def test_all_bad_lines_are_counted_and_the_first_ones_named() -> None:
    validation, _ = _validated(*[b"{}"] * (MAX_ERRORS + 5))
    problems = validation.problems()
    assert [error.line for error in problems] == [*range(1, MAX_ERRORS + 1), None]
    assert str(MAX_ERRORS + 5) in problems[-1].message


def test_a_file_has_lines_and_not_too_many() -> None:
    assert [error.code for error in _validated()[0].problems()] == ["empty_file"]
    validation, _ = _validated(*[_line(str(number)) for number in range(4)], max_lines=3)
    assert validation.is_over
    assert [error.code for error in validation.problems()] == ["too_many_requests"]
