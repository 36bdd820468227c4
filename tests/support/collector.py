"""A small OTLP collector: it keeps the spans that tracers send over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.little_web import Answer, Asked, LittleWeb

PATH = "/v1/traces"


class Collector:
    def __init__(self, url: str) -> None:
        self.spans: list[Any] = []
        self.url = f"{url}{PATH}"

    def of(self, trace: str) -> list[Any]:
        """The spans of a trace."""
        return [span for span in self.spans if span.trace_id.hex() == trace]

    def take(self, asked: Asked) -> Answer:
        for resource in ExportTraceServiceRequest.FromString(asked.body).resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return Answer()


@contextmanager
def collecting() -> Iterator[Collector]:
    with LittleWeb() as web:
        collector = Collector(web.url)
        web.answers[PATH] = collector.take
        yield collector
