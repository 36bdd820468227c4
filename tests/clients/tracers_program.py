"""A program of a user of Langfuse or OpenInference: prints, as JSON, what it would send about three requests.

A process of its own, because either changes the openai package for good.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def traced(tracer: str, exporter: InMemorySpanExporter) -> tuple[Any, Any]:
    """The client that is traced, and what ends the tracer."""
    if tracer == "langfuse":
        from langfuse import Langfuse
        from langfuse.openai import OpenAI

        return OpenAI, Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", span_exporter=exporter)
    from openai import OpenAI
    from openinference.instrumentation.openai import OpenAIInstrumentor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    return OpenAI, provider


def main(tracer: str, url: str, model: str, said: str) -> None:
    exporter = InMemorySpanExporter()
    kind, tracing = traced(tracer, exporter)
    with kind(base_url=url, api_key="unused", max_retries=0) as client:
        client.responses.create(model=model, input=said, reasoning={"effort": "medium", "summary": "auto"})
        for _ in client.responses.create(model=model, input=said, stream=True):
            pass
        with client.responses.stream(model=model, input=said) as stream:
            stream.until_done()
    (getattr(tracing, "flush", None) or tracing.force_flush)()
    print(json.dumps([dict(span.attributes or {}) for span in exporter.get_finished_spans()]))  # noqa: T201
    tracing.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
