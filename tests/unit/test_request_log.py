"""The texts of the request log."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from workers.request_log import MAX_TEXT, RequestLog


def logged(caplog: pytest.LogCaptureFixture, request: dict[str, Any]) -> dict[str, str]:
    row: Any = SimpleNamespace(
        request=request, model="m", background=False, stream=False, started_at=None, yields=0, output=None
    )
    response = {"usage": None, "incomplete_details": None, "error": None, "output": []}
    with caplog.at_level("INFO", "longhaul.requests"):
        RequestLog("full").ended(row, response, "completed", 1.0)
    fields: dict[str, str] = caplog.records[-1].__dict__["fields"]
    return fields


@pytest.mark.parametrize("instructions", [{}, {"instructions": None}])
def test_a_request_without_instructions_has_none_in_the_log(
    caplog: pytest.LogCaptureFixture, instructions: dict[str, Any]
) -> None:
    fields = logged(caplog, {"input": [], **instructions})
    assert "instructions" not in fields and fields["input"] == ""


@pytest.mark.parametrize("large", ["x" * 3_000, ["x"] * 1_000, {str(n): n for n in range(1_000)}])
def test_a_large_value_is_cut(caplog: pytest.LogCaptureFixture, large: Any) -> None:
    item = {"type": "message", "content": [{"type": "input_image", "image_url": large}]}
    assert logged(caplog, {"input": [item]})["input"] == orjson.dumps(item).decode()[:MAX_TEXT] + "..."
