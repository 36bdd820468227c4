"""Langfuse and OpenInference: what they record of the openai package's requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.clients.target import THINKING, Target

pytestmark = pytest.mark.long

_PROGRAM = Path(__file__).parent / "langfuse_program.py"
_OBSERVED = "langfuse.observation."


def test_langfuse_records_input_output_and_usage(target: Target) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(_PROGRAM), target.url, target.model, target.script.hello],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    spans: list[dict[str, Any]] = json.loads(done.stdout)
    assert len(spans) == 3
    for span in spans:
        assert span[f"{_OBSERVED}model.name"] == target.model
        assert span[f"{_OBSERVED}input"] == target.script.hello
        assert json.dumps(target.script.hello_answer) in span[f"{_OBSERVED}output"]
        usage = json.loads(span[f"{_OBSERVED}usage_details"])
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert json.dumps(target.script.hello_thought) in spans[0][f"{_OBSERVED}output"]


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Collects what OpenInference records while the test runs."""
    exporter, provider, instrumentor = InMemorySpanExporter(), TracerProvider(), OpenAIInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()
    provider.shutdown()


def test_openinference_records_input_output_and_usage(spans: InMemorySpanExporter, target: Target) -> None:
    with target.installation.client() as client:
        _ask(client, target)
    recorded = [dict(span.attributes or {}) for span in spans.get_finished_spans()]
    assert len(recorded) == 3
    for attributes in recorded:
        assert attributes["llm.model_name"] == target.model
        assert target.script.hello in attributes.values()
        assert target.script.hello_answer in attributes.values()
        assert attributes["llm.token_count.completion"] > 0
    assert target.script.hello_thought in recorded[0].values()
    assert recorded[0]["llm.token_count.completion_details.reasoning"] > 0


def _ask(client: OpenAI, target: Target) -> None:
    client.responses.create(model=target.model, input=target.script.hello, reasoning=THINKING)
    with client.responses.create(model=target.model, input=target.script.hello, stream=True) as stream:
        for _ in stream:
            pass
    with client.responses.stream(model=target.model, input=target.script.hello) as helper:
        helper.until_done()
