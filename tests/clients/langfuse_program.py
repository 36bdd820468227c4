"""A program of a Langfuse user: prints, as JSON, what Langfuse would send about three requests.

A process of its own, because importing `langfuse.openai` changes the openai package for good.
"""

from __future__ import annotations

import json
import sys

from langfuse import Langfuse
from langfuse.openai import OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


def main(url: str, model: str, said: str) -> None:
    exporter = InMemorySpanExporter()
    langfuse = Langfuse(public_key="pk", secret_key="sk", base_url="http://127.0.0.1:9", span_exporter=exporter)
    with OpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        client.responses.create(model=model, input=said, reasoning={"effort": "medium", "summary": "auto"})
        for _ in client.responses.create(model=model, input=said, stream=True):
            pass
        with client.responses.stream(model=model, input=said) as stream:
            stream.until_done()
    langfuse.flush()
    print(json.dumps([dict(span.attributes or {}) for span in exporter.get_finished_spans()]))  # noqa: T201
    langfuse.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
