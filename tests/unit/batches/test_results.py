"""The results of lines, as files and followers have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from openai.types.responses import Response

from app.batches.results import CANCELLED, EXPIRED, Result, result
from app.batches.writer import group_errors
from app.protocol.requests.bodies.batch import RESPONSES
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.batches.results import ResultRow
from app.store.rows import ResponseRow
from tests.support.requests import stored_request

_TEXT = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
_OUTPUT = [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [_TEXT]}]
_USAGE = {
    "input_tokens": 1,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 2,
}


def _row(status: Status, **values: Any) -> ResponseRow:
    empty = dict.fromkeys(ResponseRow.__slots__)
    now = datetime.now(UTC)
    known = {"id": "resp_1", "request": stored_request(background=True), "created_at": now, "finished_at": now}
    return ResponseRow(**(empty | known | {"status": status, "output": []} | values))


def _result(
    response: ResponseRow | None, endpoint: str = RESPONSES, ended: Json | None = None, **values: Any
) -> Result:
    status = Status.COMPLETED.value if response is None else response.status.value
    row = ResultRow("batch_b", 7, 3, "mine", status, "resp_1", response, values.get("error"))
    return result(row, endpoint, ended)


def test_a_result_is_one_line_however_a_client_splits_lines() -> None:
    text = "one\x85two\u2028three\u2029four\x1cfive\r\n"
    output = [{**_OUTPUT[0], "content": [{**_TEXT, "text": text}]}]
    (line,) = _result(_row(Status.COMPLETED, output=output, usage=_USAGE)).data.decode().splitlines()
    assert Response.model_validate(orjson.loads(line)["response"]["body"]).output_text == text


@pytest.mark.parametrize(
    ("code", "status"), [("server_error", 500), ("context_length_exceeded", 400), ("queue_timeout", 503)]
)
def test_a_failure_has_the_http_status_that_a_client_would_have_got(code: str, status: int) -> None:
    made = _result(_row(Status.FAILED, error={"code": code, "message": "It failed."}))
    line = orjson.loads(made.data)
    assert (made.is_answer, made.error_code) == (False, code)
    assert line["response"]["status_code"] == status
    assert line["response"]["body"]["error"]["code"] == code


@pytest.mark.parametrize(
    ("ended", "code"), [(CANCELLED, "batch_cancelled"), (EXPIRED, "batch_expired"), (None, "response_cancelled")]
)
def test_a_cancelled_line_says_what_cancelled_it(ended: Json | None, code: str) -> None:
    made = _result(_row(Status.CANCELLED), ended=ended)
    line = orjson.loads(made.data)
    assert (made.is_answer, made.error_code, line["response"], line["error"]["code"]) == (False, code, None, code)


def test_a_line_without_a_response_says_why() -> None:
    assert orjson.loads(_result(None).data)["error"]["code"] == "response_deleted"
    error = {"code": "model_not_found", "message": "It is gone."}
    assert orjson.loads(_result(None, error=error).data)["error"] == error


def test_errors_are_grouped_by_code_over_several_steps() -> None:
    def failed(line: int, code: str | None) -> Result:
        return Result(line, code is None, b"", code)

    assert group_errors(None, [failed(1, None)]) is None
    first = group_errors(None, [failed(1, None), failed(2, "a"), failed(3, "b")])
    grouped = group_errors(first, [failed(4, "b"), failed(5, None)])
    assert grouped is not None
    assert [(each["code"], each["count"], each["line"]) for each in grouped["data"]] == [("a", 1, 2), ("b", 2, 3)]
