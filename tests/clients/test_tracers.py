"""Langfuse and OpenInference: what they record of the openai package's requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.target import Target

pytestmark = pytest.mark.long

_PROGRAM = Path(__file__).parent / "tracers_program.py"
_OBSERVED = "langfuse.observation."


def recorded(tracer: str, target: Target) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(_PROGRAM), tracer, target.url, target.model, target.script.hello],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(spans) == 3
    return spans


def test_langfuse_records_input_output_and_usage(target: Target) -> None:
    spans = recorded("langfuse", target)
    for span in spans:
        assert span[f"{_OBSERVED}model.name"] == target.model
        assert span[f"{_OBSERVED}input"] == target.script.hello
        assert json.dumps(target.script.hello_answer) in span[f"{_OBSERVED}output"]
        usage = json.loads(span[f"{_OBSERVED}usage_details"])
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert json.dumps(target.script.hello_thought) in spans[0][f"{_OBSERVED}output"]


def test_openinference_records_input_output_and_usage(target: Target) -> None:
    spans = recorded("openinference", target)
    for attributes in spans:
        assert attributes["llm.model_name"] == target.model
        assert {target.script.hello, target.script.hello_answer} <= set(map(str, attributes.values()))
        assert attributes["llm.token_count.completion"] > 0
    assert target.script.hello_thought in spans[0].values()
    assert spans[0]["llm.token_count.completion_details.reasoning"] > 0
